"""`ckv plan` computes what the engine holds, transformers counts and others published."""

import json
from itertools import product

import pytest

from ckv_core.cli import main
from ckv_core.engine.run import GROUP_ROWS
from ckv_core.errors import CkvError
from ckv_core.experiment.plan import (
    FORMULAS,
    ROWS_TOGETHER,
    Planned,
    RequestSizes,
    Setting,
    bytes_together,
    equal_bytes,
    parse_bytes,
    plan,
)
from ckv_core.experiment.serving import served
from ckv_core.models.catalog import KNOWN, planned_shape
from ckv_core.models.geometry import read_geometry, skeleton
from ckv_core.models.shape import CHUNK, ModelShape, shape_of_text
from ckv_core.records.run_request import RunRequest
from ckv_core.records.variants import VariantSpec
from tests.factories.models import ARCHITECTURES, HYBRID, SLIDING, tiny_config
from tests.factories.tiny_runs import run

LLAMA = KNOWN["meta-llama/Llama-3.1-8B-Instruct"]
GIB, GB = 2**30, 10**9
TEXT = "The ferry left at nine. Nobody waved, for nobody had been told. " * 12


def planned(text: str, setting: Setting, shape: ModelShape = LLAMA) -> Planned:
    return plan(shape, setting, [VariantSpec.parse(text)])[-1]


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        *((arch, {}) for arch in (*ARCHITECTURES, "mha", *HYBRID)),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
        ("gemma3", {"layer_types": None, "num_hidden_layers": 7}),
        ("gemma2", {"layer_types": None, "num_hidden_layers": 3}),
        ("gpt_oss", {"layer_types": None, "num_hidden_layers": 5}),
        ("qwen3_next", {"layer_types": None, "num_hidden_layers": 9, "attention_bias": True}),
        ("qwen3_moe", {"mlp_only_layers": [], "decoder_sparse_step": 2}),
    ],
)
def test_a_shape_has_the_sizes_that_transformers_builds(arch, changes):
    config = tiny_config(arch, **changes)
    model, written = skeleton(config), config.to_dict()
    shape, geometry = ModelShape.of(written, arch), read_geometry(model, arch)
    assert shape.parameters == model.num_parameters()
    assert shape.windows == geometry.sliding_windows
    heads = (geometry.query_heads, geometry.kv_heads, geometry.head_dim)
    assert (shape.query_heads, shape.kv_heads, shape.head_dim) == heads
    # What older files leave out.
    for key in ("layer_types", "sliding_window_pattern", "_sliding_window_pattern"):
        written.pop(key, None)
    if arch not in (*SLIDING, *HYBRID) or changes:
        assert ModelShape.of(written, arch).windows == geometry.sliding_windows


def test_no_config_of_a_stranger_is_taken_for_a_model():
    good = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9}
    good |= {"intermediate_size": 8, "num_attention_heads": 2, "max_position_embeddings": 64}
    assert shape_of_text(json.dumps(good), "mine").layers == 2
    for wrong in (
        {"num_hidden_layers": 10**9},
        {"hidden_size": -1},
        {"vocab_size": True},
        {"num_key_value_heads": 3, "num_attention_heads": 4},
        {"model_type": "mamba"},
        {"quantization_config": {}},
        {"quantization_config": {"quant_method": "gptq", "bits": 10**9}},
        {"sliding_window": 4, "model_type": "mistral"},
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2},
    ):
        with pytest.raises(CkvError):
            shape_of_text(json.dumps(good | wrong), "mine")
    for text in ("[]", "{", "1e999", "[" * 10_000, '{"a": ' * 40 + "1" + "}" * 40):
        with pytest.raises(CkvError):
            shape_of_text(text, "mine")


