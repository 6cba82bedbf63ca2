"""Records to columns, documents and arrays, and back; no query here."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ckv_core.request.compare_request import CompareRequest, Scenario
from ckv_core.request.external_selection import ExternalSelection
from ckv_core.results.codec import plain, record_json, revived
from ckv_core.results.external_selection_json import own_from_json, own_to_json
from ckv_core.results.quantities import QUANTITIES
from ckv_core.results.records import Perturbation, PromptInfo, VariantResult
from ckv_core.runtime.json_fields import JsonField
from storage.codecs import (
    EncodedArray,
    decode_floats,
    decode_held,
    decode_ints,
    decode_json,
    decode_retained,
    encode_floats,
    encode_held,
    encode_ints,
    encode_json,
    encode_list,
    encode_retained,
)
from storage.models import JsonObject, Prompt

Columns = dict[str, Any]
# Texts of a request live in the table prompts, so that a list of runs need not read them.
TEXT_FIELDS = ("context", "question", "answer")
# So do external selections, for the same reason.
_ELSEWHERE = (*TEXT_FIELDS, "own_indices")
_PERTURBATION = ("head_l1", "base_head_l1", "layer_hidden_l1")
# Long members of a variant, by the names of the arrays that hold them; its document has the rest.
_LISTS = ("token_ids", "token_texts", "forced_steps", "follow_ups")
_ARRAYS = {
    **{name: (name,) for name in (*_LISTS, "retained")},
    "perturbation": _PERTURBATION,
    "held": ("held", "evicted"),
}
_SORTED = ("spec", "method", "agreement", "first_difference", "answer_found")


def request_json(request: CompareRequest) -> JsonObject:
    """A request without its texts and its external selections."""
    return record_json(request, leave_out=_ELSEWHERE)


def request_record(stored: JsonObject, prompt: Prompt) -> CompareRequest:
    """The request as it was asked."""
    texts = {name: getattr(prompt, name) for name in TEXT_FIELDS}
    documents = decode_json(prompt.own_indices) if prompt.own_indices else []
    own = own_from_json([JsonField(each) for each in documents])
    return replace(revived(CompareRequest, {**stored, **texts}), own_indices=own)


def own_column(own_indices: tuple[ExternalSelection, ...]) -> bytes | None:
    """Kept positions that came with a request."""
    return encode_json(own_to_json(own_indices)) if own_indices else None


def prompt_columns(prompt: PromptInfo) -> Columns:
    """Columns of `prompts` that the tokenised prompt fills."""
    return {
        "scenario": prompt.scenario,
        "compressed_tokens": prompt.compressed_tokens,
        "context_first": prompt.context_tokens[0],
        "context_end": prompt.context_tokens[1],
        "token_ids": encode_ints(prompt.token_ids),
        "pieces": encode_json(prompt.pieces),
    }


def prompt_record(row: Prompt) -> PromptInfo | None:
    """The tokenised prompt; None before tokenisation."""
    if row.token_ids is None or row.pieces is None:
        return None
    return PromptInfo(
        scenario=cast("Scenario", row.scenario),
        token_ids=decode_ints(row.token_ids),
        compressed_tokens=cast("int", row.compressed_tokens),
        pieces=tuple(decode_json(row.pieces)),
        context_tokens=(cast("int", row.context_first), cast("int", row.context_end)),
    )


def variant_document(members: Mapping[str, Any]) -> JsonObject:
    """What these members of a variant put into its document: all but their arrays."""
    document = {
        name: plain(value) for name, value in members.items() if name not in ("analysis", *_ARRAYS)
    }
    if members.get("perturbation") is not None:
        document["perturbation"] = record_json(members["perturbation"], leave_out=_PERTURBATION)
    return document


def variant_columns(document: JsonObject) -> Columns:
    """Columns of `variants` of a whole document, itself among them."""
    budget = (document.get("receipt") or {}).get("budget_tokens")
    same = {name: document[name] for name in _SORTED}
    return {**same, "budget_tokens": budget, "document": document}


def variant_arrays(members: Mapping[str, Any]) -> dict[str, EncodedArray | None]:
    """Rows of `arrays` of these members of a variant, by name; None where there is none."""
    rows: dict[str, EncodedArray | None] = {
        name: encode_floats(array) for name, array in members.get("analysis", {}).items()
    }
    for member in _ARRAYS.keys() & members.keys():
        rows |= dict.fromkeys(_ARRAYS[member])
        value = members[member]
        if member in _LISTS and value:
            rows[member] = encode_list(plain(value))
        elif member == "retained" and value is not None:
            rows["retained"] = encode_retained(value)
        elif member == "held" and value is not None:
            rows |= encode_held(value)
        elif member == "perturbation" and value is not None:
            arrays = {name: getattr(value, name) for name in _PERTURBATION}
            rows |= {name: encode_floats(a) for name, a in arrays.items() if a is not None}
    return rows


def variant_record(document: JsonObject, arrays: Mapping[str, EncodedArray]) -> VariantResult:
    """One variant as its events left it."""
    members = {name: value for name, value in document.items() if name not in _ARRAYS}
    members |= {name: decode_json(arrays[name].data) for name in _LISTS if name in arrays}
    retained = arrays.get("retained")
    names = [name for name in (*_PERTURBATION, *QUANTITIES) if name in arrays]
    floats: dict[str, Any] = {name: decode_floats(arrays[name]) for name in names}
    measured = None
    if "head_l1" in floats:
        scalars = document.get("perturbation") or {"kl": None}  # all of them were NaN
        of_heads = {name: floats.pop(name, None) for name in _PERTURBATION}
        measured = revived(Perturbation, scalars | of_heads)
    return replace(
        revived(VariantResult, members),
        retained=decode_retained(retained) if retained else None,
        perturbation=measured,
        analysis=floats,
        held=decode_held(arrays),
    )
