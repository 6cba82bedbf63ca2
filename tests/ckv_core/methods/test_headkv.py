"""HeadKV, KVzip and KVgrad, which read more than the prompt: against loops and plain passes."""

from collections import deque
from dataclasses import replace
from fractions import Fraction
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.cli import main
from ckv_core.engine import head_tables
from ckv_core.engine import needle_probe as needle
from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.compare import compare
from ckv_core.engine.further_passes import further_passes
from ckv_core.engine.head_tables import keep_table, kept_table, parse_table, table_of
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.prompt import build_prompt, prompt_tokens
from ckv_core.errors import ConfigError, ModelError, PromptError, RunCancelledError
from ckv_core.methods.headkv import shared_budgets
from ckv_core.methods.kvzip import Reconstruction
from ckv_core.methods.parts.views import PromptShape, PromptTokens, Table, statistic_bytes
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Progress, RunResult
from ckv_core.records.run_request import SCENARIOS, RunRequest, Scenario
from ckv_core.records.variants import VariantSpec
from tests.factories.models import drained, plain_model, tiny_model, tiny_tokenizer
from tests.factories.tiny_runs import short_request
from tests.reference import kvzip as literal
from tests.reference.budgets import largest_remainder
from tests.reference.comparison import build_prompt as literal_prompt
from tests.reference.kvgrad import attributed
from tests.reference.report import report

LLAMA = tiny_model("llama").info  # 3 layers, 2 KV heads, 4 query heads
NEEDLES = Table("needle", own=True)
GOOD = "0.1\t0.9\n1\t-1e-4\n0\t3\n"


@given(
    st.lists(st.lists(st.integers(0, 8), min_size=2, max_size=2), min_size=1, max_size=4),
    st.integers(0, 30),
    st.fractions(1, 10, max_denominator=8),
    st.booleans(),
)
def test_budgets_are_the_formulas(table, spare, beta, text):
    """B = (b - p) + p * heads * importance / sum, with p = b / beta, or the other part of b."""
    parts = [Fraction(each, 8) for row in table for each in row]
    parts = parts if any(parts) else [Fraction(1)] * len(parts)
    pool = spare - spare / beta if text else spare / beta
    wished = [spare - pool + pool * len(parts) * each / sum(parts) for each in parts]
    expected = largest_remainder(wished, spare * len(parts), 10_000)
    rows = [[each / 8 for each in row] for row in table]
    pooled = 1 - 1 / beta if text else 1 / beta
    assert shared_budgets(rows, spare, 10_000, pooled).tolist() == expected


def test_the_probe_counts_the_strongest_entries_that_lie_in_the_needle():
    """One reading against plain transformers' attention, by loops."""
    loaded, plain = tiny_model("llama"), plain_model("llama")
    sentence, question = needle._NEEDLES[0]
    ids, place = needle._prompt(loaded, sentence, question, 0.5)
    assert len(ids) <= needle._TOKENS
    assert loaded.tokenizer.decode(ids[place]).strip() == sentence
    spoken = loaded.tokenizer(sentence, add_special_tokens=False)["input_ids"]
    answer, text = len(spoken), ids + spoken[:-1]
    with torch.inference_mode():
        result = drained(prefill(loaded, text, Needs(answer), lambda: False))
        attention = plain(torch.tensor([text]), output_attentions=True).attentions
    length = place.stop - place.start
    for layer in range(loaded.info.layers):
        heads = []
        for head in range(4):
            total = 0.0
            for row in attention[layer][0, head, -answer:].tolist():
                strongest = sorted(range(len(row)), key=lambda i, row=row: -row[i])[:length]
                inside = [i for i in strongest if place.start <= i < place.stop]
                total += sum(row[i] for i in inside) / length
            heads.append(total)
        found = needle._looked_at(PromptLayer(result, layer), place, answer)
        expected = [(heads[0] + heads[1]) / 2, (heads[2] + heads[3]) / 2]
        assert found.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def asked(**changes: Any) -> RunRequest:
    fields = {"context": "Rain fell. " * 60, "variants": ("headkv:budget=40",), "max_new_tokens": 1}
    return RunRequest(**{**fields, **changes})


