"""One comparison: prefill once, select per variant, measure, decode all variants together.

A sweep decodes its variants group by group: only one group's kept sets and caches exist at a time,
so it takes no more memory than a comparison of GROUP_ROWS rows. The full cache's row is part of
every group; it is the prefill's own tensors.
"""

import math
import platform
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import transformers

from ckv_core.base.device_memory import PeakMemory, give_back
from ckv_core.base.stopwatch import Stopwatch
from ckv_core.base.version import __version__
from ckv_core.engine.choose import VariantKey, choose, compact_rows, protected_ranges, score
from ckv_core.engine.external_selection import mean_kept, own_mask
from ckv_core.engine.further_passes import Planned, further_passes
from ckv_core.engine.generate import follow_up_prompts, generate
from ckv_core.engine.generation import SharedDecode
from ckv_core.engine.head_tables import HeadTable, kept_table, table_of
from ckv_core.engine.memory import Sizes, check_memory
from ckv_core.engine.needle_probe import probe
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import prompt_of, prompt_tokens
from ckv_core.engine.query_centres import calibrate
from ckv_core.engine.rows import PromptRows
from ckv_core.engine.run import GROUP_ROWS, Run
from ckv_core.engine.timing import LONGEST, time_alone
from ckv_core.engine.utility_profile import profile
from ckv_core.errors import ConfigError, PromptError, about
from ckv_core.methods.parts.views import Table
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import movers
from ckv_core.records.byte_budget import resolve_budget
from ckv_core.records.events import (
    FloorMeasured,
    Generated,
    Progress,
    RunEvent,
    RunFinished,
    RunPrepared,
    VariantMeasured,
    VariantTook,
)
from ckv_core.records.records import (
    Float32Array,
    ModelInfo,
    PromptInfo,
    VariantMemory,
    VariantResult,
)
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec

# Kept positions of all points of a sweep, in JSON: a bundle takes up to 64 MiB a run.
MAX_KEPT_CHARS = 48 * 2**20


@torch.inference_mode()
def compare(
    request: RunRequest,
    loaded: LoadedModel,
    should_stop: Callable[[], bool] = lambda: False,
    prefills: PrefillCache | None = None,
    shared: SharedDecode | None = None,
) -> Generator[RunEvent]:
    """Run one comparison and report it as it goes.

    Args:
        request: what to compare.
        loaded: the model; its name need not be looked at again.
        should_stop: called at every layer of every pass.
        prefills: of this model; a prompt found there is not processed again, and the run's
            `prefill` time is then 0. Of one that starts alike the shared chunks are taken over.
        shared: where rows wait for those of other runs, which the reader of the next event has
            decoded meanwhile; None to decode them here.

    Yields:
        Events to be folded by `RunResult.apply`; RunFinished is the last.

    Raises:
        CkvError: a setting, the prompt or the model cannot be used; says what to do.
        RunCancelledError: should_stop returned true.
    """
    run, prefills = prepare(request, loaded, should_stop), prefills or PrefillCache(0)
    run.shared = shared
    give_back()  # what earlier runs left would hide what this one takes
    memory = check_memory(run, prefills)
    peak = PeakMemory(*loaded.devices)
    yield prepared(run, memory)
    try:
        prefilled = yield from _stages(run, prefills)
        growth = None if prefilled is None else peak.growth()
        if request.time and prefilled is not None:
            yield from time_alone(run, prefilled)
    finally:
        prefills.trim()
    measured = run.memory if growth is None else {**run.memory, "measured_peak": growth}
    if run.prefix_tokens:
        # Rounded up, so that the tokens can be computed from it.
        measured["prefill_reused"] = math.ceil(
            memory["cache"] * run.prefix_tokens / run.prompt.compressed_tokens
        )
    yield RunFinished(dict(run.stopwatch.timings_ms), measured)


