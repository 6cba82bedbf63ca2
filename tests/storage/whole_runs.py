"""Whole runs: what events add up to, what is stored, when two are equal, one of a fixed size."""

import numpy as np

from ckv_core.results.events import (
    Generated,
    RunEvent,
    RunFinished,
    RunPrepared,
    RunResult,
    VariantFinished,
    VariantMeasured,
    VariantSelected,
)
from ckv_core.results.records import (
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    VariantResult,
)
from storage import repository
from storage.database import Database
from storage.records import StoredRun
from tests.made_up_models import model_info


def folded(stream: list[RunEvent]) -> RunResult:
    result = RunResult()
    for event in stream:
        result.apply(event)
    return result


def load(database: Database, slug: str) -> StoredRun:
    with database.read() as session:
        return repository.load_run(session, slug)


def assert_same_result(left: RunResult, right: RunResult) -> None:
    """Equal in every field; NaN equals NaN, and text that prints alike must be alike."""
    assert _plain(left) == _plain(right)


def _plain(result: RunResult) -> list[object]:
    return [
        result.model,
        result.prompt,
        dict(result.environment),
        dict(result.timings_ms),
        result.finished,
        result.kind,
        dict(result.memory),
        result.floor and (array_key(result.floor.layer_hidden_l1), repr(result.floor.kl)),
        [_plain_variant(variant) for variant in result.variants],
    ]


def _plain_variant(variant: VariantResult) -> dict[str, object]:
    fields = {name: getattr(variant, name) for name in VariantResult.__slots__}
    measured = fields.pop("perturbation")
    # Bytes, so that NaN compares; repr, so that 1 is not 1.0.
    fields["params"] = sorted((key, repr(value)) for key, value in variant.params.items())
    fields["timings_ms"] = dict(variant.timings_ms)
    fields["answer_scores"] = dict(variant.answer_scores)
    fields["analysis"] = {name: array_key(array) for name, array in variant.analysis.items()}
    if measured is not None:
        fields |= {
            "head_l1": array_key(measured.head_l1),
            "base_head_l1": array_key(measured.base_head_l1),
            "layer_hidden_l1": array_key(measured.layer_hidden_l1),
            "kl": repr(measured.kl + 0.0),  # SQLite has no negative zero
        }
    return fields


def array_key(array: np.ndarray | None) -> object:
    if array is None:
        return None
    return array.dtype, array.shape, [repr(value) for value in array.ravel().tolist()]


def big_events(tokens: int = 8000, variants: int = 8) -> list[RunEvent]:
    """A run of SmolLM2's shape: 30 layers, 3 KV heads, 9 query heads; 64 tokens each."""
    rng = np.random.default_rng(0)
    model = model_info(
        name="SmolLM2-135M-Instruct",
        layers=30,
        query_heads=9,
        kv_heads=3,
        head_dim=64,
        context_limit=8192,
    )
    prompt = PromptInfo(
        scenario="regular",
        token_ids=tuple(rng.integers(0, 49152, tokens).tolist()),
        compressed_tokens=tokens,
        pieces=tuple(f" word{i % 997}" for i in range(tokens)),
        context_tokens=(tokens // 10, tokens - tokens // 10),
    )
    rows = tuple(
        VariantResult(
            spec=f"snapkv:budget={256 + i}", label="SnapKV", method="snapkv", critical=bool(i % 2)
        )
        for i in range(variants)
    )
    stream: list[RunEvent] = [RunPrepared(model, prompt, rows, {"python": "3.11"})]
    for index in range(variants):
        # A 10 % budget in random places is the worst case for compression.
        retained = RetainedSet.from_mask(rng.random((30, 3, tokens)) < 0.1)
        receipt = Receipt(
            budget_tokens=tokens // 10,
            requested_entries=90 * tokens // 10,
            retained_entries=int(retained.mask().sum()),
            cache_bytes=10**6,
            full_cache_bytes=10**7,
        )
        heads = rng.random((30, 9), np.float32)
        measured = Perturbation(
            head_l1=heads,
            base_head_l1=heads * 2,
            layer_hidden_l1=rng.random(30, np.float32),
            kl=0.1,
        )
        stream += [
            VariantSelected(index, {"budget": 800}, retained, receipt, {"select": 1.0}),
            VariantMeasured(index, measured),
        ]
    texts = tuple(f" token{i}" for i in range(64))
    stream.append(
        Generated(
            ("".join(texts),) * variants,
            (tuple(range(64)),) * variants,
            (texts,) * variants,
            ("length",) * variants,
        )
    )
    stream += [VariantFinished(index, 1.0, None, True) for index in range(variants)]
    return [*stream, RunFinished({"prefill": 21_000.0})]
