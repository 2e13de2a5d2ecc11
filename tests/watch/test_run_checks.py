"""Faults that only a run can prove are proven by it, with their lines; scripts run through the server of forks."""

import sys

import pytest

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.report import Report, write
from assay.programs.read.script import read_program
from assay.programs.run.gradients import GradientEvent, OptimizerStep
from assay.programs.run.watched import WatchedRun
from assay.verdict import Confidence, Place, State
from proof.corpus import as_script, specimens
from proof.corpus import write as write_specimen
from proof.watching import watch_all

# code, script, form: what the run alone must prove; `make proof-scripts` watches all
PROVEN = [
    ("SAMP03", "hf_generate.py", "top_k not set: the checkpoint's value is inherited"),
    ("SAMP05", "reference.py", "seed set inside the sampling function"),
    ("SAMP07", "reference.py", "functional multinomial on logits"),
    ("SAMP07", "tutorial_notebook.ipynb", "Categorical(logits=softmax)"),
    ("ALGN10", "sampling_loop.py", "advantages not indexed by the minibatch order"),
    ("ADV08", "trainer_class.py", "column of advantages times a row of sequence losses"),
    ("RAT03", "reference.py", "old log-probs computed with gradient"),
    ("RAT05", "reference.py", "reference model samples"),
    ("RAT08", "reference.py", "quotient of log-probs"),
    ("CLIP01", "reference.py", "clipped ratio computed and never used"),
    ("KL02", "reference.py", "KL computed under no_grad"),
    ("KL05", "reference.py", "reference is the policy object itself"),
    ("LOSS01", "rloo_dr.py", "minus forgotten"),
    ("LOSS04", "reference.py", "zero_grad between backward and step"),
    ("LOSS04", "tutorial_notebook.ipynb", "zero_grad missing"),
    ("OPT02", "reference.py", "optimizer made before the model is replaced by a copy"),
    ("OPT03", "rloo_dr.py", "module's forward called directly"),
    ("OPT04", "trainer_class.py", "head and body optimizers overlap"),
    ("NUM01", "reference.py", "log-softmax in bfloat16"),
    ("PERF01", "hf_generate.py", "cache off in the generation config"),
    ("PERF02", "reference.py", "losses kept with their graphs"),
]
SILENT = [("reference.py", "clean"), ("rloo_dr.py", "plain policy gradient with log-probs"), ("two_files", "CISPO")]
OWN = {
    "hangs.py": "import time\ntime.sleep(60)\n",
    "leaves.py": "import os\nprint('{\"path\": 1}', flush=True)\nos._exit(3)\n",
    "raises.py": "raise SystemExit(4)\n",
}


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_python):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_python))
        yield


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """(script, form) --> what came back; one server for all of them."""
    wanted = {(script, form) for _, script, form in PROVEN} | set(SILENT)
    chosen = [one for one in specimens() if (one.script, one.form) in wanted]
    assert {(one.script, one.form) for one in chosen} == wanted
    paths = {}
    for one in chosen:
        script = as_script(write_specimen(one, tmp_path_factory.mktemp("script")))
        paths[str(script)] = (one.script, one.form)
    return {paths[result["path"]]: result for result in watch_all(list(paths), jobs=2, seconds=300)}


@pytest.mark.parametrize(("code", "script", "form"), PROVEN, ids=lambda one: str(one))
def test_the_run_proves_what_was_planted(watched, code, script, form):
    result = watched[script, form]
    assert [code, "proven"] in result["run"], result
    assert result["crashed"] == []


@pytest.mark.parametrize(("script", "form"), SILENT, ids=lambda one: str(one))
def test_a_sound_script_is_left_alone(watched, script, form):
    result = watched[script, form]
    assert (result["all"], result["crashed"], result["error"], result["code"]) == ([], [], "", 0)


def test_the_server_survives_scripts_that_hang_leave_or_write_to_its_output(tmp_path):
    for name, text in OWN.items():
        (tmp_path / name).write_text(text)
    scripts = [str(tmp_path / name) for name in OWN]
    results = {result["path"]: result for result in watch_all(scripts, jobs=3, seconds=5)}
    codes = {name: results[str(tmp_path / name)]["code"] for name in OWN}
    assert codes == {"hangs.py": -9, "leaves.py": 3, "raises.py": 4}
    assert results[scripts[0]]["error"] == "took more than 5 seconds"


def place(line):
    return Place("script.py", line, text=f"line {line}")


def step(line, *moves, **how):
    return OptimizerStep(place(line), moves=tuple(GradientEvent(kind, place(at)) for kind, at in moves), **how)


def test_findings_outweigh_health_and_are_told_once_for_a_place():
    run = WatchedRun("script.py")
    kept = step(3, ("backward", 2), is_first=False, was_reached=True)
    fine = step(3, ("zero_grad", 1), ("backward", 2), is_first=False, was_reached=True, began_clean=True)
    run.gradients.steps += [fine, kept, kept, step(4, ("backward", 2), is_first=False, was_reached=True)]
    word = diagnose(Evidence(run=run), [by_code("LOSS04")]).findings[0]
    assert (word.confidence, word.seen_in) == (Confidence.PROVEN, "run")
    assert [one.line for one in word.verdict.places] == [3, 2, 4]
    assert [one.line for one in word.verdict.found_at] == [3, 4]


def test_a_check_that_crashes_is_counted_for_its_illness_and_stops_no_other():
    run = WatchedRun("script.py", generations=[None])  # what a fault of ours may leave behind
    run.gradients.steps += [step(3, ("backward", 2), is_first=True)]
    states = {word.code: word.verdict.state for word in diagnose(Evidence(run=run)).words}
    crashed = {code for code, state in states.items() if state is State.CRASHED}
    assert {"PERF01", "SAMP02", "SAMP03", "SAMP05"} <= crashed
    assert states["LOSS04"] is states["OPT04"] is State.HEALTHY


def test_what_only_the_text_shows_is_told_as_such(tmp_path):
    illness = by_code("SAMP07")
    script = tmp_path / "script.py"
    script.write_text(illness.scripts.sick)
    evidence = Evidence(run=WatchedRun(str(script)), programs=(read_program(script),))
    diagnosis = diagnose(evidence, [illness])
    assert [(word.confidence, word.seen_in) for word in diagnosis.findings] == [(Confidence.LIKELY, "text")]
    report = Report.of("script.py", evidence, diagnosis)
    assert "[likely, seen in the text]" in write([report], "full")
    assert '"seen_in": "text"' in write([report], "json")


def test_a_proven_finding_wins_over_one_of_the_text(tmp_path):
    illness = by_code("LOSS04")
    script = tmp_path / "script.py"
    script.write_text(illness.scripts.sick)
    run = WatchedRun(str(script))
    run.gradients.steps += [step(9, ("backward", 7), ("zero_grad", 8), is_first=True, emptied_at=place(8))]
    (word,) = diagnose(Evidence(run=run, programs=(read_program(script),)), [illness]).findings
    assert word.verdict.message == "gradients are cleared between backward and step: the optimizer finds none"
    assert (word.confidence, word.seen_in, word.batches) == (Confidence.PROVEN, "run", 2)


def test_a_run_in_which_nothing_was_looked_at_says_so():
    word = diagnose(Evidence(run=WatchedRun("script.py")), [by_code("OPT03")]).words[0]
    assert word.verdict.state is State.NOT_APPLICABLE
