"""`make mutants` names changes that are known to change nothing apart from real survivors."""

import ast

import pytest

from scripts.mutants import EQUIVALENT, ROOT, changed, equivalent, report, spots


@pytest.mark.parametrize("key", EQUIVALENT)
def test_a_change_that_is_called_equivalent_can_be_made_and_has_a_reason(key):
    file, _, rest = key.partition(": ")
    lines = (ROOT / file).read_text().splitlines()
    nodes = [*ast.walk(ast.parse("\n".join(lines)))]
    there = {at for at, line in enumerate(lines, 1) if rest.partition("  ->  ")[0] in line}
    near = [each for each in spots(ROOT / file) if getattr(nodes[each[1]], "lineno", 0) in there]
    assert EQUIVALENT[key]
    assert EQUIVALENT[key] in [equivalent(changed(*each)[1]) for each in near]


def test_equivalent_changes_are_named_apart_and_left_out_of_the_share():
    key, why = next(iter(EQUIVALENT.items()))
    file, _, rest = key.partition(":")
    alike = f"{file}:7:{rest}"
    outcomes = {alike: "equivalent", "a.py:1: x  ->  y": "SURVIVED"}
    outcomes |= {"b.py:1: x  ->  y": "noticed", "b.py:2: x  ->  y": "ENDLESS"}
    share, lines = report(outcomes)
    assert share == pytest.approx(2 / 3)
    assert "of 3 noticed" in lines[0]
    assert lines[1:] == ["  a.py:1: x  ->  y", "1 more change nothing:", f"  {alike}: {why}"]
