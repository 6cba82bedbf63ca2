"""The selection stages of a run: scores, what every variant and its base keep, their caches.

Passages that a request protects are never evicted; a method's own sinks and window are declared by
its parts.
"""

import hashlib
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from ckv_core.base.spans import merged, ranges_text
from ckv_core.engine.blocks import read_blocks
from ckv_core.engine.cache.slots import Keep
from ckv_core.engine.candidates import Chooser, PromptLayer
from ckv_core.engine.external_selection import own_selection
from ckv_core.engine.prefill import Prefill
from ckv_core.engine.rows import Acting, PromptRows, RowPlan, prompt_rows
from ckv_core.engine.run import Run
from ckv_core.engine.select import Selection, receipt, retained_set, select_all
from ckv_core.errors import PromptError
from ckv_core.methods.parameters import ParameterValue
from ckv_core.models.rope import movers
from ckv_core.records.events import Progress, RunEvent, VariantAnalysed, VariantSelected
from ckv_core.records.passages import spans_of
from ckv_core.records.records import PromptInfo
from ckv_core.records.run_request import MAX_PROTECTED, TOKEN_RANGE, no_passage
from ckv_core.records.variants import VariantSpec

VariantKey = tuple[object, ...]


def score(run: Run, prefilled: Prefill) -> Iterator[RunEvent]:
    """Have the statistics that the variants share, so that their time is counted as such."""
    evicting = [
        spec
        for spec, budget in zip(run.specs, run.budgets, strict=True)
        if spec.method.scorer is not None and budget < prefilled.prompt_len
    ]
    windows = sorted({spec.queries for spec in evicting if spec.scorer.needs_window})
    norms = sorted({order for spec in evicting for order in spec.norm_orders})
    evictable = run.loaded.info.evictable_layers
    for count, layer in enumerate(evictable):
        with run.stopwatch.measure("score"):
            view = PromptLayer(prefilled, layer)
            for window in windows:
                view.window_attention(window)
            for order in norms:
                view.value_norms(order)
        yield Progress("score", (count + 1) / len(evictable), f"layer {layer + 1}")


def choose(
    run: Run, prefilled: Prefill | None, measured: frozenset[VariantKey] = frozenset()
) -> Generator[Progress, None, tuple[list[Selection], dict[int, Selection]]]:
    """Choose for every variant, and for the base of every variant with CriticalKV.

    A base that is itself a variant is not chosen twice; one of `measured` is left out. Those that
    read the prompt in blocks do so first; without others there need be no prefill.
    """
    scored = len(run.specs) - len(run.own_masks)
    specs, budgets = run.specs[:scored], run.budgets[:scored]
    place = {spec.settings(): row for row, spec in enumerate(specs)}
    base_of: dict[int, int] = {}
    for row, spec in enumerate(run.specs):
        if not spec.critical:
            continue
        base = spec.base()
        key = base.settings()
        if key in measured:
            continue
        if key not in place:
            place[key] = len(specs)
            specs.append(base)
            budgets.append(run.budgets[row])
        base_of[row] = place[key]
    blocks: dict[int, Selection] = {}
    for row in run.reading_in_blocks:
        blocks[row] = yield from read_blocks(run, specs[row], budgets[row])
    others = [row for row in range(len(specs)) if row not in blocks]
    found = dict(blocks)
    if prefilled is not None:
        settings = [specs[row] for row in others], prefilled, [budgets[row] for row in others]
        selected = select_all(*settings, run.stopwatch.now, run.should_stop)
        found |= dict(zip(others, selected, strict=True))
    chosen = [found[row] for row in range(len(specs))]
    wanted = chosen[:scored] + [
        own_selection(run, cast(Prefill, prefilled), mask) for mask in run.own_masks
    ]
    run.select_ms.extend(selection.elapsed_ms for selection in wanted)
    read = sum(selection.prefill_ms or 0.0 for selection in blocks.values())
    for name, spent in (
        ("select", sum(selection.elapsed_ms for selection in wanted)),
        ("measure", sum(selection.elapsed_ms for selection in chosen[scored:])),
        *((("blocks", read),) if blocks else ()),
    ):
        run.stopwatch.timings_ms[name] = run.stopwatch.timings_ms.get(name, 0.0) + spent
    return wanted, {row: chosen[base] for row, base in base_of.items()}


