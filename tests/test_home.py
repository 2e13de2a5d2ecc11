"""A test run neither reads nor writes the home and the caches of whoever starts it."""

import os
import subprocess
import sys
from pathlib import Path

from assay.policy.made import make_once

ROOT = Path(__file__).parents[1]
TEST_HOME = "ASSAY_TEST_HOME"


def test_the_home_and_the_caches_of_a_test_are_temporary():
    home = os.environ[TEST_HOME]
    assert str(Path.home()) == home
    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR"):
        assert os.environ[variable].startswith(f"{home}/"), variable
    assert "HF_HUB_CACHE" not in os.environ
    made = make_once("from-test-home", lambda directory: (directory / "file").write_text("made"))
    assert made.is_relative_to(home)


def test_a_test_run_leaves_the_home_that_it_is_given_as_it_was(tmp_path):
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/kept").write_text("kept")
    mine = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "TRITON_CACHE_DIR")}
    kept = {name: value for name, value in os.environ.items() if name != TEST_HOME}
    inner = [f"{__file__}::{test_the_home_and_the_caches_of_a_test_are_temporary.__name__}", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *inner], cwd=ROOT, env=kept | mine, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".cache", "kept"]
    assert (tmp_path / ".cache/kept").read_text() == "kept"


def test_ci_runs_with_an_empty_home_that_is_gone_afterwards(tmp_path):
    """`make` is replaced by a program that prints what it sees."""
    make = tmp_path / "make"
    make.write_text(
        '#!/bin/sh\necho "$2"; echo "$HOME"; echo "$XDG_CACHE_HOME"; ls -A "$HOME"; echo "${HF_HOME-unset}"\n'
    )
    make.chmod(0o755)
    mine = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHON": sys.executable}
    ended = subprocess.run([ROOT / ".ci/run"], env=os.environ | mine, capture_output=True, text=True, check=True)
    check, home, cache, hugging_face, test, *again = ended.stdout.splitlines()  # nothing stands in the home
    assert (check, test) == ("check", "test")
    assert again == [home, cache, hugging_face]
    assert home != str(tmp_path)
    assert cache.startswith(f"{home}/")
    assert hugging_face == "unset"
    assert not Path(home).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["make"]
