"""A page that holds our components, and invented data to feed them."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr
import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import BrowserContext, Page
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.analysis.evidence import evidence as evidence_shares
from ckv_core.results.records import HeldSeries, RetainedSet
from ui.components.generations import Generations
from ui.components.kept_tokens import KeptTokens
from ui.components.run_links import RunLinks
from ui.components.status_bar import StatusBar
from ui.components.summary_table import SummaryTable

HOSTILE = '<img src=x onerror="window.__hit=1"> ${7*7} `${window.__hit=1}` {{value}} </script>'
WORDS = ["the ", "report ", "notes ", "that ", "rare ", "names ", "are ", "evicted ", "early.\n"]
LOOK = {"color": "#1068de", "symbol": "square-open", "dash": "dash"}
VARIANT_NAMES = [
    ("SnapKV", "snapkv:budget=128"),
    ("SnapKV + CriticalKV", "snapkv+critical:budget=128"),
    ("AdaKV", "adakv:budget=128"),
    ("AdaKV + CriticalKV", "adakv+critical:budget=128"),
]


@dataclass(frozen=True, eq=False)
class InventedRun:
    """Masks [layers, kv_heads, positions] of some variants, and a prompt."""

    slug: str
    masks: tuple[NDArray[np.bool_], ...]
    pieces: tuple[str, ...]
    context: tuple[int, int]
    evictable: tuple[int, ...]
    held: HeldSeries | None = None  # of the last

    def value(self) -> dict[str, Any]:
        """What a page gives to KeptTokens."""
        layers, kv_heads, positions = self.masks[0].shape
        variants = [
            {
                "index": i + 1,
                "look": LOOK,
                "label": VARIANT_NAMES[i][0],
                "spec": VARIANT_NAMES[i][1],
            }
            for i in range(len(self.masks))
        ]
        for variant in variants:
            variant["window"] = 32
        if self.held is not None:
            variants[-1]["entries"] = list(self.held.entries)
        return {
            "slug": self.slug,
            "base": "/data",
            "layers": layers,
            "kv_heads": kv_heads,
            "positions": positions,
            "evictable": list(self.evictable),
            "variants": variants,
            "context": list(self.context),
            "key": "1",
        }


def invent_masks(
    count: int, shape: tuple[int, int, int], evictable: tuple[int, ...]
) -> tuple[NDArray[np.bool_], ...]:
    """Random kept sets with a window, sinks and a few popular places; same every time."""
    layers, _, positions = shape
    place = np.arange(positions) / positions
    masks = []
    for index in range(count):
        rng = np.random.default_rng(index)
        chance = 0.04 + 0.6 * np.exp(-place * 90)
        for centre in rng.random(7):
            chance = chance + 0.5 * np.exp(-(((place - centre) * 160) ** 2))
        slope = np.linspace(1.5, 0.4, layers)[:, None, None] if index > 1 else 1.0
        mask = rng.random(shape, np.float32) < np.clip(chance, 0, 1)[None, None] * slope
        mask[:, :, -32:] = True
        mask[[layer for layer in range(layers) if layer not in evictable]] = True
        masks.append(mask)
    return tuple(masks)


@functools.cache
def small_run() -> InventedRun:
    """300 compressed positions (not a multiple of 8) and 20 tokens read afterwards."""
    evictable = (0, 1, 2, 4, 5)
    rng = np.random.default_rng(7)
    pieces = ["<|user|>", "\n", *(str(rng.choice(WORDS)) for _ in range(318))]
    pieces[60:64] = ["The ", "Needle ", "is ", "7421"]
    pieces[100] = HOSTILE
    pieces[200:202] = ["needle ", ""]
    masks = invent_masks(3, (6, 3, 300), evictable)
    for mask in masks:
        mask[0, :, 150] = False
        mask[list(evictable), :, 151] = False
    return InventedRun("small", masks, tuple(pieces), (2, 300), evictable)


@functools.cache
def generating_run() -> InventedRun:
    """The small one, whose last variant lets one entry of each head go after each of 5 tokens."""
    run = small_run()
    kept, rows = run.masks[-1].copy(), []
    kept = np.pad(kept, ((0, 0), (0, 0), (0, 20 + 5)), constant_values=True)
    rng = np.random.default_rng(11)
    for step in range(1, 6):
        for layer in run.evictable:
            for head in range(kept.shape[1]):
                position = int(rng.choice(np.flatnonzero(kept[layer, head, : 320 + step])))
                kept[layer, head, position] = False
                rows.append((step, layer, head, position))
    held = HeldSeries(
        entries=(0,) * 6, cache_bytes=(0,) * 6, evicted=np.array(rows, "<u4").tobytes()
    )
    return dataclasses.replace(run, slug="generating", held=held)


@functools.cache
def medium_run() -> InventedRun:
    """2,064 tokens, 30 layers, 3 KV heads: the default model's size; for the looks."""
    evictable = tuple(range(30))
    rng = np.random.default_rng(3)
    pieces = tuple(str(rng.choice(WORDS)) for _ in range(2064))
    masks = invent_masks(4, (30, 3, 2064), evictable)
    return InventedRun("medium", masks, pieces, (12, 2030), evictable)


@functools.cache
def large_run() -> InventedRun:
    """131,072 tokens, 32 layers, 8 KV heads, 4 variants: 4 MiB of bits each."""
    evictable = tuple(range(32))
    rng = np.random.default_rng(5)
    pieces = tuple(rng.choice(WORDS, 131072).tolist())
    masks = invent_masks(4, (32, 8, 131072), evictable)
    return InventedRun("large", masks, pieces, (4, 131000), evictable)


RUNS: dict[str, Callable[[], InventedRun]] = {
    "small": small_run,
    "generating": generating_run,
    "medium": medium_run,
    "large": large_run,
}


