"""Processes of ours run no file of the working directory, of a data set, or beside a reward."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.cases import thorough
from typer.testing import CliRunner

from assay.cli import app
from assay.machine.interpreter import python_command, python_environment

ROOT = Path(__file__).parents[2]
NAMES = ("selectors", "json", "random", "subprocess", "asyncio", "importlib", "assay", "runpy", "signal", "dataclasses")
TRAP = "import sys\nopen({seen!r}, 'a').write(__name__ + ' ')\nsys.exit('a trap was imported')\n"


def set_traps(directory, seen, names=NAMES):
    """Files that would be imported in the place of the standard library's, or of ours."""
    for name in names:
        (directory / f"{name}.py").write_text(TRAP.format(seen=str(seen)))


def run(command, directory, **environment):
    surroundings = {**os.environ, **environment}
    return subprocess.run(command, cwd=directory, env=surroundings, capture_output=True, text=True)


def assay(*arguments):
    return [shutil.which("assay", path=str(Path(sys.executable).parent)), *map(str, arguments)]


@pytest.mark.parametrize("path", [None, f":{ROOT}", *thorough("", f"{ROOT}::")])
def test_reward_workers_import_nothing_from_the_working_directory(tmp_path, path):
    seen = tmp_path / "seen"
    set_traps(tmp_path, seen)
    shutil.copy(ROOT / "examples/questions.jsonl", tmp_path / "questions.jsonl")
    # an empty entry of PYTHONPATH is the working directory: the command itself must not meet it before the workers do
    code = "import sys; sys.path[:] = [path for path in sys.path if path]\nfrom assay.cli import app; app()\n"
    start = [sys.executable, "-I", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"]
    ended = run(
        [*start, "reward-check", "last_number", "--task", "questions.jsonl"],
        tmp_path,
        **({} if path is None else {"PYTHONPATH": path}),
    )
    assert ended.returncode == 0, ended.stderr
    assert "0 findings" in ended.stdout
    assert not seen.exists()


def test_files_beside_a_reward_do_not_take_the_place_of_the_standard_library(tmp_path):
    seen = tmp_path / "seen"
    set_traps(tmp_path, seen)
    (tmp_path / "helper.py").write_text("def same(one, other):\n    return float(one.strip() == other)\n")
    (tmp_path / "reward.py").write_text(
        "import helper, json, random\n"
        "async def score(completion, answer):\n"  # for which our own code imports asyncio, and that selectors
        "    return helper.same(json.loads(json.dumps(completion)), answer)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = run(assay("reward-check", f"{tmp_path / 'reward.py'}:score"), elsewhere)
    assert "could not be" not in ended.stdout + ended.stderr
    assert "calls over 8 problems" in ended.stdout
    assert not seen.exists()


def test_a_reward_file_may_have_any_name(tmp_path, monkeypatch):
    """The command is not the subject, so it runs here; the worker is a process of its own."""
    names = ("json", "random", "my-reward", "reward.v2", "assay")
    for name in names:
        (tmp_path / f"{name}.py").write_text("def score(completion, answer):\n    return float(completion == answer)\n")
    monkeypatch.chdir(tmp_path)
    for name in names:
        ended = CliRunner().invoke(app, ["reward-check", f"{name}.py:score"])
        assert "0 findings" in ended.stdout, ended.output


def test_the_package_is_found_where_it_lies_and_runs_as_a_module_would(tmp_path):
    shutil.copytree(ROOT / "assay", tmp_path / "home/assay", ignore=shutil.ignore_patterns("__pycache__"))
    work = tmp_path / "work"
    work.mkdir()
    set_traps(work, tmp_path / "seen")
    (tmp_path / "home/assay/shown.py").write_text(
        "import json, sys, assay\nprint(json.dumps([__name__, sys.argv[1:], assay.__file__, sys.path[0]]))\n"
    )
    command = python_command("assay.shown", "one", "two")
    command[2] = str(tmp_path / "home/assay/machine/interpreter.py")
    ended = run(command, work)
    assert ended.returncode == 0, ended.stderr
    name, arguments, file, first = json.loads(ended.stdout)
    assert (name, arguments) == ("__main__", ["one", "two"])
    assert file == str(tmp_path / "home/assay/__init__.py")
    assert first not in ("", str(work), str(tmp_path / "home/assay"))
    assert not (tmp_path / "seen").exists()


def test_empty_entries_of_the_path_are_left_out(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/one{os.pathsep}{os.pathsep}/two{os.pathsep}")
    assert python_environment()["PYTHONPATH"] == f"/one{os.pathsep}/two"
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    assert "PYTHONPATH" not in python_environment()


def test_a_watched_script_imports_its_own_directory_first_and_the_watcher_does_not(tmp_path):
    seen = tmp_path / "seen"
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    set_traps(tmp_path, seen)
    (scripts / "script.py").write_text("import helper, sys\nprint(helper.WORD, sys.path[0])\n")
    (scripts / "helper.py").write_text("WORD = 'found'\n")
    ended = run(assay("watch", "scripts/script.py"), tmp_path)
    assert ended.stdout == f"found {scripts}\n", ended.stderr
    assert not seen.exists()
