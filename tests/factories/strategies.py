"""Hypothesis strategies for whole runs and for files of external selections."""

import math

import numpy as np
from hypothesis import strategies as st

from ckv_core.records.events import (
    FloorMeasured,
    FollowUpsAnswered,
    Generated,
    RunEvent,
    RunFinished,
    RunPrepared,
    VariantAnalysed,
    VariantFinished,
    VariantMeasured,
    VariantSelected,
    VariantTimed,
    VariantTook,
)
from ckv_core.records.external_selection import ExternalSelection, pack
from ckv_core.records.metrics import ANALYSIS_ARRAYS
from ckv_core.records.records import (
    Candidate,
    FollowUp,
    ForcedStep,
    HeldSeries,
    ModelInfo,
    Perturbation,
    PromptInfo,
    Receipt,
    RetainedSet,
    RoundingFloor,
    SampledText,
    Timed,
    VariantMemory,
    VariantResult,
)

# No lone surrogates; hostile otherwise: NUL, the storage's own escape sign, markup, chat tokens.
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["<img src=x onerror=alert(1)>", "a\x00b", "\ue000", "\ue0000041"]),
    st.sampled_from(["<|im_end|>", "'; --", "e\u0301 \U0001d518"]),
)
TOKEN_IDS = st.integers(0, 2**31 - 1)
COUNTS = st.integers(0, 2**53)
FIGURES = st.floats(0, 1e12, allow_nan=False)
ANY_FLOAT = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])
FLOAT32 = st.floats(width=32)
SHARES = st.floats(0, 1)
MAYBE_SHARE = st.none() | SHARES
FIRST_DIFFERENCE = st.none() | st.integers(0, 1024)
MILLISECONDS = st.dictionaries(st.sampled_from(["load", "prefill", "decode"]), FIGURES)
PARAMETERS = st.integers(-1000, 2**40) | st.floats(-1e9, 1e9) | TEXTS
MEMORY = st.dictionaries(st.sampled_from(["total", "measured_peak"]), COUNTS)
SCORES = st.dictionaries(st.sampled_from(["exact_match", "token_f1"]), SHARES)
PARAMS = st.dictionaries(
    st.text(st.characters(categories=["Ll"]), max_size=8), PARAMETERS, max_size=4
)
CANDIDATES = st.lists(st.builds(Candidate, TOKEN_IDS, TEXTS, SHARES), max_size=2).map(tuple)
RECEIPTS = st.builds(
    Receipt,
    budget_tokens=COUNTS,
    requested_entries=COUNTS,
    retained_entries=COUNTS,
    cache_bytes=COUNTS,
    full_cache_bytes=COUNTS,
    warnings=st.lists(TEXTS, max_size=2).map(tuple),
)


SAMPLED = st.builds(
    SampledText, TEXTS, st.sampled_from(["eos", "length"]), st.none() | st.booleans()
)
TIMED = st.builds(
    Timed,
    added_first_token_ms=FIGURES,
    step_ms=st.tuples(FIGURES, FIGURES, FIGURES).map(sorted).map(tuple),
    steps=st.integers(1, 99),
    tokens_per_s=st.fixed_dictionaries({"1": FIGURES}, optional={"8": FIGURES, "17": FIGURES}),
    bound=st.sampled_from(["memory", "time"]),
    others=SHARES,
)


def float_arrays(*shape: int) -> st.SearchStrategy[np.ndarray]:
    size = math.prod(shape)
    return st.lists(FLOAT32, min_size=size, max_size=size).map(
        lambda values: np.array(values, np.float32).reshape(shape)
    )


@st.composite
def models(draw: st.DrawFn) -> ModelInfo:
    layers = draw(st.integers(1, 4))
    kv_heads = draw(st.integers(1, 2))
    sliding = draw(st.sets(st.integers(0, layers - 1)))
    return ModelInfo(
        name=draw(TEXTS),
        sha256=draw(st.sampled_from(["", "ab" * 32])),
        layers=layers,
        query_heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.integers(1, 256)),
        dtype="float32",
        device=draw(st.sampled_from(["cpu", "cuda:0"])),
        evictable_layers=tuple(layer for layer in range(layers) if layer not in sliding),
        context_limit=draw(st.integers(0, 2**40)),
    )


