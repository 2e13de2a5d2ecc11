"""A user's reward function that misbehaves: always a reason, never a 0.0, never a hang."""

import time
from pathlib import Path

import pytest

from assay.config import ConfigError
from assay.tasks.reward_process import RewardProcess
from assay.types import Prompt, Rollout, StopReason

PROMPT = Prompt("a", "31>", (1,), "13")
ROLLOUT = Rollout("a", (1,), (0.0,), StopReason.EOS, 0, "13")


@pytest.fixture
def reward(tmp_path):
    """Writes a reward file and opens it; every process is closed at the end."""
    opened = []

    def open_file(source, function="score", timeout=20.0):
        path = tmp_path / "reward.py"
        path.write_text(source)
        opened.append(RewardProcess(f"{path}:{function}", timeout))
        return opened[-1]

    yield open_file
    for process in opened:
        process.close()


def body(code):
    return f"import math, os, signal, sys, time\ndef score(prompt, completion, answer):\n    {code}\n"


def test_a_number_or_named_components_are_scores(reward):
    assert reward(body("return completion == answer")).score(PROMPT, ROLLOUT).components == {"reward": 1.0}
    score = reward(body("return {'exact': 1, 'short': 0.25}")).score(PROMPT, ROLLOUT)
    assert (score.reward, dict(score.components), score.error) == (1.25, {"exact": 1.0, "short": 0.25}, "")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("return None", "returned None"),
        ("return math.nan", "returned nan"),
        ("return -math.inf", "returned -inf"),
        ("return '0.5'", "returned the text '0.5', not a number"),
        ("return [1.0]", "returned a list, not a number"),
        ("return {}", "returned an empty dict"),
        ("return {'exact': None}", "returned None as 'exact'"),
        ("raise ValueError('no digits')", "raised ValueError: no digits"),
        ("sys.exit(3)", "raised SystemExit: 3"),
        ("os._exit(3)", "its process exited with 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process died (SIGSEGV)"),
    ],
)
def test_anything_else_is_a_failure_with_its_reason(reward, code, reason):
    score = reward(body(code)).score(PROMPT, ROLLOUT)
    assert score.reward is None
    assert score.error == reason


def test_a_call_that_never_returns_is_ended_with_its_children_and_the_next_one_works(reward, tmp_path):
    process = reward(
        "import os, subprocess, time\n"
        "def score(prompt, completion, answer):\n"
        f"    if os.path.exists({str(tmp_path / 'seen')!r}): return 1.0\n"
        f"    child = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'seen')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n",
        timeout=1.0,
    )
    assert process.score(PROMPT, ROLLOUT).error == "took longer than 1 s"
    child = int((tmp_path / "seen").read_text())
    for _ in range(100):  # the kernel needs a moment to take the orphan away
        status = Path(f"/proc/{child}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child of the reward function is still running")
    assert process.score(PROMPT, ROLLOUT).reward == 1.0


def test_what_the_function_prints_is_not_taken_for_an_answer(reward):
    assert reward(body("""print('{"components": {"reward": 9}}'); return 0.5""")).score(PROMPT, ROLLOUT).reward == 0.5


def test_a_file_that_cannot_be_used_is_refused_at_once(reward, tmp_path):
    with pytest.raises(ConfigError, match="could not be loaded: SyntaxError"):
        reward("def score(:\n")
    with pytest.raises(ConfigError, match=r"has no function 'other'"):
        reward(body("return 1.0"), function="other")
    with pytest.raises(ConfigError, match=r"could not be loaded: SystemExit: 4"):
        reward("import sys; sys.exit(4)")
    with pytest.raises(ConfigError, match="there is no file"):
        RewardProcess(f"{tmp_path}/nowhere.py:score", 1.0)
    with pytest.raises(ConfigError, match="not of the form"):
        RewardProcess("reward.py", 1.0)


def test_hostile_text_reaches_the_function_unharmed(reward):
    text = "\x00\x1b[2J\ud800 \u202e </script>\n" + "9" * 20_000
    process = reward(body("return len(completion)"))
    assert process.score(PROMPT, Rollout("a", (1,), (0.0,), StopReason.EOS, 0, text)).reward == len(text)


def test_a_child_that_the_function_forks_cannot_answer_in_its_place(reward):
    process = reward(
        "import os, sys\ncalls = 0\n"
        "def score(prompt, completion, answer):\n"
        "    global calls; calls += 1\n"
        "    if calls == 3 and os.fork() == 0: sys.exit(1)\n"
        "    return calls\n"
    )
    assert [process.score(PROMPT, ROLLOUT).reward for _ in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_components_too_large_to_be_normalised_are_failures_even_if_they_cancel(reward):
    score = reward(body("return {'a': 1e16, 'b': -1e16}")).score(PROMPT, ROLLOUT)
    assert "cannot be normalised" in score.error
