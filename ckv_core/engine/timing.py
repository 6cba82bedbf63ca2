"""Times each variant alone: before its first token, for each token, and in larger batches.

Rounds take turns, so that a machine that slows down slows all variants; nothing that is chosen or
generated here is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Literal

import psutil
import torch

from ckv_core.base.device_memory import available_bytes, give_back
from ckv_core.base.stopwatch import Marks
from ckv_core.engine.choose import row_plan
from ckv_core.engine.decode import DecodeContext, Decoder
from ckv_core.engine.external_selection import own_selection
from ckv_core.engine.generation import Chosen
from ckv_core.engine.graphs import SETTLED, can_record
from ckv_core.engine.memory import Sizes
from ckv_core.engine.prefill import Memo, Prefill
from ckv_core.engine.rows import PromptRows, RowPlan, prompt_rows
from ckv_core.engine.run import Run
from ckv_core.engine.select import select_all
from ckv_core.errors import is_out_of_memory
from ckv_core.records.events import Progress, RunEvent, VariantTimed
from ckv_core.records.records import Timed

ROUNDS = 3
WARM_UP, STEPS = 2, 11  # of a round at batch 1
BATCHES = (8, 32)
BATCH_STEPS = 4  # after one to warm up
LONGEST = SETTLED + STEPS  # tokens behind the prompt
STEP_LIMIT_S = 0.5  # of a batch; its length is foreseen as if rows shared nothing
READ_LIMIT = 8_192  # tokens of a question that all rows of a batch read together
MOST_ROWS = 100_000
MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.9}  # of what is free; on a CPU others live from the rest


def time_alone(run: Run, prefilled: Prefill) -> Iterator[RunEvent]:
    """Time every variant with the process to itself, and say what each took."""
    alone = [_Alone(run, prefilled, row) for row in range(len(run.specs))]
    total, done, others = len(alone) * (ROUNDS + len(BATCHES) + 1), 0, _Others()
    with run.stopwatch.measure("time"):
        for number in range(ROUNDS):
            for each in alone:
                yield Progress("time", done / total, f"{each.label}, round {number + 1}")
                each.round()
                done += 1
        for row, each in enumerate(alone):
            for number, batch in enumerate(each.batches()):
                detail = f"{each.label}, {batch:,} at a time"
                yield Progress("time", (done + number) / total, detail)
            done += len(BATCHES) + 1
            yield VariantTimed(row, each.timed(others.share()))


@dataclass(slots=True)
class _Alone:
    """One variant, and what it has taken so far."""

    run: Run
    prefilled: Prefill
    row: int
    chosen_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    tokens_per_s: dict[str, float] = field(default_factory=dict)
    bound: Literal["memory", "time"] = "time"

    @property
    def label(self) -> str:
        return self.run.specs[self.row].label

    def round(self) -> None:
        """Choose and copy from scores of its own, then decode at batch 1."""
        now = self.run.stopwatch.now
        start = now()
        rows = prompt_rows(self.prefilled, [self._plan()])
        self.chosen_ms.append((now() - start) * 1000)
        self.step_ms += self._decode(rows, 1, WARM_UP, STEPS)

    def batches(self) -> Iterator[int]:
        """Decode larger batches up to the largest that fits; yields each before it begins."""
        plan, wanted = self._apart(), [*BATCHES, MOST_ROWS]
        reached, seconds = 1, median(self.step_ms) / 1000
        self.tokens_per_s["1"] = 1 / seconds
        in_memory = self._rows_in_memory(plan)
        rest = self.run.prompt.tokens - self.prefilled.prompt_len
        while wanted:
            in_time = int(reached * STEP_LIMIT_S / seconds)
            in_time = min(in_time, READ_LIMIT // rest) if rest else in_time
            self.bound = "memory" if in_memory <= in_time else "time"
            count = min(wanted[0], in_memory, in_time)
            if count <= reached:
                return
            yield count
            if (took := self._batch(plan, count)) is None:
                in_memory = count * 3 // 4
                give_back()
                continue
            reached, seconds = count, took
            self.tokens_per_s[f"{count}"] = count / seconds
            if count < wanted.pop(0):
                return

    def timed(self, others: float) -> Timed:
        """The record."""
        spec, gathered = self.run.specs[self.row], self.prefilled.gathered_ms
        once = sum(gathered[each] for each in {*spec.observers, *spec.passes})
        low, middle, high = quantiles(self.step_ms, n=4, method="inclusive")
        return Timed(
            added_first_token_ms=once + median(self.chosen_ms),
            step_ms=(low, middle, high),
            steps=len(self.step_ms),
            tokens_per_s=self.tokens_per_s,
            bound=self.bound,
            others=others,
        )

    def _plan(self) -> RowPlan:
        run, spec = self.run, self.run.specs[self.row]
        fresh = replace(self.prefilled, memo=Memo())
        own = self.row - (len(run.specs) - len(run.own_masks))
        if own >= 0:
            return row_plan(spec, own_selection(run, fresh, run.own_masks[own]), fresh)
        now, stop, budget = run.stopwatch.now, run.should_stop, run.budgets[self.row]
        return row_plan(spec, select_all([spec], fresh, [budget], now, stop)[0], fresh)

    def _apart(self) -> RowPlan:
        """The plan of a row that shares no tensor with others, as those of other prompts would.

        But for sliding layers, which rows of one prompt always share.
        """
        plan = self._plan()
        keeps = [
            replace(keep, mask=torch.ones_like(states.keys[..., 0], dtype=torch.bool))
            if keep.shares
            else keep
            for keep, states in zip(plan.keeps, self.prefilled.layers, strict=True)
        ]
        return replace(plan, keeps=keeps)

    def _rows_in_memory(self, plan: RowPlan) -> int:
        kept = prompt_rows(self.prefilled, [plan]).own_bytes
        each = Sizes.of(self.run).batch_row(kept, LONGEST)
        devices = self.run.loaded.devices
        free = min(map(available_bytes, devices)) * len(devices)
        return int(free * MEMORY_SHARE.get(devices[0].type, 0.5)) // each

    def _batch(self, plan: RowPlan, count: int) -> float | None:
        """Seconds of a step; None where memory ran out."""
        try:
            rows = prompt_rows(self.prefilled, [plan] * count)
            return median(self._decode(rows, count, 1, BATCH_STEPS)) / 1000
        except (MemoryError, RuntimeError) as error:  # torch has no class of its own on the CPU
            if not is_out_of_memory(error):
                raise
        return None

    def _decode(self, rows: PromptRows, count: int, warm_up: int, steps: int) -> list[float]:
        """Milliseconds of each step after those that warm up; end tokens end nothing."""
        run, loaded = self.run, self.run.loaded
        rest = run.prompt.token_ids[self.prefilled.prompt_len :]
        if can_record(loaded):
            warm_up = SETTLED
        parts = rows.start(len(rest) + warm_up + steps)
        decoder = Decoder(loaded, DecodeContext(loaded, parts, run.should_stop))
        logits = decoder.read(rest) if rest else self.prefilled.logits.expand(count, -1)
        marks, chosen = Marks(loaded.device), Chosen(logits)
        for step in range(warm_up + steps):
            if step >= warm_up:
                marks.mark()
            logits = decoder.feed(chosen.tokens[:, None].to(loaded.device))
            chosen = Chosen(logits)
        marks.mark()
        chosen.read()  # refuses what is not finite
        return marks.spans_ms()


class _Others:
    """How busy other processes have kept the machine's processors since this was made."""

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float:
        """0 to 1."""
        whole, idle, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return min(1.0, max(0.0, (whole - idle - own) / whole)) if whole > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Processor seconds: all, idle ones, this process's."""
        machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = machine.idle + getattr(machine, "iowait", 0.0)
        guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
        return sum(machine) - guests, idle, own.user + own.system
