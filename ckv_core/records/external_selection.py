"""Kept positions that other code chose, as one more variant of a run; no torch.

They are the part of a result JSON that says what was kept. What is read may be hand-made or
hostile; docs/how-to/compare_with_kvpress.md describes the file.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ckv_core.base.checked import (
    Checked,
    Plain,
    chars,
    check_schema,
    items,
    many,
    read,
    require,
    whole_number,
    within,
)
from ckv_core.base.json_text import JsonBounds, NoJsonError
from ckv_core.base.read_apart import SMALL_BYTES, Data, read_apart
from ckv_core.errors import ConfigError
from ckv_core.methods import Method
from ckv_core.records.variants import VariantSpec

OWN = "own"  # in the place of a method's name; no SPEC can name it
SCHEMA = 1
WHOLE = "file of kept positions"
MAX_VARIANTS = 16
MAX_TEXT_CHARS = 4_000_000
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_TOKEN_ID = 2**31 - 1
MAX_CHARS = 64 * 2**20
MAX_LABEL = 200
# 8 million positions in rows of 64 at least.
BOUNDS = JsonBounds(containers=2**17, values=2**23)
Rows = tuple[bytes, ...]  # packed positions of one KV head after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSelection:
    """Kept positions of one variant, with the prompt and model they were chosen on, where known."""

    label: str  # what a reader sees
    # Per layer, per KV head, the kept positions as packed by `pack`; None for a layer that is not
    # evicted. A layer of one row in `same_heads` serves all KV heads, the one layer in
    # `same_layers` all layers.
    rows: tuple[Rows | None, ...] = field(repr=False)
    same_heads: bool = False
    same_layers: bool = False
    # layers, kv_heads: of the model; None if unknown.
    layers: int | None = None
    kv_heads: int | None = None
    sha256: str = ""  # of the model's weights; empty if unknown
    # Length of the prompt that the positions index; None if unknown.
    compressed_tokens: int | None = None
    # Packed tokens of that prompt; None if unknown.
    token_ids: bytes | None = field(default=None, repr=False)

    def spec(self) -> VariantSpec:
        """The variant, named by its label; its budget is what it keeps."""
        method = Method(
            name=OWN, label=self.label, summary="Positions that other code chose.", source=""
        )
        return VariantSpec(method, method.selector, {"label": self.label}, ("label",))

    def __str__(self) -> str:
        """The label, and a short digest that tells two sets of positions apart."""
        parts = (row for layer in self.rows for row in (layer or (b"whole",)))
        return f"{self.label} ({hashlib.sha256(b'|'.join(parts)).hexdigest()[:8]})"


def pack(values: Sequence[int]) -> bytes:
    """Whole numbers below 2**31, in few bytes."""
    return np.array(values, dtype="<i4").tobytes()


def unpack(packed: bytes) -> NDArray[np.int32]:
    """Undo `pack`."""
    return np.frombuffer(packed, dtype="<i4")


# --- writing ----------------------------------------------------------------------------


def own_to_json(variants: Sequence[ExternalSelection]) -> list[dict[str, Any]]:
    """One document for each variant; `own_from_json` gives equal ones."""
    return [_document_json(own) for own in variants]


def _document_json(own: ExternalSelection) -> dict[str, Any]:
    tokens = None if own.token_ids is None else unpack(own.token_ids).tolist()
    layers = [None if row is None else [unpack(head).tolist() for head in row] for row in own.rows]
    if own.same_heads:
        layers = [None if row is None else row[0] for row in layers]
    retained = (layers[0] or []) if own.same_layers else layers
    return {
        "schema": SCHEMA,
        "model": {"sha256": own.sha256 or None, "layers": own.layers, "kv_heads": own.kv_heads},
        "prompt": {"compressed_tokens": own.compressed_tokens, "token_ids": tokens},
        "variants": [{"label": own.label, "retained": retained}],
    }


# --- reading ----------------------------------------------------------------------------


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


def _variants(text: Data) -> Iterator[ExternalSelection]:
    try:
        documents = [*BOUNDS.documents(text)]
    except NoJsonError as error:
        raise ConfigError(
            f"The kept positions are not valid JSON ({error}); write them as "
            "docs/how-to/compare_with_kvpress.md shows."
        ) from None
    yield from own_from_json(documents)


def own_from_json(documents: object, *at: str) -> tuple[ExternalSelection, ...]:
    """The variants in decoded documents; raises as `read_external_selection`.

    `at`: the path of the documents in what they are a part of.
    """
    variants: tuple[ExternalSelection, ...] = ()
    for number, document in enumerate(read(list[Any], documents, WHOLE, at=at)):
        place: tuple[int | str, ...] = (*at, number) if at else ()
        check_schema(document, WHOLE, SCHEMA, place)
        found: Any = read(_Document, document, WHOLE, at=place)  # it is checked into selections
        variants += found
    if len(variants) > MAX_VARIANTS:
        raise ConfigError(
            f"{len(variants)} methods are too many; one run takes up to {MAX_VARIANTS}."
        )
    return variants


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    sha256: Annotated[str, chars(200)] | None = None
    layers: Annotated[int, within(1, MAX_LAYERS)] | None = None
    kv_heads: Annotated[int, within(1, MAX_HEADS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    compressed_tokens: Annotated[int, within(1, MAX_TEXT_CHARS)] | None = None
    token_ids: (
        Annotated[tuple[Annotated[int, within(0, MAX_TOKEN_ID)], ...], many(MAX_TEXT_CHARS)] | None
    ) = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    label: Annotated[str, chars(MAX_LABEL)]
    spec: Annotated[str, chars(1000)] | None = None
    retained: Any = None

    def name(self, labels: Sequence[str], *at: int | str) -> str:
        """Its label; where several variants of a result JSON share it, the SPEC."""
        member = "spec" if labels.count(self.label) > 1 and self.spec else "label"
        name: str = getattr(self, member).strip()
        is_name = name and name.isprintable() and len(name) <= MAX_LABEL
        visible = "a name without line breaks or other invisible characters is expected"
        require(is_name, visible, *at, member, got=name)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document(Checked):
    model: _Model | None = None
    prompt: _Prompt | None = None
    variants: Annotated[tuple[_Variant, ...], many(MAX_VARIANTS)]

    def checked(self, value: Plain, known: Plain) -> tuple[ExternalSelection, ...]:
        """The variants that keep a part; the full cache of a result JSON has nothing to show."""
        del value, known
        model, prompt = self.model or _Model(), self.prompt or _Prompt()
        tokens, compressed = prompt.token_ids, prompt.compressed_tokens
        is_whole = tokens is None or len(tokens) >= (compressed or 1)
        few = "a token for each compressed one is expected"
        require(is_whole, few, "prompt", "token_ids", got=tokens)
        chosen = {i: each for i, each in enumerate(self.variants) if each.retained is not None}
        require(chosen, "a variant with `retained` positions is expected", "variants", got=[])
        labels = [each.label for each in chosen.values()]
        return tuple(
            ExternalSelection(
                label=each.name(labels, "variants", i),
                sha256=model.sha256 or "",
                compressed_tokens=compressed,
                token_ids=None if tokens is None else pack(tokens[:compressed]),
                **_rows(each.retained, model, compressed or MAX_TEXT_CHARS, "variants", i),
            )
            for i, each in chosen.items()
        )


def _rows(value: Any, model: _Model, end: int, *place: int | str) -> dict[str, Any]:
    """The members of ExternalSelection that depend on how the positions are nested.

    They are nested 1 deep for all alike, 2 per layer, 3 per layer and KV head.
    """
    at = (*place, "retained")
    layers, heads, depth = model.layers, model.kv_heads, _depth(value, *at)
    rows: list[Rows | None] = []
    if depth == 1:
        rows = [(_positions(value, end, *at),)]
    else:
        layers = min(len(value), MAX_LAYERS) if layers is None else layers
        for layer, row in enumerate(items(value, layers, *at)):
            if row is None:
                rows.append(None)
            elif depth == 2:
                rows.append((_positions(row, end, *at, layer),))
            else:
                count = len(row) if isinstance(row, list) else 1
                heads = min(count, MAX_HEADS) or 1 if heads is None else heads
                each = enumerate(items(row, heads, *at, layer))
                rows.append(tuple(_positions(kept, end, *at, layer, head) for head, kept in each))
    is_any = any(row for layer_rows in rows for row in layer_rows or ())
    require(is_any, "a kept position is expected", *at, got=value)
    same = {"same_heads": depth < 3, "same_layers": depth == 1}
    return {"rows": tuple(rows), "layers": layers, "kv_heads": heads, **same}


def _depth(value: Any, *at: int | str) -> int:
    nested, depth = value, 0
    while isinstance(nested, list) and depth < 4:
        nested = next((each for each in nested if each is not None), None)
        depth += 1
    known = "positions per layer and KV head, per layer, or for all alike are expected"
    is_known = depth == 3 or (depth in (1, 2) and type(nested) is int)
    require(is_known, known, *at, got=value)
    return depth


def _positions(value: Any, end: int, *at: int | str) -> bytes:
    """Packed positions in ascending order; a file has them in any."""
    require(isinstance(value, list), "an array is expected", *at, got=value)
    values = sorted(whole_number(each, 0, end - 1, *at, i) for i, each in enumerate(value))
    for left, right in pairwise(values):
        require(left != right, f"position {left} is expected once", *at, got=value)
    return pack(values)
