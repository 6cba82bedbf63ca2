"""KeyDiff's scores against the literal loop, and what they do not depend on."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from ckv_core.methods import METHODS
from tests.reference import key_difference


def scores(keys: torch.Tensor) -> torch.Tensor:
    scorer = METHODS.get("keydiff").scorer
    assert scorer is not None
    return scorer.scores(SimpleNamespace(keys=keys), {})


@given(st.integers(1, 3), st.integers(1, 30), st.integers(2, 9), st.integers(0, 2**31))
def test_scores_equal_the_literal_loop(heads: int, entries: int, dim: int, seed: int) -> None:
    keys = torch.randn(heads, entries, dim, generator=torch.Generator().manual_seed(seed))
    expected = torch.tensor([key_difference.scores(head.tolist()) for head in keys])
    torch.testing.assert_close(scores(keys), expected, rtol=1e-4, atol=1e-5)


def test_a_keys_length_does_not_matter() -> None:
    keys = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1))
    lengths = torch.linspace(0.1, 9, 12)[:, None]
    torch.testing.assert_close(scores(keys * lengths), scores(keys), rtol=1e-4, atol=1e-5)
