"""What rebuilding the prompt's text attends to: the evidence of KVzip (arXiv:2505.23416).

Read behind the prompt: "Repeat the previous context exactly." and, after the chat template's end of
a turn, a part of the prompt's own tokens, part by part. An entry's evidence is the most that any
token of the pass about it attends to it, with the softmax over the lead, the part and the pass.
The authors' code and kvpress compute that softmax in the model's type, this in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckv_core.methods.parts.views import Chunk, FurtherPass, PromptShape, PromptTokens
from ckv_core.runtime.lazy_torch import Tensor, torch

_FIRST = "\n\nRepeat the previous context exactly."
_NEXT = "\n\nRepeat the part of the previous context exactly, starting with"
_OVERLAP = 8  # tokens of the part before, which a later pass is told to start with
_OVERHEAD = 512  # tokens of instruction and template, a bound for the memory estimate
_QUERIES = 128  # of one query head whose attention exists at a time
_FLOAT = 4  # bytes
FIRST_OF_ALL = 2.0  # more than any attention


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """Per query head and entry, the most attention of any token that rebuilds its part.

    Attributes:
        repeat: tokens of a part.
        sinks: first tokens that take part in every softmax; None for the whole lead, whose entries
            then come before all others. Else nothing rebuilds the lead and it counts nothing.
    """

    repeat: int
    sinks: int | None
    shorter_by: ClassVar[str] = "repeat"

    @property
    def key(self) -> tuple[str, int, int | None]:
        """Equal for equal statistics."""
        return ("attention while the prompt is repeated", self.repeat, self.sinks)

    def passes(self, prompt: PromptTokens) -> Sequence[FurtherPass]:
        found = []
        for start in range(prompt.lead, len(prompt.token_ids), self.repeat):
            part = slice(start, min(start + self.repeat, len(prompt.token_ids)))
            asked = [*prompt.encode(_FIRST if start == prompt.lead else _NEXT)]
            if start > prompt.lead:
                asked += prompt.token_ids[max(prompt.lead, start - _OVERLAP) : start]
            tokens = (*asked, *prompt.closing, *prompt.token_ids[part])
            found.append(FurtherPass(tokens, part, prompt.lead))
        return found

    def begin(self, query_heads: int, kv_heads: int, prompt_len: int, like: Tensor) -> Tensor:
        """[query_heads, prompt_len] float32."""
        return torch.zeros(query_heads, prompt_len, dtype=torch.float32, device=like.device)

    def see(self, statistic: Tensor, chunk: Chunk, seen: FurtherPass) -> None:
        prompt_len, part = statistic.shape[1], seen.part
        sinks = seen.lead if self.sinks is None else min(self.sinks, part.start)
        if self.sinks is None:
            statistic[:, : seen.lead] = FIRST_OF_ALL
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
                    logits = queries @ keys * chunk.scaling
                    ends = places[chunk.start - prompt_len + first :][: len(queries), None]
                    logits[:, before:].masked_fill_(places > ends, -torch.inf)
                    attention = logits.softmax(-1)[:, sinks:before]
                    torch.maximum(most, attention.amax(0), out=most)

    def nbytes(self, shape: PromptShape) -> int:
        return _FLOAT * shape.query_heads * shape.prompt_len

    def work_bytes(self, shape: PromptShape, chunk: int) -> int:
        part = min(self.repeat, shape.prompt_len)
        lead = shape.prompt_len if self.sinks is None else self.sinks
        keys = min(lead + part, shape.prompt_len) + part + _OVERHEAD
        return _FLOAT * keys * (2 * shape.head_dim + 3 * min(_QUERIES, chunk))
