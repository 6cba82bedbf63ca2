"""Laws of prefill reuse, of whole prompts and of a shared start: the same bits, read once."""

import pytest
import torch

from ckv_core.engine import candidates
from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.compare import compare
from ckv_core.engine.generate import generate
from ckv_core.engine.prefill import LayerStates, Needs, Prefill, Prefix, prefill, sliding_room
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.methods.h2o import ACCUMULATED
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.shape import CHUNK, KEPT_QUERIES
from ckv_core.records.events import RunResult
from ckv_core.records.run_request import RunRequest
from tests.factories.events import folded, without_times
from tests.factories.models import SLIDING_WINDOW, drained, prompt_ids, tiny_model

pytestmark = pytest.mark.slow

TEXT = "The ferry left at nine. Nobody waved, for nobody had been told. " * 4
VARIANTS = ("full", "snapkv+critical:budget=48", "adakv:budget=60,window=16")
LENGTH = 2 * CHUNK + 300
LLAMA = tiny_model("llama")


def run(prefills: PrefillCache | None, loaded: LoadedModel = LLAMA, **changes: object) -> RunResult:
    settings: dict[str, object] = {"context": TEXT, "variants": VARIANTS, "max_new_tokens": 6}
    return folded(compare(RunRequest(**(settings | changes)), loaded, prefills=prefills))


@pytest.mark.parametrize("scenario", ["regular", "context-only"])
def test_a_reused_prefill_gives_the_same_run(scenario):
    prefills = PrefillCache(2**30)
    run(prefills, scenario=scenario, variants=("full", "snapkv:budget=40"))
    again = run(prefills, scenario=scenario)
    assert again.timings_ms["prefill"] == 0.0
    assert without_times(again) == without_times(run(None, scenario=scenario))


class Kept:
    """A prefill without tensors, as the cache sees it."""

    def __init__(self, nbytes: int = 1, arch: str = "llama") -> None:
        self.loaded, self.nbytes = tiny_model(arch), nbytes

    def serves(self, needs: Needs) -> bool:
        return True

    def lends(self, tokens: int) -> bool:
        return True


def test_the_least_recently_used_goes_first_and_the_bound_holds():
    """One that alone is over the bound drives no other out."""
    prefills = PrefillCache(100)
    for name, size in (("a", 40), ("b", 40), ("whale", 120)):
        prefills.put((name,), Kept(size))
    assert prefills.get(("a",), Needs())
    prefills.put(("c",), Kept(40))
    assert prefills.nbytes == 80
    kept = [prefills.get((name,), Needs()) is not None for name in ("a", "b", "whale", "c")]
    assert kept == [True, False, False, True]
    prefills.put(("all",), Kept(100))  # as much as the bound is not over it
    assert prefills.nbytes == 100


def test_scores_added_after_a_prefill_was_kept_count_too():
    loaded, prefills = tiny_model("gemma3"), PrefillCache(2**30)
    unscored, scored = ("streaming_llm:budget=48",), ("snapkv+critical_auto:budget=48",)
    run(prefills, loaded, variants=unscored)
    bare = prefills.nbytes
    (kept,) = prefills._prefills.values()
    run(prefills, loaded, variants=scored)
    # Window attention without and with its own columns, and norms, in the layers that are evicted.
    info, tokens = loaded.info, kept.prompt_len
    scores = len(info.evictable_layers) * info.query_heads * ((tokens - 32) + tokens + tokens) * 4
    # Two orders of the entries that may be evicted.
    sorted_entries = 2 * len(info.evictable_layers) * info.kv_heads * (tokens - 32) * 4
    assert prefills.nbytes - bare == scores + sorted_entries
    tight = PrefillCache(bare + 100)
    run(tight, loaded, variants=unscored)
    assert tight.nbytes == bare
    run(tight, loaded, variants=scored)
    assert tight.nbytes == 0, "the run's own scores put it over the bound"


def test_a_changed_budget_alpha_or_rule_sorts_nothing_again(monkeypatch):
    prefills, calls = PrefillCache(2**30), []
    real = candidates.order
    monkeypatch.setattr(candidates, "order", lambda score: calls.append(1) or real(score))
    run(prefills, variants=("snapkv+critical:budget=48", "adakv:budget=48"))
    assert len(calls) == 3 * LLAMA.info.layers, "by both scores, and of all heads together"
    changed = ("pyramidkv+critical:budget=60,alpha=0.7", "adakv+critical:budget=50,safeguard=0.5")
    again = run(prefills, variants=changed)
    assert len(calls) == 3 * LLAMA.info.layers
    assert without_times(again) == without_times(run(None, variants=changed))


def test_orders_of_many_poolings_are_bounded():
    prefills = PrefillCache(2**30)
    many = tuple(f"snapkv:budget=48,kernel={kernel}" for kernel in range(1, 21, 2))
    assert len(many) > engine_prefill.KEPT_ORDERS
    result = run(prefills, variants=many)
    (kept,) = prefills._prefills.values()
    assert len(kept.memo._orders) == engine_prefill.KEPT_ORDERS
    alone = [run(None, variants=(spec,)).variants[0].retained for spec in many]
    assert [variant.retained for variant in result.variants] == alone


