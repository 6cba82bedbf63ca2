"""TriAttention: keys by what a model's mean query, turned to later positions, would give them.

The mean queries before RoPE are made once a model. Each layer and KV head chooses by itself, where
the authors' experiments take means over layers. The prompt is cut too; their experiments keep it.
"""

from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.errors import ConfigError
from ckv_core.methods.base import register
from ckv_core.methods.headkv import TABLE
from ckv_core.methods.parts.base import Parameters, PerEntry, Scorer
from ckv_core.methods.parts.views import Chunk, LayerView, PromptShape, Rotary, Table
from ckv_core.methods.r_kv import CutBuffer

CENTRES = "centres"  # the table that is made
_DOUBLINGS = 17  # of the distance to the newest token, from 1 to 65,536
_LEAST = 1e-6  # of a standard deviation


@dataclass(frozen=True, slots=True)
class QueryCentres:
    """Sums over all queries before RoPE: of each channel, then of the length of each pair.

    RoPE turns a channel with the one that lies half a head further.
    """

    kind: ClassVar[str] = "sums of queries before RoPE"

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, head_dim + head_dim // 2

    def see(self, statistic: Tensor, chunk: Chunk) -> None:
        plain = chunk.rotary().undo(chunk.queries.float(), chunk.start)
        statistic += torch.cat([plain.sum(1), lengths(plain).sum(1)], -1)

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        return 16 * chunk * shape.query_heads * shape.head_dim


class Trigonometric(Scorer):
    """Mean over later distances of the turned centre's logit, and of the norms that it leaves out.

    Of each query head in standard deviations over the entries; a group has the largest.
    """

    parameters = (TABLE.but(default=CENTRES),)
    query_aware = False
    across_heads = False
    work = PerEntry(query_heads=6, keys=3)

    def tables(self, scorer: Scorer | None, parameters: Parameters) -> tuple[Table, ...]:
        return (centres_table(parameters),)

    def scores(self, view: LayerView, parameters: Parameters) -> Tensor:
        scores = self.evidence(view, parameters)
        spread = scores.std(-1, correction=0, keepdim=True).clamp_min(_LEAST)
        scores = (scores - scores.mean(-1, keepdim=True)) / spread
        return scores.view(view.kv_heads, -1, scores.shape[-1]).amax(1)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        numbers = view.head_table(centres_table(parameters)).to(view.keys.device).T.float()
        width, rotary = view.keys.shape[-1], view.rotary()
        centres, sizes = numbers[:, :width], numbers[:, width:]
        turn = _one_turn(rotary, view.keys)
        scale = turn[0].norm()  # 1 but where the embedding scales (YaRN)
        later = rotary.turn(centres[:, None], view.read)[:, 0].double() @ _mean_turn(turn).T
        rest = (sizes - lengths(centres)).double() * scale
        group = view.query_heads // view.kv_heads
        found = []
        for head, keys in enumerate(view.keys):
            own, exact = slice(head * group, (head + 1) * group), keys.double()
            found.append(later[own] @ exact.T + rest[own] @ lengths(exact).T)
        return torch.cat(found).float()


def centres_table(parameters: Parameters) -> Table:
    """The table of each query head's centre and mean lengths."""
    name = str(parameters["table"])
    return Table(name, "centres", own=name == CENTRES)


def lengths(states: Tensor) -> Tensor:
    """Length of each pair of channels that RoPE turns, [..., head_dim // 2]."""
    first, second = states.chunk(2, -1)
    return torch.hypot(first, second)


def _one_turn(rotary: Rotary, like: Tensor) -> Tensor:
    """RoPE's turn over one position, [head_dim, head_dim] float64; its rows have one length.

    ConfigError where it does not turn a channel with the one half a head further.
    """
    width = like.shape[-1]
    units = torch.eye(width, device=like.device)[:, None]
    turn = rotary.turn(units, 1)[:, 0].double().T
    place = torch.arange(width, device=like.device)
    known = place % (width // 2) == (place % (width // 2))[:, None]
    rows = turn.norm(dim=-1)
    if turn[~known].any() or not torch.allclose(rows, rows[:1].expand_as(rows), rtol=1e-4):
        raise ConfigError(
            "TriAttention is not possible with this model: its RoPE does not turn whole heads in "
            "halves. Choose another method."
        )
    return turn


def _mean_turn(turn: Tensor) -> Tensor:
    """The mean of the turns over 1, 2, 4 and so on positions, of that over one, without scale."""
    turn = turn / turn.norm(dim=-1, keepdim=True)  # rounding would count 65,536 times
    total = torch.zeros_like(turn)
    for _ in range(_DOUBLINGS):
        total += turn
        turn = turn @ turn
    return total / _DOUBLINGS


class CutTokens(CutBuffer):
    """After each full buffer, prompt and generated entries together are cut to the budget."""

    reads = ()

    def unfit(self, scorer: Scorer) -> str:
        return "" if isinstance(scorer, Trigonometric) else "has scores of another kind"

    def check(self, parameters: Parameters) -> str:
        return ""

    def queries(self, parameters: Parameters) -> int:
        return 0


register(
    name="triattention",
    label="TriAttention",
    summary="Every few tokens keeps what the model's mean queries would attend to.",
    source="Mao et al. 2026, arXiv:2604.04921",
    scorer=Trigonometric(),
    policy=CutTokens(),
)
