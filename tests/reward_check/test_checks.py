"""The checks of a reward on hand-made numbers: no process, no reward, each number worked out beside it."""

import json
from dataclasses import replace

import pytest

from assay.doctor.catalogue import Illness, by_code, illnesses_looking_at
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Evidence, RewardTrial
from assay.doctor.evidence.reward import Probe, ProbeScore, Role
from assay.doctor.facts.rewards import best_form, lead
from assay.reward_check.command import CheckResult, fails, write_json, write_text
from assay.reward_check.probes import FORMS, HOSTILE, as_rollout, decode, is_ordinary, probes_of
from assay.types import Problem
from assay.verdict import Confidence, Severity, State, Verdict
from assay.verdict import finding as found_to_be

SUMS = [Problem("a", "1+1=", "2"), Problem("b", "5-9=", "-4"), Problem("c", "4+4=", "8")]


def got(role, reward, *, problem=0, form="plain", text="", error="", seconds=None):
    return ProbeScore(Probe(role, form, problem, text or f"{role} {form} {problem}"), reward, error, seconds)


def four(right, wrong, empty, nonsense, problem=0):
    return [
        got(Role.RIGHT, right, problem=problem),
        got(Role.WRONG, wrong, problem=problem),
        got(Role.EMPTY, empty, problem=problem, text=" "),
        got(Role.NONSENSE, nonsense, problem=problem, form="a word", text="banana"),
    ]


def measured(*found, **more):
    return RewardTrial(("mine",), tuple(found), task="sums", **more)


def judged(code, trial):
    (word,) = diagnose(Evidence(reward=trial), [by_code(code)]).words
    return word


SOUND = measured(*four(1.0, 0.0, 0.0, 0.0), *four(1.0, 0.2, 0.0, 0.0, problem=1))


def test_a_sound_order_is_healthy():
    checks = ("REW03", "REW06", "REW04", "REW05")
    assert [judged(check, SOUND).verdict.state for check in (*checks, "REW16")] == [State.HEALTHY] * 5


def test_a_healthy_order_shows_what_the_right_answer_gets_in_each_form():
    found = measured(*SOUND.scores, got(Role.RIGHT, 0.5, form="boxed"))
    assert judged("REW03", found).verdict.examples == (
        "right answer plain: 1 on average",
        "right answer boxed: 0.5 on average",
    )


@pytest.mark.parametrize(
    ("rewards", "check"),
    [
        ((0.0, 1.0, 0.0, 0.0), "REW03"),
        ((1.0, 1.0, 0.0, 0.0), "REW06"),
        ((1.0, 0.0, 1.0, 0.0), "REW05"),
        ((1.0, 0.0, 0.0, 1.5), "REW04"),
        ((0.0, 0.0, 0.0, 0.0), "REW16"),
    ],
)
def test_one_broken_order_is_one_fatal_finding(rewards, check):
    word = judged(check, measured(*four(*rewards)))
    assert (word.verdict.state, word.severity, fails(word)) == (State.FINDING, Severity.FATAL, True)
    assert "1 of 1" in word.verdict.message
    assert word.verdict.examples


def test_one_problem_of_three_is_harmful_not_fatal():
    found = measured(*four(1, 0, 0, 1), *four(1, 0, 0, 0, problem=1), *four(1, 0, 0, 0, problem=2))
    assert judged("REW04", found).severity is Severity.HARMFUL


def test_a_tie_of_right_and_wrong_is_told_from_a_defeat():
    tie, defeat = measured(*four(0.5, 0.5, 0, 0)), measured(*four(0.5, 0.6, 0, 0))
    assert judged("REW03", tie).verdict.state is State.HEALTHY
    assert judged("REW06", defeat).verdict.state is State.HEALTHY


