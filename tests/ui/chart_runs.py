"""A made-up run with two layers not evicted, for the charts and their tables."""

import numpy as np

from ckv_core.results.events import RunResult
from ckv_core.results.records import Perturbation, Receipt, RetainedSet, VariantResult
from tests.made_up_models import model_info

LAYERS, QUERY_HEADS, KV_HEADS, POSITIONS = 6, 8, 2, 100
WHOLE = (1, 4)
NAMES = [
    ("full", "Full cache"),
    ("snapkv", "SnapKV"),
    ("snapkv+critical", "SnapKV + CriticalKV"),
    ("adakv", "AdaKV"),
]


def make_perturbation(rng, shape, *, whole, base):
    heads = rng.random(shape, np.float32) + np.float32(0.1)
    heads[list(whole)] = np.nan
    return Perturbation(
        head_l1=heads,
        base_head_l1=heads * np.float32(1.5) if base else None,
        layer_hidden_l1=rng.random(shape[0], np.float32) * 100,
        kl=0.1,
    )


def make_result(layers=LAYERS, query_heads=QUERY_HEADS, names=NAMES, whole=WHOLE):
    rng = np.random.default_rng(3)
    variants = []
    for spec, label in names:
        is_full = spec == "full"
        mask = rng.random((layers, KV_HEADS, POSITIONS)) < 0.3
        mask[list(whole)] = True
        variants.append(
            VariantResult(
                spec=spec,
                label=label,
                method=spec.partition("+")[0],
                critical="critical" in spec,
                retained=None if is_full else RetainedSet.from_mask(mask),
                receipt=Receipt(
                    budget_tokens=30,
                    requested_entries=300,
                    retained_entries=300,
                    cache_bytes=2**20 if not is_full else 4 * 2**20,
                    full_cache_bytes=4 * 2**20,
                ),
                perturbation=None
                if is_full
                else make_perturbation(
                    rng, (layers, query_heads), whole=whole, base="critical" in spec
                ),
            )
        )
    model = model_info(
        layers=layers,
        query_heads=query_heads,
        kv_heads=KV_HEADS,
        evictable_layers=tuple(i for i in range(layers) if i not in whole),
    )
    return RunResult(model=model, variants=variants)
