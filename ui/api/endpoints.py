"""What programs may call: endpoints for gradio_client and MCP, and as plain JSON routes."""

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Annotated, Any, cast, get_origin, get_type_hints

import gradio as gr
from gradio.context import LocalContext
from gradio.events import api
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ckv_core.base.checked import chars, one_of, read, within
from ckv_core.base.json_text import NoJsonError
from ckv_core.errors import CkvError, ConfigError, PromptError
from ckv_core.experiment.export import export
from ckv_core.experiment.reading import Reading
from ckv_core.experiment.verdict import verdict_of
from ckv_core.methods import METHODS, PARAMETERS
from ckv_core.methods.parameters import DEFAULT_BUDGET
from ckv_core.models.catalog import KNOWN, list_models
from ckv_core.records.codec import to_json
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import ARGUMENTS, LISTS, RunRequest, meaning
from storage.library import SORTS
from storage.models import STATES
from storage.records import RunFilter, RunSort
from storage.repository import RunMissingError, is_slug
from ui.accounts.access import AccessError
from ui.accounts.turns import in_turn
from ui.api import openapi
from ui.compare.form_values import read_list
from ui.compare.offers import DEFAULT_VARIANTS, by_class
from ui.limits import LimitError
from ui.runs.query import TEXT_CHARS, run_row
from ui.server.gates import BOUNDS
from ui.server.route_answers import NO_STORE, NOT_YET, UNKNOWN_RUN
from ui.services.live_runs import RunSnapshot
from ui.services.services import Services
from ui.settings import Settings

# --- what they tell of a run, as plain JSON values -----------------------------------------

# What get_run tells of a variant; the rest may be megabytes.
SHORT = (
    "spec",
    "label",
    "params",
    "receipt",
    "text",
    "stopped",
    "agreement",
    "first_difference",
    "outcome",
    "answer_found",
    "answer_scores",
    "time",
)
FILES = tuple(openapi.FILES)
SAMPLES_FILES = ("study.json", "report.html")
SHORT_PERTURBATION = ("kl", "final_hidden_l1", "improved_head_share")
Result = dict[str, Any]


def run_json(snapshot: RunSnapshot) -> Result:
    """A run as far as it is, without what may be large."""
    result, progress, floor = snapshot.result, snapshot.progress, snapshot.result.floor
    verdict = verdict_of(result) if snapshot.is_final else None
    return _state_json(snapshot, FILES) | {
        "progress": {"stage": progress.stage, "fraction": progress.fraction} if progress else None,
        "queue_ahead": snapshot.queue_ahead,
        "prompt_tokens": result.prompt.tokens if result.prompt else None,
        "verdict": verdict.to_json() if verdict else None,
        "floor": floor and {"final_hidden_l1": floor.final_hidden_l1, "kl": floor.kl},
        "variants": _variants_json(result),
        "timings_ms": dict(snapshot.stage_ms),
    }


def samples_json(snapshot: RunSnapshot, reading: Reading) -> Result:
    """A run of many samples as far as it is: verdict, table and decision, without its samples."""
    pace, whole = snapshot.pace, export(reading)
    return _state_json(snapshot, SAMPLES_FILES) | {
        "progress": {"done": pace.done, "total": pace.total} if pace else None,
        "samples": len(reading.samples),
        "verdict": reading.verdict.to_json(),
        "table": whole["table"],
        "decision": whole["decision"],
    }


def _state_json(snapshot: RunSnapshot, files: Sequence[str]) -> Result:
    return {
        "slug": snapshot.slug,
        "title": snapshot.title,
        "state": snapshot.state,
        "reason": snapshot.reason,
        "over": snapshot.is_final,
        "link": f"/r/{snapshot.slug}",
        "model": snapshot.request.model,
        "scenario": snapshot.request.scenario,
        "files": {name: f"/data/{snapshot.slug}/{name}" for name in files},
    }


def _variants_json(result: RunResult) -> list[Result]:
    """The short part of docs/reference/result_json.md."""
    light = [
        replace(v, retained=None, token_ids=(), token_texts=(), analysis={}, forced_steps=())
        for v in result.variants
    ]
    rows = to_json(replace(result, variants=light, prompt=None))["variants"]
    return [
        {name: row[name] for name in SHORT}
        | {"loops": variant.loops}
        | {name: row["perturbation"].get(name) for name in SHORT_PERTURBATION}
        for row, variant in zip(rows, result.variants, strict=True)
    ]


