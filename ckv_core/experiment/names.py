"""What readers call the variants of a run, alike on pages, in files and on the command line."""

from collections import Counter
from collections.abc import Sequence

from ckv_core.records.external_selection import OWN
from ckv_core.records.records import VariantResult
from ckv_core.records.variants import (
    VariantSpec,
    is_named,
    keys_in_label,
    method_of,
    written_parameters,
)


def display_names(variants: Sequence[VariantResult | VariantSpec]) -> list[str]:
    """One name per variant: its label, or its SPEC where that says more.

    A SPEC says more where it sets a parameter that the label does not show, or a budget that not
    all have. Two that share a label have their settings behind it, where that tells them apart.
    Positions that were given are named by their label.
    """
    counts = Counter(variant.label for variant in variants)
    # Given positions and SPECs with a name set nothing that a reader knows.
    written = [
        {} if method_of(v.spec) == OWN or is_named(v.spec) else written_parameters(v.spec)
        for v in variants
    ]
    pairs = zip(variants, written, strict=True)
    # As written: while a run chooses, some budgets are already resolved to tokens and some not.
    budgets = {
        str(parameters.get("budget", v.params.get("budget", ""))) for v, parameters in pairs
    } - {""}
    silent = {"budget"} if len(budgets) == 1 else set()
    names = [
        v.label
        if counts[v.label] == 1 and parameters.keys() <= silent | keys_in_label(v.label)
        else curve_name(v.label, None, v.spec)
        if counts[v.label] > 1 and silent
        else v.spec
        for v, parameters in zip(variants, written, strict=True)
    ]
    is_alike = Counter(names)
    return [v.spec if is_alike[name] > 1 else name for v, name in zip(variants, names, strict=True)]


def curve_name(label: str, alpha: float | None, spec: str) -> str:
    """The points of a method at several budgets: its label, and what else tells them apart.

    Args:
        label: of the method.
        alpha: None where it has none, or where the name stands for several.
        spec: theirs; the budget in it is passed over.
    """
    shown = {"budget", *keys_in_label(label), *(() if alpha is None else ("alpha",))}
    written = {} if is_named(spec) else written_parameters(spec)
    settings = [f"{key} {value}" for key, value in written.items() if key not in shown]
    return " ".join([label, *([] if alpha is None else [f"alpha {alpha:g}"]), *settings])
