"""The example rows: one ends in the middle, one is cut off, one ends at once, one ends in its last place."""

from __future__ import annotations

from typing import Any

import numpy as np

PROMPT, COMPLETION = 4, 6  # tokens; the widths 10, 9 and 6 tell a whole sequence, a shifted one and a completion
END, PAD, WORD = 1001, 1000, 1005
ASKED = WORD + 7  # a token of a prompt
ROWS = 4
LENGTHS = (3, 6, 1, 6)  # with the end token
_STARTS = (1, 0, 2, 0)  # padding before each prompt


def completions(raw: bool, fill: int) -> Any:
    """[rows, COMPLETION]; `raw`: words go on after the end, as a sampler that does not look draws them."""
    rows = []
    for number, length in enumerate(LENGTHS):
        row = [WORD + (number + at) % 5 for at in range(COMPLETION)]
        if number != 1:
            row[length - 1] = END
        if not raw:
            row[length:] = [fill] * (COMPLETION - length)
        rows.append(row)
    return np.array(rows)


def prompts(pad: int) -> Any:
    return np.array([[pad] * start + [ASKED] * (PROMPT - start) for start in _STARTS])
