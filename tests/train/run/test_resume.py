"""A run killed at any moment resumes to the same bits as one that was not.

Each kill strikes at an exact place (tests/fixtures/commands.py), picked at random among all passings of that place in
the uninterrupted run; that the child really died there is asserted.
"""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fixtures.cases import thorough
from fixtures.commands import Trap, assert_same_bits, contents, rows, settings

UPDATE = "assay.train.step.learner:Learner.update"
FILES_OF_A_NEW_RUN = 10  # writes and syncs before a run directory is one

# (place, when, how many kills): where a run spends its time, and every way it touches the disk. `make test` kills once
# at every second place, in a run of several passes over the data; `make proof` kills at all of them, in both variants.
PLACES = [
    ("assay.llama.cpu:CpuDecoder.advance", "before", 2),  # inside a rollout, or an evaluation
    ("assay.policy.causal:CausalPolicy.logprobs", "before", 3),  # between micro-batches, inside an epoch
    ("torch.optim:AdamW.step", "before", 1),
    ("torch.optim:AdamW.step", "after", 1),  # the weights have moved, nothing says so yet
    ("assay.train.run.checkpoint:save_file", "after", 1),  # some tensors of a checkpoint are written
    ("os:rename", "before", 1),  # a checkpoint is written aside, a rollout file too
    ("os:rename", "after", 1),
    ("os:fsync", "before", 2),
    ("os:write", "half-way", 2),  # a torn line, a torn state.json
    ("assay.train.run.checkpoint:shutil.rmtree", "before", 1),  # an old checkpoint is on its way out
    ("assay.record:RunDirectory.append_step", "before", 1),
    ("assay.record:RunDirectory.append_step", "after", 1),
    ("assay.train.run.recorder:evaluate", "after", 1),  # measured, but not yet written down
]
KILLS = [
    *(("mu=3", place, when, 0) for place, when, _ in PLACES[::2]),
    *thorough(*(("mu=3", place, when, 0) for place, when, _ in PLACES[1::2])),
    *thorough(*(("mu=3", place, when, turn) for place, when, turns in PLACES for turn in range(1, turns))),
    *thorough(*(("mu=1", place, when, turn) for place, when, turns in PLACES for turn in range(turns))),
]

VARIANTS = {
    "mu=1": settings(optimizer__epochs=1),
    "mu=3": settings(optimizer__epochs=3),
    "reference": settings(optimizer__epochs=2, loss__kl_coef=0.1),
    "KL in the reward": settings(optimizer__epochs=2, loss__kl_coef=0.1, loss__kl_placement="reward"),
    "refill": settings(optimizer__epochs=2, rollout__zero_variance="refill", rollout__refill_rounds=30),
    "bfloat16": settings(optimizer__epochs=2, model__dtype="bfloat16"),
    "top-k, a renewed reference": settings(
        optimizer__epochs=2,
        loss__kl_coef=0.1,
        loss__reference_every=1,
        rollout__top_k=5,
        rollout__top_p=0.9,
        evaluate__every=1,
    ),
    "adapters": settings(optimizer__epochs=2, loss__kl_coef=0.1, model__lora_rank=4),
}


@pytest.fixture(scope="module")
def straight_run(assay_command, run_root):
    """The uninterrupted run of a variant, and how often it passed each place; made once."""
    made = {}

    def straight(variant):
        if variant not in made:
            run = Path(tempfile.mkdtemp(dir=run_root)) / "run"
            places = sorted({place for place, _, _ in PLACES})
            ended = assay_command.run("train", *VARIANTS[variant], "--out", run, count=places, draws=True)
            assert ended.code == 0, ended.stderr
            # a run that never moves its weights would resume to the same bits however badly it is saved
            assert sum(row["updates_applied"] for row in rows(run / "metrics.jsonl")) > 1
            made[variant] = run, ended.passed
        return made[variant]

    return straight


