"""No way in without a login, from another site, or by a path that climbs out of its folder."""

import http.client
from urllib.parse import urlsplit

import pytest
from starlette.websockets import WebSocketDisconnect

from tests.factories.app import SLUG, FakeServices, script
from tests.ui.run.test_routes import client
from tests.ui.served_app import Served, by
from ui.server.identity import SESSION_COOKIE
from ui.server.rules import RULES, rule_of
from ui.services.library import COOKIES
from ui.settings import Settings

PUBLIC = {"CKV_HOST": "0.0.0.0", "CKV_AUTH": "none"}


def test_what_is_open_tells_nothing(app):
    with app.client() as nobody:
        assert nobody.get("/healthz").json() == {"ok": True}
        assert nobody.get("/gradio_api/startup-events").status_code == 200
        assert nobody.get(f"/s/{SLUG}").status_code == 404


def test_forged_share_cookies_open_nothing(app):
    with app.client(cookies={f"ckv_share_{SLUG}": "x" * 43, "ckv_share_": ""}) as nobody:
        for path in (*RULES, f"/data/{SLUG}/prompt"):
            if rule_of(path).who != "guest":
                continue
            assert nobody.get(path).status_code == 401, path


def test_the_link_after_sixteen_others_opens(app):
    with by("ann"):
        slug = app.services.start_run(script("steps 1"))
        token = app.services.shares.create(slug, "1 day")
    old = {f"ckv_share_oldrun{i:02}": "x" * 43 for i in range(COOKIES)}
    with app.client(cookies=old) as client:
        opened = client.get(f"/s/{token}")
    gone = [each for each in opened.headers.get_list("set-cookie") if "Max-Age=0" in each]
    assert [each.partition("=")[0] for each in gone] == ["ckv_share_oldrun00"]
    with app.client(cookies=old | {f"ckv_share_{slug}": token}) as client:
        assert client.get(f"/run?id={slug}").status_code == 200


def test_no_socket_is_opened():
    with (
        pytest.raises(WebSocketDisconnect),
        client(FakeServices()).websocket_connect("/gradio_api/queue/join"),
    ):
        pass


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=http://127.0.0.1/x",
        "/gradio_api/file=HTTPS://evil.example/x",
        "/gradio_api/proxy=http://evil.example",
        "/gradio_api/upload",
    ],
)
def test_the_app_fetches_no_url_for_a_client(path):
    assert client(FakeServices()).get(path).status_code == 403


# --- hosts and origins ----------------------------------------------------------------------


def ask(settings: dict[str, str], host: str, method: str = "POST", **headers: str) -> int:
    """Status of a request; the app reads no other header than the guard."""
    routes = client(FakeServices(), Settings.from_environ(settings))
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = "/echo" if method == "POST" else "/plotly.js"
    return routes.request(method, path, headers={"host": host, **named}).status_code


FROM_A_LINK = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://lab.example"}, 200),
        ({"origin": "https://lab.example:443"}, 200),
        ({"origin": "https://lab.example:8443"}, 403),
        ({"origin": "https://lab.example:x"}, 403),
        ({"origin": "https://lab.example", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "https://lab.example", "sec_fetch_site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://evil.example", "x_forwarded_host": "evil.example"}, 403),
        ({"origin": "https://evil.example", "sec_fetch_site": "same-origin"}, 403),
        ({"origin": "https://lab.example.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "same-origin"}, 200),
        ({"sec_fetch_site": "none"}, 200),
        ({**FROM_A_LINK, "sec_fetch_dest": "iframe"}, 403),
        ({}, 200),
    ],
)
def test_a_served_app_takes_no_request_from_another_site(method, headers, status):
    assert ask(PUBLIC, "lab.example", method, **headers) == status


def test_a_link_on_another_page_may_be_followed():
    link = {**FROM_A_LINK, "sec_fetch_dest": "document"}
    assert ask(PUBLIC, "lab.example", "GET", **link) == 200
    assert ask(PUBLIC, "lab.example", "POST", **link) == 403
    assert ask(PUBLIC, "lab.example", "GET", **link, origin="https://evil.example") == 403


def test_a_space_may_be_shown_in_the_page_of_its_host():
    space = {"SPACE_ID": "a/b", "SPACE_HOST": "a-b.hf.space"}
    frame = {**FROM_A_LINK, "sec_fetch_dest": "iframe"}
    assert ask(space, "a-b.hf.space", "GET", **frame) == 200
    assert ask(space, "a-b.hf.space", "POST", **frame) == 403
    assert ask(space, "10.0.0.7:7860", "POST", origin="https://a-b.hf.space") == 200
    headers = client(FakeServices(), Settings.from_environ(space)).get("/healthz").headers
    assert "frame-ancestors 'self' https://huggingface.co" in headers["content-security-policy"]


NAMED = PUBLIC | {"CKV_ALLOWED_HOSTS": "lab.example, other.example"}
LOCAL = {"CKV_ALLOWED_HOSTS": "lab.example"}


