"""One row's compressed cache as named tensors of a safetensors file, and back, bit for bit.

KV heads of a layer that keep equally many entries are a group; of each group the file has its
heads, the kept positions and the tensors of its store as they lie in memory. Of a layer of linear
attention it has what that carries at the context's end.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ckv_core.base.device_memory import available_bytes
from ckv_core.base.memory_line import human_bytes
from ckv_core.engine.cache.slots import Keep, PromptSlots, compact, held_slots
from ckv_core.engine.rows import PromptRows, RowPlan
from ckv_core.errors import ConfigError, ModelError
from ckv_core.methods.parts.store import PLAIN, PlainSegment, Segment
from ckv_core.models.linear import LinearState
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.kept_caches import STATE, KeptRecord, metadata_of, read_record
from ckv_core.records.variants import VariantSpec

_TENSOR = re.compile(r"layers\.(\d{1,4})\.(\d{1,4})\.(\w+(?:\.\w+)?)", re.ASCII)
_TEXT, _TOKENS, _HEADS, _POSITIONS = "context", "token_ids", "heads", "positions"

Group = dict[str, Tensor]  # one group's tensors by name


@dataclass(frozen=True, slots=True, eq=False)
class KeptCache:
    """A compressed cache of one variant, ready to answer questions."""

    record: KeptRecord
    context: str
    token_ids: tuple[int, ...]  # of the context, [compressed_tokens]
    rows: PromptRows  # one row, without a policy


def write_cache(path: Path, cache: KeptCache, masks: Sequence[Tensor | None]) -> None:
    """Write a file; OSError where the disk refuses.

    `masks` are of each layer, [kv_heads, compressed_tokens] bool of what is kept; None for
    everything.
    """
    tensors = {
        _TEXT: torch.frombuffer(bytearray(cache.context.encode()), dtype=torch.uint8),
        _TOKENS: torch.tensor(cache.token_ids, dtype=torch.int32),
    }
    for layer, mask in enumerate(masks):
        slots = cache.rows.slots(layer, 0)
        groups = _groups(slots, mask, len(cache.token_ids))
        for name, tensor in (slots.state._asdict() if slots.state else {}).items():
            tensors[f"states.{layer}.{name}"] = tensor.cpu().contiguous()
        for number, group in enumerate(groups):
            for name, tensor in group.items():  # a copy: views of one tensor are not written
                whole = tensor.cpu().clone(memory_format=torch.contiguous_format)
                tensors[f"layers.{layer}.{number}.{name}"] = whole
    try:
        save_file(tensors, path, metadata_of(cache.record))
    except SafetensorError as error:  # what the disk says comes as text
        raise OSError(str(error)) from None


def _groups(slots: PromptSlots, mask: Tensor | None, prompt_len: int) -> list[Group]:
    held: list[tuple[Segment, Sequence[int]]]
    held = [(stack.segment, stack.slots) for stack in slots.stacks]
    if slots.whole is not None:
        held = [(PlainSegment(*slots.whole), range(slots.kv_heads))]
    groups = []
    for segment, of in held:
        heads = torch.tensor(list(of))
        if mask is None:  # of a sliding layer only the last are held
            kept = torch.arange(prompt_len - segment.length, prompt_len).expand(len(heads), -1)
        else:
            kept = mask.cpu()[heads].nonzero()[:, 1].view(len(heads), segment.length)
        own = {_HEADS: heads.int(), _POSITIONS: kept.int()}
        groups.append(own | segment.tensors())
    return groups


def read_cache(path: Path, loaded: LoadedModel) -> KeptCache:
    """A cache of this model from a file that may be anybody's; every tensor is checked.

    Raises:
        ConfigError: it is no sound kept cache.
        ModelError: it is of another model, or of another type of numbers.
    """
    record = read_record(path)
    own, info = record.model, loaded.info
    if own.sha256 != info.sha256:
        raise ModelError(
            f"This cache was made with other weights ({own.name!r}, sha256 {own.sha256[:12]}) than "
            f"{info.name!r} has ({info.sha256[:12]}); ask it with the model that made it."
        )
    if own.dtype != info.dtype:
        raise ModelError(
            f"This cache was made in {own.dtype} and {info.name!r} is loaded in {info.dtype}; "
            f"load it in {own.dtype}."
        )
    sizes = ("layers", "query_heads", "kv_heads", "head_dim", "evictable_layers")
    if any(getattr(own, name) != getattr(info, name) for name in sizes):
        raise ModelError(
            f"This cache's receipt has other sizes than {info.name!r}; use the model that made it."
        )
    size, room = path.stat().st_size, available_bytes(torch.device("cpu"))
    if size > room:
        raise ConfigError(
            f"This cache takes {human_bytes(size)} and {human_bytes(room)} of memory are left; "
            "end other programs, or keep the context with a lower budget."
        )
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _unsound(str(error)) from None
    return _checked(record, tensors, loaded)


def _checked(record: KeptRecord, tensors: Mapping[str, Tensor], loaded: LoadedModel) -> KeptCache:
    spec = VariantSpec.parse(record.spec)
    if spec.policy is not None:
        raise _unsound(f"{spec.label} evicts while it generates, which none does")
    text, ids = tensors.get(_TEXT), tensors.get(_TOKENS)
    prompt_len = record.compressed_tokens
    if text is None or text.dtype != torch.uint8 or text.dim() != 1:
        raise _unsound("its context is missing")
    if ids is None or ids.dtype != torch.int32 or ids.shape != (prompt_len,):
        raise _unsound("its token ids are missing")
    try:
        context = text.numpy().tobytes().decode()
    except UnicodeDecodeError:
        raise _unsound("its context is not UTF-8 text") from None
    found: list[dict[int, Group]] = [{} for _ in range(loaded.info.layers)]
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match and int(match[1]) < len(found):
            found[int(match[1])].setdefault(int(match[2]), {})[match[3]] = tensor
        elif name not in (_TEXT, _TOKENS) and not STATE.fullmatch(name):
            raise _unsound(f"the tensor {name[:60]!r} is unknown")
    layers = [[groups[number] for number in sorted(groups)] for groups in found]
    slots = [
        _Layer(index, spec, prompt_len, loaded).slots(groups) for index, groups in enumerate(layers)
    ]
    for index, state in _states(tensors, loaded).items():
        slots[index] = replace(slots[index], state=state)
    evictable = loaded.info.evictable_layers
    kept = sum(group[_POSITIONS].numel() for index in evictable for group in layers[index])
    if kept != record.receipt.retained_entries:
        raise _unsound(f"it has {kept:,} entries and its receipt tells another number")
    rows = PromptRows(
        prompt_len=prompt_len,
        plans=(RowPlan(()),),
        windows=loaded.sliding_windows,
        steady=(0,),
        layers=slots,
        alone={},
    )
    return KeptCache(record, context, tuple(ids.tolist()), rows)


def _states(tensors: Mapping[str, Tensor], loaded: LoadedModel) -> dict[int, LinearState]:
    """By layer, what each layer of linear attention carries, checked."""
    found = {}
    for layer, sizes in loaded.linears.items():
        device = next(loaded.layers[layer].parameters()).device
        own = [tensors.get(f"states.{layer}.{name}") for name in LinearState._fields]
        given = [each.to(device) for each in own if each is not None]
        kinds = [(each.shape, each.dtype) for each in given]
        if kinds != [(each.shape, each.dtype) for each in sizes]:
            raise _unsound(f"layer {layer + 1} lacks what linear attention carries there")
        if not all(bool(each.isfinite().all()) for each in given):
            raise _unsound(f"layer {layer + 1} has numbers that are not finite")
        found[layer] = LinearState(*given)
    return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """Checks the groups of one layer."""

    index: int
    spec: VariantSpec
    prompt_len: int
    loaded: LoadedModel

    def slots(self, groups: Sequence[Group]) -> PromptSlots:
        info = self.loaded.info
        window, dtype = self.loaded.sliding_windows[self.index], self.loaded.model.dtype
        device = next(self.loaded.layers[self.index].parameters()).device
        held = [self._held(group, device) for group in groups]
        heads = sorted(head for _, of in held for head in of)
        if heads != list(range(info.kv_heads)):
            raise self._wrong("does not have every KV head once")
        first = held[0][0]
        is_whole = len(held) == 1 and isinstance(first, PlainSegment)
        if window is not None:
            if not is_whole or first.length < min(window - 1, self.prompt_len):
                raise self._wrong("has a sliding window and lacks entries of it")
            positions = groups[0][_POSITIONS]
            if positions.numel() and int(positions.min()) != self.prompt_len - first.length:
                raise self._wrong("has a sliding window and gaps in it")
        if is_whole and (window is not None or first.length == self.prompt_len):
            return compact(*first.decoded(), [Keep(None)])
        none = torch.empty(info.kv_heads, 0, info.head_dim, dtype=dtype, device=device)
        return held_slots(self.prompt_len, (none, none), held)

    def _held(self, group: Group, device: torch.device) -> tuple[Segment, list[int]]:
        heads, positions = group.get(_HEADS), group.get(_POSITIONS)
        if heads is None or positions is None:
            raise self._wrong("lacks heads or positions")
        if (
            (heads.dtype, positions.dtype) != (torch.int32, torch.int32)
            or (heads.dim(), positions.dim()) != (1, 2)
            or not 0 < len(heads) == len(positions)
            or not _is_ascending(heads)
            or not _is_ascending(positions)
            or bool(((positions < 0) | (positions >= self.prompt_len)).any())
        ):
            raise self._wrong("has positions that are not ascending ones of the context")
        segment = self._segment(group, positions.shape[1], len(heads))
        own = {name: tensor.to(device) for name, tensor in segment.tensors().items()}
        if not all(bool(each.isfinite().all()) for each in own.values()):
            raise self._wrong("has numbers that are not finite")
        if not (segment := segment.holding(own)).is_sound():
            raise self._wrong("has channels out of range")
        return segment, heads.tolist()

    def _segment(self, group: Group, length: int, heads: int) -> Segment:
        """The store encodes as many zeros: those have the names, shapes and types to expect."""
        info, dtype = self.loaded.info, self.loaded.model.dtype
        store = self.spec.store if self.index in info.evictable_layers else PLAIN
        zeros = torch.zeros(heads, length, info.head_dim, dtype=dtype)
        wanted = store.encode(zeros, zeros, self.spec.params)
        given = {name: each for name, each in group.items() if name not in (_HEADS, _POSITIONS)}
        kinds = {name: (each.shape, each.dtype) for name, each in given.items()}
        if kinds != {name: (each.shape, each.dtype) for name, each in wanted.tensors().items()}:
            raise self._wrong(f"has tensors of another shape or type than {self.spec.spec!r} makes")
        return wanted.holding(given)

    def _wrong(self, what: str) -> ConfigError:
        return _unsound(f"layer {self.index + 1} {what}")


def _is_ascending(numbers: Tensor) -> bool:
    return bool((numbers[..., 1:] > numbers[..., :-1]).all())


def _unsound(reason: str) -> ConfigError:
    return ConfigError(f"This kept cache cannot be used: {reason}.")
