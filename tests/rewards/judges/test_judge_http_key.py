"""The key of an HTTP judge: a server that refuses it may quote it, in any spelling."""

import base64

from rewards.judges.test_judge_http import KEY, asked, ignore, judge_of, says, serve, short_waits, status

__all__ = ["serve", "short_waits"]  # fixtures


def test_the_key_is_in_no_score(serve, monkeypatch, short_waits):
    monkeypatch.setenv("JUDGE_KEY", KEY)
    leaks = [
        status(401, f"Incorrect API key provided: {KEY}, sorry".encode()),
        status(500, (" " * 75 + KEY).encode()),  # the quotation ends inside of it
        says(f"your key is {KEY}"),
        lambda handler, question: handler.wfile.write(f"{KEY}\r\n\r\n".encode()),
        status(401, base64.b64encode(KEY.encode())),
        status(401, base64.b64encode(f"Bearer {KEY}".encode())),
        says(KEY.encode().hex()),
    ]
    in_base64 = [base64.b64encode(bytes(before) + KEY.encode()).decode()[4:10] for before in range(3)]
    spellings = (KEY[:4], *in_base64, KEY.encode().hex()[:8])
    for leak in leaks:
        (score,) = judge_of(serve(leak), key_variable="JUDGE_KEY", retries=1).score(asked("a"), ignore)
        assert score.reward is None
        assert not [spelling for spelling in spellings if spelling in score.error]
