"""What a stored result would give at other settings: routes that stream it or save it as a run."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ckv_core.base.json_text import JsonBounds
from ckv_core.errors import CkvError, ConfigError
from ckv_core.records.events import (
    Generated,
    Progress,
    RunEvent,
    RunResult,
    VariantFinished,
    VariantMeasured,
    VariantsChose,
)
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import UNTIL, Until
from ui.results.answers import answers_value
from ui.results.progress import state_value
from ui.results.views import verdict_value
from ui.server.route_answers import NO_STORE, read_slug, refused_as_json
from ui.services.live_runs import RunSnapshot
from ui.services.previews import Previews
from ui.tables.points import summary_value

READING = {"load": "Loading the model", "prefill": "Reading the text again"}
NOTE = "Times are measured once the preview is saved as a run."
WRONG = f"Send JSON with values, an object, and until: {', '.join(UNTIL)}."
BOUNDS = JsonBounds(containers=4, values=32)
Value = dict[str, Any]


async def preview_values(
    run: RunSnapshot, request: RunRequest, events: AsyncGenerator[RunEvent]
) -> AsyncGenerator[Value]:
    """What the page shows of a preview, one object after another.

    `progress` {words, fraction} while model or text are read; `kept` [[index, bits as base64]];
    `shown`, values of components by their id; `end` when nothing more comes; `error`, a sentence.
    """
    result = RunResult()
    try:
        async for event in events:
            if isinstance(event, Progress):
                words = READING.get(event.stage)
                if words and event.fraction != 1.0:
                    yield {"progress": {"words": words, "fraction": event.fraction}}
                continue
            result.apply(event)
            is_last = getattr(event, "index", None) == len(result.variants) - 1
            if isinstance(event, VariantsChose):
                yield {"kept": _kept(result)}
            elif isinstance(event, VariantMeasured) and is_last:
                yield {"shown": {"summary": summary_value(result)}}
            elif isinstance(event, Generated) or (isinstance(event, VariantFinished) and is_last):
                yield {"shown": _answers(run, request, result)}
    except CkvError as error:
        yield {"error": str(error)}
    else:
        yield {"end": True}


def _answers(run: RunSnapshot, request: RunRequest, result: RunResult) -> Value:
    """The answers as far as they are; once all are whole, the figures and the verdict too."""
    is_whole = all(variant.agreement is not None for variant in result.variants[1:])
    view = replace(run, request=request, result=result, state="done" if is_whole else "running")
    answers = (answers_value(view) or {}) | {"preview": True, "note": NOTE}
    if not is_whole:
        return {"answers": answers}
    verdict = (verdict_value(view) or {}) | state_value(view, datetime.now(UTC))
    return {"answers": answers, "summary": summary_value(result), "verdict": verdict}


def _kept(result: RunResult) -> list[tuple[int, str]]:
    return [
        (index, base64.b64encode(variant.retained.bits).decode("ascii"))
        for index, variant in enumerate(result.variants)
        if variant.retained is not None
    ]


def preview_routes(previews: Previews) -> list[Route]:
    """Previews as a stream of JSON lines, and the run that one is saved as."""

    async def preview(request: Request) -> Response:
        values, until = await _given(request)
        run, wanted = await anyio.to_thread.run_sync(previews.request, read_slug(request), values)
        viewer = previews.viewer(request.client.host if request.client else "")
        lines = _lines(run, wanted, previews.events(wanted, viewer, until))
        return StreamingResponse(lines, 200, NO_STORE, "application/x-ndjson")

    async def save(request: Request) -> Response:
        values, _ = await _given(request)
        slug = await anyio.to_thread.run_sync(previews.save, read_slug(request), values)
        return JSONResponse({"slug": slug}, headers=NO_STORE)

    return [
        Route("/data/{slug}/preview", _refusing(preview), methods=["POST"]),
        Route("/data/{slug}/fork", _refusing(save), methods=["POST"]),
    ]


async def _lines(
    run: RunSnapshot, request: RunRequest, events: AsyncGenerator[RunEvent]
) -> AsyncIterator[str]:
    """JSON lines; a client that leaves ends the preview."""
    async with aclosing(events), aclosing(preview_values(run, request, events)) as values:
        async for value in values:
            yield f"{json.dumps(value)}\n"


async def _given(request: Request) -> tuple[object, Until]:
    """What a client wants to see: values of the request, and until where."""
    given = BOUNDS.read(await request.body())
    if not isinstance(given, dict) or given.get("until", UNTIL[0]) not in UNTIL:
        raise ConfigError(WRONG)
    return given.get("values"), given.get("until", UNTIL[0])


def _refusing(answer: Callable[[Request], Awaitable[Response]]) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        try:
            return await answer(request)
        except CkvError as error:
            return refused_as_json(error)

    return handle
