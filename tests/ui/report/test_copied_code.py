"""Each code of a run does what it says as copied: a shell reads commands, Python the script."""

import json
import subprocess
from dataclasses import replace

import pytest
import yaml

from ckv_core.records.codec import to_json
from ckv_core.records.run_request import RunRequest
from cli.main import main
from tests.factories.app import snapshot
from tests.factories.models import plain_model
from tests.factories.runs import run_of, variant
from tests.factories.tiny_runs import BASE, run
from ui.report.copied_code import command, run_codes, study_command, transformers_code

ODD = 'It\'s `5829` $(exit 3) "here"\n\\n -- -x &; and a long text of the harbour. ' * 9


@pytest.fixture
def in_a_shell(tmp_path, monkeypatch):
    """A shell reads the text; its one command then runs here, with that input and arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CKV_HOME", str(tmp_path / "home"))

    def run(text: str) -> None:
        script = f'ckv() {{ printf "%s\\0" "$@" > argv; cat > stdin; }}\nset -e\n{text}'
        subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, check=True)
        *arguments, end = (tmp_path / "argv").read_text("utf-8").split("\0")
        with (tmp_path / "stdin").open(encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert (end, main(arguments)) == ("", 0)

    return run


@pytest.fixture(scope="module")
def asked(model_folder) -> RunRequest:
    return RunRequest(
        context=ODD,
        question="-What's the code?",
        answer="5829",
        model=str(model_folder),
        variants=("full", "snapkv"),
        budgets=("20%",),
        defaults={"window": "8"},
        max_new_tokens=2,
        protect=("tokens:3-5",),
    )


def test_the_command_runs_the_same_request(asked, tmp_path, in_a_shell):
    in_a_shell(command(asked))
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert len(found["variants"]) == 2
    assert found["variants"][1]["params"]["window"] == 8
    assert found["prompt"]["scenario"] == "regular"


def test_the_yaml_runs_as_one_sample_of_the_same_text(asked, tmp_path, in_a_shell):
    in_a_shell(study_command(asked, "abcd2345abcd"))
    (sample,) = (tmp_path / "sample-abcd2345abcd.jsonl").read_text("utf-8").splitlines()
    assert json.loads(sample)["context"] == asked.context
    values = yaml.safe_load((tmp_path / "run-abcd2345abcd.yaml").read_text("utf-8"))
    assert values["defaults"] == {"window": "8"}


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_plain_transformers_writes_the_tokens_of_the_run(scenario):
    specs = ("full", "snapkv", "snapkv+critical:sinks=3", "streaming_llm", "pyramidkv:beta=3")
    result = run(replace(BASE, scenario=scenario, variants=specs))
    names: dict = {"__name__": "copied"}
    exec(compile(transformers_code(result, BASE.max_new_tokens), "copied.py", "exec"), names)
    values = json.loads(json.dumps(to_json(result)))
    assert names["SPECS"] == [each.spec for each in result.variants]
    *plain, pyramid = zip(values["variants"], result.variants, strict=True)
    with pytest.raises(ValueError, match="unequally"):
        names["answer"](plain_model("llama"), values["prompt"], pyramid[0]["retained"])
    for each, own in plain:
        written = names["answer"](plain_model("llama"), values["prompt"], each["retained"])
        assert written == list(own.token_ids)[: len(written)], each["spec"]
        assert written


def test_what_no_plain_cache_holds_is_left_out_and_hostile_names_stay_text():
    odd = replace(variant("snapkv:budget=40"), spec="'''\"; raise SystemExit  # {}")
    moved = replace(variant("snapkv:budget=40"), params={"store": "int8"})
    result = run_of(odd, moved)
    names: dict = {"__name__": "copied"}
    exec(compile(transformers_code(result, 4), "copied.py", "exec"), names)
    assert names["SPECS"] == [odd.spec]
    assert transformers_code(run_of(moved), 4) == ""


def test_a_run_has_four_codes_and_one_that_is_not_over_no_results():
    labels = [each["label"] for each in run_codes(snapshot())]
    assert labels == ["ckv", "YAML", "transformers", "kvpress"]
    assert all(each["text"] for each in run_codes(snapshot()))