def test_right_and_wrong_are_compared_in_the_form_that_tells_them_apart():
    tags = [
        got(Role.RIGHT, 1.0, form="in answer tags"),
        got(Role.WRONG, 0.0, form="in answer tags"),
    ]
    wants_tags = measured(*four(0.0, 0.0, 0.0, 0.0), *tags)
    assert best_form(wants_tags) == "in answer tags"
    assert judged("REW06", wants_tags).verdict.state is State.HEALTHY
    assert judged("REW04", wants_tags).verdict.state is State.HEALTHY


def test_rounding_is_no_lead():
    assert lead(got(Role.RIGHT, 0.1 + 0.2), got(Role.WRONG, 0.3)) == 0.0
    assert lead(got(Role.RIGHT, 0.31), got(Role.WRONG, 0.3)) == pytest.approx(0.01)


def test_a_right_answer_that_gets_less_than_others_and_no_more_than_nothing_is_unrecognised():
    word = judged("REW16", measured(*four(0.1, 0.1, 0.1, 0.1), *four(1.0, 0.1, 0.1, 0.1, problem=1)))
    assert word.verdict.state is State.FINDING
    assert "in any of these forms (plain) in 1 of 2" in word.verdict.message
    always_paid = measured(*four(1, 1, 1, 1), *four(1, 1, 1, 1, problem=1))
    assert judged("REW16", always_paid).verdict.state is State.HEALTHY


def test_a_list_that_holds_the_right_answer_must_get_less():
    listed = got(Role.LISTED, 1.0)
    assert judged("REW07", measured(*SOUND.scores, listed)).severity is Severity.HARMFUL
    assert judged("REW07", measured(*SOUND.scores, replace(listed, reward=0.9))).verdict.state is State.HEALTHY
    assert judged("REW07", measured(*four(1, 1, 0, 0), listed)).verdict.state is State.NOT_APPLICABLE


def test_a_reward_of_form_alone_is_not_asked_for_answers():
    found = replace(SOUND, functions=("format",))
    for check in ("REW06", "REW05", "REW14"):
        assert judged(check, found).verdict.state is State.NOT_APPLICABLE
    assert judged("REW06", replace(found, functions=("format", "mine"))).verdict.state is State.HEALTHY


def test_without_answers_nothing_is_compared_and_without_scores_that_is_said():
    assert judged("REW05", measured(got(Role.EMPTY, 0.0))).verdict.state is State.NOT_APPLICABLE
    assert judged("REW05", measured(got(Role.RIGHT, None, error="raised"))).verdict.state is State.NOT_ENOUGH_DATA


def test_a_text_that_is_paid_the_same_under_every_question_is_possible_trouble():
    same = [got(Role.RIGHT, 0.7, text="12"), got(Role.WRONG, 0.7, problem=1, text="12")]
    word = judged("REW14", measured(*same))
    assert (word.verdict.state, word.confidence, fails(word)) == (State.FINDING, Confidence.POSSIBLE, False)
    differs = [same[0], replace(same[1], reward=0.0)]
    assert judged("REW14", measured(*differs)).verdict.state is State.HEALTHY
    assert judged("REW14", measured(same[0])).verdict.state is State.NOT_ENOUGH_DATA


def test_length_alone_must_not_pay():
    def ladder(*rewards, others=SOUND.scores):
        steps = [got(Role.LONG, reward, text="x" * 10**n) for n, reward in enumerate(rewards, start=1)]
        return judged("REW13", measured(*others, *steps))

    # log lengths 1, 2, 3 and rewards in proportion: the correlation is 1
    little, much = ladder(0.1, 0.2, 0.3), ladder(0.1, 0.6, 1.1)  # the right answer gets 1.0
    assert (little.verdict.state, little.confidence) == (State.FINDING, Confidence.POSSIBLE)
    assert (much.severity, fails(much)) == (Severity.FATAL, True)
    blind = ladder(0.1, 0.6, 1.1, others=four(1.0, 1.0, 0.0, 0.0))  # of another cause, which has its own finding
    assert blind.confidence is Confidence.POSSIBLE
    assert ladder(0.3, 0.2, 0.1).verdict.state is State.HEALTHY  # a length penalty
    assert ladder(0.0, 0.02, 0.04).verdict.state is State.HEALTHY  # 0.04 of the 1.0 between right and wrong
    assert ladder(0.1, 0.2).verdict.state is State.NOT_ENOUGH_DATA


