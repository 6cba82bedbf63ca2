"""Tables of how much each KV head matters, kept per model in CKV_HOME; no torch.

The form is DuoAttention's `full_attention_heads.tsv`: a line per layer, numbers between tabs. A
file with a column per query head is averaged over those that share a KV head. As DuoAttention
reads its own, numbers are clipped to 0 and 1.
"""

import math
import os
import re
from hashlib import blake2b
from pathlib import Path

from ckv_core.base.home import head_tables_folder
from ckv_core.errors import ConfigError
from ckv_core.methods.headkv import table_name
from ckv_core.records.records import ModelInfo

MAX_BYTES = 2**20
_NUMBER = re.compile(r"[+-]?(\d{1,20}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,3})?", re.ASCII | re.I)

HeadTable = tuple[tuple[float, ...], ...]  # [layers][kv_heads], from 0 to 1


def parse_table(text: str, model: ModelInfo) -> HeadTable:
    """A table of the model's size.

    Raises:
        ConfigError: it is not one; says where.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError("A head table has at most 1 MiB.")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) != model.layers:
        raise ConfigError(
            f"The head table has {len(lines)} lines; {model.name!r} has {model.layers} layers."
        )
    rows = tuple(_row(number, line, model) for number, line in enumerate(lines, start=1))
    if not any(map(any, rows)):
        raise ConfigError("All numbers of the head table are 0 or below: no head would matter.")
    return rows


def _row(number: int, line: str, model: ModelInfo) -> tuple[float, ...]:
    words = line.strip().split("\t")
    if len(words) not in {model.kv_heads, model.query_heads}:
        raise ConfigError(
            f"Line {number} of the head table has {len(words)} numbers between tabs; "
            f"{model.name!r} has {model.kv_heads} KV heads and {model.query_heads} query heads."
        )
    if wrong := next((word for word in words if not _NUMBER.fullmatch(word.strip())), None):
        raise ConfigError(f"Line {number} of the head table: {wrong[:40]!r} is not a number.")
    values = [min(max(float(word), 0.0), 1.0) for word in words]
    size = len(values) // model.kv_heads
    return tuple(math.fsum(values[at : at + size]) / size for at in range(0, len(values), size))


def kept_table(model: ModelInfo, name: str) -> HeadTable | None:
    """The table of that name; None where the model has none.

    Raises:
        ConfigError: the file was spoilt.
    """
    try:
        text = _path(model, name).read_bytes()[: MAX_BYTES + 1].decode(errors="replace")
    except OSError:
        return None
    return parse_table(text, model)


def table_of(model: ModelInfo, name: str) -> HeadTable:
    """Returns the table; ConfigError where there is none, which says how to bring one."""
    table = kept_table(model, name)
    if table is None:
        raise ConfigError(
            f"{model.name!r} has no head table {name!r}; bring one with `python -m ckv_core "
            f"heads --model MODEL --file FILE --name {name}`, or leave table out."
        )
    return table


def keep_table(model: ModelInfo, name: str, text: str) -> HeadTable:
    """Check a table and keep it under a name; returns it as it will be read.

    Raises:
        ConfigError: it is no table of this model, or the folder cannot be written.
    """
    table, path = parse_table(text, model), _path(model, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)  # readers see the old table or the new one
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"The head table {path} cannot be written: {reason}.") from None
    return table


def _path(model: ModelInfo, name: str) -> Path:
    of_model = f"{model.name} {model.sha256} {model.layers} {model.kv_heads}"
    key = blake2b(of_model.encode(), digest_size=10).hexdigest()
    return head_tables_folder() / key / f"{table_name(name)}.tsv"
