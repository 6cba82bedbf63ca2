"""The fidelity strip in a real browser: its cells, its keys, its candidates, its failures."""

from collections.abc import Callable

from playwright.sync_api import expect

from tests.ui.components.components_lab import HOSTILE, View, card

ADDRESS = "/data/strip/1/forced"
STRIP = {
    "tokens": ["The", " code", HOSTILE],
    "top1": [1, 1, 0],
    "kl": [0.0, 0.02, 2.5],
    "rank": [1, 1, 4],
    "steps": [
        {"full": [{"text": text, "probability": 0.9}], "variant": [{"text": "x", "probability": p}]}
        for text, p in ((" The", 0.5), (" code", 0.5), (HOSTILE, 0.0001))
    ],
}


def shown(open_view: Callable[..., View], **answer: object) -> View:
    view = open_view()
    view.page.route(f"**{ADDRESS}", lambda route: route.fulfill(**answer))
    cards = [
        card(0, "Full cache", ["The", " code"], reference=True, stopped="eos"),
        card(1, "SnapKV", ["The", " lock"], stopped="eos", first_difference=1, forced=ADDRESS),
    ]
    view.send(generations={"cards": cards, "answer": ""})
    return view


def test_arrows_tell_each_position_and_enter_opens_both_distributions(open_view):
    page = shown(open_view, json=STRIP).page
    box = page.get_by_role("listbox", name="Fidelity of SnapKV")
    expect(box.get_by_role("option")).to_have_count(3)
    told = page.locator(".ckv-strip-told:visible")
    expect(told).to_have_text(
        "Same first choice at 2 of n = 3 positions; first divergence at token 3."
    )
    box.focus()
    page.keyboard.press("Home")
    expect(told).to_contain_text("token 1")
    page.keyboard.press("End")
    expect(told).to_contain_text("KL 2.50 nats, rank 4, another first choice, first divergence")
    assert HOSTILE in told.inner_text()
    page.keyboard.press("Enter")
    detail = page.locator(".ckv-strip-detail:visible")
    expect(detail).to_contain_text("Candidates for token 3")
    expect(detail).to_contain_text("90%")
    expect(detail).to_contain_text("<0.1%")
    assert page.locator(".ckv-strip img").count() == 0
    page.keyboard.press("Escape")
    expect(detail).to_have_count(0)


def test_a_strip_that_cannot_be_fetched_says_so(open_view):
    view = shown(open_view, status=503)
    told = view.page.locator(".ckv-strip-told:visible")
    expect(told).to_have_text("The strip could not be fetched: the server answered 503.")
    view.faults[:] = [line for line in view.faults if "503" not in line]
