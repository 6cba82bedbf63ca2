"""Frame times at 128k positions; reported with --log-cli-level=INFO, not judged."""

import logging
from collections.abc import Callable

import pytest

from tests.ui.components.components_lab import View, large_run

LOGGER = logging.getLogger(__name__)
pytestmark = pytest.mark.slow

ZOOM_AND_HOVER = """async () => {
  const canvas = document.querySelector('#kept .ckv-map-top');
  const box = canvas.getBoundingClientRect();
  const frames = [], draws = [];
  const at = (name, more) => {
    const place = {clientX: box.left + box.width * 0.6, clientY: box.top + 60};
    const Kind = name === 'wheel' ? WheelEvent : PointerEvent;
    canvas.dispatchEvent(new Kind(name, {...place, bubbles: true, cancelable: true, ...more}));
  };
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const holder = document.querySelector('#kept [data-draw-ms]');
  let last = await next();
  for (let i = 0; i < 90; i += 1) {
    if (i < 60) at('wheel', {deltaY: i < 30 ? -120 : 120, ctrlKey: true});
    else at('pointermove', {clientX: box.left + 40 + i * 2});
    const now = await next();
    frames.push(now - last);
    draws.push(+holder.dataset.drawMs);
    last = now;
  }
  return {frames, draws};
}"""


def test_128k_positions_32_layers_8_heads_4_variants(open_view: Callable[..., View]) -> None:
    view = open_view()
    view.show_kept(large_run())
    result = view.page.evaluate(ZOOM_AND_HOVER)
    for name in ("frames", "draws"):
        times = sorted(result[name])
        middle, worst = times[len(times) // 2], times[-1]
        LOGGER.info("%s: median %.1f ms, worst %.1f ms", name, middle, worst)
    where = view.page.locator("#kept .ckv-where").inner_text()
    assert "of 131,072" in where
    spans = view.page.locator("#kept .t").count()
    assert 0 < spans < 4000
    box = view.page.get_by_role("searchbox", name="Search the prompt")
    box.fill("rare names")
    view.page.locator("#kept .ckv-count", has_text="1 of").wait_for()
