"""What `--help` shows: flags without a type, a line about each command, and examples that can be copied and work."""

import shlex
from pathlib import Path

import pytest
import typer
from test_readme import TYPED
from typer.testing import CliRunner

from assay import config as configuration
from assay.cli import app
from assay.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
EVERY_EXAMPLE = [example for examples in EXAMPLES.values() for example in examples]
# neither train nor read what another command would have made; those in the README are typed by tests/test_readme.py
STARTS = ("assay tasks", "assay explain", "assay reward-check", "assay doctor examples/", "assay train --print-config")
CHEAP = [
    example
    for example in EVERY_EXAMPLE
    if example.startswith(STARTS) and "--config my.toml" not in example and example not in TYPED
]
PROGRAM = typer.main.get_command(app)


def help_of(*arguments):
    ended = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert ended.exit_code == 0
    return ended.stdout


def words_of(example):
    """As a shell would hand them over: without `assay` and without a redirection."""
    program, *words = shlex.split(example.partition(">")[0])
    assert program == "assay"
    return words


def test_every_command_has_examples_and_is_described_in_one_line():
    assert set(EXAMPLES) == set(PROGRAM.commands)
    listed = [line.strip("\u2502 ").split(maxsplit=1) for line in help_of().splitlines()]
    described = dict(line for line in listed if len(line) == 2)
    for name, command in PROGRAM.commands.items():
        first = command.help.split("\n\n")[0]
        assert described[name] == first, f"assay --help breaks the description of {name} over two lines"
        assert first.endswith(".")


@pytest.mark.parametrize("name", ["", *EXAMPLES])
def test_a_flag_has_no_type(name):
    shown = help_of(*filter(None, [name]))
    assert "bool" not in shown.lower()
    assert "--help" in shown


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_stands_on_a_line_of_its_own(name):
    lines = [line.strip() for line in help_of(name).splitlines()]
    examples = lines[lines.index("Examples:") + 1 :]
    assert [line for line in examples if line] == list(EXAMPLES[name])


@pytest.mark.parametrize("example", EVERY_EXAMPLE)
def test_an_example_is_understood(example):
    with PROGRAM.make_context("assay", words_of(example)) as context:
        name, command, rest = PROGRAM.resolve_command(context, [*context._protected_args, *context.args])
        assert example in EXAMPLES[name]
        with command.make_context(name, rest, parent=context) as parsed:
            configuration.load(None, parsed.params.get("overrides") or [])


def test_who_types_assay_bench_is_sent_to_the_repository():
    ended = CliRunner().invoke(app, ["bench", "--model", "135m"])
    assert ended.exit_code == 2
    assert ended.stderr.splitlines() == [
        "assay: benchmarks are commands of the repository: python -m benchmarks.default (model, learning, doctor)"
    ]


@pytest.mark.parametrize("example", CHEAP)
def test_an_example_that_is_cheap_works(example, tmp_path, monkeypatch):
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, words_of(example))
    assert ended.exit_code == 0, ended.output
    assert ended.stdout.strip()
