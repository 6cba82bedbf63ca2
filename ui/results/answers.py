"""The table of answers: what each method wrote, its outcome and what it kept. No Gradio."""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

from ckv_core.base.percent import percent
from ckv_core.errors import CkvError
from ckv_core.experiment.names import display_names
from ckv_core.experiment.regimes import run_regimes
from ckv_core.experiment.summary import MIB, TIMES, alone_note, outcome_title, time_cell
from ckv_core.experiment.table import Cell, metric_column
from ckv_core.records.metrics import METRICS
from ckv_core.records.outcomes import outcome_word
from ckv_core.records.records import FollowUp, VariantResult
from ckv_core.records.variants import VariantSpec
from ui.looks.palette import looks_of
from ui.services.live_runs import RunSnapshot

Piece = tuple[str, str]  # text, and "" | "diff" | "answer"
_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_COMPARED_WORDS = 80  # beyond the first difference; a longer text has moved on by then
_SHOWN = 150  # characters of a long text
_BEFORE = 60  # of them in front of the first difference
ENDS = "\N{MATHEMATICAL LEFT ANGLE BRACKET}end\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
_STOPS = {"eos": "", "length": "stopped at the limit of new tokens"}
_TIMES = {
    "prefill": "reading the text",
    "blocks": "reading it in blocks",
    "score": "scoring",
    "select": "choosing",
    "decode": "answering",
}
# Heads of the columns: label, unit and the metric whose definition explains it, or a sentence.
_TEXT = "The text that the method wrote. What differs from the full cache's is underlined."
_NAME = "The full cache first, then the methods that answered, then the others."


def answers_value(snapshot: RunSnapshot, *, sort: bool = True) -> dict[str, Any] | None:
    """Value of the AnswerTable; None until the variants are known.

    `sort` puts methods that answered first; a table that somebody watches keeps its order.
    """
    variants = snapshot.result.variants or _requested(snapshot)
    if not variants:
        return None
    rows = _rows(variants, variants, snapshot)
    regimes = run_regimes(snapshot.result)
    for at, (row, variant) in enumerate(zip(rows, variants, strict=True)):
        regime = regimes.marks[at] if regimes.head else ""
        row.update(_costs(variant), regime=regime, kept=variant.retained is not None)
        row["figures"] = {key: cell.page for key, cell in _times(variant).items()}
    rows.sort(key=lambda row: (not row["reference"], sort and row["outcome"] != "answered"))
    are_full = {variant.method == "full" for variant in variants}
    left_out = set() if are_full == {True, False} else {"agreement"}  # nothing to compare
    is_waited_for = snapshot.request.time and not snapshot.is_final
    if not is_waited_for and not any(row["figures"] for row in rows):
        left_out |= {*TIMES}
    return {
        "columns": [each for each in _columns() if each["key"] not in left_out],
        "rows": rows,
        "answer": snapshot.request.answer,
        "head": regimes.head,
        "note": _time_note(snapshot),
    }


def follow_ups_value(snapshot: RunSnapshot) -> dict[str, Any]:
    """Value of the FollowUpAnswers; no question is shown before it is answered."""
    variants, questions = snapshot.result.variants, []
    for at in range(max((len(v.follow_ups) for v in variants), default=0)):
        answered = [v for v in variants if len(v.follow_ups) > at]
        written = [v.follow_ups[at] for v in answered]
        rows = _rows(answered, written, snapshot)
        rows.sort(key=lambda row: not row["reference"])
        columns = [each for each in _columns() if each["key"] in ("name", "text", "agreement")]
        questions.append(
            {"question": written[0].question, "columns": columns, "rows": rows, "answer": ""}
        )
    return {"questions": questions}


def differing(text: str, reference: str, *, ended: bool = True) -> list[Piece]:
    """A text in pieces, those marked that the reference does not have there.

    `ended`: the text is whole, so that where it only stops earlier this is shown too.
    """
    own, other = _WORDS.findall(text), _WORDS.findall(reference)
    same = 0
    while same < min(len(own), len(other)) and own[same] == other[same]:
        same += 1
    end = same + _COMPARED_WORDS
    pieces: list[Piece] = [("".join(own[:same]), "")]
    matcher = SequenceMatcher(None, own[same:end], other[same:end], autojunk=False)
    for kind, first, last, _, _ in matcher.get_opcodes():
        pieces.append(("".join(own[same + first : same + last]), "" if kind == "equal" else "diff"))
    pieces.append(("".join(own[end:]), ""))
    if ended and same == len(own) and len(other) > same:
        pieces.append((ENDS, "diff"))
    return _joined(pieces)


def shortened(pieces: Sequence[Piece], *, at_end: bool = False) -> list[Piece]:
    """The part around the first difference of a long text, else its start; `at_end` its end."""
    whole = sum(len(text) for text, _ in pieces)
    if whole <= _SHOWN:
        return list(pieces)
    start, at = 0, 0
    for text, kind in pieces:
        if kind == "diff":
            start = max(0, at - _BEFORE)
            break
        at += len(text)
    start = min(whole - _SHOWN if at_end else start, whole - _SHOWN)
    found: list[Piece] = [("… ", "")] if start else []
    at = 0
    for text, kind in pieces:
        part = text[max(0, start - at) : max(0, start + _SHOWN - at)]
        found += [(part, kind)] if part else []
        at += len(text)
    return found + ([(" …", "")] if start + _SHOWN < whole else [])