@st.composite
def prompts(draw: st.DrawFn) -> PromptInfo:
    token_ids = draw(st.lists(TOKEN_IDS, max_size=20))
    tokens = len(token_ids)
    first = draw(st.integers(0, tokens))
    return PromptInfo(
        scenario=draw(st.sampled_from(["regular", "context-only"])),
        token_ids=tuple(token_ids),
        compressed_tokens=draw(st.integers(0, tokens)),
        pieces=tuple(draw(st.lists(TEXTS, min_size=tokens, max_size=tokens))),
        context_tokens=(first, draw(st.integers(first, tokens))),
    )


@st.composite
def retained_sets(draw: st.DrawFn, model: ModelInfo, positions: int) -> RetainedSet:
    shape = (model.layers, model.kv_heads, positions)
    bits = draw(st.integers(0, 2 ** math.prod(shape) - 1))
    flat = [bool(bits >> index & 1) for index in range(math.prod(shape))]
    mask = np.array(flat, np.bool_).reshape(shape)
    for layer in set(range(model.layers)) - set(model.evictable_layers):
        mask[layer] = True
    return RetainedSet.from_mask(mask)


@st.composite
def perturbations(draw: st.DrawFn, model: ModelInfo) -> Perturbation:
    def heads() -> np.ndarray:
        values = draw(float_arrays(model.layers, model.query_heads))
        for layer in set(range(model.layers)) - set(model.evictable_layers):
            values[layer] = math.nan
        return values

    return Perturbation(
        head_l1=heads(),
        base_head_l1=heads() if draw(st.booleans()) else None,
        layer_hidden_l1=draw(float_arrays(model.layers)),
        kl=draw(ANY_FLOAT),
    )


@st.composite
def analysed(draw: st.DrawFn, index: int, model: ModelInfo) -> VariantAnalysed:
    """Some quantities; those with steps are of one length, two, as the forced steps are."""
    shapes = {
        "head": (model.layers, model.query_heads),
        "kv_head": (model.layers, model.kv_heads),
        "layer": (model.layers,),
        "model": (1,),
        "step": (2,),
    }
    names = draw(st.lists(st.sampled_from(sorted(ANALYSIS_ARRAYS)), max_size=3))
    analysis = {name: draw(float_arrays(*shapes[ANALYSIS_ARRAYS[name].axes])) for name in names}
    step = st.builds(ForcedStep, CANDIDATES, CANDIDATES)
    forced = draw(st.none() | st.just(()) | st.tuples(step, step))
    sampled = draw(st.none() | st.lists(SAMPLED, max_size=2).map(tuple))
    return VariantAnalysed(index, analysis, forced, sampled)


def floors(model: ModelInfo) -> st.SearchStrategy[FloorMeasured]:
    size = st.floats(0, 1e6, width=32)
    layers = st.lists(size, min_size=model.layers, max_size=model.layers)
    hidden = layers.map(lambda values: np.array(values, np.float32))
    return st.builds(RoundingFloor, layer_hidden_l1=hidden, kl=FIGURES).map(FloorMeasured)


@st.composite
def follow_ups(draw: st.DrawFn) -> FollowUp:
    ids = tuple(draw(st.lists(TOKEN_IDS, max_size=2)))
    return FollowUp(
        question=draw(TEXTS),
        text=draw(TEXTS),
        token_ids=ids,
        token_texts=tuple(draw(TEXTS) for _ in ids),
        stopped=draw(st.sampled_from(["eos", "length"])),
        agreement=draw(MAYBE_SHARE),
        first_difference=draw(FIRST_DIFFERENCE),
    )


