"""Models of others at the command line: one sentence and exit code 2, whatever is in their files."""

import json

import pytest
from fixtures.commands import Trap, settings
from foreign.broken_models import change, write_model

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SMALL = {"run__steps": 1, "evaluate__prompts": 2, "rollout__max_tokens": 4}


@pytest.fixture
def directory(run_path):
    return write_model(run_path.parent / "model")


@pytest.fixture
def chat(run_path):
    """A task of conversations."""
    file = run_path.parent / "questions.jsonl"
    rows = [{"prompt": [{"role": "user", "content": f"{n}+1?"}], "answer": str(n + 1)} for n in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--set", f"task.name={file}"]


def options(directory, **changes):
    """Those of a tiny run, without the options of the task that they are meant for."""
    listed = settings(**SMALL, model__path=directory, **changes)
    return [part for pair in zip(listed[::2], listed[1::2], strict=True) if "digits" not in pair[1] for part in pair]


def assert_refused(ended, run, *words):
    assert ended.code == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.sentences) == 1, ended.stderr
    assert [word for word in words if word not in ended.sentences[0]] == [], ended.sentences[0]
    assert not run.exists()


def test_a_malformed_config_is_refused_in_one_sentence(assay_command, run_path, directory):
    change(directory / "config.json", rope_parameters=[], num_hidden_layers=2)
    ended = assay_command.run("train", *settings(**SMALL, model__path=directory), "--out", run_path)
    assert_refused(
        ended, run_path, str(directory), "config.json: rope_parameters = []", "put the model's own file back"
    )


def test_ten_million_layers_are_refused_in_one_sentence(assay_command, run_path, directory):
    change(directory / "config.json", num_hidden_layers=10**7)
    ended = assay_command.run("train", *settings(**SMALL, model__path=directory), "--out", run_path)
    assert_refused(ended, run_path, "num_hidden_layers = 10000000", "the weights are those of 2 layers")


def test_conversations_go_through_the_template(assay_command, run_path, directory, chat):
    ended = assay_command.run("train", *options(directory), *chat, "--out", run_path)
    assert ended.code == 0, ended.stderr


def test_a_template_without_end_is_refused_and_one_signal_ends_the_run(assay_command, run_path, directory, chat):
    """The signal comes right before the template is rendered; nobody sends a second one."""
    (directory / "chat_template.jinja").write_text(ENDLESS)
    trap = Trap("assay.foreign.template:TemplateWorker._exchange", 1, "TERM")
    ended = assay_command.run("train", *options(directory), *chat, "--out", run_path, traps=[trap])
    assert_refused(ended, run_path, "the model's chat template takes longer than 5 s for one conversation")


def test_a_template_that_fails_is_refused_in_one_sentence(assay_command, run_path, directory, chat):
    (directory / "chat_template.jinja").write_text("{{ messages[0].content + 1 }}")
    ended = assay_command.run("train", *options(directory), *chat, "--out", run_path)
    assert_refused(ended, run_path, "the model's chat template fails on the conversation: TypeError")
