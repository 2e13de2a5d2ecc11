"""The checks of a reward on hand-made numbers: no process, no reward, each number worked out beside it."""

import json
from dataclasses import replace

import pytest

from assay.reward_check import CHECKS, answers, behaviour, causes, judge
from assay.reward_check.probes import FORMS, HOSTILE, Probe, Role, decode, is_ordinary, probes_of
from assay.reward_check.probes import asked as ask
from assay.reward_check.report import as_json, as_text
from assay.reward_check.types import Answer, Check, Confidence, Measured, Report, Severity, State, Verdict
from assay.types import Problem

SUMS = [Problem("a", "1+1=", "2"), Problem("b", "5-9=", "-4"), Problem("c", "4+4=", "8")]


def got(role, reward, *, problem=0, form="plain", text="", error="", seconds=None):
    return Answer(Probe(role, form, problem, text or f"{role} {form} {problem}"), reward, error, seconds)


def four(right, wrong, empty, nonsense, problem=0):
    return [
        got(Role.RIGHT, right, problem=problem),
        got(Role.WRONG, wrong, problem=problem),
        got(Role.EMPTY, empty, problem=problem, text=" "),
        got(Role.NONSENSE, nonsense, problem=problem, form="a word", text="banana"),
    ]


def measured(*found, **more):
    return Measured(("mine",), tuple(found), **more)


SOUND = measured(*four(1.0, 0.0, 0.0, 0.0), *four(1.0, 0.2, 0.0, 0.0, problem=1))


def test_a_sound_order_is_healthy():
    checks = (answers.wrong_beats_right, answers.answer_blind, answers.pays_nonsense, answers.pays_empty)
    assert [check(SOUND).state for check in (*checks, answers.unrecognised)] == [State.HEALTHY] * 5


def test_a_healthy_order_shows_what_the_right_answer_gets_in_each_form():
    found = measured(*SOUND.answers, got(Role.RIGHT, 0.5, form="boxed"))
    assert answers.wrong_beats_right(found).evidence == (
        "right answer plain: 1 on average",
        "right answer boxed: 0.5 on average",
    )


@pytest.mark.parametrize(
    ("rewards", "check"),
    [
        ((0.0, 1.0, 0.0, 0.0), answers.wrong_beats_right),
        ((1.0, 1.0, 0.0, 0.0), answers.answer_blind),
        ((1.0, 0.0, 1.0, 0.0), answers.pays_empty),
        ((1.0, 0.0, 0.0, 1.5), answers.pays_nonsense),
        ((0.0, 0.0, 0.0, 0.0), answers.unrecognised),
    ],
)
def test_one_broken_order_is_one_fatal_finding(rewards, check):
    verdict = check(measured(*four(*rewards)))
    assert (verdict.state, verdict.severity, verdict.fails) == (State.FINDING, Severity.FATAL, True)
    assert "1 of 1" in verdict.headline
    assert verdict.evidence


def test_one_problem_of_three_is_harmful_not_fatal():
    found = measured(*four(1, 0, 0, 1), *four(1, 0, 0, 0, problem=1), *four(1, 0, 0, 0, problem=2))
    assert answers.pays_nonsense(found).severity is Severity.HARMFUL


def test_a_tie_of_right_and_wrong_is_told_from_a_defeat():
    tie, defeat = measured(*four(0.5, 0.5, 0, 0)), measured(*four(0.5, 0.6, 0, 0))
    assert answers.wrong_beats_right(tie).state is State.HEALTHY
    assert answers.answer_blind(defeat).state is State.HEALTHY


def test_right_and_wrong_are_compared_in_the_form_that_tells_them_apart():
    tags = [
        got(Role.RIGHT, 1.0, form="in answer tags"),
        got(Role.WRONG, 0.0, form="in answer tags"),
    ]
    wants_tags = measured(*four(0.0, 0.0, 0.0, 0.0), *tags)
    assert answers.best_form(wants_tags) == "in answer tags"
    assert answers.answer_blind(wants_tags).state is State.HEALTHY
    assert answers.pays_nonsense(wants_tags).state is State.HEALTHY


