"""Reads and writes files of kept positions: the part of a result JSON that says what was kept.

What is read may be hand-made or hostile. docs/external_selection.md describes the format.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ckv_core.errors import ConfigError
from ckv_core.request.compare_request import MAX_TEXT_CHARS, MAX_VARIANTS
from ckv_core.request.external_selection import ExternalSelection, pack, unpack
from ckv_core.results.codec import SCHEMA
from ckv_core.results.records import MAX_HEADS, MAX_LAYERS, MAX_TOKEN_ID
from ckv_core.runtime.json_fields import JsonField
from ckv_core.runtime.json_text import JsonBounds, NoJsonError
from ckv_core.runtime.read_apart import SMALL_BYTES, Data, read_apart

MAX_CHARS = 64 * 2**20
MAX_LABEL = 200
# 8 million positions in rows of 64 at least.
BOUNDS = JsonBounds(containers=2**17, values=2**23)
_WHOLE = "file of kept positions"


def read_external_selection(text: str) -> tuple[ExternalSelection, ...]:
    """The variants in one JSON document, or in several one after the other.

    Raises:
        ConfigError: it is too long, no JSON, or a value is missing, of the wrong type, out of
            range or inconsistent; one sentence says which.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(
            f"The kept positions have {len(text):,} characters; {MAX_CHARS:,} can be read. Leave "
            "out all members but model, prompt.token_ids and variants.retained."
        )
    if len(text) <= SMALL_BYTES:
        return tuple(_variants(text))
    with read_apart(_variants, text) as variants:
        return tuple(variants)


def own_from_json(documents: Sequence[JsonField]) -> tuple[ExternalSelection, ...]:
    """The variants in decoded documents; see `read_external_selection`."""
    variants = tuple(own for document in documents for own in _document(document))
    if len(variants) > MAX_VARIANTS:
        raise ConfigError(
            f"{len(variants)} variants are too many; one run takes up to {MAX_VARIANTS}."
        )
    return variants


def own_to_json(variants: Sequence[ExternalSelection]) -> list[dict[str, Any]]:
    """One document for each variant; `own_from_json` gives equal ones."""
    return [_document_json(own) for own in variants]


# --- reading ----------------------------------------------------------------------------


def _variants(text: Data) -> Iterator[ExternalSelection]:
    try:
        documents = [JsonField(each, whole=_WHOLE) for each in BOUNDS.documents(text)]
    except NoJsonError as error:
        raise ConfigError(
            f"The kept positions are not valid JSON ({error}); write them as "
            "docs/external_selection.md shows."
        ) from None
    yield from own_from_json(documents)


def _document(field: JsonField) -> list[ExternalSelection]:
    if type(field["schema"].value) is not int or field["schema"].value != SCHEMA:
        field["schema"].fail(f"schema {SCHEMA} is expected")
    model, prompt = _member(field, "model"), _member(field, "prompt")
    compressed = prompt["compressed_tokens"].maybe(lambda each: each.integer(1, MAX_TEXT_CHARS))
    token_ids = prompt["token_ids"].maybe(
        lambda each: each.integers(0, MAX_TOKEN_ID, MAX_TEXT_CHARS)
    )
    if token_ids is not None and len(token_ids) < (compressed or 1):
        prompt["token_ids"].fail("a token for each compressed one is expected")
    variants = [each for each in field["variants"].items(MAX_VARIANTS) if not _is_whole(each)]
    if not variants:
        field["variants"].fail("a variant with `retained` positions is expected")
    labels = [each["label"].text(MAX_LABEL) for each in variants]
    return [
        ExternalSelection(
            label=_label(each, labels),
            sha256=model["sha256"].maybe(lambda item: item.text(200)) or "",
            compressed_tokens=compressed,
            token_ids=None if token_ids is None else pack(token_ids[:compressed]),
            **_retained(each["retained"], model, compressed or MAX_TEXT_CHARS),
        )
        for each in variants
    ]


