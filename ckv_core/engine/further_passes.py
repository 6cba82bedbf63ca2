"""Further passes over given tokens, read behind a prompt: a function of its prefill."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ckv_core.engine.causal import causal_attention, log_sum_exp, sliding_attention, visible
from ckv_core.engine.prefill import Prefill, chunk_tokens
from ckv_core.errors import RunCancelledError
from ckv_core.methods.parts.views import Chunk, FurtherPass, FurtherPasses
from ckv_core.models.attention import inputs_told
from ckv_core.models.rope import read_as_whole
from ckv_core.models.rotary import LayerRotary
from ckv_core.results.events import Progress

Planned = Sequence[tuple[FurtherPasses, Sequence[FurtherPass]]]


class _PassContext:
    """Attention of a pass over the whole prompt and its own tokens; shows them as they go by."""

    def __init__(
        self, prefill: Prefill, passes: FurtherPasses, should_stop: Callable[[], bool]
    ) -> None:
        self._prefill, self._passes, self._should_stop = prefill, passes, should_stop
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._hidden = torch.empty(0)  # what the attention under way was given
        self.statistics: dict[int, Tensor] = {}
        self.current: FurtherPass | None = None
        self.at = 0  # tokens of the pass that were read before this chunk

    def begin(self, current: FurtherPass) -> None:
        """Forget the last pass."""
        self.current = current
        self._own.clear()

    def take_hidden(self, states: Tensor) -> None:
        """Of the attention that comes next, [1, tokens, hidden_size]."""
        self._hidden = states[0]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        keys, values = key[0], value[0]
        if self.at:
            earlier = self._own[layer]
            keys, values = torch.cat([earlier[0], keys], 1), torch.cat([earlier[1], values], 1)
        self._own[layer] = keys, values
        states, loaded = self._prefill.layers[layer], self._prefill.loaded
        window = loaded.sliding_windows[layer]
        # Of a sliding layer, what some token of the pass may see.
        first = 0 if window is None else max(0, states.keys.shape[1] - window + 1)
        keys = torch.cat([states.keys[:, first:], keys], 1)
        values = torch.cat([states.values[:, first:], values], 1)
        start = self._prefill.prompt_len + self.at
        if window is not None:
            end = start + query.shape[2]
            mask = visible(start, end, end - keys.shape[1], end, window, query.device)
            return sliding_attention(query, keys[None], values[None], mask, scaling)
        if layer not in self.statistics:
            heads = (query.shape[1], len(keys))
            self.statistics[layer] = self._passes.begin(*heads, self._prefill.prompt_len, keys)
        out, total = causal_attention(query, keys[None], values[None], scaling)
        seen = Chunk(
            start,
            query[0],
            keys,
            values,
            scaling,
            partial(LayerRotary, loaded, layer),
            lambda: log_sum_exp(query[0], keys, scaling) if total is None else total[0],
            lambda: self._hidden,
        )
        assert self.current is not None  # noqa: S101 - `begin` comes before
        self._passes.see(self.statistics[layer], seen, self.current)
        return out


def further_passes(
    prefill: Prefill, planned: Planned, should_stop: Callable[[], bool]
) -> Iterator[Progress]:
    """Make those of the planned passes whose statistic the prefill lacks, and add it there.

    Args:
        prefill: of the compressed prompt; whatever is read here is forgotten again.
        planned: what to gather, each with its passes over this prompt.
        should_stop: asked at every layer.

    Raises:
        RunCancelledError: should_stop said so; a statistic that is not complete is not kept.
    """
    wanted = [each for each in planned if each[0].key not in prefill.observed]
    total = sum(len(one.token_ids) for _, passes in wanted for one in passes)
    chunk = chunk_tokens(prefill.loaded.device)
    count, done, number = sum(len(passes) for _, passes in wanted), 0, 0
    for statistic, passes in wanted:
        context = _PassContext(prefill, statistic, should_stop)
        for one in passes:
            number += 1
            context.begin(one)
            for _ in _read(prefill, one, context, chunk):
                done += min(chunk, len(one.token_ids) - context.at)
                yield Progress("score", done / total, f"further pass {number} of {count}")
        prefill.observed[statistic.key] = context.statistics


def _read(prefill: Prefill, one: FurtherPass, context: _PassContext, chunk: int) -> Iterator[None]:
    """One pass in chunks of so many tokens."""
    model, length = prefill.loaded.model, len(one.token_ids)
    ids = torch.tensor([one.token_ids], device=prefill.loaded.device)
    positions = torch.arange(length, device=ids.device)[None] + prefill.prompt_len
    for start in range(0, length, chunk):
        context.at = start
        part = slice(start, start + chunk)
        with (
            read_as_whole(model, prefill.prompt_len + length),
            inputs_told(prefill.loaded.attentions, context.take_hidden),
        ):
            model(
                input_ids=ids[:, part],
                position_ids=positions[:, part],
                use_cache=False,
                logits_to_keep=1,
                ckv_context=context,
            )
        yield
