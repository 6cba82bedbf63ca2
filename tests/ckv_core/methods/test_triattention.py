"""TriAttention: centres, scores and whole runs against the literal method."""

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.engine import prefill
from ckv_core.engine.compare import compare, made_table
from ckv_core.engine.head_tables import parse_table, table_of, written
from ckv_core.engine.utility_profile import pieces
from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS
from ckv_core.methods.parts.views import Table
from ckv_core.methods.triattention import _mean_turn, _one_turn
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.rope import LayerRotary
from ckv_core.records.run_request import SCENARIOS
from ckv_core.records.variants import VariantSpec
from tests.factories.events import folded
from tests.factories.layers import LiteralRotary, random_layer
from tests.factories.models import plain_model, tiny_model
from tests.factories.tiny_runs import PlainRun, short_request
from tests.reference import triattention as literal
from tests.reference.checks import kept_of

TABLE = Table("centres", "centres", own=True)
SPEC = VariantSpec.parse("triattention")


def centres_of(loaded: LoadedModel) -> dict[int, list[literal.Centre]]:
    """Of the table that the engine makes, by layer."""
    deque(made_table(loaded, TABLE, SPEC), maxlen=0)
    numbers, width = table_of(loaded.info, TABLE), loaded.info.head_dim
    return {
        layer: [
            literal.Centre(literal.pairs(head[:width]), head[width:])
            for head in numbers[:, layer].T.tolist()
        ]
        for layer in range(loaded.info.layers)
    }


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_centres_are_means_of_what_the_layers_queries_are_before_rope(arch, monkeypatch):
    monkeypatch.setattr(prefill, "CHUNK", 300)  # a text is read in several chunks
    loaded, plain = tiny_model(arch), plain_model(arch)
    found, seen = centres_of(loaded), {layer: [] for layer in range(loaded.info.layers)}
    for layer, decoder in enumerate(plain.model.layers):
        attention = decoder.self_attn
        named = getattr(attention, "q_norm", attention.q_proj)
        named.register_forward_hook(
            lambda _module, _given, out, layer=layer: seen[layer].append(out[0])
        )
    with torch.inference_mode():
        for ids in pieces(loaded):
            plain(torch.tensor([ids]))
    for layer, given_queries in seen.items():
        queries = torch.cat(given_queries).view(-1, loaded.info.query_heads, loaded.info.head_dim)
        for head, own in enumerate(found[layer]):
            expected = literal.centre(queries[:, head].tolist())
            assert own.mean == pytest.approx(expected.mean, rel=1e-3, abs=1e-5)
            assert own.size == pytest.approx(expected.size, rel=1e-4)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(2, 25), st.integers(0, 2**20))
def test_scores_are_the_literal_trigonometric_ones(kv_heads, group, entries, seed):
    dim = 8
    layer = random_layer(seed, kv_heads, group, entries, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    layer.turning, layer.read = LiteralRotary(dim), entries + seed % 9
    means = torch.randn(kv_heads * group, dim, generator=generator)
    centres = [literal.pairs(each) for each in means.tolist()]
    sizes = [[abs(c) * 1.25 + 0.1 for c in each] for each in centres]
    layer.table = torch.cat([means, torch.tensor(sizes)], 1).T
    found = METHODS.get("triattention").scorer.scores(layer, {"table": "given"})
    omega = [100.0 ** (-2 * f / dim) for f in range(dim // 2)]
    own = [literal.Centre(*each) for each in zip(centres, sizes, strict=True)]
    expected = [
        literal.ranked(
            own[head * group : (head + 1) * group], keys, range(entries), layer.read, omega
        )
        for head, keys in enumerate(layer.keys.tolist())
    ]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("arch", ["llama", "phi3", "gemma3"])
def test_the_turns_over_far_distances_are_the_models(arch):
    loaded = tiny_model(arch)
    rotary = LayerRotary(loaded, loaded.info.evictable_layers[0])
    states = torch.randn(2, 1, loaded.info.head_dim, generator=torch.Generator().manual_seed(1))
    turn = _one_turn(rotary, states)
    expected = sum(rotary.turn(states, 40 + 2**k)[:, 0].double() for k in range(17)) / 17
    found = rotary.turn(states, 40)[:, 0].double() @ _mean_turn(turn).T
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-3)
    half = len(turn) // 2
    angles = torch.atan2(turn[half:, :half].diagonal(), turn.diagonal()[:half])
    exact = torch.stack([(2**k * angles).cos() for k in range(17)]).mean(0)
    torch.testing.assert_close(_mean_turn(turn).diagonal()[:half], exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kept_sets_and_tokens_are_those_of_the_literal_method(scenario):
    loaded = tiny_model("llama")
    centres = centres_of(loaded)
    spec = "triattention:budget=60,buffer=8,keep_question=off"
    asked = short_request(spec, scenario=scenario, max_new_tokens=20)
    result = folded(compare(asked, loaded))
    (variant,), plain = result.variants, PlainRun("llama", result)
    cache, tap, _ = plain.read()
    omega = plain.model.model.rotary_emb.inv_freq.tolist()
    first = len(result.prompt.token_ids)
    begin, policy = literal.triattention(centres, cache, omega, 60, 8, first)
    kept = kept_of(result, variant)
    for layer, heads in plain.begun(begin, tap).items():
        for row, expected in zip(kept[layer], heads, strict=True):
            own = {i for i, keep in enumerate(row) if keep}
            assert len(own & set(expected)) >= 59, "far turns are rounded"
    held = plain.check_tokens(variant, cache, policy)
    assert [len(row) for row in held[0]] == [60 + 20 % 8] * loaded.info.kv_heads


def test_a_table_of_another_size_is_refused():
    info, numbers = tiny_model("llama").info, torch.ones(24, 3, 4)
    assert len(parse_table(written(numbers, ".7g"), info, "centres")) == 72
    with pytest.raises(ConfigError, match="with 24 each"):
        parse_table(written(numbers[:23]), info, "centres")
    with pytest.raises(ConfigError, match="Line 1 of the head table has 2 numbers"):
        parse_table(written(numbers[..., :2]), info, "centres")


def test_a_block_as_long_as_the_prompt_keeps_the_same_and_shorter_ones_the_budget():
    def run(ending: str) -> torch.Tensor:
        asked = short_request(f"triattention:budget=60{ending}", scenario="context-only")
        return torch.tensor(folded(compare(asked, tiny_model("llama"))).variants[0].retained.mask())

    whole, once, often = map(run, ("", ",prefill=blocks:2048", ",prefill=blocks:32"))
    assert torch.equal(whole, once)
    assert (often.sum(-1) == 60).all()
    assert not torch.equal(whole, often)
