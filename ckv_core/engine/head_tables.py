"""Tables of numbers for each head, kept per model in CKV_HOME.

The form is DuoAttention's `full_attention_heads.tsv`: a line per layer, numbers between tabs; where
a head has several, all layers' lines of the first, then of the next. A file with a column per query
head is averaged over those that share a KV head. As DuoAttention reads its own, numbers are clipped
to 0 and 1. Centres have a column per query head and are taken as they are.
"""

import math
import os
import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from ckv_core.base.home import head_tables_folder
from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.errors import ConfigError
from ckv_core.methods.headkv import table_name
from ckv_core.methods.parts.views import Table
from ckv_core.records.records import ModelInfo

MAX_BYTES = 2**24
_NUMBER = re.compile(r"[+-]?(\d{1,20}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,3})?", re.ASCII | re.I)

# [numbers * layers][heads]: all layers of the first number, then of the next.
HeadTable = tuple[tuple[float, ...], ...]
CENTRES = "centres"  # the kind of query heads


def numbers_of(model: ModelInfo) -> dict[str, int]:
    """Numbers of each head, by `Table.kind`."""
    return {"share": 1, "curves": 99, CENTRES: model.head_dim + model.head_dim // 2}


def parse_table(text: str, model: ModelInfo, kind: str = "") -> HeadTable:
    """A table of the model's size, of one kind or of whichever fits.

    Raises:
        ConfigError: it is not one; says where.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError("A head table has at most 16 MiB.")
    lines = [line for line in text.splitlines() if line.strip()]
    kinds = {each: n for each, n in numbers_of(model).items() if kind in ("", each)}
    found = next((each for each, n in kinds.items() if n * model.layers == len(lines)), "")
    if not found:
        each = " or ".join(map(str, kinds.values()))
        raise ConfigError(
            f"The head table has {len(lines)} lines; {model.name!r} has {model.layers} layers, "
            f"with {each} each."
        )
    rows = tuple(_row(number, line, model, found) for number, line in enumerate(lines, start=1))
    if not any(map(any, rows)):
        raise ConfigError("All numbers of the head table are 0 or below: no head would matter.")
    return rows


def _row(number: int, line: str, model: ModelInfo, kind: str) -> tuple[float, ...]:
    words = line.strip().split("\t")
    of_queries = kind == CENTRES
    if len(words) not in {model.query_heads, *(() if of_queries else (model.kv_heads,))}:
        raise ConfigError(
            f"Line {number} of the head table has {len(words)} numbers between tabs; "
            f"{model.name!r} has {model.kv_heads} KV heads and {model.query_heads} query heads."
        )
    if wrong := next((word for word in words if not _NUMBER.fullmatch(word.strip())), None):
        raise ConfigError(f"Line {number} of the head table: {wrong[:40]!r} is not a number.")
    if of_queries:
        return tuple(map(float, words))
    values = [min(max(float(word), 0.0), 1.0) for word in words]
    size = len(values) // model.kv_heads
    return tuple(math.fsum(values[at : at + size]) / size for at in range(0, len(values), size))


def kept_table(model: ModelInfo, table: Table) -> HeadTable | None:
    """The table of that name; None where the model has none.

    Raises:
        ConfigError: the file was spoilt, or is of another kind.
    """
    try:
        text = _path(model, table.name).read_bytes()[: MAX_BYTES + 1].decode(errors="replace")
    except OSError:
        return None
    return parse_table(text, model, table.kind)


def table_of(model: ModelInfo, table: Table) -> Tensor:
    """[numbers, layers, heads] float64; ConfigError where there is none, with how to bring one.

    See `Table` for the kinds.
    """
    try:
        stamp = _path(model, table.name).stat()
    except OSError:
        raise ConfigError(
            f"{model.name!r} has no head table {table.name!r}; bring one with `python -m ckv_core "
            f"heads --model MODEL --file FILE --name {table.name}`, or leave table out."
        ) from None
    return _numbers(model, table, (head_tables_folder(), stamp.st_mtime_ns, stamp.st_ino))


@lru_cache(maxsize=8)
def _numbers(model: ModelInfo, table: Table, _file: object) -> Tensor:
    """Read it once as long as the file is the same: each layer asks for its part."""
    rows = kept_table(model, table) or ()
    return torch.tensor(rows, dtype=torch.float64).view(-1, model.layers, len(rows[0]))


def written(numbers: Tensor, how: str = ".6f") -> str:
    """The text of a table of [numbers, layers, heads]."""
    rows = numbers.flatten(0, 1).tolist()
    return "".join("\t".join(f"{value:{how}}" for value in row) + "\n" for row in rows)


def keep_table(model: ModelInfo, table: Table | str, text: str) -> HeadTable:
    """Check a table and keep it, under a name that any kind may have; returns it as it is read.

    Raises:
        ConfigError: it is no table of this model, or the folder cannot be written.
    """
    name, kind = (table, "") if isinstance(table, str) else (table.name, table.kind)
    rows, path = parse_table(text, model, kind), _path(model, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)  # readers see the old table or the new one
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"The head table {path} cannot be written: {reason}.") from None
    return rows


def _path(model: ModelInfo, name: str) -> Path:
    of_model = f"{model.name} {model.sha256} {model.layers} {model.kv_heads}"
    key = blake2b(of_model.encode(), digest_size=10).hexdigest()
    return head_tables_folder() / key / f"{table_name(name)}.tsv"
