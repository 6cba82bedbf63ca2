"""Bytes: how many entries a store holds in so many, and what a variant requests. No torch."""

from bisect import bisect_right

from ckv_core.errors import ConfigError
from ckv_core.methods import METHODS, STORES
from ckv_core.methods.parameters import Budget
from ckv_core.records.events import RunResult
from ckv_core.records.records import ModelInfo, VariantResult
from ckv_core.records.variants import VariantSpec, written_parameters

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def entries_within(spec: VariantSpec, most: int, head_dim: int, itemsize: int) -> int:
    """The most entries of one KV head that the variant's store holds in so many bytes.

    Every entry takes a byte or more, so there are no more than bytes.
    """

    def held(entries: int) -> int:
        parameters = {**spec.params, "budget": entries}
        return spec.store.head_bytes(entries, head_dim, itemsize, parameters)

    return bisect_right(range(most + 1), most, key=held) - 1


def resolve_budget(spec: VariantSpec, model: ModelInfo, prompt_len: int, entry_bytes: int) -> int:
    """Budget in tokens, checked against what the variant always keeps (ConfigError).

    Of a prompt of so many compressed tokens; `entry_bytes` are those of one key and value.
    """
    if not spec.method.evicts:
        return prompt_len
    heads = len(model.evictable_layers) * model.kv_heads
    if spec.budget.unit == "mib":
        itemsize = entry_bytes // (2 * model.head_dim)
        nbytes = int(spec.budget.amount * 2**20)
        budget = entries_within(spec, nbytes // heads, model.head_dim, itemsize)
    else:
        budget = spec.budget.resolve(prompt_len, entry_bytes * heads)
    if spec.at_most:  # a bound of the whole prompt is no reason to keep it
        budget = min(budget, prompt_len - 1)
    spec.check_budget(budget, prompt_len)
    return budget


def budget_bytes(variant: VariantResult) -> int | None:
    """Bytes of a budget in MiB; None of another one, or where its SPEC says none."""
    try:
        budget = Budget.parse(written_parameters(variant.spec).get("budget", ""))
    except ConfigError:  # of any file
        return None
    return int(budget.amount * 2**20) if budget.unit == "mib" else None


def requested_bytes(result: RunResult, variant: VariantResult) -> int | None:
    """Bytes that the budget names, or that the requested entries take in their store.

    A budget that covers the prompt asks for what the whole prompt takes; layers that are left
    whole, of files that count them, are in both figures in full.
    """
    model, receipt = result.model, variant.receipt
    if receipt is None or model is None or result.prompt is None:
        return None
    heads = len(model.evictable_layers) * model.kv_heads
    if not heads:
        return receipt.full_cache_bytes
    everything = heads * result.prompt.compressed_tokens
    apart = max(0, receipt.full_cache_bytes - everything * entry_bytes(model))
    wanted = budget_bytes(variant)
    if wanted is None or receipt.requested_entries >= everything:
        return apart + _held(model, variant, receipt.requested_entries, heads)
    return apart + wanted


def entry_bytes(model: ModelInfo) -> int:
    """Bytes of one key and its value at one (layer, KV head, position)."""
    return 2 * model.head_dim * ITEM_BYTES.get(model.dtype, 4)


def _held(model: ModelInfo, variant: VariantResult, entries: int, heads: int) -> int:
    """Bytes of so many entries of all heads, spread evenly."""
    store = STORES.get(str(variant.params.get("store")))
    method = METHODS.by_name.get(variant.method)
    if store is None and method is not None and not method.store.of_tokens:
        store = method.store
    if store is None:
        return entries * entry_bytes(model)
    itemsize = ITEM_BYTES.get(model.dtype, 4)
    try:
        of_one = store.head_bytes(entries // heads, model.head_dim, itemsize, variant.params)
    except (KeyError, ValueError):  # of any file
        return entries * entry_bytes(model)
    return heads * of_one
