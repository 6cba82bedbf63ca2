"""Paths that climb out of their folder, sent raw to the served app: no file comes back."""

import base64
import http.client
from urllib.parse import urlsplit

import pytest

from tests.ui.served_app import Served

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
    address = urlsplit(app.url)
    login = base64.b64encode(b"ann:ann-secret").decode()
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
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
