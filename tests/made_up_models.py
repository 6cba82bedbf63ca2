"""What made-up runs say of their model: small unless told otherwise."""

from typing import Any

from ckv_core.results.records import ModelInfo


def model_info(layers: int = 2, **changes: Any) -> ModelInfo:
    """Four query heads on two KV heads; every layer can be evicted from."""
    values: dict[str, Any] = {
        "name": "m",
        "sha256": "",
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 4,
        "dtype": "float32",
        "device": "cpu",
        "evictable_layers": tuple(range(layers)),
        "context_limit": 64,
    }
    return ModelInfo(layers=layers, **(values | changes))
