"""The code for kvpress runs, keeps as many entries as the run, and says where it differs."""

import ast
import sys
from dataclasses import field, make_dataclass, replace
from types import SimpleNamespace

import pytest

from ckv_core.methods import METHODS
from ckv_core.records.run_request import DEFAULT_MODEL, HUB_ID
from tests.factories.runs import receipt, run_of, variant
from ui.report.kvpress_code import kvpress_code

TOKENS = 1_003
OTHERS = {method.press.name for method in METHODS if method.press}


def _press(*first: str, **defaults: float) -> type:
    """A dataclass as a press of kvpress 0.5.5 is one: these arguments, then those with defaults."""
    with_default = [(name, type(value), field(default=value)) for name, value in defaults.items()]
    return make_dataclass("Press", [*((name, object) for name in first), *with_default])


RATIO, STAGE1 = {"compression_ratio": 0.0}, {"epsilon": 1e-4, "first_stage_ratio": 0.5}
SCORED = RATIO | {"window_size": 64, "kernel_size": 5}
PRESSES = {
    "SnapKVPress": _press(**SCORED),
    "PyramidKVPress": _press(**SCORED, beta=20),
    "StreamingLLMPress": _press(**RATIO, n_sink=4),
    "AdaKVPress": _press("press", alpha_safeguard=0.2),
    "CriticalKVPress": _press("press", **STAGE1),
    "CriticalAdaKVPress": _press("press", alpha_safeguard=0.2, **STAGE1),
}


class _Any:
    """A press whose arguments are looked at by docs/reference/parity.md alone."""

    def __init__(self, *args, **arguments):
        vars(self).update(arguments)


@pytest.fixture(autouse=True)
def kvpress(monkeypatch):
    presses = dict.fromkeys(OTHERS, _Any) | PRESSES
    monkeypatch.setitem(sys.modules, "kvpress", SimpleNamespace(**presses))


def code_of(*specs: str, budget: int = 137, **changes) -> str:
    made = [replace(variant(spec), **({"receipt": receipt(budget)} | changes)) for spec in specs]
    run = run_of(*made)
    run.prompt = replace(run.prompt, compressed_tokens=TOKENS)
    return kvpress_code(run, 48)


def presses_of(code: str) -> dict:
    names: dict = {"__name__": "exported"}
    exec(compile(code, "presses.py", "exec"), names)
    assert (names["MODEL"], names["MAX_NEW_TOKENS"]) == ("m", 48)
    return names["PRESSES"]


def kept(press) -> int:
    """As compute_n_kept has it."""
    inner = getattr(press, "press", press)
    return int(TOKENS * (1 - inner.compression_ratio))


@pytest.mark.parametrize("budget", [33, 137, 500, 1_002])
def test_every_press_keeps_the_runs_budget_with_its_own_settings(budget):
    specs = ["streaming_llm", "snapkv:window=16,kernel=9", "pyramidkv:beta=10", "adakv"]
    specs += ["snapkv+critical:alpha=0.5,epsilon=0.001", "adakv+critical:safeguard=0.3"]
    found = presses_of(code_of("full", *specs, budget=budget))
    assert found.pop("full") is None
    assert {kept(press) for press in found.values()} == {budget}
    assert found[specs[0]].n_sink == 4
    assert (found[specs[1]].window_size, found[specs[1]].kernel_size) == (16, 9)
    assert found[specs[2]].beta == 10
    assert found[specs[3]].alpha_safeguard == 0.2
    critical, adaptive = found[specs[4]], found[specs[5]]
    assert (critical.epsilon, adaptive.alpha_safeguard, adaptive.epsilon) == (0.001, 0.3, 0)
    # kvpress: int(budget * ratio) entries in stage 1, the window's 32 first.
    stage1 = (1 - critical.press.compression_ratio) * TOKENS * critical.first_stage_ratio
    assert int(stage1) == 32 + (budget - 32) // 2


