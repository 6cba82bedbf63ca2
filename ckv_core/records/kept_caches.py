"""Kept compressed caches: receipts, whether the tensors can fit them, and the files. No torch.

A file lies in CKV_HOME under the name that its owner gave it. It is
safetensors, whose metadata has the receipt as JSON (docs/how-to/kept_caches.md). safetensors itself
checks the header, sizes and places. The numbers are checked when the cache is used, by
`engine/cache/kept.py`.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ckv_core.base.checked import chars, check_schema, read, within
from ckv_core.base.home import home_folder
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.whole_file import reported, write_whole
from ckv_core.errors import CkvError, ConfigError, about
from ckv_core.records.codec import record_json
from ckv_core.records.external_selection import MAX_TEXT_CHARS
from ckv_core.records.records import ModelInfo, Params, Receipt, Versions
from ckv_core.records.variants import VariantSpec

SCHEMA = 1
METADATA_KEY = "criticalkv_cache"
MAX_HEADER_BYTES = 8 * 2**20  # 60 layers of 40 heads, each of its own length, take 3 MiB
TENSORS = 16  # of the heads that keep as many entries; stores have up to ten
# What a layer of linear attention carries, which has no entries.
STATE = re.compile(r"states\.(\d{1,4})\.(conv|recurrent)", re.ASCII)
TENSOR = re.compile(r"layers\.(\d{1,4})\.(\d{1,4})\.(\w+(?:\.\w+)?)", re.ASCII)
_WHOLE = "cache's receipt"
_RECORD = JsonBounds(containers=2_000, values=10_000, depth=6)
_Shape = tuple[str, tuple[int, ...]]  # type and sizes


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
    with _opened(path) as (_, record):
        return record


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, KeptRecord]]:
    """A file as safetensors has it, and its record."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415 - only for a file

    try:
        with reported(repr(str(path)), "read"):
            with path.open("rb") as raw:
                length = int.from_bytes(raw.read(8), "little")
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise _refused("it does not begin with a safetensors header of at most 8 MiB")
            with safe_open(path, framework="numpy") as file:
                yield file, _record(file)
    except SafetensorError as error:
        raise _refused(f"{error}; copy it again") from None


def _record(file: Any) -> KeptRecord:
    text = (file.metadata() or {}).get(METADATA_KEY)
    if text is None:
        raise _refused("its metadata has no receipt of a cache")
    try:
        receipt = _RECORD.read(text)
    except NoJsonError:
        raise _refused("its receipt is no JSON") from None
    check_schema(receipt, _WHOLE, SCHEMA)
    record = read(KeptRecord, receipt, _WHOLE)
    most = TENSORS * (1 + record.model.layers * record.model.kv_heads)
    if len(file.keys()) > most:
        raise _refused(f"it has more than the {most:,} tensors that its receipt allows")
    return record


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"This is no kept cache: {reason}.")


# --- whether it can be used -----------------------------------------------------------------


def check_file(path: Path) -> KeptRecord:
    """The record of a file that may be anybody's, and that fits what the file holds.

    Raises:
        ConfigError: it is no kept cache, or one that could never be used.
    """
    with _opened(path) as (file, record):
        try:
            spec = VariantSpec.parse(record.spec)
        except CkvError as error:
            raise _unfit(f"its method cannot be used here. {error}") from None
        if spec.policy is not None:
            raise _unfit(f"{spec.label} evicts while it generates.")
        _check(record, file)
        return record


def _check(record: KeptRecord, file: Any) -> None:
    groups: dict[int, dict[str, dict[str, _Shape]]] = defaultdict(lambda: defaultdict(dict))
    own = {}
    for name in file.keys():  # noqa: SIM118 - no mapping
        tensor = file.get_slice(name)
        shape = tensor.get_dtype(), tuple(tensor.get_shape())
        if match := TENSOR.fullmatch(name):
            groups[int(match[1])][f"{match[1]}.{match[2]}"][match[3]] = shape
        elif not STATE.fullmatch(name):
            own[name] = shape
    if own.keys() != {"context", "token_ids"}:
        raise _unfit("its context or token ids are missing, or a tensor in it is unknown.")
    if own["context"][0] != "U8" or own["token_ids"] != ("I32", (record.compressed_tokens,)):
        raise _unfit("its context or token ids do not fit its receipt.")
    if groups.keys() != set(range(record.model.layers)):
        raise _unfit(f"it does not have the {record.model.layers} layers of its receipt.")
    entries = {layer: _check_layer(record, file, each) for layer, each in groups.items()}
    kept = sum(entries[layer] for layer in record.model.evictable_layers)
    if kept != record.receipt.retained_entries:
        raise _unfit(f"it has {kept:,} entries and its receipt tells another number.")


