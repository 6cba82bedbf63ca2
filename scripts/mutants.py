"""Changes the product one spot at a time, in a copy, and reports which changes no test notices.

The spots are a sample, drawn by a seed, of what computes, queues and stores. A change that is not
noticed is a missing test, or one of `EQUIVALENT`, which are not tried.
"""

import argparse
import ast
import copy
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHERE = (
    "ckv_core/engine/**/*.py",
    "ckv_core/methods/**/*.py",
    "ckv_core/experiment/*.py",
    "ckv_core/worker/*.py",
    "storage/*.py",
)
# What runs whole comparisons tests these as well.
ALSO = {
    "methods": ("engine", "golden"),
    "engine": ("golden",),
}
# Left out where what their tests need is not installed.
NEEDS = {
    "ckv_core/engine/cache/join_kernel.py": "triton",
    "ckv_core/engine/cache/split_kernel.py": "triton",
    "ckv_core/experiment/harness.py": "lm_eval",
}
LEAST = 0.85  # share of the changes that tests must notice
# Changes that were looked at and change nothing: as reports name them, without the line; why.
EQUIVALENT = {
    "ckv_core/engine/blocks.py: ids.new_empty(0)  ->  ids.new_empty(1)": "replaced by the first "
    "part of the prompt, which has at least one",
    "ckv_core/experiment/decide.py: (low + high).mean() / 2 < tolerance  ->  "
    "(low + high).mean() / 2 <= tolerance": "where the mean loss is the tolerance, no number of "
    "sources decides either claim",
    "ckv_core/worker/process.py: os._exit(1)  ->  os._exit(2)": "nobody is left to read it",
    "storage/audit.py: AuditEntry.at < now - KEPT  ->  AuditEntry.at <= now - KEPT": "an entry "
    "that is that old to the microsecond may go or stay",
    "storage/recorder.py: insert(ResultRow).returning(ResultRow.id, sort_by_parameter_order=True)  "
    "->  insert(ResultRow).returning(ResultRow.id, sort_by_parameter_order=False)": "both data"
    "bases return rows as they came, though neither promises it",
    "storage/library.py: active.limit(1)  ->  active.limit(2)": "the first row alone is read",
}
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", "node_modules", ".*_cache", "__pycache__", "data"
)
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def changes(node: ast.AST) -> Iterator[Callable[[], object]]:
    """What can be changed at a node; each changes it in place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield lambda: node.ops.__setitem__(0, SWAPS[type(node.ops[0])]())
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        yield lambda: setattr(node, "op", SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda: setattr(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield lambda: setattr(node, "value", node.value + 1)
    body = node.body if isinstance(node, ast.FunctionDef | ast.If | ast.For) else []
    for at, line in enumerate(body):
        call = isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)
        if call or isinstance(line, ast.AugAssign):
            yield lambda at=at: body.__setitem__(at, ast.Pass())


def spots(path: Path) -> list[tuple[Path, int, int]]:
    """(file, node, change) of all changes of a file's functions."""
    needed = NEEDS.get(path.relative_to(ROOT).as_posix())
    if needed and find_spec(needed) is None:
        return []
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in function.body
        for node in ast.walk(line)
    }
    return [
        (path, place, number)
        for place, node in enumerate(ast.walk(tree))
        if id(node) in inside
        for number, _ in enumerate(changes(node))
    ]


