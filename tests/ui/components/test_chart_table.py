"""Every chart as a table: what the picture shows stands in it, as numpy has it."""

import json

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.factories.runs import analysed, sweep_result
from ui.charts.catalog import CHARTS
from ui.components.modules import joined

TABLE = "ui/components/run_charts/chart_table.js"
SCRIPT = f'{joined([TABLE])}\nreturn MODULES["{TABLE}"];'


def table(page: Page, figure: str) -> list[list[str]]:
    """Cells of a figure's table, its head first; none where it has no table."""
    return page.evaluate(
        """([script, figure]) => {
          const {chartTable} = new Function(script)();
          const found = chartTable(JSON.parse(figure), "Chart", () => "");
          if (!found) return [];
          const texts = (row) => [...row.cells].map((cell) => cell.textContent);
          return [...found.querySelectorAll("tr")].map(texts);
        }""",
        [SCRIPT, figure],
    )


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_that_has_data_is_a_table_with_a_row_of_figures(page, name):
    results = [result for result in (analysed(), sweep_result()) if CHARTS[name].has_data(result)]
    for result in results:
        head, *rows = table(page, CHARTS[name].figure(result, {}).to_json())
        assert rows
        assert all(len(row) == len(head) for row in rows)
        assert any(any(sign.isdigit() for sign in cell) for row in rows for cell in row[1:])


def test_lines_are_columns_by_layer_and_cells_of_a_map_stand_in_their_place(page):
    result = analysed()
    head, *rows = table(page, CHARTS["layers"].figure(result, {"quantity": "head_l1"}).to_json())
    assert head[0] == "layer"
    assert len(rows) == result.model.layers
    lines = CHARTS["layers"].figure(result, {"quantity": "head_l1"}).data
    for at, line in enumerate(lines, 1):
        got = [float(row[at]) if row[at] != "\u2013" else np.nan for row in rows]
        np.testing.assert_allclose(got, line.y, rtol=1e-3)
    chosen = {"quantity": "head_l1", "against": "value"}
    figure = CHARTS["heads"].figure(result, chosen)
    _, *rows = table(page, figure.to_json())
    np.testing.assert_allclose(
        [[float(cell) for cell in row[1:]] for row in rows], figure.data[0].z, rtol=1e-3
    )


def test_names_of_the_axes_intervals_words_and_places_of_their_own(page):
    def points(*traces: dict, **layout: object) -> list[list[str]]:
        axes = {"xaxis": {"title": {"text": "budget"}}, "yaxis": {"title": {"text": "score"}}}
        return table(page, json.dumps({"data": traces, "layout": axes | layout}))

    bars = {"array": [0.1, None], "arrayminus": [0.2, None]}
    line = {"x": [10, 20], "y": [0.5, 1234567], "name": "a &lt;b&gt;", "error_y": bars}
    band = {"x": [10], "y": [9], "mode": "none"}
    got = [["budget", "a <b>"], ["10", "0.5 (0.3 to 0.6)"], ["20", "1,234,567"]]
    assert points(line, band) == got
    flat = {"x": [3], "y": [0], "orientation": "h", "name": "share"}
    named = {"tickvals": [0], "ticktext": ["step,<br>one"]}
    assert points(flat, yaxis=named)[1] == ["step, one", "3"]
    words = {"x": [5], "y": [0], "name": "SnapKV", "customdata": ["yes"]}
    assert points(words, yaxis=named) == [["budget", "SnapKV"], ["5", "yes"]]
    apart = [{"x": [at, at + 0.5, at + 0.7], "y": [1, 2, 3], "name": f"m{at}"} for at in range(4)]
    assert points(*apart)[:3] == [["", "budget", "score"], ["m0", "0", "1"], ["m0", "0.5", "2"]]
    assert len(points({"x": list(range(900)), "y": list(range(900)), "name": "n"})) == 501
    assert points(band) == []
