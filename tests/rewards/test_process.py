"""A user's reward function that misbehaves: always a reason, never a 0.0, never a hang."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rewards.asking import asked, body, score_all

from assay.config import ConfigError
from assay.rewards.modules import load_functions
from assay.types import Rollout, StopReason


def test_a_number_or_named_components_are_scores(rewards):
    (score,) = score_all(rewards(body("return completion == answer")), asked("13"))
    assert (score.reward, dict(score.components)) == (1.0, {"score": 1.0})
    (score,) = score_all(rewards(body("return {'exact': 1, 'short': 0.25}")), asked("13"))
    assert (score.reward, dict(score.components), score.error) == (1.25, {"exact": 1.0, "short": 0.25}, "")


MISDEEDS = {
    "none": ("return None", "returned None"),
    "huge": ("return 10 ** 400", "returned a number that no float can hold"),
    "long": ("return {str(n) * 50: 1.0 for n in range(9999)}", "takes|take \\d+ characters to write"),
    "raise": ("raise ValueError('no digits')", "raised ValueError: no digits"),
    "exit": ("sys.exit(3)", "raised SystemExit: 3"),
    "interrupt": ("raise KeyboardInterrupt", "raised KeyboardInterrupt: "),
    "base": ("raise type('Odd', (BaseException,), {'__str__': lambda self: 1 / 0})()", "raised Odd: .its text"),
    "stdin": ("return float(input())", "raised EOFError"),
    "die": ("os._exit(3)", "its process exited with 3"),
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", r"its process died \(SIGSEGV\)"),
    "deaf": ("os.closerange(3, 256)", "its process (exited with|closed the connection)"),
}


def test_anything_else_is_a_failure_with_its_reason_and_the_next_completion_is_scored(rewards):
    source = "def score(completion):\n"
    for name, (code, _) in MISDEEDS.items():
        source += f"    if completion == {name!r}: {code}\n"
    source += "    return 1.0\n"
    texts = [text for name in MISDEEDS for text in (name, "fine")]
    scores = score_all(rewards(source), asked(*texts))
    assert [score.reward for score in scores] == [None, 1.0] * len(MISDEEDS)
    for score, (_, reason) in zip(scores[::2], MISDEEDS.values(), strict=True):
        assert score.error.startswith("score: ")
        assert re.search(reason, score.error)


def is_running(process):
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def ends_soon(process):
    """The kernel needs a moment to take an orphan away."""
    for _ in range(100):
        if not is_running(process):
            return True
        time.sleep(0.05)
    return False


def test_a_call_that_never_returns_is_ended_with_its_children_and_the_next_one_works(rewards, tmp_path):
    seen = str(tmp_path / "seen")
    reward = rewards(
        body(
            f"if completion == 'fine': return 1.0\n    child = subprocess.Popen(['sleep', '600'])\n"
            f"    open({seen!r}, 'w').write(str(child.pid))\n    time.sleep(600)"
        ),
        timeout=0.5,
    )
    hung, fine = score_all(reward, asked("hang", "fine"))
    assert hung.error == "score: took longer than 0.5 s"
    assert fine.reward == 1.0
    assert ends_soon(int((tmp_path / "seen").read_text()))


def test_a_process_that_is_stopped_by_a_signal_does_not_block_the_trainer(rewards):
    reward = rewards(body("os.kill(os.getpid(), signal.SIGSTOP)"), timeout=0.5)
    assert score_all(reward, asked("1" * 300_000))[0].error == "score: took longer than 0.5 s"


def test_closing_leaves_no_process(rewards):
    reward = rewards(body("subprocess.Popen(['sleep', '600']); return os.getpid()"), workers=2)
    workers = {int(score.reward) for score in score_all(reward, asked(*"123456"))}
    group = [process for process in map(int, filter(str.isdigit, os.listdir("/proc"))) if group_of(process) in workers]
    assert len(group) >= 6 + len(workers)
    reward.close()
    assert all(map(ends_soon, group))


def group_of(process):
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return None


def test_what_the_function_prints_is_not_taken_for_an_answer(rewards):
    code = """print('{"number": 1, "results": [{"components": {"": 9}}]}', flush=True); return 0.5"""
    assert score_all(rewards(body(code)), asked("1", "2"))[1].reward == 0.5


def test_a_function_may_print_100_megabytes_or_close_its_output(rewards):
    reward = rewards(
        body(
            "if completion == 'print':\n        for _ in range(100): print('x' * 1_000_000)\n"
            "    if completion == 'close': sys.stdout.close(); os.closerange(0, 3)\n    return 1.0"
        )
    )
    assert [score.reward for score in score_all(reward, asked("print", "close", "fine"))] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("source", "function", "reason"),
    [
        ("def score(:\n", "score", "reward.functions = .*reward.py:score': could not be loaded: SyntaxError"),
        ("def score(completion): return 1.0\n", "other", "has no function 'other'"),
        ("sys.exit(4)", "score", "could not be loaded: SystemExit: 4"),
        ("os._exit(4)", "score", "could not be loaded: its process exited with 4"),
        ("score = min", "score", "could not be loaded: ValueError: no signature"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_once(rewards, source, function, reason):
    with pytest.raises(ConfigError, match=reason):
        rewards(source, functions=[f"reward.py:{function}"])


def test_hostile_text_reaches_the_function_unharmed(rewards):
    text = "\x00\x1b[2J\ud800 \u202e </script>\r\n\u2028" + "9" * 200_000
    (pair,) = asked("", note="\udcff")
    rollout = Rollout("a", (1,), (0.0,), StopReason.EOS, 0, text)
    code = "return {'length': len(completion), 'sum': sum(map(ord, completion)), 'note': ord(note)}"
    (score,) = score_all(rewards(body(code, "completion, note='?'")), [(pair[0], rollout)])
    assert dict(score.components) == {"length": len(text), "sum": sum(map(ord, text)), "note": 0xDCFF}


def test_a_child_that_the_function_forks_can_neither_answer_in_its_place_nor_keep_it_alive(rewards):
    reward = rewards(
        "calls = 0\n"
        "def score(completion):\n"
        "    global calls; calls += 1\n"
        "    if completion == 'quit' and os.fork() == 0: sys.exit(1)\n"
        "    if completion == 'return': os.fork()\n"
        "    if completion == 'linger':\n"
        "        if os.fork() == 0: time.sleep(600)\n"
        "        os._exit(5)\n"
        "    return calls\n"
    )
    began = time.monotonic()
    scores = score_all(reward, asked("1", "quit", "3", "return", "5", "linger", "7"))
    assert [score.reward for score in scores] == [1.0, 2.0, 3.0, 4.0, 5.0, None, 1.0]
    assert scores[5].error == "score: its process exited with 5"
    assert time.monotonic() - began < 10


def test_a_reply_that_answers_nothing_is_not_believed(rewards):
    forged = '{"number": 99, "results": [{"components": {"": 9.0}}]}\\n'
    everywhere = f"for file in range(3, 9):\n        try: os.write(file, b'{forged}')\n        except OSError: pass\n"
    reward = rewards(body(f"if completion == 'fine': return 1.0\n    {everywhere}    return 0.5"))
    lying, fine = score_all(reward, asked("lie", "fine"))
    assert lying.error.startswith("score: its answers got out of step")
    assert fine.reward == 1.0


def test_a_function_that_closes_the_pipe_it_is_asked_through_ends_its_process_alone(rewards):
    reward = rewards(body("if completion == 'deaf': os.close(3)\n    return 1.0"))
    scores = score_all(reward, asked("deaf", "x" * 1_000_000, "fine"))
    assert (scores[0].reward, scores[2].reward) == (1.0, 1.0)


def test_a_file_that_cannot_be_used_leaves_no_process(rewards, tmp_path):
    seen = str(tmp_path / "seen")
    source = (
        f"try: file = os.open({seen!r}, os.O_CREAT | os.O_EXCL | os.O_WRONLY)\n"
        f"except FileExistsError:\n"
        f"    while not os.path.getsize({seen!r}): time.sleep(0.01)\n"
        "    sys.exit(4)\n"
        "os.write(file, str(os.getpid()).encode()); time.sleep(600)\n"
    )
    with pytest.raises(ConfigError, match="SystemExit: 4") as caught:
        rewards(source, workers=2)
    assert ends_soon(int((tmp_path / "seen").read_text()))
    assert caught.tb is not None  # what it holds must not be what ends the process


@pytest.mark.parametrize("spec", ["os:system", "assay.rewards.builtin:exact", "no.such:score", "rewards:score"])
def test_a_module_is_refused_because_a_reward_function_stands_in_a_file(rewards, spec):
    with pytest.raises(ConfigError, match=rf"'{spec}' names a module, and a reward function must stand in a file"):
        rewards(functions=[spec])


def test_a_worker_imports_no_module_but_our_own():
    with pytest.raises(ImportError, match="os is not a Python file"):
        list(load_functions(["os:system"]))
    assert len(list(load_functions(["assay.rewards.builtin:exact"]))) == 1


def test_a_ctrl_c_does_not_end_a_call(rewards):
    reward = rewards(body("os.kill(os.getpid(), signal.SIGINT); time.sleep(0.1); return 1.0"))
    assert score_all(reward, asked("1"))[0].reward == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_trainer_that_is_killed_takes_a_hanging_worker_with_it(tmp_path):
    seen = tmp_path / "seen"
    (tmp_path / "reward.py").write_text(
        f"import os, time\nopen({str(seen)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    spec = f"{tmp_path / 'reward.py'}:score"
    code = (
        "from assay.rewards.pool import Pool, RewardSpec\n"
        f"Pool([RewardSpec('score', {spec!r})], workers=1, timeout=60, separator='x')\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code])
    try:
        for _ in range(400):
            if seen.exists() and seen.read_text():
                break
            time.sleep(0.05)
    finally:
        trainer.kill()
        trainer.wait()
    assert ends_soon(int(seen.read_text()))