def trap_in(passed, place, when, turn, seed):
    first = FILES_OF_A_NEW_RUN + 1 if place in ("os:write", "os:fsync") else 1
    numbers = list(range(first, passed[place] + 1))
    random.Random(f"{seed}/{place}/{when}").shuffle(numbers)
    return Trap(place, numbers[turn], "KILL", when)


def kill(assay_command, trap, *arguments):
    ended = assay_command.run("train", *arguments, traps=[trap], draws=True)
    assert ended.code == -signal.SIGKILL, f"{trap} was never reached: {ended.stderr}"


def resume(assay_command, run, draws=True):
    ended = assay_command.run("train", "--resume", run, draws=draws)
    assert ended.code == 0, ended.stderr


@pytest.mark.parametrize(("variant", "place", "when", "turn"), KILLS)
def test_a_killed_run_resumes_to_the_same_bits(assay_command, straight_run, run_path, variant, place, when, turn):
    straight, passed = straight_run(variant)
    kill(assay_command, trap_in(passed, place, when, turn, variant), *VARIANTS[variant], "--out", run_path)
    resume(assay_command, run_path)
    assert_same_bits(run_path, straight)


@pytest.mark.parametrize(
    ("place", "number", "when"),
    [
        ("assay.record:RunDirectory.rewind", 1, "before"),
        ("assay.record:RunDirectory.rewind", 1, "after"),
        ("os:rename", 3, "before"),
        *thorough(
            ("assay.train.run.saver:Saver.restore", 1, "after"),
            ("assay.policy.causal:CausalPolicy.logprobs", 2, "before"),
        ),
    ],
)
def test_a_run_killed_again_while_it_resumes_ends_in_the_same_bits(
    assay_command, straight_run, run_path, place, number, when
):
    straight, _ = straight_run("mu=3")
    kill(assay_command, Trap(UPDATE, 9, "KILL", "after"), *VARIANTS["mu=3"], "--out", run_path)
    kill(assay_command, Trap(place, number, "KILL", when), "--resume", run_path)
    resume(assay_command, run_path)
    assert_same_bits(run_path, straight)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not name.startswith("mu=")])
@pytest.mark.parametrize(
    ("place", "when"),
    [
        *thorough(("assay.policy.causal:CausalPolicy.logprobs", "before")),
        ("torch.optim:AdamW.step", "after"),
    ],
)
def test_references_refills_and_master_weights_resume_to_the_same_bits(
    assay_command, straight_run, run_path, variant, place, when
):
    straight, passed = straight_run(variant)
    holds = {path.name for path in max((straight / "checkpoints").iterdir()).iterdir()}
    assert ("reference.safetensors" in holds) == (variant not in ("refill", "bfloat16", "adapters"))
    assert ("masters.safetensors" in holds) == (variant == "bfloat16")
    if variant == "refill":
        assert any(row["refill_rounds"] > 0 for row in rows(straight / "metrics.jsonl"))
    kill(assay_command, trap_in(passed, place, when, 0, variant), *VARIANTS[variant], "--out", run_path)
    resume(assay_command, run_path)
    assert_same_bits(run_path, straight)


def test_equal_seeds_give_equal_bytes_and_other_seeds_others(assay_command, straight_run, run_path):
    straight, _ = straight_run("mu=1")
    for name, seed in (("same", 1), ("other", 2)):
        arguments = [*VARIANTS["mu=1"], "--set", f"run.seed={seed}", "--out", run_path.parent / name]
        ended = assay_command.run("train", *arguments, draws=True)
        assert ended.code == 0, ended.stderr
    assert_same_bits(run_path.parent / "same", straight)
    same, other = contents(run_path.parent / "same"), contents(run_path.parent / "other")
    assert sorted(same) == sorted(other)
    # beside its weights, the exported model is the same for every seed
    alike = {name for name in same if same[name] == other[name] and not name.startswith("final/")}
    assert alike == set()
    assert same["final/model.safetensors"] != other["final/model.safetensors"]


