"""How much memory a run will take, told before anything is computed; too much is refused."""

from collections.abc import Callable
from dataclasses import replace

from ckv_core.compare.memory_sizes import Sizes
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.run import Run
from ckv_core.errors import PromptError
from ckv_core.runtime.device_memory import available_bytes, give_back
from ckv_core.runtime.memory_line import human_bytes


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
    sizes = Sizes.of(run)
    free = available_bytes(run.loaded.device)
    droppable = 0 if prefills is None else _droppable(run, prefills, sizes)
    if sizes.total > free + droppable:
        raise PromptError(_refusal(sizes, free + droppable, run.loaded.info.device))
    if prefills is not None and sizes.total > free:
        prefills.keep_only(run.prompt.token_ids[: sizes.tokens], run.needs)
        give_back()
    return {
        "prefill_peak": sizes.prefill_peak,
        "cache": sizes.cache,
        "variants": sizes.variants,
        "total": sizes.total,
        "available": free + droppable,
    }


def _droppable(run: Run, prefills: PrefillCache, sizes: Sizes) -> int:
    """Bytes of kept prefills, of this prompt's own only what the estimate counts once more."""
    own = prefills.get(run.prompt.token_ids[: sizes.tokens], run.needs)
    if own is None:
        return prefills.nbytes
    return prefills.nbytes - own.nbytes + min(own.nbytes, sizes.states + sizes.scores)


def _refusal(sizes: Sizes, available: int, device: str) -> str:
    fewer = []
    tokens = _largest(sizes.tokens, lambda n: replace(sizes, tokens=n).total <= available)
    if tokens:
        fewer.append(f"shorten the context by {sizes.tokens - tokens:,} tokens to {tokens:,}")
    count = _largest(len(sizes.budgets), lambda n: _with_variants(sizes, n).total <= available)
    if count:
        fewer.append(
            f"choose {count} of the {sizes.count} {'points' if sizes.sweep else 'variants'}"
        )
    advice = " or ".join(fewer) or "choose a smaller model"
    return (
        f"This run needs about {human_bytes(sizes.total)} of memory and {device} has "
        f"{human_bytes(available)} left (reading the prompt {human_bytes(sizes.prefill_peak)}, "
        f"of it the full cache {human_bytes(sizes.cache)}; the variants' caches "
        f"{human_bytes(sizes.variants)}). Please {advice}."
    )


def _with_variants(sizes: Sizes, count: int) -> Sizes:
    """The same run with the `count` variants of the largest budgets."""
    return replace(
        sizes,
        budgets=sizes.budgets[:count],
        rows=min(sizes.rows, count + 1),
        masks=min(sizes.masks, 2 * count),
    )


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """Largest number under `below` that fits, by bisection; 0 if none does."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
