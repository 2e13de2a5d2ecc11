"""Bad input gets one clear sentence: no traceback, exit code 2 (usage) or 1 (failed run), nothing half-written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from fixtures.cases import thorough
from fixtures.commands import rows, settings, without_progress
from safetensors import safe_open
from safetensors.torch import load_file

# settings under which scoring is all that a run does
SHORT = settings(run__steps=1, evaluate__prompts=0, optimizer__epochs=1, reward__timeout=0.2)


def assert_refused(ended, code, *words):
    """Exactly one sentence on stderr apart from progress, holding all the words; indented lines may say more."""
    assert ended.code == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.sentences) == 1, ended.stderr
    lines = ended.stderr.splitlines()
    assert all(line.startswith("  ") for line in lines[lines.index(ended.sentences[0]) + 1 :]), ended.stderr
    missing = [word for word in words if word not in ended.sentences[0]]
    assert missing == [], ended.sentences[0]


def refuse_settings(assay_command, run_path, changes, *words):
    """The refusal is all that happens: nothing else is said and nothing is written."""
    arguments = [part for change in changes for part in ("--set", change)]
    ended = assay_command.run("train", *settings(), *arguments, "--out", run_path)
    assert_refused(ended, 2, *words)
    assert without_progress(ended.stderr)[0] == ended.sentences[0]
    assert not run_path.exists()


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["run.stepz=5"], ["unknown setting run.stepz", "did you mean 'run.steps'"]),
        (["rum.steps=5"], ["unknown section [rum]", "did you mean 'run'"]),
        (["steps=5"], ["lacks the section", "Assay calls it run.steps"]),
        (["run.steps"], ["not of the form section.key=value"]),
        (["run.steps=many"], ["run.steps = 'many' must be a whole number"]),
        (["run.steps=2.5"], ["run.steps = 2.5 must be a whole number"]),
        (["run.steps=0"], ["run.steps = 0 is below its minimum 1"]),
        (["optimizer.learning_rate=nan"], ["optimizer.learning_rate = nan is not a finite number"]),
        (["optimizer.learning_rate=fast"], ["optimizer.learning_rate = 'fast' must be a number"]),
        (["rollout.zero_variance=refil"], ["rollout.zero_variance = 'refil'", "did you mean 'refill'"]),
        (["rollout.group_size=1"], ["rollout.group_size = 1", "a group of one has nobody to be compared with"]),
        (["optimizer.minibatches=3"], ["16 rows cannot be cut evenly", "optimizer.minibatches = 3"]),
        (["optimizer.microbatches=9"], ["16 rows are fewer than"]),
        (["task.options.min_digits=9"], ["task.options.min_digits = 9 exceeds task.options.max_digits = 3"]),
        (["loss.dual_clip=1.1"], ["loss.dual_clip = 1.1 must exceed 1 + loss.clip_high"]),
        (["loss.objective=grpp"], ["loss.objective = 'grpp' is not one of", "did you mean 'grpo'"]),
        (["task.options.max_digits=60", "task.options.min_digits=60"], ["has 61 tokens", "context is 64", "lower"]),
        (["model.path=/no/such/model"], ["model.path = '/no/such/model'", "neither a directory"]),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused_before_anything_is_written(assay_command, run_path, changes, words):
    refuse_settings(assay_command, run_path, changes, *words)


def test_a_gpu_that_is_not_there_is_refused(assay_command, run_path):
    ended = assay_command.run(
        "train",
        *settings(run__device="cuda"),
        "--out",
        run_path,
        environment={"CUDA_VISIBLE_DEVICES": ""},  # on a machine that has one, it is hidden
    )
    assert_refused(ended, 2, "run.device = 'cuda', but torch sees no GPU", "run.device = 'cpu'")
    assert not run_path.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run\nsteps = 3", ["not valid TOML", "line 1"]),
        ("steps = 3", ["'steps' stands outside a section"]),
        ("[optimiser]\nepochs = 3", ["unknown section [optimiser]", "did you mean 'optimizer'"]),
        ("[optimizer]\nepoch = 3", ["unknown setting optimizer.epoch", "did you mean 'optimizer.epochs'"]),
        ("[optimizer]\nepochs = '3'", ["optimizer.epochs = '3' must be a whole number"]),
        (b"[run]\nname = '\xff'", ["not valid TOML"]),
    ],
)
def test_a_config_file_that_cannot_be_run_is_refused_by_name(assay_command, run_path, text, words):
    config = run_path.parent / "my.toml"
    config.write_bytes(text.encode() if isinstance(text, str) else text)
    ended = assay_command.run("train", config, "--out", run_path)
    assert_refused(ended, 2, str(config), *words)
    assert len(without_progress(ended.stderr)) == 1
    assert not run_path.exists()


def test_a_config_file_that_is_missing_or_a_directory_is_refused_by_name(assay_command, run_path):
    ended = assay_command.run("train", run_path.parent / "my.toml", "--out", run_path)
    assert_refused(ended, 2, "my.toml: No such file or directory", "give the path of a TOML file")
    ended = assay_command.run("train", run_path.parent, "--out", run_path)
    assert_refused(ended, 2, "Is a directory")
    assert not run_path.exists()


# ---------------------------------------------------------------- places


def test_missing_parents_of_the_run_directory_are_made(assay_command, run_path):
    assert assay_command.run("train", *SHORT, "--out", run_path / "a" / "b").code == 0
    assert len(rows(run_path / "a" / "b" / "metrics.jsonl")) == 1


def test_a_run_directory_that_cannot_be_made_is_refused(assay_command, run_path):
    file = run_path.parent / "notes.txt"
    file.write_text("mine")
    full = run_path.parent / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine too")
    for place, words in (
        (file, ["notes.txt is a file", "choose another directory with --out"]),
        (file / "run", ["cannot be created", "Not a directory"]),
        (full, ["is not empty", "choose another directory with --out"]),
        ("/proc/nope", ["/proc/nope cannot be created"]),
    ):
        assert_refused(assay_command.run("train", *SHORT, "--out", place), 2, *words)
    assert file.read_text() == "mine"
    assert [path.name for path in full.iterdir()] == ["thesis.tex"]


def test_a_run_that_exists_is_not_overwritten(assay_command, run_path):
    assert assay_command.run("train", *SHORT, "--out", run_path).code == 0
    before = {path: path.stat().st_mtime_ns for path in run_path.rglob("*")}
    ended = assay_command.run("train", *SHORT, "--out", run_path)
    assert_refused(ended, 2, "is not empty", "resume the run in it")
    assert {path: path.stat().st_mtime_ns for path in run_path.rglob("*")} == before


def test_only_a_run_can_be_resumed_and_only_as_it_is(assay_command, run_path):
    run_path.mkdir()
    file = run_path.parent / "notes.txt"
    file.write_text("mine")
    for arguments, words in (
        (["--resume", run_path], ["is not a run directory", "run.json"]),
        (["--resume", run_path / "missing"], ["does not exist"]),
        (["--resume", file], ["notes.txt is a file"]),
        (["--resume", run_path, "--out", run_path], ["leave out CONFIG and --out"]),
        (["my.toml", "--resume", run_path], ["leave out CONFIG and --out"]),
        (["--resume", run_path, "--set", "loss.kl_coef=1"], ["loss.kl_coef=1", "use --change loss.kl_coef=1"]),
        (["--resume", run_path, "--set", "run.steps=none"], ["run.steps = 'none' must be a whole number"]),
        (["--resume", run_path, "--print-config"], ["leave out --resume"]),
    ):
        assert_refused(assay_command.run("train", *arguments), 2, *words)
    assert list(run_path.iterdir()) == []


def test_a_schedule_that_ends_cannot_be_made_longer_half_way(assay_command, run_path):
    assert assay_command.run("train", *SHORT, "--set", "optimizer.schedule=linear", "--out", run_path).code == 0
    ended = assay_command.run("train", "--resume", run_path, "--set", "run.steps=50")
    assert_refused(ended, 2, "would move the end of the linear learning-rate schedule")


# ---------------------------------------------------------------- rewards

HEAD = "import os, signal, sys, time\ndef score(prompt, completion, answer):\n"


def write_reward(run_path, text):
    file = run_path.parent / "reward.py"
    file.write_text(text)
    return f"{file}:score"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return float('nan')", ["returned nan"]),
        ("return 1e300", ["returned 1e+300", "cannot be normalised"]),
        ("return [1.0, 2.0]", ["returned 2 step rewards for an answer of 1 steps"]),
        ("raise ValueError('line one\\nline two \\x1b[2J')", ["raised ValueError: line one line two [2J"]),
        ("while True: time.sleep(1)", ["took longer than 0.2 s"]),
        ("os._exit(4)", ["its process exited with 4"]),
        *thorough(  # tests/rewards has them without a run
            ("return float('-inf')", ["returned -inf"]),
            ("return {'a': 1e308, 'b': 1e308}", ["returned 1e+308", "cannot be normalised"]),
            ("return None", ["returned None"]),
            ("return '1.0'", ["returned the text '1.0', not a number"]),
            ("return [object()]", ["not a number"]),
            ("return {}", ["returned an empty dict"]),
            ("return {'style': None}", ["returned None as 'style'"]),
            ("sys.exit(3)", ["raised SystemExit: 3"]),
            ("os.kill(os.getpid(), signal.SIGSEGV)", ["its process died (SIGSEGV)"]),
            ("os.closerange(3, 256); time.sleep(60)", ["its process closed the connection"]),
        ),
    ],
)
def test_a_reward_that_never_works_ends_the_run_with_its_reason(assay_command, run_path, body, words):
    spec = write_reward(run_path, f"{HEAD}    {body}\n")
    # one failure is enough: the time-outs of many would be a long test
    arguments = [*SHORT, "--set", f"reward.functions={spec}", "--set", "reward.max_failed=0", "--out", run_path]
    ended = assay_command.run("train", *arguments)
    assert_refused(ended, 1, "could not be computed for 1 of 1 completions", spec, *words)
    assert rows(run_path / "events.jsonl")[-1]["kind"] == "failed"
    assert rows(run_path / "metrics.jsonl") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def score(:\n", ["could not be loaded: SyntaxError", "reward.py, line 1"]),
        ("def scoer(prompt, completion, answer): return 1.0\n", ["has no function 'score'"]),
        ("score = 3\n", ["has no function 'score'"]),
        ("import no_such_library\n", ["could not be loaded: ModuleNotFoundError", "no_such_library"]),
        ("import sys; sys.exit(5)\n", ["could not be loaded: SystemExit: 5"]),
        ("import os; os._exit(6)\n", ["could not be loaded: its process exited with 6"]),
    ],
)
def test_a_reward_file_that_cannot_be_loaded_is_refused(assay_command, run_path, text, words):
    spec = write_reward(run_path, text)
    refuse_settings(assay_command, run_path, [f"reward.functions={spec}"], spec, *words)


def test_a_reward_that_is_not_there_is_refused(assay_command, run_path):
    refuse_settings(assay_command, run_path, ["reward.functions=missing.py:score"], "there is no file", "missing.py")
    refuse_settings(assay_command, run_path, ["reward.functions=missing.py"], "not of the form file.py:function")


def test_a_reward_that_fails_sometimes_is_recorded_sample_by_sample_and_never_as_0(assay_command, run_path):
    """Every fifth call fails, each time in another way; the process that a failure ends is started again."""
    ways = [
        "raise KeyError('unit')",
        "return float('nan')",
        "os._exit(1)",
    ]
    counter = run_path.parent / "calls"
    counter.write_text("")
    text = f"{HEAD}    with open({str(counter)!r}, 'a+') as file: calls = file.write('.') and file.tell()\n"
    for turn, way in enumerate(ways):
        text += f"    if calls % 15 == {5 * turn + 4}: {way}\n"
    spec = write_reward(run_path, text + "    return float(completion == answer)\n")
    changes = {"run__steps": 2, "reward__functions": spec, "reward__max_failed": 0.4, "reward__min_scored": 0.25}
    ended = assay_command.run("train", *settings(**changes, evaluate__prompts=0), "--out", run_path)
    assert ended.code == 0, ended.stderr
    recorded = [
        row
        for file in sorted((run_path / "rollouts").iterdir())
        for row in pyarrow.parquet.read_table(file, columns=["reward", "error", "advantage"]).to_pylist()
    ]
    assert len(recorded) == 2 * 16
    failed = {number + 1: row for number, row in enumerate(recorded) if row["error"]}
    assert {number: row["error"] for number, row in failed.items()} == {
        4: "score: raised KeyError: 'unit'",
        9: "score: returned nan",
        14: "score: its process exited with 1",
        19: "score: raised KeyError: 'unit'",
        24: "score: returned nan",
        29: "score: its process exited with 1",
    }
    assert all(row["reward"] is None and row["advantage"] == 0.0 for row in failed.values())
    assert all(row["reward"] in (0.0, 1.0) for number, row in enumerate(recorded) if number + 1 not in failed)
    assert [row["rollouts_unscored"] for row in rows(run_path / "metrics.jsonl")] == [3, 3]


def test_a_reward_that_prints_and_reads_its_input_does_not_disturb_the_run(assay_command, run_path):
    answer = '{"components": {"reward": 9}}'
    spec = write_reward(run_path, f"{HEAD}    print({answer!r})\n    return len(sys.stdin.read())\n")
    ended = assay_command.run("train", *SHORT, "--set", f"reward.functions={spec}", "--out", run_path)
    assert ended.code == 0, ended.stderr
    assert ended.stdout == ""
    assert rows(run_path / "metrics.jsonl")[0]["reward_max"] == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a hanging reward outlives a killed trainer")
def test_a_reward_that_hangs_dies_with_a_killed_trainer(assay_command, run_path):
    pid = run_path.parent / "pid"
    trainer = "int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"  # of the supervisor
    body = f"open({str(pid)!r}, 'w').write(str(os.getpid())); os.kill({trainer}, signal.SIGKILL)"
    spec = write_reward(run_path, f"{HEAD}    {body}\n    while True: pass\n")
    ended = assay_command.run("train", *settings(reward__functions=spec), "--out", run_path)
    assert ended.code == -signal.SIGKILL
    state = Path("/proc", pid.read_text(), "stat")
    for _ in range(500):
        if not state.exists() or state.read_text().split(") ")[1].startswith("Z"):  # Z: dead, not yet reaped
            return
        time.sleep(0.02)
    raise AssertionError("the reward is still running")


def test_a_reward_that_breaks_loses_no_step_and_the_run_goes_on_once_it_is_repaired(assay_command, run_path):
    repaired = run_path.parent / "repaired"
    body = (
        "    global calls; calls += 1\n"
        f"    if calls > 40 and not os.path.exists({str(repaired)!r}): raise ValueError('broken')\n"
        "    return float(completion == answer)\n"
    )
    spec = write_reward(run_path, "calls = 0\n" + HEAD + body)
    arguments = settings(reward__functions=spec, evaluate__prompts=0, run__steps=4, checkpoint__every=1000)
    ended = assay_command.run("train", *arguments, "--out", run_path)
    assert_refused(ended, 1, "raised ValueError: broken")
    assert len(rows(run_path / "metrics.jsonl")) == 2  # 16 calls a step: it broke in the third
    newest = max(path.name for path in (run_path / "checkpoints").iterdir())
    assert newest > "update-00000000"  # saved when it broke, not only at the start
    repaired.touch()
    resumed = assay_command.run("train", "--resume", run_path)
    assert resumed.code == 0
    assert f"resumed from {newest}" in resumed.stderr
    straight = run_path.parent / "straight"
    assert assay_command.run("train", *arguments, "--out", straight).code == 0
    assert (run_path / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()


# ---------------------------------------------------------------- policies that go wrong


def test_updates_that_are_not_finite_are_skipped_counted_dumped_and_soon_end_the_run(assay_command, run_path):
    arguments = settings(optimizer__learning_rate=1e30, optimizer__epochs=4, checkpoint__every=1)
    ended = assay_command.run("train", *arguments, "--out", run_path)
    assert_refused(ended, 1, "3 updates in a row were not finite", "dumps", "lower optimizer.learning_rate")
    dumps = sorted((run_path / "dumps").iterdir())
    assert [dump.name for dump in dumps] == [f"step-000001-update-{number}.safetensors" for number in (2, 3, 4)]
    events = rows(run_path / "events.jsonl")
    assert [event["update"] for event in events if event["kind"] == "skipped update"] == [2, 3, 4]
    for dump in dumps:
        with safe_open(dump, framework="pt") as stored:
            assert "is nan" in stored.metadata()["reason"]
            assert "0.ids_RS" in stored.keys()  # noqa: SIM118, not a mapping
    # the one update that was sound has blown the weights up; whatever came after it never touched them
    older, newest = (load_file(path / "weights.safetensors") for path in sorted((run_path / "checkpoints").iterdir()))
    assert all(weight.isfinite().all() for weight in newest.values())
    assert all(newest[name].equal(older[name]) for name in newest)


def test_a_policy_that_cannot_be_sampled_from_ends_the_run(assay_command, run_path):
    arguments = settings(optimizer__learning_rate=1e30, optimizer__epochs=1, optimizer__minibatches=1)
    ended = assay_command.run("train", *arguments, "--out", run_path)
    assert_refused(ended, 1, "probabilities of the next token are not finite", "lower the learning rate")
    assert rows(run_path / "events.jsonl")[-1]["kind"] == "failed"


def test_refilling_with_a_constant_reward_ends_with_the_reason(assay_command, run_path):
    spec = write_reward(run_path, f"{HEAD}    return 0.25\n")
    changes = {"reward__functions": spec, "rollout__zero_variance": "refill", "rollout__refill_rounds": 2}
    ended = assay_command.run("train", *settings(**changes, evaluate__prompts=0), "--out", run_path)
    assert_refused(ended, 1, "found only 0 of 4 groups", "2 rounds (8 prompts)", "mean reward is 0.250", "constant")


def test_a_prompt_that_is_too_long_only_later_ends_the_run(assay_command, run_path):
    # of 2 to 60 digits, the first prompts of seed 5 happen to fit
    fits = settings(task__options__max_digits=60, run__seed=5, rollout__prompts=2, run__steps=50, evaluate__prompts=0)
    ended = assay_command.run("train", *fits, "--out", run_path)
    assert_refused(ended, 1, "context is 64", "max_tokens")
    assert rows(run_path / "events.jsonl")[-1]["kind"] == "failed"


# ---------------------------------------------------------------- the real thing


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--set", "run.stepz=5"], 2, "unknown setting run.stepz"),
        (["no-such-file.toml"], 2, "no-such-file.toml: No such file or directory"),
        (["--resume", "no-such-run"], 2, "no-such-run does not exist"),
    ],
)
def test_a_real_process_says_one_sentence_and_exits(assay_command, tmp_path, arguments, code, words):
    ended = subprocess.run(
        [sys.executable, "-m", "assay", "train", *arguments],
        cwd=tmp_path,
        env=assay_command.environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code
    assert ended.stdout == ""
    (sentence,) = ended.stderr.splitlines()
    assert words in sentence
    assert list(tmp_path.iterdir()) == []