def test_a_longer_run_goes_on_where_the_shorter_one_ended(assay_command, straight_run, run_path):
    straight, _ = straight_run("mu=1")
    ended = assay_command.run("train", *VARIANTS["mu=1"], "--set", "run.steps=2", "--out", run_path, draws=True)
    assert ended.code == 0, ended.stderr
    ended = assay_command.run("train", "--resume", run_path, "--set", "run.steps=3", draws=True)
    assert ended.code == 0, ended.stderr
    longer, wanted = contents(run_path), contents(straight)
    # the shorter run was evaluated at its own end, too
    assert [row["step"] for row in rows(run_path / "evaluations.jsonl")] == [0, 2, 3]
    assert [name for name in wanted if longer[name] != wanted[name]] == ["evaluations.jsonl"]
    refused = assay_command.run("train", "--resume", run_path, "--set", "run.steps=2")
    assert refused.code == 2
    assert "run.steps = 2, but the run has done 3 steps" in refused.sentences[0]
    assert contents(run_path) == longer


def test_a_run_killed_while_its_directory_is_made_is_not_mistaken_for_one(assay_command, run_path):
    kill(assay_command, Trap("os:fsync", 3, "KILL"), *VARIANTS["mu=1"], "--out", run_path)
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert "is not a run directory" in ended.sentences[0]


def test_a_run_killed_before_its_first_checkpoint_starts_again(assay_command, straight_run, run_path):
    straight, _ = straight_run("mu=1")
    kill(
        assay_command,
        Trap("assay.train.run.recorder:evaluate", 1, "KILL", "after"),
        *VARIANTS["mu=1"],
        "--out",
        run_path,
    )
    assert list((run_path / "checkpoints").iterdir()) == []
    resume(assay_command, run_path)
    assert_same_bits(run_path, straight)


def test_a_run_that_is_being_trained_cannot_be_resumed_by_a_second_process(assay_command, half_done, run_path):
    shutil.copytree(half_done, run_path)
    before = contents(run_path)
    with (run_path / "run.json").open("r+b") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)  # as the process that trains holds it
        ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert "is being trained by another process" in ended.sentences[0]
    assert contents(run_path) == before


def test_a_run_in_training_holds_its_lock(assay_command, run_path):
    """The reward runs while the run is trained: it asks for the lock."""
    reward = run_path.parent / "reward.py"
    reward.write_text(
        "import fcntl\n"
        "def score(prompt, completion, answer):\n"
        f"    fcntl.flock(open({str(run_path / 'run.json')!r}, 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "    return 1.0\n"
    )
    ended = assay_command.run("train", *settings(reward__functions=f"{reward}:score"), "--out", run_path)
    assert ended.code == 1
    assert "raised BlockingIOError" in ended.sentences[0]


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def half_done(assay_command, straight_run, run_root):
    """A run killed inside its third step, with two checkpoints; the newer one lies inside the step."""
    run = Path(tempfile.mkdtemp(dir=run_root)) / "run"
    kill(assay_command, Trap(UPDATE, 17, "KILL", "after"), *VARIANTS["mu=3"], "--out", run)
    newest = max((run / "checkpoints").iterdir())
    assert json.loads((newest / "state.json").read_text())["work"] is not None
    return run


