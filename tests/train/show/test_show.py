"""`assay show`: the completions of a recorded run, read in a terminal without any other tool."""

import pytest
from fixtures.child_process import run_child
from fixtures.fake_records import fake_group, fake_record, new_run
from typer.testing import CliRunner

from assay.cli import app
from assay.types import Score

HOSTILE = "a\x1b[2Jb\u202ec\n::error::d"


def shown(*arguments, code=0):
    done = CliRunner().invoke(app, ["show", *map(str, arguments)], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


@pytest.fixture
def run(tmp_path):
    """Step 1 as fake_record has it; step 2 with a poor, a mixed and a rich prompt."""
    directory = new_run(tmp_path / "run", steps=1)
    groups = (
        fake_group(0, [Score.of({"exact": 0.0}), Score.of({"exact": 0.0})], "poor"),
        fake_group(1, [Score.of({"exact": 0.0}), Score.of({"exact": 1.0})], "mixed"),
        fake_group(2, [Score.of({"exact": 1.0}), Score.of({"exact": 1.0})], "rich"),
    )
    directory.append_step(fake_record(2, groups))
    return directory.path


def first_prompt(text):
    return next(line for line in text.splitlines() if line.startswith("| "))


def test_the_newest_step_is_shown_with_the_prompts_whose_rewards_differ_most(run):
    assert shown(run, "--n", "1").splitlines() == [
        f"step 2 of {run}: 1 of 3 prompts, rewards that differ most first",
        "",
        "prompt sort-1: mean reward 0.500, 2 answers",
        "| mixed>",
        "  reward 1.000, advantage -0.500, 3 tokens, ended by length",
        "    mixed",
        "  reward 0.000, advantage 0.500, 2 tokens",
        "    mixed",
    ]


@pytest.mark.parametrize(("order", "prompt"), [("--best", "| rich>"), ("--worst", "| poor>"), ("--spread", "| mixed>")])
def test_the_order_is_chosen_by_a_flag(run, order, prompt):
    assert first_prompt(shown(run, order)) == prompt


def test_a_step_with_components_and_a_failure_shows_both(run):
    text = shown(run, "--step", 1, "--prompt", "sort-1")
    assert "reward 3.000 (exact 1.000, format 2.000), advantage 0.500" in text
    assert "reward failed: raised ValueError, advantage -0.500" in text
    assert "sort-0" not in text


def test_what_is_not_there_is_refused_with_what_is(run, tmp_path):
    assert "holds no rollouts of step 9; it has steps 1 to 2" in shown(run, "--step", 9, code=2)
    assert "its prompts are named like 'sort-0'" in shown(run, "--prompt", "17", code=2)
    assert "--best and --worst cannot be combined" in shown(run, "--best", "--worst", code=2)
    assert "does not exist" in shown(tmp_path / "nowhere", code=2)
    assert "no step was finished, or record.rollouts = 'none'" in shown(new_run(tmp_path / "new").path, code=2)


def test_no_text_of_the_model_reaches_the_terminal_as_it_is(tmp_path):
    directory = new_run(tmp_path / "run")
    directory.append_step(fake_record(1, (fake_group(0, [Score.of({HOSTILE: 1.0}), Score.of({"y": 0.0})], HOSTILE),)))
    text = shown(directory.path)
    assert "a\\x1b[2Jb\\u202ec" in text
    assert not set(text) & set("\x1b\u202e")
    assert not [line for line in text.splitlines() if line.startswith("::")]


def test_a_long_text_loses_its_middle_unless_its_prompt_is_asked_for(tmp_path):
    directory = new_run(tmp_path / "run")
    text = "begin " + "word " * 2000 + "end"
    directory.append_step(fake_record(1, (fake_group(0, [Score.of({"x": 1.0}), Score.of({"x": 0.0})], text),)))
    short, whole = shown(directory.path), shown(directory.path, "--prompt", "sort-0")
    assert short.count("... (10,009 characters in all)") == 2
    assert len(short.splitlines()) < 30
    assert max(map(len, short.splitlines()[1:])) <= 80
    assert whole.count("word") == 3 * 2000


def test_it_needs_neither_torch_nor_pandas(run):
    code = (
        "import sys; from pathlib import Path; from assay.train.show.show_command import show_lines;"
        "sys.modules['pandas'] = None;"
        "list(show_lines(Path(sys.argv[1]), step=None, prompt=None, order='spread', count=3));"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    assert run_child(code, run).strip() == "[]"
