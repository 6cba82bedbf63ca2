"""Another package's parts are there on the command line and in the app; a broken one harms none."""

import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest

from ckv_core import cli
from ckv_core.cli import running
from ckv_core.methods import METHODS, plug_ins
from ckv_core.methods.plug_ins import ENTRY_POINTS
from ckv_core.records.run_request import RunRequest
from ckv_core.records.work_requests import AskRequest, PreviewRequest
from ckv_core.worker.client import Task, WorkerClient
from ckv_core.worker.messages import Job
from cli import main as ckv
from tests.ckv_core.worker.reply_log import Log
from tests.factories.kept import kept_bytes
from tests.factories.models import tiny_model
from tests.processes import PATIENCE_S

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "tests" / "example_package"
CLEAR, SHOWN = "\x1b[2J\x07", r"\x1b[2J\x07"


def run(*arguments: str, package: Path = PACKAGE) -> subprocess.CompletedProcess[str]:
    """A process that has a package besides."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    command, pipes = [sys.executable, *arguments], {"capture_output": True, "text": True}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, **pipes)
    assert done.returncode == 0, done.stderr
    return done


def test_a_package_brings_a_method_to_the_command_line_and_the_pages():
    done = run(
        "-c",
        "import sys\n"
        "from ckv_core.cli import main\n"
        "from ui.compare.offers import variant_choices\n"
        "main(['methods'])\n"
        "assert variant_choices()['value_size'].label == 'Value size'\n"
        "assert 'torch' not in sys.modules\n",
    )
    assert "value_size [+critical]" in done.stdout


def install(folder: Path, *names: str, **modules: str) -> None:
    """A package whose modules hold this text, and entry points of these names and for each."""
    information = folder / "some_parts-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    points = "\n".join(f"{name} = {name}" for name in (*names, *modules))
    (information / "entry_points.txt").write_text(f"[criticalkv.parts]\n{points}\n")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def parts(monkeypatch):
    """The package's module, its method registered and a tiny model in the place of any other."""
    monkeypatch.setattr(METHODS, "_methods", dict(METHODS._methods))
    monkeypatch.syspath_prepend(str(PACKAGE))
    for module in ("experiment.study_engine", "models.loading"):  # first who takes it from there
        load = f"ckv_core.{module}.load_model"
        monkeypatch.setattr(load, lambda *_, **__: tiny_model("llama"))
    (point,) = entry_points(group=ENTRY_POINTS)
    monkeypatch.delitem(sys.modules, point.module, raising=False)
    monkeypatch.setattr(plug_ins, "_packages", {})
    plug_ins.load(point)
    return sys.modules[point.module]


