"""A page that holds our components, and invented data to feed them."""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable
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

from ckv_core.records.records import HeldSeries, RetainedSet
from ui.components.base import (
    Answers,
    DataTable,
    KeptTokens,
    RunActions,
    VerdictStrip,
)

HOSTILE = '<img src=x onerror="window.__hit=1"> ${7*7} `${window.__hit=1}` {{value}} </script>'
WORDS = ["the ", "report ", "notes ", "that ", "rare ", "names ", "are ", "evicted ", "early.\n"]
LOOK = {"color": "#1068de", "symbol": "square-open", "dash": "dash"}
VARIANT_NAMES = [
    ("SnapKV", "snapkv:budget=128"),
    ("CriticalKV-SnapKV", "snapkv+critical:budget=128"),
    ("AdaKV", "adakv:budget=128"),
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

    def value(self, **of_variants: list[Any]) -> dict[str, Any]:
        """What a page gives to KeptTokens; of a variant also what stands at its place here."""
        layers, kv_heads, positions = self.masks[0].shape
        names = VARIANT_NAMES[: len(self.masks)]
        variants: list[dict[str, Any]] = [
            {"index": at, "look": LOOK, "label": label, "spec": spec, "window": 32}
            | {"method": re.split("[+:]", spec)[0], "critical": "+" in spec}
            for at, (label, spec) in enumerate(names, 1)
        ]
        if self.held is not None:
            variants[-1]["entries"] = list(self.held.entries)
        for key, values in of_variants.items():
            for variant, value in zip(variants, values, strict=False):
                variant[key] = value
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

    def slots(self, variant: int, position: int) -> int:
        """How many layers and heads that may evict keep it."""
        return int(self.masks[variant - 1][list(self.evictable), :, position].sum())


def invent_masks(
    count: int, shape: tuple[int, int, int], evictable: tuple[int, ...]
) -> tuple[NDArray[np.bool_], ...]:
    """Random kept sets with a window; from the third on later layers keep less. Always the same."""
    layers = shape[0]
    masks = []
    for index in range(count):
        chance = np.linspace(0.4, 0.1, layers) if index > 1 else np.full(layers, 0.25)
        mask = np.random.default_rng(index).random(shape, np.float32) < chance[:, None, None]
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


RUNS: dict[str, Callable[[], InventedRun]] = {
    "small": small_run,
    "generating": generating_run,
}


@dataclass
class Lab:
    """The running page and how it is told to misbehave."""

    url: str = ""
    failing: set[str] = field(default_factory=set)


def data_routes(lab: Lab) -> list[Route]:
    def prompt(request: Request) -> Response:
        slug = request.path_params["slug"]
        if slug in lab.failing:
            return Response("no", 503)
        run = RUNS[slug]()
        return JSONResponse({"pieces": run.pieces, "context": run.context})

    def retained(request: Request) -> Response:
        mask = RUNS[request.path_params["slug"]]().masks[request.path_params["index"] - 1]
        return Response(RetainedSet.from_mask(mask).bits)

    def evicted(request: Request) -> Response:
        held = RUNS[request.path_params["slug"]]().held
        return Response(held.evicted if held else b"")

    return [
        Route("/data/{slug}/prompt", prompt),
        Route("/data/{slug}/{index:int}/evicted", evicted),
        Route("/data/{slug}/{index:int}/retained", retained),
    ]


def answer_row(index: int, name: str, *pieces: tuple[str, str], **changes: Any) -> dict[str, Any]:
    """One row of the table of answers with defaults."""
    return {
        "index": index,
        "look": LOOK,
        "name": name,
        "spec": "full",
        "reference": index == 0,
        "kept": index > 0,
        "state": "done",
        "pieces": pieces,
        "outcome": "answered",
        "outcome_word": "Answered",
        "mib": "17.4",
        "share": 0.2,
        "agreement": "50 %",
        **changes,
    }


NAMES = ["verdict", "summary", "answers", "kept", "actions"]


def build_page() -> gr.Blocks:
    with gr.Blocks(title="Components", fill_width=True, analytics_enabled=False) as demo:
        gr.HTML("<h1>Components</h1><h2>Results</h2>")
        payload = gr.Textbox(label="Payload", elem_id="payload", lines=1, max_lines=1)
        send = gr.Button("Send", elem_id="send")
        kinds = (VerdictStrip, DataTable, Answers, KeptTokens, RunActions)
        outputs = [kind(elem_id=name) for kind, name in zip(kinds, NAMES, strict=True)]

        def show(text: str) -> list[Any]:
            values = json.loads(text)
            return ["", *(values.get(name, gr.skip()) for name in NAMES)]

        send.click(show, payload, [payload, *outputs], show_progress="hidden", queue=False)
    return demo


class View:
    """The page in a context of its own."""

    def __init__(self, context: BrowserContext, lab: Lab) -> None:
        self.page = context.new_page()
        self.lab = lab
        self._theme = ""
        self._sent: set[str] = set()

    def open(
        self, width: int = 1600, theme: str = "light", fragment: str = "", *, anew: bool = False
    ) -> "View":
        """Load the page, or only empty its components, as most tests need it: loading takes 1 s."""
        self.page.set_viewport_size({"width": width, "height": 1000})
        if anew or theme != self._theme:
            self.page.goto("about:blank")  # or another fragment alone would load nothing
            self.page.goto(f"{self.lab.url}?__theme={theme}{fragment}")
            self.page.wait_for_selector("#kept [data-ready]", state="attached")
            self._theme = theme
        else:
            self.send(**dict.fromkeys(self._sent))
            place = "location.pathname + location.search"
            self.page.evaluate(f"part => history.replaceState(null, '', {place} + part)", fragment)
        self._sent.clear()
        return self

    def send(self, **values: Any) -> "View":
        """Set components by name, as an event handler of a page would."""
        self._sent |= values.keys()
        box = self.page.locator("#payload textarea, #payload input").first
        box.fill(json.dumps(values))
        self.page.get_by_role("button", name="Send", exact=True).click()
        self.page.wait_for_function("box => box.value === ''", arg=box.element_handle())
        return self

    def show_kept(self, run: InventedRun, **changes: Any) -> Page:
        """Show a run in KeptTokens and wait until it is drawn."""
        drawn = "document.querySelector('#kept [data-draw-ms]')"
        self.page.evaluate(f"{drawn}?.removeAttribute('data-draw-ms')")
        self.send(kept={**run.value(), **changes})
        self.page.locator("#kept").scroll_into_view_if_needed()
        self.page.wait_for_selector("#kept .ckv-kept .ckv-map-row")
        self.page.wait_for_selector("#kept [data-draw-ms]")
        return self.page
