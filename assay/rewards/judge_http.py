"""A judge behind HTTP: an OpenAI-compatible server is asked for a mark, and the reward is mark / judge.scale.

Whatever is not a mark (an error page, a sentence, a number out of range, silence) is a failed Score with the reason,
never 0.0. One request may take `timeout` seconds; an answer, with its retries and the waits between them, may take
(judge.retries + 1) times that. Redirects are not followed: they could carry the API key elsewhere. Proxies named in
the environment are not used.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import http.client
import json
import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC
from urllib.parse import urlsplit

from assay.config import ConfigError
from assay.config.sections import JudgeConfig
from assay.machine.secrets import redact
from assay.types import Prompt, Rollout, Score

MAX_REPLY_BYTES = 1_000_000
MAX_REPLY_TOKENS = 16  # a mark needs no more; a judge that talks is cut short
QUOTED_CHARACTERS = 80
FIRST_WAIT_SECONDS = 0.5  # before the first retry; doubles with each further one
LONGEST_WAIT_SECONDS = 30.0
_TICK_SECONDS = 0.05  # how often overdue requests are looked for

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_MARK = re.compile(rf"(?:score\s*:\s*)?({_NUMBER})(?:\s*/\s*({_NUMBER}))?", re.IGNORECASE | re.ASCII)
_PLACE = re.compile(r"\{(\w+)\}")


class HttpJudge:
    """A mark for each answer. Equal questions are asked once, also over steps; failures are asked again."""

    def __init__(
        self, settings: JudgeConfig, timeout: float, check_interrupt: Callable[[], None] = lambda: None
    ) -> None:
        check_places("judge.question", settings.question, ("prompt", "completion", "answer"))
        if not settings.model:
            raise ConfigError("judge.model is empty; give the name under which the server of judge.url has the model")
        self._secure, self._host, self._port, self._path = _address(settings.url)
        self._trust = ssl.create_default_context() if self._secure else None
        self._key = _key(settings.key_variable)
        self._settings = settings
        self._timeout = timeout
        self._check_interrupt = check_interrupt  # called while waiting; it may raise
        self._marks: dict[bytes, Score] = {}  # by digest of the question: a long run asks many long ones
        self._jitter = random.Random()  # its own: the global stream belongs to the run's seed

    def score(self, pairs: Sequence[tuple[Prompt, Rollout]], on_score: Callable[[int, Score], None]) -> list[Score]:
        """Scores in the order of `pairs`. When `on_score` or `check_interrupt` raises, what is under way is cut off."""
        places: dict[str, list[int]] = {}
        for index, (prompt, rollout) in enumerate(pairs):
            values = {"prompt": prompt.text, "completion": rollout.text, "answer": prompt.answer}
            question = fill(self._settings.question, values)
            places.setdefault(question, []).append(index)
        scores: dict[int, Score] = {}

        def keep(question: str, score: Score) -> None:
            for index in places[question]:
                scores[index] = score
                on_score(index, score)

        unknown = [question for question in places if _digest(question) not in self._marks]
        for question in places:
            if (known := self._marks.get(_digest(question))) is not None:
                keep(question, known)
        with contextlib.closing(self._ask_all(unknown)) as judged:
            for question, score in judged:
                if score.reward is not None:
                    self._marks[_digest(question)] = score
                keep(question, score)
        return [scores[index] for index in range(len(pairs))]

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _ask_all(self, questions: Sequence[str]) -> Generator[tuple[str, Score], None, None]:
        """(question, score) as each is known. Leaving early cuts off what is under way."""
        round_ = _Round()
        pool = ThreadPoolExecutor(self._settings.concurrency, thread_name_prefix="judge")
        try:
            pending: dict[Future[Score], str] = {
                pool.submit(self._ask, question, round_): question for question in questions
            }
            while pending:
                done, _ = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
                round_.cut_off(time.monotonic())
                self._check_interrupt()
                for future in done:
                    yield pending.pop(future), future.result()
        finally:
            round_.end()
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, question: str, round_: _Round) -> Score:
        """One question with its retries; runs in a thread of the pool."""
        deadline = time.monotonic() + self._timeout * (self._settings.retries + 1)
        tries = 0
        while True:
            tries += 1
            try:
                return self._request(question, round_, min(deadline, time.monotonic() + self._timeout))
            except _MayPass as failure:
                reason = f"{failure} (tried {tries} times)" if tries > 1 else str(failure)
                pause = min(FIRST_WAIT_SECONDS * 2 ** (tries - 1), LONGEST_WAIT_SECONDS)
                pause = max(pause * self._jitter.uniform(0.5, 1.0), failure.wait_seconds)
            if tries > self._settings.retries:
                round_.silent = round_.silent or not round_.heard
                return Score.failed(reason)
            if round_.silent and not round_.heard:  # another answer waited through all its tries for nothing
                return Score.failed(reason)
            if time.monotonic() + pause >= deadline:
                return Score.failed(f"{reason}; no time is left to wait {pause:.3g} s and try again")
            if round_.over.wait(pause):
                return Score.failed("abandoned")

    def _request(self, question: str, round_: _Round, deadline: float) -> Score:
        """One try: a mark or a lasting failure; _MayPass for what another try may mend."""
        body = {
            "model": self._settings.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": MAX_REPLY_TOKENS,
        }
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        seconds = max(deadline - time.monotonic(), 0.001)
        connection: http.client.HTTPConnection
        if self._trust is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._trust)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.connect()
            with round_.under_way(connection.sock, deadline):
                if round_.over.is_set():  # it ended while there was no socket to cut off
                    return Score.failed("abandoned")
                connection.request("POST", self._path, json.dumps(body), headers)
                response = connection.getresponse()
                round_.heard = True
                text = response.read(MAX_REPLY_BYTES + 1)
                if len(text) <= MAX_REPLY_BYTES and response.length:
                    raise http.client.IncompleteRead(text, response.length)
            if time.monotonic() >= deadline:  # a reply that was cut off can look like one that ended
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise _MayPass(f"the judge took longer than {self._timeout:g} s") from None
            shown = self._without_key(str(error) or "no reply")[:200]
            raise _MayPass(f"the judge cannot be reached: {type(error).__name__}: {shown}") from None
        finally:
            connection.close()
        return self._read_reply(response, text)

    def _read_reply(self, response: http.client.HTTPResponse, body: bytes) -> Score:
        text = body.decode("utf-8", "replace")
        if response.status == 429 or response.status >= 500:
            raise _MayPass(f"the judge answered {response.status}: {self._quote(text)}", _retry_after(response))
        if response.status != 200:
            return Score.failed(f"the judge answered {response.status}: {self._quote(text)}")
        if len(body) > MAX_REPLY_BYTES:
            return Score.failed(f"the judge's answer is longer than {MAX_REPLY_BYTES} bytes: {self._quote(text)}")
        try:
            reply = json.loads(text)["choices"][0]["message"]["content"]
        except (ValueError, RecursionError, LookupError, TypeError):
            return Score.failed(f"the judge's answer is not a chat completion: {self._quote(text)}")
        if not isinstance(reply, str):
            return Score.failed(f"the judge's answer holds no text: {self._quote(text)}")
        scale = self._settings.scale
        match = _MARK.fullmatch(reply.strip())
        if match is None or (match[2] is not None and float(match[2]) != scale):
            return Score.failed(f"the judge replied {self._quote(reply)}, which is not a mark from 0 to {scale:g}")
        mark = float(match[1])
        if not 0 <= mark <= scale:
            return Score.failed(f"the judge replied {self._quote(reply)}, which is outside 0 to {scale:g}")
        return Score.of({"judge": mark / scale})

    def _quote(self, text: str) -> str:
        return repr(self._without_key(text)[:QUOTED_CHARACTERS])

    def _without_key(self, text: str) -> str:
        """Servers quote the key they refuse, also in base64 or percent-encoded."""
        return redact(text, {self._settings.key_variable: self._key} if self._key else {})


class _MayPass(Exception):
    """A failure that another try may mend."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds  # what the server asks for


