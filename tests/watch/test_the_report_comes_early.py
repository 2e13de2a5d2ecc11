"""The report is there once three rollout batches were seen: whatever ends the script later, it is not lost."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from watch.running import LETTERS, planted, run_watched

from assay.watch.command import WatchError, run

WAITS = ('print(f"step {step}', 'time.sleep(60 if step == 3 else 0)\n        print(f"step {step}')
# the fourth rollout batch was sampled when it waits
EARLY = [
    ("import sys\n", "import sys, time\n"),
    WAITS,
    ("UPDATES = 0, 4, 6, 6, 0.7, 2", "UPDATES = 0, 4, 6, 6, 0.7, 1"),
]
CODE = (
    "import sys; from pathlib import Path; from assay.watch.command import run\n"
    "out = Path(sys.argv[2]) if sys.argv[2] else None\n"
    "sys.exit(run(Path(sys.argv[1]), ['6'], out=out, how='json' if out else 'full'))"
)


def start(script, out=""):
    return subprocess.Popen(
        [sys.executable, "-c", CODE, str(script), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def child_of(process):
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        return int(file.read().split()[0])


def test_a_script_that_is_killed_after_three_rollout_batches_has_its_report_in_the_file(tmp_path):
    script, out = planted(tmp_path, *EARLY, ("loss = -((gain", "loss = ((gain")), tmp_path / "report.json"
    process = start(script, out)
    line = process.stderr.readline()
    found = json.loads(out.read_text())  # before anything ended
    assert process.poll() is None
    time.sleep(0.5)  # until it is on record that the report was shown: else it is shown twice
    os.kill(child_of(process), signal.SIGKILL)
    rest = process.stderr.read()
    process.wait(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert line.startswith(f"{out}: ")
    assert rest == ""
    assert "LOSS01" in {finding["code"] for finding in found["findings"]}
    assert json.loads(out.read_text()) == found


def test_a_kill_of_everything_leaves_the_report_on_stderr(tmp_path):
    process = start(planted(tmp_path, *EARLY))
    seen = ""
    while "ratio new / old, by rollout batch" not in seen:
        seen += process.stderr.readline()
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGKILL)
    seen += process.stderr.read()
    process.wait(timeout=60)
    assert "by design" in seen
    assert "    3      1 " in seen


def test_a_report_that_says_the_same_is_shown_once_and_news_are_shown(tmp_path):
    same = run_watched(LETTERS, "8")
    assert same.stderr.count("ratio new / old, by rollout batch") == 1
    script = planted(tmp_path, ("torch.exp(new - old)", "torch.exp(old - new if step > 3 else new - old)"))
    assert run_watched(script, "8").stderr.count("ratio new / old, by rollout batch") == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("run.toml", "run `assay train .*run.toml`"), ("data.jsonl", "is not a Python file; give the Python file")],
)
def test_what_is_not_a_script_is_refused_with_the_fix(tmp_path, name, words):
    (tmp_path / name).write_text("")
    with pytest.raises(WatchError, match=words):
        run(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import a_module_that_is_not_there\nimport torch\n", "install the module there"),
        ("open('nowhere/data.txt')\n", "start assay watch in the folder that the script's paths start from"),
        ("import torch\nx = = 1\n", "could not read the text, so no line of it ran"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n", "its own words say why"),
    ],
)
def test_a_script_that_fails_before_torch_gets_its_traceback_and_a_cause(write, text, words):
    watched = run_watched(write(text))
    assert watched.returncode in (1, 2)
    assert "Error" in watched.stderr or "usage:" in watched.stderr
    assert words in " ".join(watched.stderr.split())
