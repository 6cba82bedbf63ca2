"""KVzip: keeps what the model attends to when it repeats the prompt, whatever the question.

The model reads "Repeat the previous context exactly." and the prompt again, part by part. An entry
counts as the most that a token attends to it. With `plus=on` (KVzip+) that is divided by the hidden
state's norm and multiplied by the norm of V W_O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import Parameter, choice, integer
from ckv_core.methods.parts.base import SINKS, Parameters, Scorer
from ckv_core.methods.parts.press import Press
from ckv_core.methods.parts.rules import TopScoresOfAll
from ckv_core.methods.parts.scaling import softmax
from ckv_core.methods.parts.views import (
    Chunk,
    FurtherPass,
    FurtherPasses,
    LayerView,
    PromptShape,
    PromptTokens,
)

_FIRST = "\n\nRepeat the previous context exactly."
NEXT = "\n\nRepeat the part of the previous context exactly, starting with"
_NEXT_OF_AUTHORS = f"{NEXT} "  # kvpress left the space out
_OVERLAP = 8  # tokens of the part before, with which a later pass is to start
_OVERHEAD = 512  # tokens of instruction and template, a bound for the memory estimate
_QUERIES = 128  # of one query head whose attention exists at a time
_FLOAT = 4  # bytes
FIRST_OF_ALL = 2.0  # more than any attention
FIRST_OF_WEIGHTED = 1e30  # more than any attention times or over a norm


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Per query head and entry, the most attention of any token that rebuilds its part."""

    repeat: int  # tokens of a part
    # First tokens that take part in every softmax; None for the whole lead, whose entries then come
    # before all others. Else nothing rebuilds the lead and it counts nothing.
    sinks: int | None
    plus: bool = False  # attention over the norm of what the layer's attention was given
    shorter_by: ClassVar[str] = "repeat"
    kind: ClassVar[str] = "attention while the prompt is repeated"
    goes_back: ClassVar[bool] = False

    def passes(self, prompt: PromptTokens) -> Sequence[FurtherPass]:
        planned = []
        for start in range(prompt.lead, len(prompt.token_ids), self.repeat):
            part = slice(start, min(start + self.repeat, len(prompt.token_ids)))
            instruction = [*prompt.encode(_FIRST if start == prompt.lead else self.following)]
            if start > prompt.lead:
                instruction += prompt.token_ids[max(prompt.lead, start - _OVERLAP) : start]
            tokens = (*instruction, *prompt.closing, *prompt.token_ids[part])
            planned.append(FurtherPass(tokens, part, prompt.lead, len(prompt.token_ids)))
        return planned

    def size(self, query_heads: int, head_dim: int, prompt_len: int) -> tuple[int, ...]:
        return query_heads, prompt_len

    def see(self, statistic: Tensor, chunk: Chunk, seen: FurtherPass) -> None:
        prompt_len, part = statistic.shape[1], seen.part
        sinks = seen.lead if self.sinks is None else min(self.sinks, part.start)
        if self.sinks is None:
            statistic[:, : seen.lead] = self.first
        weights = self.weights(chunk)
        group_size = len(chunk.queries) // len(chunk.keys)
        before = sinks + part.stop - part.start
        own = chunk.keys.shape[1] - prompt_len
        places = torch.arange(own, device=chunk.keys.device)
        for head, every in enumerate(chunk.keys):
            keys = torch.cat([every[:sinks], every[part], every[prompt_len:]]).float().T
            for query_head in range(head * group_size, (head + 1) * group_size):
                most = statistic[query_head, part]
                for first in range(0, chunk.queries.shape[1], _QUERIES):
                    queries = chunk.queries[query_head, first : first + _QUERIES].float()
                    logits = chunk.scaling.logits_(queries @ keys)
                    ends = places[chunk.start - prompt_len + first :][: len(queries), None]
                    logits[:, before:].masked_fill_(places > ends, -torch.inf)
                    attention = softmax(logits, chunk.scaling.sink_of(query_head))[:, sinks:before]
                    if weights is not None:
                        attention = attention * weights[first : first + _QUERIES, None]
                    torch.maximum(most, attention.amax(0), out=most)

    @property
    def following(self) -> str:
        """Words that begin every pass after the first one."""
        return _NEXT_OF_AUTHORS if self.sinks is None else NEXT

    @property
    def first(self) -> float:
        """The score of the lead's entries where they come before all others."""
        return FIRST_OF_WEIGHTED if self.plus else FIRST_OF_ALL

    def weights(self, chunk: Chunk) -> Tensor | None:
        """The factor of each token's attention, [tokens] float32."""
        return 1 / torch.linalg.vector_norm(chunk.hidden().float(), dim=-1) if self.plus else None

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        part = min(self.repeat, shape.prompt_len)
        lead = shape.prompt_len if self.sinks is None else self.sinks
        keys = min(lead + part, shape.prompt_len) + part + _OVERHEAD
        return _FLOAT * keys * (2 * shape.head_dim + 3 * min(_QUERIES, chunk))


REPEAT = integer("repeat", 2000, (64, 65536), kvpress=2048).means(
    "KVzip: tokens of the prompt that one further pass repeats."
)
LEAD = choice("lead", ("first", "last"), kvpress="last").means(
    "KVzip: what the chat template writes before the text ranks first, or last, since "
    "nothing repeats it (kvpress)."
)
PLUS = choice("plus", ("off", "on")).means(
    "KVzip+ divides attention by the L2 norm of the hidden state that attends. It multiplies by "
    "that of the value after the output projection."
)


class Repeated(Scorer):
    """The most that any token attends to an entry while its part is repeated; sinks are kept."""

    parameters: ClassVar[tuple[Parameter, ...]] = (REPEAT, LEAD, PLUS, SINKS.but(default=4))
    query_aware = False
    non_negative = True

    def norms(self, parameters: Parameters) -> tuple[int, ...]:
        return (2,) if parameters["plus"] == "on" else ()

    def passes(self, parameters: Parameters) -> tuple[FurtherPasses, ...]:
        return (self.reconstruction(parameters),)

    def evidence(self, view: LayerView, parameters: Parameters) -> Tensor:
        most = view.observed(self.reconstruction(parameters))
        if not (orders := self.norms(parameters)):
            return most
        return torch.where(most < FIRST_OF_WEIGHTED, most * view.value_norms(*orders), most)

    def group(self, evidence: Tensor, kv_heads: int, parameters: Parameters) -> Tensor:
        return evidence.view(kv_heads, -1, evidence.shape[-1]).amax(1)

    def reconstruction(self, parameters: Parameters) -> Reconstruction:
        """The passes that such parameters ask for."""
        sinks = None if parameters["lead"] == "first" else int(parameters["sinks"])
        return Reconstruction(int(parameters["repeat"]), sinks, parameters["plus"] == "on")


register(
    name="kvzip",
    label="KVzip",
    summary="Keeps what the model attends to while it repeats the prompt; costs 2 to 3 prefills.",
    source="Kim et al. 2025, arXiv:2505.23416",
    scorer=Repeated(),
    budget_rule=TopScoresOfAll(),
    press=Press(
        "KVzipPress",
        {"n_sink": "sinks", "chunk_size": "repeat", "kvzip_plus_normalization": "plus"},
        scores=False,
    ),
)
