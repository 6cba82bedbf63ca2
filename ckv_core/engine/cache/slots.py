"""SlotCache: one layer's entries of several rows of one prompt, all of which grow alike.

What selection kept of the prompt stays as it is; what is read and generated afterwards lies in a
dense tail, for it has the same length in every slot. Attention over both is computed apart and
joined exactly through the log-sum-exp of both parts.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ckv_core.engine.cache.prompt_slots import PromptSlots
from ckv_core.engine.causal import visible
from ckv_core.methods.partial_attention import Part, join, partial


class SlotCache:
    """Slots of rows that evict nothing while they generate.

    Attributes:
        prompt: what the rows keep of the prompt.
        length: committed entries of every row's tail.
        seen: entries of the tail in the last pass, its own included.
    """

    def __init__(self, prompt: PromptSlots, rows: int, capacity: int, window: int | None) -> None:
        """`window` is the layer's sliding window; `capacity` bounds the tail."""
        self.prompt = prompt
        self.length = self.seen = 0
        self._window = window
        self._keys, self._values = (
            like.new_empty(rows, like.shape[0], capacity, like.shape[2]) for like in prompt.like
        )

    @property
    def grown_bytes(self) -> int:
        """Bytes held for what is read and generated."""
        return self._keys.nbytes + self._values.nbytes

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; the others cost nothing from now on."""
        self.prompt = self.prompt.rows(rows)
        self._keys, self._values = self._keys[list(rows)], self._values[list(rows)]

    def tail(self, row: int) -> tuple[Tensor, Tensor]:
        """Tail keys and values that one row had in the last pass, each [kv_heads, seen, dim]."""
        return self._keys[row, :, : self.seen], self._values[row, :, : self.seen]

    def commit(self, tokens: int) -> None:
        """Keep the newest entries, which the next pass would write over."""
        self.length += tokens

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attention of the new tokens over each row's own entries and themselves.

        Args:
            query: [rows, query_heads, tokens, head_dim].
            key: [rows, kv_heads, tokens, head_dim], appended until the next pass or `commit`.
            value: [rows, kv_heads, tokens, value_dim].
            scaling: factor of the logits.

        Returns:
            [rows, query_heads, tokens, value_dim].
        """
        rows, query_heads, tokens, head_dim = query.shape
        end = self.seen = self.length + tokens
        self._keys[:, :, self.length : end] = key
        self._values[:, :, self.length : end] = value
        # [slots, group * tokens, head_dim]: the queries of a KV head attend to the same entries.
        slots = query.reshape(rows * key.shape[1], -1, head_dim)
        # A single token sees all of its window: a slice will do, and no mask.
        first = max(0, end - self._window) if self._window is not None and tokens == 1 else 0
        own = partial(
            slots,
            self._keys[:, :, first:end].flatten(0, 1),
            self._values[:, :, first:end].flatten(0, 1),
            scaling,
            self._tail_mask(tokens, query_heads // key.shape[1]),
        )
        # In one order, so that slots are picked once and put back once, however many stacks.
        parts = self._prompt_parts(slots[self.prompt.order], tokens, scaling)
        out, total = (torch.cat(each)[self.prompt.place] for each in zip(*parts, strict=True))
        return join(own, (out, total)).view(rows, query_heads, tokens, -1).to(query.dtype)

    def _prompt_parts(self, slots: Tensor, tokens: int, scaling: float) -> Iterator[Part]:
        """Attention over the prompt, of `slots` [slots, group * tokens, head_dim] in order."""
        packed, apart = self.prompt.packed, self.prompt.apart
        whole = len(self.prompt.whole_rows) * self.prompt.kv_heads
        sizes = [] if packed is None else [len(packed.slots)]
        split = torch.split(slots, [*sizes, *(len(stack.slots) for stack in apart), whole])
        if packed is not None:
            yield packed.attention(split[0], scaling)
        for queries, stack in zip(split[len(sizes) :], apart, strict=False):
            yield stack.segment.attend(queries, scaling)
        if self.prompt.whole is not None:
            yield self._attend_whole(*self.prompt.whole, split[-1], tokens, scaling)

    def _attend_whole(
        self, keys: Tensor, values: Tensor, slots: Tensor, tokens: int, scaling: float
    ) -> Part:
        """Rows that keep everything: one product per KV head for all of them together.

        Args:
            keys: [kv_heads, prompt_len, head_dim].
            values: [kv_heads, prompt_len, value_dim].
            slots: [rows * kv_heads, group * tokens, head_dim]; so is the output.
            tokens: new ones of each row.
            scaling: factor of the logits.
        """
        kv_heads, prompt_len, _ = keys.shape
        queries = slots.view(-1, kv_heads, *slots.shape[1:]).transpose(0, 1)
        mask, first = None, 0
        if self._window is not None:
            start = prompt_len + self.length
            first = max(0, min(start - self._window + 1, prompt_len))  # earlier: not seen
            if tokens > 1:
                mask = visible(start, start + tokens, first, prompt_len, self._window, slots.device)
                mask = mask.repeat(queries.shape[1] * queries.shape[2] // tokens, 1)
        part = self._attend_prompt(
            queries.flatten(1, 2), keys[:, first:], values[:, first:], scaling, mask
        )
        shape = queries.shape[:3]
        out, total = part[0].view(*shape, -1), part[1].view(shape)
        return out.transpose(0, 1).flatten(0, 1), total.transpose(0, 1).flatten(0, 1)

    def _attend_prompt(
        self, queries: Tensor, keys: Tensor, values: Tensor, scaling: float, mask: Tensor | None
    ) -> Part:
        """Attention over the whole prompt; arguments as of `partial`."""
        return partial(queries, keys, values, scaling, mask)

    def _tail_mask(self, tokens: int, group_size: int) -> Tensor | None:
        """[group * tokens, tail] bool; None for a single token, which sees all it is given."""
        if tokens == 1:
            return None
        end = self.length + tokens
        mask = visible(self.length, end, 0, end, self._window, self._keys.device)
        return mask.repeat(group_size, 1)
