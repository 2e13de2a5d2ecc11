"""The HTTP judge against a real server that delays, fails and lies: a mark or a reason, never a 0.0, never a hang."""

import base64
import email.utils
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from assay.config import ConfigError, from_mapping
from assay.config.sections import JudgeConfig
from assay.rewards import judge_http, open_rewards
from assay.rewards.judge_http import HttpJudge
from assay.types import Prompt, Rollout, StopReason

KEY = "sk-0123456789abcdef"


def ignore(index, score):
    pass


def asked(*completions, prompt="2 + 2?", answer="4"):
    posed = Prompt("p", prompt, (1,), answer)
    return [(posed, Rollout("p", (1,), (0.0,), StopReason.EOS, 0, text)) for text in completions]


def completion_of(text):
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


class Server(ThreadingHTTPServer):
    """Answers as `behaviour(handler, question)` says, and keeps what it was asked."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, behaviour):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.lock = threading.Lock()
        self.requests = []  # (path, headers, body)
        self.times = []
        self.released = threading.Event()  # ends a hang

    def handle_error(self, request, client_address):
        pass  # a client that went away


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append((self.path, dict(self.headers), body))
            self.server.times.append(time.monotonic())
        self.server.behaviour(self, body["messages"][0]["content"])

    def reply(self, body, status=200, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def serve():
    """Starts a server with a behaviour; all of them end with the test."""
    servers = []

    def start(behaviour):
        servers.append(Server(behaviour))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()


def judge_of(server, timeout=5.0, **settings):
    defaults = {"url": f"http://127.0.0.1:{server.server_address[1]}/v1", "model": "m", "question": "{completion}"}
    return HttpJudge(JudgeConfig(**{**defaults, **settings}), timeout)


def says(text):
    return lambda handler, question: handler.reply(completion_of(text))


def in_turn(*replies):
    """The first request gets the first reply, and so on; the last one is for all that follow."""
    left = list(replies)
    return lambda handler, question: (left.pop(0) if len(left) > 1 else left[0])(handler, question)


def status(code, body=b"no", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, question: handler.reply(body, code, named)


def hang(handler, question):
    handler.server.released.wait(20)


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(judge_http, "FIRST_WAIT_SECONDS", 0.02)


@pytest.mark.parametrize(
    ("reply", "reward"),
    [("8", 0.8), (" 8.5\n", 0.85), ("8/10", 0.8), ("8 / 10.0", 0.8), ("Score: 7", 0.7), ("score:10/10", 1.0), ("0", 0)],
)
def test_a_mark_becomes_a_share_of_the_scale(serve, reply, reward):
    (score,) = judge_of(serve(says(reply))).score(asked("four"), ignore)
    assert score.reward == pytest.approx(reward)
    assert score.components == {"judge": score.reward}


LIES = ["11", "-3", "nan", "inf", "I would say 8", "", "8 or 9", "8/20", "**8**", "1e1", "8\n9", "\u0668", "9" * 400]


@pytest.mark.parametrize("reply", LIES)
def test_anything_else_is_a_failure_that_quotes_it(serve, reply):
    server = serve(says(reply))
    (score,) = judge_of(server).score(asked("four"), ignore)
    assert score.reward is None
    assert repr(reply[:80]) in score.error
    assert len(score.error) < 160
    assert len(server.requests) == 1  # a lie is not asked for again


def test_the_scale_bounds_the_mark(serve):
    server = serve(says("5"))
    assert judge_of(server, scale=5.0).score(asked("a"), ignore)[0].reward == 1.0
    assert judge_of(server, scale=4.0).score(asked("a"), ignore)[0].reward is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion_of("8")[:-9], "not a chat completion"),
        (b"<html><body>Welcome</body></html>", "not a chat completion: '<html><body>Welcome"),
        (b'{"choices": []}', "not a chat completion"),
        (b"[8]", "not a chat completion"),
        (b"[" * 200_000, "not a chat completion"),
        (b"\xff\xfe", "not a chat completion"),
        (b'{"choices": [{"message": {"content": null}}]}', "holds no text"),
    ],
)
def test_a_body_that_is_no_completion_is_a_failure(serve, body, reason):
    (score,) = judge_of(serve(status(200, body))).score(asked("four"), ignore)
    assert reason in score.error
    assert len(score.error) < 300


def test_a_huge_body_is_not_read_to_its_end(serve):
    sent = []

    def flood(handler, question):
        handler.send_response(200)
        handler.send_header("Content-Length", str(50_000_000))
        handler.end_headers()
        for _ in range(50):
            handler.wfile.write(b" " * 1_000_000)
            sent.append(1)

    (score,) = judge_of(serve(flood)).score(asked("four"), ignore)
    assert score.reward is None
    assert "longer than 1000000 bytes" in score.error
    time.sleep(0.1)
    assert len(sent) < 15  # the rest is what lies in socket buffers


def test_the_request_is_what_the_server_expects(serve, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
    server = serve(says("8"))
    judge_of(server, question="{prompt}|{completion}|{answer}", key_variable="JUDGE_KEY").score(asked("four"), ignore)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["messages"] == [{"role": "user", "content": "2 + 2?|four|4"}]
    assert (body["model"], body["temperature"]) == ("m", 0)
    assert 0 < body["max_tokens"] < 100


def test_a_completion_cannot_pull_in_the_answer(serve):
    server = serve(says("8"))
    hostile = "{answer} {prompt} {0} %s \ud800 \\1"
    judge_of(server, question="{completion} / {answer}").score(asked(hostile, answer="{completion}"), ignore)
    assert server.requests[0][2]["messages"][0]["content"] == "{answer} {prompt} {0} %s ? \\1 / {completion}"


def test_a_failure_that_may_pass_is_tried_again(serve, short_waits):
    server = serve(in_turn(status(500), status(503), says("8")))
    assert judge_of(server, retries=2).score(asked("four"), ignore)[0].reward == 0.8
    assert len(server.requests) == 3


def test_tries_end_and_the_last_reason_is_told(serve, short_waits):
    server = serve(status(502, b"<html>bad gateway</html>"))
    (score,) = judge_of(server, retries=2).score(asked("four"), ignore)
    assert score.error == "the judge answered 502: '<html>bad gateway</html>' (tried 3 times)"
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [400, 401, 404, 301, 204])
def test_other_statuses_are_not_tried_again(serve, code):
    server = serve(status(code, b"" if code == 204 else b"no", Location="http://127.0.0.1:1/"))
    (score,) = judge_of(server, retries=2).score(asked("four"), ignore)
    assert f"the judge answered {code}" in score.error
    assert len(server.requests) == 1


@pytest.mark.parametrize("as_date", [False, True])
def test_retry_after_is_honoured(serve, short_waits, as_date):
    after = email.utils.formatdate(time.time() + 2, usegmt=True) if as_date else "1"
    server = serve(in_turn(status(429, Retry_After=after), says("8")))
    assert judge_of(server).score(asked("four"), ignore)[0].reward == 0.8
    assert server.times[1] - server.times[0] > 0.9


def test_a_wait_beyond_the_deadline_is_not_begun(serve):
    server, started = serve(status(429, Retry_After="3600")), time.monotonic()
    (score,) = judge_of(server, timeout=1.0).score(asked("four"), ignore)
    assert "no time is left to wait 3.6e+03 s" in score.error
    assert time.monotonic() - started < 1


def test_waits_grow(serve, monkeypatch):
    monkeypatch.setattr(judge_http, "FIRST_WAIT_SECONDS", 0.1)
    server = serve(status(500))
    judge_of(server, retries=3).score(asked("four"), ignore)
    gaps = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    for gap, least in zip(gaps, [0.05, 0.1, 0.2], strict=True):
        assert least <= gap < 2 * least + 0.1


@pytest.mark.parametrize("stage", ["before", "inside the body"])
def test_a_closed_connection_is_tried_again(serve, short_waits, stage):
    def close(handler, question):
        if stage == "inside the body":
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(completion_of("8")[:-5])
        handler.close_connection = True

    server = serve(in_turn(close, says("8")))
    assert judge_of(server, retries=1).score(asked("four"), ignore)[0].reward == 0.8
    assert "cannot be reached" in judge_of(serve(close), retries=0).score(asked("four"), ignore)[0].error


def test_a_server_that_hangs_costs_the_timeout_for_each_try(serve, short_waits):
    server, started = serve(hang), time.monotonic()
    (score,) = judge_of(server, timeout=0.3, retries=1).score(asked("four"), ignore)
    assert score.error == "the judge took longer than 0.3 s (tried 2 times)"
    assert 0.5 < time.monotonic() - started < 1.5
    assert len(server.requests) == 2


@pytest.mark.parametrize("stage", ["headers", "body"])
def test_a_reply_that_drips_does_not_stretch_the_timeout(serve, stage):
    def drip(handler, question):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"\r\n" if stage == "body" else b""))
        while not handler.server.released.wait(0.05):
            handler.wfile.write(b" " if stage == "body" else b"X-Y: z\r\n")

    started = time.monotonic()
    (score,) = judge_of(serve(drip), timeout=0.4, retries=0).score(asked("four"), ignore)
    assert score.error == "the judge took longer than 0.4 s"
    assert time.monotonic() - started < 1.5


def test_a_server_that_is_not_there_is_a_reason_and_not_a_long_wait(serve, monkeypatch):
    monkeypatch.setattr(judge_http, "FIRST_WAIT_SECONDS", 0.2)
    judge = judge_of(server := serve(says("8")), retries=3, concurrency=4)
    server.shutdown()
    server.server_close()
    started = time.monotonic()
    scores = judge.score(asked(*map(str, range(100))), ignore)
    assert {score.reward for score in scores} == {None}
    assert "cannot be reached: ConnectionRefusedError" in scores[-1].error
    assert time.monotonic() - started < 3  # only the first ones wait through their retries: all would need 17 s


def test_requests_run_side_by_side_up_to_the_cap(serve):
    lock, now, most = threading.Lock(), 0, 0

    def slow(handler, question):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.2)
        with lock:
            now -= 1  # before the reply, after which the next request may come at once
        handler.reply(completion_of("8"))

    server, started = serve(slow), time.monotonic()
    scores = judge_of(server, concurrency=4).score(asked(*map(str, range(12))), ignore)
    assert [score.reward for score in scores] == [0.8] * 12
    assert most == 4
    assert time.monotonic() - started >= 0.6


def test_scores_keep_their_order_and_are_told_from_the_calling_thread(serve):
    def later_first(handler, question):
        time.sleep(0.3 - 0.1 * int(question))
        handler.reply(completion_of(question))

    heard, judge = [], judge_of(serve(later_first))
    scores = judge.score(
        asked("0", "1", "2"), lambda index, score: heard.append((index, score.reward, threading.get_ident()))
    )
    assert [score.reward for score in scores] == [0.0, 0.1, 0.2]
    assert heard == [(index, index / 10, threading.get_ident()) for index in (2, 1, 0)]


def test_equal_questions_are_asked_once(serve):
    server, heard = serve(says("8")), []
    judge = judge_of(server)
    assert [
        score.reward for score in judge.score(asked("a", "b", "a", "a"), lambda index, score: heard.append(index))
    ] == [0.8] * 4
    assert sorted(heard) == [0, 1, 2, 3]
    assert judge.score(asked("b", "c", "a"), lambda index, score: heard.append(index))[0].reward == 0.8
    assert len(heard) == 7
    assert sorted(body["messages"][0]["content"] for _, _, body in server.requests) == ["a", "b", "c"]


def test_a_failure_is_asked_again_in_the_next_step(serve):
    judge = judge_of(serve(in_turn(says("hm"), says("8"))))
    assert [judge.score(asked("a"), ignore)[0].reward for _ in range(2)] == [None, 0.8]


@pytest.mark.parametrize(
    ("raised", "others"), [(KeyboardInterrupt, hang), (ValueError, hang), (ValueError, status(429, Retry_After="10"))]
)
def test_an_interruption_abandons_what_is_under_way(serve, raised, others):
    def first_only(handler, question):
        (others if question != "0" else says("8"))(handler, question)

    def interrupt(index, score):
        time.sleep(0.1)  # the others are under way, or wait to try again
        raise raised("stop")

    server, started = serve(first_only), time.monotonic()
    judge = judge_of(server, concurrency=3, timeout=15.0)
    with pytest.raises(raised, match="stop") as held:  # its traceback keeps all frames alive
        judge.score(asked(*map(str, range(20))), interrupt)
    assert time.monotonic() - started < 1
    while any(thread.name.startswith("judge") for thread in threading.enumerate()):
        assert time.monotonic() - started < 3  # the threads end too, or the interpreter would wait for them
        time.sleep(0.02)
    assert held
    assert len(server.requests) <= 4
    assert judge.score(asked("0"), ignore)[0].reward == 0.8  # the judge itself goes on


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:8000/v1"}, "judge.url = 'localhost:8000/v1' is not an http or https address"),
        ({"url": "file:///etc/passwd"}, "is not an http or https address"),
        ({"url": ""}, "is not an http or https address"),
        ({"url": "http://a b/v1"}, "is not an http or https address"),
        ({"url": "http://host:port/v1"}, "is not an address"),
        ({"url": "http://me:secret@host/v1"}, "judge.url holds a user name or password"),
        ({"url": "http://host/v1/chat/completions"}, "must end before /chat/completions"),
        ({"model": ""}, "judge.model is empty"),
        ({"question": "Rate {prompt}"}, "put {completion} in"),
        ({"question": "Rate {completion} against {gold}"}, "judge.question holds {gold}, which nothing fills"),
        ({"key_variable": "NO_SUCH_KEY"}, "judge.key_variable = 'NO_SUCH_KEY': there is no such"),
        ({"key_variable": "BROKEN_KEY"}, "holds characters that an HTTP header cannot carry"),
    ],
)
def test_settings_that_cannot_work_are_refused(monkeypatch, settings, message):
    monkeypatch.setenv("BROKEN_KEY", "sk-top\nsecret")
    with pytest.raises(ConfigError) as refusal:
        HttpJudge(JudgeConfig(**{"url": "http://localhost/v1", "model": "m", **settings}), 1.0)
    assert message in str(refusal.value)
    assert "secret" not in str(refusal.value)


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