def prepared(run: Run, memory: Mapping[str, int]) -> RunPrepared:
    """The first event of a run; `memory` is the estimate."""
    return RunPrepared(
        model=run.loaded.info,
        prompt=run.prompt,
        variants=tuple(
            VariantResult(
                spec=spec.spec, label=spec.label, method=spec.method.name, critical=spec.critical
            )
            for spec in run.specs
        ),
        environment=environment(),
        kind=run.request.kind,
        memory=memory,
    )


def _stages(run: Run, prefills: PrefillCache) -> Generator[RunEvent, None, Prefill | None]:
    """Returns the prefill that the variants share; None where each has its own."""
    if not run.request.reference:
        yield from _in_turn(run)
        return None
    prefilled = yield from read_prompt(run, prefills)
    if run.request.kind == "sweep":
        yield from _sweep(run, prefilled)
    else:
        forgets = prefilled not in prefills and not run.request.analysis
        yield from decoded_together(run, prefilled, forgets=forgets)
    return prefilled


def decoded_together(
    run: Run,
    prefilled: Prefill,
    measured: frozenset[VariantKey] = frozenset(),
    *,
    forgets: bool = False,
) -> Iterator[RunEvent]:
    """Select, measure and decode all variants of a run in one batch.

    `measured` as of `choose`. `forgets`: whether no later run needs a score.
    """
    points = "points" if run.request.kind == "sweep" else "variants"
    yield Progress("select", None, f"{len(run.specs)} {points}")
    selections, bases = yield from choose(run, prefilled, measured)
    rows = yield from compact_rows(run, prefilled, selections)
    if forgets:
        prefilled.memo.clear()
    yield from generate(run, prefilled, rows, selections, bases)


def _in_turn(run: Run) -> Iterator[RunEvent]:
    """One variant after the other, each with a prefill that is gone once its cache is compacted."""
    merged, peaks = _Merged(run), [0]
    for index in range(len(run.specs)):
        for event in _by_itself(run.alone(index)):
            if isinstance(event, Progress):
                share = (index + (event.fraction or 0.0)) / len(run.specs)
                detail = f"variant {index + 1} of {len(run.specs)}, {event.detail}"
                yield Progress(event.stage, share, detail)
            else:
                yield merged.event(event, [index])
                if isinstance(event, VariantTook):
                    known = event.memory.prefill_peak, event.memory.decode_peak
                    peaks += [each for each in known if each is not None]
    if max(peaks):
        run.memory["measured_peak"] = max(peaks)


def _by_itself(run: Run) -> Iterator[RunEvent]:
    """A run of one variant, and the memory that it takes."""
    give_back()
    before, after = Sizes.of(run).estimates
    peak = PeakMemory(*run.loaded.devices)
    rows, known = yield from _compacted(run)
    prefill_peak = peak.growth()
    give_back()
    peak.restart()
    yield from generate(run, None, rows, [], {})
    yield VariantTook(
        0,
        replace(
            known,
            prefill_peak=prefill_peak,
            decode_peak=peak.growth(),
            prefill_estimate=before,
            decode_estimate=after,
        ),
    )


def _compacted(run: Run) -> Generator[RunEvent, None, tuple[PromptRows, VariantMemory]]:
    """The row of a run of one variant, and what it held; its prefill has no name outside."""
    prefilled = None
    if not run.reading_in_blocks:
        prefilled = yield from read_prompt(run, PrefillCache(0))
    bases = frozenset(spec.base().settings() for spec in run.specs if spec.critical)
    selections, _ = yield from choose(run, prefilled, bases)
    rows = yield from compact_rows(run, prefilled, selections)
    return rows, selections[0].memory or VariantMemory()


def _sweep(run: Run, prefilled: Prefill) -> Iterator[RunEvent]:
    """Select, measure and decode all variants, plain ones first: they are the others' bases."""
    points = sorted(range(len(run.specs)), key=lambda point: run.specs[point].critical)
    measured = frozenset(spec.settings() for spec in run.specs if not spec.critical)
    starts = range(0, len(points), GROUP_ROWS - 1)
    groups = [points[start : start + GROUP_ROWS - 1] for start in starts]
    merged = _Merged(run)
    for number, group in enumerate(groups):
        part = replace(
            run,
            specs=[run.specs[point] for point in group],
            budgets=[run.budgets[point] for point in group],
            select_ms=[],  # the clock is the whole run's
            measures_floor=number == 0,
        )
        for event in decoded_together(part, prefilled, measured):
            if isinstance(event, Progress):
                share = (number + (event.fraction or 0.0)) / len(groups)
                detail = f"group {number + 1} of {len(groups)}, {event.detail}"
                yield Progress(event.stage, share, detail)
            else:
                yield merged.event(event, group)