class _Round:
    """The requests of one call of score: which are under way and until when, and what they have met with."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.heard = False  # the server has answered something
        self.silent = False  # a question used up its tries, and nothing was heard yet
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def under_way(self, endpoint: socket.socket, deadline: float) -> Iterator[None]:
        with self._lock:
            self._open[endpoint] = deadline
        try:
            yield
        finally:
            with self._lock:
                del self._open[endpoint]

    def cut_off(self, now: float) -> None:
        """Ends the requests whose time is up. A socket's own timeout starts again with each byte that arrives."""
        with self._lock:
            overdue = [endpoint for endpoint, deadline in self._open.items() if deadline <= now]
        for endpoint in overdue:
            with contextlib.suppress(OSError):  # it has just ended by itself
                socket.socket.shutdown(
                    endpoint, socket.SHUT_RDWR
                )  # not TLS's own, which forgets its state under a read

    def end(self) -> None:
        self.over.set()
        self.cut_off(float("inf"))


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with its places filled, in one pass: a place's name inside a value stays as it is.

    >>> fill("Q: {prompt} A: {completion}", {"prompt": "{completion}?", "completion": "{0}"})
    'Q: {completion}? A: {0}'
    """
    filled = _PLACE.sub(lambda place: values.get(place[1], place[0]), template)
    return filled.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be sent


def check_judge_path(path: str) -> None:
    if not path or not os.path.isfile(os.path.join(path, "config.json")):
        raise ConfigError(
            f"judge.path = {path!r} is not a Hugging Face model directory on this machine (no config.json in it); give "
            "the directory of a sequence classifier, nothing is downloaded"
        )


def check_places(setting: str, template: str, known: Sequence[str]) -> None:
    """A template must show the completion and may name nothing that is not known."""
    listed = ", ".join(f"{{{name}}}" for name in known)
    for place in _PLACE.finditer(template):
        if place[1] not in known:
            raise ConfigError(f"{setting} holds {place[0]}, which nothing fills; it may hold {listed}")
    if "{completion}" not in template:
        raise ConfigError(f"{setting} = {template[:60]!r} does not show the answer to the judge; put {{completion}} in")


def _address(url: str) -> tuple[bool, str, int, str]:
    """Whether it is TLS, the host, the port, the path to post to."""
    example = "give a base address such as http://localhost:8000/v1"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"judge.url = {url!r} is not an address; {example}") from None
    if parts.username is not None or parts.password is not None:  # not quoted: it may be a password
        raise ConfigError("judge.url holds a user name or password; keep the key in the variable of judge.key_variable")
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"judge.url = {url!r} is not an http or https address; {example}")
    path = parts.path.rstrip("/")
    if parts.query or parts.fragment or path.endswith("/chat/completions"):
        raise ConfigError(f"judge.url = {url!r} must end before /chat/completions, which is added to it; {example}")
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80), f"{path}/chat/completions"


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"judge.key_variable = {variable!r}: there is no such environment variable, or it is empty; export it"
        )
    if not key.isascii() or not key.isprintable():  # checked here: http.client would quote the key in its error
        raise ConfigError(
            f"judge.key_variable = {variable!r}: its value holds characters that an HTTP header cannot "
            "carry; export the key alone"
        )
    return key


def _digest(question: str) -> bytes:
    return hashlib.sha256(question.encode()).digest()


def _retry_after(response: http.client.HTTPResponse) -> float:
    """Seconds to wait, as the server asks: a number or a date; 0 if it says nothing that can be read."""
    text = (response.getheader("Retry-After") or "").strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(moment.timestamp() - time.time(), 0.0)
