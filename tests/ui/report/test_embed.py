"""One panel of a run alone: what it holds, who gets it, and how another site's page frames it."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.factories.app import (
    SLUG,
    FakeServices,
    finished,
    running,
    store_study,
    sweep_snapshot,
)
from tests.factories.runs import done_result, sweep_result
from tests.ui.report_reading import opened, run
from tests.ui.run.test_routes import client
from tests.ui.served_app import by
from ui.report.routes import NO_PANEL, NOT_YET, PANELS, POLICY

FRAMED = {
    "sec-fetch-site": "cross-site",
    "sec-fetch-mode": "navigate",
    "sec-fetch-dest": "iframe",
    "accept": "text/html",
}


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_is_one_section_without_what_others_need(name):
    answer = client(FakeServices(run())).get(f"/data/{SLUG}/embed/{name}")
    found = opened(answer.content)
    assert [section["name"] for section in found.page["sections"]] == [PANELS[name][0]]
    assert found.page["whole"] == f"/run?id={SLUG}"
    assert any(path.endswith("/retained") for path in found.files) == (name == "map")
    assert not any("figure" in path or path == "plotly" for path in found.files)
    policies = answer.headers.get_list("content-security-policy")
    assert policies[0] == POLICY
    assert "frame-ancestors 'self'" in policies[1]


def test_several_budgets_show_their_grid_and_the_maps_of_the_chosen_one():
    result = sweep_result(generated=True)
    full, *points = result.variants
    kept = done_result().variants[1].retained
    points = [replace(point, retained=kept) for point in points]
    swept = sweep_snapshot(result=replace(result, variants=[full, *points]))
    routes = client(FakeServices(swept))
    grid, maps = (
        opened(routes.get(f"/data/{swept.slug}/embed/{name}").content)
        for name in ("answers", "map")
    )
    shown = [each["component"]["name"] for each in grid.section("grid")["components"]]
    assert shown == ["grid", "chosen-cell"]
    assert [each["name"] for each in maps.page["sections"]] == ["kept"]
    assert sum(path.endswith("/retained") for path in maps.files) == len(points)


def test_many_samples_show_their_decision_scores_and_needles(app):
    with by("ann"):
        slug = store_study(app.services, owner="ann")
        token = app.services.shares.create(slug, "1 day")
    found = {}
    with app.client() as nobody:
        for name in PANELS:
            answer = nobody.get(f"/s/{token}?embed={name}", headers=FRAMED)
            found[name] = opened(answer.content)
    sections = {name: [each["name"] for each in of.page["sections"]] for name, of in found.items()}
    assert sections == {"verdict": ["verdict"], "answers": ["scores"], "map": ["needles"]}
    assert found["verdict"].value("verdict")["headline"].startswith("Cannot tell yet")
    assert any("figure/needles" in path for path in found["map"].files)


def test_there_is_none_of_another_name_or_of_a_run_that_goes_on():
    routes = client(FakeServices(run()))
    assert routes.get(f"/data/{SLUG}/embed/prompt").text == NO_PANEL
    early = client(FakeServices(running())).get(f"/data/{SLUG}/embed/map")
    assert (early.status_code, early.text) == (404, NOT_YET)


def test_a_share_link_answers_in_any_frame_and_leaves_nothing_there(app):
    """A run's own address does so for nobody, nor does the link without `embed`."""
    with by("ann"):
        slug = finished(app.services, "steps 1")
        token = app.services.shares.create(slug, "1 day")
    address = f"/s/{token}?embed=answers"
    with app.client() as nobody:
        answer = nobody.get(address, headers=FRAMED)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
        assert "frame-ancestors *" in answer.headers.get_list("content-security-policy")[1]
        assert opened(answer.content).page["whole"] == f"/s/{token}"
        assert nobody.get(f"/s/{token}?embed=", headers=FRAMED).status_code == 404
        assert nobody.get(f"/s/{token}", headers=FRAMED).status_code == 403
        assert nobody.get(f"/run?id={slug}&embed=answers", headers=FRAMED).status_code == 403
        assert nobody.get(f"/data/{slug}/embed/answers").status_code in (303, 401)
        assert nobody.post(address, headers=FRAMED).status_code == 403
    with by("ann"):
        link = app.services.shares.of_run(slug)[0]
        app.services.shares.revoke(slug, link.id)
    with app.client() as nobody:
        assert nobody.get(address, headers=FRAMED).status_code == 404
    with app.client("ann") as ann:
        moved = ann.get(f"/run?id={slug}&embed=answers")
        assert moved.headers["location"] == f"/data/{slug}/embed/answers"


def fulfil(route: Route, **answer: Any) -> None:
    route.fulfill(**answer)


def test_in_another_sites_frame_maps_are_drawn_and_a_private_panel_is_not(browser, faults):
    faults.expect("frame-ancestors", "net::ERR_")
    answer = client(FakeServices(run())).get(f"/data/{SLUG}/embed/map")
    sandbox, guards = answer.headers.get_list("content-security-policy")
    page = browser.new_context(viewport={"width": 1000, "height": 800}).new_page()
    frames = ""
    for name, ancestors in (("shared", "*"), ("private", "'self'")):
        policy = guards.replace("frame-ancestors 'self'", f"frame-ancestors {ancestors}")
        headers = {"content-type": "text/html", "content-security-policy": f"{sandbox}, {policy}"}
        reply = partial(fulfil, body=answer.content, headers=headers)
        page.route(f"http://lab.test/{name}", reply)
        frames += f'<iframe name="{name}" src="http://lab.test/{name}" width="900"></iframe>'
    blog = {"body": frames, "content_type": "text/html"}
    page.route("http://blog.test/", lambda route: route.fulfill(**blog))
    page.goto("http://blog.test/")
    inside = page.frame("shared")
    rows = inside.locator(".ckv-map-row[data-variant]")
    expect(rows).to_have_count(2)
    rows.nth(1).get_by_role("button").click()
    chosen = inside.locator(".ckv-evidence tr[aria-selected=true]")
    expect(chosen).to_have_attribute("data-variant", "2")
    expect(inside.get_by_role("link", name="Open the whole result")).to_be_visible()
    assert inside.evaluate("origin") == "null"
    assert inside.locator("header, .ckv-sections").count() == 0
    assert page.frame("private").locator(".ckv-map-row").count() == 0
    page.context.close()
