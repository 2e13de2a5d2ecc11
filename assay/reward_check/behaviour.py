"""Checks of how a reward behaves: failures, repeatability, spread, speed. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict

from assay.reward_check.answers import ANSWERLESS, TOLERANCE
from assay.reward_check.probes import WRAPPED_PROBLEMS, Role
from assay.reward_check.types import Answer, Measured, Pairs, Verdict, example, healthy, not_enough_data
from assay.verdict import Confidence, Severity, State, shown

FATAL_FAILURES = (
    0.25  # share of right and wrong answers; a run stops by itself above reward.max_failed, by default this
)
LARGEST_REWARD = 1e4  # beyond it float32 loses the differences that advantages are made of
SMALLEST_STD = 0.02  # of a group: what is below is noise, and dividing by it makes +-1 of it
SATURATED = 0.95  # share of completions with the highest reward
LONGEST_STEP = 30.0  # seconds of scoring a step
LENGTH_EXPLAINS = 0.9  # correlation with length from which on small differences are a length penalty, not noise
_EXAMPLES = 4


def fails(measured: Measured) -> Verdict:
    """A text makes it raise, run out of time, or return no finite number.

    A text that cannot be scored leaves its group; a run of them is a run without learning, and the texts that break
    a reward are those that a policy in training produces: empty, endless, half a number.

    Return a finite number on every path, catch the one error that parsing raises, and bound the work: no eval of
    model text, capped lengths and exponents. A deadline that is shorter here than in training is named.
    """
    failed = [one for one in measured.answers if one.reward is None]
    if not measured.answers:
        return not_enough_data("nothing was scored")
    if not failed:
        return healthy(f"{len(measured.answers)} texts scored, hostile ones among them: no failure")
    kinds = Counter(_kind(one.error) for one in failed)
    counted = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    proper = [one for one in measured.answers if one.probe.role in (Role.RIGHT, Role.WRONG)] or measured.answers
    lost = sum(one.reward is None for one in proper)
    late = measured.deadline < measured.training_deadline and "timed out" in kinds
    note = (
        f" (the deadline here is {measured.deadline:g} s, in training {measured.training_deadline:g} s)" if late else ""
    )
    one_of_each = {one.error: one for one in reversed(failed)}
    return Verdict(
        State.FINDING,
        f"{len(failed)} of {len(measured.answers)} texts could not be scored: {counted}{note}",
        tuple(example(one) for one in list(one_of_each.values())[::-1][:_EXAMPLES]),
        Severity.FATAL if lost > FATAL_FAILURES * len(proper) else Severity.HARMFUL,
        fix=_cure(kinds),
    )


def is_constant(measured: Measured) -> Verdict:
    """All texts get the same reward.

    Without a difference within a group there is no advantage, and without advantage no gradient: the loss is 0 for
    ever.

    Look for an except that swallows errors into a constant, or a form of answer that is never matched.
    """
    rewards = measured.rewards()
    texts = {one.probe.text for one in measured.answers if one.reward is not None}
    roles = {one.probe.role for one in measured.answers if one.reward is not None}
    if len(texts) < 3 or len(roles) < 2:
        return not_enough_data("fewer than 3 different texts, right answers and others, were scored")
    given = [reward for group in measured.groups for reward in group if reward is not None]
    # a batch function may give a lone answer always the same
    batched = [later.reward for _, later in (*measured.turned, *measured.parallel) if later.reward is not None]
    if max(rewards + given + batched) - min(rewards + given + batched) > TOLERANCE:
        return healthy(f"rewards from {min(rewards):g} to {max(rewards):g} over {len(texts)} texts")
    if set(measured.functions) <= ANSWERLESS and rewards[0] == 0:
        return not_enough_data("a text of the form wanted: give completions with --completions FILE.jsonl")
    return Verdict(
        State.FINDING,
        f"{len(texts)} different texts all get {rewards[0]:g}",
        severity=Severity.FATAL,
        confidence=Confidence.PROVEN if measured.rewards(Role.RIGHT) else Confidence.LIKELY,
        fix="Look for an except that swallows errors into a constant, or a form of answer that is never matched.",
    )


def not_deterministic(measured: Measured) -> Verdict:
    """A second process, asked the same in the same order, gives other rewards.

    Noise in the reward is noise in the gradient: it must be averaged away by more rollouts, and no run can be
    repeated.

    Draw no random numbers, read no clock, iterate over no set. A judge that samples is reported too, as it should
    be: ask it at temperature 0, or more than once.
    """
    if not measured.fresh:
        return not_enough_data("no answer was scored in two processes")
    moved = _moved(measured.fresh)
    if not moved:
        return healthy(f"{len(measured.fresh)} answers scored alike in two processes")
    return _unsteady(
        moved,
        f"{len(moved)} of {len(measured.fresh)} answers get another reward in a second process",
        "Draw no random numbers, read no clock, iterate over no set: noise in the reward is noise in the gradient.",
    )


def remembers(measured: Measured) -> Verdict:
    """A repeated call, or another cut or order of the batch, changes a reward.

    The reward keeps state between calls, or compares the completions of a batch with each other. What a text gets
    then depends on the number of workers and on the order of answers, which differ from step to step.

    Keep no state between calls, and judge each completion alone: to compare a group is the advantage's work.
    """
    if not measured.again and not measured.turned:
        return not_enough_data("no answer was scored twice")
    later, turned = _moved(measured.again), _moved(measured.turned)
    if not later and not turned:
        return healthy(
            f"{len(measured.again)} repeated calls and {len(measured.turned)} answers as one reversed batch: no change"
        )
    seen = [f"{len(later)} of {len(measured.again)} repeated calls"] if later else []
    seen += [f"{len(turned)} of {len(measured.turned)} answers in one reversed batch"] if turned else []
    return _unsteady(
        later + turned,
        f"the reward depends on what else was scored: {' and '.join(seen)} get another reward",
        "Keep no state between calls, and judge each completion alone: group comparison is the advantage's work.",
    )


def unsafe_in_parallel(measured: Measured) -> Verdict:
    """Several processes at once change a reward.

    Training scores with reward.workers processes. A file, port or counter that they share mixes the answers of one
    with those of another.

    Share nothing between processes (a temporary file of its own for each call), or set reward.workers = 1.
    """
    if not measured.parallel:
        return not_enough_data("no answer was scored by several processes")
    moved = _moved(measured.parallel)
    if not moved:
        return healthy(f"{len(measured.parallel)} answers scored alike by several processes at once")
    return _unsteady(
        moved,
        f"{len(moved)} of {len(measured.parallel)} answers get another reward when several processes score at once",
        "Share no file, port or counter between processes, or set reward.workers = 1.",
    )


def too_large(measured: Measured) -> Verdict:
    """A reward is beyond 10,000.

    One such answer drowns its whole group, and float32 loses the differences of the others, which advantages are
    made of.

    Scale or cap the reward, for instance to 0..1.
    """
    scored = [one for one in measured.answers if one.reward is not None]
    if not scored:
        return not_enough_data("nothing was scored")
    largest = max(scored, key=lambda one: abs(one.reward or 0.0))
    if abs(largest.reward or 0.0) <= LARGEST_REWARD:
        return healthy(f"rewards stay within {abs(largest.reward or 0.0):g}")
    return Verdict(
        State.FINDING,
        f"a reward of {largest.reward:g} is beyond {LARGEST_REWARD:g}",
        (example(largest),),
        Severity.HARMFUL,
        fix="Scale or cap the reward, for instance to 0..1: one such answer drowns its whole group.",
    )


def zero_signal(measured: Measured) -> Verdict:
    """Most groups have no variance.

    A group whose rewards are all equal has advantage 0 and trains nothing; its rollouts are paid for and thrown
    away.

    Choose problems that the model solves sometimes, grade partial answers, or refill (rollout.zero_variance).
    Groups that all have the highest reward are a solved task, and then the finding is only possible.
    """
    groups, source = _groups(measured)
    if not groups:
        return not_enough_data("no group with two scored answers")
    flat = [group for group in groups if max(group) - min(group) <= TOLERANCE]
    if len(flat) <= 0.5 * len(groups):
        return healthy(f"{len(flat)} of {len(groups)} groups of {source} have no variance")
    top = max(reward for group in groups for reward in group)
    solved = bool(measured.groups) and all(group[0] >= top - TOLERANCE for group in flat)
    every = len(flat) == len(groups)
    return Verdict(
        State.FINDING,
        f"{len(flat)} of {len(groups)} groups of {source} have no variance: they train nothing",
        tuple(f"all {len(group)} rewards are {group[0]:g}" for group in flat[:1]),
        (Severity.HARMFUL if every else Severity.WASTEFUL) if measured.groups else Severity.FATAL,
        Confidence.POSSIBLE if solved else Confidence.LIKELY if measured.groups else Confidence.PROVEN,
        "Choose problems that the model solves sometimes, grade partial answers, or refill (rollout.zero_variance).",
    )


def degenerate_std(measured: Measured) -> Verdict:
    """A group's rewards differ by a std so small that dividing by it makes advantages of noise.

    Differences of 0.01 become advantages of 1: a hair's breadth of format or length counts as much as being right,
    in every group that holds no right answer.

    Round the reward to what matters, or set advantage.std = none. A price for length, which explains the
    differences, is not blamed.
    """
    groups, source = _groups(measured)
    if not groups:
        return not_enough_data("no group with two scored answers")
    stds = [statistics.stdev(group) for group in groups]
    tiny = [std for std in stds if TOLERANCE < std < SMALLEST_STD]
    fix = "Round the reward to what matters, or set advantage.std = none: noise this small becomes advantages of +-1."
    if len(tiny) > 0.1 * len(groups):
        return Verdict(
            State.FINDING,
            f"{len(tiny)} of {len(groups)} groups of {source} have a std between 0 and {SMALLEST_STD:g}",
            (f"smallest std {min(tiny):.2g}",),
            Severity.HARMFUL,
            Confidence.LIKELY if measured.groups else Confidence.PROVEN,
            fix,
        )
    losers = _rewards_by_problem(measured, Role.WRONG, Role.EMPTY, Role.NONSENSE)
    for problem, answers in losers.items():
        rewards = [one.reward or 0.0 for one in answers]
        spread = max(rewards) - min(rewards)
        if len(rewards) < 3 or not TOLERANCE < spread < SMALLEST_STD:
            continue
        lengths = [len(one.probe.text) for one in answers]
        if max(lengths) > min(lengths) and abs(statistics.correlation(lengths, rewards)) >= LENGTH_EXPLAINS:
            continue
        return Verdict(
            State.FINDING,
            f"answers that are all wrong get rewards that differ, by {spread:.2g} only",
            tuple(example(one) for one in answers[:_EXAMPLES]),
            Severity.HARMFUL,
            Confidence.POSSIBLE,
            f"In a group without a right answer, as in problem {problem + 1}, this is all there is to learn. {fix}",
        )
    return healthy(f"{len(tiny)} of {len(groups)} groups of {source} have a std between 0 and {SMALLEST_STD:g}")


def saturated(measured: Measured) -> Verdict:
    """95 % of your completions get the highest reward.

    If the model has not solved the task, the reward is too easy; if it has, few groups are left that train
    anything.

    Look at some of the texts. Then make the reward stricter, or take harder problems.
    """
    given = [reward for group in measured.groups for reward in group if reward is not None]
    if not given:
        return not_enough_data("completions of your model: give them with --completions FILE.jsonl")
    top = max(given)
    share = sum(reward >= top - TOLERANCE for reward in given) / len(given)
    if share < SATURATED:
        return healthy(f"{share:.0%} of {len(given)} completions get the highest reward {top:g}")
    return Verdict(
        State.FINDING,
        f"{share:.0%} of {len(given)} completions get the highest reward {top:g}",
        severity=Severity.WASTEFUL,
        confidence=Confidence.POSSIBLE,
        fix="If the model has not solved the task, the reward is too easy; if it has, take harder problems.",
    )


def is_slow(measured: Measured) -> Verdict:
    """Scoring one step takes more than 30 s.

    Every step waits for its rewards: rollout.prompts x rollout.group_size answers, reward.workers at a time.

    Make it faster (compile patterns once, cache the parsed answer), or raise reward.workers if there are as many
    cores.
    """
    times = sorted(one.seconds for one in measured.answers if one.seconds is not None and one.reward is not None)
    if not times:
        return not_enough_data("no call was timed")
    a_step = statistics.fmean(times) * measured.rollouts_a_step / measured.side_by_side
    percentile = times[min(len(times) - 1, math.ceil(0.95 * len(times)) - 1)]
    numbers = (
        f"a call takes {statistics.median(times):.2g} s (median), {percentile:.2g} s (p95), {times[-1]:.2g} s (most);"
        f" {measured.rollouts_a_step} answers a step, {measured.side_by_side} at a time: {a_step:.3g} s a step"
    )
    if a_step <= LONGEST_STEP:
        return healthy(numbers)
    enough = math.ceil(measured.side_by_side * a_step / LONGEST_STEP)
    return Verdict(
        State.FINDING,
        f"scoring one step would take {a_step:.0f} s",
        (numbers,),
        Severity.WASTEFUL,
        fix=f"Make it faster, or set reward.workers = {enough} if there are as many cores.",
    )


def _kind(error: str) -> str:
    for words, kind in (("took longer than", "timed out"), ("raised ", "raised"), ("returned ", "returned no number")):
        if words in error:
            return kind
    return "failed"


def _cure(kinds: Counter[str]) -> str:
    cures = {
        "timed out": "bound the work (never eval model text; cap lengths and exponents)",
        "raised": "return 0.0 for a text that does not parse, and catch the one error that parsing raises",
        "returned no number": "return a finite number on every path",
        "failed": "look at the reason above",
    }
    sentence = "; ".join(cures[kind] for kind in sorted(kinds))
    return f"{sentence[0].upper()}{sentence[1:]}."


def _moved(pairs: Pairs) -> list[tuple[Answer, Answer]]:
    """Pairs that differ. A call that ran out of time says nothing: the machine may have been busy."""
    return [
        (first, second)
        for first, second in pairs
        if "timed out" not in (_kind(first.error), _kind(second.error)) and not _same(first.reward, second.reward)
    ]


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _unsteady(moved: list[tuple[Answer, Answer]], headline: str, fix: str) -> Verdict:
    evidence = tuple(
        f"problem {first.probe.problem + 1}, {first.probe.role} {shown(first.probe.text)}: "
        f"{_number(first)}, then {_number(second)}"
        for first, second in moved[:_EXAMPLES]
    )
    return Verdict(State.FINDING, headline, evidence, Severity.HARMFUL, fix=fix)


def _number(answer: Answer) -> str:
    return "failed" if answer.reward is None else f"{answer.reward:g}"


def _rewards_by_problem(measured: Measured, *roles: Role) -> dict[int, list[Answer]]:
    by_problem: dict[int, list[Answer]] = defaultdict(list)
    for one in measured.answers:
        if one.probe.role in roles and one.reward is not None:
            by_problem[one.probe.problem].append(one)
    return by_problem


def _groups(measured: Measured) -> tuple[list[list[float]], str]:
    """Rewards by group: of the completions given, else of the answers made up for the problems with all forms."""
    if measured.groups:
        given = [[reward for reward in group if reward is not None] for group in measured.groups]
        return [group for group in given if len(group) > 1], "your completions"
    roles = (Role.RIGHT, Role.WRONG, Role.EMPTY, Role.NONSENSE)
    made = [group for problem, group in _rewards_by_problem(measured, *roles).items() if problem < WRAPPED_PROBLEMS]
    return [[one.reward or 0.0 for one in group] for group in made if len(group) > 1], "made-up answers"
