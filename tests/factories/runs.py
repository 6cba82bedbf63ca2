"""Made-up records and runs; every figure is chosen, so that what is read off them is known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ckv_core.records.events import RunResult
from ckv_core.records.records import (
    Candidate,
    FollowUp,
    ForcedStep,
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    VariantResult,
)
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec

# --- records, small unless told otherwise ---------------------------------------------------


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


def prompt_info(pieces: Sequence[str], **changes: Any) -> PromptInfo:
    """A prompt of these pieces that is context from end to end."""
    count = len(pieces)
    values: dict[str, Any] = {
        "scenario": "regular",
        "token_ids": tuple(range(count)),
        "compressed_tokens": count,
        "pieces": tuple(pieces),
        "context_tokens": (0, count),
    }
    return PromptInfo(**(values | changes))


def receipt(tokens: int, kept: int = 1, **changes: Any) -> Receipt:
    """What was asked for was kept; an entry of one byte."""
    values = {"requested_entries": kept, "cache_bytes": kept, "full_cache_bytes": kept} | changes
    return Receipt(budget_tokens=tokens, retained_entries=kept, **values)


def measured(heads: Any, final: Any, kl: float = 0.0, base: Any = None) -> Perturbation:
    """Distances per head; `final` is the last layer's of the hidden states, or all layers'."""
    hidden = np.array(final, np.float32)
    if not hidden.ndim:
        hidden = np.append(np.zeros(len(heads) - 1, np.float32), hidden)
    return Perturbation(
        head_l1=np.asarray(heads, np.float32), base_head_l1=base, layer_hidden_l1=hidden, kl=kl
    )


def variant(
    text: str,
    perturbation: Perturbation | None = None,
    /,
    *,
    defaults: dict[str, str] | None = None,
    **changes: Any,
) -> VariantResult:
    """What a SPEC says over these defaults, with its budget in tokens in the receipt."""
    spec = VariantSpec.parse(text, defaults or {})
    plain = VariantResult(
        spec=text,
        label=spec.label,
        method=spec.method.name,
        critical=spec.critical,
        params=dict(spec.params),
        receipt=receipt(0 if spec.name == "full" else int(spec.budget.amount)),
        perturbation=perturbation,
    )
    return replace(plain, **changes)


def bare(spec: str) -> VariantResult:
    """A variant of which nothing is known yet; its SPEC need not be one."""
    label = "Full cache" if spec == "full" else spec
    return VariantResult(spec=spec, label=label, method=spec, critical=False)


def with_changes(result: RunResult, change: Any) -> RunResult:
    """The run whose evicting variants went through `change`."""
    variants = [each if each.method == "full" else change(each) for each in result.variants]
    return replace(result, variants=variants)


# --- runs on two layers and eight tokens ----------------------------------------------------

PIECES = ("a ", "b ", "c ", "blue ", "door ", "d ", "e ", "f ")
MODEL = model_info()
PROMPT = prompt_info(PIECES)


def array(*values: Any) -> np.ndarray:
    """The first layer's heads, the second layer's; one row stands for both."""
    return np.array(values if len(values) == 2 else [values[0], values[0]], np.float32)


def keeping(text: str, *kept: Sequence[int]) -> VariantResult:
    """A variant that keeps these positions per KV head, the last one by its window."""
    mask = np.zeros((MODEL.layers, MODEL.kv_heads, len(PIECES)), np.bool_)
    for head, positions in enumerate(kept):
        mask[:, head, list(positions)] = True
    params = {"window": 1, "sinks": 0}
    return variant(text, retained=RetainedSet.from_mask(mask), params=params)


def run_of(*variants: VariantResult) -> RunResult:
    """A run of these on one prompt."""
    return RunResult(model=MODEL, prompt=PROMPT, variants=list(variants))


def on_prompt(number: int, *variants: VariantResult, **changes: Any) -> RunResult:
    """A run of these on a prompt of its own."""
    tokens = (number, *PROMPT.token_ids[1:])
    return replace(run_of(*variants), prompt=replace(PROMPT, token_ids=tokens, **changes))


# --- a finished run, as the pages show it ---------------------------------------------------

LAYERS, KV_HEADS, QUERY_HEADS, POSITIONS, HEAD_DIM = 3, 2, 4, 10, 8
ENTRY_BYTES = 2 * HEAD_DIM * 4
FULL_BYTES = LAYERS * KV_HEADS * POSITIONS * ENTRY_BYTES
TINY = model_info(LAYERS, name="tiny", sha256="f" * 64, head_dim=HEAD_DIM)
TEN_TOKENS = prompt_info([f"t{at} " for at in range(POSITIONS)], context_tokens=(1, 8))


def _kept(tokens: int, **changes: Any) -> Receipt:
    entries = LAYERS * KV_HEADS * tokens
    held = {"cache_bytes": entries * ENTRY_BYTES, "full_cache_bytes": FULL_BYTES}
    return receipt(tokens, entries, **held, **changes)


def full_variant() -> VariantResult:
    return variant(
        "full",
        params={},
        receipt=_kept(POSITIONS),
        text="one two",
        token_ids=(1, 2),
        token_texts=("one", " two"),
        stopped="eos",
        answer_found=True,
    )


def kept_variant(*, critical: bool = False, kept: int = 4) -> VariantResult:
    mask = np.zeros((LAYERS, KV_HEADS, POSITIONS), np.bool_)
    mask[..., :kept] = True
    heads = np.arange(LAYERS * QUERY_HEADS, dtype=np.float32).reshape(LAYERS, QUERY_HEADS)
    base = heads + np.where(heads < 9, 1, -1) if critical else None
    spec = f"snapkv{'+critical' if critical else ''}:budget={kept}"
    return variant(
        spec,
        measured(heads, [1, 2, 3.5], 0.25, base),
        label="CriticalKV-SnapKV" if critical else "SnapKV",
        defaults={"window": "2", "sinks": "1"},
        retained=RetainedSet.from_mask(mask),
        receipt=_kept(kept, warnings=("Watch out.",)),
        text="one three",
        token_ids=(1, 3),
        token_texts=("one", " three"),
        stopped="length",
        agreement=0.5,
        first_difference=1,
        answer_found=False,
    )


def done_result() -> RunResult:
    """The full cache, SnapKV and SnapKV with CriticalKV."""
    return RunResult(
        model=TINY,
        prompt=TEN_TOKENS,
        variants=[full_variant(), kept_variant(), kept_variant(critical=True)],
        environment={"python": "3.11"},
        timings_ms={"prefill": 5.0},
        finished=True,
    )


def mixed(result: RunResult, scenario: str = "regular") -> RunResult:
    """The run with KeyDiff, which is query-agnostic, in place of plain SnapKV."""

    def as_keydiff(found: VariantResult) -> VariantResult:
        if found.method != "snapkv" or found.critical:
            return found
        spec = found.spec.replace("snapkv", "keydiff")
        return replace(found, spec=spec, label="KeyDiff", method="keydiff")

    prompt = result.prompt and replace(result.prompt, scenario=scenario)
    return replace(with_changes(result, as_keydiff), prompt=prompt)


def bounds(head_l1: np.ndarray) -> dict[str, np.ndarray]:
    """Diagnostics of `done_result`'s shape."""
    sigma = np.full((LAYERS, QUERY_HEADS), 0.9, np.float32)
    sigma[0, :2] = 0.4
    return {
        "sigma_stage1": sigma,
        "sigma_oracle": sigma + np.float32(0.05),
        "sigma_kept": sigma + np.float32(0.08),
        "value_mass": head_l1 * 5 + 1,
        "theta": head_l1 * 2 + 1,
        "theta_hat": head_l1 * 3 + 1,
        "theta_relaxed": head_l1 * 4 + 1,
        "oracle_attention_l1": head_l1 / 2,
        "hidden_norm_l1": np.array([10, 0, 10], np.float32),
        "normed_l1": np.array([0.5], np.float32),
        "forced_top1": np.array([1, 0], np.float32),
        "forced_kl": np.array([0.001, 2.0], np.float32),
        "forced_rank": np.array([1, 7], np.float32),
    }