def changed(path: Path, place: int, number: int) -> tuple[str, str]:
    """The changed file, and the change in words."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node = list(ast.walk(tree))[place]
    around = _around(tree, node)
    before = copy.deepcopy(around)
    list(changes(node))[number]()
    old, new = (ast.unparse(each).splitlines() for each in (before, around))
    pairs = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]] or [
        (old[0], new[0])
    ]
    was, now = (text.strip()[:90] for text in pairs[0])
    line = getattr(node, "lineno", 0)
    return ast.unparse(tree), f"{path.relative_to(ROOT)}:{line}: {was}  ->  {now}"


def _around(tree: ast.Module, node: ast.AST) -> ast.AST:
    """The smallest part that holds the node and names something, as a bare number does not."""
    parents = {child: each for each in ast.walk(tree) for child in ast.iter_child_nodes(each)}
    while not any(isinstance(each, ast.Name) for each in ast.walk(node)):
        node = parents[node]
    return node


def equivalent(words: str) -> str:
    """Why a change, as `changed` words it, changes nothing; empty where that is not known."""
    file, _, rest = words.split(":", 2)
    return EQUIVALENT.get(f"{file}:{rest}", "")


def stages(path: Path, *, whole: bool) -> Iterator[list[str]]:
    """Tests of the module by name, tests that import it, those of its rooms, and all if wanted."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    imports = re.compile(rf"\b{re.escape(module)}\b")
    named = [each for each in files if path.stem in each.stem]
    using = [each for each in files if imports.search(each.read_text(encoding="utf-8"))]
    first, *folders = path.relative_to(ROOT).parts[:-1]
    rooms = {*folders, *(each for folder in folders for each in ALSO.get(folder, ()))} or {first}
    near = [each for each in files if rooms & {*each.parts}]
    seen: set[Path] = set()
    for stage in (named, using, near, files if whole else []):
        fresh = [each for each in dict.fromkeys(stage) if each not in seen]
        seen.update(fresh)
        if fresh:
            yield [str(each.relative_to(ROOT)) for each in fresh]


def notices(folder: Path, tests: list[str], limit_s: float) -> str:
    """`noticed` where a test fails, `ENDLESS` where the tests do not end in time; else empty."""
    command = [sys.executable, "-m", "pytest", "-qx", "--hypothesis-profile=fast", *tests]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=limit_s)  # noqa: S603
    except subprocess.TimeoutExpired:
        return "ENDLESS"
    if ran.returncode in (3, 4):  # pytest itself broke, or a file is gone
        raise SystemExit(f"pytest could not run:\n{ran.stdout.decode(errors='replace')[-2000:]}")
    return "" if ran.returncode in (0, 5) else "noticed"  # 5: nothing to run


def main() -> int:
    """Try a sample; 1 where tests notice too few."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--where", nargs="+", default=WHERE, metavar="GLOB")
    parser.add_argument("--whole", action="store_true", help="run all tests before giving up")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of a stage")
    options = parser.parse_args()
    every = [
        spot for each in options.where for path in sorted(ROOT.glob(each)) for spot in spots(path)
    ]
    sample = random.Random(options.seed).sample(every, min(options.count, len(every)))  # noqa: S311
    _say(f"{len(sample)} of {len(every):,} changes, --seed {options.seed}")
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "copy"
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        for path, place, number in sample:
            source, words = changed(path, place, number)
            outcomes[words] = _outcome(folder, path, source, words, options)
            _say(f"{outcomes[words]:10} {words}")
    share, lines = report(outcomes)
    _say("\n".join(lines))
    return 0 if share >= LEAST else 1


def _outcome(folder: Path, path: Path, source: str, words: str, options: argparse.Namespace) -> str:
    """Run the tests on a copy with the changed file; return what `notices` does."""
    if equivalent(words):
        return "equivalent"
    target = folder / path.relative_to(ROOT)
    target.write_text(source, encoding="utf-8")
    tests = stages(path, whole=options.whole)
    ends = (notices(folder, stage, options.limit) for stage in tests)
    outcome = next(filter(None, ends), "SURVIVED")
    shutil.copy(path, target)
    return outcome


def report(outcomes: dict[str, str]) -> tuple[float, list[str]]:
    """The noticed share of all that are not equivalent, and what to print, from words: outcome."""
    alike = [words for words, outcome in outcomes.items() if outcome == "equivalent"]
    survivors = [words for words, outcome in outcomes.items() if outcome == "SURVIVED"]
    tried = len(outcomes) - len(alike)
    share = 1 - len(survivors) / max(tried, 1)
    lines = [f"{share:.0%} of {tried} noticed; at least {LEAST:.0%} are wanted. Survivors:"]
    lines += [f"  {words}" for words in survivors]
    lines += [f"{len(alike)} more change nothing:"] if alike else []
    return share, [*lines, *(f"  {words}: {equivalent(words)}" for words in alike)]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
