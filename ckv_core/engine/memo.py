"""What was computed from one prefill: statistics of its layers, and orders of its entries.

Kept with the prefill, so that variants and later runs that ask for the same share it.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor

KEPT_ORDERS = 8  # of entries by score; eight variants of one window and one pooling need three


@dataclass(slots=True)
class Memo:
    """Tensors by kind and layer, and the last orders by their keys."""

    _statistics: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    _rooms: dict[str, Tensor] = field(default_factory=dict)
    _orders: OrderedDict[Hashable, Tensor] = field(default_factory=OrderedDict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held, also of the room of layers that have none yet."""
        statistics = (self._rooms or self._statistics).values()
        return sum(tensor.nbytes for tensor in (*statistics, *self._orders.values()))

    def clear(self) -> None:
        self._statistics.clear()
        self._rooms.clear()
        self._orders.clear()

    def statistic(
        self, kind: str, layer: int, layers: int, compute: Callable[[], Tensor]
    ) -> Tensor:
        """One layer's tensor of a kind, computed where it is not here.

        On the CPU those of all layers lie in one tensor: a small tensor left behind by each layer,
        between large ones that come and go, would split the C library's free memory until it has
        to ask for more.
        """
        if (kind, layer) not in self._statistics:
            computed = compute()
            if computed.device.type == "cpu":
                if kind not in self._rooms:
                    self._rooms[kind] = computed.new_empty(layers, *computed.shape)
                computed = self._rooms[kind][layer].copy_(computed)
            self._statistics[kind, layer] = computed
        return self._statistics[kind, layer]

    def order(self, key: Hashable, sort: Callable[[], Tensor]) -> Tensor:
        """The order of that key; `sort` makes it where it is not among the last KEPT_ORDERS."""
        if key not in self._orders:
            while len(self._orders) >= KEPT_ORDERS:
                self._orders.popitem(last=False)
            self._orders[key] = sort()
        self._orders.move_to_end(key)
        return self._orders[key]
