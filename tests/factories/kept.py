"""Files of kept caches of zeros, for pages and services."""

import numpy as np
from safetensors.numpy import save

from ckv_core.records.kept_caches import KeptRecord, metadata_of
from ckv_core.records.records import Receipt
from tests.factories.runs import model_info

CONTEXT = b"one two three"


def kept_record(**changes: object) -> KeptRecord:
    told: dict[str, object] = {
        "model": model_info(name="tiny", sha256="0" * 64),
        "spec": "snapkv:budget=48",
        "label": "SnapKV",
        "params": {"budget": 48},
        "compressed_tokens": 300,
        "receipt": Receipt(
            budget_tokens=48,
            requested_entries=192,
            retained_entries=192,
            cache_bytes=9_216,
            full_cache_bytes=57_600,
        ),
        "created": "2026-01-02T03:04:05+00:00",
        "environment": {"torch": "2"},
    }
    return KeptRecord(**told | changes)


def kept_bytes(record: KeptRecord | None = None, **changes: np.ndarray) -> bytes:
    """A file whose tensors fit its receipt; of zeros. `changes` replace some, or add."""
    record = record or kept_record()
    model, kept = record.model, record.receipt.budget_tokens
    tensors = {
        "context": np.frombuffer(CONTEXT, np.uint8),
        "token_ids": np.zeros(record.compressed_tokens, np.int32),
    }
    for layer in range(model.layers):
        numbers = np.zeros((model.kv_heads, kept, model.head_dim), np.float32)
        tensors |= {
            f"layers.{layer}.0.heads": np.arange(model.kv_heads, dtype=np.int32),
            f"layers.{layer}.0.positions": np.tile(
                np.arange(kept, dtype=np.int32), (model.kv_heads, 1)
            ),
            f"layers.{layer}.0.keys": numbers,
            f"layers.{layer}.0.values": numbers,
        }
    return save(tensors | changes, metadata_of(record))
