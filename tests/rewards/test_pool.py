"""Many completions over several worker processes: in order, in time, and each failure alone."""

import os
import signal
import time

import pytest
from rewards.asking import asked, body, score_all

HANGS = body("if completion.endswith('!'): time.sleep(600)\n    return float(completion)", "completion")


def test_hanging_completions_fail_alone_and_the_order_is_kept(rewards):
    texts = [f"{number}!" if number % 20 == 7 else str(number) for number in range(200)]
    reward = rewards(HANGS, workers=4, timeout=0.3)
    heard = []
    began = time.monotonic()
    scores = reward.score(asked(*texts), heard.append)
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

    def refuse(score):
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
