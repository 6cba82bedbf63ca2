"""Token lists and arrays as compressed bytes, and back."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckv_core.errors import StorageError
from ckv_core.results.records import Float32Array, HeldSeries, RetainedSet

FLOAT_CODEC = "zlib"
BITS_CODEC = "bits+zlib"


@dataclass(frozen=True, slots=True)
class EncodedArray:
    """The columns of one row of `arrays`."""

    dtype: str
    shape: list[int]
    codec: str
    data: bytes


def encode_ints(values: Sequence[int]) -> bytes:
    """Compress token ids, each below 2**31."""
    return zlib.compress(np.array(values, dtype="<i4").tobytes())


def decode_ints(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(zlib.decompress(data), dtype="<i4").tolist())


def encode_json(value: object) -> bytes:
    """Compress JSON values; half a character (a lone surrogate) is kept as it is."""
    return zlib.compress(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def decode_json(data: bytes) -> Any:
    """Undo `encode_json`; tuples come back as lists."""
    return json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass"))


def encode_list(values: list[Any]) -> EncodedArray:
    """Compress JSON values; `decode_json` takes the data."""
    return EncodedArray("json", [len(values)], FLOAT_CODEC, encode_json(values))


def encode_floats(array: Float32Array) -> EncodedArray:
    """Compress a float32 array of any shape; NaN and infinity survive."""
    data = zlib.compress(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return EncodedArray("<f4", list(array.shape), FLOAT_CODEC, data)


def decode_floats(encoded: EncodedArray) -> Float32Array:
    """Undo `encode_floats`; the array is read-only, as it may be shared.

    Raises:
        StorageError: the row was not written by `encode_floats`.
    """
    if (encoded.codec, encoded.dtype) != (FLOAT_CODEC, "<f4"):
        raise StorageError(f"The database holds an array of unknown codec {encoded.codec!r}.")
    values = np.frombuffer(zlib.decompress(encoded.data), dtype="<f4").reshape(encoded.shape)
    return values.astype(np.float32, copy=False)


def encode_held(held: HeldSeries) -> dict[str, EncodedArray]:
    """Compress a series, and what was evicted meanwhile."""
    series = np.array([held.entries, held.cache_bytes], "<i8")
    data, evicted = zlib.compress(series.tobytes()), zlib.compress(held.evicted)
    return {
        "held": EncodedArray("<i8", list(series.shape), FLOAT_CODEC, data),
        "evicted": EncodedArray("<u4", list(held.evictions().shape), FLOAT_CODEC, evicted),
    }


def decode_held(arrays: Mapping[str, EncodedArray]) -> HeldSeries | None:
    """Undo `encode_held`; None of a variant that has none."""
    if "held" not in arrays:
        return None
    series = np.frombuffer(zlib.decompress(arrays["held"].data), "<i8").reshape(2, -1)
    entries, sizes = map(tuple, series.tolist())
    evicted = zlib.decompress(arrays["evicted"].data)
    return HeldSeries(entries=entries, cache_bytes=sizes, evicted=evicted)


def encode_retained(retained: RetainedSet) -> EncodedArray:
    shape = [retained.layers, retained.kv_heads, retained.positions]
    return EncodedArray("bool", shape, BITS_CODEC, zlib.compress(retained.bits))


def decode_retained(encoded: EncodedArray) -> RetainedSet:
    """Undo `encode_retained`.

    Raises:
        StorageError: the row was not written by `encode_retained`.
    """
    if encoded.codec != BITS_CODEC:
        raise StorageError(f"The database holds an array of unknown codec {encoded.codec!r}.")
    layers, kv_heads, positions = encoded.shape
    return RetainedSet(zlib.decompress(encoded.data), layers, kv_heads, positions)
