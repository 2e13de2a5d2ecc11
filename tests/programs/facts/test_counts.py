"""Divisors that count the tokens of a mask."""

import pytest

from assay.programs.facts.masks.counts import count_of


@pytest.mark.parametrize(
    ("divisor", "by_row", "floored"),
    [
        ("mask.sum()", False, False),
        ("mask.sum(1).clamp(min=1)", True, True),
        ("mask.count_nonzero(dim=1)", True, False),
        ("torch.count_nonzero(mask).clamp(min=1)", False, True),
    ],
)
def test_a_count_of_tokens_is_known_however_it_is_written(divisor, by_row, floored, value_of):
    count = count_of(value_of(f"import torch\nmask = torch.load('ids') != 0\ny = {divisor}"))
    assert (count.mask.names, count.by_row, count.floored) == (["mask"], by_row, floored)