def test_rounding_is_no_lead():
    assert answers.lead(got(Role.RIGHT, 0.1 + 0.2), got(Role.WRONG, 0.3)) == 0.0
    assert answers.lead(got(Role.RIGHT, 0.31), got(Role.WRONG, 0.3)) == pytest.approx(0.01)


def test_a_right_answer_that_gets_less_than_others_and_no_more_than_nothing_is_unrecognised():
    verdict = answers.unrecognised(measured(*four(0.1, 0.1, 0.1, 0.1), *four(1.0, 0.1, 0.1, 0.1, problem=1)))
    assert verdict.state is State.FINDING
    assert "in any of these forms (plain) in 1 of 2" in verdict.headline
    always_paid = measured(*four(1, 1, 1, 1), *four(1, 1, 1, 1, problem=1))
    assert answers.unrecognised(always_paid).state is State.HEALTHY


def test_a_list_that_holds_the_right_answer_must_get_less():
    listed = got(Role.LISTED, 1.0)
    assert answers.pays_substring(measured(*SOUND.answers, listed)).severity is Severity.HARMFUL
    assert answers.pays_substring(measured(*SOUND.answers, replace(listed, reward=0.9))).state is State.HEALTHY
    assert answers.pays_substring(measured(*four(1, 1, 0, 0), listed)).state is State.NOT_APPLICABLE


def test_a_reward_of_form_alone_is_not_asked_for_answers():
    found = replace(SOUND, functions=("format",))
    for check in (answers.answer_blind, answers.pays_empty, answers.ignores_question):
        assert check(found).state is State.NOT_APPLICABLE
    assert answers.answer_blind(replace(found, functions=("format", "mine"))).state is State.HEALTHY


def test_without_answers_nothing_is_compared_and_without_scores_that_is_said():
    assert answers.pays_empty(measured(got(Role.EMPTY, 0.0))).state is State.NOT_APPLICABLE
    assert answers.pays_empty(measured(got(Role.RIGHT, None, error="raised"))).state is State.NOT_ENOUGH_DATA


def test_a_text_that_is_paid_the_same_under_every_question_is_possible_trouble():
    same = [got(Role.RIGHT, 0.7, text="12"), got(Role.WRONG, 0.7, problem=1, text="12")]
    verdict = answers.ignores_question(measured(*same))
    assert (verdict.state, verdict.confidence, verdict.fails) == (State.FINDING, Confidence.POSSIBLE, False)
    differs = [same[0], replace(same[1], reward=0.0)]
    assert answers.ignores_question(measured(*differs)).state is State.HEALTHY
    assert answers.ignores_question(measured(same[0])).state is State.NOT_ENOUGH_DATA


def test_length_alone_must_not_pay():
    def ladder(*rewards, others=SOUND.answers):
        steps = [got(Role.LONG, reward, text="x" * 10**n) for n, reward in enumerate(rewards, start=1)]
        return answers.length_bias(measured(*others, *steps))

    # log lengths 1, 2, 3 and rewards in proportion: the correlation is 1
    assert (ladder(0.1, 0.2, 0.3).state, ladder(0.1, 0.2, 0.3).confidence) == (State.FINDING, Confidence.POSSIBLE)
    assert (ladder(0.1, 0.6, 1.1).severity, ladder(0.1, 0.6, 1.1).fails) == (Severity.FATAL, True)  # right gets 1.0
    blind = ladder(0.1, 0.6, 1.1, others=four(1.0, 1.0, 0.0, 0.0))  # of another cause, which has its own finding
    assert blind.confidence is Confidence.POSSIBLE
    assert ladder(0.3, 0.2, 0.1).state is State.HEALTHY  # a length penalty
    assert ladder(0.0, 0.02, 0.04).state is State.HEALTHY  # 0.04 of the 1.0 between right and wrong
    assert ladder(0.1, 0.2).state is State.NOT_ENOUGH_DATA


