"""Benchmarks of the app in a real browser: start-up, first page, a stored run, a long view.

The stored runs hold synthetic kept sets; nothing is generated. Prints Markdown tables.
"""

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, BrowserContext, Page

from benchmarks.setting import ROOT, request, run
from benchmarks.tables import spread, table
from ckv_core.base.home import home_folder
from ckv_core.engine.prefill_cache import KEPT_PREFILL_BYTES, PrefillCache
from ckv_core.models.loading import load_model
from ckv_core.records.events import RunFinished, RunPrepared
from ckv_core.records.records import (
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    VariantResult,
)
from ckv_core.records.run_request import RunRequest
from storage.database import default_url, open_database
from storage.recorder import Recorder
from tests.browser import chromium
from tests.factories.events import events_of
from tests.factories.runs import model_info

READY = re.compile(r"ready at (http://\S+)/")
MODEL = model_info(layers=30, query_heads=9, kv_heads=3, head_dim=64, context_limit=131_072)
WINDOW_MS = 1000
WORDS = ("the ", "report ", "notes ", "that ", "rare ", "names ", "are ", "evicted ", "early.\n")
ZOOM = """async () => {
  const canvas = document.querySelector('#kept .ckv-map-top');
  canvas.scrollIntoView({block: 'center'});
  const box = canvas.getBoundingClientRect();
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const frames = [];
  let last = await next();
  for (let i = 0; i < 120; i += 1) {
    const place = {clientX: box.left + box.width * 0.6, clientY: box.top + 60};
    const options = {...place, bubbles: true, cancelable: true};
    if (i < 80) {
      const zoom = {...options, deltaY: i < 40 ? -120 : 120, ctrlKey: true};
      canvas.dispatchEvent(new WheelEvent('wheel', zoom));
    } else {
      const hover = {...options, clientX: box.left + 40 + i * 2};
      canvas.dispatchEvent(new PointerEvent('pointermove', hover));
    }
    const now = await next();
    frames.push(now - last);
    last = now;
  }
  return frames;
}"""
# A hand that moves the slider through many values, then rests. Milliseconds from its last movement
# until the maps of that value are painted, as this page sees it, and until the first new word.
DRAG = """async (wanted) => {
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const row = document.querySelector('.ckv-live');
  const slider = row.querySelector('input');
  const from = Number(slider.value);
  const send = (name, value) => {
    slider.value = value;
    slider.dispatchEvent(new Event(name, { bubbles: true }));
  };
  for (let step = 1; step < 20; step += 1) {
    send('input', Math.round(from + ((wanted - from) * step) / 20));
    await new Promise((done) => setTimeout(done, 16));
  }
  const start = performance.now();
  send('input', wanted);
  const goal = JSON.stringify({ budget: `${wanted}%` });
  while (row.dataset.shown !== goal) {
    if (performance.now() - start > 240000) throw new Error(`no map: ${row.innerText}`);
    await next();
  }
  const shown = performance.now() - start;
  const released = performance.now();
  send('change', wanted);
  while (row.dataset.answers !== goal) {
    if (performance.now() - released > 240000) throw new Error(`no answer: ${row.innerText}`);
    await next();
  }
  return [shown, performance.now() - released];
}"""
BUDGETS = (24, 31, 12, 45, 17, 38, 9, 28, 49, 21, 35)  # percent of the prompt, never twice


