"""What each method keeps of one text, and the memory it takes: assets/kept_figures.json.

The Methods page draws it. With the default model; tables that methods need are made if they are not
there yet. Methods named after it are measured alone, and the others stay as they were.
"""

import json
import re
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.parity import EXAMPLES, KeepMask, Text, equal_share, ours, read, texts
from ckv_core.engine.compare import made_table
from ckv_core.engine.head_tables import kept_table
from ckv_core.methods import METHODS
from ckv_core.methods.parts.views import PromptShape
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.run_request import DEFAULT_MODEL
from ckv_core.records.variants import VariantSpec

RECORDED = Path(__file__).parents[1] / "assets" / "kept_figures.json"
EXAMPLE = "observatory_archive.txt"
SHARES = (5, 10, 20, 50)  # percent kept
BARS = 160  # parts of the prompt
BESIDE = "snapkv"  # what every method is drawn beside


def text_of(loaded: LoadedModel) -> Text:
    """The example with its question."""
    (found,) = (text for text in texts(loaded) if text.name == EXAMPLE)
    return found


def specs() -> list[VariantSpec]:
    """Every method that evicts, or those that were named, at its defaults."""
    named = sys.argv[1:] if __name__ == "__main__" else []
    names = [method.name for method in METHODS if method.evicts]
    return [VariantSpec.parse(name) for name in names if name in named or not named]


def budget_of(share: int, tokens: int) -> int:
    """Entries per KV head."""
    return tokens * share // 100


def bars(kept: KeepMask) -> list[float]:
    """Of each part of the prompt the share of its entries that is kept, over layers and heads."""
    parts = np.array_split(kept, BARS, axis=-1)
    return [float(part.mean()) for part in parts]


def written(shares: list[float]) -> str:
    """Two hexadecimal digits each, ff for all."""
    return bytes(round(255 * share) for share in shares).hex()


def places_of(text: Text, words: str) -> list[tuple[int, int]]:
    """Of each mention of these words the first token, and the one after the last."""
    starts = np.cumsum([0, *(len(piece) for piece in text.prompt.pieces)])
    found = [each.span() for each in re.finditer(re.escape(words), "".join(text.prompt.pieces))]
    return [
        (int(np.searchsorted(starts, at, side="right")) - 1, int(np.searchsorted(starts, end)))
        for at, end in found
    ]


def figures(loaded: LoadedModel, text: Text, mentions: list[tuple[int, int]]) -> dict[str, Any]:
    """By method and share: its bars, and the shares in common and of the answer's mentions."""
    answer = [at for first, end in mentions for at in range(first, end)]
    prefilled = read(loaded, text, [*specs(), VariantSpec.parse(BESIDE)])
    found: dict[str, Any] = {spec.name: {} for spec in specs()}
    for share in SHARES:
        budget = budget_of(share, len(text.tokens))
        beside = ours(VariantSpec.parse(BESIDE), prefilled, budget)
        for spec in specs():
            kept = ours(spec, prefilled, budget)
            found[spec.name][str(share)] = {
                "bars": written(bars(kept)),
                "same": round(equal_share(kept, beside), 4),
                "answer": round(float(kept[..., answer].mean()), 4),
            }
    return found


def memory(loaded: LoadedModel, text: Text) -> dict[str, Any]:
    """By method: bytes gathered and kept for it, and the most besides while it chooses."""
    budget = budget_of(10, len(text.tokens))
    plain = read(loaded, text, [])
    found = {}
    for spec in specs():
        prefilled = read(loaded, text, [spec])
        ours(spec, prefilled, budget)
        held = max(0, prefilled.nbytes - plain.nbytes)
        found[spec.name] = {"held": held, "work": spec.work_bytes(_shape(loaded, text))}
    return found


def _shape(loaded: LoadedModel, text: Text) -> PromptShape:
    info = loaded.info
    layers = len(info.evictable_layers)
    return PromptShape(layers, info.query_heads, info.kv_heads, info.head_dim, len(text.tokens))


def setting(text: Text) -> dict[str, Any]:
    """What the example is, of the app's list."""
    index = json.loads((EXAMPLES / "index.json").read_text(encoding="utf-8"))
    (example,) = (each for each in index if each["file"] == text.name)
    return {key: example[key] for key in ("title", "question", "answer")}


def main() -> None:
    """Measure everything and write the file."""
    loaded = load_model(DEFAULT_MODEL, "cpu", "float32")
    for spec in specs():
        for table in spec.tables:
            if kept_table(loaded.info, table) is None:
                deque(made_table(loaded, table, spec), maxlen=0)
    text = text_of(loaded)
    example = setting(text)
    mentions = places_of(text, example["answer"])
    drawn, taken = figures(loaded, text, mentions), memory(loaded, text)
    methods = {
        spec.name: {"params": dict(spec.params), **taken[spec.name], "kept": drawn[spec.name]}
        for spec in specs()
    }
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["methods"] | methods
    document = {
        "model": loaded.info.name,
        "sha256": loaded.info.sha256,
        "layers": len(loaded.info.evictable_layers),
        "kv_heads": loaded.info.kv_heads,
        "tokens": len(text.tokens),
        **example,
        "mentions": mentions,
        "beside": BESIDE,
        "methods": {each.name: known[each.name] for each in METHODS if each.evicts},
    }
    RECORDED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def unwritten(text: str) -> NDArray[np.float64]:
    """The shares that `written` wrote."""
    return np.frombuffer(bytes.fromhex(text), np.uint8) / 255


if __name__ == "__main__":
    main()
