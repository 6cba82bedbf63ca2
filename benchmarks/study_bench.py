"""Benchmarks of a study: beside kvpress's pipeline, samples together or alone, workers.

A study of RULER's multi-key needles: 8 methods x 3 budgets and the full cache, 32 tokens. Prints
Markdown tables; kvpress and ours alternate sample by sample, each ratio is of one sample.
"""

import argparse
import time
from contextlib import closing
from dataclasses import replace

import torch

from benchmarks.kvpress_process import kvpress_side
from benchmarks.tables import ratios, spread, table
from ckv_core.engine.prompt import build_prompt
from ckv_core.engine.together import compare_together
from ckv_core.experiment.cluster import Cluster
from ckv_core.experiment.study import Sample
from ckv_core.experiment.study_engine import LocalEngine
from ckv_core.experiment.study_runner import run_samples, run_study
from ckv_core.models.loading import load_model
from ckv_core.records.run_request import DEFAULT_MODEL, RunRequest

SHARES = (10, 20, 50)  # percent
# Not PyramidKV: with its layers of unequal length kvpress 0.5.5 fails at 50 %, at the question.
VARIANTS = (
    "streaming_llm",
    "snapkv",
    "snapkv+critical",
    "adakv",
    "adakv+critical",
    "knorm",
    "keydiff",
    "expected_attention",
)


def study_of(length: int, samples: int) -> RunRequest:
    """Multi-key needles of this length."""
    return RunRequest(
        name="throughput",
        data={"task": "niah_multikey_1", "length": length, "samples": samples, "seed": 1},
        scenario="context-only",
        variants=VARIANTS,
        budgets=tuple(f"{share}%" for share in SHARES),
        max_new_tokens=32,
    )


def against_kvpress(python: str, study: RunRequest) -> None:
    """Sample by sample, the model loaded on both sides."""
    engine = LocalEngine(DEFAULT_MODEL, "cpu")
    samples = engine.samples(study)
    [*run_samples(study, [(samples[0], study.points()[:1])], engine)]  # a process is slow at first
    tokenizer = load_model(DEFAULT_MODEL, "cpu").tokenizer
    times: dict[str, list[float]] = {"ours": [], "kvpress": []}
    with kvpress_side(python, "cpu", ignore_eos=False) as side:
        for sample in samples:
            start = time.perf_counter()
            (results,) = run_samples(study, [(sample, study.points())], engine)
            times["ours"].append((time.perf_counter() - start) * 1000)
            if any(result.state != "done" for result in results):
                raise SystemExit(f"A result of {sample.id} failed: {results}")
            prompt = build_prompt(tokenizer, sample.context, sample.question, study.scenario)
            wanted = {
                "context_ids": prompt.token_ids[: prompt.compressed_tokens],
                "question_ids": prompt.token_ids[prompt.compressed_tokens :],
                "variants": VARIANTS,
                "budgets": [prompt.compressed_tokens * share // 100 for share in SHARES],
                "new_tokens": study.max_new_tokens,
            }
            times["kvpress"].append(side(wanted))
    rows = [
        (name, spread(values), ratios(times["kvpress"], values)) for name, values in times.items()
    ]
    title = f"A study against kvpress: {len(study.points())} points, {len(samples)} samples"
    header = ("side", "ms a sample, median (range)", "speed against kvpress, median (range)")
    table(f"{title} of {prompt.tokens:,} tokens", header, rows)


def together_and_alone(study: RunRequest) -> None:
    """Samples that share decode batches, and each with a batch of its own."""
    loaded = load_model(DEFAULT_MODEL, "cpu")
    samples = LocalEngine(DEFAULT_MODEL, "cpu").samples(study)
    requests = [sample.request(study) for sample in samples]
    [*compare_together(requests[:1], loaded)]  # a process is slow at first
    times: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(3):
        for name, parts in (("alone", [[one] for one in requests]), ("together", [requests])):
            start = time.perf_counter()
            for part in parts:
                [*compare_together(part, loaded)]
            times[name].append((time.perf_counter() - start) * 1000 / len(requests))
    rows = [
        (name, spread(values), ratios(times["alone"], values)) for name, values in times.items()
    ]
    header = ("decoded", "ms a sample, median (range)", "speed against alone, median (range)")
    table(f"Samples that share a decode batch: {len(study.points())} points", header, rows)


def against_workers(study: RunRequest, rounds: int) -> None:
    """Ray's workers of one thread, one against two; the start of the cluster is not counted."""
    torch.set_num_threads(1)
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, values in times.items():
            values.append(_on_cluster(study, workers))
    rows = [(count, spread(values), ratios(times[1], values)) for count, values in times.items()]
    header = ("workers", "ms, median (range)", "speed against one, median (range)")
    table("A study on workers of one thread each, models loaded", header, rows)


def _on_cluster(study: RunRequest, workers: int) -> float:
    """Milliseconds between the first commit and the last, over the share of samples between."""
    commits: list[float] = []
    with closing(Cluster("local", "cpu", workers=workers)) as cluster:
        samples: tuple[Sample, ...] = cluster.samples(study)
        commit, served = lambda _: commits.append(time.perf_counter()), lambda *_: None
        for _ in run_study(cluster, study, samples, (), commit, served):
            pass
    # Each worker's first sample comes with loading; the rate is that of what follows it.
    between = (commits[-1] - commits[workers - 1]) * 1000
    return between * len(samples) / (len(samples) - workers)


def main() -> None:
    """Run the requested benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kvpress-python", help="python of an environment with kvpress")
    parser.add_argument("--samples", type=int, default=8, help="of the study beside kvpress")
    parser.add_argument("--worker-samples", type=int, default=8, help="of the study on workers")
    parser.add_argument("--length", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    if options.kvpress_python:
        against_kvpress(options.kvpress_python, study_of(options.length, options.samples))
    short = study_of(options.length // 2, options.worker_samples)
    together_and_alone(replace(short, variants=("snapkv", "snapkv+critical"), budgets=("20%",)))
    together_and_alone(replace(short, budgets=("10%", "50%")))
    against_workers(study_of(options.length // 2, options.worker_samples), options.rounds)


if __name__ == "__main__":
    main()
