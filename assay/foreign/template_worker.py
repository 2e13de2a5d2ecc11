"""The process that renders chat templates. Run as a script: it imports nothing of this package.

A chat template is a program that comes with a model. Jinja's sandbox keeps it from files and from Python's internals,
but not from endless loops and not from gigabytes of text. Here the operating system sets both limits, so that no
expression of the language can evade them: the process dies, and its parent reports why.

One JSON line in, {"template", "variables", "longest"}; one JSON line out, {"text"} or {"kind", "reason"}.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import pathlib
import resource
import signal
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

SECONDS = 5.0  # of CPU time for one rendering; ordinary templates take less than a millisecond
BYTES = 512 * 2**20  # of address space, beside what Python takes by itself
STATISTICS = pathlib.Path("/proc/self/statm")


class GenerationBlock(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} marks what the model wrote; rendered, it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012, as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: jinja2.runtime.Macro) -> str:
        return str(caller())


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The one that transformers gives to chat templates; tests/foreign/test_template.py compares the two."""
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = tojson
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = strftime_now
    return sandbox


@functools.lru_cache(maxsize=8)
def compile_template(text: str) -> jinja2.Template:
    return environment().from_string(text)


def answer(request: dict[str, Any]) -> dict[str, str]:
    try:
        text = compile_template(request["template"]).render(**request["variables"])
    except jinja2.TemplateError as error:
        line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return {"kind": "refusal", "reason": f"{error.message}{line}"}
    except MemoryError:
        return {"kind": "limit", "reason": f"needs more than {BYTES // 2**20} MB of memory"}
    except Exception as error:  # a template is somebody's program: its faults are reported, whatever they are
        return {"kind": "fault", "reason": f"{type(error).__name__}: {error}"}
    if len(text) > request["longest"]:
        return {"kind": "limit", "reason": f"makes {len(text)} characters of it, more than {request['longest']}"}
    return {"text": text}


def serve() -> None:
    with contextlib.suppress(ValueError, OSError):  # not every system limits address space
        most = BYTES + int(STATISTICS.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF is not handled: it ends the process, in C code too
        reply = json.dumps(answer(json.loads(line)))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(reply.encode("ascii") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