def test_the_probe_runs_once_a_model_with_progress_and_its_table_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    loaded = tiny_model("gemma3")

    def probing() -> list[Progress]:
        events = [event for event in compare(asked(), loaded) if isinstance(event, Progress)]
        return [event for event in events if "needle probe" in event.detail]

    told = probing()
    shares = [event.fraction for event in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) >= 6
    first = table_of(loaded.info, NEEDLES)
    sliding = set(range(loaded.info.layers)) - set(loaded.info.evictable_layers)
    assert first.max() == 1
    assert not first[0, list(sliding)].any()
    assert not probing()
    assert torch.equal(table_of(loaded.info, NEEDLES), first)
    assert kept_table(replace(loaded.info, sha256="1" * 64), NEEDLES) is None


def test_a_cancelled_probe_keeps_no_table(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    loaded, told = tiny_model("llama"), Mock(side_effect=[False] * 10 + [True])
    with pytest.raises(RunCancelledError):
        deque(needle.probe(loaded, told), maxlen=0)
    assert kept_table(loaded.info, NEEDLES) is None
    deque(needle.probe(loaded), maxlen=0)
    assert table_of(loaded.info, NEEDLES).any()


def test_a_missing_table_is_refused_before_anything_is_read():
    events = compare(asked(variants=("headkv:budget=40,table=duo",)), tiny_model("llama"))
    with pytest.raises(ConfigError, match="has no head table 'duo'; bring one"):
        next(events)


def test_a_file_is_clipped_and_may_have_a_column_per_query_head(monkeypatch, tmp_path):
    monkeypatch.setattr(head_tables, "head_tables_folder", lambda: tmp_path)
    assert keep_table(LLAMA, "duo", GOOD) == ((0.1, 0.9), (1.0, 0.0), (0.0, 1.0))
    assert kept_table(LLAMA, Table("duo")) == parse_table(GOOD, LLAMA)
    by_query = parse_table("0\t1\t0.5\t0.5\n" * 3, LLAMA)
    assert by_query == ((0.5, 0.5),) * 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 lines"),
        ("1\t1\n", "has 1 lines; 'tiny-llama' has 3 layers"),
        ("1\t1\n1\t1\n1\t1\t1\n", "Line 3 of the head table has 3 numbers"),
        ("1\t1\nnan\t1\n1\t1\n", "Line 2 of the head table: 'nan' is not a number"),
        ("1\t1\n1_0\t1\n1\t1\n", "is not a number"),
        ("0\t-1\n0\t0\n0\t0\n", "no head would matter"),
        ("1\t1\n" * 2**22 + "1", "at most 16 MiB"),
    ],
)
def test_what_is_no_table_is_refused_with_a_sentence(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_table(text, LLAMA)


@pytest.mark.parametrize("name", ["", "../up", "A", "a/b", "x" * 41, ".hidden", "ü"])
def test_a_name_is_a_plain_word(name):
    with pytest.raises(ConfigError, match="must be a word"):
        head_tables.table_name(name)


def test_the_command_asks_for_a_name_beside_a_file(capsys):
    assert main(["heads", "--file", "x.tsv"]) == 2
    assert main(["heads", "--name", "duo"]) == 2
    assert "Give --file and --name" in capsys.readouterr().err
    assert main(["heads", "--for", "snapkv"]) == 2
    assert "takes no head table" in capsys.readouterr().err


CLOSE = {"rtol": 2e-4, "atol": 1e-5}
TEXT = report()[2000:2150]
PARAMETERS = (
    {"repeat": 64, "lead": "first", "sinks": 4, "plus": "off"},
    {"repeat": 100, "lead": "last", "sinks": 3, "plus": "off"},
    {"repeat": 64, "lead": "first", "sinks": 4, "plus": "on"},
)
GRADIENT = ({"repeat": 64, "lead": "first", "sinks": 4}, {"repeat": 90, "lead": "last", "sinks": 3})


def read(
    loaded: LoadedModel, given: PromptTokens, parameters: dict[str, Any], method: str = "kvzip"
) -> tuple[Prefill, Any]:
    scorer = VariantSpec.parse(method).scorer
    (wanted,) = scorer.passes(parameters)
    with torch.inference_mode():
        result = drained(prefill(loaded, list(given.token_ids), Needs(8), lambda: False))
        list(further_passes(result, [(wanted, wanted.passes(given))], lambda: False))
    return result, wanted


def given_tokens(scenario: Scenario = "context-only") -> PromptTokens:
    prompt = build_prompt(tiny_tokenizer(), TEXT, "Who waved?", scenario)
    return prompt_tokens(tiny_tokenizer(), prompt)


def repeated(arch: str, given: PromptTokens, parameters: dict[str, Any]) -> list[torch.Tensor]:
    """The literal statistic, by layer."""
    prompt = (given.encode, list(given.token_ids), given.lead, list(given.closing))
    find = literal.repeated if "plus" in parameters else attributed
    return find(plain_model(arch), *prompt, parameters)


@pytest.mark.parametrize(
    "parameters", PARAMETERS, ids=lambda parameters: f"{parameters['lead']} {parameters['plus']}"
)
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "gpt_oss"])
def test_the_statistic_is_that_of_plain_passes(arch, parameters, monkeypatch):
    """Passes read in one chunk and in several; of gemma3 two layers slide."""
    loaded, given = tiny_model(arch), given_tokens()
    expected = repeated(arch, given, parameters)
    # The literal way has a sink's share from what the others leave of 1, which is rounded.
    close = {"rtol": 5e-3, "atol": 1e-5} if arch == "gpt_oss" else CLOSE
    for chunk in (1024, 48):
        monkeypatch.setattr(engine_prefill, "CHUNK", chunk)
        result, wanted = read(loaded, given, parameters)
        found = result.observed[wanted]
        assert tuple(found) == loaded.info.evictable_layers
        for layer, statistic in found.items():
            torch.testing.assert_close(statistic, expected[layer], **close)
            assert statistic[:, given.lead :].amax() <= 1 or parameters["plus"] == "on"
        held = sum(statistic.nbytes for statistic in found.values())
        assert held == statistic_bytes(wanted, _shape(loaded, given))