def _rows(
    variants: Sequence[VariantResult],
    written: Sequence[VariantResult | FollowUp],
    snapshot: RunSnapshot,
) -> list[dict[str, Any]]:
    """One a variant with what it has written; the full cache's text is the reference."""
    every = snapshot.result.variants or variants
    looks, names = looks_of(every), display_names(every)
    texts = ["".join(each.token_texts) for each in written]
    pairs = zip(variants, texts, strict=True)
    reference = next((text for each, text in pairs if each.method == "full"), None)
    rows = []
    for variant, each, text in zip(variants, written, texts, strict=True):
        index, is_full = every.index(variant), variant.method == "full"
        ended = each.stopped is not None or snapshot.is_final
        compared = text if is_full or reference is None else reference
        pieces = differing(text, compared, ended=ended and bool(text))
        pieces = _with_answer(pieces, snapshot.request.answer if each is variant else "")
        row = {
            "index": index,
            "look": looks[index].value,
            "name": names[index],
            "spec": variant.spec,
            "reference": is_full,
            "pieces": pieces,
            "state": "done" if ended else "answering" if text else "waiting",
            "agreement": None if each.agreement is None or is_full else percent(each.agreement),
            "stop": _STOPS.get(each.stopped or "", ""),
        }
        if (short := shortened(pieces, at_end=not ended)) != pieces:
            row["short"] = short
        rows.append(row | (_outcome(variant) if each is variant else {}))
    return rows


def _outcome(variant: VariantResult) -> dict[str, Any]:
    return {
        "outcome": variant.outcome or "",
        "outcome_word": outcome_word(variant).capitalize(),
        "outcome_title": outcome_title(variant),
    }


def _costs(variant: VariantResult) -> dict[str, Any]:
    """Memory of the prompt's cache; None until the choice is made."""
    receipt = variant.receipt
    if receipt is None or not receipt.full_cache_bytes:
        return {"mib": None, "share": None}
    share = receipt.cache_bytes / receipt.full_cache_bytes
    costs = {"mib": f"{receipt.cache_bytes / MIB:,.1f}", "share": share}
    read = receipt.read_bytes
    if read is not None and read < receipt.cache_bytes:
        costs["reads"] = f"a step reads {read / MIB:,.1f} MiB"
    return costs


def _times(variant: VariantResult) -> dict[str, Cell]:
    cells = {key: time_cell(METRICS[key], variant) for key in TIMES}
    return {key: cell for key, cell in cells.items() if cell}


def _columns() -> list[dict[str, Any]]:
    answer, agreement, cache = (METRICS[key] for key in ("answer", "agreement", "cache_bytes"))
    times = [METRICS[key] for key in TIMES]
    return [
        {"key": "name", "label": "Method", "unit": "", "help": _NAME},
        {"key": "text", "label": "What it wrote", "unit": "", "help": _TEXT},
        {"key": "outcome", "label": "Outcome", "unit": "", "help": answer.definition},
        {"key": "memory", "label": "Memory kept", "unit": "MiB", "help": cache.definition},
        *(metric_column(each, lambda _: None).page | {"figure": True} for each in times),
        {"key": "agreement", "label": "Agreement", "unit": "", "help": agreement.definition},
    ]


def _time_note(snapshot: RunSnapshot) -> str:
    """Methods decode together, so that times are the run's and no method has one of its own."""
    if not snapshot.is_final:
        return "Outcome and agreement appear when a method has finished. You may close this page."
    known = {word: snapshot.stage_ms.get(stage) for stage, word in _TIMES.items()}
    parts = [f"{word} {_time(ms)}" for word, ms in known.items() if ms]
    if not parts:
        return ""
    turns = "They ran one after another, each with its own prefill."
    way = "They answered side by side." if snapshot.request.reference else turns
    reused = (
        ""
        if known["reading the text"] or known["reading it in blocks"]
        else "the text was read in an earlier run; "
    )
    together = f"Time of all methods together: {reused}{', '.join(parts)}. {way}"
    return " ".join(filter(None, (together, alone_note(snapshot.result.variants))))


def _time(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{max(ms, 1):.0f} ms"


def _requested(snapshot: RunSnapshot) -> list[VariantResult]:
    """The methods of a run that has not begun, of which nothing is known yet."""
    if snapshot.is_final:
        return []
    try:
        return [VariantResult.of(VariantSpec.parse(text)) for text in snapshot.request.variants]
    except CkvError:  # another server may know methods that this one does not
        return []


def _with_answer(pieces: Iterable[Piece], answer: str) -> list[Piece]:
    """The same with the expected answer marked where it stands in one piece."""
    if not answer.strip():
        return list(pieces)
    place = re.compile(f"({re.escape(answer.strip())})", re.IGNORECASE)
    found: list[Piece] = []
    for text, kind in pieces:
        parts = [text] if kind else place.split(text)
        found += [(part, kind or ("answer" if at % 2 else "")) for at, part in enumerate(parts)]
    return _joined(found)


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Without empty pieces; neighbours of one kind are one."""
    found: list[Piece] = []
    for text, kind in pieces:
        if not text:
            continue
        if found and found[-1][1] == kind:
            found[-1] = (found[-1][0] + text, kind)
        else:
            found.append((text, kind))
    return found
