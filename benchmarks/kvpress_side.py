"""The kvpress side of the comparisons; runs in kvpress's own environment.

Reads one JSON line {"model", "device", "ignore_eos"} and answers {"ready"}. Then, for each further
line {"context_ids", "question_ids", "budgets", "new_tokens"}, runs the full cache once and every
press at each budget, and answers with {"ms"}.
"""

import json
import sys
import time

import torch
from kvpress import (
    AdaKVPress,
    CriticalAdaKVPress,
    CriticalKVPress,
    PyramidKVPress,
    SnapKVPress,
    StreamingLLMPress,
)
from kvpress.pipeline import KVPressTextGenerationPipeline
from transformers import AutoModelForCausalLM, AutoTokenizer


def presses(ratio: float) -> list:
    """The same methods as `setting.VARIANTS` without the full cache, in the same order."""

    def snapkv() -> SnapKVPress:
        return SnapKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    def pyramidkv() -> PyramidKVPress:
        return PyramidKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    return [
        StreamingLLMPress(compression_ratio=ratio),
        snapkv(),
        CriticalKVPress(snapkv(), first_stage_ratio=0.25),
        pyramidkv(),
        CriticalKVPress(pyramidkv(), first_stage_ratio=0.25),
        AdaKVPress(snapkv()),
        CriticalAdaKVPress(snapkv(), first_stage_ratio=0.25),
    ]


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
        asked = json.loads(line)
        context = torch.tensor([asked["context_ids"]], device=model.device)
        question = torch.tensor([asked["question_ids"]], device=model.device)
        inputs = {"context_ids": context, "questions_ids": [question]}
        ratios = [1 - budget / context.shape[1] for budget in asked["budgets"]]
        start = time.perf_counter()
        for press in [None, *(press for ratio in ratios for press in presses(ratio))]:
            pipeline._forward(inputs, max_new_tokens=asked["new_tokens"], press=press)
        elapsed = (time.perf_counter() - start) * 1000
        print(json.dumps({"ms": elapsed}), flush=True)


if __name__ == "__main__":
    main()
