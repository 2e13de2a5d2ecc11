"""A run directory of somebody else: none of its code runs before the user has said --trust."""

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from fixtures.commands import Trap, settings, without_progress

STRANGER = {"XDG_STATE_HOME": "/nonexistent/state"}  # a user, or a machine, that never started the run
REWARD = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()

def score(prompt, completion, answer):
    return float(completion == answer)
"""


@pytest.fixture(scope="module")
def scored_run(assay_command, run_root):
    """A finished run of two steps with a reward file of its own; loading the file leaves a trace beside it."""
    place = Path(tempfile.mkdtemp(dir=run_root))
    (place / "reward.py").write_text(REWARD)
    changes = {"run__steps": 2, "reward__functions": f"{place}/reward.py:score", "checkpoint__every": 4}
    ended = assay_command.run("train", *settings(**changes), "--out", place / "run")
    assert ended.code == 0, ended.stderr
    return place / "run"


@pytest.fixture
def foreign(scored_run, run_path):
    """A copy of the run in which nothing has been run yet."""
    shutil.copytree(scored_run, run_path)
    trace(scored_run).unlink(missing_ok=True)
    return run_path


def trace(scored_run):
    return scored_run.parent / "ran"


def everything_in(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("command", [("eval",), ("train", "--resume")])
def test_a_foreign_reward_file_runs_only_if_trusted(assay_command, scored_run, foreign, command):
    before = everything_in(foreign)
    ended = assay_command.run(*command, foreign, environment=STRANGER)
    assert ended.code == 2
    (sentence,) = without_progress(ended.stderr)
    assert f"reward.functions runs {scored_run.parent}/reward.py:score" in sentence
    assert sentence.endswith("add --trust")
    assert not trace(scored_run).exists()
    assert everything_in(foreign) == before
    ended = assay_command.run(*command, foreign, "--trust", environment=STRANGER)
    assert ended.code == 0, ended.stderr
    assert trace(scored_run).exists()


@pytest.mark.parametrize("command", [("eval",), ("train", "--resume")])
def test_ones_own_run_asks_nothing(assay_command, scored_run, foreign, command):
    ended = assay_command.run(*command, foreign)
    assert ended.code == 0, ended.stderr
    assert trace(scored_run).exists()


def test_a_command_that_needs_no_reward_asks_nothing_and_runs_nothing(assay_command, scored_run, foreign):
    for command in (
        ("export", foreign, "--out", foreign.parent / "exported"),
        ("doctor", foreign),
        ("doctor", foreign, "--recompute"),
        ("verify", foreign),
        ("eval", foreign, "--set", "reward.functions=exact"),
    ):
        ended = assay_command.run(*command, environment=STRANGER)
        assert ended.code == 0, ended.stderr
    assert not trace(scored_run).exists()


@pytest.mark.parametrize("command", [("eval",), ("train", "--resume"), ("export", "--out", "x"), ("doctor",)])
def test_code_that_comes_with_a_foreign_model_runs_only_if_trusted(assay_command, foreign, command):
    config = foreign / "config.toml"
    config.write_text(config.read_text().replace("trust_remote_code = false", "trust_remote_code = true"))
    verb, *options = command
    again = ["--recompute"] if verb == "doctor" else []
    ended = assay_command.run(verb, *options, foreign, *again, directory=foreign.parent)
    assert ended.code == 2
    assert "model.trust_remote_code runs the Python code that comes with embedded" in ended.sentences[-1]
    trusted = assay_command.run(verb, *options, foreign, *again, "--trust", directory=foreign.parent)
    assert "model.trust_remote_code runs" not in trusted.stderr


@pytest.mark.parametrize(
    "spec", ["os:system", "subprocess:call", "assay.train.evaluate.export:export_run", "rewards.mine:score"]
)
@pytest.mark.parametrize("command", [("eval", "--trust"), ("train", "--resume"), ("train",), ("reward-check",)])
def test_a_module_is_never_a_reward(assay_command, foreign, spec, command):
    verb, *options = command
    if options:
        config = foreign / "config.toml"
        lines = config.read_text().splitlines()
        changed = [f'functions = ["{spec}"]' if line.startswith("functions") else line for line in lines]
        config.write_text("\n".join(changed))
        ended = assay_command.run(verb, *options, foreign, "--trust")
    elif verb == "train":
        ended = assay_command.run(verb, *settings(reward__functions=spec), "--out", foreign.parent / "new")
    else:
        ended = assay_command.run(verb, spec)
    assert ended.code == 2
    if verb == "train" and options:  # a checkpoint knows what the run began with
        assert f"reward.functions = ['{spec}'], but update-" in ended.sentences[-1]
        shutil.rmtree(foreign / "checkpoints")
        (foreign / "checkpoints").mkdir()
        for name in ("metrics.jsonl", "timings.jsonl", "evaluations.jsonl", "checksums.jsonl"):
            (foreign / name).write_bytes(b"")
        ended = assay_command.run(verb, *options, foreign, "--trust")
    function = spec.rpartition(":")[2]
    assert f"{spec!r} names a module, and a reward function must stand in a file" in ended.sentences[-1]
    assert ended.sentences[-1].endswith(f".py:{function}")


def test_the_sentence_after_a_signal_goes_on_as_it_is(assay_command, scored_run, foreign):
    """With --trust where it is needed, without it where it is not, and with quotes around a path with spaces."""
    for options, surroundings in (((), {}), (("--trust",), STRANGER)):
        run = foreign.parent / f"my run {len(options)}"
        shutil.copytree(foreign, run)
        stop = [Trap("assay.train.step.learner:Learner.update", 1, "TERM")]
        more = ("--set", "run.steps=4")
        ended = assay_command.run("train", "--resume", run, *options, *more, traps=stop, environment=surroundings)
        assert ended.code == 128 + signal.SIGTERM, ended.stderr
        (said,) = [line for line in ended.stderr.splitlines() if "go on with: " in line]
        command = said.partition("go on with: ")[2]
        assert command == " ".join(["assay train --resume", f"'{run}'", *options])
        ended = assay_command.run("train", "--resume", run, *options, environment=surroundings)
        assert ended.code == 0, ended.stderr


def test_trust_is_about_a_run_that_exists(assay_command, run_path):
    ended = assay_command.run("train", *settings(), "--trust", "--out", run_path)
    assert ended.code == 2
    assert "--trust is only for --resume" in ended.sentences[0]
