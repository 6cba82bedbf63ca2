"""What is said of a kept compressed cache in the head of its file, read without its tensors.

The file is safetensors: eight bytes with the length of a JSON header, the header, the tensors. The
header's metadata has the record as JSON. docs/kept_caches.md describes the format.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ckv_core.errors import CkvError, ConfigError
from ckv_core.request.compare_request import MAX_TEXT_CHARS
from ckv_core.results.codec import Reader, record_json
from ckv_core.results.records import ModelInfo, Params, Receipt, Versions
from ckv_core.runtime.bounds import Chars, Within
from ckv_core.runtime.json_fields import JsonField
from ckv_core.runtime.json_text import JsonBounds

SCHEMA = 1
METADATA_KEY = "criticalkv_cache"
MAX_HEADER_BYTES = 8 * 2**20  # 60 layers of 40 heads, each of its own length, take 3 MiB
_LENGTH_BYTES = 8
_HEADER = JsonBounds(containers=300_000, values=1_500_000, depth=4)
_RECORD = JsonBounds(containers=2_000, values=10_000, depth=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """The receipt of a kept cache: of what, how and when it was made.

    Attributes:
        spec, label, params: of its variant, as in a run.
        compressed_tokens: of the context, before anything was evicted.
        created: UTC, ISO 8601.
    """

    model: ModelInfo
    spec: Annotated[str, Chars(1000)]
    label: Annotated[str, Chars(200)]
    params: Params
    compressed_tokens: Annotated[int, Within(1, MAX_TEXT_CHARS)]
    receipt: Receipt
    created: Annotated[str, Chars(32, r"[0-9T:+.-]{10,32}")]
    environment: Versions


def metadata_of(record: KeptRecord) -> dict[str, str]:
    """The metadata of a safetensors file with this record."""
    text = json.dumps({"schema": SCHEMA, **record_json(record)}, allow_nan=False)
    return {"format": "pt", METADATA_KEY: text}


def read_record(path: Path) -> KeptRecord:
    """The record of a file that may be anybody's.

    Raises:
        ConfigError: it is no kept cache, or is cut short.
        CkvError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise _refused("it does not begin with a safetensors header of at most 8 MiB")
            raw = file.read(length)
            size = file.seek(0, 2)
    except OSError as error:
        raise CkvError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    header = _object(raw, _HEADER)
    if _LENGTH_BYTES + length + _tensor_bytes(header) != size:
        raise _refused("its length is not the one that its header tells; copy it again")
    metadata = header.get("__metadata__")
    text = metadata.get(METADATA_KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise _refused("its metadata has no receipt of a cache")
    root = JsonField(_object(text.encode("utf-8", "replace"), _RECORD), whole="cache's receipt")
    root["schema"].integer(SCHEMA, SCHEMA)
    return Reader(root).record(root, KeptRecord)


def _object(raw: bytes, bounds: JsonBounds) -> dict[str, Any]:
    bounds.check(raw)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise _refused("its header is no JSON") from None
    if not isinstance(value, dict):
        raise _refused("its header is no JSON object")
    return value


def _tensor_bytes(header: dict[str, Any]) -> int:
    """Where the last tensor ends, as the header has it; -1 where it says nonsense."""
    ends = []
    for name, told in header.items():
        if name == "__metadata__":
            continue
        offsets = told.get("data_offsets") if isinstance(told, dict) else None
        if not isinstance(offsets, list) or not all(type(each) is int for each in offsets):
            return -1
        ends.append(max(offsets, default=-1))
    return max(ends, default=-1)


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"This is no kept cache: {reason}.")
