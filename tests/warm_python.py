"""A Python that has torch and transformers in memory: every call of it is a process of its own, forked from one server.

Importing them takes ten seconds, in which nothing of ours is tested. Nothing of assay is imported by the server: what
a command imports of it, and in what order, is what a new interpreter would import.

    python -m module | -c code | script, arguments (client)
        -- directory, environment, arguments, standard streams -->  serve  -- fork -->  the command
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

LIBRARIES = (
    "torch",
    "torch._dynamo",
    "pyarrow.parquet",
    "safetensors.torch",
    "rich.progress",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)
STANDARD = (0, 1, 2)
UNANSWERED = 70


def serving(libraries=LIBRARIES, python=sys.executable):
    """A context that gives the path of a `python` with these libraries in memory; beside it lies `assay`."""
    import contextlib
    import shutil
    import subprocess
    import tempfile

    @contextlib.contextmanager
    def context():
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            warm, command = place / "python", place / "assay"
            warm.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" ask "{place}/socket" "$@"\n')
            installed = shutil.which("assay", path=str(Path(sys.executable).parent))
            assert installed is not None
            body = Path(installed).read_text().partition("\n")[2]  # without its first line, which names the interpreter
            command.write_text(f"#!{warm}\n{body}")
            for file in (warm, command):
                file.chmod(0o755)
            call = [python, __file__, "serve", f"{place}/socket", *libraries]
            with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout.readline() == "ready\n"
                yield warm
                server.stdin.close()

    return context()


# ---------------------------------------------------------------- the client


def ask(place, arguments):
    """Has the command run and ends as it did: with its exit code, or by its signal."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        request = {"directory": os.getcwd(), "environment": dict(os.environ), "arguments": arguments}
        socket.send_fds(connection, [b"\n"], STANDARD)
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = connection.makefile().read()
    code = int(answer or UNANSWERED)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


# ---------------------------------------------------------------- the server


def serve(place, libraries):
    """Until its standard input ends."""
    import gc
    import importlib
    import select

    for library in libraries:
        importlib.import_module(library)
    importlib.import_module("torch").set_num_threads(1)
    gc.freeze()  # a fork then leaves these pages alone
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
            while _reap():
                pass
    _answer(connection)


def _reap():
    """Whether a child had ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def _answer(connection):
    """Forks once more: this process waits for the other one, which is the command."""
    import threading

    _, descriptors, _, _ = socket.recv_fds(connection, 1, len(STANDARD))
    request = json.loads(connection.makefile().readline())
    command = os.fork()
    if command == 0:
        connection.close()
        _become(request, descriptors)
    for descriptor in (*STANDARD, *descriptors):
        os.close(descriptor)  # whoever reads what the command writes waits for the last writer

    def follow():
        if not connection.recv(1):  # the client is gone
            os.kill(command, signal.SIGKILL)

    threading.Thread(target=follow, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    connection.sendall(str(code).encode())
    os._exit(0)


def _become(request, descriptors):
    """Runs the program as Python would, and ends without taking down what the server had built up, which takes long."""
    import atexit
    import threading

    for number, descriptor in zip(STANDARD, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if "torch" in sys.modules:
        sys.modules["torch"].seed()  # a new interpreter draws other numbers than the last one, too
    code = 0
    try:
        _run(*request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _run(how, *arguments):
    import runpy
    import types

    if how == "-P":
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    elif how == "-m":
        module, *sys.argv[1:] = arguments
        sys.path.insert(0, os.getcwd())
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif how == "-c":
        text, *sys.argv[1:] = arguments
        sys.argv[0] = "-c"
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(text, "<string>", "exec"), vars(main))
    else:
        sys.argv[:] = [how, *arguments]
        sys.path.insert(0, str(Path(how).parent))
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    what, where, *others = sys.argv[1:]
    if what == "ask":
        ask(where, others)
    serve(where, others)