def test_failures_are_counted_by_kind_and_fatal_when_answers_fail():
    junk = got(Role.HOSTILE, None, error="returned None")
    slow = got(Role.HOSTILE, None, error="mine: took longer than 2 s")
    harmful = judged("REW02", measured(*SOUND.scores, junk, slow, training_deadline=10.0))
    assert harmful.verdict.message == (
        "2 of 10 texts could not be scored: 1 returned no number, 1 timed out "
        "(the deadline here is 2 s, in training 10 s)"
    )
    assert harmful.severity is Severity.HARMFUL
    quarter = judged("REW02", measured(*SOUND.scores[:-1], got(Role.RIGHT, None, error="raised KeyError: 'x'")))
    assert quarter.severity is Severity.HARMFUL  # 1 of 5 right and wrong answers is not above a quarter
    fatal = judged("REW02", measured(got(Role.RIGHT, None, error="raised KeyError: 'x'"), got(Role.WRONG, 0.0)))
    assert fatal.severity is Severity.FATAL
    assert judged("REW02", SOUND).verdict.state is State.HEALTHY


def test_one_value_for_all_is_constant_and_two_are_not():
    flat = measured(*four(0.3, 0.3, 0.3, 0.3))
    assert judged("REW01", flat).severity is Severity.FATAL
    assert judged("REW01", SOUND).verdict.state is State.HEALTHY
    assert judged("REW01", replace(flat, groups=((0.3, 0.4),))).verdict.state is State.HEALTHY
    in_a_batch = ((flat.scores[0], replace(flat.scores[0], reward=0.4)),)
    assert judged("REW01", replace(flat, reversed_batch=in_a_batch)).verdict.state is State.HEALTHY
    rights_alone = measured(*(got(Role.RIGHT, 1.0, problem=number) for number in range(5)))
    assert judged("REW01", rights_alone).verdict.state is State.NOT_ENOUGH_DATA
    never_matched = replace(measured(*four(0, 0, 0, 0)), functions=("format",))
    assert judged("REW01", never_matched).verdict.state is State.NOT_ENOUGH_DATA


def test_an_answer_scored_twice_must_get_the_same():
    first = got(Role.RIGHT, 1.0)
    for field, check in [
        ("new_process", "REW08"),
        ("repeated", "REW09"),
        ("reversed_batch", "REW09"),
        ("parallel", "REW10"),
    ]:
        moved, same, failed, late = (
            judged(check, replace(SOUND, **{field: ((first, second),)})).verdict.state
            for second in (
                replace(first, reward=0.5),
                replace(first, reward=1.0 + 1e-12),
                replace(first, reward=None, error="raised ValueError"),
                replace(first, reward=None, error="took longer than 2 s"),
            )
        )
        assert (moved, same, failed, late) == (State.FINDING, State.HEALTHY, State.FINDING, State.HEALTHY), field
        assert judged(check, SOUND).verdict.state is State.NOT_ENOUGH_DATA


def test_a_reward_beyond_the_limit_is_too_large_on_both_sides():
    assert judged("REW11", measured(got(Role.RIGHT, -10_001.0))).verdict.state is State.FINDING
    assert judged("REW11", measured(got(Role.RIGHT, 10_000.0))).verdict.state is State.HEALTHY


