"""Each limit: what fits is taken, one more is refused with a sentence."""

from dataclasses import fields, replace

import pytest

from ckv_core.config import CompareRequest
from ckv_core.errors import CkvError, ConfigError
from storage.database import default_url, open_database
from tests.ui.page_fakes import FakeServices
from tests.ui.scripted_services import ENDLESS, end_of, make_client, request
from tests.ui.test_routes import client
from ui.access import Access, Viewer, acting_as
from ui.limits import Limits
from ui.services import Services
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
        access=Access(database, with_logins=True),
        limits=Limits(queue=3, queue_per_user=1, runs=2, new_tokens=64),
    )
    with acting_as(Viewer(user="ann")):
        first = services.start_run(request(ENDLESS))
        with pytest.raises(CkvError, match="1 unfinished"):
            services.start_run(request("steps 1"))
        with pytest.raises(CkvError, match="65 new tokens"):
            services.start_run(replace(request("steps 1"), max_new_tokens=65))
    with acting_as(Viewer(user="bob")):
        second = services.start_run(request("steps 1"))
    with acting_as(Viewer(user="ann")):
        services.cancel_run(first)
        end_of(services, first)
        end_of(services, services.start_run(request("steps 1")))
        with pytest.raises(CkvError, match="2 runs are saved"):
            services.start_run(request("steps 1"))
    with acting_as(Viewer(user="bob")):
        end_of(services, second)
    services.close()
    database.close()


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
