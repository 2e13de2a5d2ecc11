"""Checks of what a reward pays for: the right answer above a wrong one, and above no answer at all. Pure functions.

Right and wrong are compared in the same form: the one in which they differ most. A reward that wants tags is
not blamed for what it makes of a bare answer.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from assay.reward_check.probes import FORMS, WRAPPED_PROBLEMS, Role
from assay.reward_check.types import Answer, Measured, Verdict, example, healthy, not_applicable, not_enough_data
from assay.verdict import Confidence, Severity, State

ANSWERLESS = {"format"}  # built-in rewards that do not read the answer, and are not meant to
TOLERANCE = 1e-9  # two rewards closer than this are equal: a sum of weights may round
MOST = 0.5  # a share of problems from which on a fault is no accident of one problem
BIAS_CORRELATION = 0.8  # of reward and log length, over wrong answers that differ in length alone
BIAS_SHARE = 0.05  # of the distance between right and wrong: less than this does not steer a policy
_EXAMPLES = 4


def best_form(measured: Measured) -> str:
    """The form in which right and wrong answers differ most, the plainest of equals; "" if no right one was scored.

    Not the one in which the right answer gets most: a reward with a swapped sign pays what it does not recognise.
    """
    tried = replace(measured, answers=tuple(one for one in measured.answers if one.probe.problem < WRAPPED_PROBLEMS))
    rights, wrongs = _means(tried, Role.RIGHT), _means(tried, Role.WRONG)
    distances = {form: abs(rights[form] - wrongs.get(form, rights[form])) for form in FORMS if form in rights}
    return next((form for form, distance in distances.items() if distance >= max(distances.values()) - TOLERANCE), "")


def rivals(measured: Measured, *roles: Role) -> list[tuple[Answer, Answer]]:
    """(the right answer, a text of these roles) of the same problem, both scored; wrong answers in the same form."""
    form = best_form(measured)
    rights = {
        one.probe.problem: one
        for one in measured.answers
        if one.probe.role is Role.RIGHT and one.probe.name == form and one.reward is not None
    }
    return [
        (rights[one.probe.problem], one)
        for one in measured.answers
        if one.probe.role in roles
        and one.reward is not None
        and one.probe.problem in rights
        and (one.probe.role is not Role.WRONG or one.probe.name == form)
    ]


def lead(right: Answer, other: Answer) -> float:
    """By how much the right answer is paid more; 0 for a difference that is rounding."""
    assert right.reward is not None
    assert other.reward is not None
    difference = right.reward - other.reward
    return 0.0 if abs(difference) <= TOLERANCE * max(1.0, abs(right.reward)) else difference


def unrecognised(measured: Measured) -> Verdict:
    """The right answer gets what nothing gets, in every form.

    What a wrong answer, nonsense and nothing get, the right one gets too, although other problems pay more or that
    is 0. Nothing can be learned from such a problem.

    Look at how the answer is read out of the text, and at the task's own answers: a unit, a thousands separator or
    a space may stand in them. It is wrong where the prompt asks for a form that is not among those tried.
    """
    pairs = rivals(measured, Role.WRONG, Role.EMPTY, Role.NONSENSE)
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    rights = {right.probe.problem: right for right, _ in pairs}
    best = max(right.reward or 0.0 for right in rights.values())
    leads: dict[int, list[float]] = defaultdict(list)
    for right, other in pairs:
        leads[right.probe.problem].append(lead(right, other))
    bad = [
        (right, right)
        for problem, right in rights.items()
        if not any(leads[problem]) and ((right.reward or 0.0) < best - TOLERANCE or (right.reward or 0.0) <= 0)
    ]
    if not bad:
        return healthy(f"the right answer is recognised on {len(rights)} of {len(rights)} problems")
    forms = ", ".join(sorted({one.probe.name for one in measured.answers if one.probe.role is Role.RIGHT}))
    return _fault(
        bad,
        [(right, right) for right in rights.values()],
        f"the right answer is not recognised in any of these forms ({forms})",
        "Look at how the answer is read, and at the task's own answers: what cannot be right cannot be learned.",
    )


def wrong_beats_right(measured: Measured) -> Verdict:
    """A wrong answer gets more than the right one.

    The policy learns what is paid: here it learns to be wrong, while the reward rises as it should.

    Look for a swapped sign or comparison, or a distance that is paid and not its opposite. Right and wrong are
    compared in the form in which the reward tells them apart best, so a reward that wants tags is not blamed.
    """
    pairs = rivals(measured, Role.WRONG)
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    bad = [pair for pair in pairs if lead(*pair) < 0]
    if not bad:
        scores = (f"right answer {form}: {mean:g} on average" for form, mean in _means(measured, Role.RIGHT).items())
        return healthy(f"no wrong answer of {len(pairs)} gets more than the right one, {best_form(measured)}", *scores)
    return _fault(
        bad,
        pairs,
        "a wrong answer gets more than the right one",
        "Look for a swapped sign or comparison: the right answer must get the highest reward.",
    )


def answer_blind(measured: Measured) -> Verdict:
    """A wrong answer gets exactly as much as the right one.

    The reward reads the form, the length or the mere presence of a number, and never `answer`. The curve rises
    until all texts have that form, and the task is not learned.

    Compare the completion with `answer`, and make sure that the form your prompt asks for is recognised. A reward
    of form alone is meant so if it stands beside one that reads the answer.
    """
    pairs = rivals(measured, Role.WRONG)
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    bad = [pair for pair in pairs if lead(*pair) == 0]
    if not bad:
        return healthy(f"right and wrong answers are told apart on {len(pairs)} of {len(pairs)} problems")
    return _fault(
        bad,
        pairs,
        "a wrong answer gets exactly as much as the right one",
        "Compare the completion with `answer`, and make sure that the form your prompt asks for is recognised.",
        confidence=Confidence.LIKELY if len(bad) < MOST * len(pairs) else Confidence.PROVEN,
    )


def pays_nonsense(measured: Measured) -> Verdict:
    """Nonsense gets as much as the right answer.

    The shortest way to full marks is then a text that holds no answer, and a policy that explores finds it.

    Give 0 to a text from which no answer can be read.
    """
    return _pays(
        measured, Role.NONSENSE, "nonsense gets as much as the right answer", "Give 0 to a text that holds no answer."
    )


def pays_empty(measured: Measured) -> Verdict:
    """The empty answer gets as much as the right one.

    A policy learns to end at once: the empty text is the easiest of all to produce.

    Give 0 to an empty completion, before anything is compared: an empty string is contained in every other.
    """
    return _pays(
        measured, Role.EMPTY, "the empty answer gets as much as the right one", "Give 0 to an empty completion."
    )


def pays_substring(measured: Measured) -> Verdict:
    """A list of answers, or the answer with a character more, gets as much as the right answer.

    `answer in completion` pays a text that lists many answers, and 125 where 12 is right. A policy learns to list
    them all.

    Extract one answer (the last number, what stands in the tags) and compare it whole. A small price for length
    beside the answer is not taken for a difference.
    """
    pairs = rivals(measured, Role.LISTED, Role.EXTENDED)
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    leads = [ahead for pair in rivals(measured, Role.WRONG) if (ahead := lead(*pair)) > 0]
    if not leads:
        return not_applicable("the right answer gets no more than a wrong one in the first place")
    # a small price for length beside it does not make a text that contains the answer a wrong one
    bad = [pair for pair in pairs if lead(*pair) <= BIAS_SHARE * statistics.median(leads)]
    if not bad:
        return healthy(f"the right answer gets more than {len(pairs)} texts that merely contain it")
    return _fault(
        bad,
        pairs,
        "a text that merely contains the right answer gets as much as the right answer",
        "Extract one answer (the last number, the tags) and compare it whole: a policy learns to list all answers.",
        severity=Severity.HARMFUL,
    )


def pays_shortcut(measured: Measured) -> Verdict:
    """A text that took no solving gets full marks.

    A guess, the question repeated, the right characters in another order, or a wrong answer in a form that is
    itself paid: each is easier to produce than the answer, and will be produced.

    Compare what stands in the answer's place, whole and in order; pay a form a small share of the reward, never
    all.
    """
    pairs = [*rivals(measured, Role.SHORTCUT), *_wrong_in_other_forms(measured)]
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    bad = [pair for pair in pairs if lead(*pair) <= 0]
    if not bad:
        return healthy(f"the right answer gets more than {len(pairs)} texts that took no solving")
    return _fault(
        bad,
        pairs,
        "a text that took no solving gets full marks",
        "Compare what stands in the answer's place, whole and in order; pay a form a small share, never all.",
        severity=Severity.HARMFUL,
    )


def _wrong_in_other_forms(measured: Measured) -> list[tuple[Answer, Answer]]:
    """(the right answer at its best, a wrong one in a form in which it gets no less than the right one does)."""
    form = best_form(measured)
    rights = {(one.probe.problem, one.probe.name): one for one in measured.answers if one.probe.role is Role.RIGHT}
    pairs = []
    for one in measured.answers:
        best, same = (rights.get((one.probe.problem, name)) for name in (form, one.probe.name))
        if one.probe.role is not Role.WRONG or one.probe.name == form or best is None or same is None:
            continue
        if None not in (one.reward, best.reward, same.reward) and lead(same, one) <= 0:
            pairs.append((best, one))
    return pairs


def ignores_question(measured: Measured) -> Verdict:
    """A text gets the same under every question.

    The same texts are scored under different problems, with the answers of those. If no reward ever moves, one text
    can answer everything, and a policy will say it to every question.

    Read `prompt` or `answer`. A reward of style or length is meant so, therefore the finding is only possible.
    """
    if set(measured.functions) <= ANSWERLESS:
        return not_applicable("a reward of form alone is the same under every question")
    by_text: dict[str, dict[int, float]] = defaultdict(dict)
    for one in measured.answers:
        if one.reward is not None and one.probe.role in (Role.RIGHT, Role.WRONG, Role.EMPTY, Role.NONSENSE):
            by_text[one.probe.text][one.probe.problem] = one.reward
    several = {text: list(rewards.values()) for text, rewards in by_text.items() if len(rewards) > 1}
    answers = [
        text
        for text in several
        if any(one.probe.role is Role.RIGHT and one.probe.text == text for one in measured.answers)
    ]
    if not answers:
        return not_enough_data("no answer was scored under two problems: draw more with --samples")
    moved = sum(max(rewards) - min(rewards) > TOLERANCE for rewards in several.values())
    if moved:
        return healthy(f"{moved} of {len(several)} texts are paid differently under another question")
    return Verdict(
        State.FINDING,
        f"{len(several)} texts get the same reward under every question they were tried on",
        severity=Severity.HARMFUL,
        confidence=Confidence.POSSIBLE,
        fix="Fine for a reward of style or length; else read `prompt` or `answer`: now one text can answer everything.",
    )


def length_bias(measured: Measured) -> Verdict:
    """Among wrong answers the longer get more.

    Wrong answers after ever more talk are scored. If length alone is paid, answers grow until the token limit, and
    where a long wrong answer reaches the right one there is no reason left to be right.

    Cap what grows with length below the distance between right and wrong, or drop it, unless long answers are
    wanted.
    """
    by_problem: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for one in measured.answers:
        if one.probe.role is Role.LONG and one.reward is not None:
            by_problem[one.probe.problem].append((len(one.probe.text), one.reward))
    ladders = [ladder for ladder in by_problem.values() if len(ladder) >= 3]
    if not ladders:
        return not_enough_data("no wrong answers of several lengths were scored")
    leads = [lead(*pair) for pair in rivals(measured, Role.WRONG)]
    scale = max((abs(one) for one in leads), default=1.0) or 1.0
    steps = []
    for ladder in ladders:
        rewards = [reward for _, reward in ladder]
        spread = max(rewards) - min(rewards)
        if spread <= BIAS_SHARE * scale:
            steps.append((0.0, spread))
        else:
            steps.append((statistics.correlation([math.log(length) for length, _ in ladder], rewards), spread))
    correlation, spread = max(steps)
    numbers = f"correlation of reward with log length {correlation:+.2f}, rewards differ by {spread:g}"
    ahead = [pair for pair in rivals(measured, Role.LONG) if lead(*pair) <= 0]
    if ahead and correlation >= BIAS_CORRELATION and any(lead(*pair) > 0 for pair in rivals(measured, Role.WRONG)):
        return _fault(
            ahead,
            ahead,
            f"a wrong answer need only be long to get as much as the right one ({numbers})",
            "Cap what grows with length below the distance between right and wrong.",
        )
    if correlation < BIAS_CORRELATION:
        return healthy(f"longer wrong answers are not paid more ({numbers})")
    return Verdict(
        State.FINDING,
        f"among wrong answers the longer ones get more ({numbers})",
        severity=Severity.HARMFUL,
        confidence=Confidence.POSSIBLE,
        fix="Cap or drop what grows with length, unless longer answers are what you want.",
    )


def _pays(measured: Measured, role: Role, what: str, fix: str) -> Verdict:
    pairs = rivals(measured, role)
    if (excuse := _excuse(measured, pairs)) is not None:
        return excuse
    bad = [pair for pair in pairs if lead(*pair) <= 0]
    if not bad:
        least = min(lead(*pair) for pair in pairs)
        return healthy(f"the right answer gets at least {least:g} more than {role} ({len(pairs)} comparisons)")
    return _fault(bad, pairs, what, fix)


def _excuse(measured: Measured, pairs: Iterable[object]) -> Verdict | None:
    """Why right and wrong cannot be compared; None if they can."""
    if set(measured.functions) <= ANSWERLESS:
        return not_applicable("a reward of form alone does not read the answer")
    if not any(one.probe.role is Role.RIGHT for one in measured.answers) and not measured.stopped:
        return not_applicable("the task gives no answers")
    if not pairs:
        return not_enough_data("no right answer and its rival were both scored, or all answers drawn are alike")
    return None


def _fault(
    bad: list[tuple[Answer, Answer]],
    pairs: list[tuple[Answer, Answer]],
    what: str,
    fix: str,
    severity: Severity = Severity.FATAL,
    confidence: Confidence = Confidence.PROVEN,
) -> Verdict:
    if len(bad) < MOST * len(pairs):
        severity = Severity.HARMFUL
    evidence = dict.fromkeys(example(one) for pair in bad[:_EXAMPLES] for one in pair)
    return Verdict(
        State.FINDING, f"{what} in {len(bad)} of {len(pairs)} comparisons", tuple(evidence), severity, confidence, fix
    )


def _means(measured: Measured, role: Role) -> dict[str, float]:
    """Mean reward of these answers, by form."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for one in measured.answers:
        if one.probe.role is role and one.reward is not None:
            rewards[one.probe.name].append(one.reward)
    return {form: statistics.fmean(values) for form, values in rewards.items()}