@pytest.mark.parametrize(
    ("settings", "host", "headers", "status"),
    [
        # A page on another port of this machine is another site; a proxy hands its port on.
        ({}, "localhost:7860", {"origin": "http://localhost:7860"}, 200),
        ({}, "localhost:7860", {"origin": "http://localhost:8888"}, 403),
        ({}, "localhost:7860", {"origin": "http://localhost"}, 403),
        ({}, "127.0.0.1:7860", {"origin": "http://localhost:7860"}, 403),
        ({}, "[::1]:7860", {"origin": "http://[::1]:7860"}, 200),
        (PUBLIC, "lab.example:8443", {"origin": "https://lab.example:8443"}, 200),
        # A served app answers to the names that it was given, one on loopback to this machine's.
        *((NAMED, host, {}, 200) for host in ("lab.example", "other.example:7860", "localhost")),
        (NAMED, "evil.example", {}, 403),
        (NAMED, "lab.example", {"origin": "https://other.example"}, 403),
        (LOCAL, "lab.example", {}, 200),
        *(({}, host, {}, 403) for host in ("lab.example", "127.0.0.1.evil.example", "", "[")),
        ({}, "lab.example", {"x_forwarded_host": "localhost"}, 403),
    ],
)
def test_an_app_answers_to_its_names_and_ports_alone(settings, host, headers, status):
    assert ask(settings, host, **headers) == status


def test_the_running_app_tells_other_sites_nothing(app):
    """Gradio has a policy of its own, which would let them in."""
    there = {"origin": "http://127.0.0.1:1", "access-control-request-method": "POST"}
    with app.client("ann") as ann:
        for method, path in (("GET", "/config"), ("OPTIONS", "/gradio_api/queue/join")):
            answer = ann.request(method, path, headers=there)
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]
        own = ann.get("/config", headers={"origin": app.url})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers


def test_a_balancer_may_ask_by_any_address_whether_the_app_lives():
    routes = client(FakeServices(), Settings.from_environ(NAMED))
    answer = routes.get("/healthz", headers={"host": "kv.other.example"})
    assert (answer.status_code, answer.json()) == (200, {"ok": True})
    assert routes.get("/plotly.js", headers={"host": "kv.other.example"}).status_code == 403


# --- headers --------------------------------------------------------------------------------


def test_refusals_carry_the_security_headers_too(app):
    with app.client() as nobody:
        for path in ("/", "/healthz", "/gradio_api/upload", f"/s/{SLUG}"):
            headers = nobody.get(path).headers
            assert "default-src 'self'" in headers["content-security-policy"]
            assert "frame-ancestors 'self'" in headers["content-security-policy"]
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


# --- paths that climb out of their folder, sent raw ------------------------------------------

# What /etc/passwd and app.py hold.
OF_FILES = ("root:", "import os", "from ui.")
PATHS = [
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file=../app.py",
    "/gradio_api/file=app.py",
    "/gradio_api/file=file:///etc/passwd",
    "/gradio_api/file/etc/passwd",
    "/file=/etc/passwd",
    "/assets/../../app.py",
    "/assets/..%2f..%2fapp.py",
    "/assets/%2e%2e%2f%2e%2e%2fapp.py",
    "/assets/..%5c..%5capp.py",
    "/assets/..%252f..%252fapp.py",
    "/assets//etc/passwd",
    "/static/..%2f..",
    "/static/..%2f..%2fapp.py",
    "/static/../../../../../../etc/passwd",
    "/svelte/..%2f..%2fapp.py",
    "/theme.css/..%2f",
    "/theme.css/..%2f..%2fapp.py",
    "/s/..%2f",
    "/s/..%2f..%2fetc%2fpasswd",
    "/r/..%2f",
    "/r/..%2f..%2fetc%2fpasswd",
    "/data/..%2f..%2fetc/prompt",
    "/data/..%2f..%2fetc%2fpasswd/table.csv",
    "/data/../../etc/passwd",
    "/several/..%2f..%2fetc,..%2fpasswd/means.csv",
]


def fetched(app: Served, path: str, redirects: int = 2) -> tuple[int, str]:
    """Status and text of one path as ann gets it; http.client sends it as it stands."""
    address, session = urlsplit(app.url), app.services.accounts.sign_in("ann")
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    try:
        connection.request("GET", path, headers={"Cookie": f"{SESSION_COOKIE}={session}"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    finally:
        connection.close()
    to = answer.headers.get("location", "")
    if not to or not redirects:
        return answer.status, text
    # A slash at the end may be taken off, and no more: not to another host.
    assert to.startswith(f"{app.url}/")
    return fetched(app, to.removeprefix(app.url), redirects - 1)


def test_ann_is_logged_in(app):
    assert fetched(app, "/healthz")[0] == 200
    assert fetched(app, "/runs")[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_a_file_outside(app, path):
    status, text = fetched(app, path)
    assert 400 <= status < 500
    assert not [each for each in OF_FILES if each in text]