def synthetic_variant(index: int, positions: int) -> VariantResult:
    """The full cache for index 0, else a random kept set of 128 tokens per head."""
    entry_bytes = 2 * MODEL.head_dim * 4
    rows = MODEL.layers * MODEL.kv_heads
    kept = positions if index == 0 else 128
    receipt = Receipt(
        budget_tokens=kept,
        requested_entries=rows * kept,
        retained_entries=rows * kept,
        cache_bytes=rows * kept * entry_bytes,
        full_cache_bytes=rows * positions * entry_bytes,
    )
    spec = "full" if index == 0 else f"snapkv:window={index},budget=128"
    common = {"receipt": receipt, "text": "a text " * 32, "stopped": "length"}
    common |= {"token_ids": tuple(range(64)), "token_texts": ("a ", "text ") * 32}
    if index == 0:
        return VariantResult(spec=spec, label="Full", method="full", critical=False, **common)
    random = np.random.default_rng(index)
    mask = np.zeros((MODEL.layers, MODEL.kv_heads, positions), np.bool_)
    for row in mask.reshape(rows, positions):
        row[random.choice(positions, kept, replace=False)] = True
    heads = random.random((MODEL.layers, MODEL.query_heads), np.float32)
    return VariantResult(
        spec=spec,
        label="SnapKV",
        method="snapkv",
        critical=False,
        params={"budget": kept, "window": index, "sinks": 0},
        retained=RetainedSet.from_mask(mask),
        perturbation=Perturbation(
            head_l1=heads, base_head_l1=None, layer_hidden_l1=heads[:, 0], kl=0.1
        ),
        agreement=0.5,
        first_difference=3,
        **common,
    )


def store_run(home: Path, positions: int, variants: int) -> str:
    """Save one finished run; returns its slug."""
    pieces = tuple(WORDS[i % len(WORDS)] for i in range(positions))
    results = tuple(synthetic_variant(index, positions) for index in range(variants))
    request = RunRequest(context="".join(pieces), variants=tuple(r.spec for r in results))
    prompt = PromptInfo(
        scenario="regular",
        token_ids=tuple(range(positions)),
        compressed_tokens=positions,
        pieces=pieces,
        context_tokens=(0, positions),
    )
    database = open_database(default_url(home))
    recorder = Recorder(database)
    slug = recorder.create(request)
    recorder.start(slug)
    recorder.apply(slug, RunPrepared(MODEL, prompt, results, {"app": "bench"}))
    recorder.apply(slug, RunFinished({"prefill": 1.0}))
    recorder.end(slug)
    database.close()
    return slug


@contextmanager
def running_app(home: Path) -> Iterator[tuple[str, float]]:
    """The app's address and the seconds until it served."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "log.txt"
    start = time.perf_counter()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "app.py")],
            cwd=home,
            env={**os.environ, "CKV_HOME": str(home), "CKV_PORT": str(port)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        while not (match := READY.search(log.read_text())):
            if process.poll() is not None:
                raise SystemExit(f"The app did not start:\n{log.read_text()}")
            time.sleep(0.02)
        yield match[1], time.perf_counter() - start
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def visitor(browser: Browser) -> BrowserContext:
    """A visitor with an empty cache."""
    return browser.new_context(viewport={"width": 1440, "height": 900})


def opened(visit: BrowserContext, url: str, sign: str) -> tuple[float, Page]:
    """Seconds from the request until `sign` is on screen, in a new tab."""
    page = visit.new_page()
    # A new window of Chromium first loads panels of its own; a reader's window is open already.
    page.wait_for_timeout(WINDOW_MS)
    start = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.locator(sign).first.wait_for(state="visible")
    return time.perf_counter() - start, page


def first_visit(browser: Browser, url: str, sign: str) -> float:
    """Seconds as by `opened`, for somebody who comes for the first time and then leaves."""
    with closing(visitor(browser)) as visit:
        return opened(visit, url, sign)[0]


def maps_drawn(page: Page) -> float:
    """Seconds from scrolling to the maps, which are drawn when they come into view."""
    start = time.perf_counter()
    page.locator("#kept").scroll_into_view_if_needed()
    page.locator("#kept .ckv-map-top").first.wait_for(state="visible")
    return time.perf_counter() - start


def store_real_run(home: Path) -> tuple[str, list[float]]:
    """Save a run of the real model; its slug, and what plain runs take, their prompt read before.

    The seconds are from the request to the last token of all variants.
    """
    loaded, prefills = load_model("SmolLM2-135M-Instruct"), PrefillCache(KEPT_PREFILL_BYTES)
    changes: dict[str, object] = {"ignore_eos": False, "scenario": "regular"}
    _, result = run(loaded, prefills, budgets=("20%",), **changes)
    plain = [run(loaded, prefills, budgets=(f"{b}%",), **changes)[0] / 1000 for b in BUDGETS[:5]]
    database = open_database(default_url(home))
    recorder = Recorder(database)
    slug = recorder.create(request(budgets=("20%",), **changes))
    recorder.start(slug)
    for event in events_of(result):
        recorder.apply(slug, event)
    recorder.end(slug)
    database.close()
    return slug, plain


def dragged(browser: Browser, url: str, slug: str) -> tuple[list[float], list[float]]:
    """Seconds from a slider's stop to the painted maps, and from its release to the first word."""
    with closing(visitor(browser)) as visit:
        _, page = opened(visit, f"{url}/r/{slug}", ".ckv-live input")
        page.evaluate("document.querySelector('.ckv-live').scrollIntoView()")
        page.locator("#kept [data-state=shown], #kept[data-state=shown]").wait_for()
        page.evaluate(DRAG, 40)  # the text is read again
        times = [page.evaluate(DRAG, budget) for budget in BUDGETS]
    maps, words = zip(*times, strict=True)
    return [ms / 1000 for ms in maps], [ms / 1000 for ms in words]


