"""The pictures of the documents, taken from the running app: slider, maps, grid and needles.

The runs are real, on the default model, in a data folder of their own.
"""

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gradio_client import Client
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page

from benchmarks.app_bench import DRAG, running_app
from benchmarks.setting import ROOT
from ckv_core.base.home import home_folder
from tests.browser import chromium

FOLDER = ROOT / "docs" / "images"
TEXT = ROOT / "assets" / "examples" / "harbour_report.txt"
QUESTION, ANSWER = "What is the access code for pump house 4?", "5829"
METHODS = ["full", "snapkv", "snapkv+critical", "adakv", "kvzip"]
STOPS = (20, 26, 32, 38, 44, 50, 44, 38, 32, 26)  # percent; the last leads back to the first
WIDTH, HEIGHT = 1200, 1800
FRAME_MS, MOST_BYTES = 1100, 3 * 2**20
MARGIN, RADIUS = 12, 14  # pixels
# What docs/how-to/read_a_result.md numbers, from top to bottom.
PARTS = (
    "#verdict",
    ".ckv-live",
    "#answers table",
    "#next-steps",
    "#kept",
    "#kept .ckv-evidence",
    "#charts-line",
    "#figures-line",
    "#receipts-line",
)
EVIDENCE = "#kept .ckv-evidence"


def finished(client: Client, **settings: object) -> str:
    """Start a run, wait for its end; its slug."""
    text = TEXT.read_text(encoding="utf-8")
    common = {"question": QUESTION, "answer": ANSWER, "max_new_tokens": 24}
    slug = client.predict(text, **common, **settings, api_name="/compare")["slug"]
    while not (run := client.predict(slug, wait_s=60, api_name="/get_run"))["over"]:
        pass
    if run["state"] != "done":
        raise SystemExit(f"The run ended as {run['state']}: {run['reason']}")
    return str(slug)


def between(page: Page, first: str, last: str) -> Image.Image:
    """The page in its whole width from the top of one part to the end of another."""
    top, bottom = (page.locator(part).first.bounding_box() for part in (first, last))
    if top is None or bottom is None:
        raise SystemExit(f"{first} or {last} is not on the page.")
    height = bottom["y"] + bottom["height"] - top["y"] + 2 * MARGIN
    clip = {"x": 0, "y": top["y"] - MARGIN, "width": WIDTH, "height": height}
    return Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")


def opened(page: Page, url: str, slug: str, sign: str) -> None:
    page.goto(f"{url}/run?id={slug}&__theme=light")
    page.locator(sign).first.wait_for()
    page.wait_for_timeout(2000)  # fonts and the last layout


def moving(page: Page, path: Path) -> None:
    """The table of answers and the maps at each stop of the slider, as one animation."""
    frames: list[Image.Image] = []
    for stop in STOPS:
        if frames:
            page.evaluate(DRAG, stop)
            page.wait_for_function(
                "document.querySelector('.ckv-live').dataset.state === 'preview'"
            )
            page.wait_for_timeout(1500)  # the answers go on after their first word
        frames.append(between(page, "#answers", EVIDENCE))
    height = min(frame.height for frame in frames)
    size = (WIDTH * 4 // 5, height * 4 // 5)
    small = [frame.crop((0, 0, WIDTH, height)).resize(size).quantize(256) for frame in frames]
    small[0].save(path, save_all=True, append_images=small[1:], duration=FRAME_MS, loop=0)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes; fewer stops are needed.")


def numbered(page: Page, path: Path) -> None:
    """The whole result page, its parts numbered as docs/how-to/read_a_result.md explains them."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    draw, font = ImageDraw.Draw(shot), ImageFont.load_default(22)
    for number, part in enumerate(PARTS, 1):
        box = page.locator(part).first.bounding_box()
        if box is None:
            raise SystemExit(f"{part} is not on the page.")
        x, y = RADIUS + 2, box["y"] + RADIUS
        draw.ellipse((x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS), fill="#b3261e")
        draw.text((x, y), str(number), fill="white", font=font, anchor="mm")
    shot.resize((shot.width * 4 // 5, shot.height * 4 // 5)).quantize(256).save(path, optimize=True)


def main() -> None:
    """Take all pictures, with the models that are prepared already."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").symlink_to(home_folder() / "models", target_is_directory=True)
        study = [sys.executable, "-m", "cli", "run", str(ROOT / "examples" / "needles.yaml")]
        subprocess.run(study, env={**os.environ, "CKV_HOME": str(home)}, cwd=ROOT, check=True)
        with running_app(home) as (url, _), chromium() as browser:
            client = Client(url, verbose=False)
            one = finished(client, variants=METHODS, budget="20%")
            several = finished(client, variants=METHODS, budget="5%, 10%, 20%, 30%, 40%, 50%")
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            opened(page, url, one, "#kept .ckv-map-top")
            between(page, "#kept", EVIDENCE).save(FOLDER / "kept.png", optimize=True)
            numbered(page, FOLDER / "result.png")
            moving(page, FOLDER / "slider.gif")
            opened(page, url, several, "#point-kept .ckv-map-top")
            between(page, "#verdict", "#chosen-cell").save(FOLDER / "grid.png", optimize=True)
            (needles,) = client.predict(text="needles", api_name="/list_runs")["runs"]
            opened(page, url, needles["slug"], "#study-bound .js-plotly-plot")
            between(page, "#verdict", "#study-bound").save(FOLDER / "needles.png", optimize=True)
    for path in sorted(FOLDER.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