def test_failures_are_counted_by_kind_and_fatal_when_answers_fail():
    junk = got(Role.HOSTILE, None, error="returned None")
    slow = got(Role.HOSTILE, None, error="mine: took longer than 2 s")
    harmful = behaviour.fails(measured(*SOUND.answers, junk, slow, training_deadline=10.0))
    assert harmful.headline == (
        "2 of 10 texts could not be scored: 1 returned no number, 1 timed out "
        "(the deadline here is 2 s, in training 10 s)"
    )
    assert harmful.severity is Severity.HARMFUL
    quarter = behaviour.fails(measured(*SOUND.answers[:-1], got(Role.RIGHT, None, error="raised KeyError: 'x'")))
    assert quarter.severity is Severity.HARMFUL  # 1 of 5 right and wrong answers is not above a quarter
    fatal = behaviour.fails(measured(got(Role.RIGHT, None, error="raised KeyError: 'x'"), got(Role.WRONG, 0.0)))
    assert fatal.severity is Severity.FATAL
    assert behaviour.fails(SOUND).state is State.HEALTHY


def test_one_value_for_all_is_constant_and_two_are_not():
    flat = measured(*four(0.3, 0.3, 0.3, 0.3))
    assert behaviour.is_constant(flat).severity is Severity.FATAL
    assert behaviour.is_constant(SOUND).state is State.HEALTHY
    assert behaviour.is_constant(replace(flat, groups=((0.3, 0.4),))).state is State.HEALTHY
    in_a_batch = ((flat.answers[0], replace(flat.answers[0], reward=0.4)),)
    assert behaviour.is_constant(replace(flat, turned=in_a_batch)).state is State.HEALTHY
    rights_alone = measured(*(got(Role.RIGHT, 1.0, problem=number) for number in range(5)))
    assert behaviour.is_constant(rights_alone).state is State.NOT_ENOUGH_DATA
    never_matched = replace(measured(*four(0, 0, 0, 0)), functions=("format",))
    assert behaviour.is_constant(never_matched).state is State.NOT_ENOUGH_DATA


def test_an_answer_scored_twice_must_get_the_same():
    first = got(Role.RIGHT, 1.0)
    for field, check in [
        ("fresh", behaviour.not_deterministic),
        ("again", behaviour.remembers),
        ("turned", behaviour.remembers),
        ("parallel", behaviour.unsafe_in_parallel),
    ]:
        moved, same, failed, late = (
            check(replace(SOUND, **{field: ((first, second),)})).state
            for second in (
                replace(first, reward=0.5),
                replace(first, reward=1.0 + 1e-12),
                replace(first, reward=None, error="raised ValueError"),
                replace(first, reward=None, error="took longer than 2 s"),
            )
        )
        assert (moved, same, failed, late) == (State.FINDING, State.HEALTHY, State.FINDING, State.HEALTHY), field
        assert check(SOUND).state is State.NOT_ENOUGH_DATA


def test_a_reward_beyond_the_limit_is_too_large_on_both_sides():
    assert behaviour.too_large(measured(got(Role.RIGHT, -10_001.0))).state is State.FINDING
    assert behaviour.too_large(measured(got(Role.RIGHT, 10_000.0))).state is State.HEALTHY


def test_groups_without_variance_are_counted():
    wasteful = behaviour.zero_signal(replace(SOUND, groups=((0, 0), (0, 0), (0, 1))))
    assert wasteful.headline.startswith("2 of 3 groups of your completions")
    assert (wasteful.severity, wasteful.confidence) == (Severity.WASTEFUL, Confidence.LIKELY)
    assert behaviour.zero_signal(replace(SOUND, groups=((0, 0), (0, 1)))).state is State.HEALTHY
    solved = behaviour.zero_signal(replace(SOUND, groups=((1, 1), (1, 1), (1, None, 1))))
    assert (solved.confidence, solved.fails) == (Confidence.POSSIBLE, False)
    assert behaviour.zero_signal(measured(*four(1, 1, 1, 1))).severity is Severity.FATAL
    assert behaviour.zero_signal(measured(got(Role.RIGHT, 1.0))).state is State.NOT_ENOUGH_DATA


