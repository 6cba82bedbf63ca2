"""One visit of a stored run, with all that its page asks for at once, decodes the run once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from storage import repository
from tests.factories.app import request, store_run
from tests.factories.runs import done_result
from ui.charts.catalog import CHARTS
from ui.run.routes import TABLES


@pytest.fixture
def decodes(monkeypatch) -> list[object]:
    """One item for each time that a stored run is decoded."""
    seen: list[object] = []
    load = repository._load_result
    monkeypatch.setattr(repository, "_load_result", lambda *row: seen.append(1) or load(*row))
    return seen


def test_a_visit_with_its_charts_and_tables_decodes_a_run_once(open_app, decodes):
    result = done_result()
    slug = store_run(open_app.services, request(), result)
    figures = [f"figure/{name}" for name, chart in CHARTS.items() if chart.has_data(result)]
    assert len(figures) > 3
    parts = ["prompt", "1/retained", "result.json", "report.html", *figures]
    parts += [f"{name}.csv" for name in TABLES]
    with open_app.client() as client, ThreadPoolExecutor(8) as pool:
        # Harder than a visit: the page itself would decode the run before its charts ask.
        answers = list(pool.map(lambda part: client.get(f"/data/{slug}/{part}"), parts))
        assert client.get(f"/run?id={slug}").status_code == 200
    assert {answer.status_code for answer in answers} == {200}
    assert len(decodes) == 1
