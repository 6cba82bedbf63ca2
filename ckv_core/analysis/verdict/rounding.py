"""What the final hidden L1 and KL of a run cannot tell: cautions from its rounding floor."""

from collections.abc import Iterable, Sequence

from ckv_core.analysis.names import display_names
from ckv_core.analysis.rounding import in_type, level_with_base, within_floor
from ckv_core.analysis.verdict.base import listed
from ckv_core.results.events import RunResult
from ckv_core.results.figures import FIGURES
from ckv_core.results.records import VariantResult


def rounding_cautions(result: RunResult) -> Iterable[str]:
    """Sentences; empty where the two tell every variant from the full cache and from its base."""
    names = display_names(result.variants)
    alone: dict[str, list[str]] = {}
    pairs: dict[str, list[str]] = {}
    for index, name in enumerate(names):
        if not _evicts(result.variants[index]):
            continue
        if keys := within_floor(result, index):
            alone.setdefault(_labels(keys), []).append(name)
        base, keys = level_with_base(result, index)
        if base is not None and keys:
            pairs.setdefault(_labels(keys), []).append(f"{name} against {names[base]}")
    floor = f"below this run's rounding floor{in_type(result)}"
    for labels, affected in alone.items():
        yield f"{labels} of {listed(affected)}: {floor}, so eviction need not have moved it."
    for labels, affected in pairs.items():
        yield f"{labels} of {listed(affected)}: a difference {floor}, so neither is closer."


def _evicts(variant: VariantResult) -> bool:
    receipt = variant.receipt
    return receipt is None or receipt.cache_bytes < receipt.full_cache_bytes


def _labels(keys: Sequence[str]) -> str:
    return " and ".join(FIGURES[key].label for key in keys)
