"""The memory estimate holds where it was tried; what does not fit is refused, what goes is free."""

import gc
import json
import re
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ckv_core.base import device_memory
from ckv_core.base.memory_line import memory_line
from ckv_core.engine import choose, memory
from ckv_core.engine.cache.slots import Keep, compact
from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.compare import compare, prepare
from ckv_core.engine.memory import Sizes
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.rows import prompt_rows
from ckv_core.errors import PromptError
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import FloorMeasured, RunPrepared, RunResult, VariantFinished
from ckv_core.records.run_request import RunRequest
from tests.factories.events import folded
from tests.factories.models import saved_model, tiny_model
from tests.factories.tiny_runs import short_request
from tests.reference.report import report

pytestmark = pytest.mark.slow

VARIANTS = ("full", "streaming_llm", "snapkv+critical", "adakv+critical", "snapkv+critical_auto")
# Whose parts tell of work of their own.
AT_WORK = (
    *("cake", "layer_defensivekv", "lagkv:lag=16", "expected_attention", "laprox", "capkv"),
    *("dropkv", "gated_chunkkv"),
)
TEXT = "The ferry left at nine. Nobody waved, for nobody had been told. "
CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]


def run(loaded: LoadedModel, prefills: PrefillCache | None = None, **changes: object) -> RunResult:
    settings: dict[str, object] = {
        "context": TEXT * 20,
        "question": "Who waved?",
        "variants": VARIANTS,
        "budgets": ("10%",),
        "max_new_tokens": 4,
    }
    return folded(compare(RunRequest(**(settings | changes)), loaded, prefills=prefills))


def measured_peak(result: RunResult) -> int:
    if "measured_peak" not in result.memory:
        pytest.skip("this system does not tell the peak resident size")
    return result.memory["measured_peak"]


@pytest.mark.parametrize(("tokens", "scenario"), [(2_000, "regular"), (10_000, "context-only")])
def test_the_measured_peak_stays_below_the_estimate(tokens, scenario):
    long_model = tiny_model("llama", max_position_embeddings=16_384)
    asked = {"context": (TEXT * 300)[:tokens], "scenario": scenario}
    result = run(long_model, variants=VARIANTS + AT_WORK, **asked)
    assert 0 < measured_peak(result) <= result.memory["total"]
    assert result.memory["cache"] <= result.memory["prefill_peak"] <= result.memory["total"]


@pytest.fixture(scope="module")
def wide_model() -> LoadedModel:
    """A vocabulary whose logits weigh more than the cache."""
    return tiny_model("llama", vocab_size=40_000, eos_token_id=39_999)


