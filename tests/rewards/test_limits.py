"""Limits of the system that leave no room for workers: one sentence that names reward.workers and the limit."""

import errno
import os
import resource
import subprocess
import sys

import pytest
from rewards.asking import asked, body, score_all

from assay.config import ConfigError
from assay.rewards.limits import out_of_memory, why_not_started


class Limited:
    """While entered, a limit is lower; it is put back."""

    def __init__(self, limit, value):
        self.limit, self.value = limit, value

    def __enter__(self):
        self.before = resource.getrlimit(self.limit)
        resource.setrlimit(self.limit, (self.value, self.before[1]))

    def __exit__(self, *exception):
        resource.setrlimit(self.limit, self.before)


FINE = body("if completion == 'die': os._exit(3)\n    return 1.0")


def test_too_few_open_files_are_refused_before_anything_is_started(rewards):
    limit = len(os.listdir("/dev/fd")) + 10  # room for the reward file, not for eight workers
    words = rf"^reward\.workers = 8 needs \d+ open files, but the limit is {limit} \(ulimit -n\)"
    with pytest.raises(ConfigError, match=words), Limited(resource.RLIMIT_NOFILE, limit):
        rewards(FINE, workers=8)


def test_a_worker_that_cannot_be_started_again_says_which_limit_is_in_the_way(rewards):
    reward = rewards(FINE)
    with Limited(resource.RLIMIT_NOFILE, 4):
        scores = score_all(reward, asked("die", "1", "2"))
    assert scores[0].error == "score: its process exited with 3"
    for score in scores[1:]:
        assert "too many open files, the limit is 4 (ulimit -n); raise the limit or lower reward.workers" in score.error
    assert score_all(reward, asked("1"))[0].reward == 1.0  # the next batch tries again


def test_a_limit_on_memory_is_named_when_a_file_does_not_fit(rewards):
    source = "DATA = bytearray(2_000_000_000)\n" + FINE
    words = r"MemoryError: .*\(ulimit -v gives each of the reward\.workers 1,500 MB of memory; raise it\)"
    with pytest.raises(ConfigError, match=words), Limited(resource.RLIMIT_AS, 1_500_000_000):
        rewards(source, workers=2)


def test_a_limit_on_memory_is_named_when_a_worker_does_not_even_start(rewards):
    # how a Python without memory ends is not always the same
    words = r"its process .* \(ulimit -v gives each of the reward\.workers 20 MB of memory; raise it\)"
    with pytest.raises(ConfigError, match=words), Limited(resource.RLIMIT_AS, 20_000_000):
        rewards(FINE, workers=2)


def test_a_limit_on_memory_is_named_when_a_call_does_not_fit(rewards):
    with Limited(resource.RLIMIT_AS, 1_500_000_000):
        reward = rewards(body("return len(bytearray(int(completion)))"))
        large, small = score_all(reward, asked("2000000000", "20"))
    assert small.reward == 20.0
    assert "raised MemoryError" in large.error
    assert "ulimit -v gives each of the reward.workers 1,500 MB" in large.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "too many processes"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "there is no memory for it"),
        (MemoryError(), "there is no memory for it"),
    ],
)
def test_each_limit_has_its_sentence(error, words):
    assert words in why_not_started(error)
    assert "reward.workers" in why_not_started(error)


def test_another_error_is_said_as_it_is():
    assert why_not_started(FileNotFoundError(errno.ENOENT, "No such file or directory")) == (
        "its process could not be started: No such file or directory"
    )


def test_a_limit_on_memory_that_leaves_no_room_for_the_trainer_is_one_sentence(tmp_path):
    command = f"ulimit -v 400000; exec {sys.executable} -P -m assay train --set run.steps=1 --out run"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    (sentence,) = [line for line in ended.stderr.splitlines() if line.startswith("assay: ")]
    assert sentence.startswith("assay: there is not enough memory: ulimit -v allows 410 MB; raise it (")
    assert not (tmp_path / "run").exists()


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    lack = RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 8 bytes")
    other = RuntimeError("shapes do not match")
    assert out_of_memory(lack) == ""  # the system's own: no limit was set
    with Limited(resource.RLIMIT_AS, 1_000_000_000_000):
        assert out_of_memory(lack).startswith("there is not enough memory: ulimit -v allows 1,000,000 MB; raise it")
        assert out_of_memory(MemoryError()).endswith("(MemoryError)")
        assert out_of_memory(other) == ""
