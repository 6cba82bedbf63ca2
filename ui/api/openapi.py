"""What programs may call, described once: an OpenAPI document, and the parts of a docstring."""

import inspect
import json
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from ckv_core.base.version import __version__

Endpoint = Callable[..., Any]
# Files of a run, which other routes serve, with what they hold.
FILES = {
    "result.json": "What export_run returns, of any size.",
    "bundle.zip": "The run to be imported elsewhere.",
    "table.csv": "A row per method.",
    "report.html": "One file that shows the run offline.",
    "kvpress.py": "The variants as presses for kvpress 0.5.5, with notes where these differ.",
}
ERRORS = {
    "400": "a wrong argument",
    "401": "no login",
    "403": "not allowed, or a foreign host or origin",
    "404": "no such run, or not yours",
    "413": "the body is too big",
    "429": "a limit is reached; try again later",
    "503": "the database fails",
}


def words_of(method: Endpoint) -> tuple[str, dict[str, str]]:
    """What an endpoint does, and the meaning of each argument, out of its docstring."""
    does, _, rest = (inspect.getdoc(method) or "").partition("\n\nArgs:\n")
    pairs = (line.strip().split(": ", 1) for line in rest.splitlines() if ": " in line)
    return " ".join(does.split()), dict(pairs)


def arguments_of(method: Endpoint) -> dict[str, dict[str, Any]]:
    """The JSON schema of each argument, with its meaning; a default where it may be left out."""
    meanings, found = words_of(method)[1], {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self":
            continue
        found[name] = TypeAdapter(parameter.annotation).json_schema()
        found[name]["description"] = meanings[name].rstrip(".")
        if parameter.default is not parameter.empty:
            found[name]["default"] = parameter.default
    return found


def document(routes: list[tuple[str, str, Endpoint]]) -> dict[str, Any]:
    """OpenAPI 3.1 of (verb, path, endpoint) and of the files of a run."""
    paths: dict[str, Any] = {}
    for verb, path, method in routes:
        paths.setdefault(path, {})[verb.lower()] = _operation(verb, path, method)
    slug = {"name": "slug", "in": "path", "required": True, "schema": {"type": "string"}}
    for name, holds in FILES.items():
        operation = {"parameters": [slug], "responses": {"200": {"description": holds}}}
        paths.setdefault(f"/data/{{slug}}/{name}", {"get": operation})
    return {
        "openapi": "3.1.0",
        "info": {"title": "CriticalKV Lab", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _operation(verb: str, path: str, method: Endpoint) -> dict[str, Any]:
    taken = arguments_of(method)
    answers = {code: {"description": text} for code, text in ERRORS.items()}
    success = {"200": {"description": "a JSON object"}}
    if verb == "POST":
        success["202"] = {"description": "a JSON object; the work continues"}
    operation = {
        "operationId": method.__name__,
        "description": words_of(method)[0],
        "responses": success | answers,
    }
    if verb == "POST" and "{" not in path:
        required = [name for name, schema in taken.items() if "default" not in schema]
        schema = {"type": "object", "properties": taken, "required": required}
        content = {"application/json": {"schema": schema | {"additionalProperties": False}}}
        return operation | {"requestBody": {"required": True, "content": content}}
    parameters = [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in path else "query",
            "required": "default" not in schema,
            "description": schema.pop("description"),
            "schema": schema,
        }
        for name, schema in taken.items()
    ]
    return operation | {"parameters": parameters}


def markdown(routes: list[tuple[str, str, Endpoint]]) -> str:
    """The same for people: docs/reference/api.md."""
    lines = [
        "# API",
        "",
        "Written by `python -m scripts.reference_docs`; do not edit by hand.",
        "",
        "Each endpoint has a name for `gradio_client` and MCP and an address for plain HTTP.",
        "A running app has this page as an OpenAPI document at `/api/openapi.json`.",
        "[Programs](../how-to/programs.md) has examples and what a run holds.",
    ]
    for verb, path, method in routes:
        lines += ["", f"## {method.__name__}", "", f"`{verb} {path}`: {words_of(method)[0]}"]
        rows = [_argument_row(name, schema) for name, schema in arguments_of(method).items()]
        if rows:
            head = ["", "| argument | type | default | meaning |", "| --- | --- | --- | --- |"]
            lines += [*head, *rows]
    lines += ["", "## Files of a run", "", "| address | holds |", "| --- | --- |"]
    lines += [f"| `GET /data/SLUG/{name}` | {holds} |" for name, holds in FILES.items()]
    lines += ["", "## Errors", "", 'An endpoint answers `{"error": "one sentence"}`.', ""]
    lines += ["| status | meaning |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {code} | {text} |" for code, text in ERRORS.items())]) + "\n"


def _argument_row(name: str, schema: dict[str, Any]) -> str:
    options = [schema, *schema.get("anyOf", ())]
    (kind,) = {str(each["type"]) for each in options if each.get("type", "null") != "null"}
    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else "required"
    meaning = schema["description"].replace("|", "\\|")
    return f"| `{name}` | {kind} | {default} | {meaning} |"