def test_a_step_reads_the_experts_that_its_tokens_go_through():
    """Sizes of Qwen3-30B-A3B: 30.5 billion numbers, of which the report counts 3.3 as active."""
    shape = planned_shape("Qwen3-30B-A3B")
    table = shape.vocabulary * shape.hidden
    assert shape.parameters == pytest.approx(30.5e9, rel=0.01)
    assert shape.bytes_read_by(1, 1) + table == pytest.approx(3.35e9, rel=0.01)
    assert shape.bytes_read_by(1, 1) == shape.read + shape.routed * 8 // 128
    # Two tokens share one of 128 experts but seldom; at last all are read.
    assert (
        1.9
        < (shape.bytes_read_by(2, 1) - shape.read) / (shape.bytes_read_by(1, 1) - shape.read)
        < 2
    )
    assert shape.bytes_read_by(1000, 1) == shape.parameters - table
    assert LLAMA.bytes_read_by(9, 1) == LLAMA.read
    setting = Setting(memory=80 * GIB, prompt=131_072)
    full, tenth = (planned(spec, setting, shape) for spec in ("full", "snapkv:budget=10%"))
    assert full.weights_bytes == 2 * shape.parameters
    cache = 131_072 * 48 * 2 * 4 * 128 * 2
    generated = setting.output // 2 * cache // 131_072
    assert full.bytes_read_per_step == 2 * shape.bytes_read_by(1, 1) + cache + generated
    assert full.requests < tenth.requests
    read = 2 * shape.bytes_read_by(tenth.requests, 1) + tenth.requests * (
        tenth.bytes_read_per_step - 2 * shape.bytes_read_by(1, 1)
    )
    assert tenth.tokens_per_s_at_most == tenth.requests * setting.bandwidth / read


def test_packed_weights_take_the_bytes_of_the_published_files():
    """Llama-3.1-8B's INT4 files by AWQ, its FP8 ones, and what gpt-oss-20b's card says."""
    llama = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336}
    llama |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}
    llama |= {"vocab_size": 128_256, "max_position_embeddings": 131_072}
    oss = {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880}
    oss |= {"num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8}
    oss |= {"vocab_size": 201_088, "max_position_embeddings": 131_072, "num_local_experts": 32}
    oss |= {"num_experts_per_tok": 4}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128}
    setting = Setting(memory=80 * GIB, prompt=1000)
    for config, packed, published in (
        (llama, awq, 5.73 * GB),
        (llama, {"quant_method": "fp8"}, 9.08 * GB),
        (oss, {"quant_method": "mxfp4"}, 12.8 * GIB),
    ):
        shape = ModelShape.of(config | {"quantization_config": packed}, "packed")
        row, table = planned("full", setting, shape), shape.vocabulary * shape.hidden * 2
        assert row.weights_bytes == pytest.approx(published, rel=0.01)
        assert shape.bytes_read_by(10_000, 2) == row.weights_bytes - table


HELD = (
    "full",
    "snapkv:budget=25%",
    "adakv:budget=25%",
    "pyramidkv:budget=25%,store=int4",
    "pyramidkv:budget=25%,preset=kvpress,store=think",
    "snapkv:budget=25%,store=int8,layout=layer",
    "knorm:budget=0.02MiB,store=int4",
    "h2o:budget=40",
)


@pytest.mark.parametrize(
    ("arch", "spec"),
    [
        *product(("llama", "gemma3", "qwen3_moe"), HELD),
        ("qwen3_next", "full"),
        ("qwen3_5", HELD[2]),
    ],
)
def test_a_request_holds_the_bytes_of_the_engines_receipt(spec, arch):
    result = run(RunRequest(context=TEXT, variants=(spec,), max_new_tokens=1), arch)
    shape = ModelShape.of(tiny_config(arch).to_dict(), arch)
    prompt = result.prompt.compressed_tokens
    setting = Setting(memory=GIB, prompt=prompt, output=0, dtype="float32", chunk=CHUNK)
    sizes = RequestSizes(shape, setting, VariantSpec.parse(spec))
    receipt = result.variants[0].receipt
    assert sizes.held(0) == receipt.cache_bytes
    assert result.memory["cache"] == sizes.cache
    if spec == "full":
        assert result.memory["prefill_peak"] == sizes.reading_peak


