"""Hidden L1 of each layer over several prompts (the paper's figures 3a and 5). No torch."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ckv_core.analysis.aggregate_runs import JoinedVariant
from ckv_core.analysis.bootstrap import mean_ends
from ckv_core.analysis.intervals import MIN_PROMPTS, Interval
from ckv_core.methods import SELECTOR_PARAMETERS
from ckv_core.request.identity import Identity
from ckv_core.results.records import Float32Array

LayerMeans = tuple[Interval, ...]  # [layers], all of the same prompts


def hidden_by_layer(variant: JoinedVariant) -> LayerMeans | None:
    """Means of the cascaded hidden L1 after each layer; None where it was not measured."""
    return _means(list(_hidden(variant).values()))


def reduction_by_layer(
    variant: JoinedVariant, variants: Sequence[JoinedVariant]
) -> LayerMeans | None:
    """Means of base minus variant over the prompts that both were run on.

    The base is the variant's own settings and budget without CriticalKV; None where it is not
    among `variants`.
    """
    if (wanted := base_identity(variant.identity)) is None:
        return None
    base = next((each for each in variants if each.identity == wanted), None)
    if base is None:
        return None
    own, plain = _hidden(variant), _hidden(base)
    return _means([plain[prompt] - own[prompt] for prompt in own if prompt in plain])


def base_identity(identity: Identity) -> Identity | None:
    """The same settings and budget without CriticalKV; None of what has no such second stage."""
    settings = identity.settings
    if not settings.critical:
        return None
    parameters = tuple(pair for pair in settings.parameters if pair[0] not in SELECTOR_PARAMETERS)
    name = settings.name.partition("+")[0].strip()
    return replace(
        identity, settings=replace(settings, name=name, critical=False, parameters=parameters)
    )


def _hidden(variant: JoinedVariant) -> dict[int, Float32Array]:
    """[layers] by prompt, of those where every layer is known."""
    measured = zip(variant.prompts, variant.variants, strict=True)
    found = {at: each.perturbation.layer_hidden_l1 for at, each in measured if each.perturbation}
    return {at: values for at, values in found.items() if np.isfinite(values).all()}


def _means(rows: Sequence[Float32Array]) -> LayerMeans | None:
    """Of one row per prompt."""
    if not rows:
        return None
    samples = np.stack(rows, axis=-1).astype(np.float64)
    means, n = samples.mean(axis=-1).tolist(), len(rows)
    if n < MIN_PROMPTS:
        return tuple(Interval(mean, None, None, n) for mean in means)
    low, high = (end.tolist() for end in mean_ends(samples))
    return tuple(Interval(*each, n) for each in zip(means, low, high, strict=True))
