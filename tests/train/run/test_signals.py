"""The first SIGTERM or SIGINT saves and ends the run with 143 or 130, wherever it lands; a later one ends it at once,
but for repeats right behind the first."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fixtures.cases import thorough
from fixtures.commands import Trap, assert_same_bits, rows, settings

from assay.train.run.interrupt import ONE_WISH, Interrupt, Interrupted

UPDATE = "assay.train.step.learner:Learner.update"
SETTINGS = settings(optimizer__epochs=3)

# scores like the task itself; where the environment says so, one call first sends its trainer a signal and then dawdles
REWARD = """
import os, pathlib, signal, time
calls = 0
def trainer():  # the parent of the supervisor, which is the parent of this process
    status = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(status.rpartition(")")[2].split()[1])
def score(prompt, completion, answer):
    global calls
    calls += 1
    if calls == int(os.environ.get("SIGNAL_AT_CALL", "0")):
        os.kill(trainer(), signal.SIGTERM)
        time.sleep(0.3)
    return float(completion == answer)
"""


@pytest.fixture(scope="module")
def straight(assay_command, run_root):
    run = Path(tempfile.mkdtemp(dir=run_root)) / "run"
    ended = assay_command.run("train", *SETTINGS, "--out", run, draws=True)
    assert ended.code == 0, ended.stderr
    return run


def assert_stopped_and_saved(ended, run, name):
    assert ended.code == {"SIGTERM": 143, "SIGINT": 130}[name], ended.stderr
    assert f"stopped by {name} and saved; go on with: assay train --resume {run}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert rows(run / "events.jsonl")[-1]["kind"] == "stopped"
    assert rows(run / "events.jsonl")[-1]["signal"] == name


def assert_resumes(assay_command, run, straight):
    ended = assay_command.run("train", "--resume", run, draws=True)
    assert ended.code == 0, ended.stderr
    assert_same_bits(run, straight)


PLACES = [
    ("first evaluation", "assay.llama.cpu:CpuDecoder.advance", 2, "SIGTERM"),
    ("rollout", "assay.engine.shared_weights:SharedWeightsEngine.generate", 2 + 2, "SIGINT"),
    ("scoring", "assay.tasks.sort_digits:SortDigits.score", 8 + 20, "SIGTERM"),
    ("between micro-batches", "assay.policy.causal:CausalPolicy.logprobs", 16 + 4 + 5, "SIGINT"),
    ("publishing a checkpoint", "assay.train.run.checkpoint:_publish", 3, "SIGINT"),
    ("last evaluation", "assay.train.run.recorder:evaluate", 2, "SIGTERM"),
]
MORE_PLACES = [
    ("old log-probs", "assay.policy.causal:CausalPolicy.logprobs", 2, "SIGTERM"),
    ("update", UPDATE, 9, "SIGTERM"),
    ("optimizer step", "torch.optim:AdamW.step", 1, "SIGTERM"),
    ("checkpoint", "assay.train.run.checkpoint:save_file", 8, "SIGTERM"),
    ("record", "assay.record:RunDirectory.append_step", 2, "SIGTERM"),
]


@pytest.mark.parametrize(
    ("where", "place", "number", "name"),
    [*PLACES, *thorough(*MORE_PLACES)],
)
def test_a_signal_anywhere_saves_and_the_run_resumes_to_the_same_bits(
    assay_command, straight, run_path, where, place, number, name
):
    trap = Trap(place, number, name.removeprefix("SIG"))
    ended = assay_command.run("train", *SETTINGS, "--out", run_path, traps=[trap], draws=True)
    assert_stopped_and_saved(ended, run_path, name)
    assert_resumes(assay_command, run_path, straight)


def test_a_signal_after_an_inner_update_keeps_that_update(assay_command, straight, run_path):
    trap = Trap(UPDATE, 3, "TERM", "after")
    ended = assay_command.run(
        "train", *SETTINGS, "--set", "checkpoint.every=1000", "--out", run_path, traps=[trap], draws=True
    )
    assert_stopped_and_saved(ended, run_path, "SIGTERM")
    assert max(path.name for path in (run_path / "checkpoints").iterdir()) == "update-00000003"


def test_a_signal_while_the_users_reward_dawdles_saves(assay_command, run_path):
    reward = run_path.parent / "reward.py"
    reward.write_text(REWARD)
    arguments = [*SETTINGS, "--set", f"reward.functions={reward}:score"]
    straight = run_path.parent / "straight"
    assert assay_command.run("train", *arguments, "--out", straight, draws=True).code == 0
    # 20 answers are scored in the first evaluation and 16 in the first step, so that call 41 lies in the second
    ended = assay_command.run("train", *arguments, "--out", run_path, environment={"SIGNAL_AT_CALL": "41"}, draws=True)
    assert_stopped_and_saved(ended, run_path, "SIGTERM")
    assert len(rows(run_path / "metrics.jsonl")) == 1
    assert_resumes(assay_command, run_path, straight)


def test_a_second_run_can_be_stopped_too(assay_command, straight, run_path):
    first, second = Trap(UPDATE, 5, "TERM"), Trap(UPDATE, 4, "INT")
    ended = assay_command.run("train", *SETTINGS, "--out", run_path, traps=[first], draws=True)
    assert_stopped_and_saved(ended, run_path, "SIGTERM")
    ended = assay_command.run("train", "--resume", run_path, traps=[second], draws=True)
    assert_stopped_and_saved(ended, run_path, "SIGINT")
    assert_resumes(assay_command, run_path, straight)


def test_a_signal_in_the_warm_start_leaves_no_run_behind(assay_command, run_path):
    trap = Trap("torch.optim:AdamW.step", 2, "TERM")
    # a number of warm steps that no cache holds yet
    arguments = [*SETTINGS, "--set", "model.warm_steps=7", "--out", run_path]
    ended = assay_command.run("train", *arguments, traps=[trap], draws=True)
    assert ended.code == 143
    assert ended.stderr.splitlines()[2:] == ["stopped by SIGTERM before training began; there is nothing to save"]
    assert not run_path.exists()


@pytest.mark.parametrize(("second", "code"), [("TERM", 143), ("INT", 130)])
def test_a_later_signal_ends_the_run_at_once(assay_command, straight, run_path, second, code):
    place = "assay.train.run.checkpoint:save_file"
    traps = [Trap(place, 8, "TERM"), Trap(place, 8, second, "after", pause=ONE_WISH)]
    ended = assay_command.run("train", *SETTINGS, "--out", run_path, traps=traps, draws=True)
    assert ended.code == code
    # neither saved nor announced: it was inside a checkpoint, whose remains lie about until the run goes on
    assert "saved" not in ended.stderr
    assert "stopped" not in [row["kind"] for row in rows(run_path / "events.jsonl")]
    assert [path.name for path in (run_path / "checkpoints").glob(".tmp-*")] != []
    assert_resumes(assay_command, run_path, straight)


@pytest.mark.parametrize("second", ["INT", *thorough("TERM")])
def test_a_signal_that_is_sent_twice_at_once_is_one(assay_command, straight, run_path, second):
    traps = [Trap(UPDATE, 5, "TERM"), Trap(UPDATE, 5, second)]
    ended = assay_command.run("train", *SETTINGS, "--out", run_path, traps=traps, draws=True)
    assert_stopped_and_saved(ended, run_path, "SIGTERM")
    assert_resumes(assay_command, run_path, straight)


def test_repeats_are_counted_from_the_first_signal(monkeypatch):
    clock, left = [50.0], []
    monkeypatch.setattr("assay.train.run.interrupt.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("assay.train.run.interrupt.os._exit", left.append)
    with Interrupt() as interrupt:
        for moment, number in ((50.0, signal.SIGTERM), (50.7, signal.SIGINT), (50.99, signal.SIGTERM)):
            clock[0] = moment
            signal.raise_signal(number)
        assert left == []
        assert interrupt.received == signal.SIGTERM  # the first names the wish
        clock[0] = 51.0
        signal.raise_signal(signal.SIGINT)
        assert left == [130]


def test_handlers_are_put_back(assay_command, run_path):
    def handler(number, frame):
        """The one that the caller had installed."""

    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Interrupt() as interrupt:
            assert signal.getsignal(signal.SIGTERM) != handler
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Interrupted) as stopped:
                interrupt.check()
        assert stopped.value.exit_code == 143
        assert [signal.getsignal(number) for number in before] == [handler, handler]
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def test_a_real_process_stops_on_a_signal_from_outside(assay_command, run_path):
    arguments = settings(run__steps=500, evaluate__prompts=0, checkpoint__every=1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "train", *arguments, "--out", str(run_path)],
        env=assay_command.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (run_path / "rollouts" / "step-000002.parquet").exists():
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stderr = process.communicate()[1]
    assert process.returncode == 143
    assert "stopped by SIGTERM and saved" in stderr
    done = len(rows(run_path / "metrics.jsonl"))
    ended = assay_command.run("train", "--resume", run_path, "--set", f"run.steps={done + 1}")
    assert ended.code == 0, ended.stderr
    assert len(rows(run_path / "metrics.jsonl")) == done + 1