@pytest.mark.parametrize("analysis", [(), ("bounds",)])
def test_scores_are_let_go_after_selection_where_nobody_asks_for_them_again(monkeypatch, analysis):
    held, sizes = [], []

    def keep(of_run, prefilled, *rest):
        held.append(prefilled)
        return generate(of_run, prefilled, *rest)

    monkeypatch.setattr("ckv_core.engine.compare.generate", keep)
    asked = {"variants": ("snapkv+critical:budget=48",), "analysis": analysis}
    for prefills in (None, PrefillCache(2**30)):
        run(prefills, **asked)
        sizes.append(held.pop().memo.nbytes > 0)
    assert sizes == [bool(analysis), True]


def test_a_kept_prefill_serves_only_what_it_has_observed():
    kept, token_ids = PrefillCache(2**30), prompt_ids(2_200)
    observing = Needs(8, (ACCUMULATED,))
    kept.put(token_ids, read(tiny_model("llama"), token_ids)[0])
    assert kept.get(token_ids, observing) is None
    assert kept.prefix([*token_ids, 5], Needs(8)) is not None
    assert kept.prefix([*token_ids, 5], observing) is None, "an observer has to see all"
    with torch.inference_mode():
        reading = prefill(tiny_model("llama"), token_ids, observing, lambda: False)
        kept.put(token_ids, drained(reading))
    assert kept.get(token_ids, observing) is not None
    assert kept.get(token_ids, Needs(8)) is not None


# --- a shared start of two prompts ----------------------------------------------------------


@torch.inference_mode()
def read(
    loaded: LoadedModel, token_ids: list[int], window: int = 32, prefix: Prefix | None = None
) -> tuple[Prefill, int]:
    """The prefill, and in how many chunks it was read."""
    chunks = []
    result = drained(
        prefill(loaded, token_ids, Needs(window), lambda: bool(chunks.append(1)), prefix)
    )
    return result, len(chunks) // loaded.info.layers


def tensors(result: Prefill) -> list[torch.Tensor]:
    """All that is kept, and the statistics that methods score with.

    Of sliding layers the end, which every prefill has.
    """
    with torch.inference_mode():
        layers = result.loaded.info.evictable_layers
        scores = [PromptLayer(result, layer).full_window_attention(32) for layer in layers]
        norms = [PromptLayer(result, layer).value_norms() for layer in layers]
    states = [layer.queries for layer in result.layers]
    for window, layer in zip(result.loaded.sliding_windows, result.layers, strict=True):
        first = 0 if window is None else layer.keys.shape[1] - window
        states += [layer.keys[:, first:], layer.values[:, first:]]
    return [*states, *scores, *norms, result.logits]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("arch", "window", "chunks"), [("llama", 32, 1), ("gemma3", 32, 1), ("qwen3", CHUNK + 5, 2)]
)
def test_a_shared_start_gives_the_bits_of_a_prompt_read_whole_prefill(arch, window, chunks):
    """Another length and another window than the source had; sliding layers included."""
    loaded, prefills = tiny_model(arch), PrefillCache(2**30)
    start = prompt_ids(2 * CHUNK + 77, seed=1)
    source_ids = start + prompt_ids(501, seed=2)
    token_ids = start + prompt_ids(LENGTH - len(start), seed=3)
    source, _ = read(loaded, source_ids)
    before = [tensor.clone() for tensor in tensors(source)]
    prefills.put(source_ids, source)
    prefix = prefills.prefix(token_ids, Needs(window))
    assert prefix is not None
    taken, read_now = read(loaded, token_ids, window, prefix)
    whole_prefill, _ = read(loaded, token_ids, window)
    assert read_now == chunks
    assert same(tensors(taken), tensors(whole_prefill))
    prefills.put(token_ids, taken)
    assert same(tensors(source), before)
    shared = {t.untyped_storage().data_ptr() for t in tensors(source)}
    assert shared.isdisjoint(t.untyped_storage().data_ptr() for t in tensors(taken))
    assert prefills.nbytes == source.nbytes + taken.nbytes


def test_a_sliding_layer_holds_its_window_and_lends_its_end():
    loaded = tiny_model("gemma3")
    room = sliding_room(SLIDING_WINDOW, loaded.device)
    long = prompt_ids(4 * CHUNK, seed=1)
    source, _ = read(loaded, long)
    for window, states in zip(loaded.sliding_windows, source.layers, strict=True):
        assert states.keys.shape[1] == (len(long) if window is None else room)
    assert source.prompt_len == len(long)
    prefills = PrefillCache(2**30)
    prefills.put(long, source)
    near, far = long[: 4 * CHUNK - 50] + prompt_ids(300, 2), long[: 2 * CHUNK] + prompt_ids(300, 3)
    assert prefix_tokens(prefills, near) == 3 * CHUNK
    assert prefix_tokens(prefills, far) == 0, "its sliding layers need what is held no more"
    again, chunks = read(loaded, near, prefix=prefills.prefix(near, Needs(32)))
    assert chunks == 2
    assert same(tensors(again), tensors(read(loaded, near)[0]))


