"""The commands of benchmarks/: `--help` with examples that are understood, bad input refused in one sentence."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import default, doctor, learning
from benchmarks.model.__main__ import PARSER as OF_A_MODEL
from benchmarks.model.__main__ import options_of
from benchmarks.model.shapes import SHAPES

ROOT = Path(__file__).parents[2]
PARSERS = {"default": default.PARSER, "doctor": doctor.PARSER, "learning": learning.PARSER, "model": OF_A_MODEL}
# each is typed in one process, which must not have imported torch at its end
REFUSED = {
    "default --json missing/a.json": "its directory does not exist",
    "default --steps 0": "argument --steps: '0' must be a whole number, 1 or more",
    "default --seeds 2": "unrecognized arguments: --seeds 2",
    "doctor --json missing/a.json": "its directory does not exist",
    "doctor --config missing.toml": "missing.toml",
    "learning --json missing/a.json": "its directory does not exist",
    "learning --plot missing/a.svg": "its directory does not exist",
    "learning --config missing.toml": "missing.toml",
    "learning --config unlike.toml": "kl_coef",
    "learning --repeats 2": "unrecognized arguments: --repeats 2",
    "model": "the following arguments are required: MODEL",
    "model . --measure rollout": ". is neither a directory with a model",
    "model tiny --contenders trl-autocast --dtype float32": "trl-autocast is about bfloat16",
    "model tiny --prompt-tokens 600": "the model's context is 512",
    "model tiny --json /proc/x.json": "could not be written",
    "model tiny --measure speed": "--measure speed is not a comma-separated choice of rollout",
    "model tiny --contenders ''": "--contenders  is not a comma-separated choice",
    "model tiny --device tpu": "argument --device: invalid choice: 'tpu'",
    "model tiny --dtype int4": "argument --dtype: invalid choice: 'int4'",
    "model tiny --prompts few": "argument --prompts: 'few' must be a whole number, 1 or more",
}
RUN = """
import contextlib, io, json, runpy, shlex, sys
sys.executable = "/nowhere"
for typed in json.loads(sys.argv[1]):
    name, *words = shlex.split(typed)
    sys.argv, errors = [name, *words], io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=False)
            code = 0
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, errors.getvalue(), "torch" in sys.modules]))
"""


@pytest.mark.parametrize("name", PARSERS)
def test_help_ends_with_examples_that_are_understood(name):
    shown = PARSERS[name].format_help()
    assert shown.startswith(f"usage: python -m benchmarks.{name} ")
    assert PARSERS[name].examples
    for example in PARSERS[name].examples:
        assert f"\n  {example}\n" in shown
        asked = PARSERS[name].parse_args(shlex.split(example)[3:])
        assert name != "model" or options_of(asked).model


@pytest.mark.parametrize("name", PARSERS)
def test_help_is_printed_without_torch(name):
    code = f"import runpy, sys; sys.argv = ['', '--help']; runpy.run_module('benchmarks.{name}', run_name='__main__')"
    command = [sys.executable, "-X", "importtime", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "examples:" in shown.stdout
    assert "| torch\n" not in shown.stderr


def test_help_names_every_shape_of_a_model():
    shown = " ".join(OF_A_MODEL.format_help().split())
    assert ", ".join(SHAPES) in shown


def test_bad_input_is_refused_in_one_sentence_that_does_not_wait_for_torch(tmp_path):
    (tmp_path / "unlike.toml").write_text("[loss]\nkl_coef = 0.5\n")
    command = [sys.executable, "-W", "ignore", "-c", RUN, json.dumps(list(REFUSED))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    ended = [json.loads(line) for line in shown.stdout.splitlines()]
    for (typed, words), (code, errors, has_torch) in zip(REFUSED.items(), ended, strict=True):
        assert (code, has_torch) == (2, False), typed
        assert words in errors, typed
        assert len(errors.splitlines()) == 1, typed
