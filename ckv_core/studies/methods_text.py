"""How a study was done, as the paragraph of a paper: every setting, in words. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from ckv_core.request.variants import VariantSpec
from ckv_core.studies.harness import LM_EVAL
from ckv_core.studies.records import Sample, SampleResult, Study

CRITICAL_SOURCE = "Feng et al. 2025, arXiv:2502.03805"
_SCENARIOS = {
    "regular": "The whole prompt, question included, was compressed after it was read",
    "context-only": "The context alone was compressed, before the question was read",
}


def methods_text(
    study: Study,
    samples: Sequence[Sample],
    results: Sequence[SampleResult],
    facts: Mapping[str, Any],
) -> str:
    """The paragraph, with `StoredStudy.facts`; of an unfinished study it says so."""
    specs = [VariantSpec.parse(text) for text in study.variants]
    evicting = [spec for spec in specs if spec.method.evicts]
    sources = {sample.source for sample in samples if sample.source}
    texts = f" from {len(sources):,} texts" if sources else ""
    data = ", ".join(f"{key} {value}" for key, value in study.data.items())
    metrics = sorted({_metric(study, sample) for sample in samples})
    model, versions = facts.get("model_info"), facts.get("environment") or {}
    served = ""
    if model:
        served = (
            f", weights sha256 {str(model['sha256'])[:12]}, {model['layers']} layers, "
            f"{model['kv_heads']} KV heads, {model['dtype']} on {model['device']}"
        )
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    sentences = [
        f"We compared {joined([_named(spec) for spec in evicting])} with the full cache on "
        f"{len(samples):,} samples{texts} ({data}) with {study.model}{served}",
        f"{_SCENARIOS[study.scenario]}, once per method and budget from one shared prefill",
        f"Budgets of {joined([*study.budgets])} are the mean number of entries kept per KV head "
        "over all evictable layers, protected entries included, the same total for all methods",
        f"Up to {study.max_new_tokens} tokens were generated greedily and scored by "
        f"{joined(metrics)}",
        "Scores have 95 % Wilson intervals where they are 0 or 1 or of fewer than ten samples, "
        "else BCa bootstrap intervals; paired differences have Tango's, p values are of the exact "
        "McNemar test, adjusted by Holm",
        f"A method keeps the full cache's score if it loses less than {study.tolerance:g} points: "
        "the smallest such budget was chosen on half of the samples and tested on the other half",
    ]
    done = sum(each.score is not None for each in results)
    wanted = len(samples) * len(study.points())
    if done < wanted:
        sentences.insert(1, f"Only {done:,} of the {wanted:,} scores are there and count")
    if made:
        sentences.append(f"Made with {made}")
    return " ".join(f"{sentence}." for sentence in sentences)


def _metric(study: Study, sample: Sample) -> str:
    if sample.metric != LM_EVAL:
        return sample.metric or study.metric
    return f"{sample.tags.get('measure')} of lm_eval {sample.tags.get(LM_EVAL)}"


def _named(spec: VariantSpec) -> str:
    sources = [spec.method.label] if spec.own_name else []
    sources += [spec.method.source] + ([CRITICAL_SOURCE] if spec.critical else [])
    settings = [f"{name} {value}" for name, value in spec.params.items() if name != "budget"]
    return f"{spec.label} ({'; '.join([*sources, ', '.join(settings)])})"


def joined(words: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