def test_linear_layers_lend_what_they_carry_at_a_prompts_end_alone():
    loaded, prefills = tiny_model("qwen3_next"), PrefillCache(2**30)
    start = prompt_ids(CHUNK, seed=1)
    for ids in (start + prompt_ids(1), start):
        prefills.put(ids, read(loaded, ids)[0])
        if ids != start:
            assert prefix_tokens(prefills, start + prompt_ids(200, 2)) == 0
    longer = start + prompt_ids(200, 2)
    assert prefix_tokens(prefills, longer) == CHUNK
    taken, _ = read(loaded, longer, prefix=prefills.prefix(longer, Needs(32)))
    whole_prefill, _ = read(loaded, longer)
    assert same(tensors(taken), tensors(whole_prefill))
    for one, other in zip(taken.layers, whole_prefill.layers, strict=True):
        assert (one.state is None) == (other.state is None)
        assert same([*(one.state or ())], [*(other.state or ())])


@pytest.mark.parametrize("missing", [0, 1])
def test_a_start_is_lent_while_all_that_its_next_token_sees_is_held(missing):
    loaded, tokens, prompt_len = tiny_model("gemma3"), 64, 100
    first = tokens - (SLIDING_WINDOW - 1) + missing  # a sliding layer holds entries from here on
    layers = []
    for window in loaded.sliding_windows:
        held = torch.empty(1, prompt_len - (0 if window is None else first), 1)
        layers.append(LayerStates(held, held, held, Scaling(1.0)))
    assert Prefill(loaded, layers, torch.empty(0)).lends(tokens) == (not missing)


def prefix_tokens(prefills: PrefillCache, token_ids: list[int], window: int = 0) -> int:
    found = prefills.prefix(token_ids, Needs(window))
    return 0 if found is None else found.tokens


def test_a_start_is_whole_chunks_and_leaves_the_window_to_be_read():
    known, prefills = prompt_ids(3 * CHUNK + 10, seed=1), PrefillCache(1000)
    prefills.put(known, Kept())
    most = 3 * CHUNK + KEPT_QUERIES
    for length, window, tokens in (
        (most, 0, 3 * CHUNK),
        (most - 1, 0, 2 * CHUNK),
        (most, KEPT_QUERIES + 1, 2 * CHUNK),
        (CHUNK + KEPT_QUERIES - 1, 0, 0),
        (50, 4000, 0),
    ):
        assert prefix_tokens(prefills, (known + prompt_ids(500, seed=2))[:length], window) == tokens
    other = [*known[: 2 * CHUNK - 1], 3]
    assert prefix_tokens(prefills, other + known) == CHUNK
    assert prefix_tokens(prefills, known[1:] + known) == 0
    assert prefix_tokens(PrefillCache(1000), known) == 0


def test_the_longest_start_is_taken_and_its_prefill_counts_as_used():
    known, prefills = prompt_ids(3 * CHUNK, seed=1), PrefillCache(3)
    prefills.put(known[: 2 * CHUNK], Kept())
    prefills.put(known[:CHUNK], Kept())
    assert prefix_tokens(prefills, known) == 2 * CHUNK
    for seed in (2, 3):
        prefills.put(prompt_ids(10, seed), Kept())
    assert prefix_tokens(prefills, known) == 2 * CHUNK, "the shorter one went first"


def test_a_start_read_with_factors_of_another_length_is_not_taken():
    known, prefills = prompt_ids(2 * CHUNK, seed=1), PrefillCache(1000)
    prefills.put(known, Kept(arch="longrope"))
    assert prefills.prefix(known + known, Needs()) is None


def counted(question: str, prefills: PrefillCache | None) -> tuple[RunResult, int]:
    """A run on a text of several chunks, and the tokens that the model read in it."""
    passes: list[int] = []
    loaded = tiny_model("llama", max_position_embeddings=4096)
    hook = loaded.model.get_input_embeddings().register_forward_pre_hook(
        lambda _module, args: passes.append(args[0].numel())
    )
    result = run(
        prefills,
        loaded,
        context=(TEXT * 13)[: 2 * CHUNK + 200],
        question=question,
        scenario="regular",
        variants=("full", "snapkv+critical:budget=200", "adakv+critical_auto:budget=10%,window=16"),
        analysis=("bounds", "forced"),
        ignore_eos=True,
    )
    hook.remove()
    return result, sum(passes)


def test_another_question_on_the_same_text_gives_the_run_of_a_fresh_model():
    prefills = PrefillCache(2**30)
    counted("Who waved?", prefills)
    other = "When did the ferry leave, and who had been told?"
    again, read_again = counted(other, prefills)
    fresh, read_fresh = counted(other, None)
    assert without_times(again) == without_times(fresh)
    memory = again.memory
    shared = again.prompt.compressed_tokens * memory["prefill_reused"] // memory["cache"]
    assert shared == read_fresh - read_again > 0
    assert shared % CHUNK == 0
    assert again.timings_ms["prefill"] > 0
    assert memory.get("measured_peak", 0) <= memory["total"], "the copy is within the estimate"
