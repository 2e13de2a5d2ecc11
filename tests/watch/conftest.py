"""A script in a folder of its own; and a process that runs scripts in forks."""

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path):
    def write(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        return script

    return write


@pytest.fixture(scope="session")
def serve(warm_python):
    """A job --> what became of it: see server.py."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [warm_python, str(Path(__file__).parent / "server.py")]
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:

        def serve(script, *arguments, **job):
            process.stdin.write(json.dumps({"script": str(script), "arguments": arguments, **job}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield serve
        process.stdin.close()
