"""What each address is: who may send a request there, how much, and whether it waits its turn."""

from dataclasses import dataclass
from typing import Literal

from starlette.datastructures import QueryParams

# Nobody at all; a user; also the guest of a share link; anyone.
Who = Literal["nobody", "user", "guest", "anyone"]
# A context comes as JSON of the largest size, a file as anything of that size.
Body = Literal["small", "context", "file"]
# Its request waits in its viewer's line; its handler does; or it answers at once.
Turn = Literal["waits", "of its own", "none"]


@dataclass(frozen=True, slots=True)
class Rule:
    who: Who = "user"
    turn: Turn = "waits"
    body: Body = "small"


USERS = Rule()
HEALTH = "/healthz"
# The longest that fits counts; one that ends in * is the beginning of addresses. What answers
# without a turn does so from memory or a file, or streams while its handlers take turns.
RULES = {
    HEALTH: Rule("anyone", "none"),
    "/login": Rule("anyone", "none"),
    "/s/*": Rule("anyone"),
    # Of these the login page is made; nothing in them is secret.
    "/theme.css": Rule("anyone", "none"),
    "/favicon.ico": Rule("anyone", "none"),
    "/static/fonts/*": Rule("anyone", "none"),
    "/gradio_api/startup-events": Rule("anyone", "none"),
    # What the page of a run needs of Gradio; its handlers check by themselves.
    "/run": Rule("guest"),
    "/study": Rule("guest"),  # leads there
    "/config": Rule("guest"),
    "/plotly.js": Rule("guest"),
    "/manifest.json": Rule("guest", "none"),
    "/assets/*": Rule("guest", "none"),
    "/scripts/*": Rule("guest", "none"),
    "/static/*": Rule("guest", "none"),
    "/svelte/*": Rule("guest", "none"),
    "/gradio_api/theme.css": Rule("guest", "none"),
    "/gradio_api/app_id": Rule("guest", "none"),
    "/gradio_api/heartbeat/*": Rule("guest", "none"),
    "/gradio_api/queue/join": Rule("guest", "none", "context"),
    "/gradio_api/queue/data": Rule("guest", "none"),
    "/gradio_api/run/predict": Rule("guest", "of its own", "context"),
    "/gradio_api/cancel": Rule("guest", "none"),
    "/gradio_api/reset": Rule("guest", "none"),
    # What starts a run or counts its tokens carries the context.
    "/gradio_api/run/*": Rule("user", "of its own", "context"),
    "/gradio_api/call/*": Rule("user", "none", "context"),
    "/gradio_api/mcp*": Rule("user", "none", "context"),
    "/gradio_api/stream/*": Rule("user", "none"),
    "/api/*": Rule("user", "of its own"),
    "/api/runs": Rule("user", "of its own", "context"),
    "/runs/import": Rule("user", body="file"),
    "/caches/import": Rule("user", body="file"),
    "/documents/text": Rule("user", body="file"),
    # Gradio fetches whatever URL stands behind these; uploads have routes of ours. The last one
    # would write a session's values into a file.
    "/gradio_api/file=http*": Rule("nobody"),
    "/gradio_api/file/http*": Rule("nobody"),
    "/gradio_api/proxy=*": Rule("nobody"),
    "/gradio_api/upload*": Rule("nobody"),
    "/gradio_api/deep_link*": Rule("nobody"),
}
_BEGINNINGS = sorted((name[:-1] for name in RULES if name.endswith("*")), key=len, reverse=True)
# Handlers that the guest of a share link may call; every other one needs a login.
SECTIONS_READ = "SweepArea.wire.<locals>.reading.<locals>.handler"
GUEST_HANDLERS = frozenset({"RunPage.open", "RunPage.tail", SECTIONS_READ})


def rule_of(path: str) -> Rule:
    """The rule of an address; users alone get what none names."""
    fitting = (name for name in _BEGINNINGS if path.lower().startswith(name))
    return RULES.get(path) or RULES.get(f"{next(fitting, '')}*", USERS)


def may_be_framed(path: str, query: bytes) -> bool:
    """Whether other sites may show the answer in a frame: a panel of a share link, alone."""
    return path.startswith("/s/") and "embed" in QueryParams(query)


def is_of_a_run(path: str, slugs: frozenset[str]) -> bool:
    """Whether an address is the data, or the short link, of one of these runs."""
    parts = path.split("/")
    return len(parts) > 2 and parts[1] in ("data", "r", "studies") and parts[2] in slugs
