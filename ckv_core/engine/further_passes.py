"""Further passes over given tokens, read behind a prompt: a function of its prefill."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckv_core.base.stopwatch import Stopwatch
from ckv_core.engine.causal import sliding_attention, with_gradient
from ckv_core.engine.prefill import Prefill, Reader, chunk_tokens, states_of
from ckv_core.errors import ModelError, RunCancelledError
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.views import Chunk, FurtherPass, FurtherPasses, begun
from ckv_core.models.rope import LayerRotary
from ckv_core.records.events import Progress

Planned = Sequence[tuple[FurtherPasses, Sequence[FurtherPass]]]


class _PassReader(Reader):
    """Attention of a pass over the whole prompt and its own tokens; shows them as they go by."""

    def __init__(
        self, prefill: Prefill, passes: FurtherPasses, should_stop: Callable[[], bool]
    ) -> None:
        super().__init__(prefill.loaded, should_stop)
        self._prefill, self._passes = prefill, passes
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self.statistics: dict[int, Tensor] = {}
        self.at = 0  # tokens of the pass that were read before this chunk

    def begin(self, current: FurtherPass) -> None:
        self._current, self.at = current, 0
        self._own.clear()
        self.states = states_of(self._prefill)  # linear layers go back to the prompt's end

    def take(self, token_ids: Tensor, whole: int) -> None:
        """Read the next tokens [1, tokens] of a pass that ends where so many have been read."""
        self.read(token_ids, self._prefill.prompt_len + self.at, whole, is_seen=True)
        self.at += token_ids.shape[1]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        keys, values = key[0], value[0]
        if self.at:
            earlier = self._own[layer]
            keys, values = torch.cat([earlier[0], keys], 1), torch.cat([earlier[1], values], 1)
        self._own[layer] = keys, values
        keys, values = self._behind_the_prompt(layer, keys, values)
        start = self._prefill.prompt_len + self.at
        if (window := self.loaded.sliding_windows[layer]) is not None:
            return sliding_attention(query, keys[None], values[None], window, scaling)
        out, seen = self._causal(layer, start, query, (keys, values), scaling)
        self._show(layer, seen)
        return out

    def _behind_the_prompt(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The prompt's entries, then these; of a sliding layer what some token may see."""
        states, window = self._prefill.layers[layer], self.loaded.sliding_windows[layer]
        first = 0 if window is None else max(0, states.keys.shape[1] - window + 1)
        return (
            torch.cat([states.keys[:, first:], keys], 1),
            torch.cat([states.values[:, first:], values], 1),
        )

    def _show(self, layer: int, seen: Chunk) -> None:
        if layer not in self.statistics:
            self.statistics[layer] = begun(self._passes, seen.queries, self._prefill.prompt_len)
        self._passes.see(self.statistics[layer], seen, self._current)


class _BackReader(_PassReader):
    """Passes in one piece that go back: each layer is shown with the size of its gradient."""

    def begin(self, current: FurtherPass) -> None:
        super().begin(current)
        self._queries: dict[int, tuple[Tensor, Scaling]] = {}

    def take(self, token_ids: Tensor, whole: int) -> None:
        # What autograd may save must not have been made in inference mode.
        with torch.inference_mode(mode=False), torch.enable_grad():
            with _watched(self.loaded.layers[-1], self.loaded) as (given, last):
                super().take(token_ids.clone(), whole)
            size = last[0].float().square().sum()
            if not size.requires_grad:
                raise ModelError(
                    "No gradient goes back through this model's weights; choose another method, "
                    "or weights that are not quantised."
                )
            gradients = torch.autograd.grad(size, given)
        for layer, gradient in zip(self.loaded.attentions, gradients, strict=True):
            if self.loaded.sliding_windows[layer] is None:
                self._show_back(layer, torch.linalg.vector_norm(gradient[0].float(), dim=-1))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        if self._should_stop():
            raise RunCancelledError
        self._queries[layer] = query[0].detach(), scaling
        self._own[layer] = key[0].detach(), value[0].detach()

        def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._behind_the_prompt(layer, key[0], value[0])
            window = self.loaded.sliding_windows[layer]
            return with_gradient(query, keys[None], values[None], window, scaling)

        # Done once more on the way back, so that no layer's copy of the prompt is held until then.
        states = (query, key, value)
        return cast(Tensor, checkpoint(attended, *states, use_reentrant=False))

    def _show_back(self, layer: int, gradient: Tensor) -> None:
        (queries, scaling), start = self._queries[layer], self._prefill.prompt_len
        keys, values = self._behind_the_prompt(layer, *self._own[layer])
        rotary = partial(LayerRotary, self.loaded, layer)
        none = queries.new_empty(0)
        seen = Chunk(start, queries, keys, values, scaling, rotary, none, lambda: none, gradient)
        self._show(layer, seen)


@contextmanager
def _watched(last: nn.Module, loaded: Any) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Inside, embeddings have a gradient; lists what attentions give, and the last block."""
    given: list[Tensor] = []
    outputs: list[Tensor] = []

    def from_here(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
        return out.detach().requires_grad_()

    def attended(_module: nn.Module, _args: object, out: Any) -> None:
        given.append(out[0] if isinstance(out, tuple) else out)

    def written(_module: nn.Module, _args: object, out: Any) -> None:
        outputs.append(out[0] if isinstance(out, tuple) else out)

    with ExitStack() as hooks:
        embeddings = loaded.model.get_input_embeddings()
        hooks.enter_context(embeddings.register_forward_hook(from_here))
        for each in loaded.attentions.values():
            hooks.enter_context(each.register_forward_hook(attended))
        hooks.enter_context(last.register_forward_hook(written))
        yield given, outputs


def further_passes(
    prefill: Prefill, planned: Planned, should_stop: Callable[[], bool]
) -> Iterator[Progress]:
    """Make those of the planned passes whose statistic the prefill lacks, and add it there.

    Whatever is read here is forgotten again, and a statistic that is not complete is not kept.
    """
    wanted = [each for each in planned if each[0] not in prefill.observed]
    sizes = [len(one.token_ids) for _, passes in wanted for one in passes]
    total, count, done, number = sum(sizes), len(sizes), 0, 0
    device, start = prefill.loaded.device, prefill.prompt_len
    for statistic, passes in wanted:
        kind = _BackReader if statistic.goes_back else _PassReader
        reader = kind(prefill, statistic, should_stop)
        stopwatch = Stopwatch(device)
        for one in passes:
            number += 1
            reader.begin(one)
            ids, whole = torch.tensor([one.token_ids], device=device), start + len(one.token_ids)
            size = whole if statistic.goes_back else chunk_tokens(device)
            for part in torch.split(ids, size, dim=1):
                with stopwatch.measure("pass"):
                    reader.take(part, whole)
                done += part.shape[1]
                yield Progress("score", done / total, f"further pass {number} of {count}")
        prefill.observed[statistic] = reader.statistics
        prefill.gathered_ms[statistic] = stopwatch.timings_ms["pass"]
