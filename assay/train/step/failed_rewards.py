"""Rewards that fail: what is reported, and when they end the run.

A row that cannot be scored does not end a run by itself: its group is dropped. What ends it is a larger share of a
step's rollouts than reward.max_failed allows, or a reward that does not work at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.config import Config
from assay.rewards import Asked, OnScore
from assay.rewards.failures import failure_block, failure_facts, failure_kind
from assay.train.failure import RunFailed
from assay.types import Score

NEVER_WORKED = 8  # prompts without any scored rollout at the start of a process: the run does not wait for more
EMPTY_ROUNDS = 8  # rounds in a row without any scored rollout; only steps of one prompt get that far
MOST_REPORTED = 5  # kinds of failures that are reported in full


class RewardFailed(RunFailed):
    """The reward is broken, the policy is not. The run is saved first."""

    facts: dict[str, Any] | None = None  # of the last failure, as in an event


@dataclass(slots=True)
class FailedRewards:
    """Counts the failed scores of one process. `report` gets sentences for the user, `record` gets events."""

    config: Config
    report: Callable[[str], None] = lambda sentence: None
    record: Callable[..., None] = lambda kind, **facts: None
    _has_worked: bool = False
    _failed_prompts: set[str] = field(default_factory=set)  # as long as it has not worked
    _empty_rounds: int = 0
    _kinds: set[tuple[str, str]] = field(default_factory=set)

    def count(self, pairs: Sequence[Asked], on_scored: Callable[[int, int], None]) -> OnScore:
        """The callback for the scores of one round; it raises RewardFailed at the first failure beyond the limit."""
        known = failed = 0
        share = self.config.reward.max_failed
        allowed = max(share * len(pairs), _rollouts_of_one_row(pairs)) if share > 0 else 0.0

        def on_score(index: int, score: Score) -> None:
            nonlocal known, failed
            known += 1
            on_scored(known, len(pairs))
            if not score.error:
                self._has_worked = True
                return
            failed += 1
            if not self._has_worked:
                if not self._failed_prompts:
                    self.report(f"the first completion could not be scored: {score.error}")
                self._failed_prompts.add(pairs[index][0].id)
            counts = f"{failed} of {known} completions"
            if failed > allowed:
                why = f", and reward.max_failed = {share:g} allows {int(allowed)} of these {len(pairs)}"
                raise self._failure(f"{counts}{why}", pairs[index], score)
            if not self._has_worked and len(self._failed_prompts) >= NEVER_WORKED:
                raise self._failure(f"any completion of the first {NEVER_WORKED} prompts", pairs[index], score)

        return on_score

    def look_at(self, pairs: Sequence[Asked], scores: Sequence[Score]) -> None:
        """After a round that did not end the run: reports each kind of failure once."""
        failures = [(pair, score) for pair, score in zip(pairs, scores, strict=True) if score.error]
        for (prompt, rollout), score in failures:
            kind = failure_kind(score)
            if kind not in self._kinds and len(self._kinds) < MOST_REPORTED:
                self._kinds.add(kind)
                facts = failure_facts(prompt, rollout, score)
                self.record("reward failed", **facts)
                self.report(f"a completion could not be scored: {score.error}")
                for line in failure_block(facts):
                    self.report(f"  {line}")
        self._empty_rounds = self._empty_rounds + 1 if len(failures) == len(pairs) else 0
        if self._empty_rounds >= EMPTY_ROUNDS:
            counts = f"{len(pairs)} of {len(pairs)} completions, for the {self._empty_rounds}th time in a row"
            raise self._failure(counts, *failures[-1])

    def _failure(self, counts: str, pair: Asked, score: Score) -> RewardFailed:
        functions = ", ".join(self.config.reward.functions) or self.config.task.name
        place = f" at {score.failure.place}" if score.failure is not None and score.failure.place else ""
        error = RewardFailed(
            f"the reward could not be computed for {counts}; the last failure: {score.error}{place}; repair the reward "
            f"({functions}), or the rows that it fails on, and go on with --resume"
        )
        error.facts = failure_facts(*pair, score)
        for line in failure_block(error.facts):
            error.add_note(line)
        return error


def _rollouts_of_one_row(pairs: Sequence[Asked]) -> int:
    """The largest number of rollouts of one row. A row may be drawn twice in a step; if there is only one row, its
    draws count separately."""
    by_row = Counter(prompt.text for prompt, _ in pairs)
    by_draw = Counter(prompt.id for prompt, _ in pairs)
    return max((by_row if len(by_row) > 1 else by_draw).values(), default=0)
