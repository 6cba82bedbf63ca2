"""LLM Comparator JSON: the documented fields, what a score says, its route."""

import dataclasses
import json

import pytest

from ckv_core.errors import ConfigError
from storage.records import RunNotes
from tests.factories.app import SLUG, FakeServices, request, snapshot
from tests.factories.runs import done_result, full_variant, kept_variant, with_changes
from tests.ui.report_reading import run
from tests.ui.run.test_routes import client
from ui.results.llm_comparator import NO_PAIR, comparable_pairs, comparator_json

# The types that the format's description names.
FIELD_TYPES = {"number", "string", "category", "text"} | {
    f"per_model_{kind}" for kind in ("boolean", "number", "category")
}


def check_format(value) -> None:
    """All fields that the description requires, with their types, and nothing undeclared."""
    assert set(value) == {"metadata", "models", "examples"}
    assert isinstance(value["metadata"]["source_path"], str)
    schema = {each["name"]: each["type"] for each in value["metadata"]["custom_fields_schema"]}
    assert set(schema.values()) <= FIELD_TYPES
    assert len(value["models"]) == 2
    assert all(isinstance(model["name"], str) for model in value["models"])
    for example in value["examples"]:
        texts = [example[name] for name in ("input_text", "output_text_a", "output_text_b")]
        assert all(isinstance(text, str) for text in (*texts, *example["tags"]))
        assert example["score"] is None or -1.5 <= example["score"] <= 1.5
        for rating in example["individual_rater_scores"]:
            assert set(rating) == {"is_flipped", "score", "rationale"}
            assert isinstance(rating["is_flipped"], bool)
            assert isinstance(rating["rationale"], str)
        assert set(example["custom_fields"]) == set(schema)
        for name, found in example["custom_fields"].items():
            if schema[name] == "per_model_number":
                assert len(found) == 2
                assert all(each is None or isinstance(each, int | float) for each in found)
            else:
                assert isinstance(found, str)


def examples_of(first: int, second: int, change=lambda variant: variant) -> list[dict]:
    """Examples of two variants of a run whose evicting ones went through `change`."""
    result = with_changes(done_result(), change)
    value = comparator_json(snapshot(result=result), RunNotes(), first, second)
    check_format(value)
    return value["examples"]


def test_a_run_with_a_follow_up_has_every_required_field():
    value = comparator_json(run(), RunNotes("", ("good",)), 0, 2)
    check_format(json.loads(json.dumps(value, allow_nan=False)))
    assert [model["name"] for model in value["models"]] == ["Full cache", "SnapKV + CriticalKV"]
    own, follow_up = value["examples"]
    assert own["input_text"] == "a long text\n\nwhat?"
    assert (own["output_text_a"], own["output_text_b"]) == ("one two", "one three")
    assert own["tags"] == ["question", "regular", "good"]
    assert follow_up["tags"][0] == "follow-up"
    assert follow_up["input_text"].endswith("And then?")
    assert follow_up["custom_fields"]["KL, nats"] == [None, None]


def test_without_an_answer_the_score_is_the_gap_in_agreement_with_full():
    (example,), (flipped,), (even,) = (examples_of(*pair) for pair in ((0, 1), (1, 0), (1, 2)))
    assert example["score"] == pytest.approx(1.5 * (1 - 0.5))
    assert flipped["score"] == -example["score"]
    assert even["score"] == 0
    assert "A 0.5, B 0.5" in even["individual_rater_scores"][0]["rationale"]


def test_with_a_reference_answer_the_score_is_the_gap_in_token_f1():
    result = done_result()
    result.variants = [
        dataclasses.replace(each, answer_scores={"token_f1": f1})
        for each, f1 in zip(result.variants, (0.2, 0.9, 0.9), strict=True)
    ]
    (example,) = comparator_json(snapshot(result=result), RunNotes(), 0, 1)["examples"]
    assert example["score"] == pytest.approx(1.5 * (0.2 - 0.9))
    assert example["custom_fields"]["score_is"] == "Token F1 with the reference answer"


def test_a_text_that_was_not_compared_has_no_score():
    (example,) = examples_of(0, 1, lambda each: dataclasses.replace(each, agreement=None))
    assert (example["score"], example["individual_rater_scores"]) == (None, [])


def test_pairs_are_the_full_cache_with_each_other_text():
    result = snapshot().result
    assert comparable_pairs(result) == [(0, 1), (0, 2)]
    result.variants = [kept_variant(), kept_variant(critical=True), full_variant()]
    assert comparable_pairs(result) == [(2, 0), (2, 1)]
    result.variants = result.variants[:2]
    assert comparable_pairs(result) == [(0, 1)]
    result.variants = [dataclasses.replace(full_variant(), token_ids=()), kept_variant()]
    assert comparable_pairs(result) == []


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 3), (-1, 1)])
def test_only_two_variants_with_text_are_a_pair(first, second):
    with pytest.raises(ConfigError, match="0, 1, 2"):
        comparator_json(snapshot(), RunNotes(), first, second)


def test_the_route_takes_two_indices():
    routes = client(FakeServices(snapshot(request=request(question="</script>"))))
    answer = routes.get(f"/data/{SLUG}/llm_comparator.json?a=2&b=1")
    check_format(answer.json())
    assert answer.json()["models"][0]["name"] == "SnapKV + CriticalKV"
    assert answer.headers["content-disposition"].endswith('-llm-comparator-2-1.json"')
    assert answer.headers["content-type"] == "application/json"
    plain = routes.get(f"/data/{SLUG}/llm_comparator.json").json()
    assert [model["name"] for model in plain["models"]] == ["Full cache", "SnapKV"]
    for query in ("a=9", "a=x", "a=-1", "a=1&b=1", "b=99999999"):
        assert routes.get(f"/data/{SLUG}/llm_comparator.json?{query}").status_code == 422, query
    alone = snapshot()
    del alone.result.variants[1:]
    answer = client(FakeServices(alone)).get(f"/data/{SLUG}/llm_comparator.json")
    assert (answer.status_code, answer.text) == (404, NO_PAIR)
