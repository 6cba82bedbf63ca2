"""Runs variants on one and two emulated devices and on the CPU, and writes what it finds as JSON.

`python -m tests.fake_device.matrix sample|all`, in a process of its own: one line a case.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from accelerate import dispatch_model
from transformers import PreTrainedModel

from benchmarks import gpu
from ckv_core.base.device_memory import keep_for_good
from ckv_core.engine import timing
from ckv_core.engine.compare import compare
from ckv_core.engine.generation import RunningRows
from ckv_core.engine.rows import PolicyRow
from ckv_core.errors import CkvError
from ckv_core.methods import STORES
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.loading import load_model
from ckv_core.records.codec import plain
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest
from ckv_core.worker.runner import EngineRunner
from tests.factories.combinations import combinations
from tests.factories.decoding import replayed_beside_usual
from tests.factories.events import folded
from tests.factories.models import saved_model, tiny_model_on
from tests.fake_device.device import NAME, FakeDevices
from tests.reference.report import report

CONTEXT = report()[2000:2180]
BUDGET = 70
STEP = 12  # of how many variants of a group one is taken, where not all are
GROUP = 13  # variants of one comparison
ARCHITECTURES = ("llama", "gemma3")
SCENARIOS = ("regular", "context-only")
LAYERS = 4
WHOLE = RunningRows.step
LATE = "D2H later"  # each token that is fed has its copy to the host


@dataclass(frozen=True)
class Case:
    """One comparison, and on how many emulated devices."""

    name: str
    request: RunRequest
    arch: str
    devices: int


def cases(*, every: bool) -> Iterator[Case]:
    """All variants in both scenarios, or a sample in which each method and option occurs."""
    groups = combinations(str(BUDGET)).items()
    for number, (name, specs) in enumerate(groups):
        for devices in (1, 2) if every or name == "plain" else (1 + number % 2,):
            for scenario in SCENARIOS if every else (SCENARIOS[number // 2 % 2],):
                turn = number + devices
                step = 1 if every else 2 if name == "plain" else STEP
                chosen = specs[turn % min(step, len(specs)) :: step]
                for at in range(0, len(chosen), GROUP):
                    some = tuple(chosen[at : at + GROUP])
                    request = _request(some, scenario, analysed=name == "+critical")
                    arch = ARCHITECTURES[turn % 2]
                    yield Case(f"{name}, {scenario}, {devices}", request, arch, devices)


def _request(specs: tuple[str, ...], scenario: str, *, analysed: bool) -> RunRequest:
    return RunRequest(
        context=CONTEXT,
        question="Who counted the vessels?",
        variants=("full", *specs),
        scenario=scenario,  # type: ignore[arg-type]
        max_new_tokens=10 if any("every" in spec for spec in specs) else 4,
        ignore_eos=True,
        analysis=("bounds", "forced") if analysed else (),
        follow_ups=("Who left?",) if analysed and scenario == "context-only" else (),
    )


SMALL = _request(("snapkv:budget=70",), "regular", analysed=False)


@cache
def model_on(arch: str, devices: int, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Four layers on the CPU (0), on one device, or the later ones on the second."""
    return tiny_model_on(
        arch, lambda model: _spread(devices, model.to(dtype)), num_hidden_layers=LAYERS
    )


def _spread(devices: int, model: PreTrainedModel) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(7)
    for name, weight in model.named_parameters():
        if name.endswith("k_norm.weight"):  # or all keys would have one norm, and Knorm a tie
            weight.copy_(torch.randn(weight.shape, generator=generator))
    if devices < 2:
        return model.to(f"{NAME}:0") if devices else model
    places = {f"model.{name}": f"{NAME}:0" for name, _ in model.model.named_children()}
    del places["model.layers"]
    places |= {f"model.layers.{at}": f"{NAME}:{2 * at // LAYERS}" for at in range(LAYERS)}
    places |= {"model.norm": f"{NAME}:1", "lm_head": f"{NAME}:1"}
    return dispatch_model(model, places, main_device=f"{NAME}:0", force_hooks=True)


