"""What is said of a kept compressed cache in the head of its file, read without its tensors.

The file is safetensors: eight bytes with the length of a JSON header, the header, the tensors. The
header's metadata has the record as JSON. docs/kept_caches.md describes the format.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ckv_core.errors import CkvError, ConfigError
from ckv_core.request.external_selection import MAX_TEXT_CHARS
from ckv_core.results.codec import record_json
from ckv_core.results.records import ModelInfo, Params, Receipt, Versions
from ckv_core.runtime.checked import chars, check_schema, read, within
from ckv_core.runtime.json_text import JsonBounds, NoJsonError

SCHEMA = 1
METADATA_KEY = "criticalkv_cache"
MAX_HEADER_BYTES = 8 * 2**20  # 60 layers of 40 heads, each of its own length, take 3 MiB
_LENGTH_BYTES = 8
TENSORS = 16  # of the heads that keep as many entries; stores have up to ten
# As safetensors writes it: the metadata, texts by name, comes first.
_METADATA = re.compile(
    rb'\s*\{\s*"__metadata__"\s*:\s*(\{(?:\s*"(?:[^"\\]++|\\.)*+"\s*[:,]?)*+\s*\})', re.DOTALL
)
_OFFSETS = re.compile(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]')
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
    spec: Annotated[str, chars(1000)]
    label: Annotated[str, chars(200)]
    params: Params
    compressed_tokens: Annotated[int, within(1, MAX_TEXT_CHARS)]
    receipt: Receipt
    created: Annotated[str, chars(32, r"[0-9T:+.-]{10,32}")]
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
    raw, size = _header(path)
    head = _METADATA.match(raw)
    if head is None:
        raise _refused("its header does not begin with the receipt of a cache")
    metadata = _object(head[1])
    if _LENGTH_BYTES + len(raw) + _tensor_bytes(raw, head.end()) != size:
        raise _refused("its length is not the one that its header tells; copy it again")
    text = metadata.get(METADATA_KEY)
    if not isinstance(text, str):
        raise _refused("its metadata has no receipt of a cache")
    receipt = _object(text.encode("utf-8", "replace"))
    check_schema(receipt, "cache's receipt", SCHEMA)
    record = read(KeptRecord, receipt, "cache's receipt")
    most = _most_tensors(record)
    if raw.count(b"data_offsets") > most:
        raise _refused(f"it has more than the {most:,} tensors that its receipt allows")
    return record


def read_tensors(path: Path, record: KeptRecord) -> dict[str, Any]:
    """What the header of a file with that record says of each tensor; raises as `read_record`."""
    containers = min(3 * _most_tensors(record) + 2, MAX_HEADER_BYTES // 16)
    bounds = JsonBounds(containers=containers, values=5 * containers, depth=4)
    header = _object(_header(path)[0], bounds)
    return {name: each for name, each in header.items() if name != "__metadata__"}


def _most_tensors(record: KeptRecord) -> int:
    return TENSORS * (1 + record.model.layers * record.model.kv_heads)


def _header(path: Path) -> tuple[bytes, int]:
    """The JSON at the begin of a file, and the file's length."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise _refused("it does not begin with a safetensors header of at most 8 MiB")
            raw = file.read(length)
            size = file.seek(0, 2)
    except OSError as error:
        raise CkvError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    return raw, size


def _object(raw: bytes, bounds: JsonBounds = _RECORD) -> dict[str, Any]:
    try:
        value = bounds.read(raw)
    except NoJsonError:
        raise _refused("its header is no JSON") from None
    if not isinstance(value, dict):
        raise _refused("its header is no JSON object")
    return value


def _tensor_bytes(raw: bytes, begin: int) -> int:
    """Where the last tensor ends, as the header has it; -1 where it tells of none.

    Only this is read of the tensors: `kept_check.py` reads them all, once, when a file comes.
    """
    return max((int(match[1]) for match in _OFFSETS.finditer(raw, begin)), default=-1)


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"This is no kept cache: {reason}.")