LOGGER = logging.getLogger(__name__)
WHOLE = "request"
ShortText = Annotated[str, chars(TEXT_CHARS)]
LONGEST_WAIT_S = 60.0
POLL_S = 0.2
MOST_RUNS = 100
# An answer is built in memory and sent as one message; the bundle is packed and smaller.
MOST_POSITIONS = 4_000_000
STOPPING = "The run is stopping; what it has so far is kept."
BROKEN = "The server could not do this; its log says why."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    wait_s: Annotated[float, within(0, LONGEST_WAIT_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _List:
    text: ShortText
    model: ShortText
    method: ShortText
    state: Annotated[str, one_of("", *STATES)]
    sort: Annotated[str, one_of(*SORTS)]
    limit: Annotated[int, within(1, MOST_RUNS)]
    offset: Annotated[int, within(0, 10**9)]


class Api:
    """The endpoints. Each acts for the user who calls it, as the pages do.

    Arguments come from a client and may be anything; each method raises CkvError with one
    sentence for what it does not take. Docstrings are shown to clients, one line per argument.
    """

    def __init__(self, services: Services, settings: Settings) -> None:
        self._services = services
        self._settings = settings

    def register(self) -> None:
        """Make them known to Gradio; call inside the Blocks context."""
        for _, _, method in endpoints(self):
            # Not queued: MCP then calls the function with the request that carries the login.
            api(_endpoint(method), api_name=method.__name__, queue=False)

    def compare(self, *values: Any, **named: Any) -> Result:
        """Start comparing KV-cache eviction methods on one prompt; returns at once.

        Follow the run with get_run and the slug that this returns.
        """
        given = inspect.signature(self.compare).bind(*values, **named)
        given.apply_defaults()
        slug = self._services.start_run(request_of(given.arguments, self._settings))
        return {"slug": slug, "state": "queued", "link": f"/r/{slug}"}

    async def get_run(self, slug: str, wait_s: float = 0.0) -> Result:
        """State, figures and generated texts of a run, as far as it is.

        Args:
            slug: Name of the run, as compare and list_runs give it.
            wait_s: Seconds, up to 60, to wait for the end of a run that is not over.
        """
        longest = read(_Wait, {"wait_s": wait_s}, WHOLE).wait_s
        until = asyncio.get_running_loop().time() + longest
        while True:
            snapshot = await in_turn(self._find, slug)
            left = until - asyncio.get_running_loop().time()
            if snapshot.is_final or left <= 0:
                if snapshot.counts is None:
                    return run_json(snapshot)
                reading = await in_turn(self._services.studies.reading, slug)
                return samples_json(snapshot, reading)
            await asyncio.sleep(min(POLL_S, left))

    def cancel(self, slug: str) -> Result:
        """Stop a run and keep what it has so far; changes nothing if the run is over.

        Returns at once; get_run tells when the run has stopped.

        Args:
            slug: Name of the run.
        """
        was_over = self._find(slug).is_final
        self._services.cancel_run(slug)
        snapshot = self._find(slug)
        message = STOPPING
        if was_over:
            message = f"This run is over already ({snapshot.state}); nothing was changed."
        return {
            "slug": slug,
            "state": snapshot.state,
            "over": snapshot.is_final,
            "message": message,
        }

    def list_runs(  # noqa: PLR0913, PLR0917 - the arguments are the endpoint's
        self,
        text: str = "",
        model: str = "",
        method: str = "",
        state: str = "",
        sort: str = "newest",
        limit: int = 20,
        offset: int = 0,
    ) -> Result:
        """Saved runs, and how many there are in all.

        Args:
            text: Words to find in title, note, question and generated text.
            model: Only runs of this model.
            method: Only runs with a variant of this method, such as snapkv.
            state: Only runs in this state: queued, running, done, failed, cancelled or unfinished.
            sort: newest, oldest or title.
            limit: Runs to return, up to 100.
            offset: Runs to leave out at the start.
        """
        wanted = read(_List, locals(), WHOLE)
        names = ("text", "model", "method", "state")
        runs, total = self._services.library.list_runs(
            RunFilter(**{name: getattr(wanted, name) for name in names}),
            cast("RunSort", wanted.sort),
            wanted.limit,
            wanted.offset,
        )
        return {"total": total, "runs": [run_row(run) for run in runs]}

    def export_run(self, slug: str) -> Result:
        """The whole run as JSON: kept positions, tokens and every figure; may be large.

        Args:
            slug: Name of the run.
        """
        snapshot = self._find(slug)
        if snapshot.counts is not None:
            return export(self._services.studies.reading(slug))
        variants = snapshot.result.variants
        if not variants:
            raise ConfigError(NOT_YET)
        kept = sum(variant.receipt.retained_entries for variant in variants if variant.receipt)
        if kept > MOST_POSITIONS:
            raise ConfigError(
                f"This run holds {kept:,} kept positions, too many for one answer; download "
                f"/data/{snapshot.slug}/bundle.zip instead."
            )
        self._services.note_export([snapshot.slug])
        return to_json(snapshot.result)

    def list_methods(self) -> Result:
        """All methods with the SPECs that compare takes, and the parameters of a SPEC."""
        return methods_json()

    def list_models(self) -> Result:
        """Models that the app has, and known names that it can fetch at first use.

        `ready` is false where a model is fetched or prepared at first use.
        """
        found = {each.name: each.ready for each in list_models()}
        names = dict.fromkeys((self._settings.model, *found, *KNOWN))
        return {"models": [{"name": each, "ready": found.get(each, False)} for each in names]}

    def _find(self, slug: object) -> RunSnapshot:
        if not is_slug(slug):
            raise RunMissingError(UNKNOWN_RUN)
        return self._services.view(str(slug))


def methods_json() -> Result:
    """Of each method its SPECs and the keys that these take; of each key both defaults."""
    return {
        "methods": [
            {
                "name": method.name,
                "label": method.label,
                "class": group.name,
                "summary": method.summary,
                "source": method.source,
                "specs": [method.name, *(f"{method.name}+{s.name}" for s in method.selectors[1:])],
                "parameters": [*(method.parameters() | method.options())],
            }
            for group, members in by_class(METHODS)
            for method in members
        ],
        "parameters": {
            name: {
                "paper": str(each.preset_value("paper")),
                "kvpress": str(each.preset_value("kvpress")),
                "choices": list(each.choices),
                "meaning": each.help,
            }
            for name, each in PARAMETERS.items()
        },
    }


def request_of(arguments: dict[str, Any], settings: Settings) -> RunRequest:
    """Of `Api.compare`'s arguments; still to be validated."""
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, field in LISTS.items():
        given[field] = read_list(read(ShortText, given.pop(name, ""), WHOLE, at=(name,)))
    given["budgets"] = given["budgets"] or ("",)  # which is refused
    given["model"] = str(given.get("model") or "").strip() or settings.model
    return read(
        RunRequest, {"variants": DEFAULT_VARIANTS, "device": settings.device} | given, WHOLE
    )


_ANY = inspect.Parameter.POSITIONAL_OR_KEYWORD


def _declare_arguments() -> None:
    """Give `Api.compare` its arguments: the fields of a request, but for what the app decides."""
    hints: dict[str, Any] = get_type_hints(RunRequest)
    defaults: dict[str, Any] = {each.name: each.default for each in fields(RunRequest)}
    defaults |= {"budget": DEFAULT_BUDGET, "alpha": "", "model": ""}
    kinds: dict[str, Any] = {}
    parameters = [inspect.Parameter("self", _ANY)]
    for name in (each for each in ARGUMENTS if each not in ("device", "dtype")):
        kind = hints.get(name, str)
        if get_origin(kind) is tuple:
            kind = (list[dict[str, Any]] if name == "own_indices" else list[str]) | None
            defaults[name] = None
        kinds[name] = str if name == "scenario" else kind
        default = inspect.Parameter.empty if name == "context" else defaults[name]
        parameters.append(inspect.Parameter(name, _ANY, default=default, annotation=kinds[name]))
    meanings = "\n".join(f"    {name}: {meaning(name)}." for name in kinds)
    vars(Api.compare)["__signature__"] = inspect.Signature(parameters, return_annotation=Result)
    Api.compare.__annotations__ = kinds | {"return": Result}
    Api.compare.__doc__ = f"{inspect.getdoc(Api.compare)}\n\nArgs:\n{meanings}\n"


_declare_arguments()


def _endpoint(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method as Gradio calls it; errors become what its clients show."""

    @wraps(method)
    async def call(*args: object, **named: object) -> object:
        # MCP hands over the bare request, and shows what str() makes of an answer.
        by_mcp = isinstance(LocalContext.request.get(None), Request)
        try:
            if inspect.iscoroutinefunction(method):
                answer = await method(*args, **named)
            else:
                answer = await in_turn(method, *args, **named)
        except CkvError as error:
            if by_mcp:
                raise
            raise gr.Error(str(error), print_exception=False) from None
        except Exception:
            LOGGER.exception("The endpoint %s failed.", method.__name__)
            raise gr.Error(BROKEN, print_exception=False) from None
        return json.dumps(answer) if by_mcp else answer

    vars(call)["__signature__"] = inspect.signature(method)
    return call


# --- the same as plain JSON routes ------------------------------------------------------

STATUSES: dict[type[CkvError], int] = {
    ConfigError: 400,
    PromptError: 400,
    AccessError: 403,
    RunMissingError: 404,
    LimitError: 429,
}
NO_OBJECT = 'Send a JSON object with the arguments, such as {"context": "a long text"}.'


def endpoints(api: Any) -> list[tuple[str, str, Callable[..., Any]]]:
    """Verb, path and method of each endpoint of `Api`, or of one of its instances."""
    return [
        ("POST", "/api/runs", api.compare),
        ("GET", "/api/runs/{slug}", api.get_run),
        ("POST", "/api/runs/{slug}/cancel", api.cancel),
        ("GET", "/api/runs", api.list_runs),
        ("GET", "/data/{slug}/result.json", api.export_run),
        ("GET", "/api/methods", api.list_methods),
        ("GET", "/api/models", api.list_models),
    ]


def api_routes(api: Api) -> list[Route]:
    """All routes but those of files; the guard in front of them knows who asks."""
    described = openapi.document(endpoints(Api))
    return [
        *(_route(*each) for each in endpoints(api) if each[1].startswith("/api/")),
        Route("/api/openapi.json", lambda _: JSONResponse(described, headers=NO_STORE)),
    ]


def _route(verb: str, path: str, method: Callable[..., Any]) -> Route:
    """An endpoint whose arguments are a body, or the query and the path; 202 for what goes on."""

    async def answer(request: Request) -> Response:
        try:
            has_body = verb == "POST" and "{" not in path
            given = _read_object(await request.body()) if has_body else _read_query(request, method)
            content = await _call(method, given | request.path_params)
        except CkvError as error:
            codes = [code for kind, code in STATUSES.items() if isinstance(error, kind)]
            return JSONResponse({"error": str(error)}, codes[0] if codes else 503, headers=NO_STORE)
        goes_on = verb == "POST" and not content.get("over")
        return JSONResponse(content, 202 if goes_on else 200, headers=NO_STORE)

    return Route(path, answer, methods=[verb])


async def _call(method: Callable[..., Any], given: dict[str, Any]) -> Any:
    parameters = inspect.signature(method).parameters
    for name in given:
        if name not in parameters:
            raise ConfigError(f"{name[:40]!r} is no argument; known are {', '.join(parameters)}.")
    for name, parameter in parameters.items():
        if name not in given and parameter.default is parameter.empty:
            raise ConfigError(f"{name} is missing.")
    if inspect.iscoroutinefunction(method):
        return await method(**given)
    return await in_turn(method, **given)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        given = BOUNDS.read(body)
    except NoJsonError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(NO_OBJECT)
    return given


def _read_query(request: Request, method: Callable[..., Any]) -> dict[str, Any]:
    """The query's values, as numbers where the method takes numbers."""
    parameters = inspect.signature(method).parameters
    given: dict[str, Any] = dict(request.query_params)
    for name, text in given.items():
        kind = parameters[name].annotation if name in parameters else str
        if kind in (int, float):
            try:
                given[name] = kind(text)
            except ValueError:
                raise ConfigError(f"{name} must be a number.") from None
    return given