def test_groups_without_variance_are_counted():
    wasteful = judged("ADV09", replace(SOUND, groups=((0, 0), (0, 0), (0, 1))))
    assert wasteful.verdict.message.startswith("2 of 3 groups of your completions")
    assert (wasteful.severity, wasteful.confidence) == (Severity.WASTEFUL, Confidence.LIKELY)
    assert judged("ADV09", replace(SOUND, groups=((0, 0), (0, 1)))).verdict.state is State.HEALTHY
    solved = judged("ADV09", replace(SOUND, groups=((1, 1), (1, 1), (1, None, 1))))
    assert (solved.confidence, fails(solved)) == (Confidence.POSSIBLE, False)
    assert judged("ADV09", measured(*four(1, 1, 1, 1))).severity is Severity.FATAL
    assert judged("ADV09", measured(got(Role.RIGHT, 1.0))).verdict.state is State.NOT_ENOUGH_DATA


def test_a_std_just_above_zero_is_harmful():
    # rewards 0 and 0.02: the sample std is 0.02 / sqrt(2) = 0.0141; 0 and 0.03 give 0.0212
    word = judged("ADV04", replace(SOUND, groups=((0.0, 0.02),)))
    assert (word.verdict.state, word.verdict.examples) == (State.FINDING, ("smallest std 0.014",))
    assert judged("ADV04", replace(SOUND, groups=((0.0, 0.03),))).verdict.state is State.HEALTHY
    assert judged("ADV04", replace(SOUND, groups=((0.5, 0.5),))).verdict.state is State.HEALTHY


def test_hair_splitting_among_wrong_answers_is_possible_trouble_unless_length_explains_it():
    word = judged("ADV04", measured(*four(1.0, 0.0, 0.01, 0.0)))
    assert (word.verdict.state, word.confidence) == (State.FINDING, Confidence.POSSIBLE)
    assert judged("ADV04", measured(*four(1.0, 0.0, 0.03, 0.0))).verdict.state is State.HEALTHY
    by_length = [got(Role.WRONG, -0.001 * n, text="x" * n) for n in (2, 5, 9)]
    assert judged("ADV04", measured(got(Role.RIGHT, 1.0), *by_length)).verdict.state is State.HEALTHY
    one_length = [got(Role.WRONG, reward, text="xx") for reward in (0.0, 0.005, 0.01)]
    assert judged("ADV04", measured(got(Role.RIGHT, 1.0), *one_length)).verdict.state is State.FINDING


def test_nearly_all_at_the_top_is_saturated():
    full = (1.0,) * 19
    assert judged("REW12", replace(SOUND, groups=((*full, 0.0),))).severity is Severity.WASTEFUL  # 95 %
    assert judged("REW12", replace(SOUND, groups=((*full[:-1], 0.0, 0.0),))).verdict.state is State.HEALTHY  # 90 %
    assert "--completions" in judged("REW12", SOUND).verdict.message


def test_seconds_a_step_are_calls_times_seconds_over_workers():
    timed = [got(Role.RIGHT, 1.0, seconds=seconds) for seconds in (0.1, 0.2, 0.3)]
    # mean 0.2 s x 384 answers / 2 at a time = 38.4 s; 3 at a time would take 25.6 s
    slow = judged("REW15", measured(*timed, rollouts_per_step=384, scored_at_once=2))
    assert (slow.verdict.message, fails(slow)) == ("scoring one step would take 38 s", False)
    assert "reward.workers = 3" in slow.fix
    assert "0.2 s (median), 0.3 s (p95), 0.3 s (most)" in slow.verdict.examples[0]
    assert judged("REW15", measured(*timed, rollouts_per_step=384, scored_at_once=3)).verdict.state is State.HEALTHY
    assert judged("REW15", SOUND).verdict.state is State.NOT_ENOUGH_DATA


def test_a_check_that_breaks_has_crashed_and_is_no_pass():
    def breaks(_):
        raise KeyError("missing\x1b[2J")

    (word,) = diagnose(Evidence(reward=SOUND), [replace(CAUSE, reward=breaks)]).words
    assert word.verdict == Verdict(State.CRASHED, "KeyError: 'missing\\x1b[2J'")
    assert checked((CAUSE, word.verdict), (EFFECT, finding(Severity.FATAL))).exit_code == 3