def compact_rows(
    run: Run, prefilled: Prefill | None, selections: list[Selection]
) -> Generator[RunEvent, None, PromptRows]:
    """The caches of all rows, and for each a receipt and what it keeps.

    Selections let go of prefills of their own; one of them stands for the shared one that is None.
    """
    prefilled = prefilled or cast(Prefill, selections[0].own)
    with run.stopwatch.measure("select"):
        chosen = zip(run.specs, selections, strict=True)
        plans = [row_plan(spec, selection, prefilled) for spec, selection in chosen]
        everything = RowPlan([Keep(None)] * len(prefilled.layers))
        rows = prompt_rows(prefilled, plans + [everything] * (run.rows - len(plans)))
    selections[:] = [replace(each, own=None) for each in selections]
    info = run.loaded.info
    for row, spec in enumerate(run.specs):
        selection = selections[row]
        own = {} if selection.prefill_ms is None else {"prefill": selection.prefill_ms}
        shown = spec.method.name != "full" and run.shows_kept
        yield VariantSelected(
            index=row,
            params=resolved(run, spec, selection),
            retained=retained_set(selection, info, prefilled.prompt_len) if shown else None,
            receipt=receipt(selection, info, rows, row),
            timings_ms={**own, "select": run.select_ms[row]},
            memory=selection.memory,
        )
        if selection.arrays:
            arrays = selection.arrays.items()
            found = {}
            for name, array in arrays:  # [layers, kv_heads]; NaN in layers that are not evicted
                found[name] = np.full((info.layers, info.kv_heads), np.nan, np.float32)
                found[name][list(info.evictable_layers)] = array.cpu().numpy()
            yield VariantAnalysed(row, found)
    return rows


def resolved(run: Run, spec: VariantSpec, selection: Selection) -> dict[str, ParameterValue]:
    """Every parameter that decided what a variant kept, as it is recorded."""
    budget = {} if spec.method.name == "full" else {"budget": selection.budget}
    protection: dict[str, str] = {}
    if run.passages and spec.method.evicts:  # a word for the texts, and their positions
        name = short_name(run.request.protect)
        protection = {"protect": name, "protected": ranges_text(run.passages)}
    if spec.keeps_question and run.prompt.question:
        protection["question_at"] = ranges_text((run.prompt.question,))
    return {**spec.params, **budget, **protection}


def row_plan(spec: VariantSpec, selection: Selection, prefilled: Prefill) -> RowPlan:
    """How one variant's row is held, and what goes on evicting from it."""
    info, policy = prefilled.loaded.info, spec.policy
    parameters = {**spec.params, "budget": selection.budget}
    parameters["query_group"] = info.query_heads // info.kv_heads
    read = selection.own or prefilled
    parameters["prompt_len"] = read.prompt_len
    views = [PromptLayer(read, layer) for layer in range(len(read.layers))]
    place_of = {layer: place for place, layer in enumerate(info.evictable_layers)}
    stores = [spec.store.of_layer(place_of.get(view.layer, 0), parameters) for view in views]
    keeps = [
        Keep(
            mask,
            store,
            parameters,
            store.weights(view, parameters) if view.layer in place_of else None,
        )
        for mask, store, view in zip(selection.keep_masks, stores, views, strict=True)
    ]
    if policy is None:
        return RowPlan(keeps, own=selection.own)
    evictable = info.evictable_layers
    carried = {layer: policy.begins_with(views[layer], parameters) for layer in evictable}
    chooser = Chooser(spec, prefilled.loaded)
    rotaries = movers(prefilled.loaded, evictable) if policy.moves(parameters) else {}
    acting = Acting(policy, parameters, carried, chooser, rotaries, spec.passages)
    return RowPlan(keeps, acting, selection.own)


_NAME_CHARS = 24


def protected_ranges(prompt: PromptInfo, protect: Sequence[str]) -> tuple[range, ...]:
    """Positions of the compressed prompt that are protected: ascending, apart from one another.

    `protect`: each a text, every occurrence of which counts (case and spacing ignored), or
    `tokens:FIRST-LAST`, positions of the prompt with both ends.

    Raises:
        PromptError: a text does not occur, positions lie outside, or the places are too many.
    """
    ranges = merged(place for text in protect for place in _places_of(prompt, text.strip()))
    if len(ranges) > MAX_PROTECTED:
        raise PromptError(
            f"The protected texts occur in {len(ranges):,} places of the prompt; up to "
            f"{MAX_PROTECTED} can be protected: give longer texts, or positions (tokens:12-39)."
        )
    return ranges


def short_name(protect: Sequence[str]) -> str:
    """One word for the texts, to tell variants apart: the first letters, and a digest of all."""
    digest = hashlib.sha256("\0".join(sorted(protect)).encode()).hexdigest()[:8]
    letters = re.sub(r"\W+", "_", protect[0], flags=re.ASCII).strip("_")[:_NAME_CHARS]
    return f"{letters}~{digest}"


def _places_of(prompt: PromptInfo, text: str) -> list[range]:
    match, compressed = TOKEN_RANGE.fullmatch(text), prompt.compressed_tokens
    if match is None:
        places = [range(*span) for span in spans_of(prompt, text)]
        if not places:
            raise no_passage(text)
        return places
    first, last = int(match[1]), int(match[2])
    if not first <= last < compressed:
        raise PromptError(
            f"{text!r} is no passage of the compressed prompt, whose positions are 0 to "
            f"{compressed - 1:,}; give the first and the last position."
        )
    return [range(first, last + 1)]
