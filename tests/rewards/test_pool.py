"""Many completions over several worker processes: in order, in time, and each failure alone."""

import contextlib
import os
import signal
import time

import pytest
from rewards.asking import asked, body, score_all

from assay.rewards.pool import Pool, RewardSpec
from assay.types import Rollout, StopReason

HANGS = body("if completion.endswith('!'): time.sleep(600)\n    return float(completion)", "completion")


def test_hanging_completions_fail_alone_and_the_order_is_kept(rewards):
    texts = [f"{number}!" if number % 20 == 7 else str(number) for number in range(200)]
    reward = rewards(HANGS, workers=4, timeout=0.3)
    heard = []
    began = time.monotonic()
    scores = reward.score(asked(*texts), lambda index, score: heard.append(score))
    seconds = time.monotonic() - began
    assert [score.reward for score in scores] == [None if number % 20 == 7 else number for number in range(200)]
    assert {score.error for score in scores} == {"", "score: took longer than 0.3 s"}
    assert sorted(map(id, heard)) == sorted(map(id, scores))
    assert seconds < 10  # 10 hang for 0.3 s each, over 4 workers, and 10 restarts


def test_workers_score_side_by_side(rewards):
    source = body("time.sleep(0.05); return 1.0", "completion")
    seconds = []
    for workers in (1, 4):
        reward = rewards(source, workers=workers)
        began = time.monotonic()
        score_all(reward, asked(*["1"] * 24))
        seconds.append(time.monotonic() - began)
    assert seconds[0] > 2 * seconds[1]


def test_a_callback_that_raises_leaves_nothing_under_way(rewards):
    reward = rewards(body("time.sleep(0.1 * (completion == '2')); return float(completion)", "completion"), workers=3)

    def refuse(index, score):
        raise InterruptedError("stop here")

    with pytest.raises(InterruptedError):
        reward.score(asked("1", "2", "2"), refuse)
    assert [score.reward for score in score_all(reward, asked("4", "5", "6", "7"))] == [4.0, 5.0, 6.0, 7.0]


def test_a_worker_that_cannot_be_started_anew_fails_its_completions_with_the_reason(rewards, tmp_path):
    seen = tmp_path / "seen"
    reward = rewards(
        f"open({str(seen)!r}, 'a').write('x')\n"
        f"if os.path.getsize({str(seen)!r}) > 1: os._exit(9)\n" + body("os._exit(3)", "completion")
    )
    scores = score_all(reward, asked("1", "2", "3", "4"))
    assert scores[0].error == "score: its process exited with 3"
    assert {score.error for score in scores[1:]} == {"score: could not be loaded: its process exited with 9"}
    assert seen.read_text() == "x" * 4  # once at the opening, three tries for all that was left


def test_only_starts_that_fail_in_a_row_count(rewards, tmp_path):
    seen = str(tmp_path / "seen")
    reward = rewards(
        f"open({seen!r}, 'a').write('x')\n"
        f"if os.path.getsize({seen!r}) % 2 == 0: os._exit(9)\n" + body("os._exit(3)", "completion")
    )
    assert {score.error for score in score_all(reward, asked(*"12345"))} == {"score: its process exited with 3"}


def test_a_worker_that_could_not_be_started_is_tried_again_in_the_next_batch(rewards, tmp_path):
    broken = tmp_path / "broken"
    reward = rewards(
        f"if os.path.exists({str(broken)!r}): os._exit(9)\n"
        + body(f"if completion == 'break': open({str(broken)!r}, 'w'); os._exit(3)\n    return 1.0", "completion")
    )
    assert [score.reward for score in score_all(reward, asked("1", "break", "1"))] == [1.0, None, None]
    broken.unlink()
    assert [score.reward for score in score_all(reward, asked("1"))] == [1.0]


def test_a_worker_that_was_killed_while_idle_costs_no_score(rewards):
    reward = rewards(body("return os.getpid()", "completion"))
    (first,) = score_all(reward, asked("1"))
    os.kill(int(first.reward), signal.SIGKILL)
    time.sleep(0.2)
    (second,) = score_all(reward, asked("1"))
    assert second.reward not in (None, first.reward)


