"""Whether a file that somebody brings can be a kept cache at all, without a model. No torch.

Heads, positions and shapes are held against the receipt; the numbers themselves are checked when
the cache is asked, by `engine/cache/kept.py`.
"""

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ckv_core.errors import CkvError, ConfigError
from ckv_core.request.variants import VariantSpec
from ckv_core.results.kept_record import KeptRecord, read_record, read_tensors
from ckv_core.runtime.checked import many, one_of, read, within

TENSOR = re.compile(r"layers\.(\d{1,4})\.(\d{1,4})\.(\w+(?:\.\w+)?)", re.ASCII)
_BYTES = {"U8": 1, "I8": 1, "BOOL": 1, "F16": 2, "BF16": 2, "I16": 2, "F32": 4, "I32": 4}
_BYTES |= {"F64": 8, "I64": 8}
_Shape = tuple[str, tuple[int, ...]]  # type and sizes
_Offset = Annotated[int, within(0, 2**40)]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor in the header; begin and end are counted from the header's end."""

    dtype: Annotated[str, one_of(*_BYTES)]
    shape: Annotated[tuple[Annotated[int, within(0, 2**31)], ...], many(8)]
    data_offsets: tuple[_Offset, _Offset]


def check_file(path: Path) -> KeptRecord:
    """The record of a file that may be anybody's, and that fits what the file holds.

    Raises:
        ConfigError: it is no kept cache, or one that could never be asked.
    """
    record = read_record(path)
    try:
        spec = VariantSpec.parse(record.spec)
    except CkvError as error:
        raise _unfit(f"its method cannot be used here. {error}") from None
    if spec.policy is not None:
        raise _unfit(f"{spec.label} evicts while it generates.")
    _check(record, _File(path, record))
    return record


class _File:
    """The tensors of a safetensors file; what safetensors itself would refuse is refused."""

    def __init__(self, path: Path, record: KeptRecord) -> None:
        tensors = {
            name: read(_Tensor, each, "cache's header", at=(name[:60],))
            for name, each in read_tensors(path, record).items()
        }
        self.shapes: dict[str, _Shape] = {}
        self._path, self._at = path, {}
        end = 0
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
            begin, after = tensor.data_offsets
            if begin != end or after != begin + math.prod(tensor.shape) * _BYTES[tensor.dtype]:
                raise _unfit(f"the tensor {name[:60]!r} is not where its size puts it.")
            self.shapes[name] = tensor.dtype, tensor.shape
            self._at[name], end = begin, after

    def integers(self, name: str) -> NDArray[np.int32]:
        """An int32 tensor."""
        _, sizes = self.shapes[name]
        with self._path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little") + self._at[name]
            count = math.prod(sizes)
            file.seek(begin)
            return np.frombuffer(file.read(4 * count), "<i4", count).reshape(sizes)


def _check(record: KeptRecord, file: _File) -> None:
    groups: dict[int, dict[str, dict[str, _Shape]]] = defaultdict(lambda: defaultdict(dict))
    own = {}
    for name, shape in file.shapes.items():
        if match := TENSOR.fullmatch(name):
            groups[int(match[1])][f"{match[1]}.{match[2]}"][match[3]] = shape
        else:
            own[name] = shape
    if own.keys() != {"context", "token_ids"}:
        raise _unfit("its context or token ids are missing, or a tensor in it is unknown.")
    if own["context"][0] != "U8" or own["token_ids"] != ("I32", (record.compressed_tokens,)):
        raise _unfit("its context or token ids do not fit its receipt.")
    if groups.keys() != set(range(record.model.layers)):
        raise _unfit(f"it does not have the {record.model.layers} layers of its receipt.")
    kept = 0
    for layer, of_layer in groups.items():
        entries = _check_layer(record, file, of_layer)
        kept += entries if layer in record.model.evictable_layers else 0
    if kept != record.receipt.retained_entries:
        raise _unfit(f"it has {kept:,} entries and its receipt tells another number.")


def _check_layer(record: KeptRecord, file: _File, groups: dict[str, dict[str, _Shape]]) -> int:
    """Entries of one layer, whose groups have every KV head once."""
    heads: list[int] = []
    entries = 0
    for name, tensors in groups.items():
        (kind, sizes), (kinds, shape) = (tensors.get(n, ("", ())) for n in ("heads", "positions"))
        if (kind, kinds, len(sizes), len(shape)) != ("I32", "I32", 1, 2) or sizes[0] != shape[0]:
            raise _unfit(f"layer {name} lacks heads or positions.")
        if len(tensors) < 4 or any(each[:1] != sizes for _, each in tensors.values()):
            raise _unfit(f"layer {name} lacks keys or values of a head.")
        heads += file.integers(f"layers.{name}.heads").tolist()
        positions = file.integers(f"layers.{name}.positions")
        if (
            (np.diff(positions, axis=-1) <= 0).any()
            or (positions < 0).any()
            or (positions >= record.compressed_tokens).any()
        ):
            raise _unfit(f"layer {name} has positions that are not ascending ones of the context.")
        entries += positions.size
    if sorted(heads) != list(range(record.model.kv_heads)):
        raise _unfit(f"a layer does not have each of the {record.model.kv_heads} KV heads once.")
    return entries


def _unfit(reason: str) -> ConfigError:
    return ConfigError(f"This kept cache could never be asked: {reason}")
