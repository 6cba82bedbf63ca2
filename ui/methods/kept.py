"""What each method keeps of one text, recorded by benchmarks/kept_figures.py: HTML. No Gradio."""

import html
import json
from collections.abc import Mapping
from typing import Any

from ckv_core.methods import METHODS, Method
from ui.looks.theme import ASSETS

RECORDED: dict[str, Any] = json.loads((ASSETS / "kept_figures.json").read_text("utf-8"))
SHARES = (5, 10, 20, 50)
FIRST_SHARE = 10
_MIB = 2**20


def figures_head() -> str:
    """What the figures show, and the budget that all of them take."""
    told, slots = RECORDED, RECORDED["layers"] * RECORDED["kv_heads"]
    beside = METHODS.get(told["beside"]).label
    radios = "".join(
        f'<label><input type="radio" name="ckv-kept-share" value="{share}"'
        f"{' checked' if share == FIRST_SHARE else ''}> {share} %</label>"
        for share in SHARES
    )
    text = (
        f"Each figure is what the method kept of one text (n = 1): the example "
        f"“{told['title']}” of Compare, {told['tokens']:,} tokens with its question at the "
        f"end, read by {told['model']} in float32 and recorded. From left to right the prompt, "
        f"in parts of about {told['tokens'] / _bars():.0f} tokens; the height of a bar is the "
        f"share of the part's entries that is kept, over all {told['layers']} layers x "
        f"{told['kv_heads']} KV heads ({slots} slots a token). Above the line stands the method, "
        f"below it {beside} at the same budget; ▼ are the mentions of its answer, {told['answer']}."
    )
    return (
        f'<p class="ckv-kept-told">{html.escape(text)}</p>'
        '<fieldset class="ckv-kept-budget"><legend>Budget of the figures</legend>'
        f"{radios}</fieldset>"
    )


def kept_figure(method: Method) -> str:
    """A figure that assets/scripts/pages/kept_figures.js draws; empty for what evicts nothing."""
    recorded = RECORDED["methods"].get(method.name)
    if recorded is None:
        return ""
    beside = "" if method.name == RECORDED["beside"] else RECORDED["beside"]
    data = {
        share: {"bars": kept["bars"], "told": _told(method, share, kept)}
        for share, kept in recorded["kept"].items()
    }
    mentions = [round(first / RECORDED["tokens"], 4) for first, _ in RECORDED["mentions"]]
    return (
        f'<figure class="ckv-kept" data-kept="{html.escape(json.dumps(data))}" '
        f'data-mentions="{mentions}" data-beside="{beside}" '
        f'data-label="{html.escape(method.label)}">'
        f"<figcaption>{html.escape(data[str(FIRST_SHARE)]['told'])}</figcaption></figure>"
    )


def cost_text(method: Method) -> str:
    """The memory that it took for that text."""
    recorded = RECORDED["methods"].get(method.name)
    if not method.evicts:
        return "nothing besides: its cache is what savings are measured against"
    if recorded is None:
        return ""  # another package's
    held, work = (recorded[key] / _MIB for key in ("held", "work"))
    return (
        f"{held:.1f} MiB gathered and kept for it, at most {work:.1f} MiB more while it chooses "
        f"({RECORDED['tokens']:,} tokens, {RECORDED['model']}, float32)"
    )


def _told(method: Method, share: str, kept: Mapping[str, Any]) -> str:
    heights = bytes.fromhex(kept["bars"])
    tenth, total = len(heights) // 10, max(1, sum(heights))
    first, last = sum(heights[:tenth]) / total, sum(heights[-tenth:]) / total
    entries = RECORDED["tokens"] * int(share) // 100
    beside = METHODS.get(RECORDED["beside"])
    common = (
        ""
        if method.name == beside.name
        else f"{kept['same']:.0%} of its entries are {beside.label}'s too; "
    )
    return (
        f"{method.label} at {share} % ({entries} entries per KV head): {common}it keeps "
        f"{kept['answer']:.0%} of the entries of the answer's mentions; {first:.0%} of what it "
        f"keeps lies in the first tenth of the prompt, {last:.0%} in the last."
    )


def _bars() -> int:
    kept = RECORDED["methods"][RECORDED["beside"]]["kept"]
    return len(kept[str(FIRST_SHARE)]["bars"]) // 2
