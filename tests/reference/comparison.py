"""A whole comparison, the slow way: prefill, keep, decode on the masked full cache, measure."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from tests.reference.forward import Kept, Tap, forward, greedy
from tests.reference.keep import Prefilled, kept_sets, max_window
from tests.reference.perturbation import head_l1, hidden_l1, kl_divergence
from tests.reference.prompt import ReferencePrompt

# (method, critical, params with every parameter, budget in tokens); `full` has no params
Variant = tuple[str, bool, dict[str, Any]]


@dataclass
class ReferenceResult:
    """One variant: kept sets (None for full), tokens, their logits, perturbation."""

    kept: Kept | None
    token_ids: list[int]
    logits: list[Tensor]
    head_l1: list[list[float] | None]
    layer_hidden_l1: list[float]
    kl: float


@dataclass
class Reference:
    """Runs variants on one model and prompt."""

    model: Any
    prompt: ReferencePrompt
    prefilled: Prefilled
    first_logits: Tensor

    @classmethod
    def prefill(
        cls, model: Any, prompt: ReferencePrompt, params: list[dict[str, Any]]
    ) -> "Reference":
        """One full-attention pass over the compressed part of the prompt."""
        tap = Tap(rows=max_window(params))
        cache = DynamicCache(config=model.config)
        logits = forward(model, prompt.token_ids[: prompt.compressed], cache, tap=tap)
        prefilled = Prefilled(model, tap, copy.deepcopy(cache), prompt.compressed, {})
        return cls(model, prompt, prefilled, logits)

    def read_question(self, kept: Kept | None) -> tuple[DynamicCache, Tensor]:
        """Scenario context-only: the question sees the kept context and all of itself."""
        cache = copy.deepcopy(self.prefilled.cache)
        rest = self.prompt.token_ids[self.prompt.compressed :]
        if not rest:
            return cache, self.first_logits
        return cache, forward(self.model, rest, cache, kept=kept)

    def generate(
        self, kept: Kept | None, steps: int, eos_ids: frozenset[int] = frozenset()
    ) -> tuple[list[int], list[Tensor]]:
        """Greedy decoding with this variant's own tokens."""
        cache, logits = self.read_question(kept)
        return greedy(self.model, cache, logits, steps=steps, kept=kept, eos_ids=eos_ids)

    def first_step(self, kept: Kept | None, token: int) -> tuple[Tap, DynamicCache, Tensor]:
        """The first decoding step, fed with the full run's first generated token."""
        cache, _ = self.read_question(kept)
        tap = Tap(rows=1)
        logits = forward(self.model, [token], cache, tap=tap, kept=kept)
        return tap, cache, logits

    def run(
        self, variants: list[Variant], steps: int, eos_ids: frozenset[int] = frozenset()
    ) -> list[ReferenceResult]:
        """Everything that a result holds, one variant after another."""
        _, question_logits = self.read_question(None)
        token = int(question_logits.argmax())
        full_tap, full_cache, full_logits = self.first_step(None, token)
        results = []
        for method, critical, params in variants:
            kept = None if method == "full" else kept_sets(self.prefilled, method, critical, params)
            tokens, logits = self.generate(kept, steps, eos_ids)
            tap, _, step_logits = self.first_step(kept, token)
            results.append(
                ReferenceResult(
                    kept,
                    tokens,
                    logits,
                    head_l1(self.model, full_tap, full_cache, kept),
                    hidden_l1(full_tap, tap),
                    kl_divergence(full_logits, step_logits),
                )
            )
        return results


def load_eager(folder: str) -> Any:
    """A plain transformers model, float32, eager attention."""
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