@pytest.mark.parametrize(
    "spec",
    [
        "tova:budget=30",
        "h2o:budget=30",
        "scissorhands:budget=30",
        "streaming_llm:budget=30,rolling=on",
        "r_kv:budget=30,window=8,buffer=12",
        "snapkv:budget=30,window=8,every=16,to=10",
    ],
)
@pytest.mark.parametrize("tokens", [7, 17, 40])
def test_a_policy_holds_the_most_that_it_says(spec, tokens):
    asked = RunRequest(context=TEXT, variants=(spec,), max_new_tokens=tokens, ignore_eos=True)
    variant = run(asked).variants[0]
    one = VariantSpec.parse(spec)
    heads = 3 * 2  # of the tiny model, each as many
    most = max(variant.held.entries) / heads
    # The last token is not fed; a step's own entry is there before the policy acts.
    said = one.policy.most(30, tokens - 1, one.params | {"budget": 30})
    assert most <= said <= most + 1


def test_published_caches_are_reproduced():
    """Figures read off others' plots (gigabytes); what they do not state is said here."""
    # kvpress' notebook "speed and memory": Llama-3.1-8B in bfloat16; their GB are 2^30 bytes and
    # their 128k is 128,000 tokens.
    setting = Setting(memory=80 * GIB, prompt=128_000, output=0)
    full, evicted = (planned(spec, setting) for spec in ("full", "knorm:budget=20%"))
    assert full.kv_bytes_per_request / GIB == pytest.approx(15.6, rel=0.02)
    assert evicted.kv_bytes_per_request / GIB == pytest.approx(3.1, rel=0.02)
    # compactor-vllm: 256 requests of RULER 4K on an 80 GB H100, half of the prompt evicted. Model
    # and lengths are not given. Both figures come out for Llama-3.1-8B with prompts of 3,950
    # tokens, 158 others and 112 requests at a time: the most that 60 GB beside the weights hold.
    setting = Setting(memory=80 * GIB, prompt=3_950, output=158)
    full, evicted = (planned(spec, setting) for spec in ("full", "compactor:budget=50%"))
    assert 112 * full.kv_bytes_per_request / GB == pytest.approx(60.3, rel=0.02)
    assert 112 * evicted.kv_bytes_per_request / GB == pytest.approx(31.3, rel=0.02)


def test_the_plan_of_an_8b_model_at_128k_is_what_bandwidth_and_memory_allow():
    setting = Setting(memory=78 * GIB, prompt=131_072)
    full, fifth, tenth = (
        planned(spec, setting) for spec in ("full", "snapkv:budget=20%", "snapkv:budget=10%")
    )
    assert full.requests == 3
    assert full.limited_by == "prefill"
    assert 12 <= fifth.requests < 18  # 18 if no prompt had to be read beside them
    assert 25 <= tenth.requests < 37
    assert full.floor_ms_per_token == pytest.approx(9.6, rel=0.02)
    assert tenth.floor_ms_per_token == pytest.approx(5.0, rel=0.02)
    assert full.tokens_per_s_at_most < fifth.tokens_per_s_at_most < tenth.tokens_per_s_at_most
    # The last one that fits, and one more that does not.
    for row in (full, fifth, tenth):
        used = row.weights_bytes + (row.requests - 1) * row.kv_bytes_per_request
        used += row.peak_prefill_bytes
        assert used <= setting.memory < used + row.kv_bytes_per_request
    # Evicting between blocks, no prompt is ever held as a whole, so that more fit beside one.
    whole, blocks = (
        planned(f"keydiff:budget=10%{end}", setting) for end in ("", ",prefill=blocks:1024")
    )
    assert blocks.kv_bytes_per_request == whole.kv_bytes_per_request
    assert blocks.peak_prefill_bytes < 0.15 * whole.peak_prefill_bytes
    assert blocks.requests > 1.3 * whole.requests
    assert planned("full", Setting(memory=GIB, prompt=131_072)).requests == 0
    assert FORMULAS.keys() <= {*Planned.__slots__}


def test_pages_are_held_whole_and_a_page_of_one_more_token_is_a_page_more():
    def bytes_of(budget: int, output: int) -> int:
        setting = Setting(memory=GIB, prompt=4_096, output=output)
        return planned(f"snapkv:budget={budget},layout=page:16", setting).kv_bytes_per_request

    page = 16 * 131_072
    assert bytes_of(64, 0) == bytes_of(49, 15) == 4 * page
    assert bytes_of(65, 0) == bytes_of(64, 1) == 5 * page


