"""Whether a request comes from the app's own pages, or from another site that is open beside it.

Browsers tell by `Origin` and `Sec-Fetch-*`, which no page can set. Programs send neither.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ui.settings import Settings

FOREIGN = "Requests from other sites are refused; open the app itself."
UNKNOWN_NAME = (
    "The app does not answer to this name; open it as http://127.0.0.1 or localhost, or add the "
    "name to CKV_ALLOWED_HOSTS."
)


class OwnSite:
    def __init__(self, settings: Settings) -> None:
        self._names = settings.allowed_hosts
        self._space_host = settings.space_host
        # Hugging Face shows a Space inside a page of its own.
        self._shown_in = ("document", "iframe") if settings.space_host else ("document",)

    def refusal(self, headers: Headers, method: str) -> str | None:
        """Why a request is not taken, reading included; None if it is."""
        if self._names and _hostname(f"//{headers.get('host', '')}") not in self._names:
            # A hostile page can point its own name at this machine (DNS rebinding).
            return UNKNOWN_NAME
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, headers):
            return FOREIGN
        asked_by = headers.get("sec-fetch-site", "none")
        if asked_by in ("none", "same-origin") or self._is_visit(headers, method):
            return None
        return FOREIGN

    def _is_visit(self, headers: Headers, method: str) -> bool:
        """Whether somebody follows a link to the app; the other site sees nothing of the answer."""
        return (
            method == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") in self._shown_in
        )

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Whether a page's origin is the app's: name and port, as another port is another page.

        The app sees the scheme of its proxy, not the browser's.
        """
        scheme = origin.partition(":")[0]
        names = (headers.get("host"), self._space_host)
        asked = _authority(origin)
        return asked is not None and asked in [
            _authority(f"{scheme}://{name}") for name in names if name
        ]


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _authority(origin: str) -> tuple[str, int] | None:
    """Name and port; None if it has no name, as an origin of null."""
    try:
        parts = urlsplit(origin)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname else None
