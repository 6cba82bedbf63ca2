"""What makes logits of dot products, and attention of logits: factor, soft cap and learnt sink."""

from __future__ import annotations

from dataclasses import dataclass

from ckv_core.base.lazy_torch import Tensor, torch


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """How a layer's attention goes on from dot products.

    The sink is one more entry that every query sees, with a logit that was learnt for its head and
    a value of zeros: what attention it draws, no entry has.

    Attributes:
        factor: of the dot products.
        cap: a logit x becomes cap * tanh(x / cap) (Gemma 2, arXiv:2408.00118); None leaves it.
        sink: [query_heads], its logits (gpt-oss, arXiv:2508.10925); None where there is none.
    """

    factor: float
    cap: float | None = None
    sink: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the softmax of factor times product is all."""
        return self.cap is None and self.sink is None

    def logits_(self, products: Tensor) -> Tensor:
        """Turn dot products of any shape into logits, in place."""
        products.mul_(self.factor)
        return products if self.cap is None else products.div_(self.cap).tanh_().mul_(self.cap)

    def sink_of(self, query_head: int) -> Tensor | None:
        """The sink's logit of a query head, float32."""
        return None if self.sink is None else self.sink[query_head].float()

    def grouped_sink(self, kv_heads: int) -> Tensor | None:
        """The sink's logits, [kv_heads, group_size] float32."""
        return None if self.sink is None else self.sink.float().view(kv_heads, -1)

    def joined(self, out: Tensor, total: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Add the sink to a part of the entries, which others may be joined with.

        Args:
            out: attention over the part, [..., queries, value_dim].
            total: log-sum-exp of its logits, [..., queries] float32; of rows, query heads and
                tokens in this order, however they are folded.
            tokens: how many these are.
        """
        if self.sink is None:
            return out, total
        sink = self.sink.float()
        joint = torch.logaddexp(total.reshape(-1, len(sink), tokens), sink[:, None])
        joint = joint.reshape(total.shape)
        return out * (total - joint).exp()[..., None].to(out.dtype), joint

    def completed(self, attention: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """The sink as one more entry, so that rows of attention sum to 1; its value's norm is 0.

        Of attention and norms [..., entries], all that is seen.
        """
        if self.sink is None:
            return attention, norms
        rest = (1 - attention.sum(-1, keepdim=True)).clamp(min=0)
        return torch.cat([attention, rest], -1), torch.nn.functional.pad(norms, (0, 1))


def softmax(logits: Tensor, sink: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax over one dimension; a sink's logits broadcast to the others, and take their share."""
    if sink is None:
        return logits.softmax(dim)
    total = torch.logaddexp(logits.logsumexp(dim), sink)
    return (logits - total.unsqueeze(dim)).exp_()
