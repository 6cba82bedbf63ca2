"""Batched decode: several rows, one per variant, in one forward pass with a cache for each.

Attention over a row's frozen prompt part and over its growing tail is computed apart and
joined exactly through the log-sum-exp of both parts.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ckv_core.cache.ragged import RaggedLayer
from ckv_core.engine.partial import join, partial
from ckv_core.engine.prefill import visible
from ckv_core.errors import RunCancelledError
from ckv_core.modeling.loaded import LoadedModel
from ckv_core.modeling.rope import length_dependent, read_as_whole

READ_CHUNK = 256  # tokens per pass over a question; every row pays for its own


class DecodeContext:
    """Attention of `rows` sequences over their own prompt entries and tails.

    Attributes:
        tail_len: tokens in every row's tail; a pass writes after it, `commit` moves it.
        record_row: row whose queries to keep; None for none.
        recorded: per layer, that row's last queries, [query_heads, head_dim].
        recorded_tail: tail entries that the recorded queries saw, their own included.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        layers: Sequence[RaggedLayer],
        rows: int,
        tail_capacity: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._windows = loaded.sliding_windows
        self._layers = list(layers)
        self._should_stop = should_stop
        self.tail_len = 0
        self.record_row: int | None = None
        self.recorded: list[Tensor | None] = [None] * len(layers)
        self.recorded_tail = 0
        self._tails = [
            (
                layer.keys.new_empty(rows, layer.keys.shape[0], tail_capacity, layer.keys.shape[2]),
                layer.values.new_empty(
                    rows, layer.values.shape[0], tail_capacity, layer.values.shape[2]
                ),
            )
            for layer in layers
        ]

    def commit(self, tokens: int) -> None:
        """Keep the last pass's new entries."""
        self.tail_len += tokens

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, in this order; the others cost nothing from now on."""
        for index, (keys, values) in enumerate(self._tails):
            self._layers[index] = self._layers[index].rows(rows)
            self._tails[index] = (keys[list(rows)], values[list(rows)])

    def tail(self, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
        """First `length` tail keys and values of one row, each [kv_heads, length, dim]."""
        keys, values = self._tails[layer]
        return keys[row, :, :length], values[row, :, :length]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Attention of the new tokens; see AttentionContext."""
        if self._should_stop():
            raise RunCancelledError
        rows, query_heads, tokens, head_dim = query.shape
        end = self.tail_len + tokens
        if self.record_row is not None:
            self.recorded[layer] = query[self.record_row, :, -1]
            self.recorded_tail = end
        tail_keys, tail_values = self._tails[layer]
        tail_keys[:, :, self.tail_len : end] = key
        tail_values[:, :, self.tail_len : end] = value
        ragged, window = self._layers[layer], self._windows[layer]
        kv_heads = key.shape[1]
        # [slots, group * tokens, head_dim]: the queries of a KV head attend to the same entries.
        slots = query.reshape(rows * kv_heads, -1, head_dim)
        own = partial(
            slots,
            tail_keys[:, :, :end].flatten(0, 1),
            tail_values[:, :, :end].flatten(0, 1),
            scaling,
            self._tail_mask(tokens, window, query),
        )
        out, total = torch.zeros_like(own[0]), torch.full_like(own[1], -torch.inf)
        if ragged.packed is not None:
            at = ragged.packed.slots
            out[at], total[at] = ragged.packed.attention(slots[at], scaling)
        else:
            for stack in ragged.stacks:
                part = partial(slots[stack.index], stack.keys, stack.values, scaling)
                out[stack.index], total[stack.index] = part
        if ragged.whole_rows:
            self._attend_whole(layer, query, scaling, out, total)
        joined = join(own, (out, total))
        return joined.view(rows, query_heads, tokens, -1).to(query.dtype)

    def _attend_whole(
        self, layer: int, query: Tensor, scaling: float, out: Tensor, total: Tensor
    ) -> None:
        """Rows that keep everything: one product per KV head for all of them together.

        Writes their parts of `out` [rows * kv_heads, group * tokens, value_dim] and of `total`
        [rows * kv_heads, group * tokens]; the other arguments are as in `attend`.
        """
        ragged, window = self._layers[layer], self._windows[layer]
        kv_heads, prompt_len, head_dim = ragged.keys.shape
        rows = ragged.whole_index
        tokens = query.shape[2]
        queries = query[rows].reshape(len(rows), kv_heads, -1, head_dim).transpose(0, 1)
        mask, first = None, 0
        if window is not None:
            start = prompt_len + self.tail_len
            first = max(0, min(start - window + 1, prompt_len - 1))  # earlier ones are not seen
            mask = visible(start, start + tokens, first, prompt_len, window, query.device)
            mask = mask.repeat(len(rows) * queries.shape[2] // tokens, 1)
        whole_out, whole_total = partial(
            queries.flatten(1, 2), ragged.keys[:, first:], ragged.values[:, first:], scaling, mask
        )
        shape = queries.shape[:3]
        out.view(-1, kv_heads, *out.shape[1:])[rows] = whole_out.view(*shape, -1).transpose(0, 1)
        total.view(-1, kv_heads, total.shape[1])[rows] = whole_total.view(shape).transpose(0, 1)

    def _tail_mask(self, tokens: int, window: int | None, query: Tensor) -> Tensor | None:
        """[group * tokens, tail] bool, None where every new token sees the whole tail."""
        if tokens == 1 and window is None:
            return None
        end = self.tail_len + tokens
        mask = visible(self.tail_len, end, 0, end, window, query.device)
        group_size = query.shape[1] // self._layers[0].keys.shape[0]
        return mask.repeat(group_size, 1)


class Decoder:
    """Feeds tokens to all rows at once and hands back the next-token logits."""

    def __init__(self, loaded: LoadedModel, context: DecodeContext, first_position: int) -> None:
        self.loaded = loaded
        self.context = context
        self._first_position = first_position

    def feed(self, token_ids: Tensor, *, commit: bool = True) -> Tensor:
        """Process the next tokens of every row.

        Args:
            token_ids: [rows, new_tokens].
            commit: False to look at the outputs without keeping the entries.

        Returns:
            [rows, vocabulary] float32 logits after the last new token.
        """
        logits = self._forward(token_ids, 1)[:, -1].float()
        if commit:
            self.context.commit(token_ids.shape[1])
        return logits

    def feed_all(self, token_ids: Tensor) -> Tensor:
        """As `feed`, with the logits after every new token, [rows, new_tokens, vocabulary]."""
        if token_ids.shape[1] > 1 and length_dependent(self.loaded.model):
            # Each was generated with the factors of a pass of its own.
            return torch.cat([self.feed_all(part) for part in torch.split(token_ids, 1, dim=1)], 1)
        logits = self._forward(token_ids, token_ids.shape[1])
        self.context.commit(token_ids.shape[1])
        return logits.float()

    def read(self, token_ids: Sequence[int], rows: int) -> Tensor:
        """Let every row read the same tokens, in chunks.

        Args:
            token_ids: at least one.
            rows: rows in the batch.

        Returns:
            [rows, vocabulary] float32 logits after the last one.
        """
        tokens = torch.tensor([token_ids], device=self.loaded.device)
        parts = torch.split(tokens, READ_CHUNK, dim=1)
        end = self._first_position + self.context.tail_len + len(token_ids)
        with read_as_whole(self.loaded.model, end):
            return [self.feed(part.expand(rows, -1)) for part in parts][-1]

    def _forward(self, token_ids: Tensor, logits_to_keep: int) -> Tensor:
        start = self._first_position + self.context.tail_len
        positions = torch.arange(start, start + token_ids.shape[1], device=token_ids.device)
        output = self.loaded.model(
            input_ids=token_ids,
            position_ids=positions.expand_as(token_ids),
            use_cache=False,
            logits_to_keep=logits_to_keep,
            ckv_context=self.context,
        )
        return output.logits  # type: ignore[no-any-return]