def run(request: RunRequest, loaded: LoadedModel) -> RunResult:
    return folded(compare(request, loaded))


def compared(case: Case, fakes: FakeDevices) -> dict[str, object]:
    """Which variants have other tokens than on the CPU, and how often the host waited."""
    expected = run(case.request, model_on(case.arch, 0))
    loaded = model_on(case.arch, case.devices)
    fakes.events.clear()
    # The most that the host waits within a decoding step, beyond what its policies may, and where.
    most, where = 0, {}

    def step(rows: RunningRows, *given: Any) -> None:
        nonlocal most, where
        waits, places = fakes.waits, fakes.places.copy()
        acting = sum(isinstance(part, PolicyRow) for part in rows._decoder.context.parts)
        WHOLE(rows, *given)
        found = fakes.places - places
        # The first step feeds two tokens: its own, and the next one's while it is waited for.
        fed = sum(count for (kind, _), count in found.items() if kind == LATE)
        more = fakes.waits - waits - acting * max(1, fed)
        if more > most:
            most, where = more, {f"{kind} {at}": count for (kind, at), count in found.items()}

    with patch.object(RunningRows, "step", step):
        actual = run(case.request, loaded)
    pairs = zip(expected.variants, actual.variants, strict=True)
    return {
        "specs": list(case.request.variants),
        "other": [one.spec for one, other in pairs if one.token_ids != other.token_ids],
        "waits": most,
        "where": where,
        "events": dict(fakes.events),
    }


def halved(capability: tuple[int, int], fakes: FakeDevices) -> dict[str, object]:
    """Kernels of a run in half precision, on two devices of a capability."""
    fakes.capability = capability
    dtype = torch.bfloat16 if capability >= (8, 0) else torch.float16
    specs = ("snapkv:budget=70", "adakv+critical:budget=70", "adakv:budget=70,store=int8")
    fakes.events.clear()
    try:
        run(_request(specs, "context-only", analysed=True), model_on("llama", 2, dtype))
    finally:
        fakes.capability = (9, 0)
    return {"events": dict(fakes.events)}


def timed() -> dict[str, object]:
    """The times of each variant alone, on a device with a millisecond between any two events."""
    asked = _request(("h2o:budget=70", "kvzip:budget=70"), "regular", analysed=False)
    with patch.object(timing, "STEP_LIMIT_S", 0.005):
        result = run(replace(asked, time=True), model_on("llama", 2))
    return {"times": [plain(variant.time) for variant in result.variants]}


STEPPED = (
    "full",
    "snapkv",
    "adakv",
    *(f"adakv:store={each}" for each in STORES),
    "tova:store=int4",
)