def analysed() -> RunResult:
    """`done_result` with every diagnostic."""
    other = (Candidate(2, "<b>", 0.5),)
    steps = tuple(ForcedStep((Candidate(1, text, 0.9),), other) for text in ("one", " two"))
    answer = FollowUp(
        question="And then?",
        text="x",
        token_ids=(1,),
        token_texts=("x",),
        stopped="eos",
        agreement=0.5,
        first_difference=0,
    )

    def diagnosed(found: VariantResult) -> VariantResult:
        assert found.perturbation is not None
        return replace(
            found,
            analysis=bounds(found.perturbation.head_l1),
            forced_steps=steps,
            answer_scores={"exact_match": 1.0},
        )

    result = done_result()
    result.variants = [replace(each, follow_ups=(answer,)) for each in result.variants]
    return with_changes(result, diagnosed)


# --- sweeps ---------------------------------------------------------------------------------


class Swept:
    """What `sweep_result` is made of: SnapKV plain and with three alphas at four budgets."""

    LAYERS, QUERY_HEADS, KV_HEADS = 8, 6, 3
    WHOLE_LAYER = 4
    BUDGETS = (64, 128, 256, 512)
    ALPHAS = (0.0, 0.25, 0.5)
    FULL = 2_000
    SCORES = {"exact_match": 0.0, "token_f1": 0.5, "edit_similarity": 0.25}  # noqa: RUF012

    @classmethod
    def head_l1(cls, budget: int, alpha: float | None, *, better: float = 1.0) -> np.ndarray:
        """[layers, query_heads]; KV head g likes alpha ALPHAS[g], and one layer is not evicted."""
        likes = np.repeat(np.array(cls.ALPHAS), cls.QUERY_HEADS // cls.KV_HEADS)
        miss = 0.0 if alpha is None else np.abs(likes - alpha)
        heads = np.full((cls.LAYERS, cls.QUERY_HEADS), better * 64 / budget) * (1 + miss)
        heads[cls.WHOLE_LAYER] = np.nan
        return heads.astype(np.float32)

    @classmethod
    def point(
        cls, budget: int, alpha: float | None, better: float, agreement: float | None
    ) -> VariantResult:
        """One variant; with a figure of agreement also with answers and diagnostics."""
        critical = alpha is not None
        spec = f"snapkv{'+critical' if critical else ''}:budget={budget}"
        heads = cls.head_l1(budget, alpha, better=better)
        hidden = np.linspace(better, 100 * better * 64 / budget, cls.LAYERS, dtype=np.float32)
        base = cls.head_l1(budget, None) if critical else None
        more: dict[str, Any] = {}
        if agreement is not None:
            more = {"answer_found": agreement > 0.5, "answer_scores": cls.SCORES}
            more["analysis"] = {"sigma_stage1": heads * budget / 100}
        return variant(
            spec,
            measured(heads, hidden, 0.5 * better * 64 / budget, base),
            spec=spec + (f",alpha={alpha:g}" if critical else ""),
            label="CriticalKV-" * critical + "SnapKV",
            params=VariantSpec.parse(spec).params
            | {"budget": budget}
            | ({"alpha": alpha} if critical else {}),
            receipt=receipt(
                budget,
                cls.LAYERS * cls.KV_HEADS * budget,
                cache_bytes=budget,
                full_cache_bytes=cls.FULL,
            ),
            agreement=agreement,
            **more,
        )


def sweep_result(*, generated: bool = False, better: float = 0.5, plain: float = 1.0) -> RunResult:
    """A sweep whose curves and savings are known.

    `better` scales CriticalKV's L1, `plain` SnapKV's.
    """
    points = [Swept.point(b, None, plain, b / 600 if generated else None) for b in Swept.BUDGETS]
    points += [
        Swept.point(b, alpha, better, b / 512 if generated else None)
        for alpha in Swept.ALPHAS
        for b in Swept.BUDGETS
    ]
    model = replace(
        TINY,
        layers=Swept.LAYERS,
        query_heads=Swept.QUERY_HEADS,
        kv_heads=Swept.KV_HEADS,
        evictable_layers=tuple(at for at in range(Swept.LAYERS) if at != Swept.WHOLE_LAYER),
    )
    full = variant("full", params={}, receipt=receipt(Swept.FULL, Swept.FULL))
    return replace(done_result(), model=model, variants=[full, *points], kind="sweep")


SWEPT_MODEL = model_info(evictable_layers=(0,))


def swept_point(text: str, heads: Sequence[float]) -> VariantResult:
    """A measured point on `SWEPT_MODEL`, whose second layer is not evictable."""
    found = variant(text, measured([heads, [np.nan] * 4], float(sum(heads))))
    return replace(found, receipt=receipt(100)) if text == "full" else found


def swept(request: RunRequest) -> RunResult:
    """KV head 0 likes alpha 0, KV head 1 likes 0.5; CriticalKV halves everything."""

    def point(text: str) -> VariantResult:
        spec = VariantSpec.parse(text)
        budget, alpha = int(spec.budget.amount), spec.params.get("alpha")
        misses = [0.0] * 4 if alpha is None else [alpha, alpha, abs(0.5 - alpha), abs(0.5 - alpha)]
        scale = 64 / budget / (2 if spec.critical else 1)
        sigma = np.array([[0.4, 0.6, 0.7, 0.8], [np.nan] * 4], np.float32)
        return replace(
            swept_point(text, [scale * (1 + miss) for miss in misses]),
            agreement=min(budget / 600, 1),
            answer_found=budget > 300,
            answer_scores=Swept.SCORES,
            analysis={"sigma_stage1": sigma},
        )

    points = [point(spec.spec) for spec in request.specs[1:]]
    prompt = prompt_info(("w1 ", "w2 ", "w3 "), token_ids=(1, 2, 3))
    return RunResult(
        model=SWEPT_MODEL,
        prompt=prompt,
        variants=[bare("full"), *points],
        kind="sweep",
        finished=True,
    )


# --- a run of random figures, two of whose layers are not evicted ---------------------------


class Drawn:
    """What `drawn_result` is made of."""

    LAYERS, QUERY_HEADS, KV_HEADS, POSITIONS = 6, 8, 2, 100
    WHOLE = (1, 4)
    NAMES = (
        ("full", "Full cache"),
        ("snapkv", "SnapKV"),
        ("snapkv+critical", "CriticalKV-SnapKV"),
        ("adakv", "AdaKV"),
    )


def drawn_result(
    layers: int = Drawn.LAYERS,
    query_heads: int = Drawn.QUERY_HEADS,
    names: Sequence[tuple[str, str]] = Drawn.NAMES,
    whole: Sequence[int] = Drawn.WHOLE,
) -> RunResult:
    """For charts and their tables."""
    rng = np.random.default_rng(3)
    variants = []
    for spec, label in names:
        is_full, critical = spec == "full", "critical" in spec
        mask = rng.random((layers, Drawn.KV_HEADS, Drawn.POSITIONS)) < 0.3
        mask[list(whole)] = True
        held = {"cache_bytes": 2**20 * (4 if is_full else 1), "full_cache_bytes": 4 * 2**20}
        found = replace(
            bare(spec),
            label=label,
            method=spec.partition("+")[0],
            critical=critical,
            receipt=receipt(30, 300, **held),
        )
        if not is_full:
            heads = rng.random((layers, query_heads), np.float32) + np.float32(0.1)
            heads[list(whole)] = np.nan
            base = heads * np.float32(1.5) if critical else None
            moved = measured(heads, rng.random(layers, np.float32) * 100, 0.1, base)
            retained = RetainedSet.from_mask(mask)
            found = replace(found, retained=retained, perturbation=moved)
        variants.append(found)
    model = model_info(
        layers,
        query_heads=query_heads,
        kv_heads=Drawn.KV_HEADS,
        evictable_layers=tuple(i for i in range(layers) if i not in whole),
    )
    return RunResult(model=model, variants=variants)


# --- files ----------------------------------------------------------------------------------


def selection_file(retained: Any, label: str = "Mine", **members: Any) -> str:
    """A file of kept positions of one variant."""
    variants = [{"label": label, "retained": retained}]
    return json.dumps({"schema": 1, "variants": variants} | members)
