"""Chat templates, rendered within limits of time, memory and length: see template_worker.py."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from assay.foreign import template_worker
from assay.foreign.template_worker import BYTES, SECONDS

# A rendered conversation has the length of its messages, their escapes, and what the template adds to them.
GROWTH, ADDED = 8, 2**20

Messages = Sequence[Mapping[str, Any]]


class TemplateFault(ValueError):
    """A template that gave no text for a conversation. The message completes: "the chat template ..."."""


class TemplateLimit(TemplateFault):
    """It ran into a limit: it will do so again, whatever the request."""


class TemplateWorker:
    """One process, started when it is first needed. It ends when this one does: its input is then at an end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        encoded = json.dumps(variables)
        longest = GROWTH * len(encoded) + ADDED
        request = f'{{"template": {json.dumps(template)}, "variables": {encoded}, "longest": {longest}}}\n'
        with self._lock:
            line = self._ask(request.encode("ascii"))
        if not line.endswith(b"\n"):
            raise TemplateLimit(self._cause_of_death())
        reply: dict[str, str] = json.loads(line)
        if "text" in reply:
            return reply["text"]
        reason = " ".join(reply["reason"].split())[:300]
        if reply["kind"] == "limit":
            raise TemplateLimit(reason)
        raise TemplateFault(f"{'refuses' if reply['kind'] == 'refusal' else 'fails on'} the conversation: {reason}")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
        for stream in () if process is None else (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _ask(self, request: bytes) -> bytes:
        """The reply; without a newline at its end if the process died over it."""
        try:
            return self._exchange(request)
        except BrokenPipeError:  # something ended the process while it was idle
            self.close()
        try:
            return self._exchange(request)
        except BrokenPipeError:
            return b""

    def _exchange(self, request: bytes) -> bytes:
        try:
            process = self._running()
        except OSError as error:
            raise TemplateFault(f"is not rendered: no process can be started for it: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.flush()
        return process.stdout.readline()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():  # a forked process has a worker of its own
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-P", template_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is meant for the run, which decides when it stops
            )
            self._owner = os.getpid()
        return self._process

    def _cause_of_death(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        if code == -signal.SIGPROF:
            return f"takes longer than {SECONDS:g} s for one conversation"
        return f"ends the process that renders it (exit code {code}), which may take {BYTES // 2**20} MB"


_worker = TemplateWorker()
atexit.register(_worker.close)


def render_chat(tokenizer: Any, messages: Messages, *, add_generation_prompt: bool) -> str:
    """As the tokenizer's apply_chat_template(..., tokenize=False) does it, but within limits; or TemplateFault."""
    if not type(tokenizer).apply_chat_template.__module__.startswith("transformers."):
        # code that came with the model and was trusted: no template of ours to limit
        conversation = [dict(message) for message in messages]
        return str(
            tokenizer.apply_chat_template(conversation, add_generation_prompt=add_generation_prompt, tokenize=False)
        )
    try:
        template = tokenizer.get_chat_template()
    except ValueError as error:
        raise TemplateFault(f"cannot be chosen: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(template, str):
        raise TemplateFault(f"is not a text but a {type(template).__name__}")
    special = {
        name: token if isinstance(token, list) else str(token) for name, token in tokenizer.special_tokens_map.items()
    }
    variables = {
        **special,
        "messages": [dict(message) for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    return _worker.render(template, variables)
