"""What the README tells people to type is typed here, in its order, in one directory, and its tree is the real one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()]


def environment():
    """The commands of this Python first in the path, as in an activated .venv."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def cut_short(command):
    """As it is typed, but for SmolLM2: one step in place of minutes."""
    if command.startswith("assay train configs/smollm2"):
        small = {"run.steps": 1, "rollout.prompts": 1, "rollout.group_size": 4, "rollout.max_tokens": 8}
        small |= {"evaluate.prompts": 2, "evaluate.samples": 2}
        return " ".join([command, *(f"--set {name}={value}" for name, value in small.items())])
    return command


def shell(command, cwd):
    return subprocess.run(command, shell=True, cwd=cwd, env=environment(), capture_output=True, text=True)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A directory with what the commands refer to."""
    place = tmp_path_factory.mktemp("newcomer")
    for name in ("configs", "examples"):
        (place / name).symlink_to(ROOT / name)
    return place


def test_the_first_screen_has_the_two_commands():
    first_screen = "\n".join(README.splitlines()[:15])
    assert "make train" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_knows_its_targets(command):
    shown = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv/bin/" in shown.stdout


def test_the_commands_work_in_their_order(newcomer):
    typed = [cut_short(command) for command in COMMANDS if not command.startswith("make")]
    assert len(typed) >= 17
    for command in typed:
        if command.startswith("jq") and shutil.which("jq") is None:
            continue  # what it prints is checked below without it
        done = shell(command, newcomer)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert done.stdout.strip() or command.startswith("assay train"), f"{command} printed nothing"
    rows = [json.loads(line) for line in (newcomer / "runs/look/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["reward_mean"] is not None and row["ratio_max"] >= 1.0 for row in rows)


def test_the_python_example_learns(newcomer):
    (source,) = blocks("python")
    (newcomer / "example.py").write_text(source)
    done = shell("python example.py", newcomer)
    assert done.returncode == 0, done.stderr
    first, last = map(float, done.stdout.strip().splitlines()[-1].split(" -> "))
    assert first < 0.3
    assert last > 0.8


def test_the_longer_example_learns(newcomer):
    done = shell("python examples/trainer.py", newcomer)
    assert done.returncode == 0, done.stderr
    rewards = [float(number) for number in re.findall(r"step: +([0-9.]+)", done.stdout)]
    assert len(rewards) == 2
    assert rewards[0] < 0.3 < 0.9 < rewards[1]


def test_the_tree_is_the_real_one():
    (tree,) = re.findall(r"^assay/\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.strip()}
    hidden = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    real = {path.name for path in (ROOT / "assay").iterdir()} - hidden
    assert named == real


def test_files_that_the_readme_points_at_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r"`(tests/[a-z_/]+\.py)`", README)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link
