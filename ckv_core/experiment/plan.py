"""How many requests fit: memory and bandwidth of each variant, computed from a model's sizes alone.

Nothing is measured here. Entries, stores and budgets are the engine's own; no torch.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from ckv_core.base.memory_line import human_bytes
from ckv_core.base.percent import percent
from ckv_core.errors import ConfigError, about
from ckv_core.experiment.table import Cell, Column, Table, text_column
from ckv_core.methods import STORES
from ckv_core.methods.parts.layout import page_size
from ckv_core.methods.parts.views import PromptShape, statistic_bytes
from ckv_core.models.shape import (
    CUDA_CHUNK,
    FLOAT,
    KEPT_QUERIES,
    ModelShape,
    activation_bytes,
    part_bytes,
    scan_bytes,
    sliding_entries,
)
from ckv_core.records.byte_budget import ITEM_BYTES, resolve_budget
from ckv_core.records.run_request import FULL
from ckv_core.records.variants import VariantSpec, spec_without

MAX_TOKENS = 2**24
MAX_PLANNED = 32
ROWS_TOGETHER = 32  # as engine.run.GROUP_ROWS
_ORDER_AND_MARK = FLOAT + 1  # bytes of an entry's place by score, and of its mark
_SIZE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)(I?)B(/S)?\s*", re.ASCII)

# What each number is, by its key in the JSON; docs/how-to/plan_capacity.md has an example.
FORMULAS = {
    "weights_bytes": (
        "numbers in the weights x bytes of the dtype; of AWQ, GPTQ, FP8 and MXFP4 weights, linear "
        "maps or experts by their bits with scales"
    ),
    "kv_bytes_per_request": (
        "memory of one request: the kept entries of its prompt, as they are stored, and all of its "
        "output. Sliding layers hold their window, linear ones their state"
    ),
    "peak_prefill_bytes": (
        "memory beside the weights while one prompt is read: its full cache, the last queries, "
        "the method's statistics, and the larger of activations and choice"
    ),
    "requests": (
        "1 + (memory - weights - peak while reading) / KV cache of a request, at most (memory - "
        "weights) / (KV cache and activations of a request)"
    ),
    "bytes_read_per_step": (
        "bytes that one request reads for a token: the weights, what is kept of its prompt, and "
        "half of its output. Of linear layers it is the state"
    ),
    "floor_ms_per_token": (
        "of a request that runs alone: bytes read per step / bandwidth; no token can come faster"
    ),
    "tokens_per_s_at_most": (
        "of all requests that fit, run together: requests x bandwidth / (weights + each request's "
        "cache); of experts 1 - (1 - active / experts)^requests"
    ),
}
NOTE = (
    "Computed from the model's sizes, not measured. A request fits if its whole output does, while "
    "one more prompt is read."
)


def parse_bytes(text: str, field: str) -> int:
    """`80GiB`, `80 GB`, `3.35TB/s` (without the `/s`, too); ConfigError for anything else."""
    match = _SIZE.fullmatch(text.upper())
    base = 1024 if match and match[3] else 1000
    size = int(float(match[1]) * base ** " KMGT".index(match[2] or " ")) if match else 0
    if not size:
        with about(field):
            raise ConfigError(f"{field} must be like 80GiB or 3.35TB/s; got {text[:40]!r}.")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The device and the requests that a plan is for.

    Attributes:
        memory: bytes of the device.
        prompt, output: tokens of a request.
        bandwidth: bytes a second.
        chunk: prompt tokens that are read in one pass.
    """

    memory: int
    prompt: int
    output: int = 256
    dtype: str = "bfloat16"
    bandwidth: int = 3_350_000_000_000
    chunk: int = CUDA_CHUNK

    def __post_init__(self) -> None:
        for field, least in (("prompt", 1), ("output", 0), ("chunk", 1)):
            if not least <= getattr(self, field) <= MAX_TOKENS:
                with about(field):
                    raise ConfigError(f"{field} must be from {least} to {MAX_TOKENS:,} tokens.")
        if self.dtype not in ITEM_BYTES:
            with about("dtype"):
                raise ConfigError(f"dtype must be one of {', '.join(ITEM_BYTES)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One variant's numbers; `FORMULAS` says what they are.

    Attributes:
        budget: entries that a KV head keeps of the prompt, on average.
        at_most: the budget is a bound and the prompt decides: what follows is the worst case.
        limited_by: `prefill`, `decode`, or `nothing fits`.
    """

    spec: str
    label: str
    budget: int
    at_most: bool
    weights_bytes: int
    kv_bytes_per_request: int
    requests: int
    limited_by: str
    peak_prefill_bytes: int
    bytes_read_per_step: int
    floor_ms_per_token: float
    tokens_per_s_at_most: float


@dataclass(slots=True)
class _Counts:
    layers: int
    kv_heads: int
    entries: int
    protected: int


class RequestSizes:
    """One request of one variant, in entries and bytes."""

    def __init__(self, shape: ModelShape, setting: Setting, spec: VariantSpec) -> None:
        self.shape, self.setting, self.spec = shape, setting, spec
        self.itemsize, self.info = ITEM_BYTES[setting.dtype], shape.info(setting.dtype)
        self.entry = 2 * shape.head_dim * self.itemsize
        self.budget = resolve_budget(spec, self.info, setting.prompt, self.entry)
        self.evictable = len(self.info.evictable_layers)
        self.sliding = [window for window in shape.windows if window]
        self.carried = shape.carried(self.itemsize)

    def layers(self) -> Sequence[int]:
        """Entries that a KV head keeps by evictable layer; equal where the prompt decides."""
        spec, prompt = self.spec, self.setting.prompt
        protected = sum(map(len, spec.always_kept(prompt)))
        rule, held = spec.method.budget_rule, spec.holds(self.budget, prompt)
        if rule is None or held >= prompt:
            return [prompt] * self.evictable
        counts = _Counts(self.evictable, self.shape.kv_heads, prompt - protected, protected)
        spare = held - protected
        own = rule.layer_budgets(counts, spare, spec.params) or [spare] * self.evictable
        return [protected + each for each in own]

    def held(self, generated: int, *, read: bool = False) -> int:
        """Bytes in evictable layers with so many generated tokens, or that a step reads of them."""
        spec, shape, size = self.spec, self.shape, page_size(self.spec.params)
        parameters, total = {**spec.params, "budget": self.budget}, 0
        for place, kept in enumerate(self.layers()):
            store = spec.store.of_layer(place, parameters)
            size_of = store.read_bytes if read else store.head_bytes
            most = (
                spec.policy.most(kept, generated, parameters) if spec.policy else kept + generated
            )
            rest = (-(-most // size) * size if size else most) - kept
            stored = size_of(kept, shape.head_dim, self.itemsize, parameters)
            total += shape.kv_heads * (stored + rest * self.entry)
        return total

    def slid(self, tokens: int, *, read: bool = False) -> int:
        """Bytes that sliding layers hold of so many prompt tokens, or that a step reads of them."""
        chunk = self.setting.chunk
        rooms = (window if read else sliding_entries(window, chunk) for window in self.sliding)
        return sum(min(tokens, room) for room in rooms) * self.shape.kv_heads * self.entry

    @property
    def kv_bytes(self) -> int:
        setting = self.setting
        output = len(self.sliding) * setting.output * self.shape.kv_heads * self.entry
        return self.held(setting.output) + self.slid(setting.prompt) + output + self.carried

    def activations(self, tokens: int) -> int:
        shape = self.shape
        sizes = (self.itemsize, shape.linear, shape.hidden, shape.vocabulary)
        one = shape.linears
        scanned = scan_bytes(tokens, one.heads, one.key, one.value) if one else 0
        return activation_bytes(tokens, 1, *sizes) + scanned

    @property
    def cache(self) -> int:
        """Bytes of the whole prompt's cache."""
        prompt, heads = self.setting.prompt, self.shape.kv_heads
        return self.evictable * prompt * heads * self.entry + self.slid(prompt)

    @property
    def states(self) -> int:
        """Bytes of the prompt's cache, its last queries and what is gathered from it."""
        shape, spec = self.shape, self.spec
        window = min(max(KEPT_QUERIES, spec.queries), self.setting.prompt)
        layers = self.evictable + len(self.sliding)
        queries = layers * window * shape.query_heads * shape.head_dim * self.itemsize
        gathered = (*spec.observers, *spec.passes)
        seen = sum(statistic_bytes(each, self.seen) for each in gathered)
        return self.cache + self.carried + queries + seen

    @property
    def seen(self) -> PromptShape:
        shape = self.shape
        heads = (shape.query_heads, shape.kv_heads, shape.head_dim)
        return PromptShape(self.evictable, *heads, self.setting.prompt)

    @property
    def reading_peak(self) -> int:
        """While the prompt is read, as `engine.memory` has it where attention is a fused kernel."""
        if self.block:
            return self._blocks_peak()
        shape, prompt, observers = self.shape, self.setting.prompt, self.spec.observers
        chunk = min(self.setting.chunk, prompt)
        reading = self.activations(chunk) + part_bytes(chunk, shape.query_heads, shape.head_dim)
        if self.sliding:
            widest = max(self.sliding)
            room = sliding_entries(widest, self.setting.chunk) + chunk
            reading += chunk * min(prompt, chunk + widest) * (1 + FLOAT)
            reading += room * shape.kv_heads * self.entry
        reading += max((each.work_bytes(self.seen, chunk) for each in observers), default=0)
        return self.states + reading

    @property
    def block(self) -> int:
        """Tokens of a block where it evicts between blocks of the prompt, else 0."""
        return self.spec.block if self.budget < self.setting.prompt else 0

    def _blocks_peak(self) -> int:
        """The budget in all layers, and of one layer four times what a pass sees."""
        shape, setting = self.shape, self.setting
        chunk = min(setting.chunk, self.block, setting.prompt)
        held = min(self.budget + (self.block - 1) // setting.chunk * setting.chunk, setting.prompt)
        entries = self.evictable * held + 4 * (held + chunk)
        reading = self.activations(chunk) + part_bytes(chunk, shape.query_heads, shape.head_dim)
        held = entries * shape.kv_heads * self.entry + self.slid(setting.prompt)
        return held + self.carried + reading

    @property
    def choosing_peak(self) -> int:
        """Once it is read: scores, orders and marks, and the copy of what is kept."""
        shape, spec, prompt = self.shape, self.spec, self.setting.prompt
        if self.block:  # it has chosen already
            return self.held(0)
        if self.budget >= prompt and spec.store.is_plain:
            return self.states
        kinds = bool(spec.queries) + len(spec.norm_orders)
        scores = kinds * shape.layers * shape.query_heads * FLOAT
        marks = self.evictable * shape.kv_heads * _ORDER_AND_MARK
        return self.states + prompt * (scores + marks) + self.held(0)

    def planned(self) -> Planned:
        shape, setting = self.shape, self.setting
        weights, own = shape.weight_bytes(self.itemsize), self.kv_bytes
        free, peak = setting.memory - weights, max(self.reading_peak, self.choosing_peak)
        in_prefill = 1 + (free - peak) // own if free >= peak else 0
        in_decode = free // (own + self.activations(1))
        requests = max(0, min(in_prefill, in_decode))
        limit = "prefill" if in_prefill <= in_decode else "decode"
        read, together = (shape.bytes_read_by(n, self.itemsize) for n in (1, requests))
        entries = self.held(setting.output // 2, read=True) + self.slid(setting.prompt, read=True)
        entries += self.carried
        return Planned(
            spec=self.spec.spec,
            label=self.spec.label,
            budget=min(self.budget, setting.prompt),
            at_most=self.spec.at_most,
            weights_bytes=weights,
            kv_bytes_per_request=own,
            requests=requests,
            limited_by=limit if requests else "nothing fits",
            peak_prefill_bytes=peak,
            bytes_read_per_step=read + entries,
            floor_ms_per_token=1000 * (read + entries) / setting.bandwidth,
            tokens_per_s_at_most=requests * setting.bandwidth / (together + requests * entries),
        )


def plan(shape: ModelShape, setting: Setting, specs: Sequence[VariantSpec]) -> list[Planned]:
    """The full cache's numbers, then each variant's; ConfigError for a budget that cannot be."""
    if len(specs) > MAX_PLANNED:
        raise ConfigError(f"Up to {MAX_PLANNED} methods can be planned at a time.")
    evicting = (spec for spec in specs if spec.method.evicts)
    return [
        RequestSizes(shape, setting, spec).planned()
        for spec in (VariantSpec.parse(FULL), *evicting)
    ]


def bytes_together(shape: ModelShape, setting: Setting, specs: Sequence[VariantSpec]) -> int:
    """About the bytes that one comparison of all of them takes, with weights and the full cache.

    Up to `ROWS_TOGETHER` are decoded at a time. ConfigError for a budget that cannot be.
    """
    sizes = [RequestSizes(shape, setting, spec) for spec in specs if spec.method.evicts]
    full = RequestSizes(shape, setting, VariantSpec.parse(FULL))
    peak = max(max(each.reading_peak, each.choosing_peak) for each in (full, *sizes))
    kept = sorted((each.kv_bytes for each in sizes), reverse=True)[: ROWS_TOGETHER - 1]
    return shape.parameters * ITEM_BYTES[setting.dtype] + peak + sum(kept)


def plan_document(shape: ModelShape, setting: Setting, rows: Sequence[Planned]) -> dict[str, Any]:
    """The plan as `ckv plan --json` writes it."""
    return {
        "schema": 1,
        "model": {"name": shape.name, "parameters": shape.parameters, "layers": shape.layers},
        "setting": asdict(setting),
        "formulas": FORMULAS,
        "variants": [asdict(row) for row in rows],
    }


# Label and unit of each column; bytes are shown with theirs.
_COLUMNS = {
    "kv_bytes_per_request": ("KV cache of a request", "", ""),
    "requests": ("Requests that fit", "", ","),
    "peak_prefill_bytes": ("Peak while reading", "", ""),
    "bytes_read_per_step": ("Read per step", "", ""),
    "floor_ms_per_token": ("Least time", "ms/token", ",.2f"),
    "tokens_per_s_at_most": ("Most throughput", "tokens/s", ",.0f"),
}


def _read(key: str, form: str, row: Planned) -> Cell:
    value = getattr(row, key)
    limit = f"Limited by {row.limited_by}." if key == "requests" else ""
    return Cell(format(value, form) if form else human_bytes(value), value, limit)


def _budget(row: Planned) -> Cell:
    title = "A threshold decides: no more than this, and the prompt tells how many."
    if row.at_most:
        return Cell(f"at most {row.budget:,}", row.budget, title)
    return Cell(f"{row.budget:,}", row.budget)


def plan_table(shape: ModelShape, setting: Setting, rows: Sequence[Planned]) -> Table[Planned]:
    """A row per variant; a request that is longer than the model reads is in the note."""
    longer = f" The model was trained for {shape.context:,} tokens; the prompt is longer."
    columns: list[Column[Planned]] = [
        text_column("variant", "Method", lambda row: Cell(row.label, spec=row.spec)),
        text_column("spec", "SPEC", lambda row: row.spec, is_hidden=True),
        Column("budget", "Budget", _budget, unit="entries"),
    ]
    for key, (label, unit, form) in _COLUMNS.items():
        words = f"{FORMULAS[key][0].upper()}{FORMULAS[key][1:]}."
        columns.append(Column(key, label, partial(_read, key, form), unit=unit, definition=words))
    note = NOTE + (longer if setting.prompt > shape.context else "")
    return Table(
        caption="Requests that fit",
        columns=columns,
        items=rows,
        file="plan.csv",
        note=note,
    )


# --- the same bytes ----------------------------------------------------------------------


class Equal(NamedTuple):
    """One way to hold a prompt in the bytes of another."""

    how: str
    spec: str
    entries: int  # of a KV head
    share: float  # of the prompt
    nbytes: int  # of the prompt in the layers that are evicted from


def equal_bytes(shape: ModelShape, setting: Setting, spec: VariantSpec) -> Iterator[Equal]:
    """Entries that each store holds in the bytes of a variant's budget; then whole prompts."""
    base = spec_without(spec.spec, "budget", "store", "residual", "pruned", "name")
    joint = "," if ":" in base else ":"

    def held(how: str, settings: str) -> Equal:
        one = RequestSizes(shape, setting, VariantSpec.parse(base + joint + settings))
        entries = min(one.budget, setting.prompt)
        return Equal(how, one.spec.spec, entries, entries / setting.prompt, one.held(0))

    wanted = held("", f"budget={spec.budget}").nbytes
    size = f"{wanted / 2**20:.3f}".rstrip("0").rstrip(".")
    yield held("Evict", f"budget={size}MiB")
    for store in STORES:
        yield held("Evict and store in fewer bits", f"budget={size}MiB,store={store}")
    for store in STORES:
        yield held("Store in fewer bits alone", f"budget=100%,store={store}")


def _share(row: Equal) -> Cell:
    return Cell(percent(row.share, 1), row.share)


def equal_table(rows: Sequence[Equal]) -> Table[Equal]:
    columns: list[Column[Equal]] = [
        text_column("how", "Way", lambda row: Cell(row.how, spec=row.spec)),
        Column("entries", "Entries per KV head", lambda row: row.entries, form=","),
        Column("share", "Of the prompt", _share, unit="share"),
        Column("bytes", "Bytes", lambda row: Cell(human_bytes(row.nbytes), row.nbytes)),
    ]
    note = (
        "The first four rows take the same memory. The last three evict nothing: they show what "
        "fewer bits save alone."
    )
    return Table(
        caption="Equal bytes",
        columns=columns,
        items=rows,
        file="bytes.csv",
        note=note,
    )
