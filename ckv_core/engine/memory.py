"""How much memory a run will take, before anything is computed; too much is refused.

Tensors that live at different times within one stage are added up, so that the estimate is mostly
too high. It is no bound: runs of many methods at once have taken a third more.
"""

from bisect import bisect
from dataclasses import dataclass, replace
from typing import Self

import torch

from ckv_core.base.device_memory import available_bytes, give_back
from ckv_core.base.devices import is_cuda_like
from ckv_core.base.memory_line import human_bytes
from ckv_core.engine.candidates import order_keys
from ckv_core.engine.decode import READ_CHUNK
from ckv_core.engine.first_step import CUTS
from ckv_core.engine.needle_probe import PROBE_TOKENS
from ckv_core.engine.prefill import KEPT_ORDERS, Needs, chunk_tokens, sliding_room
from ckv_core.engine.prefill_cache import PrefillCache
from ckv_core.engine.run import GROUP_ROWS, Run
from ckv_core.engine.select import SLOTS_AT_ONCE
from ckv_core.engine.teacher_forced import teacher_forced_chunk
from ckv_core.errors import NoRoomError
from ckv_core.methods.attention import MAX_LOGITS, block_rows, has_cuda_flash
from ckv_core.methods.parts.views import PromptShape, statistic_bytes
from ckv_core.models.loaded import LoadedModel
from ckv_core.models.shape import (
    FLOAT,
    KEPT_QUERIES,
    activation_bytes,
    part_bytes,
    scan_bytes,
)
from ckv_core.records.records import ModelInfo
from ckv_core.records.variants import VariantSpec

INDEX, ORDER = 8, 4  # bytes
# What kernels keep for themselves. On CUDA it was never measured: workspaces have 32 MiB each.
CUDA_OVERHEAD_BYTES = 64 * 2**20
THREAD_OVERHEAD_BYTES = 8 * 2**20
# glibc keeps freed blocks of up to 32 MiB in its heap, where a later block may not fit between
# those still held: one small run had a peak of 32 MiB where it mapped each block by itself, and of
# 36 to 63 MiB where not, depending on what ran before it. The share is what long runs hold beside.
HEAP_OVERHEAD_BYTES = 32 * 2**20
_HELD_SHARE = 8