def test_a_std_just_above_zero_is_harmful():
    # rewards 0 and 0.02: the sample std is 0.02 / sqrt(2) = 0.0141; 0 and 0.03 give 0.0212
    verdict = behaviour.degenerate_std(replace(SOUND, groups=((0.0, 0.02),)))
    assert (verdict.state, verdict.evidence) == (State.FINDING, ("smallest std 0.014",))
    assert behaviour.degenerate_std(replace(SOUND, groups=((0.0, 0.03),))).state is State.HEALTHY
    assert behaviour.degenerate_std(replace(SOUND, groups=((0.5, 0.5),))).state is State.HEALTHY


def test_hair_splitting_among_wrong_answers_is_possible_trouble_unless_length_explains_it():
    verdict = behaviour.degenerate_std(measured(*four(1.0, 0.0, 0.01, 0.0)))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.POSSIBLE)
    assert behaviour.degenerate_std(measured(*four(1.0, 0.0, 0.03, 0.0))).state is State.HEALTHY
    by_length = [got(Role.WRONG, -0.001 * n, text="x" * n) for n in (2, 5, 9)]
    assert behaviour.degenerate_std(measured(got(Role.RIGHT, 1.0), *by_length)).state is State.HEALTHY
    one_length = [got(Role.WRONG, reward, text="xx") for reward in (0.0, 0.005, 0.01)]
    assert behaviour.degenerate_std(measured(got(Role.RIGHT, 1.0), *one_length)).state is State.FINDING


def test_nearly_all_at_the_top_is_saturated():
    full = (1.0,) * 19
    assert behaviour.saturated(replace(SOUND, groups=((*full, 0.0),))).severity is Severity.WASTEFUL  # 95 %
    assert behaviour.saturated(replace(SOUND, groups=((*full[:-1], 0.0, 0.0),))).state is State.HEALTHY  # 90 %
    assert "--completions" in behaviour.saturated(SOUND).headline


def test_seconds_a_step_are_calls_times_seconds_over_workers():
    timed = [got(Role.RIGHT, 1.0, seconds=seconds) for seconds in (0.1, 0.2, 0.3)]
    # mean 0.2 s x 384 answers / 2 at a time = 38.4 s; 3 at a time would take 25.6 s
    slow = behaviour.is_slow(measured(*timed, rollouts_a_step=384, side_by_side=2))
    assert (slow.headline, slow.fails) == ("scoring one step would take 38 s", False)
    assert "reward.workers = 3" in slow.fix
    assert "0.2 s (median), 0.3 s (p95), 0.3 s (most)" in slow.evidence[0]
    assert behaviour.is_slow(measured(*timed, rollouts_a_step=384, side_by_side=3)).state is State.HEALTHY
    assert behaviour.is_slow(SOUND).state is State.NOT_ENOUGH_DATA


def test_a_check_that_breaks_has_crashed_and_is_no_pass():
    def breaks(_):
        raise KeyError("missing\x1b[2J")

    ((_, verdict),) = judge(SOUND, [Check("REW99", "broken", breaks)])
    assert verdict == Verdict(State.CRASHED, "KeyError: 'missing\\x1b[2J'")
    assert report((Check("REW99", "broken", breaks), verdict)).exit_code == 3


def report(*verdicts):
    return Report(("mine",), "sums", 2, 9, 1.0, "", verdicts, causes(verdicts))


def finding(severity, confidence=Confidence.PROVEN):
    return Verdict(State.FINDING, "it is so", ("a number",), severity, confidence, "Do this.")


CAUSE, EFFECT = Check("REW01", "cause", lambda _: None, frozenset({"REW04"})), Check("REW04", "effect", lambda _: None)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (finding(Severity.FATAL), 1),
        (finding(Severity.HARMFUL, Confidence.LIKELY), 1),
        (finding(Severity.FATAL, Confidence.POSSIBLE), 0),
        (finding(Severity.WASTEFUL), 0),
        (Verdict(State.NOT_ENOUGH_DATA, "all"), 0),
    ],
)
def test_only_a_sure_and_severe_finding_fails(verdict, code):
    assert report((CAUSE, verdict)).exit_code == code


