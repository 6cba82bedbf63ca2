"""Made-up runs that set a query-agnostic method beside query-aware ones."""

import dataclasses

from ckv_core.results.events import RunResult
from ckv_core.results.records import VariantResult


def mixed(result: RunResult, scenario: str = "regular") -> RunResult:
    """The run with KeyDiff in place of plain SnapKV."""
    prompt = result.prompt and dataclasses.replace(result.prompt, scenario=scenario)
    return dataclasses.replace(
        result, variants=[_as_keydiff(v) for v in result.variants], prompt=prompt
    )


def _as_keydiff(variant: VariantResult) -> VariantResult:
    if variant.method != "snapkv" or variant.critical:
        return variant
    spec = variant.spec.replace("snapkv", "keydiff")
    return dataclasses.replace(variant, spec=spec, label="KeyDiff", method="keydiff")
