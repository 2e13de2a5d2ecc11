"""What the checks of a reward share: right answers beside their rivals, calls that were made twice, groups.

Right and wrong are compared in the same form: the one in which they differ most. A reward that wants tags is not blamed
for what it makes of a bare answer.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from assay.doctor.evidence.reward import PROBLEMS_IN_ALL_FORMS, Pairs, ProbeScore, RewardTrial, Role
from assay.machine.terminal import quote
from assay.verdict import Confidence, Severity, Verdict, finding, healthy, not_applicable, not_enough_data

WITHOUT_ANSWER = {"format"}  # built-in rewards that do not read the answer, and are not meant to
TOLERANCE = 1e-9  # two rewards closer than this are equal: a sum of weights may round
MOST_COMPARISONS = 0.5  # of the comparisons: from here on a fault is not an accident of one problem
LENGTH_SHARE = 0.05  # of the distance between right and wrong: a price for length below this does not steer a policy
EXAMPLES = 4
BASIC = (Role.RIGHT, Role.WRONG, Role.EMPTY, Role.NONSENSE)

Pair = tuple[ProbeScore, ProbeScore]  # the right answer, its rival


def reads_no_answer(trial: RewardTrial) -> bool:
    return set(trial.functions) <= WITHOUT_ANSWER


def means_by_form(scores: Sequence[ProbeScore]) -> dict[str, float]:
    rewards: dict[str, list[float]] = defaultdict(list)
    for score in scores:
        rewards[score.probe.name].append(score.reward or 0.0)
    return {form: statistics.fmean(values) for form, values in rewards.items()}


def best_form(trial: RewardTrial) -> str:
    """The form in which right and wrong answers differ most, the plainest of equals; "" if no right one was scored.

    Not the one in which the right answer gets most: a reward with a swapped sign pays what it does not recognise.
    """
    rights, wrongs = (
        means_by_form([score for score in trial.of(role) if score.probe.problem < PROBLEMS_IN_ALL_FORMS])
        for role in (Role.RIGHT, Role.WRONG)
    )
    distances = {form: abs(right - wrongs.get(form, right)) for form, right in rights.items()}
    return next((form for form, distance in distances.items() if distance >= max(distances.values()) - TOLERANCE), "")


def rivals(trial: RewardTrial, *roles: Role) -> list[Pair]:
    """(the right answer, a text of these roles) of the same problem, both scored; wrong answers in the same form."""
    form = best_form(trial)
    rights = {score.probe.problem: score for score in trial.of(Role.RIGHT) if score.probe.name == form}
    return [
        (rights[score.probe.problem], score)
        for score in trial.of(*roles)
        if score.probe.problem in rights and (score.probe.role is not Role.WRONG or score.probe.name == form)
    ]


def lead(right: ProbeScore, other: ProbeScore) -> float:
    """By how much the right answer is paid more; 0 for a difference that is rounding."""
    assert right.reward is not None
    assert other.reward is not None
    difference = right.reward - other.reward
    return 0.0 if abs(difference) <= TOLERANCE * max(1.0, abs(right.reward)) else difference


def reason_not_to_compare(trial: RewardTrial, pairs: Sequence[Pair]) -> Verdict | None:
    """Why right and wrong cannot be compared; None if they can."""
    if reads_no_answer(trial):
        return not_applicable("a reward of form alone does not read the answer")
    if not any(score.probe.role is Role.RIGHT for score in trial.scores) and not trial.stopped:
        return not_applicable("the task gives no answers")
    if not pairs:
        return not_enough_data("no right answer and its rival were both scored, or all answers drawn are alike")
    return None


def judge_order(
    trial: RewardTrial,
    pairs: Sequence[Pair],
    bad: Sequence[Pair],
    what: str,
    fine: str,
    confidence: Confidence = Confidence.PROVEN,
) -> Verdict:
    """A finding if some pairs are paid in the wrong order; at most harmful where most pairs are not."""
    if (excuse := reason_not_to_compare(trial, pairs)) is not None:
        return excuse
    if not bad:
        return healthy(fine)
    return finding(
        f"{what} in {len(bad)} of {len(pairs)} comparisons",
        confidence=confidence,
        severity=Severity.HARMFUL if len(bad) < MOST_COMPARISONS * len(pairs) else None,
        examples=tuple(dict.fromkeys(str(score) for pair in bad[:EXAMPLES] for score in pair)),
    )


def pays_as_much(trial: RewardTrial, role: Role, what: str) -> Verdict:
    """Whether texts of this role get as much as the right answer."""
    pairs = rivals(trial, role)
    least = min((lead(*pair) for pair in pairs), default=0.0)
    fine = f"the right answer gets at least {least:g} more than {role} ({len(pairs)} comparisons)"
    return judge_order(trial, pairs, [pair for pair in pairs if lead(*pair) <= 0], what, fine)


def judge_repeats(repeats: Mapping[str, Pairs], missing: str) -> Verdict:
    """Whether calls that were made twice gave the same rewards; the keys say what was called again, and how."""
    tried = {what: pairs for what, pairs in repeats.items() if pairs}
    if not tried:
        return not_enough_data(missing)
    different = {what: _different_pairs(pairs) for what, pairs in tried.items()}
    changed = [f"{len(different[what])} of {len(pairs)} {what}" for what, pairs in tried.items() if different[what]]
    if not changed:
        counts = " and ".join(f"{len(pairs)} {what}" for what, pairs in tried.items())
        return healthy(f"{counts} got the same reward again")
    examples = tuple(
        f"problem {first.probe.problem + 1}, {first.probe.role} {quote(first.probe.text)}: "
        f"{_number(first)}, then {_number(second)}"
        for first, second in chain(*different.values())
    )
    return finding(f"{' and '.join(changed)} get another reward", examples=examples[:EXAMPLES])


def _different_pairs(pairs: Pairs) -> list[Pair]:
    """Pairs that differ. A call that ran out of time says nothing: the machine may have been busy."""
    return [
        (first, second)
        for first, second in pairs
        if not (first.timed_out or second.timed_out) and not _is_same(first.reward, second.reward)
    ]


def _is_same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _number(score: ProbeScore) -> str:
    return "failed" if score.reward is None else f"{score.reward:g}"


def completion_rewards(trial: RewardTrial) -> list[float]:
    return [reward for group in trial.groups for reward in group if reward is not None]


def reward_groups(trial: RewardTrial) -> tuple[list[list[float]], str]:
    """Rewards by group: of the user's completions, else of the made-up answers to the problems tried in all forms."""
    if trial.groups:
        scored = [[reward for reward in group if reward is not None] for group in trial.groups]
        return [group for group in scored if len(group) > 1], "your completions"
    made_up = [
        [score.reward or 0.0 for score in scores]
        for problem, scores in by_problem(trial.of(*BASIC)).items()
        if problem < PROBLEMS_IN_ALL_FORMS and len(scores) > 1
    ]
    return made_up, "made-up answers"


def by_problem(scores: Sequence[ProbeScore]) -> dict[int, list[ProbeScore]]:
    found: dict[int, list[ProbeScore]] = defaultdict(list)
    for score in scores:
        found[score.probe.problem].append(score)
    return found