class _Merged:
    """Turns the events of groups into events of the whole sweep."""

    def __init__(self, run: Run) -> None:
        self._specs = run.specs
        # Head L1 of every variant measured so far: a base that is a point is not measured twice.
        self._head_l1: dict[VariantKey, Float32Array] = {}
        self._rows: list[tuple[object, ...]] = [("", (), (), None)] * len(run.specs)

    def event(self, event: RunEvent, group: list[int]) -> RunEvent:
        """Returns the event with the sweep's own numbering of variants."""
        if isinstance(event, FloorMeasured):
            return event
        if isinstance(event, Generated):
            columns = (event.texts, event.token_ids, event.token_texts, event.stopped)
            for index, row in zip(group, zip(*columns, strict=True), strict=True):
                self._rows[index] = row
            return Generated(*zip(*self._rows, strict=True))
        index = group[event.index]  # type: ignore[union-attr]  # all others are of a variant
        if not isinstance(event, VariantMeasured):
            return replace(event, index=index)  # type: ignore[arg-type]  # as above
        spec, perturbation = self._specs[index], event.perturbation
        self._head_l1[spec.settings()] = perturbation.head_l1
        if spec.critical and perturbation.base_head_l1 is None:
            base = self._head_l1[spec.base().settings()]
            perturbation = replace(perturbation, base_head_l1=base)
        return replace(event, index=index, perturbation=perturbation)


def read_prompt(run: Run, prefills: PrefillCache) -> Generator[RunEvent, None, Prefill]:
    """The prompt, read or known, with all that the variants' scores ask for."""
    token_ids = run.prompt.token_ids[: run.prompt.compressed_tokens]
    if prefilled := prefills.get(token_ids, run.needs):
        run.stopwatch.timings_ms["prefill"] = 0.0
        yield Progress("prefill", 1.0, f"{len(token_ids):,} tokens reused")
    else:
        prefix, needs, tokens = prefills.prefix(token_ids, run.needs), run.needs, len(token_ids)
        run.prefix_tokens = 0 if prefix is None else prefix.tokens
        done = f"{run.prefix_tokens:,} of {tokens:,} tokens"
        yield Progress("prefill", run.prefix_tokens / tokens, done)
        reading = prefill(run.loaded, list(token_ids), needs, run.should_stop, prefix)
        with run.stopwatch.measure("prefill"):
            prefilled = yield from reading
        prefills.put(token_ids, prefilled)
    with run.stopwatch.measure("score"):
        yield from further_passes(prefilled, run.further_passes, run.should_stop)
        for table, spec in run.missing_tables.items():
            if kept_table(run.loaded.info, table) is None:  # a variant before may have made it
                yield from made_table(run.loaded, table, spec, run.should_stop)
    yield from score(run, prefilled)
    return prefilled


def made_table(
    loaded: LoadedModel,
    table: Table,
    spec: VariantSpec,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[Progress, None, HeadTable]:
    """Make a table that a variant asks for, and keep it."""
    if table.kind == "curves":
        return (yield from profile(loaded, table, spec, should_stop))
    if table.kind == "centres":
        return (yield from calibrate(loaded, table, should_stop))
    return (yield from probe(loaded, should_stop))


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a TorchVersion would load torch where it is unpickled
        "transformers": transformers.__version__,
        "app": __version__,
    }


