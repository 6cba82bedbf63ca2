"""Quest: nothing is evicted; each step reads the pages whose bounds promise the most attention.

The budget is what a step reads of each KV head; the memory is the full cache's and that of the page
bounds. As in the authors' code the first two layers, the last page, and what follows the prompt are
read whole. Heads that share a KV head share its pages, by the mean of their softmaxes.
"""

from dataclasses import dataclass, replace
from typing import Self

from ckv_core.base.lazy_torch import Tensor, torch
from ckv_core.methods.base import register
from ckv_core.methods.parameters import integer
from ckv_core.methods.parts.base import Parameters
from ckv_core.methods.parts.rules import Uniform
from ckv_core.methods.parts.scaling import Scaling
from ckv_core.methods.parts.store import PLAIN, PlainSegment, Segment, Store

PAGE = integer("read_page", 16, (2, 1024)).means(
    "Quest: positions of a page, which a step reads whole or not at all."
)
DENSE = integer("dense_layers", 2, (0, 1024)).means(
    "Quest: first layers in which a step reads everything."
)


@dataclass(frozen=True, slots=True)
class SparseSegment(PlainSegment):
    """Plain entries, of which a single token reads some.

    Attributes:
        group: query heads that share a KV head.
    """

    group: int

    @property
    def kind(self) -> None:
        return None

    def taken(self, places: Tensor) -> PlainSegment:
        """Only these entries of each head, [heads, read] int64."""
        index = places[..., None]
        keys, values = (torch.take_along_dim(each, index, 1) for each in (self.keys, self.values))
        return PlainSegment(keys, values)


@dataclass(frozen=True, slots=True)
class PagedSegment(SparseSegment):
    """Plain entries, and of each whole page the bounds of its keys.

    Attributes:
        least, most: [heads, pages, head_dim], of each channel.
        page: positions of one.
        pages: of each head that a single token reads.
    """

    least: Tensor
    most: Tensor
    page: int
    pages: int

    @property
    def read_bytes(self) -> int:
        pages = self.least.shape[1]
        left_out = max(0, pages - self.pages) * self.page
        entries = self.keys.nbytes + self.values.nbytes
        return self.nbytes - entries // max(1, self.length) * left_out

    def keep(self, places: Tensor) -> Self:
        kept = PlainSegment(self.keys, self.values).keep(places)
        least, most = _bounds(kept.keys, self.page)
        return replace(self, keys=kept.keys, values=kept.values, least=least, most=most)

    def attend(self, queries: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
        if queries.shape[1] != self.group or self.pages >= self.least.shape[1]:
            return super(PagedSegment, self).attend(queries, scaling)
        steps = torch.arange(self.page, device=queries.device)
        whole = self.least.shape[1] * self.page
        places = (self.best(queries, scaling)[..., None] * self.page + steps).flatten(1)
        rest = torch.arange(whole, self.length, device=places.device).expand(len(places), -1)
        return self.taken(torch.cat([places, rest], 1)).attend(queries, scaling)

    def best(self, queries: Tensor, scaling: Scaling) -> Tensor:
        """The pages that queries [heads, group, head_dim] read, [heads, pages] int64."""
        exact = queries.float()
        bounds = exact.clamp(min=0) @ self.most.float().transpose(1, 2)
        bounds += exact.clamp(max=0) @ self.least.float().transpose(1, 2)
        shares = (bounds * scaling.factor).softmax(-1).mean(1)
        return shares.topk(self.pages, sorted=False).indices.sort(-1).values


def _bounds(keys: Tensor, page: int) -> tuple[Tensor, Tensor]:
    """Least and largest numbers of whole pages, [heads, pages, head_dim]."""
    pages = keys.shape[1] // page
    cut = keys[:, : pages * page].reshape(len(keys), pages, page, keys.shape[2])
    return cut.amin(2), cut.amax(2)


class Pages(Store):
    """Everything as it comes, read by pages."""

    name = "pages"
    parameters = (PAGE, DENSE)
    reads_part = True

    def of_layer(self, place: int, parameters: Parameters) -> Store:
        return PLAIN if place < int(parameters[DENSE.name]) else self

    def encode(
        self, keys: Tensor, values: Tensor, parameters: Parameters, weights: Tensor | None = None
    ) -> Segment:
        page, group = int(parameters[PAGE.name]), int(parameters["query_group"])
        pages = self._pages(keys.shape[1], parameters)
        return PagedSegment(keys, values, group, *_bounds(keys, page), page, pages)

    def _pages(self, entries: int, parameters: Parameters) -> int:
        """Whole pages that a step reads of so many entries of a head."""
        page = int(parameters[PAGE.name])
        return max(1, (int(parameters["budget"]) - entries % page) // page)

    def head_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        return 2 * (entries + entries // int(parameters[PAGE.name])) * head_dim * itemsize

    def read_bytes(self, entries: int, head_dim: int, itemsize: int, parameters: Parameters) -> int:
        page = int(parameters[PAGE.name])
        left_out = max(0, entries // page - self._pages(entries, parameters)) * page
        held = self.head_bytes(entries, head_dim, itemsize, parameters)
        return held - 2 * left_out * head_dim * itemsize


class Everything(Uniform):
    """All entries are held, and a step reads as many as the budget says."""

    def holds(self, budget: int, prompt_len: int, parameters: Parameters) -> int:
        return prompt_len


register(
    name="quest",
    label="Quest",
    summary="Evicts nothing; each step reads the pages whose key bounds promise most attention.",
    source="Tang et al. 2024, arXiv:2406.10774",
    budget_rule=Everything(),
    store=Pages(),
)
