"""The kvpress side of the comparison; runs in kvpress's own environment.

Reads one JSON line {"model", "device", "context_ids", "question_ids", "budget", "new_tokens"}, then
runs all presses once for every further line and answers with {"ms"} per line.
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
    """The same eight methods as `setting.VARIANTS`, in the same order; None is the full cache."""

    def snapkv() -> SnapKVPress:
        return SnapKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    def pyramidkv() -> PyramidKVPress:
        return PyramidKVPress(compression_ratio=ratio, window_size=32, kernel_size=7)

    return [
        None,
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
    model.generation_config.eos_token_id = []  # every press generates all its tokens
    tokenizer = AutoTokenizer.from_pretrained(setting["model"])
    pipeline = KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    context = torch.tensor([setting["context_ids"]], device=setting["device"])
    question = torch.tensor([setting["question_ids"]], device=setting["device"])
    ratio = 1 - setting["budget"] / context.shape[1]
    inputs = {"context_ids": context, "questions_ids": [question]}
    print(json.dumps({"ready": True}), flush=True)
    for _line in sys.stdin:
        start = time.perf_counter()
        for press in presses(ratio):
            pipeline._forward(inputs, max_new_tokens=setting["new_tokens"], press=press)
        elapsed = (time.perf_counter() - start) * 1000
        print(json.dumps({"ms": elapsed}), flush=True)


if __name__ == "__main__":
    main()
