"""What the doctor prints, in every format: order, places, escaping, and nothing of a prompt or a completion."""

import json
import math
import re
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

from assay.doctor.catalogue import Illness, catalogue
from assay.doctor.diagnosis import Diagnosis, Word, diagnose
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, healthy_curves
from assay.doctor.report import FORMATS, TEXT_LEFT_OUT, Report, write
from assay.doctor.report.select import UnknownCode, select
from assay.machine.terminal import quote
from assay.verdict import (
    Confidence,
    Fact,
    Severity,
    State,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
)

HOSTILE = "a\x1b[2Jb\n::error::c\u202ed"


def illness(code, name, severity=Severity.HARMFUL, **more):
    return Illness(
        code, name, severity, f"{name} is wrong", "Change it.", "## What\nText.", Evidence, Evidence, None, **more
    )


CAUSE, EFFECT, WASTE = (
    illness("RAT01", "ratio_not_one"),
    illness("SAMP06", "engine_mismatch"),
    illness("PERF03", "slow_step", Severity.WASTEFUL),
)
PLACED = Fact("largest", 0.31, limit=0.001, step=4, row=3, token=7)


def report(*words, causes=None, notes=(), path="runs/x"):
    words = tuple(word if isinstance(word, Word) else Word(*word, batches=1) for word in words)
    return Report(path, Diagnosis(words, causes or {}, notes), "curves of 5 steps")


SICK = report(
    (EFFECT, finding("they differ by 2")),
    (CAUSE, finding("ratio off by 0.31", PLACED), "step 4"),
    (illness("ADV09", "zero_signal"), healthy("signal in 3 of 4 groups")),
    (illness("MET07", "signal_lost"), healthy("40 of 50 tokens train", Fact("tokens", 40))),
    (illness("KL01", "kl_sign"), not_applicable("no KL")),
    (illness("KL04", "kl_estimator"), not_enough_data("mask, ref_logprobs")),
    (illness("KL05", "reference"), not_enough_data("ref_logprobs")),
    (illness("MET01", "entropy_collapse"), not_enough_data("metrics of 20 steps, or more")),
    (illness("MET02", "kl_runaway"), Verdict(State.CRASHED, "ValueError: {x}\nbad")),
    causes={"SAMP06": "RAT01"},
    notes=("metrics.jsonl line 9 is damaged",),
)


def lines(how, one=SICK, **more):
    return write([one], how, **more).splitlines()


def test_the_root_cause_stands_first_and_its_consequence_below_it():
    text = lines("full")
    cause = text.index("harmful  RAT01 ratio_not_one [proven]")
    assert text[cause + 1] == "         ratio off by 0.31"
    assert text[cause + 2] == "         - largest = 0.31 (limit 0.001) at step 4, row 3, token 7"
    assert text[cause + 3] == "         - seen in step 4"
    assert text[cause + 4] == "         fix: Change it."
    assert text[cause + 5] == "         more: assay explain RAT01"
    assert text[cause + 6] == "           follows from it: SAMP06 engine_mismatch: they differ by 2"
    assert not any(line.startswith("harmful  SAMP06") for line in text)


def test_all_checks_are_counted_and_what_is_missing_is_grouped_by_field():
    text = lines("full")
    assert text[0] == "runs/x: curves of 5 steps"
    assert text[-1] == "9 checks: 2 findings, 2 healthy, 1 not applicable, 3 not enough data, 1 crashed"
    assert text[1:4] == ["", "note     metrics.jsonl line 9 is damaged", ""]
    start = text.index("crashed  MET02 kl_runaway: ValueError: {x}\\nbad")
    folded = "not enough data  KL04, KL05, MET01; missing: ref_logprobs (2), mask (1), metrics of 20 steps, or"
    assert text[start + 1 : start + 4] == [folded, "         more (1)", ""]
    text = lines("full", all_passes=True)
    start = text.index("crashed  MET02 kl_runaway: ValueError: {x}\\nbad")
    assert text[start + 1 : start + 4] == [
        "not enough data  ref_logprobs: KL04, KL05",
        "not enough data  mask: KL04",
        "not enough data  metrics of 20 steps, or more: MET01",
    ]


@pytest.mark.parametrize("how", ["full", "md"])
def test_some_measurements_are_shown_although_healthy(how):
    shown_text = write([SICK], how)
    assert "40 of 50 tokens train" in shown_text
    assert "tokens = 40" in shown_text
    assert "signal in 3 of 4 groups" not in shown_text
    everything = write([SICK], how, all_passes=True)
    assert "signal in 3 of 4 groups" in everything
    assert everything.count("tokens = 40") == 1


