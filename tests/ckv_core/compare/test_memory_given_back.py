"""Evicted memory leaves the process, and 100,000 tokens pass within the stated estimate."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.factories.models import saved_model

ROOT = Path(__file__).resolve().parents[3]

# Layers of 8 MiB: small enough that the C library would keep them after they were dropped.
EVICT = """
import torch
from pathlib import Path
from ckv_core.engine.cache.prompt_slots import Keep, compact
from ckv_core.runtime.device_memory import give_back

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

def layer():
    return torch.ones(2, 16_384, 64), torch.ones(2, 16_384, 64)

compact(*layer(), [Keep(torch.ones(2, 16_384, dtype=torch.bool))])
give_back()
empty = resident()
full = [layer() for _ in range(25)]
whole = resident()
keep = torch.zeros(2, 16_384, dtype=torch.bool)
keep[:, ::20] = True
caches = [compact(*states, [Keep(keep)]) for states in full]
held = sum(cache.own_bytes for cache in caches)
del full
give_back()
print(whole - empty, held, resident() - empty)
"""


def child(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size from /proc")
def test_what_eviction_frees_leaves_the_process():
    full, held, left = map(int, child("-c", EVICT).split())
    assert full > 390 * 2**20
    assert 0.049 * full < held < 0.055 * full
    assert left < held + 0.05 * full


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks the CUDA allocator")
def test_what_eviction_frees_leaves_the_device():
    from ckv_core.engine.cache.prompt_slots import Keep, compact

    before = torch.cuda.memory_allocated()
    keys, values = torch.ones(2, 2, 2**18, 64, device="cuda")
    keep = torch.zeros(2, 2**18, dtype=torch.bool, device="cuda")
    keep[:, ::20] = True
    cache = compact(keys, values, [Keep(keep)])
    full = keys.nbytes + values.nbytes
    del keys, values, keep
    held = cache.own_bytes
    assert held < 0.055 * full
    assert torch.cuda.memory_allocated() - before < 1.1 * held


@pytest.mark.slow
def test_100_000_tokens_pass_within_the_estimate(tmp_path):
    """Through the command line; the model is as small as a model can be."""
    smallest = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    model = saved_model(tmp_path / "model", max_position_embeddings=131_072, **smallest)
    lines = (f"Line {number}: one gauge was read again.\n" for number in range(3_000))
    (tmp_path / "context.txt").write_text("".join(lines)[:100_100], encoding="utf-8")
    variants = ("full", "adakv+critical")
    chosen = [part for spec in variants for part in ("--variant", spec)]
    settings = ["--budget", "5%", "--max-new-tokens", "4", "--json", str(tmp_path / "run.json")]
    printed = child(
        *("-m", "ckv_core", "compare", "--context", str(tmp_path / "context.txt")),
        *("--model", model, *chosen, *settings),
    )
    assert "memory: peak" in printed
    result = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert result["prompt"]["tokens"] >= 100_000
    stated, peak = result["memory"]["total"], result["memory"].get("measured_peak")
    if peak is not None:
        assert peak <= stated <= 4 * peak