def stepped(spec: str, fakes: FakeDevices) -> dict[str, object]:
    """Launches that each further layer costs a decoding step in half precision, and its waits."""
    counts: list[tuple[int, int]] = []  # of each step

    def step(rows: RunningRows, *given: Any) -> None:
        before = fakes.launches, fakes.waits
        WHOLE(rows, *given)
        counts.append((fakes.launches - before[0], fakes.waits - before[1]))

    request = replace(_request((spec,), "context-only", analysed=False), variants=(spec,))
    with patch.object(RunningRows, "step", step):
        for layers in (2, 4):
            half = partial(PreTrainedModel.to, device=f"{NAME}:0", dtype=torch.bfloat16)
            run(request, tiny_model_on("llama", half, num_hidden_layers=layers))
    few, many = counts[1], counts[1 + len(counts) // 2]  # not the first, which feeds two tokens
    return {"launches": (many[0] - few[0]) / 2, "step waits": max(few[1], many[1])}


@torch.inference_mode()
def benchmark() -> dict[str, object]:
    """The rows of `make gpu` for one method, and why those that are empty are."""
    setting = replace(
        gpu.SMALL,
        device=torch.device(NAME, 0),
        lengths=(150,),
        batches=(1,),
        methods=("adakv:store=int4",),
        shares=(0.5,),
        steps=2,
    )
    device = gpu.measured(setting)
    cells = [each for each in gpu.ours(setting, device) if isinstance(each, gpu.Cell)]
    cells += gpu.rivals(setting, device)
    return {"reasons": [each.reason for each in cells], "peaks": [each.peak for each in cells]}


def placed(fakes: FakeDevices) -> dict[str, object]:
    """Where models go, in which type, and what is refused, by the room of two devices."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        small = saved_model(Path(folder) / "small")
        large = saved_model(Path(folder) / "large", num_hidden_layers=24)

        def loaded(name: str, rooms: tuple[int, int], **given: Any) -> dict[str, object]:
            _make_room(fakes, rooms)
            try:
                one = load_model(name, "cuda", **given)
            except CkvError as error:
                return {"refused": f"{type(error).__name__}: {error}"}
            _make_room(fakes, (2**30, 2**30))
            tokens = [each.token_ids for each in run(SMALL, one).variants]
            weights = [0, 0]
            for part in one.model.parameters():
                weights[part.device.index] += part.nbytes
            return {"dtype": one.info.dtype, "weights": weights, "tokens": tokens}

        found["roomy"] = loaded(small, (2**30, 2**30))
        found["second"] = loaded(small, (2**10, 2**30))
        found["float32"] = loaded(large, (2**30, 2**30), dtype="float32")
        need = sum(found["float32"]["weights"])  # type: ignore[index]
        found["spread"] = loaded(large, (need * 3 // 4, need * 3 // 4), dtype="float32")
        found["too large"] = loaded(large, (need // 3, need // 3), dtype="float32")
        fakes.capability = (7, 5)
        found["older"] = loaded(small, (2**30, 2**30))
        fakes.capability = (9, 0)
        runner = EngineRunner()
        _make_room(fakes, (need * 5 // 4, 0))
        runner.load(small, "cuda", "float32", lambda _step: None)
        runner.load(large, "cuda", "float32", lambda _step: None)
        found["after another"] = next(reversed(runner._models))[0]
    # What a run says that fits on all devices but one.
    told: list[str] = []
    found["estimates"] = told
    for rooms in ((2**29, 2**20), (2**20, 2**29), (2**29, 2**29)):
        _make_room(fakes, rooms)
        try:
            run(SMALL, model_on("llama", 2))
            told.append("")
        except CkvError as error:
            told.append(str(error))
    fakes.total = [2**36, 2**36]
    return found


def _make_room(fakes: FakeDevices, rooms: tuple[int, int]) -> None:
    fakes.total = [fakes.live(at) + room for at, room in enumerate(rooms)]


def main(*, every: bool) -> None:
    torch.set_num_threads(1)
    keep_for_good()
    fakes = FakeDevices(2)

    def told(name: str, work: Callable[[], dict[str, object]]) -> None:
        try:
            found = work()
        except Exception as error:  # the next case is tried
            lines = traceback.extract_tb(error.__traceback__)
            own = [f"{line.filename.rpartition('/')[2]}:{line.lineno}" for line in lines]
            found = {"error": f"{type(error).__name__}: {error}"[:400], "at": own[-6:]}
        sys.stdout.write(json.dumps({"case": name} | found) + "\n")

    for case in cases(every=every):
        told(case.name, lambda case=case: compared(case, fakes))
    for capability in ((9, 0), (7, 5)):
        told(f"half {capability}", lambda capability=capability: halved(capability, fakes))
    told("timed", timed)
    for spec in STEPPED:
        told(f"step of {spec}", lambda spec=spec: stepped(spec, fakes))
    for dtype in (torch.float32, torch.bfloat16):
        loaded = model_on("llama", 1, dtype)
        told(f"recorded {dtype}", lambda loaded=loaded: {"graphs": replayed_beside_usual(loaded)})
    told("make gpu", benchmark)
    told("placement", lambda: placed(fakes))


if __name__ == "__main__":
    main(every="all" in sys.argv)
