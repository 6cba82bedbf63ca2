"""SimLayerKV: some layers keep everything, lazy ones the first and the newest tokens.

A layer is lazy where the prompt's last query attends to little but its first and newest tokens.
Authors and kvpress set a threshold per model; here the budget says how many layers keep everything.
"""

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.duo_attention import STREAMING, Streaming, granted
from ckv_core.methods.parts.base import BudgetRule, Candidates, Parameters
from ckv_core.methods.parts.views import LayerView
from ckv_core.methods.parts.window import AUTHORS_WINDOW


class StreamingSeen(Streaming):
    """As StreamingLLM's; it sees the last queries, whose own entries stay too."""

    parameters = (AUTHORS_WINDOW.but(default=1), *STREAMING)
    query_aware = True


class WholeLayers(BudgetRule):
    """Layers keep everything, the least lazy first, as long as the budget lasts; others nothing.

    Beyond what is always kept; in the last layer that gets anything heads share what is left.
    """

    looks_at = "all layers"
    reads = ("window", "sinks", "recent")

    def head_budgets(self, candidates: Candidates, spare: int, parameters: Parameters) -> Tensor:
        sizes = [int(candidates.parameters[key]) for key in self.reads]
        views = map(candidates.view, range(candidates.layers))
        lazy = torch.tensor([_laziness(view, *sizes) for view in views])
        of_layer = candidates.kv_heads * candidates.entries
        budgets = granted(-lazy, candidates.layers * candidates.kv_heads * spare, of_layer)
        heads = torch.arange(candidates.kv_heads)
        return (budgets[:, None] + candidates.kv_heads - 1 - heads) // candidates.kv_heads


def _laziness(view: LayerView, window: int, sinks: int, recent: int) -> float:
    """Share of the last queries' attention that the first and the newest entries get."""

    def share() -> Tensor:
        rows = torch.stack([rows.mean(0) for rows in view.window_rows(window)]).mean(0)
        newest = max(sinks, len(rows) - recent)
        return (rows[:sinks].sum() + rows[newest:].sum()).view(1)

    return float(view.statistic(f"laziness {window} {sinks} {recent}", share))


register(
    name="simlayerkv",
    label="SimLayerKV",
    summary="Layers that look far back keep all tokens; lazy layers the first and the newest.",
    source="Zhang et al. 2024, arXiv:2410.13846",
    scorer=StreamingSeen(),
    budget_rule=WholeLayers(),
)
