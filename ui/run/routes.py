"""Our own HTTP routes beside Gradio's: run data for the components, exports, the short link."""

import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import astuple, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from ckv_core.base.json_text import JsonBounds
from ckv_core.errors import CkvError, ConfigError
from ckv_core.experiment.export import export
from ckv_core.experiment.inspect_log import inspect_log
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.study import SampleResult
from ckv_core.experiment.study_file import write_study
from ckv_core.experiment.why import why_of
from ckv_core.records.codec import to_json
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
from ckv_core.records.work_requests import UNTIL, PreviewRequest, Until
from storage.repository import is_slug
from ui.accounts.access import Viewer, acting_as
from ui.accounts.turns import in_turn
from ui.charts.ablation import ablation_csv
from ui.charts.bounds import bounds_csv
from ui.charts.catalog import (
    PERTURBATION,
    analysis_csv,
    figure_of,
    follow_ups_csv,
    sweep_csv,
    teacher_forced_csv,
)
from ui.charts.layers import memory_csv
from ui.charts.study import STUDY_CHARTS
from ui.report.copied_code import run_codes, samples_codes
from ui.report.kvpress_code import kvpress_code
from ui.report.routes import panel_answer, report_answers
from ui.results.answers import answers_value
from ui.results.figure_routes import drawn, plotly_script, run_figure
from ui.results.views import (
    diagnostics_value,
    perturbation_value,
    prompt_value,
    state_value,
    verdict_value,
)
from ui.server.route_answers import (
    CSV,
    IMMUTABLE,
    NO_STORE,
    NOT_YET,
    Answer,
    MissingError,
    as_file,
    give_cookie,
    read_index,
    read_slug,
    refused_as_json,
    routes_of,
)
from ui.services.library import COOKIE_PREFIX, COOKIES
from ui.services.live_runs import RunSnapshot
from ui.services.previews import Previews
from ui.services.services import Services
from ui.tables.csv_text import csv_text
from ui.tables.decision import bounds_csv as decision_csv
from ui.tables.points import points_csv, summary_csv, summary_value

NO_SHARE = "This link has expired or was revoked; ask its sender for a new one."
JSON = "application/json; charset=utf-8"
TABLES: dict[str, Callable[[RunResult], str]] = {
    "table": summary_csv,
    "forced": teacher_forced_csv,
    "follow_ups": follow_ups_csv,
    "analysis": analysis_csv,
    "bounds": bounds_csv,
    "ablation": ablation_csv,
    "sweep": sweep_csv,
    "memory": memory_csv,
}
_RESULT = tuple(field.name for field in fields(SampleResult))
SAMPLE_TABLES: dict[str, Callable[[Reading], str]] = {
    "bounds": decision_csv,
    "scores": lambda of: points_csv(of.points),
    # One line per sample and point: all that is known of it.
    "results": lambda of: csv_text(_RESULT, map(astuple, of.results)),
}


async def healthy(_: Request) -> Response:
    """Answers on the event loop: handlers may hold every thread."""
    return JSONResponse({"ok": True}, headers=NO_STORE)


def build_routes(services: Services) -> list[Route]:
    """Routes of single runs, and those that ask how the app is."""
    routes = RunRoutes(services)
    run_report, samples_report = report_answers(services)
    of_run: dict[str, Answer[RunSnapshot]] = {
        "prompt": prompt,
        "{index}/evicted": evicted,
        "figure/{name}": run_figure,
        "result.json": routes.result_json,
        "bundle.zip": routes.bundle,
        "kvpress.py": kvpress,
        "code": lambda run, _: JSONResponse(run_codes(run), headers=NO_STORE),
        "report.html": run_report,
        **{f"{name}.csv": partial(routes.table, name) for name in TABLES},
    }
    of_samples: dict[str, Answer[Reading]] = {
        **drawn(STUDY_CHARTS, SAMPLE_TABLES, "ckv-study"),
        "study.json": routes.samples_json,
        "inspect.json": routes.inspect,
        "study.yaml": definition,
        "code": lambda of, _: JSONResponse(samples_codes(of), headers=NO_STORE),
        "report.html": samples_report,
    }
    return [
        Route("/healthz", healthy),
        Route("/plotly.js", plotly_script),
        Route("/r/{slug}", lambda each: RedirectResponse(f"/run?id={read_slug(each)}", 307)),
        Route("/s/{token}", routes.open_share),
        Route("/data/{slug}/{index}/retained", routes.retained),
        Route("/data/{slug}/embed/{panel}", routes.panel),
        *preview_routes(services.previews),
        *routes_of("/data/{slug}", lambda each: services.snapshot(read_slug(each)), of_run),
        Route("/studies/{slug}/decision", routes.decision),
        *routes_of("/studies/{slug}", routes.reading, of_samples),
    ]