def checked(*verdicts):
    words = tuple(Word(illness, verdict, SOUND.name) for illness, verdict in verdicts)
    return CheckResult(SOUND, Diagnosis(words, root_causes(words)))


def finding(severity, confidence=Confidence.PROVEN):
    return found_to_be("it is so", examples=("a number",), severity=severity, confidence=confidence, fix="Do this.")


CAUSE = Illness("REW01", "cause", Severity.FATAL, "", "", "", explains=frozenset({"REW04"}), reward=lambda _: None)
EFFECT = Illness("REW04", "effect", Severity.FATAL, "", "", "", reward=lambda _: None)


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
    assert checked((CAUSE, verdict)).exit_code == code


def test_a_consequence_stands_below_its_cause():
    both = checked((CAUSE, finding(Severity.FATAL)), (EFFECT, finding(Severity.FATAL)))
    assert both.diagnosis.causes == {"REW04": "REW01"}
    lines = write_text(both, verbose=False).splitlines()
    assert lines[2:8] == [
        "fatal    REW01 cause [proven]",
        "         it is so",
        "         a number",
        "         fix: Do this.",
        "         more: assay explain REW01",
        "           follows from it: REW04 effect: it is so",
    ]
    assert "             a number" in write_text(both, verbose=True).splitlines()
    assert lines[-1].startswith("2 checks: 2 findings, 0 healthy")
    alone = checked((CAUSE, Verdict(State.HEALTHY, "fine")), (EFFECT, finding(Severity.FATAL)))
    assert alone.diagnosis.causes == {}


def test_one_line_says_which_checks_could_not_be_made_and_what_they_lacked():
    few = checked((CAUSE, Verdict(State.NOT_ENOUGH_DATA, "no scores")), (EFFECT, Verdict(State.HEALTHY, "fine")))
    assert "not enough data  REW01; missing: no scores" in write_text(few, verbose=False).splitlines()
    lacking = diagnose(Evidence(reward=measured()), illnesses_looking_at("reward"))
    count = len(lacking.of(State.NOT_ENOUGH_DATA))
    text = " ".join(write_text(CheckResult(measured(), lacking), verbose=False).split())
    assert f"not enough data {count} checks; most often missing: " in text
    assert "no group with two scored answers (" in text


def test_json_holds_every_verdict():
    one = checked((CAUSE, finding(Severity.FATAL)), (EFFECT, Verdict(State.HEALTHY, "fine")))
    assert "\x1b" not in write_text(one, verbose=True)
    shown = json.loads(write_json(one))
    assert [(check["code"], check["state"]) for check in shown["checks"]] == [
        ("REW01", "finding"),
        ("REW04", "healthy"),
    ]
    assert shown["checks"][0] == {
        "code": "REW01",
        "name": "cause",
        "state": "finding",
        "headline": "it is so",
        "evidence": ["a number"],
        "severity": "fatal",
        "confidence": "proven",
        "fix": "Do this.",
        "follows_from": "",
    }
    assert (shown["schema_version"], shown["exit_code"]) == (1, 1)


def test_no_illness_of_a_reward_follows_from_itself():
    explains = {one.code: one.explains for one in illnesses_looking_at("reward")}

    def consequences(code):
        return set().union(*({other} | consequences(other) for other in explains[code] & explains.keys()))

    assert not [code for code in explains if code in consequences(code)]


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
    prompt, rollout = as_rollout(SUMS[0], "\x00a\u2212")
    assert (decode(rollout.tokens), rollout.text, prompt.answer) == ("\x00a\u2212", "\x00a\u2212", "2")
    assert as_rollout(SUMS[0], "")[1].text == ""
