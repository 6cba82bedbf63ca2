"""Where a text leaves the full cache's, and what share of it was the same before that."""

import pytest

from ckv_core.records.agreement import agreement, first_difference


@pytest.mark.parametrize(
    ("ours", "theirs", "at", "share"),
    [
        ("abcd", "abcd", None, 1.0),
        ("xbcd", "abcd", 0, 0.0),
        ("abxd", "abcd", 2, 0.5),
        ("abc", "abcd", 3, 0.75),
        ("abcde", "abcd", 4, 1.0),
        ("", "abcd", 0, 0.0),
        ("a", "", 0, 1.0),
        ("", "", None, 1.0),
    ],
)
def test_the_first_difference_and_the_share_before_it(ours, theirs, at, share):
    tokens, reference = [*map(ord, ours)], [*map(ord, theirs)]
    assert first_difference(tokens, reference) == at
    assert agreement(tokens, reference) == share