def test_a_consequence_stands_below_its_cause():
    both = report((CAUSE, finding(Severity.FATAL)), (EFFECT, finding(Severity.FATAL)))
    assert both.consequences == {"REW04": "REW01"}
    lines = as_text(both, verbose=False, colour=False).splitlines()
    assert lines[2] == "fatal    REW01 cause  it is so [proven]"
    assert lines[5] == "         follows from it: REW04 effect  it is so"
    assert lines[-1].startswith("2 checks: 2 findings, 0 healthy")
    alone = report((CAUSE, Verdict(State.HEALTHY, "fine")), (EFFECT, finding(Severity.FATAL)))
    assert alone.consequences == {}


def test_colour_is_only_there_when_asked_for_and_json_holds_every_verdict():
    one = report((CAUSE, finding(Severity.FATAL)), (EFFECT, Verdict(State.HEALTHY, "fine")))
    assert "\x1b" not in as_text(one, verbose=True, colour=False)
    assert "\x1b[31;1mfatal" in as_text(one, verbose=True, colour=True)
    shown = json.loads(as_json(one))
    assert [(check["code"], check["state"]) for check in shown["checks"]] == [
        ("REW01", "finding"),
        ("REW04", "healthy"),
    ]
    assert (shown["schema_version"], shown["exit_code"], shown["checks"][0]["severity"]) == (1, 1, "fatal")


def test_codes_are_unique_and_explain_only_what_stands_below():
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    for number, check in enumerate(CHECKS):
        assert check.explains <= set(codes[number + 1 :]), check.code


def test_every_problem_gets_its_ordinary_probes_first_and_a_wrong_answer_that_is_wrong():
    probes = probes_of(SUMS)
    ordinary = [probe for probe in probes if is_ordinary(probe)]
    assert ordinary == probes[: len(ordinary)]
    assert len(ordinary) == 4 * len(SUMS)
    assert len(set(probes)) == len(probes)
    wrong = {probe.problem: probe.text for probe in ordinary if probe.role is Role.WRONG}
    assert wrong == {0: "-4", 1: "8", 2: "2"}
    assert {probe.name for probe in probes if probe.role is Role.HOSTILE} == {*HOSTILE, "the prompt repeated"}
    assert {probe.name for probe in probes if probe.role is Role.RIGHT and probe.problem == 1} == set(FORMS)
    assert "\u22124" in {probe.text for probe in probes if probe.role is Role.RIGHT}


def test_a_problem_whose_answer_is_all_there_is_has_no_wrong_answer():
    alike = [Problem("a", "?", "7"), Problem("b", "??", " 7")]
    assert not [probe for probe in probes_of(alike) if probe.role in (Role.WRONG, Role.LISTED)]


def test_the_extended_number_is_wrong_beyond_any_tolerance():
    numbers = [Problem("a", "?", "12"), Problem("b", "?", "0.25"), Problem("c", "?", "-0.5"), Problem("d", "?", "yes")]
    extended = [(probe.problem, probe.text) for probe in probes_of(numbers) if probe.role is Role.EXTENDED]
    assert extended == [(0, "127"), (0, "712"), (1, "70.25"), (3, "xyes")]


def test_a_shortcut_is_never_the_right_answer():
    def shortcuts(text, answer):
        problems = [Problem("a", text, answer), Problem("b", text, "8")]
        return [probe.text for probe in probes_of(problems) if probe.role is Role.SHORTCUT and probe.problem == 0]

    guesses = ["yes", "true", "1", "final answer"]
    assert shortcuts("6+7=", "13") == [*guesses, "6+7=", "6+7= 8", "31"]
    assert shortcuts("6-30=", "-24") == [*guesses, "6-30=", "6-30= 8", "-42"]
    assert shortcuts("0+5=", "5") == guesses  # the last number of the question is right
    assert shortcuts("Is it so?", "True") == ["Is it so?", "Is it so? 8", "eurT"]
    assert shortcuts("2/2=", "1.0") == ["2/2=", "2/2= 8"]
    assert shortcuts("x+y", "2+x") == [*guesses, "x+y", "x+y 8"]  # backwards it would be as right


def test_what_is_asked_decodes_to_its_text():
    prompt, rollout = ask(SUMS[0], "\x00a\u2212")
    assert (decode(rollout.tokens), rollout.text, prompt.answer) == ("\x00a\u2212", "\x00a\u2212", "2")
    assert ask(SUMS[0], "")[1].text == ""
