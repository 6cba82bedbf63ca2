"""Rows decoded over compact caches, and what a masked full cache is told to hide for them."""

from collections.abc import Callable, Iterable, Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from ckv_core.engine import graphs
from ckv_core.engine.cache.slots import Keep
from ckv_core.engine.choose import row_plan
from ckv_core.engine.compare import made_table
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.head_tables import kept_table
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.rows import PromptRows, RowPlan, prompt_rows
from ckv_core.engine.select import Selection, select
from ckv_core.methods.parts.views import PromptTokens
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.variants import VariantSpec
from tests.factories.models import SPECS, drained, prompt_ids
from tests.reference.checks import kept_from_mask
from tests.reference.forward import Kept

PROMPT_LEN, BUDGET = 150, 40
# Logits of these models reach about 10; three to four float32 layers sum some hundred
# products of order one in another order.
CLOSE = {"rtol": 1e-4, "atol": 2e-3}
PARSED = [*map(VariantSpec.parse, SPECS)]
NEEDS = Needs.of(PARSED)


def make_tables(loaded: LoadedModel, specs: Iterable[VariantSpec]) -> None:
    """Those that these variants ask for and that are not there yet."""
    for spec in specs:
        for table in spec.tables:
            if kept_table(loaded.info, table) is None:
                drained(made_table(loaded, table, spec))


def prefilled(loaded: LoadedModel, token_ids: list[int]) -> Prefill:
    """With all that any method asks for; head tables are made once a model."""
    make_tables(loaded, PARSED)
    with torch.inference_mode():
        result = drained(prefill(loaded, token_ids, NEEDS, lambda: False))
        given = PromptTokens(tuple(token_ids), 0, (5,), lambda _text: [6, 7])
        planned = [(each, each.passes(given)) for each in NEEDS.passes]
        for _ in further_passes(result, planned, lambda: False):
            pass
    return result


def selected(result: Prefill, specs: Sequence[str], budget: int = BUDGET) -> list[Selection]:
    """What each variant keeps; the full cache everything."""
    parsed = map(VariantSpec.parse, specs)
    return [
        select(spec, result, budget if spec.method.evicts else result.prompt_len) for spec in parsed
    ]


def steady(selections: Sequence[Selection]) -> list[RowPlan]:
    """Rows that evict nothing more, whatever their method does while it generates."""
    return [RowPlan([Keep(mask) for mask in each.keep_masks]) for each in selections]


def decoder_of(result: Prefill, plans: Sequence[RowPlan], capacity: int = 40) -> Decoder:
    return started(result.loaded, prompt_rows(result, plans), capacity)


def started(
    loaded: LoadedModel, rows: PromptRows, capacity: int = 40, first_place: int = 0
) -> Decoder:
    parts = rows.start(capacity, first_place)
    return Decoder(loaded, DecodeContext(loaded, parts, lambda: False))


def steady_decoder(
    result: Prefill, capacity: int, specs: Sequence[str] = SPECS
) -> tuple[Decoder, list[Selection]]:
    """A decoder with one row per variant that evicts nothing more, and what the rows keep."""
    selections = selected(result, specs)
    return decoder_of(result, steady(selections), capacity), selections


def masked(keep_masks: Sequence[torch.Tensor | None], loaded: LoadedModel, length: int) -> Kept:
    """A selection as the reference takes it."""
    everything = torch.ones(loaded.info.kv_heads, length, dtype=torch.bool)
    masks = [everything if mask is None else mask for mask in keep_masks]
    return kept_from_mask(torch.stack(masks), loaded.info.evictable_layers)


# Of a tail in which some heads have no stretch, and of every way to hold entries.
GRAPHED = ("full", "snapkv", "adakv", "adakv:store=int8", "adakv:store=think")


@torch.inference_mode()
def replayed_beside_usual(loaded: LoadedModel) -> tuple[float, int]:
    """Logits of steps replayed as a graph beside those of usual ones; rows leave on the way.

    Returns:
        The largest difference over the largest logit, and how many steps were replayed.
    """
    specs = [*map(VariantSpec.parse, GRAPHED)]
    result = drained(prefill(loaded, prompt_ids(300), Needs.of(specs), lambda: False))
    plans = [row_plan(spec, select(spec, result, BUDGET), result) for spec in specs]
    replayed = 0

    def counted(work: Callable[[], None]) -> Callable[[], None]:
        replay = record(work)

        def once_more() -> None:
            nonlocal replayed
            replayed += 1
            replay()

        return once_more

    def logits(usual: int) -> list[Tensor]:
        found, decoder = [], decoder_of(result, plans)
        with patch.multiple(graphs, _USUAL=usual, _recorded=counted):
            # Of so many rows, steps, or a question of so many tokens.
            for rows, steps, question in ((5, 7, 1), (5, 1, 3), (5, 6, 1), (3, 6, 1), (1, 4, 1)):
                decoder.context.keep_rows([*range(rows)][::-1])
                for step in range(steps):
                    fed = torch.arange(rows * question, device=loaded.device) + 20 + step
                    found.append(decoder.feed(fed.view(rows, question)))
        return found

    record = graphs._recorded
    pairs = [*zip(logits(1), logits(100), strict=True)]
    largest = max(float(usual.abs().max()) for _, usual in pairs)
    apart = max(float((fixed - usual).abs().max()) for fixed, usual in pairs)
    return apart / largest, replayed
