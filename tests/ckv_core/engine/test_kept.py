"""A kept cache is the comparison's own, bit for bit; a file that is not is refused."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ckv_core.engine import kept
from ckv_core.engine.cache.kept import KeptCache, read_cache
from ckv_core.engine.compare import compare
from ckv_core.engine.kept import ask, keep
from ckv_core.errors import ConfigError, ModelError, PromptError, RunCancelledError
from ckv_core.records.events import Progress, RunFinished
from ckv_core.records.kept_caches import METADATA_KEY, read_record
from ckv_core.records.records import VariantResult
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec
from ckv_core.records.work_requests import AskRequest, KeepRequest
from tests.factories.events import folded
from tests.factories.models import SPECS, half_model, tiny_model
from tests.reference.report import report

pytestmark = pytest.mark.slow

CONTEXT = report()[2000:2330]
QUESTIONS = ("Who counted the vessels?", "Where was the harbour?")
DEFAULTS = {"budget": "48"}
HELD = (
    "full",
    "adakv",
    "pyramidkv:beta=3",
    "snapkv:budget=5000",
    "snapkv:layout=page:16",
    "adakv:store=int8",
    "adakv:store=int4,residual=8",
    "adakv+critical:store=think,residual=8",
    "snapkv:budget=5000,store=int8",
)


def request(path: Path, spec: str = "adakv", **more: object) -> KeepRequest:
    run = RunRequest(context=CONTEXT, variants=(spec,), defaults=DEFAULTS, **more)
    return KeepRequest(run=run, path=str(path))


def asked(path: Path, question: str = QUESTIONS[0]) -> AskRequest:
    return AskRequest(
        path=str(path), question=question, model="tiny", max_new_tokens=9, ignore_eos=True
    )


def answer(path: Path, question: str, arch: str = "llama") -> tuple[int, ...]:
    *_, last, end = [
        event
        for event in ask(asked(path, question), tiny_model(arch))
        if not isinstance(event, Progress)
    ]
    assert isinstance(end, RunFinished)
    return last.token_ids[0]


@cache
def compared(spec: str, question: str, arch: str = "llama", new_tokens: int = 9) -> VariantResult:
    """What the comparison has of the same variant."""
    run = RunRequest(
        context=CONTEXT,
        question=question,
        scenario="context-only",
        variants=(spec,),
        defaults=DEFAULTS,
        max_new_tokens=new_tokens,
        ignore_eos=True,
    )
    return folded(compare(run, tiny_model(arch))).variants[0]


def kept_file(folder: Path, spec: str = "adakv", arch: str = "llama") -> Path:
    path = folder / "cache.safetensors"
    list(keep(request(path, spec), tiny_model(arch)))
    return path


def held(cache: KeptCache) -> list[tuple[list[int], dict[str, Tensor]]]:
    """Slots and tensors of every stack of every layer; of a whole layer its keys and values."""
    found = []
    for slots in (cache.rows.slots(layer, 0) for layer in range(len(cache.rows.windows))):
        if slots.whole is not None:
            found.append(([], dict(zip("kv", slots.whole, strict=True))))
        if slots.state is not None:
            found.append(([], slots.state._asdict()))
        found += [(list(stack.slots), stack.segment.tensors()) for stack in slots.stacks]
    return found


# With sliding windows too; what a store or a layout changes is not a matter of them.
@pytest.mark.parametrize(
    ("arch", "spec"),
    [
        *(("llama", spec) for spec in HELD),
        *(("gemma3", spec) for spec in ("full", "adakv", "keydiff:prefill=blocks:64")),
        ("qwen3_next", "keydiff:prefill=blocks:64"),
    ],
)
def test_what_is_read_again_is_the_same_bit_for_bit_and_answers_as_the_comparison(
    tmp_path, monkeypatch, spec, arch
):
    made, write = [], kept.write_cache
    monkeypatch.setattr(kept, "write_cache", lambda *given: (made.append(given[1]), write(*given)))
    path = kept_file(tmp_path, spec, arch)
    before, (own,) = path.read_bytes(), made
    again = read_cache(path, tiny_model(arch))
    assert again.record == own.record
    assert (again.context, again.token_ids) == (own.context, own.token_ids)
    for (heads, tensors), (own_heads, own_tensors) in zip(held(again), held(own), strict=True):
        assert heads == own_heads
        assert tensors.keys() == own_tensors.keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == own_tensors[name].dtype
            assert torch.equal(tensor, own_tensors[name])
    for question in (*QUESTIONS, QUESTIONS[0]):  # asking changes nothing
        variant = compared(spec, question, arch)
        assert answer(path, question, arch) == variant.token_ids
        assert again.record.receipt == variant.receipt
        assert again.record.params == variant.params
    assert path.read_bytes() == before


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_is_kept_or_refused_with_a_reason(tmp_path, spec):
    parts = VariantSpec.parse(spec, DEFAULTS)
    if parts.policy is not None or parts.store.reads_part:
        reason = "saves no memory" if parts.store.reads_part else "evicts while it"
        with pytest.raises(ConfigError, match=reason):
            kept_file(tmp_path, spec)
        return
    path = kept_file(tmp_path, spec)
    record = read_record(path)
    assert record.receipt.retained_entries == record.receipt.requested_entries
    assert len(answer(path, QUESTIONS[0])) == 9


def test_the_file_tells_positions_that_others_can_use(tmp_path):
    path = kept_file(tmp_path)
    expected = torch.from_numpy(compared("adakv", "?", new_tokens=1).retained.mask())
    mask, (tensors, _) = torch.zeros_like(expected), parts_of(path)
    for name in tensors:
        if name.endswith(".positions"):
            heads = tensors[name.replace("positions", "heads")]
            for head, positions in zip(heads, tensors[name], strict=True):
                mask[int(name.split(".")[1]), head, positions.long()] = True
    assert torch.equal(mask, expected)


def parts_of(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A file's tensors and its record."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()[METADATA_KEY])


# --- refused ------------------------------------------------------------------------------

Change = Callable[[dict[str, Tensor], dict[str, Any]], object]  # of tensors and record


def first(tensors: dict[str, Tensor], ending: str) -> str:
    return next(name for name in sorted(tensors) if name.endswith(ending))


def changed(ending: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors, _: tensors.update(
        {name: change(tensors[name]) for name in [first(tensors, ending)]}
    )


def with_value(ending: str, value: float) -> Change:
    """In the first place."""
    return lambda tensors, _: tensors[first(tensors, ending)].view(-1)[:1].fill_(value)


def cut(ending: str) -> Change:
    return changed(ending, lambda tensor: tensor[..., :-1].contiguous())


def without(ending: str) -> Change:
    return lambda tensors, _: tensors.pop(first(tensors, ending))


def and_more(name: str) -> Change:
    return lambda tensors, _: tensors.update({name: torch.zeros(2)})


def told(**changes: object) -> Change:
    return lambda _, record: record.update(changes)


def one_entry_more(_: dict[str, Tensor], record: dict[str, Any]) -> None:
    record["receipt"]["retained_entries"] += 1


@pytest.fixture(scope="module")
def thin(tmp_path_factory) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and record of a good file with every kind of tensor."""
    folder = tmp_path_factory.mktemp("kept")
    return parts_of(kept_file(folder, "adakv:store=think,residual=8,budget=48"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (with_value(".positions", 10**6), "not ascending ones of the context"),
        (with_value(".positions", -1), "not ascending ones of the context"),
        (with_value(".positions", 300), "not ascending ones of the context"),
        (with_value(".heads", 1), "every KV head once"),
        (with_value(".heads", 7), "every KV head once"),
        (with_value(".keys", float("nan")), "not finite"),
        (with_value("channels", 99), "layer 1 has channels out of range"),
        (with_value("channels", -1), "layer 1 has channels out of range"),
        (changed(".keys", Tensor.half), "another shape or type"),
        (changed(".positions", Tensor.long), "not ascending"),
        (changed("token_ids", Tensor.long), "token ids are missing"),
        (cut(".values"), "another shape or type"),
        (cut(".positions"), "another shape or type"),
        (cut("token_ids"), "token ids are missing"),
        (with_value("context", 255), "not UTF-8"),
        (with_value("token_ids", 7), "cut into other tokens"),
        (without(".values"), "another shape or type"),
        (without(".heads"), "lacks heads or positions"),
        (without("context"), "context is missing"),
        (and_more("more"), "'more' is unknown"),
        (and_more("layers.9.0.keys"), "is unknown"),
        (told(spec="h2o:budget=48"), "evicts while it generates"),
        (told(spec="snapkv:budget=48"), "another shape or type"),
        (told(spec="nothing"), "nothing"),
        (told(compressed_tokens=5), "token ids are missing"),
        (told(compressed_tokens=0), "compressed_tokens"),
        (told(schema=2), "schema"),
        (told(receipt=None), "receipt"),
        (one_entry_more, "its receipt tells another number"),
        (told(created="<script>"), "created"),
    ],
)
def test_a_file_that_cannot_be_one_is_refused(thin, tmp_path, change, sentence):
    (tensors, record), path = deepcopy(thin), tmp_path / "cache.safetensors"
    change(tensors, record)
    save_file(tensors, path, {METADATA_KEY: json.dumps(record)})
    with pytest.raises((ConfigError, PromptError), match=sentence):
        answer(path, QUESTIONS[0])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}",
        (9).to_bytes(8, "little") + b"[[[[[[[[[",
        (20).to_bytes(8, "little") + b'{"a": 1}            ',
        (40).to_bytes(8, "little") + b'{"a": {"data_offsets": [0, "x"]}}       ',
        b"PK\x03\x04" * 40,
    ],
)
def test_bytes_that_are_no_safetensors_are_refused(tmp_path, data):
    path = tmp_path / "cache.safetensors"
    path.write_bytes(data)
    with pytest.raises(ConfigError):
        read_record(path)


