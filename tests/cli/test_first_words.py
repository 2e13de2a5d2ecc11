"""What a person sees of a run: something at once, where it is written, completions now and then, the end last."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixtures.commands import settings
from fixtures.terminal_rows import shown_rows

ROOT = Path(__file__).parents[2]
TWO_REWARDS = """
def right(prompt, completion, answer):
    return float(completion == answer)

def brief(prompt, completion, answer):
    return 1.0 - len(completion) / 10
"""


def test_something_is_said_before_torch_is_imported():
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise SystemExit(9)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from assay.cli import app\n"
        "app(['train'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (9, "importing torch and transformers ...\n")


def test_a_name_that_is_taken_is_said_with_the_one_that_is_used(assay_command, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    ended = assay_command.run("train", *settings(run__name="mine", run__steps=1), directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert ended.stderr.splitlines()[0] == "runs/mine exists, writing to runs/mine-2"
    assert re.search(r"^run +runs/mine-2$", ended.stderr, re.MULTILINE)
    assert (tmp_path / "runs/mine-2/metrics.jsonl").read_text()


def test_a_log_opens_with_the_facts_and_fits_a_hundred_columns(assay_command, tmp_path):
    ended = assay_command.run("train", *settings(), "--out", "run", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    labels = [line.split()[0] for line in ended.stderr.splitlines()[2:9]]
    assert labels == ["run", "model", "task", "reward", "device", "rate", "step"]
    assert max(map(len, ended.stderr.splitlines())) <= 120
    steps = [line for line in ended.stderr.splitlines() if line.startswith("step=")]
    assert [line.split()[0] for line in steps] == ["step=1/3", "step=2/3", "step=3/3"]


def titles(text):
    return re.findall(r"^step (\d+): best and worst answer to 2 of 4 prompts$", text, re.MULTILINE)


def test_completions_are_printed_at_the_first_and_the_last_step_and_can_be_turned_off(assay_command, tmp_path):
    (tmp_path / "mine.py").write_text(TWO_REWARDS)
    rewards = settings(reward__functions='["mine.py:right", "mine.py:brief"]', log__completions=2)
    ended = assay_command.run("train", *rewards, "--out", "run", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert titles(ended.stderr) == ["1", "3"]
    header = "prompt completion brief right reward advantage".split()
    assert [line.split() for line in ended.stderr.splitlines()].count(header) == 2
    assert re.search(r"^step=1/3 reward=\S+ brief=\S+ right=\S+ ", ended.stderr, re.MULTILINE)
    assert re.search(r"^  right +\S+ -> \S+; held-out greedy", ended.stderr, re.MULTILINE)
    silent = assay_command.run("train", *settings(log__completions=0), "--out", "silent", directory=tmp_path)
    assert titles(silent.stderr) == []


def test_the_config_of_a_run_holds_numbers_where_it_was_given_auto(assay_command, tmp_path):
    automatic = settings(optimizer__learning_rate="auto", optimizer__warmup="auto", run__steps=5)
    ended = assay_command.run("train", *automatic, "--out", "run", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    kept = (tmp_path / "run/config.toml").read_text()
    assert "learning_rate = 0.0007\n" in kept
    assert "warmup = 2\n" in kept  # of 20 updates
    assert '"auto"' not in kept


@pytest.mark.skipif(not hasattr(os, "forkpty"), reason="needs a terminal")
def test_after_ctrl_c_the_last_sentence_stands_below_the_live_area(tmp_path):
    shown = in_a_terminal(["train", *settings(run__steps=500), "--out", str(tmp_path / "run")], r"after step [1-9]")
    assert "stopped by SIGINT and saved" in shown[-1]
    assert any("zero-variance" in line for line in shown[-12:-1])


def in_a_terminal(arguments, until):
    """The lines on the screen after a match of `until` was drawn, Ctrl-C was pressed and the command had ended."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job inherits that it is ignored
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="40", OMP_NUM_THREADS="1")
        os.execv(sys.executable, [sys.executable, "-m", "assay", *arguments])
    data, pressed, deadline = b"", False, time.monotonic() + 300
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                data += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
        if not pressed and re.search(until.encode(), data):
            os.write(terminal, b"\x03")
            pressed = True
    os.waitpid(child, 0)
    return shown_rows(data.decode(errors="replace"))


def test_make_says_what_it_installs_and_shows_a_dot_for_each_package():
    make = ["make", "--dry-run", "--always-make", ".venv/ready"]
    commands = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    slow = [number for number, command in enumerate(commands) if "pip install" in command or "-m venv" in command]
    assert len(slow) == 4
    assert all(commands[number - 1].startswith("echo ") for number in slow)
    pip = [command for command in commands if "pip install" in command]
    assert all("| awk" in command and "Collecting" in command for command in pip)


def test_an_installation_that_fails_is_not_hidden_by_its_dots(tmp_path):
    """`python` is replaced by a program that makes a pip that fails."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\nif [ "$1" = -m ]; then mkdir -p .venv/bin\n'
        "printf '#!/bin/sh\\necho Collecting torch\\nexit 7\\n' > .venv/bin/pip; chmod +x .venv/bin/pip; fi\n"
    )
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    make = ["make", "--no-print-directory", f"PYTHON={python}", ".venv/ready"]  # `make test` runs this test in a make
    ended = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode != 0
    assert ended.stdout.splitlines()[-1] == "."
    assert not (tmp_path / ".venv/ready").exists()
