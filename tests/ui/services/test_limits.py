"""Each limit: what fits is taken, one more is refused with a sentence."""

import base64
import json
from dataclasses import fields, replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from ckv_core.errors import CkvError
from ckv_core.experiment.result_json import to_json
from storage.models import Run
from tests.factories.app import ENDLESS, SLUG, FakeServices, end_of, finished, script
from tests.ui.run.test_routes import client
from ui.accounts.access import Viewer, acting_as
from ui.limits import OF_A_REQUEST, Limits
from ui.settings import Settings


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


def test_services_hold_users_to_their_limits(limited):
    services = limited("ann", "bob", queue=3, queue_per_user=1, runs=2)
    with acting_as(Viewer(user="ann")):
        first = services.start_run(script(ENDLESS))
        with pytest.raises(CkvError, match="1 unfinished"):
            services.start_run(script("steps 1"))
        with pytest.raises(CkvError, match="at most 1,024"):
            services.start_run(replace(script("steps 1"), max_new_tokens=1025))
    with acting_as(Viewer(user="bob")):
        services.start_run(script("steps 1"))
    with acting_as(Viewer(user="ann")):
        services.cancel_run(first)
        end_of(services, first)
        finished(services, "steps 1")
        with pytest.raises(CkvError, match="2 runs are saved"):
            services.start_run(script("steps 1"))


def test_deleting_makes_room_for_a_run_and_undo_has_to_find_room_too(limited):
    services = limited(runs=2)
    first, second = (finished(services, "steps 1") for _ in range(2))
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.start_run(script("steps 1"))
    services.library.delete([first])
    assert services.count_by_state() == {"done": 1}
    assert services.library.restore([first]) == 1
    services.library.delete([first])
    finished(services, "steps 1")
    with pytest.raises(CkvError, match="2 runs are saved"):
        services.library.restore([first])
    services.library.delete([second])
    assert services.library.restore([first]) == 1


def test_what_can_no_longer_be_restored_is_gone_when_a_run_starts(services, monkeypatch):
    first = finished(services, "steps 1")
    services.library.delete([first])
    monkeypatch.setattr("ui.services.library.UNDO", timedelta(0))
    finished(services, "steps 1")
    with services._database.read() as session:
        assert first not in session.scalars(select(Run.slug)).all()


def test_imported_runs_count_and_the_one_too_many_is_refused(limited):
    services = limited(runs=2)
    slugs = [finished(services, "steps 1") for _ in range(2)]
    assert services.import_bundle(services.export_bundle(slugs)).skipped == slugs
    result = json.dumps(to_json(services.snapshot(slugs[0]).result)).encode()
    with pytest.raises(CkvError, match="Nothing was imported: 1 more would make over 2 saved runs"):
        services.import_bundle(result)


def test_every_limit_is_shown():
    limits = Limits(**{field.name: 3 + i for i, field in enumerate(fields(Limits))})
    shown = {value.split()[0] for _, value in limits.rows(with_logins=True)}
    values = {str(getattr(limits, field.name)) for field in fields(Limits)}
    assert shown == values | {f"{value:,}" for value in OF_A_REQUEST.values()}