def test_a_file_that_is_cut_short_or_longer_is_refused(tmp_path):
    path = kept_file(tmp_path)
    data = path.read_bytes()
    for other in (data[:-1], data[: len(data) // 2], data + b"0"):
        path.write_bytes(other)
        with pytest.raises(ConfigError, match="copy it again"):
            read_record(path)


def test_another_model_and_another_type_are_refused(tmp_path):
    path = kept_file(tmp_path)
    with pytest.raises(ModelError, match="load it in float32"):
        read_cache(path, half_model("llama"))
    with pytest.raises(ModelError, match="other sizes"):
        read_cache(path, tiny_model("gemma3"))
    own = tiny_model("llama")
    other = replace(own, info=replace(own.info, sha256="1" * 64))
    with pytest.raises(ModelError, match="made with other weights"):
        read_cache(path, other)


def test_nothing_is_written_where_it_is_not_wanted(tmp_path):
    path = kept_file(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="kept already"):
        kept_file(tmp_path)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(RunCancelledError):
        list(keep(request(path), tiny_model("llama"), lambda: True))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"question": " "}, "question is empty"),
        ({"max_new_tokens": 0}, "New tokens"),
        ({"dtype": "int3"}, "dtype must be"),
    ],
)
def test_a_wrong_question_is_one_sentence(change, sentence):
    with pytest.raises((ConfigError, PromptError), match=sentence):
        AskRequest(path="x", model="tiny", **{"question": "?"} | change).validate()
