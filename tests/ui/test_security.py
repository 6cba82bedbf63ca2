"""Nobody gets anywhere without a login, and nothing from another site is taken."""

import re

import pytest
from starlette.routing import Mount, Route
from starlette.websockets import WebSocketDisconnect

from tests.ui.page_fakes import SLUG, FakeServices
from tests.ui.scripted_services import request
from tests.ui.served_app import by, served
from tests.ui.test_routes import client
from ui.middleware import SHARE_PATHS
from ui.settings import Settings
from ui.shares import COOKIES

OPEN = {"/healthz", "/readyz", "/gradio_api/startup-events"}
BLOCKED = re.compile(r"/gradio_api/(file=http|file/http|proxy=|upload|deep_link)")
PUBLIC = {"CKV_HOST": "0.0.0.0", "CKV_ALLOW_ANONYMOUS": "1"}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with served(tmp_path_factory.mktemp("security")) as app:
        yield app


def every_route(routes, prefix="") -> list[tuple[str, str]]:
    """Method and an address for each route of the table, mounted and included ones too."""
    found = []
    for route in routes:
        inner = getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", None
        )
        path = prefix + getattr(route, "path", "")
        if isinstance(route, Mount) or (inner and not isinstance(route, Route)):
            found += every_route(inner or [], path if isinstance(route, Mount) else prefix)
            continue
        path = re.sub(r"\{[^}]*:int\}", "0", path)
        path = re.sub(r"\{[^}]*\}", "abc123def456", path)
        found += [(method, path) for method in sorted(getattr(route, "methods", None) or {"GET"})]
    return found


def test_anonymous_access_to_every_route_is_refused(app):
    table = every_route(app.routes)
    assert len(table) > 60, "the table was not walked"
    known = {path for _, path in table}
    assert {"/", "/run", "/config", f"/data/{SLUG}/prompt", "/metrics"} <= known
    assert "/gradio_api/queue/join" in known
    answers = {}
    with app.client() as nobody:
        for method, path in table:
            if path in OPEN or path.startswith("/s/"):
                continue
            answer = nobody.request(method, path)
            refused = answer.status_code == (403 if BLOCKED.match(path) else 401)
            if not refused:
                answers[method, path] = answer.status_code
            assert "ckv" not in answer.text.lower(), path
    assert answers == {}


def test_what_is_open_tells_nothing(app):
    with app.client() as nobody:
        assert nobody.get("/healthz").json() == {"ok": True}
        assert nobody.get("/readyz").status_code in (200, 503)
        assert len(nobody.get("/readyz").text) < 100
        assert nobody.get("/gradio_api/startup-events").status_code == 200
        assert nobody.get(f"/s/{SLUG}").status_code == 404


def test_forged_share_cookies_open_nothing(app):
    with app.client(cookies={f"ckv_share_{SLUG}": "x" * 43, "ckv_share_": ""}) as nobody:
        for path in (*SHARE_PATHS, f"/data/{SLUG}/prompt"):
            assert nobody.get(path).status_code == 401, path


def test_the_link_after_sixteen_others_opens(app):
    with by("ann"):
        slug = app.services.start_run(request("steps 1"))
        token = app.services.shares.create(slug, "1 day")
    old = {f"ckv_share_oldrun{i:02}": "x" * 43 for i in range(COOKIES)}
    with app.client(cookies=old) as client:
        opened = client.get(f"/s/{token}")
    gone = [each for each in opened.headers.get_list("set-cookie") if "Max-Age=0" in each]
    assert [each.partition("=")[0] for each in gone] == ["ckv_share_oldrun00"]
    with app.client(cookies=old | {f"ckv_share_{slug}": token}) as client:
        assert client.get("/run").status_code == 200


def test_every_path_that_a_share_opens_exists(app):
    known = {path for _, path in every_route(app.routes)}
    assert {path for path in SHARE_PATHS if path != "/gradio_api/run/predict"} <= known


def test_guessing_is_answered_with_a_time_to_wait(app):
    with app.client() as eve:
        answers = [eve.get("/", auth=("eve", f"guess {i}")) for i in range(7)]
    assert [answer.status_code for answer in answers[:5]] == [401] * 5
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_no_socket_is_opened():
    with (
        pytest.raises(WebSocketDisconnect),
        client(FakeServices()).websocket_connect("/gradio_api/queue/join"),
    ):
        pass


# --- hosts and origins ----------------------------------------------------------------------


def post(settings: dict[str, str], host: str, **headers: str) -> int:
    routes = client(FakeServices(), Settings.from_environ(settings))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return routes.post("/echo", headers={"host": host, **named}).status_code


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://lab.example"}, 200),
        ({"origin": "https://lab.example:443"}, 200),
        ({"origin": "https://lab.example:8443"}, 403),
        ({"origin": "https://lab.example:x"}, 403),
        ({"origin": "https://public.example", "x_forwarded_host": "public.example"}, 200),
        ({"origin": "https://lab.example", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "https://lab.example", "sec_fetch_site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://lab.example.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_a_served_app_takes_no_post_from_another_site(headers, status):
    assert post(PUBLIC, "lab.example", **headers) == status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:7860", "http://localhost:7860", 200),
        ("localhost:7860", "http://localhost:8888", 403),
        ("localhost:7860", "http://localhost", 403),
        ("127.0.0.1:7860", "http://localhost:7860", 403),
        ("[::1]:7860", "http://[::1]:7860", 200),
    ],
)
def test_a_page_on_another_port_of_this_machine_is_another_site(host, origin, status):
    assert post({}, host, origin=origin) == status


def test_a_proxy_on_another_port_hands_the_port_on():
    assert post(PUBLIC, "lab.example:8443", origin="https://lab.example:8443") == 200


def test_a_served_app_answers_only_to_the_names_it_was_given():
    named = PUBLIC | {"CKV_ALLOWED_HOSTS": "lab.example, other.example"}
    for host in ("lab.example", "other.example:7860", "localhost"):
        assert post(named, host) == 200
    assert post(named, "evil.example") == 403
    assert post(named, "lab.example", origin="https://other.example") == 200
    assert post(named, "lab.example", origin="https://evil.example") == 403


def test_a_proxy_on_this_machine_may_use_its_own_name():
    assert post({"CKV_ALLOWED_HOSTS": "lab.example"}, "lab.example") == 200
    assert post({}, "lab.example") == 403


def test_reading_is_not_bound_to_an_origin():
    routes = client(FakeServices(), Settings.from_environ(PUBLIC))
    answer = routes.get("/healthz", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


# --- headers --------------------------------------------------------------------------------


def test_refusals_carry_the_security_headers_too(app):
    with app.client() as nobody:
        for path in ("/", "/healthz", "/gradio_api/upload", f"/s/{SLUG}"):
            headers = nobody.get(path).headers
            assert "default-src 'self'" in headers["content-security-policy"]
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "camera=()" in headers["permissions-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"


def test_browsers_are_held_to_https_only_where_it_is_used():
    routes = client(FakeServices())
    assert "strict-transport-security" not in routes.get("/healthz").headers
    secure = routes.get("https://127.0.0.1/healthz")
    assert "max-age=" in secure.headers["strict-transport-security"]