def prepare(request: RunRequest, loaded: LoadedModel, should_stop: Callable[[], bool]) -> Run:
    """Tokens, SPECs, budgets and passes of a run; a CkvError where one of them cannot be."""
    request.validate()
    prompt = prompt_of(loaded.tokenizer, request)
    further = follow_up_prompts(loaded.tokenizer, request, prompt)
    most_new = max(request.max_new_tokens, LONGEST * request.time)
    for rendered in (prompt, *further):
        check_length(rendered.tokens, most_new, loaded.info.context_limit)
    passages = protected_ranges(prompt, request.protect)
    for spec in request.specs:
        if passages and spec.block and spec.selector.needs_entries:
            with about("protect"):
                raise ConfigError(
                    f"{spec.label} counts entries in order, which protected texts would move "
                    "between blocks; leave out the texts, or prefill."
                )
    tokens, question = prompt.compressed_tokens, prompt.question
    specs = [spec.protecting(passages, tokens, question) for spec in request.specs]
    info = loaded.info
    if any(spec.policy is not None and spec.policy.moves(spec.params) for spec in specs):
        movers(loaded, info.evictable_layers)
    entry_bytes = 2 * info.head_dim * loaded.model.dtype.itemsize
    planned = _planned(loaded, prompt, Needs.of(specs))
    tables = {table: spec for spec in specs for table in spec.tables}
    for table in sorted(tables):
        if not table.own:
            table_of(info, table)
    own_masks = [own_mask(own, info, prompt) for own in request.own_indices]
    budgets = [
        resolve_budget(spec, info, prompt.compressed_tokens, entry_bytes)
        for spec in specs[: len(request.points())]
    ]
    budgets += [int(mean_kept(mask, info)) for mask in own_masks]
    return Run(
        request=request,
        loaded=loaded,
        should_stop=should_stop,
        specs=specs,
        prompt=prompt,
        budgets=budgets,
        shows_kept=_shows_kept(
            request,
            info,
            prompt.compressed_tokens,
            [
                spec.holds(each, prompt.compressed_tokens)
                for spec, each in zip(specs, budgets, strict=True)
            ],
        ),
        stopwatch=Stopwatch(loaded.device),
        follow_up_prompts=further,
        own_masks=own_masks,
        further_passes=planned,
        missing_tables={
            table: spec
            for table, spec in tables.items()
            if table.own and kept_table(info, table) is None
        },
        passages=passages,
    )


def _shows_kept(request: RunRequest, info: ModelInfo, tokens: int, budgets: Sequence[int]) -> bool:
    """Not of many samples, nor of more points than a result file can hold as text."""
    slots = len(info.evictable_layers) * info.kv_heads
    kept = slots * sum(min(budget, tokens) for budget in budgets if budget < tokens)
    is_small = kept * len(f"{tokens}, ") <= MAX_KEPT_CHARS
    return request.kind == "compare" or (not request.name and is_small)


def _planned(loaded: LoadedModel, prompt: PromptInfo, needs: Needs) -> Planned:
    """The passes that variants ask for; PromptError where they reach over the model's limit."""
    if not needs.passes:
        return ()
    given = prompt_tokens(loaded.tokenizer, prompt)
    planned = [(each, each.passes(given)) for each in needs.passes]
    for each, passes in planned:
        longest = max(len(one.token_ids) for one in passes)
        over = prompt.compressed_tokens + longest - loaded.info.context_limit
        if over > 0:
            raise PromptError(
                f"A further pass reads {longest:,} tokens behind the prompt's "
                f"{prompt.compressed_tokens:,}; that is {over:,} over the model's limit of "
                f"{loaded.info.context_limit:,}. Lower {each.shorter_by!r} by as much, or shorten "
                "the context."
            )
    return planned


def check_length(prompt_tokens: int, max_new_tokens: int, limit: int) -> None:
    """Refuse a prompt that does not fit (PromptError); nothing is ever cut silently."""
    over = prompt_tokens + max_new_tokens - limit
    if over > 0:
        raise PromptError(
            f"The prompt has {prompt_tokens:,} tokens; with {max_new_tokens:,} new tokens that is "
            f"{over:,} over the model's limit of {limit:,}. Shorten the context by {over:,} tokens."
        )
