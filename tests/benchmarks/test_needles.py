"""Laws of the needles and of the tables that are made of their answers."""

import pytest

from benchmarks.answers import lines, pair
from benchmarks.needle_prompts import DEPTHS, TASKS, needles
from tests.factories.models import tiny_model

TEXTS = {f"text{at}": f"Line {at} says little. Nobody waved. " * 30 for at in range(4)}


@pytest.mark.parametrize("task", TASKS)
def test_each_text_hides_its_own_answer_once_at_a_depth_of_its_own(task):
    found = needles(TEXTS, task, tiny_model("llama").tokenizer, 200, 4)
    assert [each.text for each in found] == list(TEXTS)
    assert len({each.depth for each in found}) == 4
    for each in found:
        assert each.context.count(each.answer) == 1
        assert each.answer not in each.question
        at = each.context.index(each.answer) / len(each.context)
        assert DEPTHS[0] - 0.2 < at < DEPTHS[1] + 0.2
    assert found == needles(TEXTS, task, tiny_model("llama").tokenizer, 200, 4)


def row(found: int, stopped: str = "eos", **more: str) -> dict[str, str]:
    empty = dict.fromkeys(("agreement", "kl", "head_l1", "heads_closer", "final_l1"), "")
    first = {"model": "m", "scenario": "regular", "task": "code"}
    return {**first, **empty, "found": str(found), "stopped": stopped, **more}


def test_pairs_are_of_the_same_texts_and_tested_exactly():
    base = {f"t{at}": row(int(at < 6)) for at in range(8)}
    own = {f"t{at}": row(int(at in (0, 6)), "length" if at == 1 else "eos") for at in range(8)}
    assert pair(own, base) == (1, 5, pytest.approx(14 / 64))
    table = {("10%", "snapkv"): base, ("10%", "snapkv+critical"): own}
    plain, critical = lines(table)
    assert (plain["found"], plain["n"], "base_p" in plain) == (6, 8, False)
    assert (critical["base_gained"], critical["base_lost"], critical["cut"]) == (1, 5, 1)
    assert critical["found_low"] < 0.25 < critical["found_high"]
