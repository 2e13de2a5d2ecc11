"""`assay explain` on symptoms in plain words: ours, and those of others, as they stand in public issues."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.doctor.catalogue import catalogue
from assay.doctor.search import search

OURS = {
    "loss is zero": ["LOSS05"],
    "loss is 0": ["LOSS05"],
    "reward does not move": ["REW01", "ADV09", "OPT02", "MET07"],
    "kl explodes": ["MET02", "KL01"],
    "nan": ["NUM03"],
    "slow": ["PERF03", "PERF01"],
    "ratio": ["RAT01", "RAT02", "RAT07"],
    "ratio is 1": ["RAT02"],
    "ratio is not 1": ["RAT01"],
    "why is my ratio not 1 in the first step?": ["RAT01"],
    "entropy collapses": ["MET01"],
    "completions get longer": ["MET03"],
    "clip fraction 0": ["CLIP01", "RAT02"],
    "grad norm 0": ["MET05"],
    "reward hacking": ["MET04"],
    "model outputs garbage after 50 steps": ["HYP01", "MET02", "NUM03"],
    "the reward goes down": ["RAT04", "LOSS01"],
    "my model never stops generating": ["MASK01"],
    "vllm logprobs don't match": ["SAMP06"],
    "advantages are all zero": ["ADV09"],
    "reward_std is 0": ["ADV09", "REW01"],
    "all my completions are identical": ["SAMP04"],
    "weights are not updating": ["OPT02"],
    "KL is negative": ["KL03", "KL04"],
    "kl is always 0": ["KL05"],
    "out of memory after a few steps": ["PERF02"],
    "changing beta has no effect": ["KL02"],
    "loss is nan": ["NUM03"],
    "reward function throws an exception": ["REW02"],
    "correct answers get zero reward": ["REW16"],
    "padding changes my loss": ["MASK04"],
    "different results with gradient accumulation": ["LOSS02", "LOSS03"],
    "vllm still uses the old weights": ["SYNC01"],
    "training in bf16 does not learn": ["OPT01"],
    "learning rate too high?": ["HYP01"],
    "the model learned to repeat the prompt": ["MASK03"],
    "reward goes up but accuracy on the test set falls": ["MET04"],
    "truncated completions": ["MET03"],
    "importance weights blow up": ["RAT07"],
    "dropout is active": ["MODE01"],
    "multi gpu training diverges": ["OPT03"],
    "generate is slow": ["PERF01"],
}
OTHERS = tomllib.loads((Path(__file__).parent / "symptoms_of_others.toml").read_text())["symptom"]


KNOWN = catalogue()


def explain(*words):
    return CliRunner().invoke(app, ["explain", *words], env={"COLUMNS": "100"})


def found(text):
    return [hit.illness.code for hit in search(text, KNOWN)]


def hits(symptoms, most):
    return [bool(set(found(text)[:most]) & set(codes)) for text, codes in symptoms]


def test_our_own_symptoms_lead_to_an_illness_that_shows_so():
    assert all(hits(OURS.items(), most=3))


def test_symptoms_of_others_do_so_nine_times_in_ten():
    found_early = hits([(one["text"], one["codes"]) for one in OTHERS], most=3)
    assert sum(found_early) >= 0.9 * len(OTHERS)
    assert len(OTHERS) > 60


def test_the_codes_of_all_symptoms_exist():
    known = {illness.code for illness in KNOWN}
    assert {code for one in OTHERS for code in one["codes"]} <= known
    assert {code for codes in OURS.values() for code in codes} <= known


@pytest.mark.parametrize("illness", KNOWN, ids=lambda illness: illness.code)
def test_each_illness_has_symptoms_and_is_found_by_most_of_them(illness):
    assert illness.symptoms
    own = [illness.code in found(symptom) for symptom in illness.symptoms]
    assert any(own)
    assert sum(own) >= 0.6 * len(own)


def test_an_answer_says_what_to_run_next():
    done = explain("reward", "does", "not", "move")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[0] == "'reward does not move' may be:"
    codes = [line.split()[0] for line in lines[2 : lines.index("", 2)] if not line.startswith("   ")]
    assert 3 <= len(codes) <= 6
    assert f"read more:     assay explain {codes[0]}" in lines
    assert any(line.startswith("look for them: assay doctor RUN, SCRIPT or LOG --select ") for line in lines)
    assert "try a reward:  assay reward-check FILE.py:FUNCTION" in lines


def test_a_family_is_listed():
    codes = [line.split()[0] for line in explain("CLIP").stdout.splitlines() if not line.startswith("   ")]
    assert codes == ["CLIP", "CLIP01", "CLIP02"]


def test_json_holds_the_answers_the_best_first():
    answers = json.loads(explain("loss is zero", "--json").stdout)["illnesses"]
    assert [one["code"] for one in answers] == found("loss is zero")
    assert answers[0]["code"] == "LOSS05"


@pytest.mark.parametrize("text", ["frobnicate the quux", "!", "the is a", "\u2603"])
def test_words_that_mean_nothing_here_end_with_2_and_the_families(text):
    done = explain(text)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "matches no symptom, code or name" in done.stderr
    assert "RAT (the ratio new / old)" in done.stderr


def test_a_hostile_query_is_escaped():
    assert "\x1b" not in explain("loss \x1b[2J is zero").stdout
    assert not explain("::error::loss is zero").stdout.startswith("::")