CHECKPOINT_FILES = [
    "manifest.json",
    "state.json",
    "weights.safetensors",
    "optimizer.safetensors",
    "generators.safetensors",
    "work.safetensors",
]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("manifest.json", "flipped"),
        ("optimizer.safetensors", "deleted"),
        ("weights.safetensors", "truncated"),
        ("work.safetensors", "flipped"),
        *thorough(  # test_checkpoint.py damages every file, without a run
            ("state.json", "flipped"),
            ("weights.safetensors", "flipped"),
            ("optimizer.safetensors", "flipped"),
            ("generators.safetensors", "flipped"),
            ("generators.safetensors", "deleted"),
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(
    assay_command, straight_run, half_done, run_path, name, damage
):
    straight, _ = straight_run("mu=3")
    shutil.copytree(half_done, run_path)
    older, newest = sorted((run_path / "checkpoints").iterdir())
    assert {path.name for path in newest.iterdir()} == set(CHECKPOINT_FILES)
    harm(newest / name, damage)
    ended = assay_command.run("train", "--resume", run_path, draws=True)
    assert ended.code == 0, ended.stderr
    (said,) = [line for line in ended.stderr.splitlines() if "damaged" in line]
    assert said.startswith(f"checkpoint {newest.name} is damaged: {name} ")
    assert said.endswith(f"; using {older.name} instead")
    assert [row["reason"] for row in rows(run_path / "events.jsonl") if row["kind"] == "damaged checkpoint"] == [said]
    assert f"resumed from {older.name}" in ended.stderr
    assert_same_bits(run_path, straight)


def harm(file, damage):
    data = file.read_bytes()
    if damage == "deleted":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(data[: len(data) // 2])
    else:
        middle = len(data) // 2
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_in_one_sentence(assay_command, half_done, run_path):
    shutil.copytree(half_done, run_path)
    for path in (run_path / "checkpoints").iterdir():
        harm(path / "weights.safetensors", "flipped")
    before = contents(run_path)
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert ended.stderr.splitlines() == ["importing torch and transformers ...", *ended.sentences]
    assert "holds no whole checkpoint" in ended.sentences[0]
    assert all(path.name in ended.sentences[0] for path in (run_path / "checkpoints").iterdir())
    assert contents(run_path) == before


def test_a_run_whose_checkpoints_are_gone_does_not_silently_start_again(assay_command, half_done, run_path):
    shutil.copytree(half_done, run_path)
    shutil.rmtree(run_path / "checkpoints")
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert "holds no checkpoint" in ended.sentences[0]
    assert len(rows(run_path / "metrics.jsonl")) == 2


def test_a_run_goes_on_with_the_settings_it_began_with(assay_command, half_done, run_path):
    shutil.copytree(half_done, run_path)
    config = run_path / "config.toml"
    config.write_text(config.read_text().replace("kl_coef = 0.0", "kl_coef = 0.5"))
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert "loss.kl_coef = 0.5, but update-" in ended.sentences[0]


def test_a_full_disk_ends_the_run_in_one_sentence_and_the_run_resumes(assay_command, straight_run, run_path):
    straight, _ = straight_run("mu=3")
    largest = (max((straight / "checkpoints").iterdir()) / "optimizer.safetensors").stat().st_size
    ended = assay_command.run("train", *VARIANTS["mu=3"], "--out", run_path, largest_file=largest - 1, draws=True)
    assert ended.code == 1
    assert len(ended.sentences) == 1
    assert "checkpoint update-00000002 was not written" in ended.sentences[0]
    assert "File too large" in ended.sentences[0]
    assert "update-00000000 is still there" in ended.sentences[0]
    assert "Traceback" not in ended.stderr
    assert rows(run_path / "events.jsonl")[-1]["kind"] == "failed"
    assert [path.name for path in (run_path / "checkpoints").iterdir()] == ["update-00000000"]
    resume(assay_command, run_path)
    assert_same_bits(run_path, straight)


# ---------------------------------------------------------------- the real thing


def test_a_real_process_killed_at_a_random_time_resumes_to_the_same_bits(assay_command, run_path):
    long = settings(run__steps=30, evaluate__prompts=0, checkpoint__every=9)
    assert assay_command.run("train", *long, "--out", run_path.parent / "straight").code == 0
    command = [sys.executable, "-m", "assay", "train"]
    with (run_path.parent / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *long, "--out", str(run_path)], env=assay_command.environment, stdout=log, stderr=log
        )
        wait_for(lambda: (run_path / "rollouts" / "step-000001.parquet").exists(), process)
        time.sleep(random.uniform(0.0, 0.2))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    resume(assay_command, run_path, draws=False)
    assert_same_bits(run_path, run_path.parent / "straight")


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
