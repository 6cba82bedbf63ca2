"""How much memory a run will take, told before anything is computed; too much is refused.

The figures are upper bounds: tensors that live at different times within one stage are added up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from ckv_core.engine.decode import READ_CHUNK
from ckv_core.engine.partial import MAX_LOGITS
from ckv_core.engine.prefill import CHUNK, KEPT_QUERIES
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.run import Run
from ckv_core.engine.sweep import GROUP_ROWS
from ckv_core.errors import PromptError
from ckv_core.memory_line import human_bytes
from ckv_core.metrics.memory import available_bytes, give_back
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.selection.head_alpha import ALPHA_GRID

FLOAT, INDEX = 4, 8  # bytes
# What kernels keep for themselves. On CUDA it was never measured: workspaces have 32 MiB each.
CUDA_OVERHEAD_BYTES = 64 * 2**20
THREAD_OVERHEAD_BYTES = 8 * 2**20
_HELD_SHARE = 8  # of this much freed memory the C library holds on to one part
_NORM_BLOCK = 4096  # positions of which V W_O exists at a time


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the memory of a run depends on.

    Attributes:
        linear: output features of all linear maps of one decoder block.
        rest: tokens read after the compressed prompt.
        rows: rows decoded together, the full cache's included.
        budgets: entries per KV head of each variant.
        masks: kept sets that exist at a time, bases included.
        window: last queries kept.
        windows: distinct observation windows that are scored.
        widest: tokens of the widest of them.
        norms, auto: whether value norms are needed, and an alpha per head.
        analysed: whether the laboratory's quantities are measured.
    """

    layers: int
    evictable: int
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    linear: int
    vocabulary: int
    itemsize: int
    on_cuda: bool
    tokens: int
    rest: int
    new_tokens: int
    rows: int
    budgets: tuple[int, ...]
    masks: int
    window: int
    windows: int
    widest: int
    norms: bool
    auto: bool
    analysed: bool

    @classmethod
    def of(cls, run: Run) -> Self:
        """Sizes of a run."""
        loaded, info, prompt = run.loaded, run.loaded.info, run.prompt
        scored = [spec for spec in run.specs if spec.method.scorer == "window"]
        critical = sum(spec.critical for spec in run.specs)
        rows, budgets, masks = (
            run.rows,
            sorted(run.budgets, reverse=True),
            len(run.specs) + critical,
        )
        if run.request.kind == "sweep":
            rows, budgets, masks = min(rows, GROUP_ROWS), budgets[:GROUP_ROWS], min(masks, 64)
        return cls(
            layers=info.layers,
            evictable=len(info.evictable_layers),
            query_heads=info.query_heads,
            kv_heads=info.kv_heads,
            head_dim=info.head_dim,
            **_model_sizes(loaded),
            itemsize=loaded.model.dtype.itemsize,
            on_cuda=loaded.device.type == "cuda",
            tokens=prompt.compressed_tokens,
            rest=max(p.tokens for p in (prompt, *run.follow_up_prompts)) - prompt.compressed_tokens,
            new_tokens=run.request.max_new_tokens,
            rows=rows,
            budgets=tuple(budgets),
            masks=masks,
            window=max([KEPT_QUERIES, *(spec.protected["window"] for spec in run.specs)]),
            windows=len({spec.protected["window"] for spec in scored}),
            widest=max((spec.protected["window"] for spec in scored), default=0),
            norms=critical > 0,
            auto=any(spec.name.endswith("_auto") for spec in run.specs),
            analysed=bool(run.request.analysis),
        )

    @property
    def entry(self) -> int:
        """Bytes of one key and value of one head."""
        return 2 * self.head_dim * self.itemsize

    @property
    def cache(self) -> int:
        """Keys and values of the whole compressed prompt."""
        return self.layers * self.kv_heads * self.tokens * self.entry

    @property
    def states(self) -> int:
        """What prefill leaves: the cache and the last queries of each layer."""
        queries = self.query_heads * min(self.window, self.tokens) * self.head_dim * self.itemsize
        return self.cache + self.layers * queries

    @property
    def variants(self) -> int:
        """The variants' own caches, and the tails of all rows."""
        kept = sum(min(budget, self.tokens) for budget in self.budgets if budget < self.tokens)
        tails = self.rows * self.layers * (self.rest + max(1, self.new_tokens))
        return (kept * self.evictable + tails) * self.kv_heads * self.entry

    @property
    def prefill_peak(self) -> int:
        """While the prompt is read."""
        return self.states + self._activations(min(CHUNK, self.tokens), 1) + self._chunk_attention()

    def _chunk_attention(self) -> int:
        """Parts joined by log-sum-exp; where no kernel serves, all logits of a chunk."""
        chunk = min(CHUNK, self.tokens)
        parts = 8 * chunk * self.query_heads * self.head_dim * FLOAT
        if self.on_cuda and self.itemsize == FLOAT:  # its flash kernel takes half precision only
            parts += 2 * self.query_heads * chunk * self.tokens * FLOAT
        return parts

    def _activations(self, tokens: int, rows: int) -> int:
        """One block's forward pass, twice each linear map's output and the norms in float32."""
        block = 2 * self.linear * self.itemsize + 6 * self.hidden * FLOAT
        return rows * (tokens * block + 6 * self.vocabulary * FLOAT)

    @property
    def scores(self) -> int:
        """Window attention and value norms of all layers, which the prefill keeps."""
        kinds = self.windows + (1 if self.norms else 0)
        return kinds * self.evictable * self.query_heads * self.tokens * FLOAT

    @property
    def kept_sets(self) -> int:
        """One byte per slot and kept set, two more sets while one is packed, the packed bits."""
        slots = self.layers * self.kv_heads * self.tokens
        return (self.masks + 2) * slots + len(self.budgets) * slots // 8

    def select_peak(self) -> int:
        """While entries are scored, ranked and chosen, one layer at a time."""
        heads, positions = self.kv_heads * self.tokens, self.query_heads * self.tokens
        scoring = 3 * self.widest * self.tokens * FLOAT + self.tokens * self.head_dim * FLOAT
        scoring += 2 * min(_NORM_BLOCK, self.tokens) * self.hidden * FLOAT if self.norms else 0
        ranking = 5 * positions * FLOAT + self.masks * heads * (2 * INDEX + 2 * FLOAT)
        ranking += 4 * heads * INDEX
        if self.auto:
            ranking += len(ALPHA_GRID) * heads * (2 + FLOAT) + 3 * positions * FLOAT
        return self.states + self.scores + self.kept_sets + max(scoring, ranking)

    def decode_peak(self) -> int:
        """While all rows decode and the first step is measured."""
        fed = min(READ_CHUNK, self.rest) if self.rest else 1
        logits = self.rows * self.query_heads * fed * (self.rest + 1)
        if self.on_cuda or self.evictable < self.layers:  # elsewhere no logits of the prompt
            logits = max(logits, self.query_heads * fed * max(self.tokens, sum(self.budgets)))
        attention = 3 * FLOAT * min(logits, 2 * MAX_LOGITS)
        attention += 4 * FLOAT * self.rows * self.query_heads * fed * self.head_dim
        heads = self.kv_heads * (self.tokens + self.rest + 1)
        measured = heads * (2 * self.entry + 4 * self.head_dim * FLOAT + self.masks)
        measured += 5 * self.query_heads * self.tokens * FLOAT
        packing = heads * len(self.budgets) * 3 * INDEX  # positions of one layer's kept entries
        packing += self.variants // self.layers  # of one layer they lie in two places at once
        step = self._activations(fed, self.rows) + attention
        held = self.states + self.scores + self.kept_sets + self.variants
        return held + max(step, measured + self._analysis(), packing)

    def _analysis(self) -> int:
        """Sets of stage 1, and of one layer the weights, norms and sets of all variants."""
        if not self.analysed:
            return 0
        heads, variants = self.kv_heads * self.tokens, len(self.budgets)
        sets = variants * (self.layers + 4) * heads
        layer = 12 * self.query_heads * self.tokens * FLOAT
        weights = self.query_heads * self.head_dim * self.hidden * FLOAT
        return sets + layer + 2 * weights + 8 * CHUNK * self.hidden * FLOAT

    @property
    def total(self) -> int:
        """The highest stage, and what is held beyond tensors."""
        stage = max(self.prefill_peak, self.select_peak(), self.decode_peak())
        if self.on_cuda:
            return stage + CUDA_OVERHEAD_BYTES
        return stage + stage // _HELD_SHARE + torch.get_num_threads() * THREAD_OVERHEAD_BYTES


