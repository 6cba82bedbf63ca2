"""The kvpress side of the comparisons; runs in kvpress's own environment.

Reads one JSON line {"model", "device", "ignore_eos"} and answers {"ready"}. Then, for each further
line {"context_ids", "question_ids", "variants", "budgets", "new_tokens"}, runs the full cache once
and every variant at each budget, and answers with {"ms"}.
"""

import json
import sys
import time

import torch
from kvpress import (
    AdaKVPress,
    BasePress,
    CriticalAdaKVPress,
    CriticalKVPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
)
from kvpress.pipeline import KVPressTextGenerationPipeline
from transformers import AutoModelForCausalLM, AutoTokenizer


def press(variant: str, ratio: float) -> BasePress:
    """The press that is a variant of `setting.VARIANTS` or `study_bench.VARIANTS`."""

    def snapkv() -> SnapKVPress:
        return SnapKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    def pyramidkv() -> PyramidKVPress:
        return PyramidKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    return {
        "streaming_llm": lambda: StreamingLLMPress(compression_ratio=ratio),
        "snapkv": snapkv,
        "snapkv+critical": lambda: CriticalKVPress(snapkv(), first_stage_ratio=0.25),
        "pyramidkv": pyramidkv,
        "pyramidkv+critical": lambda: CriticalKVPress(pyramidkv(), first_stage_ratio=0.25),
        "adakv": lambda: AdaKVPress(snapkv()),
        "adakv+critical": lambda: CriticalAdaKVPress(snapkv(), first_stage_ratio=0.25),
        "knorm": lambda: KnormPress(compression_ratio=ratio),
        "keydiff": lambda: KeyDiffPress(compression_ratio=ratio),
        "expected_attention": lambda: ExpectedAttentionPress(compression_ratio=ratio),
    }[variant]()


def main() -> None:
    setting = json.loads(sys.stdin.readline())
    model = AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32)
    model = model.to(setting["device"]).eval()
    if setting["ignore_eos"]:
        model.generation_config.eos_token_id = []  # every press generates all its tokens
    tokenizer = AutoTokenizer.from_pretrained(setting["model"])
    pipeline = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        context = torch.tensor([request["context_ids"]], device=model.device)
        question = torch.tensor([request["question_ids"]], device=model.device)
        inputs = {"context_ids": context, "questions_ids": [question]}
        ratios = [1 - budget / context.shape[1] for budget in request["budgets"]]
        start = time.perf_counter()
        pipeline._forward(inputs, max_new_tokens=request["new_tokens"], press=None)
        for ratio in ratios:
            for variant in request["variants"]:
                pipeline._forward(
                    inputs, max_new_tokens=request["new_tokens"], press=press(variant, ratio)
                )
        elapsed = (time.perf_counter() - start) * 1000
        print(json.dumps({"ms": elapsed}), flush=True)


if __name__ == "__main__":
    main()