def test_what_is_as_in_kvpress_has_no_note():
    (press,) = presses_of(code_of("snapkv:pool=none")).values()
    assert press.kernel_size == 1
    assert "pool is" not in code_of("snapkv:pool=none")
    assert "blend is" not in code_of("compactor:preset=kvpress")


@pytest.mark.parametrize(
    ("spec", "note"),
    [
        ("compactor", "blend is 0.5 here and ratio in kvpress"),
        ("streaming_llm:rolling=on", "rolling is on here and off in kvpress"),
        ("streaming_llm:positions=cache", "positions is cache here and original in kvpress"),
        ("snapkv", "pool is max here and avg in kvpress"),
        ("snapkv:sinks=4", "keeps no sinks; the variant kept the first 4"),
        ("snapkv:group=max", "the variant the maximum"),
        ("pyramidkv", "pyramid_window is beyond here and inside in kvpress"),
        ("pyramidkv+critical", "whatever PyramidKVPress has"),
        ("adakv", "safeguard_rule is blend here and floor in kvpress"),
        ("chunkkv", "rounds its count down to whole chunks"),
        ("snapkv+critical", "stage2 is raw here and pooled in kvpress"),
        ("snapkv+critical", "so that stage 1 takes as many entries beyond the window"),
        ("snapkv+critical", "which some models lack (Qwen2)"),
        ("snapkv+critical_auto", "is left out: kvpress has one first_stage_ratio"),
        ("snapkv+critical:norm=off", "is left out: CriticalKVPress always multiplies"),
        ("snapkv:layout=layer", "is left out: these presses protect no passages"),
        ("snapkv:store=int8", "is left out: a press has no store"),
        ("adakv:every=64,to=48", "is left out: a press has no store"),
        ("kvzip+critical", "is left out: CriticalKVPress takes no KVzipPress"),
        ("cake", "is left out: kvpress has no press for it"),
    ],
)
def test_what_differs_is_said_at_the_press(spec, note):
    code = code_of(spec)
    assert note in code
    assert (spec in presses_of(code)) == ("left out" not in note)


@pytest.mark.parametrize("method", [each for each in METHODS if each.press], ids=lambda m: m.name)
def test_under_the_preset_of_kvpress_no_parameter_differs(method):
    both = method.supports_critical and method.press.scores
    names = [method.name, *([f"{method.name}+critical"] if both else [])]
    code = code_of(*(f"{name}:preset=kvpress" for name in names))
    notes = [line for line in code.splitlines() if line.startswith("    # - ")]
    assert not [note for note in notes if " in kvpress. " in note or "first_stage" in note]
    assert len(presses_of(code)) == len(names)


@pytest.mark.parametrize(
    ("own", "named", "comment"),
    [
        (DEFAULT_MODEL, HUB_ID, f"give the folder models/{DEFAULT_MODEL} of its CKV_HOME"),
        ("org/model-7B", "org/model-7B", ""),
        ("/srv/models/mine", "/srv/models/mine", "A folder of the machine where the run was made."),
    ],
)
def test_the_model_is_one_that_the_hub_has_or_a_comment_says_where_it_lies(own, named, comment):
    run = run_of(variant("snapkv"))
    run.model = replace(run.model, name=own)
    code = kvpress_code(run, 48)
    assert f"\nMODEL = {named!r}\n" in code
    said = [line for line in code.splitlines() if line.startswith("# ")]
    assert (comment in " ".join(said)) if comment else not said


def test_hostile_texts_of_an_imported_run_stay_text():
    evil = 'x"\n}\nimport os\nos.abort()\n#\u2028'
    code = code_of("snapkv", "full", spec=evil, label=evil)
    run = run_of(replace(variant("snapkv"), spec=evil, label=evil, params={"window": evil}))
    run.model = replace(run.model, name=evil)
    for each in (code, kvpress_code(run, 1)):
        tree = ast.parse(each)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert len(imports) == 2
        assert each.isascii()
