"""How long the HTTP judge waits: up to a deadline over all tries, and not beyond a signal."""

import time

import pytest
from rewards.judges.test_judge_http import asked, hang, ignore, in_turn, judge_of, serve, status

from assay.config import from_mapping
from assay.rewards import open_rewards

__all__ = ["serve"]


def test_the_last_try_gets_only_what_is_left_of_the_time_of_all(serve):
    def refuses_late(handler, question):
        time.sleep(0.5)
        status(500, Retry_After="1")(handler, question)

    judge = judge_of(serve(in_turn(refuses_late, hang)), timeout=1.0, retries=1)
    began = time.monotonic()
    (score,) = judge.score(asked("four"), ignore)
    assert score.reward is None
    assert 1.9 < time.monotonic() - began < 2.45  # the second try began after 1.5 s and had 0.5 s of its 1 s left


def test_a_signal_is_heard_while_the_judge_hangs(serve):
    def stop():
        raise InterruptedError("stop here")

    server = serve(hang)
    settings = {"url": f"http://127.0.0.1:{server.server_address[1]}/v1", "model": "m", "question": "{completion}"}
    config = from_mapping({"reward": {"functions": ["judge"], "timeout": 60.0}, "judge": settings})
    reward = open_rewards(config, None, str, stop)
    began = time.monotonic()
    with pytest.raises(InterruptedError):
        reward.score(asked("four"), ignore)
    assert time.monotonic() - began < 1.0