@dataclass
class Lab:
    """The running page and how it is told to misbehave."""

    url: str = ""
    failing: set[str] = field(default_factory=set)
    served: dict[str, bytes] = field(default_factory=dict)


def data_routes(lab: Lab) -> list[Route]:
    def prompt(request: Request) -> Response:
        slug = request.path_params["slug"]
        if slug in lab.failing:
            return Response("no", 503)
        run = RUNS[slug]()
        return JSONResponse(
            {
                "pieces": run.pieces,
                "compressed": run.masks[0].shape[-1],
                "tokens": len(run.pieces),
                "context": run.context,
            }
        )

    def retained(request: Request) -> Response:
        slug, index = request.path_params["slug"], int(request.path_params["index"])
        name = f"{slug}/{index}"
        if name not in lab.served:
            lab.served[name] = RetainedSet.from_mask(RUNS[slug]().masks[index - 1]).bits
        return Response(lab.served[name], media_type="application/octet-stream")

    def evicted(request: Request) -> Response:
        held = RUNS[request.path_params["slug"]]().held
        return Response(held.evicted if held else b"", media_type="application/octet-stream")

    return [
        Route("/data/{slug}/prompt", prompt),
        Route("/data/{slug}/{index:int}/evicted", evicted),
        Route("/data/{slug}/{index:int}/retained", retained),
    ]


def _stream(count: float) -> Iterator[dict[str, Any]]:
    """Two growing cards, as a page yields them."""
    tokens = [f"word{i} " for i in range(int(count))]
    for end in range(1, len(tokens) + 1):
        cards = [
            card(0, "Full cache", tokens[:end], reference=True, status="generating"),
            card(1, "SnapKV", tokens[:end], status="generating"),
        ]
        yield {"cards": cards, "answer": ""}


def card(index: int, label: str, tokens: list[str], **changes: Any) -> dict[str, Any]:
    """One generation card with defaults."""
    return {
        "index": index,
        "look": LOOK,
        "label": label,
        "spec": "full",
        "status": "done",
        "chips": [],
        "token_texts": tokens,
        "first_difference": None,
        "reference": False,
        "stopped": None,
        "answer": None,
        **changes,
    }


def build_page() -> gr.Blocks:
    with gr.Blocks(title="Components", fill_width=True, analytics_enabled=False) as demo:
        gr.HTML("<h1>Components</h1><h2>Results</h2>")
        payload = gr.Textbox(label="Payload", elem_id="payload", lines=1, max_lines=1)
        with gr.Row():
            send = gr.Button("Send", elem_id="send")
            count = gr.Number(20, label="Tokens", elem_id="count")
            stream = gr.Button("Stream", elem_id="stream")
        outputs = [
            StatusBar(elem_id="status"),
            SummaryTable(elem_id="summary"),
            Generations(elem_id="generations"),
            KeptTokens(elem_id="kept"),
            RunLinks(elem_id="links"),
        ]
        names = ["status", "summary", "generations", "kept", "links"]

        def show(text: str) -> list[Any]:
            values = json.loads(text)
            return [values.get(name, gr.skip()) for name in names]

        send.click(show, payload, outputs, show_progress="hidden", queue=False)
        stream.click(_stream, count, outputs[2], show_progress="hidden")
    return demo


class Visitor:
    """One page in a context of its own, and what goes wrong on it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page = context.new_page()
        self.faults: list[str] = []

        def note(is_fault: bool, text: str) -> None:
            if is_fault:
                self.faults.append(text)

        context.on("console", lambda message: note(message.type == "error", message.text))
        context.on("weberror", lambda error: note(True, str(error.error)))
        allowed = (url, "data:", "blob:", "about:")
        context.on("request", lambda each: note(not each.url.startswith(allowed), each.url))


@dataclass
class View:
    """The page as one test opened it, and what went wrong on it."""

    page: Page
    lab: Lab
    faults: list[str]

    def send(self, **values: Any) -> None:
        """Set components by name, as an event handler of a page would."""
        self.page.locator("#payload textarea, #payload input").first.fill(json.dumps(values))
        self.page.get_by_role("button", name="Send", exact=True).click()

    def show_kept(self, run: InventedRun, **changes: Any) -> None:
        """Show a run in KeptTokens and wait until it is drawn."""
        self.send(kept={**run.value(), **changes})
        kept = self.page.locator("#kept")
        kept.scroll_into_view_if_needed()
        self.page.wait_for_selector("#kept .ckv-kept .ckv-maps")
        self.page.wait_for_selector("#kept [data-draw-ms]")


def evidence(view: View) -> dict[str, list[str]]:
    """Rows of the evidence table by variant index."""
    rows = view.page.eval_on_selector_all(
        "#kept .ckv-evidence tbody tr",
        "rs => rs.map(r => [r.dataset.variant, ...[...r.cells].slice(1, 5).map(c => c.innerText)])",
    )
    return {row[0]: row[1:] for row in rows}


def expected_evidence(run: InventedRun, variant: int, first: int, end: int) -> list[str]:
    """Counts of one such row, as the engine's side has them."""
    kept = RetainedSet.from_mask(run.masks[variant - 1])
    shares = evidence_shares(kept, (first, end), run.evictable, {"window": 32})
    span = run.masks[variant - 1][list(run.evictable), :, first:end]

    def percent(value: float) -> str:
        return f"{value * 100:.1f}%" if 0 < value * 100 < 9.95 else f"{value * 100:.0f}%"

    ratio = f"{shares.mean / shares.chance:.2f}\u00d7"
    return [percent(shares.mean), f"{span.all(2).sum()} / 15", percent(shares.chance), ratio]
