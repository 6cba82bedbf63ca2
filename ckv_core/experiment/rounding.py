"""Which of a run's metrics are no more than rounding: within its rounding floor. No torch."""

from ckv_core.records.events import RunResult
from ckv_core.records.metrics import METRICS
from ckv_core.records.records import RoundingFloor

_OTHER_ENTRIES = (
    " Half precision can also change which entries a method keeps. The floor leaves that out, so "
    "larger differences between variants may be rounding too."
)


def floor_by_metric(floor: RoundingFloor | None) -> dict[str, float]:
    """The floor by key of `metrics.METRICS`; empty where none was measured.

    Head L1 has none: it is computed in float32 from the full run's own tensors, whatever their
    type, so two kept sets are compared free of what a pass in half precision adds.
    """
    return {} if floor is None else {"final": floor.final_hidden_l1, "kl": floor.kl}


def floor_sentence(result: RunResult) -> str | None:
    """The floor of a run in one sentence; None where it was not measured."""
    if result.floor is None:
        return None
    final, kl = map(short, floor_by_metric(result.floor).values())
    half = result.model is not None and result.model.dtype != "float32"
    return (
        f"Rounding floor of this run{in_type(result)}: final hidden L1 {final}, KL {kl} nats. "
        "Another order of summation alone moves the full cache by this much. Ignore smaller "
        "differences." + (_OTHER_ENTRIES if half else "")
    )


def within_floor(result: RunResult, index: int) -> list[str]:
    """Keys of the metrics in which a variant is no further from the full cache than rounding."""
    floor = floor_by_metric(result.floor)
    variant = result.variants[index]
    own = {key: METRICS[key].read(variant) for key in floor if variant.method != "full"}
    return [key for key, value in own.items() if value is not None and value <= floor[key]]


def short(value: float) -> str:
    """Two digits that mean something, whole numbers from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def in_type(result: RunResult) -> str:
    """` (bfloat16)`: in what the run was computed."""
    return f" ({result.model.dtype})" if result.model else ""
