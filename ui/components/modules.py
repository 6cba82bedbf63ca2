"""Our ES modules: served under addresses that change with them, or joined into one script.

A module's address ends in its path in the repository, so relative imports mean the same to the
browser, the linter and the type checker. A report is one file: there each becomes a function.
"""

import gzip
import hashlib
import posixpath
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "/scripts/"
# The linter's formatter writes every import and export in one of these ways.
_IMPORT = re.compile(r'^import (?:\{([^}]+)\}|(\w+)) from "([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(
    r"^export (default )?((?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE
)
_TRIGGERED = re.compile(r'\btrigger\("(\w+)"')
_FAILED = "This part of the page did not load. Reload the page."


@cache
def modules() -> dict[str, str]:
    """Text of every module by its path in the repository."""
    paths = (path for folder in ("assets", "ui") for path in (ROOT / folder).rglob("*.js"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted(paths)}


@cache
def _version() -> str:
    return hashlib.sha256("\0".join(modules().values()).encode()).hexdigest()[:16]


def address(path: str) -> str:
    """Where the module of this path is served."""
    return f"{PREFIX}{_version()}/{path}"


def imported(path: str) -> str:
    """JavaScript: a promise of the module, whose `default` is its default export.

    The address is whole: Chromium keeps what `new Function` compiled and resolves a relative one
    against the page that was first, of another app perhaps.
    """
    return f'import(new URL("{address(path)}", location.href).href)'


def on_load(path: str) -> str:
    """The `js_on_load` of a gr.HTML that this module draws in; Gradio finds its events quoted."""
    events = " ".join(f'"{name}"' for name in sorted(set(_TRIGGERED.findall(modules()[path]))))
    return f"""const root = element.querySelector(".ckv");
{imported(path)}
  .then((module) => module.default({{ root, element, props, trigger, watch }}))
  .catch((error) => {{
    (root ?? element).append("{_FAILED}");
    throw error;
  }}); // triggers {events}"""


def preloads(page: str) -> str:
    """Links that fetch all modules whose addresses a page's markup holds, with what they import.

    The browser would find each import once it had read the module before.
    """
    own = re.findall(rf"{PREFIX}{_version()}/([\w/]+\.js)", page)
    paths = dict.fromkeys(each for path in dict.fromkeys(own) for each in (path, *_imports(path)))
    return "".join(f'<link rel="modulepreload" href="{address(path)}">' for path in paths)


@cache
def _imports(path: str) -> tuple[str, ...]:
    """Paths of what a module imports, and of what that imports."""
    direct = [_resolved(path, match[3]) for match in _IMPORT.finditer(modules()[path])]
    return tuple(dict.fromkeys(each for own in direct for each in (own, *_imports(own))))


def module_route() -> Route:
    """Answers GET; what was served under an address never changes."""

    @cache
    def packed(path: str) -> bytes:
        return gzip.compress(modules()[path].encode(), 6)

    def module(request: Request) -> Response:
        path = request.path_params["path"]
        if request.path_params["version"] != _version() or path not in modules():
            return Response(status_code=404, headers={"Cache-Control": "no-store"})
        headers = {
            "Content-Encoding": "gzip",
            "Cache-Control": "public, max-age=31536000, immutable",
        }
        return Response(packed(path), media_type="text/javascript", headers=headers)

    return Route(f"{PREFIX}{{version}}/{{path:path}}", module)


def joined(paths: Iterable[str]) -> str:
    """One classic script with these modules and all that they import, as `MODULES[path]`."""
    done: dict[str, str] = {}
    for path in paths:
        _join(path, done)
    return "\n".join(('"use strict";\nglobalThis.MODULES = {};', *done.values()))


def _join(path: str, done: dict[str, str]) -> None:
    """Add a module after what it imports; a circle of imports would never end."""
    text = modules()[path]
    for match in _IMPORT.finditer(text):
        if (wanted := _resolved(path, match[3])) not in done:
            _join(wanted, done)

    def constant(match: re.Match[str]) -> str:
        names = match[1].replace(" as ", ": ") if match[1] else f"default: {match[2]}"
        return f'const {{{names}}} = MODULES["{_resolved(path, match[3])}"];\n'

    given = [f"default: {name}" if default else name for default, _, name in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\2", _IMPORT.sub(constant, text))
    done[path] = f'MODULES["{path}"] = (() => {{\n{body}return {{ {", ".join(given)} }};\n}})();'


def _resolved(path: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