@pytest.mark.slow
def test_check_method_says_which_part_of_the_contract_a_method_breaks(parts, monkeypatch, capsys):
    assert cli.main(["check-method", "full"]) == 2
    assert cli.main(["check-method", "value_size"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert "ok     regular, value_size+critical:budget=25%" in lines
    right, drawn = parts.ValueSize.scores, iter(range(1, 1000))

    def by_chance(self, view, parameters):
        return right(self, view, parameters) * (view.keys[..., 0] * next(drawn)).cos().abs()

    for name, first in (("BUDGETS", "25%"), ("SCENARIOS", "regular")):  # enough for what is wrong
        monkeypatch.setattr(f"ckv_core.cli.methods.{name}", (first,))
    for scores, sentence in (
        (lambda *given: right(*given).long(), "gives scores of type torch.int64"),
        (lambda *given: right(*given).no_such, "its code fails (AttributeError: "),
        (by_chance, "a second time, all together: value_size:budget=25%"),
    ):
        monkeypatch.setattr(parts.ValueSize, "scores", scores)
        assert cli.main(["check-method", "value_size"]) == 1
        assert f"{sentence}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_packages_method_runs_or_fails_with_its_name(parts, tmp_path, monkeypatch, capsys):
    text, result = tmp_path / "text.txt", tmp_path / "result.json"
    text.write_text("The ferry left at nine. Nobody waved. " * 12, encoding="utf-8")
    arguments = ["compare", "--context", str(text), "--budget", "40", "--max-new-tokens", "2"]
    arguments += ["--variant", "value_size", "--variant", "value_size+critical"]
    assert cli.main([*arguments, "--json", str(result)]) == 0
    plain, critical = json.loads(result.read_text(encoding="utf-8"))["variants"]
    assert plain["receipt"]["retained_entries"] == plain["receipt"]["requested_entries"] > 0
    assert critical["spec"].startswith("value_size+critical")

    def fails(self, *given):
        raise KeyError("\x1b[2J" + "long " * 1000)

    for hook, where in (("scores", " in Value size (value_size"), ("refuses", "")):
        with monkeypatch.context() as patch:
            patch.setattr(parts.ValueSize, hook, FunctionType(fails.__code__, vars(parts)))
            assert cli.main(arguments) == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: The parts of 'example_parts' fail{where}")
        assert " (KeyError: '\\x1b[2Jlong" in line
        assert len(line) < 400


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compare", "run"])
def test_what_a_packages_method_prints_is_shown_as_codes_and_is_no_result(
    command, parts, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))
    text = "The ferry left at nine. Nobody waved. " * 12
    (tmp_path / "text.txt").write_text(text)
    sample = {"id": "one", "context": text, "question": "When?", "answers": ["nine"]}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample))
    study = tmp_path / "study.yaml"
    arguments = {
        "compare": [command, "--context", str(tmp_path / "text.txt"), "--budget", "40%"],
        "run": ["run", str(study)],
    }[command]
    if command == "compare":
        arguments += ["--variant", "value_size", "--max-new-tokens", "2", "--json", "-"]
    right = parts.ValueSize.scores
    for status, factor in enumerate((1.0, float("nan"))):

        def loud(*given, factor=factor):
            sys.stdout.write(f"{CLEAR}printed\n")
            logging.getLogger("of another package").error(f"{CLEAR}logged")
            return right(*given) * factor

        monkeypatch.setattr(parts.ValueSize, "scores", loud)
        study.write_text(
            f"name: {factor}\nmodel: tiny\ndata: {{file: samples.jsonl}}\n"
            "variants: [value_size]\nbudgets: [40%]\nmax_new_tokens: 2\n"
        )
        assert ckv.main(arguments) == status
        said = capsys.readouterr()
        assert "printed" not in said.out
        assert f"{SHOWN}printed\n" in said.err
        assert CLEAR[0] not in said.out + said.err
        wrong = "Value size (value_size:budget=40%) cannot run: 'value_size' of the package"
        assert (wrong in said.out + said.err) == bool(status)
        if command == "compare" and not status:
            assert json.loads(said.out)["variants"]


LOUD = """
import time
from ckv_core.methods.base import METHODS, Method
from ckv_core.methods.parts.base import Scorer
from ckv_core.methods.parts.rules import UNIFORM
class Loud(Scorer):
    name = "loud"
    query_aware = False
    def scores(self, view, parameters):
        print("CLEARprinted", flush=True)
        raise type("CLEARKind", (Exception,), {})("CLEARsaid")
class Stuck(Loud):
    name = "stuck"
    def scores(self, view, parameters):
        time.sleep(3600)
METHODS.register(
    Method(name="stuck", label="", summary="", source="", scorer=Stuck(), budget_rule=UNIFORM)
)
METHODS.register(
    Method(name="loud", label="Loud", summary="", source="", scorer=Loud(), budget_rule=UNIFORM)
)
"""


@pytest.mark.slow
def test_what_a_packages_method_does_in_the_worker_is_shown_as_codes_and_named(
    model_folder, tmp_path, monkeypatch, capfd
):
    install(tmp_path, loud_parts=LOUD.replace("CLEAR", CLEAR))
    monkeypatch.syspath_prepend(str(tmp_path))  # the worker has it, too
    log, next_step = Log(), Task.next_step

    def sooner(task, step):
        limit_s = step.limit_s and min(step.limit_s, 1.0) if step.of_run else step.limit_s
        next_step(task, replace(step, limit_s=limit_s))

    monkeypatch.setattr(Task, "next_step", sooner)
    with closing(WorkerClient(log)) as client:
        client.start()
        for name in ("loud", "stuck"):
            variants = (f"{name}:budget=40",)
            context = "Nobody waved. " * 40
            client.submit(
                Job(name, RunRequest(context=context, model=model_folder, variants=variants))
            )
        reason, stuck = log.failure_of("loud"), log.failure_of("stuck")
    assert reason.startswith("The parts of 'loud_parts' fail in Loud (loud:budget=40) (")
    assert stuck.startswith(
        "A step of a method of the package 'loud_parts' took longer than 1 s, so it was ended; "
        "update or remove that package, or choose another method."
    )
    said = capfd.readouterr()
    assert "printed" not in said.out
    assert f"{SHOWN}printed\n" in said.err
    assert f"error={SHOWN}Kind " in said.err
    assert CLEAR[0] not in said.out + said.err