def quartiles(seconds: list[float]) -> str:
    """Median, and the quartiles around it."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return f"{middle:.2f} s (quartiles {low:.2f} and {high:.2f})"


def measure(home: Path, rounds: int) -> list[tuple[str, str, str]]:
    """All rows: what, target, measured."""
    short, long = store_run(home, 8_000, 8), store_run(home, 131_072, 4)
    real, plain = store_real_run(home)
    with running_app(home):
        pass
    starts, pages, early, fresh, stored, maps = [], [], [], [], [], []
    with chromium() as browser:
        for _ in range(rounds):
            with running_app(home) as (url, seconds):
                starts.append(seconds)
                # The model loads beside the page; the reader does not wait for it.
                pages.append(first_visit(browser, url, "#context textarea"))
                early.append(first_visit(browser, f"{url}/r/{short}", "#answers td"))
        with running_app(home) as (url, _):
            moved, answered = dragged(browser, url, real)  # the model has loaded then
            for _ in range(rounds):
                visit = visitor(browser)
                fresh.append(opened(visit, f"{url}/r/{short}", "#answers td")[0])
                seconds, page = opened(visit, f"{url}/r/{short}", "#answers td")
                stored.append(seconds)
                maps.append(maps_drawn(page))
                visit.close()
            _, page = opened(visitor(browser), f"{url}/r/{long}", "#answers td")
            maps_drawn(page)
            frames = sorted(page.evaluate(ZOOM))
    spans = [*map(quartiles, (moved, answered, plain))]
    p95 = frames[int(len(frames) * 0.95)]
    frame_text = f"{statistics.median(frames):.0f}, 95 % below {p95:.0f}, worst {frames[-1]:.0f} ms"
    return [
        ("ready to serve, second start", "10 s", spread(starts, 2) + " s"),
        ("first page usable, model loading beside it", "2 s", spread(pages, 2) + " s"),
        ("stored run of 8,000 tokens, 8 variants, first visit", "1 s", spread(fresh, 2) + " s"),
        ("the same in another tab", "1 s", spread(stored, 2) + " s"),
        ("the same, first visit, while the model loads", "", spread(early, 2) + " s"),
        ("the same run's maps, once scrolled to", "", spread(maps, 2) + " s"),
        ("a budget moved, 8 variants, from the slider's stop to the maps", "0.3 s", spans[0]),
        ("the same, from its release to the first word of an answer", "0.7 s", spans[1]),
        ("a plain run of the same, its prompt read before, to the last word", "", spans[2]),
        ("frames while zooming 131,072 positions, 3 kept sets", "fluid", frame_text),
    ]


def main() -> None:
    """Measure in a data folder of its own, with the models that are prepared already."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").symlink_to(home_folder() / "models", target_is_directory=True)
        rows = measure(home, options.rounds)
    table("The app in headless Chromium", ("what", "target", "measured, median (range)"), rows)


if __name__ == "__main__":
    main()
