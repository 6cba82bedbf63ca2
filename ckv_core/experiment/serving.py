"""Tells which features of a server a method allows, by what its parts declare. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckv_core.records.variants import VariantSpec

Verdict = Literal["yes", "if", "no"]
Answer = tuple[Verdict, str]  # and its reason


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that servers do; `means` is a sentence, `answer` judges a variant."""

    label: str
    means: str
    answer: Callable[[VariantSpec], Answer]


def _prefix_cache(spec: VariantSpec) -> Answer:
    scorer = spec.method.scorer
    if scorer is None:
        return "yes", "The cache of a prefix is the same in every prompt."
    if spec.policy is not None:
        return "no", "It evicts while it generates, so a shared entry would be gone for others too."
    if scorer.query_aware:
        return "no", "What is kept depends on the prompt's end, which other requests do not share."
    return (
        "if",
        "Only as a whole: a compressed context serves all questions after it, no longer context.",
    )


def _by_table(spec: VariantSpec) -> bool:
    """Whether a table gives heads different budgets."""
    rule = spec.method.budget_rule
    return rule is not None and bool(rule.tables(spec.method.scorer, spec.params))


def _paged(spec: VariantSpec) -> Answer:
    scorer, policy, options = spec.method.scorer, spec.policy, spec.method.options()
    if not spec.store.of_tokens:
        return "no", "Each entry has a bias, which no server's kernel adds."
    alike = scorer is None or (scorer.by_position and not _by_table(spec))
    if policy.alike if policy else alike:
        return "yes", "All heads of a layer hold the same positions, so one page table serves them."
    if policy is not None or "layout" not in options:
        return (
            "no",
            "Each head evicts by itself while it generates, so no page table serves a layer.",
        )
    if spec.selector.needs_entries:
        return (
            "if",
            "With layout=layer: one set for all heads, but entry by entry, so pages of one entry.",
        )
    return "if", "With layout=page:16: one set of whole pages for all heads of a layer."


def _tensor_parallel(spec: VariantSpec) -> Answer:
    rule, policy = spec.method.budget_rule, spec.policy
    if policy is not None and policy.alike and policy.needs_probabilities:
        return "if", "All heads share one set, so devices exchange attention at every step."
    if rule is None or rule.looks_at == "nothing":
        if _by_table(spec):
            return "if", "A table gives heads different budgets, so deal the heads out evenly."
        return (
            "yes",
            "A head's entries are chosen on its own device, and all devices hold equally much.",
        )
    whole = "all layers" if rule.looks_at == "all layers" else "a layer"
    if rule.ranks_heads:
        return (
            "if",
            f"The heads of {whole} compete, so devices exchange scores and hold unequally much.",
        )
    return "if", f"Budgets depend on {whole}, so devices exchange a few numbers first."


def _chunked_prefill(spec: VariantSpec) -> Answer:
    scorer = spec.method.scorer
    if scorer is None:
        return "yes", "Chunks only append."
    if spec.passes:
        return (
            "if",
            "Further passes read the whole prompt again, so its cache stays until they end.",
        )
    rule = spec.method.budget_rule
    if scorer.by_position and rule is not None and rule.looks_at == "nothing":
        return "yes", "Positions alone decide, so entries can go chunk by chunk."
    if not spec.method.unfit_for_blocks():
        return (
            "yes",
            "With prefill=blocks:1024 it evicts between chunks; else the whole cache stays.",
        )
    when = "Statistics add up chunk by chunk; the whole cache stays until the last one."
    if not spec.observers:
        needs = "the prompt's last queries" if spec.queries else "the whole prompt"
        when = f"Scores need {needs}, so the whole cache stays until then."
    return "if", when


def _speculative(spec: VariantSpec) -> Answer:
    if spec.policy is None:
        return "yes", "What is generated is only appended, so rejected tokens go from the end."
    return "no", "An entry that a rejected token pushed out cannot come back."


def _graphs(spec: VariantSpec) -> Answer:
    rule = spec.method.budget_rule
    if spec.policy is not None:
        return "if", "A step evicts, so the choice must be part of the graph."
    if rule is None or rule.equal:
        return "yes", "All heads hold equally many entries, one more each step."
    if rule.ranks_heads or _by_table(spec):
        return "if", "Heads hold different numbers, so lengths must be data of the kernel."
    return "if", "Layers hold different numbers, so lengths must be data of the kernel."


FEATURES: Mapping[str, Feature] = {
    "prefix": Feature(
        "Prefix cache", "Requests share the cache of a common beginning.", _prefix_cache
    ),
    "paged": Feature(
        "Paged layout", "One page table for all heads of a layer, as in vLLM.", _paged
    ),
    "tensor": Feature("Tensor parallel", "KV heads are spread over devices.", _tensor_parallel),
    "chunked": Feature(
        "Chunked prefill", "A prompt is read in parts, between others' steps.", _chunked_prefill
    ),
    "speculative": Feature(
        "Speculative decoding", "Several drafted tokens are checked in one step.", _speculative
    ),
    "graphs": Feature("CUDA graphs", "A step is recorded once and replayed.", _graphs),
}


def served(spec: VariantSpec) -> dict[str, Answer]:
    """Verdict and reason for each feature, of a variant with the settings that it has."""
    return {key: feature.answer(spec) for key, feature in FEATURES.items()}