class RunRoutes:
    """Those that ask the services for more than the run."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._panel = panel_answer(services)

    def panel(self, request: Request) -> Response:
        """One panel alone, of a run that the viewer may read."""
        slug = read_slug(request)
        return self._panel(slug, request.path_params["panel"], f"/run?id={slug}")

    def reading(self, request: Request) -> Reading:
        return self._services.studies.reading(read_slug(request))

    def decision(self, request: Request) -> Response:
        """The decision on many samples in a few words, which the list of runs shows."""
        line = self._services.studies.decision(read_slug(request))
        return JSONResponse(line, headers=NO_STORE)

    def open_share(self, request: Request) -> Response:
        """Let this browser read the run of a share link; the token then lies in a cookie.

        With `embed` in the query it answers one panel and leaves no cookie.
        """
        token = request.path_params["token"]
        try:
            slug = self._services.shares.opened(token)
        except CkvError:
            slug = None
        if slug is None:
            raise MissingError(NO_SHARE)
        if "embed" in request.query_params:
            with acting_as(Viewer(shared=frozenset({slug}))):
                return self._panel(slug, request.query_params["embed"], f"/s/{quote(token)}")
        # The page takes the link from the fragment, which browsers send nowhere, and shows it.
        link = f"#link={quote(token)}" if self._services.with_logins else ""
        response = RedirectResponse(f"/run?id={slug}{link}", 303, NO_STORE)
        if link:
            given = [name.removeprefix(COOKIE_PREFIX) for name in request.cookies]
            others = [each for each in given if is_slug(each) and each != slug]
            for oldest in others[: 1 - COOKIES]:
                response.delete_cookie(COOKIE_PREFIX + oldest)
            give_cookie(response, request, COOKIE_PREFIX + slug, token)
        return response

    def retained(self, request: Request) -> Response:
        """Bits of one variant's kept set, as `RetainedSet` packs them.

        They are complete once they exist, so they may be kept while the run goes on.
        """
        index = read_index(request.path_params["index"])
        kept = self._services.retained(read_slug(request), index)
        if kept is None:
            raise MissingError(NOT_YET)
        return _bits(kept.bits)

    def result_json(self, run: RunSnapshot, _: Request) -> Response | None:
        if not run.result.variants:
            return None
        self._services.note_export([run.slug])
        text = json.dumps(to_json(run.result))
        return _file(run, "result.json", text, JSON)

    def bundle(self, run: RunSnapshot, _: Request) -> Response | None:
        if not run.is_final:
            return None
        data = self._services.export_bundle([run.slug])
        return as_file(f"ckv-{run.slug}.zip", data, "application/zip")

    def table(self, name: str, run: RunSnapshot, _: Request) -> Response:
        self._services.note_export([run.slug])
        return _file(run, f"{name}.csv", TABLES[name](run.result), CSV)

    def samples_json(self, of: Reading, request: Request) -> Response:
        """All of a run of many samples; the texts of the samples where the query has `data`."""
        with_data = "data" in request.query_params
        values = export(self._whole(of) if with_data else of, with_data=with_data)
        return as_file("ckv-study.json", json.dumps(values, ensure_ascii=False), JSON)

    def inspect(self, of: Reading, _: Request) -> Response:
        """A run of many samples as a log of Inspect."""
        values = inspect_log(self._whole(of))
        return as_file("ckv-inspect.json", json.dumps(values), JSON)

    def _whole(self, of: Reading) -> Reading:
        """The same with the texts of its samples."""
        return replace(of, samples=self._services.studies.samples(of.slug))


def prompt(run: RunSnapshot, _: Request) -> Response | None:
    """Token texts of the prompt and where the context lies in it."""
    found = run.result.prompt
    return JSONResponse(prompt_value(found), headers=_caching(run)) if found else None


def evicted(run: RunSnapshot, request: Request) -> Response | None:
    """What a variant evicted while it generated, as `HeldSeries.evicted` has it."""
    index, variants = read_index(request.path_params["index"]), run.result.variants
    held = variants[index].held if 0 <= index < len(variants) else None
    return _bits(held.evicted) if held else None


def kvpress(run: RunSnapshot, _: Request) -> Response | None:
    """The variants as code for kvpress, without the run's text."""
    if not run.is_final or run.result.prompt is None:
        return None
    code = kvpress_code(run.result, run.request.max_new_tokens)
    return _file(run, "kvpress.py", code, "text/x-python; charset=utf-8")


def definition(of: Reading, _: Request) -> Response:
    """A run of many samples as the YAML file that makes it."""
    return as_file("ckv-study.yaml", write_study(of.study), "application/yaml; charset=utf-8")


def _caching(snapshot: RunSnapshot) -> dict[str, str]:
    return IMMUTABLE if snapshot.is_final else NO_STORE


def _bits(data: bytes) -> Response:
    return Response(data, media_type="application/octet-stream", headers=IMMUTABLE)


def _file(run: RunSnapshot, name: str, text: str, kind: str) -> Response:
    return as_file(f"ckv-{run.slug}-{name}", text, kind, _caching(run))


# --- what a stored result gives at other settings ---------------------------------------