def _held(spec: VariantSpec, budget: int, tokens: int, entry: int) -> int:
    """Entries of a head that a row holds; `tokens` where it shares the prefill's own tensors."""
    held = spec.holds(budget, tokens)
    if not spec.store.reads_part:
        return held
    parameters = {**spec.params, "budget": budget}
    nbytes = spec.store.head_bytes(held, entry, 1, parameters) // 2
    entries = -(-nbytes // entry)
    return max(tokens + 1, entries) if held >= tokens else entries + (entries == tokens)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The bytes that a run takes, stage by stage, on one device or on all together."""

    run: Run
    info: ModelInfo
    needs: Needs
    itemsize: int
    vocabulary: int
    hidden: int
    chunk: int  # tokens of a pass over the prompt
    # sliding, room: tokens of the widest sliding window, 0 where no layer slides, and entries that
    # such a layer holds.
    sliding: int
    room: int
    tokens: int  # of the compressed prompt
    rest: int  # tokens read after it
    new_tokens: int
    window: int  # last queries kept
    windows: frozenset[int]  # observation windows that are scored
    norms: int  # kinds of value norms that are needed
    orders: int  # of the entries by score, that the prefill keeps
    layers: int
    evictable: int
    # Of those with entries, and of the evictable ones, those that lie on the device looked at.
    own_layers: int
    own_evictable: int
    carried: int  # bytes that linear layers carry there for one row
    rows: int  # rows decoded together, the full cache's included
    budgets: tuple[int, ...]  # entries per KV head of each variant that exists at a time
    masks: int  # kept sets that exist at a time, bases included
    block: int  # tokens of the largest block of the variants that read the prompt in blocks
    block_budget: int  # the largest of their budgets
    is_plain: bool  # whether what those keep stays as it was read
    shared: bool  # whether a prefill of the whole prompt is held, of all variants or one
    reference: bool  # whether it stays while they decode
    on_cuda: bool
    flash: bool  # whether CUDA's flash kernel serves
    written_out: bool  # whether some layer's logits are, on any device

    @classmethod
    def of(cls, run: Run) -> Self:
        loaded, info = run.loaded, run.loaded.info
        rows, masks = run.rows, len(run.specs) + sum(spec.critical for spec in run.specs)
        tokens, entry = (
            run.prompt.compressed_tokens,
            2 * info.head_dim * loaded.model.dtype.itemsize,
        )
        pairs = zip(run.specs, run.budgets, strict=True)
        budgets = sorted((_held(*pair, tokens, entry) for pair in pairs), reverse=True)
        if run.request.kind == "sweep":
            rows, budgets, masks = min(rows, GROUP_ROWS), budgets[:GROUP_ROWS], min(masks, 64)
        vocabulary, hidden = next(loaded.model.get_input_embeddings().parameters()).shape
        sliding = max((each or 0 for each in loaded.sliding_windows), default=0)
        return cls(
            run=run,
            info=info,
            needs=run.needs,
            itemsize=loaded.model.dtype.itemsize,
            vocabulary=vocabulary,
            hidden=hidden,
            chunk=chunk_tokens(loaded.device),
            sliding=sliding,
            room=sliding_room(sliding, loaded.device),
            tokens=tokens,
            rest=max(p.tokens for p in (run.prompt, *run.follow_up_prompts)) - tokens,
            new_tokens=run.request.max_new_tokens,
            window=max(KEPT_QUERIES, run.needs.window),
            windows=frozenset(spec.queries for spec in run.specs if spec.queries),
            norms=len({order for spec in run.specs for order in spec.norm_orders}),
            orders=min(KEPT_ORDERS, len({key for spec in run.specs for key in order_keys(spec)})),
            layers=info.layers,
            evictable=len(info.evictable_layers),
            own_layers=len(loaded.attentions),
            own_evictable=len(info.evictable_layers),
            carried=sum(state.nbytes for state in loaded.linears.values()),
            rows=rows,
            budgets=tuple(budgets),
            masks=masks,
            block=max((run.specs[row].block for row in run.reading_in_blocks), default=0),
            block_budget=max((run.budgets[row] for row in run.reading_in_blocks), default=0),
            is_plain=all(run.specs[row].store.is_plain for row in run.reading_in_blocks),
            shared=run.request.reference or len(run.reading_in_blocks) < len(run.specs),
            reference=run.request.reference,
            on_cuda=is_cuda_like(loaded.device),
            flash=has_cuda_flash(loaded.device, loaded.model.dtype, info.head_dim),
            written_out=_is_written_out(loaded),
        )

    @property
    def shape(self) -> PromptShape:
        info = self.info
        layers = len(info.evictable_layers)
        heads = info.query_heads, info.kv_heads
        return PromptShape(layers, *heads, info.head_dim, self.tokens, self.on_cuda)

    @property
    def work(self) -> int:
        """The most that the parts of one variant ask for while they work."""
        return max((spec.work_bytes(self.shape) for spec in self.run.specs), default=0)

    @property
    def entry(self) -> int:
        """Bytes of one key and value of one head."""
        return 2 * self.info.head_dim * self.itemsize

    @property
    def cache(self) -> int:
        """Keys and values of the compressed prompt; sliding layers hold its end."""
        held = min(self.tokens, self.room) if self.sliding else 0
        sliding = self.own_layers - self.own_evictable
        entries = self.own_evictable * self.tokens + sliding * held
        return entries * self.info.kv_heads * self.entry

    @property
    def _read(self) -> int:
        """The cache and the last queries of each layer."""
        width = self.info.query_heads * self.info.head_dim * self.itemsize
        queries = self.own_layers * min(self.window, self.tokens) * width
        return self.cache + queries + self.carried

    @property
    def states(self) -> int:
        """The cache and the last queries, with what was gathered from the prompt."""
        gathered = (*self.needs.observers, *self.needs.passes)
        return self._read + sum(statistic_bytes(each, self.shape) for each in gathered)

    @property
    def variants(self) -> int:
        """The variants' own caches, and the tails of all rows, which exist once at a time."""
        tails = self.rows * self.own_layers * (self.rest + max(1, self.new_tokens))
        return self._kept + tails * self.info.kv_heads * self.entry

    @property
    def _kept(self) -> int:
        kept = sum(budget for budget in self.budgets if budget != self.tokens)
        return kept * self.own_evictable * self.info.kv_heads * self.entry

    @property
    def prefill_peak(self) -> int:
        """While the prompt is read."""
        return max(self._whole_peak() if self.shared else 0, self._blocks_peak())

    def _whole_peak(self) -> int:
        seen = min(self.chunk, self.tokens)
        observers = self.needs.observers
        observing = max((each.work_bytes(self.shape, seen) for each in observers), default=0)
        return self.states + self._reading() + observing

    def _blocks_peak(self) -> int:
        """While one reads in blocks: all such variants' entries, and one layer's with a block.

        A store encodes what was read before that is let go.
        """
        if not self.block:
            return 0
        info, chunk = self.info, min(self.chunk, self.block, self.tokens)
        more = (self.block - 1) // self.chunk * self.chunk  # of a block that takes several passes
        held = min(self.block_budget + more, self.tokens)
        one = replace(self, tokens=min(held + chunk, self.tokens))
        seen = one.tokens * info.kv_heads * self.entry
        room = self.own_layers * (min(more, self.tokens) * self.entry + held * INDEX)
        kept = self._kept * (1 if self.is_plain else 2) + self.kept_sets + room * info.kv_heads
        kept += self.rows * self.carried
        shared = self.states + self.scores if self.shared else self._sliding
        reading = self._activations(chunk, 1) + one._chunk_attention()
        places = one.tokens * (6 * info.kv_heads * INDEX + 5 * info.query_heads * FLOAT)
        cutting = reading // 2 + 4 * seen + places + one.work
        return shared + kept + max(reading + 2 * seen, cutting)

    @property
    def _sliding(self) -> int:
        """The cache of sliding layers, which no variant evicts."""
        return replace(self, own_layers=self.own_layers - self.own_evictable, own_evictable=0).cache

    def _reading(self) -> int:
        return self._activations(min(self.chunk, self.tokens), 1) + self._chunk_attention()

    def passes_peak(self) -> int:
        """While further passes are read: their own entries, and one layer's with the prompt's."""
        if not self.run.further_passes:
            return 0
        further = max(len(one.token_ids) for _, each in self.run.further_passes for one in each)
        together = replace(self, tokens=self.tokens + further)
        entries = 2 * together.tokens + self.own_layers * further
        gathering = max(each.work_bytes(self.shape, self.chunk) for each in self.needs.passes)
        reading = self._activations(min(self.chunk, further), 1) + together._chunk_attention()
        reading = max(reading, self._going_back())
        return self.states + entries * self.info.kv_heads * self.entry + reading + gathering

    def _going_back(self) -> int:
        """Bytes of the longest backward pass: activations of all layers, entries of one."""
        planned, info = self.run.further_passes, self.info
        back = (len(one.token_ids) for each, passes in planned if each.goes_back for one in passes)
        if not (tokens := max(back, default=0)):
            return 0
        seen = self.tokens + tokens
        entries = seen * (3 * info.query_heads + info.kv_heads) * self.entry
        written = min(info.query_heads * tokens * seen, max(info.query_heads * seen, MAX_LOGITS))
        logits = 4 * FLOAT * written if self.written_out or self.on_cuda else 0
        widths = self.itemsize, self.run.loaded.linear, self.hidden, 0
        scanned = len(self.run.loaded.linears) * self._scan(tokens)
        return self.layers * activation_bytes(tokens, 1, *widths) + entries + logits + scanned

    def probe_peak(self) -> int:
        """While a head table is made: a text that is read, with the rows of its last queries."""
        if not self.run.missing_tables:
            return 0
        other = replace(self, tokens=PROBE_TOKENS)
        rows = (3 * self.window + self.info.head_dim) * PROBE_TOKENS * FLOAT
        return self.states + other.states + other._read + other._reading() + rows

    def _chunk_attention(self) -> int:
        """Parts joined by log-sum-exp; the mask of sliding layers, also as floats."""
        chunk, info = min(self.chunk, self.tokens), self.info
        parts = part_bytes(chunk, info.query_heads, info.head_dim)
        if self.sliding:
            parts += chunk * min(self.tokens, chunk + self.sliding) * (1 + FLOAT)
            parts += (self.room + chunk) * info.kv_heads * self.entry
        if self.written_out or (self.on_cuda and not (self.flash and not self.sliding)):
            # Blocks of logits; a chunk's own keys and values by query head, and its mask.
            row = info.query_heads * self.tokens
            parts += 3 * FLOAT * min(chunk * row, max(row, MAX_LOGITS))
            parts += chunk * (info.query_heads * self.entry + 2 * chunk)
        return parts

    def _activations(self, tokens: int, rows: int) -> int:
        sizes = (self.itemsize, self.run.loaded.linear, self.hidden, self.vocabulary)
        return activation_bytes(tokens, rows, *sizes) + rows * self._scan(tokens)

    def _scan(self, tokens: int) -> int:
        """Bytes of a pass of one row through a layer of linear attention, with its states."""
        states = self.run.loaded.linears.values()
        return max((scan_bytes(tokens, *each.recurrent.shape[1:]) for each in states), default=0)

    @property
    def scores(self) -> int:
        """Window attention, value norms and orders of all layers, which the prefill keeps."""
        specs, info = self.run.specs, self.info
        kinds = 2 if any(spec.selector.needs_full_window for spec in specs) else 1
        scores = (len(self.windows) * kinds + self.norms) * self.own_layers * info.query_heads
        return self.tokens * (scores * FLOAT + self.orders * self.evictable * info.kv_heads * ORDER)

    @property
    def kept_sets(self) -> int:
        """One byte per slot and kept set, two more sets while one is packed, the packed bits."""
        slots = self.layers * self.info.kv_heads * self.tokens
        packed = len(self.run.specs if self.run.shows_kept else self.budgets)
        return (self.masks + 2) * slots + packed * slots // 8

    def select_peak(self) -> int:
        """While entries are scored and sorted, one layer at a time, and chosen in some layers."""
        if not self.shared:
            return 0
        info = self.info
        heads, positions = info.kv_heads * self.tokens, info.query_heads * self.tokens
        logits = max(self.windows, default=0) * self.tokens
        if self.on_cuda:  # those of many heads together
            logits = max(logits, min(info.query_heads * logits, MAX_LOGITS))
        scoring = (3 * logits + info.head_dim * self.tokens) * FLOAT
        if self.norms:
            # The weights of W_O by head, and rows of V W_O.
            rows = min(block_rows(on_cuda=self.on_cuda), positions)
            scoring += (rows + info.query_heads * info.head_dim) * self.hidden * FLOAT
        sorting = 5 * positions * FLOAT + heads * (3 * INDEX + 2 * FLOAT)
        choosing = 4 * min(self.evictable * heads, max(heads, SLOTS_AT_ONCE)) * INDEX
        tries = max(spec.selector.tries for spec in self.run.specs)
        if tries > 1:
            choosing += tries * heads * (2 + FLOAT) + 3 * positions * FLOAT
        held = self.states + self.scores + self.kept_sets
        return held + self.work + max(scoring, sorting, choosing)

    def decode_peak(self) -> int:
        """While all rows decode and the first step is measured."""
        info = self.info
        fed = min(READ_CHUNK, self.rest) if self.rest else 1
        heads = info.kv_heads * (self.tokens + self.rest + 1)
        measured = heads * (2 * self.entry + 4 * info.head_dim * FLOAT + self.masks)
        measured += 5 * info.query_heads * self.tokens * FLOAT
        packing = heads * len(self.budgets) * 3 * INDEX  # positions of one layer's kept entries
        # Those of one layer lie in two places at once.
        packing += self.variants // max(1, self.own_layers)
        rows = self.rows + len(CUTS)  # the controls of the rounding floor are in the measured step
        step = self._activations(fed, rows) + self._attention(fed, rows)
        # The step's outputs stay.
        outputs = rows * self.own_layers * (self.hidden + info.query_heads * info.head_dim) * FLOAT
        tails = len(CUTS) * self.own_layers * (self.rest + 1) * info.kv_heads * self.entry
        shared = self.states + self.scores + self.kept_sets
        if not self.reference:
            whole = any(budget >= self.tokens for budget in self.budgets)
            measured, outputs, shared = 0, 0, self.cache if whole else self._sliding
        # States before and after a step.
        held = shared + self.variants + tails + outputs + 2 * rows * self.carried
        # Where a row stops, the others' caches are copied: beside what further decodings begin
        # with, else layer by layer, once more where they are packed.
        copied = self._kept
        if not self.run.request.decodes_again:
            copied = 2 * copied // max(1, self.own_layers)
        return held + max(
            step + copied, measured + self.analysing(), packing, self.teacher_forcing()
        )

    def _attention(self, fed: int, rows: int) -> int:
        heads = self.info.query_heads
        logits = rows * heads * fed * (self.rest + self.new_tokens + 1)
        # Elsewhere no logits of the prompt.
        if self.on_cuda or self.written_out or self.sliding:
            logits = max(logits, heads * fed * max(self.tokens, sum(self.budgets)))
        parts = 4 * FLOAT * rows * heads * fed * self.info.head_dim
        return 3 * FLOAT * min(logits, 2 * MAX_LOGITS) + parts

    def batch_row(self, kept: int, steps: int) -> int:
        """Bytes of one more row in a batch; it keeps `kept` bytes of a prompt.

        Its tail, a pass over what follows the prompt, and its positions while it is made.
        """
        tail = self.own_layers * (self.rest + steps) * self.info.kv_heads * self.entry
        fed = max(1, min(READ_CHUNK, self.rest))
        packing = self.info.kv_heads * self.tokens * 3 * INDEX
        return kept + tail + 2 * self.carried + self._activations(fed, 1) + packing

    def teacher_forcing(self) -> int:
        """All rows' logits of one chunk, and what comparing them with the reference takes.

        Rows are compared one by one, but the C library may find another place for each.
        """
        if "forced" not in self.run.request.analysis or not self.new_tokens:
            return 0
        chunk = min(teacher_forced_chunk(self.rows, self.vocabulary), self.new_tokens)
        copies = FLOAT if self.itemsize == FLOAT else FLOAT + self.itemsize
        logits = chunk * self.vocabulary * (self.rows * (copies + 2 * FLOAT) + 5 * FLOAT)
        return logits + self._activations(chunk, self.rows) + self._attention(chunk, self.rows)

    def analysing(self) -> int:
        """Sets of stage 1, and of one layer the weights, norms and sets of all variants."""
        if "bounds" not in self.run.request.analysis:
            return 0
        info = self.info
        heads, variants = info.kv_heads * self.tokens, len(self.budgets)
        sets = variants * (self.layers + 4) * heads + 4 * heads * INDEX  # one order at a time
        layer = 12 * info.query_heads * self.tokens * FLOAT
        weights = info.query_heads * info.head_dim * self.hidden * FLOAT
        search = 3 * info.query_heads // info.kv_heads * min(self.chunk, self.tokens) * self.hidden
        return sets + layer + 2 * weights + search * FLOAT

    @property
    def total(self) -> int:
        """The highest stage, and what is held beyond tensors."""
        return max(self.estimates)

    @property
    def estimates(self) -> tuple[int, int]:
        """The peak until caches are compacted and from then on, and what is held beyond tensors."""
        reading = max(self.prefill_peak, self.passes_peak(), self.probe_peak())
        before = max(reading, self.select_peak())
        if not self.reference and self.shared:  # a cache is made beside the prefill
            before = max(before, self.states + self.scores + self.kept_sets + 2 * self._kept)
        return self._beyond(before), self._beyond(self.decode_peak())

    def _beyond(self, stage: int) -> int:
        if self.on_cuda:
            return stage + CUDA_OVERHEAD_BYTES
        threads = torch.get_num_threads() * THREAD_OVERHEAD_BYTES
        return stage + stage // _HELD_SHARE + HEAP_OVERHEAD_BYTES + threads


def _is_written_out(loaded: LoadedModel) -> bool:
    """Whether some layer's logits are written out on any device.

    No kernel caps them; of sliding layers, the CPU's takes no sink.
    """
    sliding = any(loaded.sliding_windows)
    return any(
        each.cap is not None or (sliding and each.sink is not None) for each in loaded.scalings
    )


def check_memory(run: Run, prefills: PrefillCache) -> dict[str, int]:
    """The estimate of a run; kept prefills but that of its prompt are dropped for their room.

    Returns:
        Bytes: prefill_peak, cache, variants, total (of the highest stage, above what is in use
        now) and available (what can be dropped included).

    Raises:
        NoRoomError: it does not fit on a device; with the numbers and what would.
    """
    turns = [] if run.request.reference else [Sizes.of(run.alone(row)) for row in range(run.rows)]
    sizes = max(turns, key=lambda each: each.total) if turns else Sizes.of(run)
    by_device = _by_device(sizes)
    free = {device: available_bytes(device) for device in by_device}
    # A run whose rows wait holds on to its prefill.
    waits = run.shared is not None and run.shared.rows > 0
    droppable = 0
    if not waits:
        droppable = prefills.nbytes
        if own_prefill := prefills.get(run.prompt.token_ids[: sizes.tokens], run.needs):
            # Of this prompt's own only what the estimate counts once more.
            droppable -= max(own_prefill.nbytes - sizes.states - sizes.scores, 0)
    for device, own in by_device.items():
        room = free[device] + droppable * own.own_layers // sizes.layers
        if own.total > room:
            name = run.loaded.info.device if len(by_device) == 1 else str(device)
            raise NoRoomError(_refusal(own, room, name))
    if any(own.total > free[at] for at, own in by_device.items()):
        prefills.keep_only(run.prompt.token_ids[: sizes.tokens], run.needs)
        give_back()
    return {
        "prefill_peak": sum(own.prefill_peak for own in by_device.values()),
        "cache": sizes.cache,
        "variants": sizes.variants,
        "total": sum(own.total for own in by_device.values()),
        "available": sum(free.values()) + droppable,
    }


def _by_device(sizes: Sizes) -> dict[torch.device, Sizes]:
    """Returns the sizes that each device holds; orders and kept sets of all layers are on one."""
    loaded = sizes.run.loaded
    places = [next(layer.parameters()).device for layer in loaded.layers]
    evictable = sizes.info.evictable_layers
    by_device = {}
    for device in dict.fromkeys(places):
        own = sum(places[layer] == device for layer in loaded.attentions)
        own_evictable = sum(places[layer] == device for layer in evictable)
        carried = sum(s.nbytes for layer, s in loaded.linears.items() if places[layer] == device)
        one = replace(sizes, own_layers=own, own_evictable=own_evictable, carried=carried)
        if device != places[evictable[0]]:
            one = replace(one, layers=places.count(device), evictable=own_evictable)
        by_device[device] = one
    return by_device


def _refusal(sizes: Sizes, available: int, device: str) -> str:
    """The sentences on a run that does not fit; by bisection the largest numbers that would."""
    fewer = []
    tokens = bisect(range(1, sizes.tokens), available, key=lambda n: replace(sizes, tokens=n).total)
    if tokens:
        fewer.append(f"shorten the context by {sizes.tokens - tokens:,} tokens to {tokens:,}")

    def with_variants(count: int) -> int:  # of the largest budgets
        rows, masks = min(sizes.rows, count + 1), min(sizes.masks, 2 * count)
        return replace(sizes, budgets=sizes.budgets[:count], rows=rows, masks=masks).total

    if count := bisect(range(1, len(sizes.budgets)), available, key=with_variants):
        points = "points" if sizes.run.request.kind == "sweep" else "variants"
        fewer.append(f"choose {count} of the {len(sizes.run.specs)} {points}")
    return (
        f"This run needs about {human_bytes(sizes.total)} of memory and {device} has "
        f"{human_bytes(available)} left. Reading the prompt takes "
        f"{human_bytes(sizes.prefill_peak)}, of it the full cache {human_bytes(sizes.cache)}; the "
        f"variants' caches take {human_bytes(sizes.variants)}. Please "
        f"{' or '.join(fewer) or 'choose a smaller model'}."
    )