def test_a_batch_function_is_asked_prompt_by_prompt_and_one_bad_group_fails_alone(rewards):
    reward = rewards(
        "def score(completions, **kwargs):\n"
        "    if 'hang' in completions: time.sleep(600)\n"
        "    if 'short' in completions: return [1.0]\n"
        "    return [len(completions)] * len(completions)\n",
        timeout=0.3,
        workers=2,
    )
    pairs = [*asked("1", "2", "3", id="a"), *asked("hang", "2", id="b"), *asked("1", "short", id="c")]
    scores = score_all(reward, [*pairs, *asked("1", id="d")])
    assert [score.reward for score in scores] == [3.0, 3.0, 3.0, None, None, None, None, 1.0]
    assert {score.error for score in scores[3:5]} == {"score: took longer than 0.6 s"}
    assert {score.error for score in scores[5:7]} == {"score: returned 1 values for 2 completions"}


def test_async_functions_of_a_group_run_side_by_side_with_a_deadline_each(rewards):
    reward = rewards(
        "async def score(completion):\n"
        "    await asyncio.sleep(600 if completion == 'hang' else 0.2)\n"
        "    if completion == 'exit': sys.exit(2)\n"
        "    return 1.0\n",
        timeout=0.6,
    )
    began = time.monotonic()
    scores = score_all(reward, asked(*["1"] * 20, "hang", "exit"))
    assert time.monotonic() - began < 2.0  # 4 s one after the other
    assert [score.reward for score in scores] == [1.0] * 20 + [None, None]
    assert [score.error for score in scores[20:]] == ["score: took longer than 0.6 s", "score: raised SystemExit: 2"]


def test_a_request_larger_than_a_pipe_holds_is_sent_while_others_are_answered(rewards):
    reward = rewards(body("return len(completion)", "completion"), workers=2)
    lengths = [1_000_000, 10, 300_000, 0]
    assert [score.reward for score in score_all(reward, asked(*("x" * length for length in lengths)))] == lengths


class Stopped(Exception):
    """What a signal raises while rewards are waited for."""


def test_a_signal_is_heard_while_a_reward_hangs_and_the_pool_is_usable_afterwards(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text("import os, time\n" + HANGS)
    stopping = False

    def check():
        if stopping:
            raise Stopped

    functions = [RewardSpec("score", f"{file}:score")]
    pool = Pool(functions, workers=2, timeout=60.0, separator="\n", check_interrupt=check)
    with contextlib.closing(pool):
        stopping = True
        began = time.monotonic()
        with pytest.raises(Stopped):
            pool.score([sample("1!"), sample("2!")], lambda *result: None)
        assert time.monotonic() - began < 2.0
        stopping = False
        results = []
        pool.score([sample("3"), sample("4")], lambda index, function, result: results.append((index, result)))
        assert sorted(results) == [(0, {"components": {"": 3.0}}), (1, {"components": {"": 4.0}})]


def test_a_signal_is_heard_while_a_reward_file_is_loaded(tmp_path):
    seen = tmp_path / "seen"
    file = tmp_path / "reward.py"
    file.write_text(f"import os, time\nopen({str(seen)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")

    def check():
        if seen.exists() and seen.read_text():
            raise Stopped

    began = time.monotonic()
    with pytest.raises(Stopped):
        Pool([RewardSpec("score", f"{file}:score")], workers=1, timeout=60.0, separator="\n", check_interrupt=check)
    assert time.monotonic() - began < 10.0
    with pytest.raises(ProcessLookupError):
        os.kill(int(seen.read_text()), 0)


def sample(text):
    return {"completion": text, "fields": {}, "id": "a", "prompt": "", "answer": "", "tokens": [], "truncated": False}


def test_a_batch_of_64_megabytes_is_sent_and_answered_in_seconds(rewards):
    reward = rewards("def score(completions):\n    return [len(text) for text in completions]\n")
    prompt, _ = asked("1")[0]
    rollout = Rollout("a", (1,), (0.0,), StopReason.EOS, 0, "x" * 1_000_000)
    began = time.monotonic()
    scores = score_all(reward, [(prompt, rollout)] * 64)
    seconds = time.monotonic() - began
    assert [score.reward for score in scores] == [1e6] * 64
    assert seconds < 3.0


def test_an_async_call_that_is_late_is_cancelled(rewards, tmp_path):
    cancelled = str(tmp_path / "cancelled")
    reward = rewards(
        "async def score(completion):\n"
        "    if completion == 'next': await asyncio.sleep(0.2); return 1.0\n"
        "    try: await asyncio.sleep(600)\n"
        f"    except asyncio.CancelledError: open({cancelled!r}, 'w').close(); raise\n",
        timeout=0.5,
    )
    assert score_all(reward, asked("late", "next"))[0].error == "score: took longer than 0.5 s"
    assert score_all(reward, asked("next"))[0].reward == 1.0
    assert os.path.exists(cancelled)
