"""Files of kept caches without any tensor worth the name, for pages and services."""

import json

from ckv_core.results.kept_record import KeptRecord, metadata_of
from ckv_core.results.records import Receipt
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
            requested_entries=288,
            retained_entries=288,
            cache_bytes=9_216,
            full_cache_bytes=57_600,
        ),
        "created": "2026-01-02T03:04:05+00:00",
        "environment": {"torch": "2"},
    }
    return KeptRecord(**told | changes)


def kept_bytes(record: KeptRecord | None = None) -> bytes:
    """A file whose head is right."""
    header = {
        "__metadata__": metadata_of(record or kept_record()),
        "context": {"dtype": "U8", "shape": [len(CONTEXT)], "data_offsets": [0, len(CONTEXT)]},
    }
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + CONTEXT
