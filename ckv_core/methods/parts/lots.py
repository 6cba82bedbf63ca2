"""Random numbers that are the same again: one generator for each seed and place."""

from __future__ import annotations

from hashlib import blake2b

from ckv_core.methods.parameters import Parameter, integer
from ckv_core.runtime.lazy_torch import Generator, torch

SEED = Parameter(
    name="seed",
    help="Random, Compactor: of the random numbers; each layer and KV head has its own ones.",
    default=0,
    parse=integer("seed", 0, 999_999_999),
)


def generator(*place: object) -> Generator:
    """One per seed, layer, head and the like, on the CPU, unlike any other's."""
    digest = blake2b(repr(place).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))
