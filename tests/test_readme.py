"""The commands of README.md and docs/tour.md are run here, those about one run in their order, in one directory. The
diagnosis in the README is what the doctor prints, and the tree of docs/map.md is the real one."""

import json
import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import app

ROOT = Path(__file__).parent.parent
README, TOUR, MAP, PROMISES = (
    (ROOT / name).read_text() for name in ("README.md", "docs/tour.md", "docs/map.md", "docs/promises.md")
)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


COMMANDS = [
    line.partition(" # ")[0].strip()
    for page in (README, TOUR)
    for block in blocks(page, "bash")
    for line in block.splitlines()
]
TYPED = [command for command in COMMANDS if not command.startswith("make")]
# a command that names one of these builds upon those before it that do
RUNS = ("runs/look", "smollm2-json")
ALONE = [command for command in TYPED if not any(run in command for run in RUNS)]


def cut_short(command):
    """As it is typed, but little is evaluated; SmolLM2 takes one step, of adapters alone, which spares gigabytes."""
    if command.startswith(("assay train --set", "assay train configs/dapo")):
        return f"{command} --set evaluate.prompts=16"
    if command.startswith("assay train configs/smollm2"):
        small = {"run.steps": 1, "rollout.prompts": 1, "rollout.group_size": 4, "rollout.max_tokens": 8}
        small |= {"evaluate.prompts": 2, "evaluate.samples": 2, "model.lora_rank": 1}
        return " ".join([command, *(f"--set {name}={value}" for name, value in small.items())])
    return command


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A directory with what the commands refer to."""
    place = tmp_path_factory.mktemp("newcomer")
    for name in ("configs", "examples"):
        (place / name).symlink_to(ROOT / name)
    return place


@pytest.fixture(scope="module")
def type_in(newcomer, warm_python):
    """Types a command into a shell in which the warm Python comes first, as this one does in an activated .venv."""

    def type_in(command):
        surroundings = {**os.environ, "PATH": f"{warm_python.parent}{os.pathsep}{os.environ['PATH']}"}
        if command.startswith("jq") and shutil.which("jq") is None:
            return  # what it prints is checked below without it
        done = subprocess.run(
            cut_short(command), shell=True, cwd=newcomer, env=surroundings, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        assert done.stdout.strip() or command.startswith("assay train"), f"{command} printed nothing"

    return type_in


def test_the_first_screen_has_the_two_commands():
    first_screen = "\n".join(README.splitlines()[:15])
    assert "make train" in first_screen
    assert "make test" in first_screen


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make")])
def test_make_knows_its_targets(command):
    shown = subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ".venv/bin/" in shown.stdout


def test_every_command_is_typed_once():
    assert len(TYPED) >= 25
    assert sorted(TYPED) == sorted([*ALONE, *(command for run in RUNS for command in TYPED if run in command)])


@pytest.mark.parametrize("run", RUNS)
def test_the_commands_about_a_run_work_in_their_order(type_in, newcomer, smollm2, run):
    chain = [command for command in TYPED if run in command]
    assert len(chain) >= 3
    for command in chain:
        type_in(command)
    if run == "runs/look":
        rows = [json.loads(line) for line in (newcomer / run / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert all(row["reward_mean"] is not None and row["ratio_max"] >= 1.0 for row in rows)


@pytest.mark.parametrize("command", ALONE)
def test_a_command_works(type_in, smollm2, command):
    type_in(command)


def test_the_python_example_learns(newcomer, monkeypatch, capsys):
    (source,) = [block for block in blocks(README, "python") if "trainer = GRPOTrainer(" in block]
    (newcomer / "example.py").write_text(source)
    monkeypatch.chdir(newcomer)
    runpy.run_path("example.py", run_name="__main__")
    first, last = map(float, capsys.readouterr().out.strip().splitlines()[-1].split(" -> "))
    assert first < 0.3
    assert last > 0.8


def test_the_page_of_the_trainer_runs_and_learns():
    names = {}
    for block in blocks((ROOT / "docs/trainer.md").read_text(), "python"):
        exec(block, names)
    torch = names["torch"]
    chosen = torch.softmax(names["policy"](torch.eye(3)), -1).diagonal().mean().item()
    assert chosen > 0.8
    assert names["trainer"].loss_stats["ratio_mean"] == 1.0


def test_the_line_for_trl_is_the_one_of_the_page():
    (source,) = [block for block in blocks(README, "python") if "attach(trainer)" in block]
    lines = [line.split("  #")[0] for line in source.splitlines()]
    assert "\n".join(lines) in (ROOT / "docs/trl.md").read_text()


def test_the_diagnosis_in_the_readme_is_what_the_doctor_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(app, ["doctor", "examples/broken_grpo.py"], env={"COLUMNS": "100"}).stdout
    (shown,) = re.findall(r"^```\n(examples/broken_grpo.py: .*?)^\.\.\.\n```", README, flags=re.DOTALL | re.MULTILINE)
    assert printed.startswith(shown), "the README shows the first finding as it is printed; copy it again"


def test_the_readme_is_read_in_three_minutes():
    assert len(README.splitlines()) <= 150


def test_the_tree_is_the_real_one():
    (tree,) = re.findall(r"^assay/\n(.*?)^```", MAP, flags=re.DOTALL | re.MULTILINE)
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if re.match(r"  \S", line)}  # others go on
    hidden = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    real = {path.name for path in (ROOT / "assay").iterdir()} - hidden
    assert named == real


def test_every_page_is_linked_from_the_readme():
    linked = set(re.findall(r"\]\(docs/([^)#]+)\)", README))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_the_tests_of_the_promises_exist():
    tests = re.findall(r"`(tests/[a-z_/]+(?:\.py)?)`", PROMISES)
    assert len(tests) > 25
    assert [test for test in tests if not (ROOT / test).exists()] == []
