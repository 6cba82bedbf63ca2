"""No code asks for a part by its name: what a part declares is all that others know of it."""

import ast
from pathlib import Path

from ckv_core.methods import METHODS, PARAMETERS

ROOT = Path(__file__).resolve().parents[3]
# Where a name may stand: a part's own file. "noise" is a word of needle tests.
OWN = (ROOT / "ckv_core" / "methods", ROOT / "ckv_core" / "studies")
PARTS = {
    part.name
    for method in METHODS
    for part in (method.scorer, method.budget_rule, *method.selectors, method.policy)
    if part is not None
} - set(PARAMETERS)


def compared(tree: ast.AST) -> set[str]:
    """Texts that are compared with, looked up in, or matched by a case."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.MatchValue):
            texts = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
            found |= {each.value for each in texts if isinstance(each.value, str)}
    return found


def test_no_file_compares_a_parts_name():
    assert {"top_k", "adaptive", "position", "critical"} <= PARTS
    files = [
        path for folder in ("ckv_core", "storage", "ui") for path in (ROOT / folder).rglob("*.py")
    ]
    others = [path for path in files if not any(path.is_relative_to(own) for own in OWN)]
    assert len(others) > 100
    found = {
        str(path.relative_to(ROOT)): sorted(names)
        for path in others
        if (names := PARTS & compared(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert not found


def test_the_walk_sees_every_comparison():
    for code in ("a == 'top_k'", "if a in ('x', 'top_k'): pass", "match a:\n case 'top_k': pass"):
        assert "top_k" in compared(ast.parse(code))
