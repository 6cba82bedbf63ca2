"""Comparisons of the engine's results with the reference; shared by the tests."""

from typing import Any

import numpy as np
import pytest

from ckv_core.records.events import RunResult
from ckv_core.records.records import Perturbation, VariantResult
from tests.reference.comparison import Reference
from tests.reference.forward import Kept, evictable_layers, head_l1, hidden_l1, kl_divergence
from tests.reference.keep import agreement, entries, kept_sets

# Share of kept entries that may differ: two float32 softmaxes round differently, so two
# entries whose scores agree to seven digits may change places at the cut.
MIN_AGREEMENT = 0.995
# Float32 in the engine against float64 in the reference, both fed by float32 activations.
L1_TOLERANCE = 0.02


def kept_from_mask(mask: Any, evictable: tuple[int, ...]) -> Kept:
    """[layers, kv_heads, positions] booleans to the reference's form."""
    rows = mask.tolist()
    return [rows[layer] if layer in evictable else None for layer in range(len(rows))]


def kept_of(result: RunResult, variant: VariantResult) -> Kept | None:
    """None for the full cache."""
    if variant.retained is None:
        return None
    return kept_from_mask(variant.retained.mask(), result.model.evictable_layers)


def check_run(reference: Reference, result: RunResult, steps: int) -> None:
    """Prompt, kept sets, totals, tokens and all distances of one run."""
    assert list(result.prompt.token_ids) == reference.prompt.token_ids
    assert result.prompt.compressed_tokens == reference.prompt.compressed
    assert list(result.model.evictable_layers) == evictable_layers(reference.model)
    for variant in result.variants:
        kept = kept_of(result, variant)
        assert list(variant.token_ids) == reference.generate(kept, steps), variant.spec
        if kept is None:
            assert variant.perturbation is None
            continue
        _check_kept(reference, result, variant)
        check_distances(reference, kept, variant.perturbation)
        if variant.critical:
            base = kept_sets(reference.prefilled, variant.method, False, dict(variant.params))
            _check_heads(reference, base, variant.perturbation.base_head_l1)


def check_distances(reference: Reference, kept: Kept, measured: Perturbation) -> None:
    """Head L1, hidden L1 and KL of the measured step."""
    full_tap, _, full_logits = reference.full_step
    tap, _, logits = reference.first_step(kept)
    _check_heads(reference, kept, measured.head_l1)
    hidden = pytest.approx(hidden_l1(full_tap, tap), rel=L1_TOLERANCE, abs=1e-4)
    assert measured.layer_hidden_l1.tolist() == hidden
    # KL is a difference of float32 log-probabilities
    expected = kl_divergence(full_logits, logits)
    assert measured.kl == pytest.approx(expected, rel=L1_TOLERANCE, abs=1e-5)


def _check_heads(reference: Reference, kept: Kept, found: np.ndarray) -> None:
    """Head L1 within a relative tolerance; layers that are not evictable hold NaN.

    Floor: A - A' cancels in float32 (2^-24 per entry), so an L1 below about a millionth of the
    head's own output, `sizes` = sum of A times value norm, is made of roundings.
    """
    expected = head_l1(reference.model, *reference.full_step[:2], kept)
    for layer, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if theirs is None:
            assert np.isnan(ours).all(), layer
            continue
        allowed = L1_TOLERANCE * np.array(theirs) + 1e-6 * np.array(reference.sizes[layer])
        assert (np.abs(ours - theirs) <= allowed).all(), f"layer {layer}: {ours}, not {theirs}"


def _check_kept(reference: Reference, result: RunResult, variant: VariantResult) -> None:
    """Kept entries against the reference's own choice; exact total; receipt."""
    model, positions = result.model, result.prompt.compressed_tokens
    kept, params = kept_of(result, variant), dict(variant.params)
    expected = kept_sets(reference.prefilled, variant.method, variant.critical, params)
    assert agreement(expected, kept) >= MIN_AGREEMENT, variant.spec
    heads, entry_bytes = len(model.evictable_layers) * model.kv_heads, 2 * model.head_dim * 4
    total = heads * min(params["budget"], positions)
    assert entries(kept) == entries(expected) == total
    receipt = variant.receipt
    assert receipt.retained_entries == receipt.requested_entries == total
    assert receipt.budget_tokens == params["budget"]
    # float32 keys and values, nothing else: what an entry costs is what the receipt says
    assert receipt.cache_bytes == total * entry_bytes
    assert receipt.full_cache_bytes == heads * positions * entry_bytes
    whole = [layer for layer in range(model.layers) if layer not in model.evictable_layers]
    assert variant.retained.mask()[whole].all()
