"""Laws of the shared start of two prompts: the same bits as read anew, and fewer tokens read."""

import pytest
import torch

from ckv_core.engine import prefill as engine_prefill
from ckv_core.engine.layer_view import PromptLayer
from ckv_core.engine.prefill import (
    CHUNK,
    CUDA_CHUNK,
    KEPT_QUERIES,
    Needs,
    Prefill,
    Prefix,
    chunk_tokens,
    prefill,
    sliding_room,
)
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.models.loaded import LoadedModel
from ckv_core.request.compare_request import CompareRequest
from ckv_core.results.events import RunResult
from ckv_core.worker.runner import EngineRunner
from tests.factories.events import folded, without_times
from tests.factories.models import SLIDING_WINDOW, prompt_ids, saved_model, tiny_model

pytestmark = pytest.mark.slow

LENGTH = 2 * CHUNK + 300
TEXT = "The ferry left at nine. Nobody waved, for nobody had been told. "
VARIANTS = ("full", "snapkv+critical:budget=200", "adakv+critical_auto:budget=10%,window=16")


@torch.inference_mode()
def read(
    loaded: LoadedModel, token_ids: list[int], window: int = 32, prefix: Prefix | None = None
) -> tuple[Prefill, int]:
    """The prefill, and in how many chunks it was read."""
    steps, chunks = prefill(loaded, token_ids, Needs(window), lambda: False, prefix), 0
    while True:
        try:
            next(steps)
            chunks += 1
        except StopIteration as end:
            return end.value, chunks


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
def test_a_shared_start_gives_the_bits_of_a_prompt_read_anew(arch, window, chunks):
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
    anew, _ = read(loaded, token_ids, window)
    assert read_now == chunks
    assert same(tensors(taken), tensors(anew))
    prefills.put(token_ids, taken)
    assert same(tensors(source), before)
    shared = {t.untyped_storage().data_ptr() for t in tensors(source)}
    assert shared.isdisjoint(t.untyped_storage().data_ptr() for t in tensors(taken))
    assert prefills.nbytes == source.nbytes + taken.nbytes


def test_the_longer_chunks_of_cuda_are_lent_whole_and_bit_for_bit(monkeypatch):
    assert 4_096 <= chunk_tokens(torch.device("cuda")) <= 8_192
    monkeypatch.setattr(engine_prefill, "CHUNK", CUDA_CHUNK)
    loaded, prefills = tiny_model("gemma3"), PrefillCache(2**30)
    start = prompt_ids(CUDA_CHUNK + 50, seed=1)
    token_ids = start + prompt_ids(200, seed=3)
    prefills.put(start + prompt_ids(150, seed=2), read(loaded, start + prompt_ids(150, seed=2))[0])
    prefix = prefills.prefix(token_ids, Needs(32))
    assert prefix.tokens == CUDA_CHUNK
    taken, chunks = read(loaded, token_ids, prefix=prefix)
    assert chunks == 1
    assert same(tensors(taken), tensors(read(loaded, token_ids)[0]))


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


class Kept:
    """A prefill without tensors, as the cache sees it."""

    def __init__(self, arch: str = "llama") -> None:
        self.loaded = tiny_model(arch)
        self.nbytes = 1

    def lends(self, tokens: int) -> bool:
        return True


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
    prefills.put(known, Kept("longrope"))
    assert prefills.prefix(known + known, Needs()) is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A tiny model in a folder that takes prompts of several chunks."""
    path = tmp_path_factory.mktemp("models") / "tiny-long"
    return saved_model(path, max_position_embeddings=4096)


def ask(runner: EngineRunner, folder: str, question: str) -> tuple[RunResult, int]:
    """A run in `regular` and the tokens that the model read in it."""
    request = CompareRequest(
        context=(TEXT * 50)[: 2 * CHUNK + 200],
        question=question,
        model=folder,
        device="cpu",
        scenario="regular",
        variants=VARIANTS,
        analysis=("bounds", "forced"),
        max_new_tokens=6,
        ignore_eos=True,
    )
    runner.load(folder, "cpu", request.dtype, lambda _line: None)
    (served,) = runner._models.values()
    passes: list[int] = []
    hook = served.loaded.model.get_input_embeddings().register_forward_pre_hook(
        lambda _module, args: passes.append(args[0].numel())
    )
    result = folded(runner.compare(request, lambda: False))
    hook.remove()
    return result, sum(passes)


def test_another_question_on_the_same_text_gives_the_run_of_a_fresh_runner(folder):
    used = EngineRunner()
    ask(used, folder, "Who waved?")
    other = "When did the ferry leave, and who had been told?"
    again, read_again = ask(used, folder, other)
    fresh, read_fresh = ask(EngineRunner(), folder, other)
    assert without_times(again) == without_times(fresh)
    memory = again.memory
    shared = again.prompt.compressed_tokens * memory["prefill_reused"] // memory["cache"]
    assert shared == read_fresh - read_again > 0
    assert shared % CHUNK == 0
    assert again.timings_ms["prefill"] > 0
    assert memory.get("measured_peak", 0) <= memory["total"], "the copy is within the estimate"
