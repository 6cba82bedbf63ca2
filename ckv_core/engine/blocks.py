"""A variant's own prefill: the prompt is read in blocks, and after each every head is cut down.

Layer by layer, as soon as its attention is done: one layer at a time holds a block beyond the
budget. Positions stay those of the prompt.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ckv_core.base.device_memory import trim
from ckv_core.engine.candidates import BlockCandidates, GeneratedLayer, protected_mask
from ckv_core.engine.prefill import (
    LayerStates,
    Needs,
    Prefill,
    PromptReader,
    chunk_tokens,
)
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.records.events import Progress
from ckv_core.records.records import VariantMemory
from ckv_core.records.variants import VariantSpec


@dataclass(slots=True)
class _BlockPrefill(Prefill):
    """The states of a variant that has read the prompt in blocks: evictable layers hold its budget.

    Attributes:
        tokens: of the compressed prompt.
    """

    tokens: int = 0

    @property
    def prompt_len(self) -> int:
        return self.tokens


class _BlockReader(PromptReader):
    """Attention of a block over what earlier blocks left and itself; then the layer is cut."""

    def __init__(self, run: Run, spec: VariantSpec, budget: int) -> None:
        super().__init__(
            run.loaded, run.prompt.compressed_tokens, Needs(), run.should_stop, prefix=None
        )
        self._spec, self._budget, self._now = spec, budget, run.stopwatch.now
        chunk = chunk_tokens(run.loaded.device)
        # Of a block that takes several passes, all but the last one's entries are held in between.
        self._room = min(self._prompt_len, budget + (spec.block - 1) // chunk * chunk)
        self.positions: dict[int, Tensor] = {}  # by evictable layer, [kv_heads, held] int64
        self.ends = False  # whether the pass is the block's last
        self.elapsed_ms = 0.0  # that cutting took
        self._seen: tuple[Tensor, Tensor] | None = None
        self._end = 0  # tokens read once the pass is done

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: Scaling
    ) -> Tensor:
        out = super().attend(layer, query, key, value, scaling)
        if (seen := self._seen) is not None:
            self._seen = None
            self._keep(layer, *seen)
        return out

    def _hold(
        self, layer: int, states: LayerStates, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        self._end = self.start + key.shape[1]
        new = torch.arange(self.start, self._end, device=key.device)
        positions = self.positions.get(layer, new.new_empty(len(key), 0))
        held = positions.shape[1]
        self.positions[layer] = torch.cat([positions, new.expand(len(key), -1)], 1)
        self._seen = (
            torch.cat([states.keys[:, :held], key], 1),
            torch.cat([states.values[:, :held], value], 1),
        )
        return self._seen

    def _keep(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store all that the pass saw; at the end of a block only the budget."""
        states, positions = self._states(layer), self.positions[layer]
        count = min(self._budget, self._end)
        if self.ends and count < positions.shape[1]:
            start = self._now()
            view = GeneratedLayer(
                self.loaded, layer, LayerStates(keys, values, states.queries, states.scaling)
            )
            view.positions, view.prompt_len = positions, self._prompt_len
            view.read = self._end
            protected = protected_mask(self._spec, self._end)
            if int(protected.sum()) > count:  # what is last now need not be at the end
                protected = protected_mask(self._spec, self._prompt_len)[: self._end]
            own = protected.to(positions.device)[positions]
            places = BlockCandidates(self._spec, view, own, count).kept().nonzero()[:, 1]
            places = places.view(len(keys), count)
            keys = torch.take_along_dim(keys, places[..., None], 1)
            values = torch.take_along_dim(values, places[..., None], 1)
            self.positions[layer] = positions.gather(1, places)
            self.elapsed_ms += (self._now() - start) * 1000
        states.keys[:, : keys.shape[1]] = keys
        states.values[:, : values.shape[1]] = values

    def _states(self, layer: int) -> LayerStates:
        return cast(LayerStates, self.layers[layer])  # the first pass has made room

    @property
    def held_bytes(self) -> int:
        """Bytes of the entries that evictable layers hold."""
        held = [(self._states(layer), each.shape[1]) for layer, each in self.positions.items()]
        return sum(states.keys[:, :n].nbytes + states.values[:, :n].nbytes for states, n in held)

    def whole(self) -> list[LayerStates]:
        """All layers, without the room that nothing lies in."""
        layers = super().whole()
        for layer, positions in self.positions.items():
            states, held = layers[layer], positions.shape[1]
            if held < states.keys.shape[1]:
                states.keys = states.keys[:, :held].clone()
                states.values = states.values[:, :held].clone()
        return layers


def read_blocks(run: Run, spec: VariantSpec, budget: int) -> Generator[Progress, None, Selection]:
    """Read the prompt as one variant does that holds at most its budget between blocks.

    The budget is below the prompt's tokens. Returns what it keeps, with its own prefill.
    """
    reader, tokens = _BlockReader(run, spec, budget), run.prompt.compressed_tokens
    start = run.stopwatch.now()
    ids = torch.tensor([run.prompt.token_ids[:tokens]], device=run.loaded.device)
    logits, read, held = ids.new_empty(0), [], []
    for block in torch.split(ids, spec.block, dim=1):
        parts: Sequence[Tensor] = torch.split(block, chunk_tokens(run.loaded.device), dim=1)
        for part in parts:
            reader.ends = part is parts[-1]
            logits = reader.read(part, reader.start, tokens, is_seen=False).float()
            reader.start += part.shape[1]
            detail = f"{spec.label}, {reader.start:,} of {tokens:,} tokens"
            yield Progress("prefill", reader.start / tokens, detail)
        read.append(reader.start)
        held.append(reader.held_bytes)
    layers = reader.whole()
    trim()
    masks: list[Tensor | None] = [None] * len(layers)
    for layer, positions in reader.positions.items():
        mask = torch.zeros(len(positions), tokens, dtype=torch.bool, device=positions.device)
        masks[layer] = mask.scatter_(1, positions, value=True)
    note = (
        f"It has a prefill of its own, in {len(read):,} blocks of {spec.block:,} tokens. Where "
        "head L1 and bounds are measured, they are of its kept set in the prefill of the others."
    )
    return Selection(
        budget,
        tuple(masks),
        (note,),
        elapsed_ms=reader.elapsed_ms,
        own=_BlockPrefill(run.loaded, layers, logits, tokens=tokens),
        prefill_ms=(run.stopwatch.now() - start) * 1000 - reader.elapsed_ms,
        memory=VariantMemory(read=tuple(read), held=tuple(held)),
    )
