"""A variant is one document and its arrays; columns only for what lists sort and filter by."""

import json
import math
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

from storage.column_types import AnyText

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_RECEIPT = ("requested_entries", "retained_entries", "cache_bytes", "full_cache_bytes")
_FIGURES = ("kl", "final_hidden_l1", "improved_head_share")
_SAME = ("spec", "method", "agreement", "first_difference", "answer_found")
_LISTS = ("token_ids", "token_texts", "forced_steps", "follow_ups")
_NEEDED: dict[str, Any] = {
    "label": AnyText(),
    "critical": sa.Boolean(),
    "params": sa.JSON(),
    "timings_ms": sa.JSON(),
    "text": AnyText(),
    "token_ids": sa.LargeBinary(),
    "token_texts": sa.LargeBinary(),
}
_OLD = (
    _NEEDED
    | dict.fromkeys(_RECEIPT, sa.BigInteger())
    | dict.fromkeys(_FIGURES, sa.Double())
    | {
        "warnings": sa.JSON(none_as_null=True),
        "stopped": sa.String(length=16),
        "answer_scores": sa.JSON(none_as_null=True),
        "forced_steps": sa.LargeBinary(),
        "follow_ups": sa.LargeBinary(),
    }
)
_VARIANTS = sa.table(
    "variants",
    sa.column("id", sa.BigInteger()),
    sa.column("budget_tokens", sa.BigInteger()),
    *(sa.column(name, AnyText()) for name in _SAME[:2]),
    sa.column("agreement", sa.Double()),
    sa.column("first_difference", sa.BigInteger()),
    sa.column("answer_found", sa.Boolean()),
    sa.column("document", sa.JSON()),
    *(sa.column(name, kind) for name, kind in _OLD.items()),
)
_ARRAYS = sa.table(
    "arrays",
    sa.column("variant_id", sa.BigInteger()),
    sa.column("name", sa.String()),
    sa.column("dtype", sa.String()),
    sa.column("shape", sa.JSON()),
    sa.column("codec", sa.String()),
    sa.column("data", sa.LargeBinary()),
)


def upgrade() -> None:
    op.add_column("variants", sa.Column("document", sa.JSON(), nullable=True))
    known = [_VARIANTS.c[name] for name in (*_SAME, "budget_tokens", *_OLD)]
    _rewrite(known, lambda row: {"document": _document(row)}, _arrays)
    with op.batch_alter_table("variants") as table:
        table.alter_column("document", existing_type=sa.JSON(), nullable=False)
        for name in _OLD:
            table.drop_column(name)


def downgrade() -> None:
    with op.batch_alter_table("variants") as table:
        for name, kind in _OLD.items():
            table.add_column(sa.Column(name, _plain(kind), nullable=True))
    _rewrite([_VARIANTS.c.document], _columns)
    op.execute(sa.delete(_ARRAYS).where(_ARRAYS.c.name.in_(_LISTS)))
    with op.batch_alter_table("variants") as table:
        table.drop_column("document")
        for name, kind in _NEEDED.items():
            table.alter_column(name, existing_type=_plain(kind), nullable=False)


def _rewrite(
    columns: list[Any],
    changed: Callable[[Any], dict[str, Any]],
    added: Callable[[Any], Iterator[dict[str, Any]]] | None = None,
) -> None:
    """Give every row what follows from these columns of it; some rows at a time."""
    connection, last = op.get_bind(), -1
    while True:
        asked = sa.select(_VARIANTS.c.id, *columns).where(_VARIANTS.c.id > last)
        rows = connection.execute(asked.order_by(_VARIANTS.c.id).limit(200)).mappings().all()
        if not rows:
            return
        for row in rows:
            update = sa.update(_VARIANTS).where(_VARIANTS.c.id == row["id"])
            connection.execute(update.values(changed(row)))
        if added and (arrays := [array for row in rows for array in added(row)]):
            connection.execute(sa.insert(_ARRAYS), arrays)
        last = rows[-1]["id"]


def _document(row: Any) -> dict[str, Any]:
    receipt = {name: row[name] for name in ("budget_tokens", *_RECEIPT)}
    figures = {name: _number(row[name]) for name in _FIGURES}
    has_figures = any(each is not None for each in figures.values())
    is_selected = row["budget_tokens"] is not None
    same = (*_SAME, "label", "critical", "params", "text", "stopped", "timings_ms")
    return {
        **{name: row[name] for name in same},
        "receipt": receipt | {"warnings": row["warnings"] or []} if is_selected else None,
        "perturbation": figures if has_figures else None,
        "answer_scores": row["answer_scores"] or {},
    }


def _arrays(row: Any) -> Iterator[dict[str, Any]]:
    """The lists that were columns, as arrays; the empty ones are none."""
    for name in _LISTS:
        if not row[name]:
            continue
        is_ids = name == "token_ids"
        ids = np.frombuffer(zlib.decompress(row[name]), "<i4").tolist() if is_ids else []
        data = _packed(ids) if is_ids else row[name]
        if values := _unpacked(data):
            array = {"dtype": "json", "shape": [len(values)], "codec": "zlib", "data": data}
            yield {"variant_id": row["id"], "name": name, **array}


def _columns(row: Any) -> dict[str, Any]:
    document = row["document"]
    receipt, figures = document.get("receipt") or {}, document.get("perturbation") or {}
    asked = sa.select(_ARRAYS.c.name, _ARRAYS.c.data).where(
        _ARRAYS.c.variant_id == row["id"], _ARRAYS.c.name.in_(_LISTS)
    )
    lists = {found.name: _unpacked(found.data) for found in op.get_bind().execute(asked)}
    ids = np.array(lists.pop("token_ids", []), "<i4")
    steps = [
        [step["reference"], step["variant"]] if isinstance(step, dict) else step
        for step in lists.pop("forced_steps", [])
    ]
    return {
        **{name: document[name] for name in ("label", "critical", "params", "timings_ms", "text")},
        **{name: receipt.get(name) for name in (*_RECEIPT, "warnings")},
        **{name: None if figures.get(name) is None else float(figures[name]) for name in _FIGURES},
        "stopped": document["stopped"],
        "answer_scores": document.get("answer_scores"),
        "token_ids": zlib.compress(ids.tobytes()),
        "forced_steps": _packed(steps),
        **{name: _packed(lists.get(name, [])) for name in ("token_texts", "follow_ups")},
    }


def _plain(kind: Any) -> Any:
    return sa.Text() if isinstance(kind, AnyText) else kind


def _unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass"))


def _packed(value: object) -> bytes:
    return zlib.compress(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"
