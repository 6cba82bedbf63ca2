"""Kept positions that other code chose, as one more variant of a run. No torch.

external_selection_json.py reads and writes the file; docs/external_selection.md describes it.
"""

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ckv_core.methods import Method
from ckv_core.request.variants import VariantSpec

OWN = "own"  # in the place of a method's name; no SPEC can ask for it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSelection:
    """What one variant keeps, and what prompt and model that was chosen on, as far as told."""

    label: str  # what a reader sees
    # Per layer, per KV head, the kept positions as packed by `pack`; None for a layer that is not
    # evicted. A layer of one row in `same_heads` serves all KV heads, the one layer in
    # `same_layers` all layers.
    rows: tuple[tuple[bytes, ...] | None, ...] = field(repr=False)
    same_heads: bool = False
    same_layers: bool = False
    # layers, kv_heads: of the model; None if not told.
    layers: int | None = None
    kv_heads: int | None = None
    sha256: str = ""  # of the model's weights; empty if not told
    # Length of the prompt that the positions index; None if not told.
    compressed_tokens: int | None = None
    # Packed tokens of that prompt; None if not told.
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


def pack(values: tuple[int, ...]) -> bytes:
    """Whole numbers below 2**31, in few bytes."""
    return np.array(values, dtype="<i4").tobytes()


def unpack(packed: bytes) -> NDArray[np.int32]:
    """Undo `pack`."""
    return np.frombuffer(packed, dtype="<i4")