HARMS = {
    "one_that_raises": """
from ckv_core.methods.parts.base import Scorer
class Half(Scorer):
    name = "half_of_it"
from ckv_core.methods.base import METHODS, SELECTORS, Method
from ckv_core.methods.parts.rules import UNIFORM
METHODS.register(Method(name="half_of_it", label="", summary="", source="", budget_rule=UNIFORM))
SELECTORS["half"] = None
print("\x1b[2Jprinted")
class Hostile(BaseException):
    def __str__(self):
        return "\x1b]0;owned\x07" + "long " * 1000
raise Hostile
""",
    "one_whose_text_fails": """
class Hostile(Exception):
    def __str__(self):
        raise SystemExit
raise Hostile
""",
    "one_that_exits": "import sys; sys.stderr.write('\x1b[2J'); sys.exit(3)",
    "one_that_is_wrong": """
from ckv_core.methods.base import POLICIES
POLICIES["wrong"] = object()
""",
}


def test_what_packages_do_while_they_are_loaded_is_a_sentence_each_and_harms_no_other(tmp_path):
    install(tmp_path, "no_such_module", **HARMS)
    done = run("-m", "ckv_core", "methods", package=tmp_path)
    assert "snapkv" in done.stdout
    assert "half_of_it" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "printed" not in done.stdout
    lines = [line for line in done.stderr.splitlines() if "printed" not in line]
    for name, reason in {
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
        "one_that_raises": r"Hostile: \x1b]0;owned\x07long long",
        "one_whose_text_fails": "Hostile",
        "one_that_exits": "SystemExit: 3",
        "one_that_is_wrong": "AttributeError: ",
    }.items():
        (line,) = [line for line in lines if f"'{name}'" in line.split("(")[0]]
        assert f"The parts of '{name}' cannot be loaded ({reason}" in line
        assert len(line) < 400


def test_a_package_that_does_not_end_to_load_is_named_and_ends_the_program(
    monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr(plug_ins, "SLOW_S", 0.01)
    monkeypatch.setattr(plug_ins, "HANG_S", 0.05)
    ended = threading.Event()
    monkeypatch.setattr(plug_ins.os, "_exit", lambda status: status == 1 and ended.set())
    point = SimpleNamespace(value="slow\x1b", module="slow", load=lambda: ended.wait(PATIENCE_S))
    plug_ins.load(point)
    assert ended.is_set()
    assert [line.split(" ", 5)[:5] for line in caplog.messages] == [
        ["Loading", "the", "parts", "of", r"'slow\x1b'"]
    ] * 2
    # So does a step that does not end, of a run or a kept cache that uses a package's part.
    monkeypatch.setattr(plug_ins, "STEP_S", 0.05)
    monkeypatch.setattr(plug_ins, "packages_of", lambda parts: "'slow'" if any(parts) else "")
    (tmp_path / "a").write_bytes(kept_bytes())
    run = RunRequest(context="one", question="what", variants=("snapkv",))
    question = AskRequest(path=str(tmp_path / "a"), question="what", model="tiny")
    for request in (run, PreviewRequest(run=run), question):
        caplog.clear()
        ended.clear()
        hanging = (each or ended.wait(PATIENCE_S) for each in ("first", None))
        assert list(running.followed(hanging, request)) == ["first", True]
        assert caplog.messages[0].startswith("A step of a method of the package 'slow' took longer")
    assert list(plug_ins.watched("ours", [])) == [*"ours"]