@pytest.mark.parametrize("parameters", GRADIENT, ids=lambda parameters: parameters["lead"])
@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma2", "gemma3", "gpt_oss"])
def test_the_gradient_is_that_of_plain_passes(arch, parameters):
    """Through sliding layers, capped logits and sinks too."""
    loaded, given = tiny_model(arch), given_tokens()
    expected = repeated(arch, given, parameters)
    close = {"rtol": 5e-3, "atol": 1e-3} if arch == "gpt_oss" else CLOSE
    result, wanted = read(loaded, given, parameters, "kvgrad")
    found = result.observed[wanted]
    assert tuple(found) == loaded.info.evictable_layers
    for layer, statistic in found.items():
        torch.testing.assert_close(statistic, expected[layer], **close)
        assert not statistic.requires_grad


def test_weights_without_a_gradient_are_refused_with_a_sentence():
    loaded, given = tiny_model("llama"), given_tokens()
    cut = loaded.layers[-1].register_forward_hook(lambda _, __, out: out.detach())
    with cut, pytest.raises(ModelError, match="No gradient goes back"):
        read(loaded, given, GRADIENT[0], "kvgrad")


def _shape(loaded: LoadedModel, given: PromptTokens) -> PromptShape:
    info = loaded.info
    return PromptShape(
        len(info.evictable_layers),
        info.query_heads,
        info.kv_heads,
        info.head_dim,
        len(given.token_ids),
    )