@st.composite
def events(draw: st.DrawFn) -> list[RunEvent]:
    """A run's events in a possible order, cut off anywhere."""
    model, prompt = draw(models()), draw(prompts())
    count = draw(st.integers(1, 3))
    variants = tuple(
        VariantResult(
            spec=f"{draw(TEXTS)}{index}",
            label=draw(TEXTS),
            method=draw(st.sampled_from(["full", "snapkv"])),
            critical=draw(st.booleans()),
            params=draw(PARAMS),
        )
        for index in range(count)
    )
    environment = draw(st.dictionaries(st.sampled_from(["python", "torch"]), TEXTS))
    kind, memory = draw(st.sampled_from(["compare", "sweep"])), draw(MEMORY)
    stream: list[RunEvent] = [RunPrepared(model, prompt, variants, environment, kind, memory)]
    for index in range(count):
        kept = st.none() | retained_sets(model, prompt.compressed_tokens)
        stream.append(
            VariantSelected(index, draw(PARAMS), draw(kept), draw(RECEIPTS), draw(MILLISECONDS))
        )
    stream += draw(st.lists(floors(model), max_size=1))
    measured = draw(st.lists(st.integers(0, count - 1), max_size=4))
    stream += [VariantMeasured(index, draw(perturbations(model))) for index in measured]
    more = draw(st.lists(st.integers(0, count - 1), max_size=4))
    stream += [draw(analysed(index, model)) for index in more]
    stream += [
        FollowUpsAnswered(index, tuple(draw(st.lists(follow_ups(), max_size=2)))) for index in more
    ]
    stream += draw(st.lists(generations(count), max_size=3))
    stream += [
        VariantFinished(
            index,
            agreement=draw(MAYBE_SHARE),
            first_difference=draw(FIRST_DIFFERENCE),
            answer_found=draw(st.none() | st.booleans()),
            answer_scores=draw(SCORES),
            held=draw(st.none() | held_series(model)),
        )
        for index in range(count)
    ]
    stream += [VariantTimed(index, draw(TIMED)) for index in range(draw(st.integers(0, count)))]
    took = draw(st.integers(0, count))
    stream += [VariantTook(index, draw(memories())) for index in range(took)]
    stream.append(RunFinished(draw(MILLISECONDS), draw(MEMORY)))
    whole = len(stream)  # half of them, for what only the last events tell
    return stream[: draw(st.just(whole) | st.integers(0, whole))]


@st.composite
def memories(draw: st.DrawFn) -> VariantMemory:
    peaks = [draw(st.none() | st.integers(0, 2**40)) for _ in range(4)]
    counts = st.integers(0, 2**40)
    blocks = draw(st.lists(st.tuples(counts, counts), max_size=3))
    read, held = (tuple(each[at] for each in blocks) for at in (0, 1))
    names = ("prefill_peak", "decode_peak", "prefill_estimate", "decode_estimate")
    return VariantMemory(**dict(zip(names, peaks, strict=True)), read=read, held=held)


@st.composite
def held_series(draw: st.DrawFn, model: ModelInfo) -> HeldSeries:
    tokens = draw(st.integers(1, 5))
    rows = st.tuples(
        st.integers(0, tokens - 1),
        st.integers(0, model.layers - 1),
        st.integers(0, model.kv_heads - 1),
        st.integers(0, tokens - 1),
    )
    evicted = sorted(draw(st.lists(rows, max_size=6, unique_by=lambda row: row[1:])))
    counts = st.lists(st.integers(0, 2**40), min_size=tokens, max_size=tokens).map(tuple)
    data = np.array(evicted, "<u4").tobytes()
    return HeldSeries(entries=draw(counts), cache_bytes=draw(counts), evicted=data)


@st.composite
def generations(draw: st.DrawFn, count: int) -> Generated:
    ids = [tuple(draw(st.lists(TOKEN_IDS, max_size=3))) for _ in range(count)]
    texts = [tuple(draw(TEXTS) for _ in row) for row in ids]
    stopped = [draw(st.sampled_from([None, "eos", "length"])) for _ in range(count)]
    return Generated(tuple(map("".join, texts)), tuple(ids), tuple(texts), tuple(stopped))


# --- external selections ---------------------------------------------------------------------

POSITIONS = st.sets(st.integers(0, 40), max_size=5).map(lambda found: pack(tuple(sorted(found))))
LABELS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)


@st.composite
def own_variants(draw: st.DrawFn) -> ExternalSelection:
    """What the reader can give; always with a kept position."""
    depth = draw(st.integers(1, 3))
    layers, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width = heads if depth == 3 else 1
    rows: list[tuple[bytes, ...] | None] = [
        draw(st.none() | st.tuples(*[POSITIONS] * width)) for _ in range(layers)
    ]
    # A list per layer cannot be told from no heads at all if it is empty.
    first = (pack((draw(st.integers(0, 40)),)), *draw(st.tuples(*[POSITIONS] * (width - 1))))
    rows[0] = first
    if depth == 2:
        rows = [None if row == (b"",) else row for row in rows]
    tokens = draw(st.none() | st.integers(41, 50))
    return ExternalSelection(
        label=draw(LABELS),
        rows=(first,) if depth == 1 else tuple(rows),
        same_heads=depth < 3,
        same_layers=depth == 1,
        layers=layers if depth > 1 else draw(st.none() | st.just(layers)),
        kv_heads=heads if depth == 3 else draw(st.none() | st.just(heads)),
        sha256=draw(st.sampled_from(["", "ab" * 32])),
        compressed_tokens=tokens,
        token_ids=draw(st.none() | st.just(pack(tuple(range(tokens or 41))))),
    )