def _member(field: JsonField, name: str) -> JsonField:
    """An object; one that is absent has no members."""
    return JsonField({}, name, field.whole) if field[name].absent else field[name]


def _is_whole(variant: JsonField) -> bool:
    """The full cache of a result JSON, which has nothing to show."""
    return variant["retained"].absent


def _label(variant: JsonField, labels: list[str]) -> str:
    """The label, or the SPEC where several variants of a result JSON share their label."""
    field = variant["label"]
    if labels.count(str(field.value)) > 1 and not variant["spec"].absent:
        field = variant["spec"]
    label = field.text(MAX_LABEL).strip()
    if not label or not label.isprintable():
        field.fail("a name without line breaks or other invisible characters is expected")
    return label


def _retained(field: JsonField, model: JsonField, end: int) -> dict[str, Any]:
    """The members of ExternalSelection that depend on how the positions are nested."""
    layers = model["layers"].maybe(lambda each: each.integer(1, MAX_LAYERS))
    heads = model["kv_heads"].maybe(lambda each: each.integer(1, MAX_HEADS))
    depth = _depth(field)
    if depth == 1:
        rows: list[tuple[bytes, ...] | None] = [(_positions(field, end),)]
    else:
        items = field.items(MAX_LAYERS, layers)
        layers = len(items)
        if depth == 2:
            rows = [each.maybe(lambda row: (_positions(row, end),)) for each in items]
        else:
            rows = [each.maybe(lambda row: _heads(row, heads, end)) for each in items]
            heads = _common(items, rows)
    if not any(row for layer in rows for row in layer or ()):
        field.fail("a kept position is expected")
    return {
        "rows": tuple(rows),
        "same_heads": depth < 3,
        "same_layers": depth == 1,
        "layers": layers,
        "kv_heads": heads,
    }


def _depth(field: JsonField) -> int:
    """How deeply positions are nested: 1 for all alike, 2 per layer, 3 per layer and KV head."""
    value, depth = field.value, 0
    while isinstance(value, list) and depth < 4:
        value = next((each for each in value if each is not None), None)
        depth += 1
    if depth == 4 or (depth < 3 and type(value) is not int):
        field.fail("positions per layer and KV head, per layer, or for all alike are expected")
    return depth


def _heads(field: JsonField, count: int | None, end: int) -> tuple[bytes, ...]:
    return tuple(_positions(each, end) for each in field.items(MAX_HEADS, count))


def _common(items: list[JsonField], rows: list[tuple[bytes, ...] | None]) -> int:
    """KV heads of all layers, which must be as many in each."""
    first = next(len(row) for row in rows if row is not None)
    for item, row in zip(items, rows, strict=True):
        if row is not None and (len(row) != first or not row):
            item.items(MAX_HEADS, max(first, 1))
    return first


def _positions(field: JsonField, end: int) -> bytes:
    values = sorted(field.integers(0, end - 1, end))
    for left, right in pairwise(values):
        if left == right:
            field.fail(f"position {left} is expected once")
    return pack(tuple(values))


# --- writing ----------------------------------------------------------------------------


def _document_json(own: ExternalSelection) -> dict[str, Any]:
    model = {"sha256": own.sha256 or None, "layers": own.layers, "kv_heads": own.kv_heads}
    tokens = None if own.token_ids is None else unpack(own.token_ids).tolist()
    prompt = {"compressed_tokens": own.compressed_tokens, "token_ids": tokens}
    return {
        "schema": SCHEMA,
        "model": model,
        "prompt": prompt,
        "variants": [{"label": own.label, "retained": _retained_json(own)}],
    }


def _retained_json(own: ExternalSelection) -> list[Any]:
    layers = [None if row is None else [unpack(head).tolist() for head in row] for row in own.rows]
    if own.same_heads:
        layers = [None if row is None else row[0] for row in layers]
    return (layers[0] or []) if own.same_layers else layers