def _model_sizes(loaded: LoadedModel) -> dict[str, int]:
    block = loaded.layers[0].modules()
    linear = sum(part.out_features for part in block if isinstance(part, nn.Linear))
    vocabulary, hidden = next(loaded.model.get_input_embeddings().parameters()).shape
    return {"linear": linear, "vocabulary": vocabulary, "hidden": hidden}


def check_memory(run: Run, prefills: PrefillCache | None) -> dict[str, int]:
    """The estimate of a run; kept prefills are dropped where it needs their room.

    Args:
        run: nothing of it computed yet.
        prefills: of earlier runs; the one of this prompt stays.

    Returns:
        Bytes: prefill_peak, cache, variants, total (of the highest stage, above what is in use
        now) and available (what can be dropped included).

    Raises:
        PromptError: it does not fit; with the numbers and what would.
    """
    sizes = _Sizes.of(run)
    free = available_bytes(run.loaded.device)
    droppable = prefills.nbytes if prefills is not None else 0
    if sizes.total > free + droppable:
        raise PromptError(_refusal(sizes, free + droppable, run.loaded.info.device))
    if prefills is not None and sizes.total > free:
        prefills.keep_only(run.prompt.token_ids[: sizes.tokens])
        give_back()
    return {
        "prefill_peak": sizes.prefill_peak,
        "cache": sizes.cache,
        "variants": sizes.variants,
        "total": sizes.total,
        "available": free + droppable,
    }


def _refusal(sizes: _Sizes, available: int, device: str) -> str:
    fewer = []
    tokens = _largest(sizes.tokens, lambda n: replace(sizes, tokens=n).total <= available)
    if tokens:
        fewer.append(f"shorten the context by {sizes.tokens - tokens:,} tokens to {tokens:,}")
    count = _largest(len(sizes.budgets), lambda n: _with_variants(sizes, n).total <= available)
    if count:
        fewer.append(f"choose {count} of the {len(sizes.budgets)} variants")
    advice = " or ".join(fewer) or "choose a smaller model"
    return (
        f"This run needs about {human_bytes(sizes.total)} of memory and {device} has "
        f"{human_bytes(available)} left (reading the prompt {human_bytes(sizes.prefill_peak)}, "
        f"of it the full cache {human_bytes(sizes.cache)}; the variants' caches "
        f"{human_bytes(sizes.variants)}). Please {advice}."
    )


def _with_variants(sizes: _Sizes, count: int) -> _Sizes:
    """The same run with the `count` variants of the largest budgets."""
    return replace(
        sizes, budgets=sizes.budgets[:count], rows=min(sizes.rows, count + 1), masks=2 * count
    )


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """Largest number under `below` that fits, by bisection; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
