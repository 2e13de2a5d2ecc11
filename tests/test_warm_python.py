"""The warm Python does with a program what Python does with it."""

import os
import subprocess
import sys
import time

import pytest

PROGRAMS = {
    "what it is told": "import os, sys; print(sys.argv, __name__, os.getcwd(), os.environ['WORD'], sys.stdin.read())",
    "what it can import": "import beside, sys; print(beside.word, 'assay' in sys.modules, __name__)",
    "an exit code": "import sys; print('out'); sys.exit(3)",
    "a sentence at the end": "raise SystemExit('assay: one sentence')",
    "work that was put off": "import atexit; atexit.register(print, 'the end')",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.8), print('late'))).start()",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("how", ["-c", "-m", "a script"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs_and_ends_as_in_a_new_interpreter(warm_python, tmp_path, program, how):
    (tmp_path / "script.py").write_text(program)
    (tmp_path / "beside.py").write_text("word = 'found'\n")
    call = {"-c": ["-c", program], "-m": ["-m", "script"], "a script": ["script.py"]}[how]

    def ended(python):
        done = subprocess.run(
            [python, *call, "an argument", "--b"],
            cwd=tmp_path, env={**os.environ, "WORD": "a word"}, input="typed", capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert ended(warm_python) == ended(sys.executable)


def test_an_error_is_told_and_is_no_success(warm_python):
    done = subprocess.run([warm_python, "-c", "1 / 0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_nothing_of_one_call_is_there_in_the_next(warm_python):
    call = [warm_python, "-c", "import builtins; print(hasattr(builtins, 'left')); builtins.left = 1"]
    assert [subprocess.run(call, capture_output=True, text=True).stdout for _ in range(2)] == ["False\n"] * 2


def test_torch_is_there_and_assay_is_not(warm_python):
    code = "import sys; print([name in sys.modules for name in ('torch', 'transformers', 'assay')])"
    shown = subprocess.run([warm_python, "-c", code], capture_output=True, text=True)
    assert shown.stdout == "[True, True, False]\n"


def test_whoever_kills_the_caller_kills_the_program(warm_python, tmp_path):
    code = "import pathlib, time\nwhile True: pathlib.Path('alive').touch(); time.sleep(0.01)"
    process = subprocess.Popen([warm_python, "-c", code], cwd=tmp_path)
    alive = tmp_path / "alive"
    while not alive.exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while alive.exists():
        assert time.monotonic() < deadline, "it goes on"
        alive.unlink(missing_ok=True)
        time.sleep(0.2)