def test_rows_that_decode_together_are_as_many_as_the_engines():
    assert ROWS_TOGETHER == GROUP_ROWS
    setting, spec = Setting(memory=GIB, prompt=4_096), VariantSpec.parse("snapkv:budget=64")
    fewer, most, more = (
        bytes_together(LLAMA, setting, [spec] * (GROUP_ROWS + more)) for more in (-2, -1, 0)
    )
    assert most - fewer == planned(spec.spec, setting).kv_bytes_per_request
    assert more == most  # a row is the full cache's


def test_equal_bytes_are_equal_and_hold_what_the_engine_would():
    setting = Setting(memory=80 * GIB, prompt=32_768)
    evict, *rest = equal_bytes(LLAMA, setting, VariantSpec.parse("snapkv:budget=10%,window=16"))
    assert evict.entries == 3_276
    assert [row.how for row in rest] == ["Evict and store in fewer bits"] * 3 + [
        "Store in fewer bits alone"
    ] * 3
    for row in rest[:3]:
        assert 0.995 < row.nbytes / evict.nbytes <= 1
        assert evict.entries < row.entries < setting.prompt
        assert "window=16" in row.spec
        assert RequestSizes(LLAMA, setting, VariantSpec.parse(row.spec)).budget == row.entries
    assert all(row.share == 1 for row in rest[3:])


def test_the_command_gives_the_contracts_numbers_and_refuses_in_one_line(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(tiny_config("llama").to_json_string(use_diff=False), "utf-8")
    asked = ["plan", "--memory", "1GiB", "--prompt", "4096", "--variant", "snapkv:budget=10%"]
    for model in (str(config), str(tmp_path), "SmolLM2-135M"):
        assert main([*asked, "--model", model, "--json", "-"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert [each["spec"] for each in document["variants"]] == ["full", "snapkv:budget=10%"]
        assert all(FORMULAS.keys() <= each.keys() for each in document["variants"])
    assert main([*asked, "--model", "SmolLM2-135M", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert FORMULAS["requests"].split(":")[0] in shown
    wrong = (["--model", "nobody"], ["--model", str(config), "--variant", "snapkv:budget=1"])
    for arguments in wrong:
        assert main([*asked, *arguments]) > 0
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("spec", "verdicts"),
    [
        # prefix cache, pages, tensor parallel, chunked prefill, speculative decoding, CUDA graphs
        ("full", "yes yes yes yes yes yes"),
        ("snapkv", "no if yes if yes yes"),
        ("adakv", "no if if if yes if"),
        ("pyramidkv", "no if yes if yes if"),
        ("knorm", "if if yes yes yes yes"),
        ("knorm:rule=pyramid", "if if yes if yes if"),
        ("kvzip", "if if if if yes if"),
        ("headkv", "no if if if yes if"),
        ("attention_matching", "if no yes if yes yes"),
        ("duo_attention", "if if if yes yes if"),
        ("simlayerkv", "no yes if if yes if"),
        ("h2o", "no no yes if no if"),
        ("tova", "no yes if if no if"),
        ("streaming_llm", "if yes yes yes yes yes"),
        ("streaming_llm:rolling=on", "no yes yes yes no if"),
    ],
)
def test_what_a_server_can_do_follows_from_the_parts(spec, verdicts):
    answers = served(VariantSpec.parse(spec)).values()
    assert " ".join(verdict for verdict, _ in answers) == verdicts
    assert all(reason.endswith(".") for _, reason in answers)


def test_sizes_are_read_with_their_units():
    assert parse_bytes("80GiB", "memory") == 80 * GIB
    assert parse_bytes("80 gb", "memory") == 80 * GB
    assert parse_bytes("3.35TB/s", "bandwidth") == 3_350 * GB
    for wrong in ("80", "0GB", "-1GiB", "1e9GB", "nan GB", "9" * 40 + "GB", "80GiB/h"):
        with pytest.raises(CkvError):
            parse_bytes(wrong, "memory")
    assert planned_shape("Qwen3-8B") is KNOWN["Qwen/Qwen3-8B"]
    with pytest.raises(CkvError):
        planned_shape("../../etc/passwd", with_paths=False)