LONG_ANSWERS: dict[str, object] = {
    "context": (TEXT * 20)[:900],
    "scenario": "context-only",
    "max_new_tokens": 80,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def plain(wide_model) -> RunResult:
    """Without the diagnostics; what kernels keep for themselves is then not a later run's."""
    return run(wide_model, **LONG_ANSWERS)


@pytest.mark.parametrize(
    ("analysis", "follow_ups"),
    [
        (("forced",), ()),
        (("bounds", "forced"), ("Who left?", "When did the ferry leave?")),
    ],
)
def test_the_diagnostics_on_a_wide_vocabulary_stays_below_the_estimate(
    wide_model, plain, analysis, follow_ups
):
    result = run(wide_model, analysis=analysis, follow_ups=follow_ups, **LONG_ANSWERS)
    assert measured_peak(result) <= result.memory["total"]
    assert plain.memory["total"] < result.memory["total"] < plain.memory["total"] + 100 * 2**20


def test_what_a_prefill_keeps_lies_in_few_blocks_on_cpu():
    """Small blocks among large ones made the peak of one run in two twice as high."""
    prefills = PrefillCache(2**30)
    run(tiny_model("llama"), prefills)
    (kept,) = prefills._prefills.values()
    states = [(layer.keys, layer.values, layer.queries) for layer in kept.layers]
    views = [PromptLayer(kept, layer) for layer in range(len(states))]
    scores = [(view.value_norms(), view.window_attention(32)) for view in views]
    for per_layer in (*zip(*states, strict=True), *zip(*scores, strict=True)):
        assert len({tensor.untyped_storage().data_ptr() for tensor in per_layer}) == 1


def test_the_estimate_knows_the_cache_to_the_byte():
    result = run(tiny_model("qwen3"))
    receipts = [variant.receipt for variant in result.variants]
    assert result.memory["cache"] == receipts[0].full_cache_bytes
    evicted = sum(each.cache_bytes for each in receipts if each.cache_bytes < each.full_cache_bytes)
    assert result.memory["variants"] > evicted > 0  # with the tails of all rows


@pytest.fixture
def little_memory(monkeypatch) -> list[int]:
    """A device whose free bytes are the list's only element."""
    free = [0]
    monkeypatch.setattr(memory, "available_bytes", lambda device: free[0])
    return free


def test_a_run_that_does_not_fit_is_refused_before_anything_is_computed(little_memory):
    overhead = memory.HEAP_OVERHEAD_BYTES + torch.get_num_threads() * memory.THREAD_OVERHEAD_BYTES
    little_memory[0] = overhead + 8_000_000
    context = TEXT * 24
    asked = RunRequest(context=context, variants=VARIANTS, budgets=("10%",))
    words = r"needs about [\d.]+ MiB of memory.*left.*shorten the context by"
    with pytest.raises(PromptError, match=words) as refused:
        next(compare(asked, tiny_model("llama")))
    (tokens,) = re.findall(r" tokens to ([\d,]+)", str(refused.value))
    fitting = replace(asked, context=context[: int(tokens.replace(",", "")) - 120])
    first = next(compare(fitting, tiny_model("llama")))
    assert isinstance(first, RunPrepared)
    assert first.memory["total"] <= little_memory[0]


def test_a_sweep_that_does_not_fit_is_told_of_all_its_points(little_memory):
    budgets = tuple(map(str, range(400, 1_000, 10)))
    asked: dict[str, object] = {"variants": ("snapkv",), "budgets": budgets}
    little_memory[0] = 2**40
    needed = run(tiny_model("llama"), **asked).memory["total"]
    little_memory[0] = needed - 1
    with pytest.raises(PromptError, match=r"choose (\d+) of the 61 points") as refused:
        run(tiny_model("llama"), **asked)
    (count,) = map(int, re.findall(r"choose (\d+)", str(refused.value)))
    assert 0 < count < 32
    assert run(tiny_model("llama"), **asked | {"budgets": budgets[1 - count :]}).memory


def test_nothing_fits_without_a_smaller_model(little_memory):
    little_memory[0] = 1000
    with pytest.raises(PromptError, match="choose a smaller model"):
        run(tiny_model("llama"))


def test_old_prefills_count_as_room_and_make_it(little_memory):
    little_memory[0] = 2**40
    prefills = PrefillCache(2**30)
    run(tiny_model("llama"), prefills, context=TEXT * 12)
    run(tiny_model("llama"), prefills)
    held, needed = prefills.nbytes, run(tiny_model("llama"), prefills).memory["total"]
    little_memory[0] = needed - 1
    again = run(tiny_model("llama"), prefills)
    assert again.memory["available"] == needed - 1 + held
    assert again.timings_ms["prefill"] == 0.0, "the prompt's own prefill stays"
    assert 0 < prefills.nbytes < held
    little_memory[0] = needed - prefills.nbytes - 1
    with pytest.raises(PromptError):
        run(tiny_model("llama"), prefills)


def test_scores_of_other_windows_are_no_room_for_a_run_on_the_same_prompt(little_memory):
    little_memory[0] = 2**40
    loaded, prefills = tiny_model("llama"), PrefillCache(2**30)
    context = TEXT * 10
    first = run(loaded, prefills, context=context).memory["available"]
    for window in range(8, 30):
        spec = f"snapkv:budget=40,window={window}"
        run(loaded, prefills, context=context, variants=(spec,), max_new_tokens=1)
    again = run(loaded, prefills, context=context)
    assert again.timings_ms["prefill"] == 0.0
    assert again.memory["available"] - first < prefills.nbytes / 2


# --- the device ---------------------------------------------------------------------------


def test_the_limit_of_a_container_counts(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/box\n0::/not/here\n")
    second = tmp_path / "sys/fs/cgroup"
    first = second / "memory/box"
    first.mkdir(parents=True)
    assert device_memory._group_limits(tmp_path) == []
    (first / "memory.limit_in_bytes").write_text("1000\n")
    (first / "memory.usage_in_bytes").write_text("700\n")
    (first / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert device_memory._group_limits(tmp_path) == [350]
    (second / "memory.max").write_text("max\n")
    (second / "memory.current").write_text("700\n")
    (second / "memory.stat").write_text("inactive_file 100\n")
    assert device_memory._group_limits(tmp_path) == [350]
    (second / "memory.max").write_text("900\n")
    assert device_memory._group_limits(tmp_path) == [350, 300]


def test_the_receipts_bytes_are_those_of_the_storage():
    """Of tensors of their own: a view would keep alive all that it was cut from."""
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, 3, 50, 8, generator=generator)
    masks = [None, torch.rand(3, 50, generator=generator) < 0.4, torch.arange(50).expand(3, -1) < 9]
    layer = compact(keys, values, [Keep(mask) for mask in masks])
    tensors = [each for stack in layer.stacks for each in stack.segment.decoded()]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    entries = sum(int(mask.sum()) for mask in masks if mask is not None)
    stated = layer.row_bytes(1) + layer.row_bytes(2)
    assert stated == entries * 2 * 8 * 4
    assert sum(storage.nbytes() for storage in storages.values()) == stated


def test_rows_that_evict_do_not_keep_the_prefill_alive():
    """Only rows that keep everything need its tensors, until the last of them leaves."""
    keys, values = torch.randn(2, 2, 50, 8)
    mask = torch.arange(50).expand(2, -1) < 9
    alive = weakref.ref(keys)
    evicted = compact(keys, values, [Keep(mask)])
    both = compact(keys, values, [Keep(mask), Keep(None)])
    del keys
    assert alive() is not None
    del both
    assert alive() is None
    assert evicted.row_bytes(0) == evicted.own_bytes == 2 * 9 * 2 * 8 * 4


@pytest.mark.parametrize("follow_ups", [(), ("Who left?",)])
def test_what_selection_left_is_held_for_further_questions_alone(monkeypatch, follow_ups):
    """A row that stops has the others' entries copied: two of each for the rest of the run."""
    made = []

    def watched(*arguments):
        rows = prompt_rows(*arguments)
        made.extend(weakref.ref(stack.segment.keys) for stack in rows.layers[0].stacks)
        return rows

    monkeypatch.setattr(choose, "prompt_rows", watched)
    specs = ("snapkv:budget=40", "knorm:budget=50")
    request = short_request(*specs, max_new_tokens=4, follow_ups=follow_ups)
    events = compare(request, tiny_model("llama"))
    next(event for event in events if isinstance(event, VariantFinished))
    gc.collect()
    assert len(made) == 2
    assert all((each() is not None) == bool(follow_ups) for each in made)


def test_the_estimate_has_a_second_copy_for_further_questions_alone():
    loaded, asked = tiny_model("llama"), {"scenario": "context-only", "budgets": ("50%",)}
    once, again = (
        Sizes.of(prepare(short_request("snapkv", **asked, follow_ups=each), loaded, lambda: False))
        for each in ((), ("Who left?",))
    )
    more = replace(again, rest=once.rest).decode_peak() - once.decode_peak()
    assert more == once._kept - 2 * once._kept // once.layers > 0


def test_the_peak_is_seen_after_it_is_over():
    peak = watched_peak()
    # Large, since the process may give back some MiB of its own meanwhile.
    block = torch.ones(200 * 2**20, dtype=torch.uint8)
    del block
    gc.collect()
    assert 180 * 2**20 < peak.growth() < 240 * 2**20


def watched_peak() -> device_memory.PeakMemory:
    gc.collect()  # what earlier tests left is not freed in between
    peak = device_memory.PeakMemory(CPU)
    if peak.growth() is None:
        pytest.skip("this system does not tell the peak resident size")
    return peak


def test_pages_of_files_do_not_count(tmp_path):
    """Weights are mapped from their file: a run that reads them has not allocated them."""
    (tmp_path / "weights").write_bytes(bytes(52 * 2**20))
    weights = torch.from_file(str(tmp_path / "weights"), size=13 * 2**20)
    peak = watched_peak()
    weights.sum()
    assert peak.growth() < 20 * 2**20


def test_one_line_tells_estimate_peak_and_cache():
    stated = {"total": 2**31, "available": 2**33, "cache": 3 * 2**20, "variants": 2**20}
    assert memory_line({}) == ""
    assert "not measured" in memory_line(stated)
    line = memory_line({**stated, "measured_peak": 2**30})
    assert "peak 1.0 GiB, estimated about 2.0 GiB of 8.0 GiB" in line
    assert "full cache 3.0 MiB" in line


# --- what a run says it holds while it decodes is what lives in this process because of it


def storages() -> dict[int, int]:
    """Bytes of every storage that some live tensor has, by address."""
    gc.collect()
    # type(), for isinstance would ask proxies of other libraries what they are
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    found = [each.untyped_storage() for each in tensors if each.layout == torch.strided]
    return {each.data_ptr(): each.nbytes() for each in found if each.nbytes()}


def test_held_is_what_the_tensors_of_the_run_take():
    loaded, result, live = tiny_model("llama"), RunResult(), 0
    variants = ("full", "snapkv", "adakv+critical", "streaming_llm", "h2o", "adakv:store=int8")
    settings = {"context": report()[:1_500], "scenario": "regular", "budgets": ("40%",)}
    asked = short_request(*variants, max_new_tokens=12, **settings)
    before = storages()
    for event in compare(asked, loaded):
        result.apply(event)
        if isinstance(event, FloorMeasured):  # rows that evict have let go of less than later
            live = sum(size for at, size in storages().items() if at not in before)
    held = result.memory["held"]
    # beside it: logits and hidden states of the measured step, indices of the slots
    assert held <= live < 1.1 * held
    assert held > result.memory["cache"]


# --- in a process of its own ---------------------------------------------------------------

# Layers of 8 MiB: small enough that the C library would keep them after they were dropped.
EVICT = """
import torch
from pathlib import Path
from ckv_core.engine.cache.slots import Keep, compact
from ckv_core.base.device_memory import give_back

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

def layer():
    return torch.ones(2, 16_384, 64), torch.ones(2, 16_384, 64)

compact(*layer(), [Keep(torch.ones(2, 16_384, dtype=torch.bool))])
give_back()
empty = resident()
full = [layer() for _ in range(25)]
whole = resident()
keep = torch.zeros(2, 16_384, dtype=torch.bool)
keep[:, ::20] = True
caches = [compact(*states, [Keep(keep)]) for states in full]
held = sum(cache.own_bytes for cache in caches)
del full
give_back()
print(whole - empty, held, resident() - empty)
"""


def child(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
def test_what_eviction_frees_leaves_the_process():
    full, held, left = map(int, child("-c", EVICT).split())
    assert full > 390 * 2**20
    assert 0.049 * full < held < 0.055 * full
    assert left < held + 0.05 * full


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks the CUDA allocator")
def test_what_eviction_frees_leaves_the_device():
    before = torch.cuda.memory_allocated()
    keys, values = torch.ones(2, 2, 2**18, 64, device="cuda")
    keep = torch.zeros(2, 2**18, dtype=torch.bool, device="cuda")
    keep[:, ::20] = True
    cache = compact(keys, values, [Keep(keep)])
    full = keys.nbytes + values.nbytes
    del keys, values, keep
    held = cache.own_bytes
    assert held < 0.055 * full
    assert torch.cuda.memory_allocated() - before < 1.1 * held


def test_100_000_tokens_pass_within_the_estimate(tmp_path):
    """Through the command line; the model is as small as a model can be."""
    smallest = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    model = saved_model(tmp_path / "model", max_position_embeddings=131_072, **smallest)
    context, out = tmp_path / "context.txt", tmp_path / "run.json"
    lines = (f"Line {number}: one gauge was read again.\n" for number in range(3_000))
    context.write_text("".join(lines)[:100_100], "utf-8")
    files = ["--context", str(context), "--model", model, "--json", str(out)]
    asked = ["--variant", "full", "--variant", "adakv+critical", "--budget", "5%"]
    printed = child("-m", "ckv_core", "compare", *files, *asked, "--max-new-tokens", "4")
    assert "memory: peak" in printed
    result = json.loads(out.read_text("utf-8"))
    assert result["prompt"]["tokens"] >= 100_000
    stated, peak = result["memory"]["total"], result["memory"].get("measured_peak")
    if peak is not None:
        assert peak <= stated <= 4 * peak