@pytest.mark.parametrize(("lead", "sinks"), [("first", None), ("last", 4)])
def test_a_later_pass_asks_in_the_words_of_the_authors_or_of_kvpress(lead, sinks):
    given = given_tokens()
    later = Reconstruction(64, sinks).passes(given)[1]
    text = tiny_tokenizer().decode(later.token_ids)
    overlap = tiny_tokenizer().decode(given.token_ids[: later.part.start][-8:])
    assert text.startswith(f"{literal.NEXT[lead]}{overlap}<|im_end|>\n<|im_start|>assistant\n")


def request(scenario: Scenario, *variants: str, **changes: Any) -> RunRequest:
    settings = {"context": TEXT, "question": "Who waved?", "budgets": ("40",)}
    return short_request(*variants, scenario=scenario, max_new_tokens=3, **settings | changes)


def run(asked: RunRequest, prefills: PrefillCache | None = None, arch: str = "llama") -> Any:
    result, told = RunResult(), []
    for event in compare(asked, tiny_model(arch), prefills=prefills):
        result.apply(event)
        if isinstance(event, Progress) and event.detail.startswith("further"):
            told.append(event)
    return result, told


@pytest.mark.parametrize("parameters", [*PARAMETERS, *GRADIENT], ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_keeps_the_best_of_all_layers_and_heads(scenario, parameters):
    name = "kvzip" if "plus" in parameters else "kvgrad"
    spec = f"{name}:" + ",".join(f"{key}={value}" for key, value in parameters.items())
    (variant,) = run(request(scenario, spec))[0].variants
    behind = literal_prompt(tiny_tokenizer(), TEXT, "Who waved?", scenario).behind
    given = given_tokens(scenario)
    scores = repeated("llama", given, parameters)
    if parameters.get("plus") != "off":
        scores = literal.weighed(plain_model("llama"), list(given.token_ids), scores)
    grouped = [each.view(2, 2, -1).amax(1).tolist() for each in scores]
    expected = literal.kept(grouped, parameters["sinks"], behind, 40)
    found = {tuple(place) for place in torch.tensor(variant.retained.mask()).nonzero().tolist()}
    assert len(found) == len(expected) == 3 * 2 * 40
    assert len(found & expected) >= 0.99 * len(expected)


def test_passes_are_told_and_made_once():
    prefills = PrefillCache(2**30)
    both = request("context-only", "kvzip:repeat=64", "kvzip:repeat=64,lead=last")
    _, told = run(both, prefills)
    count = len(Reconstruction(64, None).passes(given_tokens()))
    assert len(told) == 2 * count
    assert told[-1].fraction == 1.0
    assert [each.fraction for each in told] == sorted(each.fraction for each in told)
    again, told = run(request("context-only", "kvzip:repeat=64,budget=60"), prefills)
    assert not told
    assert again.timings_ms["prefill"] == 0
    _, told = run(request("context-only", "kvzip:repeat=65"), prefills)
    assert told, "a prefill that lacks only further passes is not read anew, but they are"


def test_a_cancelled_pass_leaves_no_half_statistic():
    given, wanted = given_tokens(), Reconstruction(64, None)
    stop = iter([False] * 8)
    with torch.inference_mode():
        result = drained(
            prefill(tiny_model("llama"), list(given.token_ids), Needs(8), lambda: False)
        )
        work = further_passes(result, [(wanted, wanted.passes(given))], lambda: next(stop, True))
        with pytest.raises(RunCancelledError):
            list(work)
    assert not result.observed


def test_passes_over_the_models_limit_are_refused_with_what_helps():
    asked = request("context-only", "kvzip", context=TEXT * 8)
    with pytest.raises(PromptError, match=r"over the model's limit of 2,048. Lower 'repeat'"):
        run(asked)
