"""Each limit: what fits is taken, one more is refused with a sentence."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from ckv_core.analysis.result_json import to_json
from ckv_core.errors import CkvError, ConfigError
from ckv_core.request.compare_request import CompareRequest
from ckv_core.request.external_selection import ExternalSelection
from storage.database import default_url, open_database
from storage.models import Run
from tests.factories.app import ENDLESS, SLUG, FakeServices, end_of, make_client, script
from tests.ui.run.test_routes import client
from tests.ui.served_app import USERS
from ui.accounts.access import Access, Viewer, acting_as
from ui.limits import Limits
from ui.services.services import Services
from ui.settings import Settings

SMALL = Limits(context_chars=10, variants=2, sweep_points=3, new_tokens=5)
FITS = CompareRequest(context="c" * 10, variants=("full", "snapkv"), max_new_tokens=5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"context": "c" * 11}, "takes 10"),
        ({"question": "q" * 11}, "takes 10"),
        ({"answer": "a" * 11}, "takes 10"),
        ({"follow_ups": ("q" * 11,)}, "takes 10"),
        ({"variants": ("full", "snapkv", "adakv")}, "takes 2 in one run"),
        ({"max_new_tokens": 6}, "up to 5"),
        ({"kind": "sweep", "variants": ("a", "b", "c", "d")}, "takes 3 in one sweep"),
    ],
)
def test_one_over_a_limit_of_the_request_is_refused(changes, sentence):
    SMALL.check(FITS)
    with pytest.raises(CkvError, match=sentence):
        SMALL.check(replace(FITS, **changes))


def test_own_positions_count_as_variants():
    own = ExternalSelection(label="mine", rows=())
    SMALL.check(replace(FITS, variants=("full",), own_indices=(own,)))
    with pytest.raises(CkvError, match="3 variants are too many"):
        SMALL.check(replace(FITS, own_indices=(own,)))


@pytest.mark.parametrize(
    ("password_chars", "more", "status"),
    # 1,022 and 1,026 characters are the base64 lengths around the limit of 1,024.
    [(758, "", 200), (758, "=" * 3, 401), (761, "", 401)],
)
def test_a_login_over_its_length_is_not_read(password_chars, more, status):
    password = "p" * password_chars
    routes = client(FakeServices(), Settings.from_environ({"CKV_AUTH": f"ann:{password}"}))
    header = f"Basic {base64.b64encode(f'ann:{password}'.encode()).decode()}{more}"
    assert (len(header) <= 1024) == (status == 200)
    address = f"/data/{SLUG}/prompt"
    assert routes.get(address, headers={"authorization": header}).status_code == status


def test_the_third_report_at_a_time_is_told_to_come_again(monkeypatch):
    started, go_on = threading.Semaphore(0), threading.Event()

    def build(*_):
        started.release()
        assert go_on.wait(20)
        return b"<html>"

    monkeypatch.setattr("ui.report.routes.build_report", build)
    address = f"/data/{SLUG}/report.html"
    routes = client(FakeServices())
    with ThreadPoolExecutor(2) as pool:
        drawn = [pool.submit(routes.get, address) for _ in range(2)]
        try:
            assert all(started.acquire(timeout=20) for _ in drawn)
            third = routes.get(address)
        finally:
            go_on.set()
        assert [each.result().status_code for each in drawn] == [200, 200]
    assert (third.status_code, third.headers["retry-after"]) == (503, "5")
    assert "Other reports are being made" in third.text
    assert routes.get(address).status_code == 200


def test_a_sweep_has_a_limit_of_its_own():
    SMALL.check(replace(FITS, kind="sweep", variants=("a", "b", "c")))


def test_the_queue_takes_so_many_and_no_more():
    limits = Limits(queue=3, queue_per_user=2)
    limits.check_queue(2, 1)
    limits.check_queue(2, None)
    with pytest.raises(CkvError, match="queue is full"):
        limits.check_queue(3, 0)
    with pytest.raises(CkvError, match="2 unfinished"):
        limits.check_queue(2, 2)


def test_services_hold_users_to_their_limits(tmp_path):
    database = open_database(default_url(tmp_path))
    services = Services(
        database,
        make_client=make_client,
        access=Access(database, USERS),
        limits=Limits(queue=3, queue_per_user=1, runs=2, new_tokens=64),
    )
    with acting_as(Viewer(user="ann")):
        first = services.start_run(script(ENDLESS))
        with pytest.raises(CkvError, match="1 unfinished"):
            services.start_run(script("steps 1"))
        with pytest.raises(CkvError, match="65 new tokens"):
            services.start_run(replace(script("steps 1"), max_new_tokens=65))
    with acting_as(Viewer(user="bob")):
        second = services.start_run(script("steps 1"))
    with acting_as(Viewer(user="ann")):
        services.cancel_run(first)
        end_of(services, first)
        end_of(services, services.start_run(script("steps 1")))
        with pytest.raises(CkvError, match="2 runs are saved"):
            services.start_run(script("steps 1"))
    with acting_as(Viewer(user="bob")):
        end_of(services, second)
    services.close()
    database.close()


def test_deleting_makes_room_for_a_run_and_undo_has_to_find_room_too(tmp_path):
    database = open_database(default_url(tmp_path))
    services = Services(database, make_client=make_client, limits=Limits(runs=2))
    first, second = (services.start_run(script("steps 1")) for _ in range(2))
    end_of(services, second)
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.start_run(script("steps 1"))
    services.library.delete([first])
    assert services.count_by_state() == {"done": 1}
    assert services.library.restore([first]) == 1
    services.library.delete([first])
    third = services.start_run(script("steps 1"))
    end_of(services, third)
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.library.restore([first])
    services.library.delete([second])
    assert services.library.restore([first]) == 1
    services.close()
    database.close()


def test_what_can_no_longer_be_restored_is_gone_when_a_run_starts(tmp_path, monkeypatch):
    database = open_database(default_url(tmp_path))
    services = Services(database, make_client=make_client)
    first = services.start_run(script("steps 1"))
    end_of(services, first)
    services.library.delete([first])
    monkeypatch.setattr("ui.services.library._UNDO", timedelta(0))
    end_of(services, services.start_run(script("steps 1")))
    with database.read() as session:
        assert first not in session.scalars(select(Run.slug)).all()
    services.close()
    database.close()


@pytest.fixture
def short(tmp_path):
    database = open_database(default_url(tmp_path))
    yield Services(database, make_client=make_client, limits=Limits(prompt_tokens=2, runs=2))
    database.close()


def test_a_prompt_over_the_token_limit_is_told_while_typing_and_fails_its_run(short):
    asked = script("steps 1")
    counted = short.count_tokens(asked)
    assert (counted.tokens, counted.error) == (
        3,
        "The prompt has 3 tokens; this app takes 2. Shorten the context.",
    )
    run = end_of(short, short.start_run(asked))
    assert (run.state, run.reason) == ("failed", counted.error)
    assert not run.result.variants[0].text
    fits = replace(asked, context="one two")
    assert not short.count_tokens(fits).error
    assert end_of(short, short.start_run(fits)).state == "done"
    short.close()


def test_imported_runs_count_and_the_one_too_many_is_refused(short):
    slugs = [short.start_run(replace(script("steps 1"), context="one")) for _ in range(2)]
    for slug in slugs:
        end_of(short, slug)
    bundle = short.export_bundle(slugs)
    assert short.import_bundle(bundle).skipped == slugs
    result = json.dumps(to_json(short.snapshot(slugs[0]).result)).encode()
    with pytest.raises(CkvError, match="Nothing was imported: 1 more would make over 2 saved runs"):
        short.import_bundle(result)
    short.close()


def test_the_body_limit_is_a_setting():
    settings = Settings.from_environ({"CKV_MAX_BODY_MIB": "1"})
    routes = client(FakeServices(), settings)
    assert routes.post("/echo", content=b"x" * 2**20).status_code == 200
    assert routes.post("/echo", content=b"x" * (2**20 + 1)).status_code == 413


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_every_limit_can_be_set_within_its_range(name):
    key = f"CKV_MAX_{name.upper()}"
    assert getattr(Limits.from_environ({key: "1"}), name) == 1
    for wrong in ("0", "-1", "1.5", "many", "²", "9" * 5000, "99999999999"):
        with pytest.raises(ConfigError, match=key):
            Limits.from_environ({key: wrong})


def test_every_limit_is_shown():
    limits = Limits(**{field.name: 3 + i for i, field in enumerate(fields(Limits))})
    shown = {value.split()[0] for _, value in limits.rows(with_logins=True)}
    assert shown == {str(getattr(limits, field.name)) for field in fields(Limits)}


def test_without_a_token_limit_the_model_decides():
    assert ("Tokens of a prompt", "as the model takes") in Limits().rows(with_logins=False)
    Limits().check_prompt(10**9)
