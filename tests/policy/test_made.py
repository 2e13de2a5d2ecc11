"""The cache of made directories: made once, made anew when damaged, and never half made."""

import subprocess
import sys
import textwrap

import pytest

from assay.policy.made import CHECKSUMS, make_once


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "assay"


def maker(calls, content=b"weights"):
    def make(directory):
        calls.append(directory)
        (directory / "model").write_bytes(content)
        (directory / "config").write_text("{}")

    return make


def test_a_directory_is_made_once_and_holds_what_was_made(cache):
    calls = []
    first = make_once("thing", maker(calls))
    assert first == cache / "thing"
    assert (first / "model").read_bytes() == b"weights"
    assert make_once("thing", maker(calls, b"other")) == first
    assert (first / "model").read_bytes() == b"weights"
    assert len(calls) == 1
    assert [path.name for path in cache.iterdir()] == ["thing"]
    assert make_once("another", maker(calls)) != first


def test_a_hidden_file_of_a_desktop_is_not_damage(cache):
    calls = []
    directory = make_once("thing", maker(calls))
    (directory / ".DS_Store").write_bytes(b"x")
    assert make_once("thing", maker(calls)) == directory
    assert len(calls) == 1


def flip(directory):
    file = directory / "model"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda directory: (directory / "config").unlink(),
        lambda directory: (directory / "stranger").write_text("x"),
        lambda directory: (directory / CHECKSUMS).unlink(),
        lambda directory: (directory / CHECKSUMS).write_text("{"),
        lambda directory: (directory / CHECKSUMS).write_text("[" * 100_000),
    ],
    ids=["one bit", "a file less", "a file more", "no checksums", "damaged checksums", "deep checksums"],
)
def test_a_damaged_directory_is_made_anew(cache, damage):
    calls = []
    directory = make_once("thing", maker(calls))
    damage(directory)
    assert make_once("thing", maker(calls)) == directory
    assert len(calls) == 2
    assert (directory / "model").read_bytes() == b"weights"
    assert sorted(path.name for path in directory.iterdir()) == [CHECKSUMS, "config", "model"]
    assert [path.name for path in cache.iterdir()] == ["thing"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind_and_the_next_try_succeeds(cache, error):
    def fail(directory):
        (directory / "model").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        make_once("thing", fail)
    assert list(cache.iterdir()) == []
    assert (make_once("thing", maker([])) / "model").read_bytes() == b"weights"


def test_of_two_processes_that_make_it_at_once_both_get_a_whole_one(cache, tmp_path):
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from assay.policy.made import make_once

        mine, other = (Path(name) for name in sys.argv[1:])

        def make(directory):
            (directory / "model").write_bytes(b"weights")
            mine.touch()
            until = time.monotonic() + 20
            while not other.exists() and time.monotonic() < until:  # neither is done before both have begun
                time.sleep(0.01)

        directory = make_once("thing", make)
        assert (directory / "model").read_bytes() == b"weights"
        print(directory)
        """
    )
    signs = [tmp_path / "first", tmp_path / "second"]
    children = [
        subprocess.Popen([sys.executable, "-c", program, mine, other], stdout=subprocess.PIPE, text=True)
        for mine, other in (signs, signs[::-1])
    ]
    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert answers == [str(cache / "thing")] * 2
    assert all(sign.exists() for sign in signs)
    assert [path.name for path in cache.iterdir()] == ["thing"]
