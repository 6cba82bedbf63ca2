"""Records to columns, documents and compressed arrays, and back; no query here."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckv_core.experiment.study import Sample
from ckv_core.records.codec import plain, record_json, revived
from ckv_core.records.external_selection import own_from_json, own_to_json
from ckv_core.records.metrics import ANALYSIS_ARRAYS
from ckv_core.records.records import (
    HeldSeries,
    Perturbation,
    RetainedSet,
    VariantResult,
)
from ckv_core.records.run_request import RunRequest
from storage.models import Array, JsonObject, ResultRow, SampleRow

Columns = dict[str, Any]
ONLY_SAMPLE = ""  # id of the sample of a run of one
# Texts of a request live in the table samples, so that a list of runs need not read them.
TEXT_FIELDS = ("context", "question", "answer")
_LISTED = ("choices", "evidence", "protect")
_DETAILS = ("metric", "source", "tags", "answer_prefix", "max_new_tokens", *_LISTED)
_PERTURBATION = ("head_l1", "base_head_l1", "layer_hidden_l1")
# Long members of a variant, by the names of the arrays that hold them.
_LISTS = ("token_ids", "token_texts", "forced_steps", "follow_ups", "sampled_texts")
_ARRAYS = {
    **{name: (name,) for name in (*_LISTS, "retained")},
    "perturbation": _PERTURBATION,
    "held": ("held", "evicted"),
}
# Members of a variant that are columns of its result; its document has the rest.
_COLUMNS = {"spec": "variant"} | {
    name: name
    for name in ("method", "text", "stopped", "agreement", "first_difference", "answer_found")
}


# --- requests, samples and prompts --------------------------------------------------------


def request_json(request: RunRequest) -> JsonObject:
    """A request without its texts and its external selections."""
    return record_json(request, leave_out=(*TEXT_FIELDS, "own_indices"))


def only_sample(request: RunRequest) -> Columns:
    """Columns of the only sample of a run."""
    answers = (request.answer,) if request.answer else ()
    only = Sample(
        id=ONLY_SAMPLE, context=request.context, question=request.question, answers=answers
    )
    own = encode_json(own_to_json(request.own_indices)) if request.own_indices else None
    return sample_columns(only) | {"position": 0, "own_indices": own}


def sample_columns(sample: Sample) -> Columns:
    """Columns of a sample, its position apart."""
    return {
        "sample": sample.id,
        "question": sample.question,
        "answers": list(sample.answers),
        "details": {name: getattr(sample, name) for name in _DETAILS},
        "context": sample.context,
    }


def request_record(stored: JsonObject, sample: SampleRow) -> RunRequest:
    """The request as it was made."""
    documents = decode_json(sample.own_indices) if sample.own_indices else []
    own = own_from_json(documents)
    texts = {"context": sample.context, "question": sample.question}
    texts["answer"] = sample.answers[0] if sample.answers else ""
    return replace(revived(RunRequest, {**stored, **texts}), own_indices=own)


def sample_record(row: SampleRow) -> Sample:
    """One sample of many as it was given."""
    details = {**row.details, "answers": tuple(row.answers), "id": row.sample}
    details |= {name: tuple(details.get(name, ())) for name in _LISTED}
    return Sample(context=row.context, question=row.question, **details)


# --- variants ---------------------------------------------------------------------------


def result_columns(members: Mapping[str, Any], document: JsonObject | None = None) -> Columns:
    """Columns of `results` that these members of a variant fill; they join its document."""
    columns = {_COLUMNS[name]: value for name, value in members.items() if name in _COLUMNS}
    in_document = members.keys() - {"analysis", *_COLUMNS, *_ARRAYS}
    more = {name: plain(members[name]) for name in sorted(in_document)}
    if members.get("perturbation") is not None:
        more["perturbation"] = record_json(members["perturbation"], leave_out=_PERTURBATION)
    if more:
        columns["document"] = {**(document or {}), **more}
    if members.get("receipt") is not None:
        columns["budget_tokens"] = members["receipt"].budget_tokens
    if "stopped" in members:
        columns["state"] = "done" if members["stopped"] else "running"
    return columns


def variant_arrays(members: Mapping[str, Any]) -> dict[str, Columns | None]:
    """Rows of `arrays` of these members of a variant, by name; None where there is none."""
    rows: dict[str, Columns | None] = {
        name: _encode(array, "<f4") for name, array in members.get("analysis", {}).items()
    }
    for member in _ARRAYS.keys() & members.keys():
        rows |= dict.fromkeys(_ARRAYS[member])
        value = members[member]
        if member in _LISTS and value:
            rows[member] = {"shape": [len(value)], "data": encode_json(plain(value))}
        elif member == "retained" and value is not None:
            shape = [value.layers, value.kv_heads, value.positions]
            rows[member] = {"shape": shape, "data": zlib.compress(value.bits)}
        elif member == "held" and value is not None:
            rows["held"] = _encode(np.array([value.entries, value.cache_bytes]), "<i8")
            rows["evicted"] = _encode(value.evictions(), "<u4")
        elif member == "perturbation" and value is not None:
            arrays = {name: getattr(value, name) for name in _PERTURBATION}
            rows |= {name: _encode(a, "<f4") for name, a in arrays.items() if a is not None}
    return rows


def variant_record(row: ResultRow, arrays: Mapping[str, Array]) -> VariantResult:
    """One variant as its events left it."""
    document = row.document or {}
    members = {name: value for name, value in document.items() if name not in _ARRAYS}
    members |= {name: getattr(row, column) for name, column in _COLUMNS.items()}
    members |= {name: decode_json(arrays[name].data) for name in _LISTS if name in arrays}
    names = [name for name in (*_PERTURBATION, *ANALYSIS_ARRAYS) if name in arrays]
    floats: dict[str, Any] = {name: _decode(arrays[name], "<f4") for name in names}
    measured = None
    if "head_l1" in floats:
        scalars = document.get("perturbation") or {"kl": None}  # all of them were NaN
        of_heads = {name: floats.pop(name, None) for name in _PERTURBATION}
        measured = revived(Perturbation, scalars | of_heads)
    held = None
    if "held" in arrays:
        entries, cache_bytes = map(tuple, _decode(arrays["held"], "<i8").tolist())
        evicted = _decode(arrays["evicted"], "<u4").tobytes()
        held = HeldSeries(entries=entries, cache_bytes=cache_bytes, evicted=evicted)
    return replace(
        revived(VariantResult, members),
        retained=decode_retained(arrays["retained"]) if "retained" in arrays else None,
        perturbation=measured,
        analysis=floats,
        held=held,
    )


# --- compressed values ------------------------------------------------------------------


def encode_json(value: object) -> bytes:
    """Compress JSON values; half a character (a lone surrogate) is kept as it is."""
    return zlib.compress(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def decode_json(data: bytes) -> Any:
    """Undo `encode_json`; tuples come back as lists."""
    return json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass"))


def _encode(array: NDArray[Any], dtype: str) -> Columns:
    """Compress an array of any shape; NaN and infinity survive."""
    data = zlib.compress(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return {"shape": list(array.shape), "data": data}


def _decode(row: Array, dtype: str) -> NDArray[Any]:
    """Undo `_encode`; the array is read-only, as it may be shared."""
    values = np.frombuffer(zlib.decompress(row.data), dtype=dtype).reshape(row.shape)
    return values.astype(np.dtype(dtype).newbyteorder("="), copy=False)


def decode_retained(row: Array) -> RetainedSet:
    """The kept set of a variant."""
    return RetainedSet(zlib.decompress(row.data), *row.shape)