def test_a_finding_in_several_places_says_how_many():
    assert "         - seen in step 4, and 2 more" in lines("full", report(Word(CAUSE, finding("off"), "step 4", 3)))
    own_name = report(Word(CAUSE, finding("off"), "b.safetensors", 1), path="x/b.safetensors")
    assert not any("seen in" in line for line in lines("full", own_name))


def test_lines_keep_to_the_width_and_colour_only_where_asked():
    long = report((CAUSE, finding("word " * 60, Fact("thing " * 30, 1))))
    assert max(map(len, lines("full", long, width=60))) <= 60
    path = "runs/" + "x" * 80
    assert path in write([report((CAUSE, finding(f"look at {path}")))], "full", width=60)  # never broken
    assert "\x1b" not in write([SICK], "full") + write([SICK], "concise")
    assert "\x1b[33;1mharmful \x1b[0m" in write([SICK], "full", colour=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", write([SICK], "full", colour=True))
    assert plain == write([SICK], "full")


def test_concise_is_one_line_a_finding():
    assert lines("concise") == [
        "runs/x: note metrics.jsonl line 9 is damaged",
        "runs/x: harmful RAT01 ratio_not_one: ratio off by 0.31 [proven]",
        "runs/x: harmful SAMP06 engine_mismatch: they differ by 2 [proven] (follows from RAT01)",
        "runs/x: crashed MET02 kl_runaway: ValueError: {x}\\nbad",
        "runs/x: 9 checks: 2 findings, 2 healthy, 1 not applicable, 3 not enough data, 1 crashed",
    ]


@pytest.mark.parametrize("how", FORMATS)
def test_hostile_text_reaches_no_terminal_and_no_workflow(how):
    fact = Fact(HOSTILE, HOSTILE)
    one = report((CAUSE, finding(HOSTILE, fact, fix=HOSTILE)), notes=(HOSTILE,), path=f"runs/{HOSTILE}")
    text = write([one], how, all_passes=True)
    assert not any(character in text for character in "\x1b\r\u202e")
    assert text.isascii()
    assert not [line for line in text.splitlines() if line.startswith("::") and not line.startswith("::error title=")]


@pytest.mark.parametrize("how", ["json", "sarif", "github", "md"])
def test_no_prompt_and_no_completion_is_in_machine_output(how):
    secret, long = "my secret prompt", "it's " * 40
    quoted = f"row 3 says {quote(secret)} and {quote(long)}"
    batch = healthy_batch(texts={"prompt": [secret] * 16, "completion": [long] * 16})
    verdict = finding(quoted, Fact(f"of {quote(secret)}", secret), Fact("both", quoted), fix=quoted)
    words = (Word(CAUSE, verdict, batches=1), Word(WASTE, healthy(quoted)))
    one = Report.of("runs/x", Evidence((batch,)), Diagnosis(words, notes=(quoted,)))
    text = write([one], how, all_passes=True)
    assert "secret" not in text
    assert "it's it's" not in text
    assert "row 3 says" in text
    assert TEXT_LEFT_OUT in text or "&lt;text left out&gt;" in text
    assert "my secret prompt" in write([one], "full")


def test_a_text_that_quotes_another_is_left_out_whole():
    batch = healthy_batch(texts={"prompt": ["say 'a' to the secret"] * 16, "completion": ["a"] * 16})
    words = (Word(CAUSE, finding(f"row 0 has {quote(batch.texts['prompt'][0])}"), batches=1),)
    one = Report.of("x", Evidence((batch,)), Diagnosis(words))
    assert f"row 0 has {TEXT_LEFT_OUT} [proven]" in write([one.without_texts()], "concise")


@pytest.mark.parametrize("one", [one for one in catalogue() if one.sick], ids=lambda one: one.code)
def test_no_illness_gives_a_text_away(one):
    sick = one.sick()
    batches = tuple(
        Batch.of(
            {**batch.arrays, **batch.numbers, **batch.settings},
            {
                name: [f"{name} {row} is private" if name != "prompt_id" else text for row, text in enumerate(rows)]
                for name, rows in batch.texts.items()
            },
        )
        for batch in sick.batches
    )
    evidence = Evidence(batches, sick.curves, sick.notes)
    written = write([Report.of("x", evidence, diagnose(evidence))], "json")
    assert "is private" not in written


def test_github_escapes_what_ends_a_command():
    one = report((CAUSE, finding("50% off, really: yes", fix="a\r\nb")), path="runs/a,b:c")
    first = lines("github", one)[0]
    assert first == (
        "::error title=RAT01 ratio_not_one (harmful%2C proven),file=runs/a%2Cb%3Ac::"
        "50%25 off, really: yes%0Afix: a\\r\\nb"
    )
    levels = [(WASTE, finding("slow")), (CAUSE, finding("maybe", confidence=Confidence.POSSIBLE))]
    assert [line.split(" ")[0] for line in lines("github", report(*levels))[:-1]] == ["::warning", "::notice"]
    assert lines("github")[3].startswith("::warning title=MET02 kl_runaway crashed,file=runs/x::")


def test_markdown_holds_no_markup_of_others():
    page = write([report((CAUSE, finding("<img src=x> | *a* @team [b](http://c) `d`")))], "md")
    assert "&lt;img src=x&gt; \\| \\*a\\* \\@team \\[b\\](http://c) \\`d\\`" in page


def test_json_holds_every_word_and_no_number_that_is_not_finite():
    facts = [Fact("a", math.nan), Fact("b", -math.inf, limit=math.inf), Fact("c", np.float64(0.5)), Fact("d", "text")]
    whole = json.loads(write([report((CAUSE, finding("off", *facts)))], "json"))
    evidence = whole["findings"][0]["evidence"]
    assert [(fact["value"], fact.get("text"), fact["limit"]) for fact in evidence] == [
        (None, "nan", None),
        (None, "-inf", None),
        (0.5, None, None),
        ("text", None, None),
    ]
    whole = json.loads(write([SICK], "json"))
    assert [(one["code"], one["follows_from"], one["level"], one.get("step")) for one in whole["findings"]] == [
        ("RAT01", None, "error", 4),
        ("SAMP06", "RAT01", "error", None),
    ]
    assert [one["code"] for one in whole["passed"]] == ["ADV09", "MET07"]
    assert [(one["code"], one["missing"]) for one in whole["not_enough_data"]] == [
        ("KL04", ["mask", "ref_logprobs"]),
        ("KL05", ["ref_logprobs"]),
        ("MET01", ["metrics of 20 steps, or more"]),
    ]
    assert (whole["not_applicable"][0]["code"], whole["crashed"][0]["code"]) == ("KL01", "MET02")
    assert whole["notes"] == ["metrics.jsonl line 9 is damaged"]


def test_several_paths_are_one_object_with_a_report_each():
    whole = json.loads(write([SICK, report((CAUSE, healthy("fine")), path="runs/y")], "json"))
    assert [one["source"] for one in whole["reports"]] == ["runs/x", "runs/y"]
    assert whole["schema_version"] == whole["reports"][0]["schema_version"] == 1


SCHEMA = jsonschema.Draft202012Validator(json.loads((files("assay.doctor.report") / "schema-1.json").read_text()))


@pytest.mark.parametrize(
    "edit",
    [
        lambda whole: whole.pop("notes"),
        lambda whole: whole.update(extra=1),
        lambda whole: whole.update(schema_version=2),
        lambda whole: whole["findings"][0].update(level="fatal"),
        lambda whole: whole["findings"][0]["evidence"][0].update(row="3"),
        lambda whole: whole["not_enough_data"][0].update(missing=[]),
    ],
)
def test_the_schema_can_fail(edit):
    whole = json.loads(write([SICK], "json"))
    edit(whole)
    assert not SCHEMA.is_valid(whole)


def test_selection_takes_codes_names_and_families():
    known = [CAUSE, EFFECT, WASTE, illness("RAT02", "ratio_stuck_at_one")]
    codes = lambda chosen, ignored=(): [one.code for one in select(known, chosen, ignored)]  # noqa: E731
    assert codes([]) == ["RAT01", "SAMP06", "PERF03", "RAT02"]
    assert codes(["rat"]) == ["RAT01", "RAT02"]
    assert codes(["slow-step, RAT02", "samp06"]) == ["SAMP06", "PERF03", "RAT02"]
    assert codes(["RAT"], ["RAT01"]) == ["RAT02"]
    assert codes([], ["RAT", "slow_step"]) == ["SAMP06"]
    with pytest.raises(UnknownCode, match="'RAT1' is not the code, name or family of an illness; did you mean RAT01"):
        select(known, ["RAT1"], [])
    with pytest.raises(UnknownCode, match="did you mean slow_step"):
        select(known, [], ["slow-stap"])
    with pytest.raises(UnknownCode, match="nothing is left"):
        select(known, ["RAT"], ["RAT"])


def test_the_same_evidence_gives_the_same_bytes():
    evidence = Evidence((healthy_batch(),), healthy_curves())
    for how in FORMATS:
        once, again = (write([Report.of("x", evidence, diagnose(evidence))], how) for _ in range(2))
        assert once == again
