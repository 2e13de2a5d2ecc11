"""What needs no model to be refused is refused before torch is imported, which takes seconds."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from assay.cli import app

REFUSALS = {
    "occupied directory": (["train", "--out", "occupied"], "occupied is not empty"),
    "unknown setting": (["train", "--set", "run.stepz=3"], "unknown setting run.stepz"),
    "missing config": (["train", "missing.toml"], "missing.toml: No such file"),
    "unknown task": (["train", "--set", "task.name=chain_sums"], "did you mean 'reasoning_gym/chain_sum'?"),
    "missing rows": (["train", "--set", "task.name=missing.jsonl"], "missing.jsonl: there is no such file"),
    "unknown option": (["train", "--set", "task.options.digits=3"], "unknown option task.options.digits"),
    "missing model": (["train", "--set", "model.path=missing"], "model.path = 'missing' is neither"),
    "missing GGUF": (["train", "--set", "model.path=missing.gguf"], "there is no such file"),
    "missing reward": (["train", "--set", "reward.functions=missing.py:score"], "there is no file missing.py"),
    "missing judge": (
        ["train", "--set", "reward.functions=judge", "--set", "judge.path=missing"],
        "judge.path = 'missing' is not a Hugging Face model directory",
    ),
    "long name": (["train", "--set", f"task.name={'x' * 300}"], "is not a built-in task"),
    "missing run to resume": (["train", "--resume", "missing"], "missing does not exist"),
    "missing run to evaluate": (["eval", "missing"], "missing does not exist"),
    "missing config of an evaluation": (["eval", "model", "--config", "missing.toml"], "missing.toml: No such file"),
    "missing run to export": (["export", "missing", "--out", "new"], "missing does not exist"),
}
# all commands in one process: what one of them imports is seen after it
SCRIPT = """
import contextlib, io, json, sys
from assay.cli import app
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            app(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue(), [name for name in ("torch", "transformers") if name in sys.modules]]))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """name -> [exit code, what was said, what was imported]"""
    place = tmp_path_factory.mktemp("early")
    (place / "occupied").mkdir()
    (place / "occupied/mine.txt").touch()
    commands = json.dumps([arguments for arguments, _ in REFUSALS.values()])
    done = subprocess.run([sys.executable, "-c", SCRIPT, commands], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in place.iterdir()) == ["occupied"]
    return dict(zip(REFUSALS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_that_needs_no_model_comes_before_torch_is_imported(ended, name):
    code, said, imported = ended[name]
    assert (code, imported) == (2, [])
    assert REFUSALS[name][1] in said
    assert said.startswith("assay: ")
    assert len(said.splitlines()) == 1


def refuse(*arguments):
    ended = CliRunner().invoke(app, ["train", *arguments])
    assert ended.exit_code == 2
    return ended.stderr.splitlines()


def test_all_that_is_missing_is_said_at_once(tmp_path):
    (tmp_path / "mine.txt").touch()
    wrong = ["model.path=missing", "task.name=missing.jsonl", "reward.functions=missing.py:score"]
    said = refuse(*(part for setting in wrong for part in ("--set", setting)), "--out", str(tmp_path))
    words = [f"{tmp_path} is not empty", "model.path =", "missing.jsonl: there is no", "reward.functions ="]
    assert [line.startswith(f"assay: {word}") for line, word in zip(said, words, strict=True)] == [True] * 4


def test_all_settings_that_are_wrong_are_printed_line_by_line(tmp_path):
    assert refuse("--set", "lr=3", "--set", "run.steps=x", "--out", str(tmp_path / "run")) == [
        "assay: --set 'lr=3' lacks the section of its setting; Assay calls it optimizer.learning_rate",
        "assay: run.steps = 'x' must be a whole number, not str",
    ]
    assert list(tmp_path.iterdir()) == []
