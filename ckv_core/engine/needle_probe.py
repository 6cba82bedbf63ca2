"""The needle probe: which heads look at a sentence in a long text while they repeat it.

As HeadKV's detection (arXiv:2410.19258): of the strongest entries of each answer token's query, as
many as the needle has, those inside the needle count with their attention. Here the answer is fed,
where theirs is generated and only right ones count: so that small models have a table, too.
"""

from collections.abc import Callable, Generator
from typing import cast

import torch

from ckv_core.engine.candidates import PromptLayer
from ckv_core.engine.head_tables import HeadTable, keep_table, written
from ckv_core.engine.prefill import Needs, Prefill, prefill
from ckv_core.engine.prompt import build_prompt
from ckv_core.methods.headkv import NEEDLE
from ckv_core.models.loaded import LoadedModel
from ckv_core.records.events import Progress
from ckv_core.records.passages import spans_of

_TOKENS = 1_024  # of a prompt at most
PROBE_TOKENS = _TOKENS + 128  # with the answer, at most
_SENTENCES = 40
_DEPTHS = (0.1, 0.5, 0.9)
_NEEDLES = (
    ("The archive key for the harbour office is kept in the blue tin on the third shelf.",
     "Where is the archive key for the harbour office kept?"),
    ("Marta always plants garlic in the second week of October, behind the old well.",
     "When and where does Marta plant garlic?"),
)  # fmt: skip
_FILLER = (
    "The train went through flat country for most of the morning.",
    "A committee had been asked to look into the price of bread.",
    "Rain fell on the roofs, and nobody on the square hurried.",
    "The second volume of the report says much the same as the first.",
    "Two carpenters argued about the grain of a plank.",
    "In the evening the lamps were lit one after another.",
    "The price of coal had risen again, the newspaper wrote.",
    "A dog slept in front of the bakery and would not move.",
)


@torch.inference_mode()
def probe(
    loaded: LoadedModel, should_stop: Callable[[], bool] = lambda: False
) -> Generator[Progress, None, HeadTable]:
    """Read a few prompts with needles; keep the table of what the heads looked at, and give it."""
    info = loaded.info
    table = torch.zeros(info.layers, info.kv_heads, dtype=torch.float64)
    prompts = [(*needle, depth) for needle in _NEEDLES for depth in _DEPTHS]
    for done, (sentence, question, depth) in enumerate(prompts):
        ids, place = _prompt(loaded, sentence, question, depth)
        answer = loaded.tokenizer(sentence, add_special_tokens=False)["input_ids"]
        reading = prefill(loaded, ids + answer[:-1], Needs(len(answer)), should_stop)
        result = yield from counted(reading, "needle probe", done, len(prompts))
        for layer in info.evictable_layers:
            table[layer] += _looked_at(PromptLayer(result, layer), place, len(answer))
        del result  # the next one takes as much room
    table /= table.max().clamp(min=torch.finfo(table.dtype).tiny)
    return keep_table(info, NEEDLE, written(table[None]))


def counted(
    reading: Generator[Progress, None, Prefill], what: str, done: int, count: int
) -> Generator[Progress, None, Prefill]:
    """Returns what one reading gives; its progress counts as a part of that of all."""
    while True:
        try:
            share = next(reading).fraction or 0.0
        except StopIteration as end:
            return cast(Prefill, end.value)
        yield Progress("score", (done + share) / count, f"{what}, text {done + 1} of {count}")


def _prompt(
    loaded: LoadedModel, sentence: str, question: str, depth: float
) -> tuple[list[int], slice]:
    """Token ids of a text with the needle at a depth, as long as may be, and the needle's place."""
    count = _SENTENCES
    while True:
        text = [_FILLER[at % len(_FILLER)] for at in range(count)]
        text.insert(round(depth * count), sentence)
        prompt = build_prompt(loaded.tokenizer, " ".join(text), question, "regular")
        if len(prompt.token_ids) <= _TOKENS or count == 1:
            ((first, end), *_) = spans_of(prompt, sentence)
            return list(prompt.token_ids), slice(first, end)
        count //= 2


def _looked_at(view: PromptLayer, needle: slice, answer: int) -> torch.Tensor:
    """Mean over the heads of a group and sum over the answer, [kv_heads] float64."""
    length, inside_weights = needle.stop - needle.start, []
    for rows in view.window_rows(answer):
        weights, places = rows.topk(min(length, rows.shape[1]))
        inside = (places >= needle.start) & (places < needle.stop)
        inside_weights.append((weights * inside).sum().double().cpu() / length)
    return torch.stack(inside_weights).view(view.kv_heads, -1).mean(1)