READING = {"load": "Loading the model", "prefill": "Reading the text again"}
NOTE = "Times are measured once the preview is saved as a run."
LATER = "Diagnostics are measured once the preview is saved as a run."
WRONG = (
    f"Send JSON with values, an object, until: {', '.join(UNTIL)}, and figures, an array of up to "
    "16 times CHART?CHOICES."
)
BOUNDS = JsonBounds(containers=4, values=64)
MOST_FIGURES, FIGURE_CHARS = 16, 400
Value = dict[str, Any]


async def preview_values(
    run: RunSnapshot,
    request: RunRequest,
    events: AsyncGenerator[RunEvent],
    figures: Sequence[str] = (),
) -> AsyncGenerator[Value]:
    """What the page shows of a preview, one object after another.

    `figures` are the charts of the first step that are in sight, as `CHART?CHOICES`.

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
                yield {"shown": await in_turn(_first_step, run, result, figures)}
            elif isinstance(event, Generated) or (isinstance(event, VariantFinished) and is_last):
                yield {"shown": _answers(run, request, result)}
    except CkvError as error:
        yield {"error": str(error)}
    else:
        yield {"end": True}


def _first_step(run: RunSnapshot, result: RunResult, figures: Sequence[str]) -> Value:
    """Figures of the first step, and the charts in sight as Plotly's JSON."""
    charts = perturbation_value(replace(run, result=result))
    drawn = {each: _drawn(result, each) for each in figures}
    # A table of theirs would be that of the stored run.
    charts["charts"] = [chart | {"csv": ""} for chart in charts["charts"]]
    charts["figures"] = {each: text for each, text in drawn.items() if text}
    shown = {"summary": summary_value(result), "charts": charts}
    if diagnostics_value(run) is not None:
        shown["diagnostics"] = {"charts": [], "text": LATER}
    return shown


def _drawn(result: RunResult, wanted: str) -> str:
    name, _, query = wanted.partition("?")
    figure = figure_of(result, name, dict(parse_qsl(query))) if name in PERTURBATION else None
    return figure.to_json() if figure else ""


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
        values, until, figures = await _given(request)
        run, wanted = await anyio.to_thread.run_sync(previews.request, read_slug(request), values)
        viewer = previews.viewer(request.client.host if request.client else "")
        work = PreviewRequest(
            run=replace(wanted, analysis=(), follow_ups=(), repeats=""), until=until
        )
        events = previews.events(work, viewer)
        return _stream(events, preview_values(run, wanted, events, figures))

    async def why(request: Request) -> Response:
        given = await _object(request)
        wanted = await anyio.to_thread.run_sync(previews.why, read_slug(request), given)
        viewer = previews.viewer(request.client.host if request.client else "")
        events = previews.events(wanted, viewer)
        return _stream(events, why_values(events))

    async def save(request: Request) -> Response:
        values, *_ = await _given(request)
        slug = await anyio.to_thread.run_sync(previews.save, read_slug(request), values)
        return JSONResponse({"slug": slug}, headers=NO_STORE)

    return [
        Route("/data/{slug}/preview", _refusing(preview), methods=["POST"]),
        Route("/data/{slug}/why", _refusing(why), methods=["POST"]),
        Route("/data/{slug}/fork", _refusing(save), methods=["POST"]),
    ]


async def why_values(events: AsyncGenerator[RunEvent]) -> AsyncGenerator[Value]:
    """`progress`, words; then `sentence`, what brings the answer back; or `error`, a sentence."""
    result = RunResult()
    try:
        async for event in events:
            if isinstance(event, Progress):
                if event.fraction != 1.0:
                    yield {"progress": READING.get(event.stage, event.detail)}
                continue
            result.apply(event)
    except CkvError as error:
        yield {"error": str(error)}
    else:
        yield {"sentence": why_of(result).sentence}


def _stream(events: AsyncGenerator[RunEvent], values: AsyncGenerator[Value]) -> Response:
    return StreamingResponse(_lines(events, values), 200, NO_STORE, "application/x-ndjson")


async def _lines(
    events: AsyncGenerator[RunEvent], values: AsyncGenerator[Value]
) -> AsyncIterator[str]:
    """JSON lines; a client that leaves ends the work."""
    async with aclosing(events), aclosing(values):
        async for value in values:
            yield f"{json.dumps(value)}\n"


async def _object(request: Request) -> Value:
    given = BOUNDS.read(await request.body())
    if not isinstance(given, dict):
        raise ConfigError(WRONG)
    return given


async def _given(request: Request) -> tuple[object, Until, list[str]]:
    """What a client wants to see: values of the request, until where, and charts in sight."""
    given = await _object(request)
    until, figures = given.get("until", UNTIL[0]), given.get("figures", [])
    are_charts = isinstance(figures, list) and len(figures) <= MOST_FIGURES
    are_charts = are_charts and all(
        isinstance(each, str) and len(each) <= FIGURE_CHARS for each in figures
    )
    if until not in UNTIL or not are_charts:
        raise ConfigError(WRONG)
    return given.get("values"), until, figures


def _refusing(answer: Callable[[Request], Awaitable[Response]]) -> Callable[..., Any]:
    async def handle(request: Request) -> Response:
        try:
            return await answer(request)
        except CkvError as error:
            return refused_as_json(error)

    return handle
