"""What is asked again beside a run, so that it cannot change the run: the reference about a row that was kept, a reward
function about rows that it scored.

Shape legend: T completion tokens.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
from collections.abc import Callable, Sequence

from torch import Tensor

SECONDS = 2.0  # that a reward function may take


class ReferenceRow:
    """A row that is kept from the first look at a reference, which must give it the same log-probs ever after."""

    def __init__(self) -> None:
        self._kept: tuple[Sequence[int], Sequence[int], Tensor] | None = None

    def drift(
        self, ask: Callable[[Sequence[int], Sequence[int]], Tensor], prompt: Sequence[int], tokens: Sequence[int]
    ) -> float | None:
        """Largest change of a log-prob since the first look; None at that look, which keeps this row."""
        if self._kept is None:
            self._kept = (prompt, tokens, ask(prompt, tokens))
            return None
        kept_prompt, kept_tokens, first_T = self._kept
        return float((ask(kept_prompt, kept_tokens) - first_T).abs().max())


def ask_in_child(question: Callable[[], Sequence[float | None]], seconds: float = SECONDS) -> list[float] | None:
    """The answer of a copy of this process, in which user code may count calls, draw random numbers and print without a
    trace here; NaN for None. None where there is no fork, the copy fails, or it takes too long."""
    if not hasattr(os, "fork"):
        return None
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            answer = [math.nan if number is None else float(number) for number in question()]
            os.write(write, json.dumps(answer).encode())
            code = 0
        finally:
            os._exit(code)  # no handler and no buffer of the run may act twice
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], seconds)
        text = os.read(read, 1 << 16) if ready else b""
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [float(number) for number in json.loads(text)] if text else None


def score_backwards(score: Callable[[Sequence[int]], Sequence[float | None]], rows: int) -> list[float]:
    """Rewards by `score`, which takes numbers of rows, of all rows in reverse order. NaN for a row that gets another
    reward in a second try: such a reward is random. [] where the question could not be asked.

    The rows of a group stay together, and so does the whole: a reward may compare them on purpose."""
    backwards = list(range(rows))[::-1]
    answers = ask_in_child(lambda: [*score(backwards), *score(backwards)])
    if answers is None or len(answers) != 2 * rows:
        return []
    pairs = zip(answers[:rows], answers[rows:], strict=True)
    return [first if first == second else math.nan for first, second in pairs][::-1]