def _check_layer(record: KeptRecord, file: Any, groups: dict[str, dict[str, _Shape]]) -> int:
    """Entries of one layer, whose groups have every KV head once."""
    heads: list[int] = []
    entries = 0
    for name, tensors in groups.items():
        (kind, sizes), (kinds, shape) = (tensors.get(n, ("", ())) for n in ("heads", "positions"))
        if (kind, kinds, len(sizes), len(shape)) != ("I32", "I32", 1, 2) or sizes[0] != shape[0]:
            raise _unfit(f"layer {name} lacks heads or positions.")
        if len(tensors) < 4 or any(each[:1] != sizes for _, each in tensors.values()):
            raise _unfit(f"layer {name} lacks keys or values of a head.")
        heads += file.get_tensor(f"layers.{name}.heads").tolist()
        positions = file.get_tensor(f"layers.{name}.positions")
        outside = (positions < 0) | (positions >= record.compressed_tokens)
        if outside.any() or (np.diff(positions, axis=-1) <= 0).any():
            raise _unfit(f"layer {name} has positions that are not ascending ones of the context.")
        entries += positions.size
    if sorted(heads) != list(range(record.model.kv_heads)):
        raise _unfit(f"a layer does not have each of the {record.model.kv_heads} KV heads once.")
    return entries


def _unfit(reason: str) -> ConfigError:
    return ConfigError(f"This kept cache could never be used: {reason}")


# --- the kept caches of one owner -------------------------------------------------------


SUFFIX = ".safetensors"
MAX_CACHES = 200
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._+-]{0,62}[A-Za-z0-9_+-])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One kept cache.

    Attributes:
        size: of the file, in bytes.
        record: None where the file is spoilt.
    """

    name: str
    size: int
    record: KeptRecord | None


class KeptFolder:
    """The caches of one owner; without logins, and for the command line, nobody's.

    All methods raise ConfigError for a name that is none, is taken or is not there, and CkvError
    where the disk refuses.
    """

    def __init__(self, owner: str | None = None) -> None:
        folder = home_folder() / "caches"
        if owner is not None:  # a user's name may hold anything
            folder = folder / "of" / blake2b(owner.encode(), digest_size=16).hexdigest()
        self.folder = folder

    def entries(self) -> list[KeptEntry]:
        """All of them, by name."""
        return [_entry(path) for path in self._files()]

    def size(self) -> int:
        """Bytes of all its files, also of those that are spoilt or half written."""
        return _bytes_of(self.folder)

    def entry(self, name: str) -> KeptEntry:
        return _entry(self.find(name))

    def find(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise ConfigError(f"No cache is kept under the name {name!r}.")
        return path

    def free(self, name: str) -> Path:
        """Return the path of a new one of that name, in a folder that is there."""
        with about("name"):
            path = self._path(name)
            if path.exists():
                raise ConfigError(f"A cache {name!r} is kept already; choose another name.")
        if len(self._files()) >= MAX_CACHES:
            raise ConfigError(f"{MAX_CACHES} caches are kept; delete one first.")
        with reported(repr(str(path)), "written"):
            self.folder.mkdir(parents=True, exist_ok=True)
        return path

    def add(self, name: str, write: Callable[[Path], object]) -> None:
        """Keep what `write` puts at a path; its tensors are checked when it is used."""

        def checked(beside: Path) -> None:
            write(beside)
            check_file(beside)

        write_whole(self.free(name), checked)

    def delete(self, name: str) -> None:
        path = self.find(name)
        with reported(repr(str(path)), "deleted"):
            path.unlink()

    def _files(self) -> list[Path]:
        files = (path for path in self.folder.glob(f"*{SUFFIX}") if _NAME.fullmatch(path.stem))
        return sorted(files)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                "A cache's name has up to 64 letters, digits, spaces and . _ + -, and begins with "
                "a letter or digit."
            )
        return self.folder / f"{name}{SUFFIX}"


def _bytes_of(folder: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with suppress(OSError):  # deleted meanwhile
                total += file.stat().st_size if file.is_file() else 0
    return total


def _entry(path: Path) -> KeptEntry:
    try:
        file = path.stat()
    except OSError:  # deleted meanwhile
        return KeptEntry(path.stem, 0, None)
    record = _known_record(path, file.st_ino, file.st_size, file.st_mtime_ns)
    return KeptEntry(path.stem, 0 if record is None else file.st_size, record)


@lru_cache(maxsize=4 * MAX_CACHES)
def _known_record(path: Path, *_: int) -> KeptRecord | None:
    """The record of a file of that number, size and time, read once; None where it is spoilt."""
    try:
        return read_record(path)
    except CkvError:
        return None
