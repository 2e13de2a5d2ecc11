"""A path in a TOML file is relative to the file; a path on the command line is relative to the shell."""

from pathlib import Path

import pytest

from assay.config import Config, ConfigError, load, to_toml, with_absolute_paths
from assay.config.paths import PATHS
from assay.tasks import BUILT_IN

CONFIG = """
[model]
path = "models/mine"
[judge]
path = "models/judge"
[task]
name = "rows.jsonl"
options = {heldout_file = "held.jsonl"}
[reward]
functions = ["exact", "rewards/mine.py:score", "judge"]
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """project/my.toml with the files that it names beside it; the shell stands in another directory."""
    place = tmp_path / "project"
    for directory in ("models/mine", "models/judge", "rewards"):
        (place / directory).mkdir(parents=True)
    for file in ("rows.jsonl", "held.jsonl", "rewards/mine.py"):
        (place / file).touch()
    (place / "my.toml").write_text(CONFIG)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return place


def paths_of(config):
    return [
        config.model.path,
        config.judge.path,
        config.task.name,
        config.task.options["heldout_file"],
        config.reward.functions[1],
    ]


@pytest.mark.parametrize("typed", ["../project/my.toml", "{project}/my.toml"])
def test_paths_in_a_file_start_at_the_file(project, typed):
    config = load(Path(typed.format(project=project)))
    names = ("models/mine", "models/judge", "rows.jsonl", "held.jsonl", "rewards/mine.py:score")
    assert paths_of(config) == [str(project / name) for name in names]
    assert config.reward.functions[::2] == ("exact", "judge")


def test_paths_on_the_command_line_start_at_the_shell(project):
    Path("other.jsonl").touch()
    config = load(project / "my.toml", ["task.name=other.jsonl", "model.path=gone/model"])
    assert (config.task.name, config.model.path) == ("other.jsonl", "gone/model")


def test_a_path_that_exists_in_the_shell_only_is_refused_with_what_to_write(project):
    Path("mine.jsonl").touch()
    Path("mine.py").touch()
    (project / "my.toml").write_text('[task]\nname = "mine.jsonl"\n[reward]\nfunctions = ["mine.py:score"]\n')
    with pytest.raises(ConfigError) as caught:
        load(project / "my.toml")
    first, second = caught.value.sentences
    assert "my.toml: task.name = 'mine.jsonl' is relative to this file's directory, where it does not exist" in first
    assert repr(str(Path("mine.jsonl").resolve())) in first
    assert "--set task.name=mine.jsonl" in first
    assert "reward.functions = 'mine.py'" in second


def test_a_path_that_exists_nowhere_is_named_whole(project):
    (project / "my.toml").write_text('[task]\nname = "gone.jsonl"\n[model]\npath = "./gone"\n')
    config = load(project / "my.toml")
    assert (config.task.name, config.model.path) == (str(project / "gone.jsonl"), str(project / "gone"))


def test_names_that_are_not_paths_stay_names_whatever_lies_about(project):
    for place in (project, Path()):
        for name in ("embedded", "json", "owner"):
            (place / name).mkdir()
    (project / "my.toml").write_text('[model]\npath = "embedded"\n[task]\nname = "json"\n')
    config = load(project / "my.toml")
    assert (config.model.path, config.task.name) == ("embedded", "json")
    (project / "my.toml").write_text('[model]\npath = "owner/model"\n[task]\nname = "reasoning_gym/chain_sum"\n')
    config = load(project / "my.toml")
    assert (config.model.path, config.task.name) == ("owner/model", "reasoning_gym/chain_sum")


def test_the_names_of_the_built_in_tasks_are_known_here():
    assert set(PATHS["task.name"]) == {"", *BUILT_IN}


def test_a_tilde_is_the_home(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    (project / "my.toml").write_text('[task]\nname = "~/rows.jsonl"\n')
    assert load(project / "my.toml").task.name == str(project / "rows.jsonl")
    assert load(None, ["model.path=~/models/mine"]).model.path == str(project / "models/mine")


def test_a_printed_config_means_the_same_files_from_anywhere(project, tmp_path):
    config = load(project / "my.toml")
    (tmp_path / "printed.toml").write_text(to_toml(config, meanings=True))
    assert load(tmp_path / "printed.toml") == config


def test_the_config_of_a_run_is_taken_as_it_was_recorded(project):
    """A directory of that name in the shell's directory does not stand in the way of reading an old run."""
    Path("owner/model").mkdir(parents=True)
    (project / "config.toml").write_text('[model]\npath = "owner/model"\n')
    with pytest.raises(ConfigError, match="is relative to this file"):
        load(project / "config.toml")
    (project / "run.json").write_text("{}")
    assert load(project / "config.toml").model.path == "owner/model"


def test_a_recorded_config_names_the_files_that_the_shell_saw_but_built_in_names_stay(project):
    for name in ("embedded", "json"):
        Path(name).mkdir()
    Path("mine.py").touch()
    config = with_absolute_paths(load(None, ["task.name=json", 'reward.functions=["mine.py:score", "os.path:join"]']))
    assert (config.model.path, config.task.name) == ("embedded", "json")
    assert config.reward.functions == (f"{Path('mine.py').resolve()}:score", "os.path:join")
    assert with_absolute_paths(Config()) == Config()


@pytest.mark.parametrize("name", ["a\\u0000b.jsonl", "~nobody-of-this-name/rows.jsonl", f"{'x' * 300}.jsonl"])
def test_a_path_that_cannot_exist_is_no_crash(project, name):
    (project / "my.toml").write_text(f'[task]\nname = "{name}"\n')
    assert load(project / "my.toml").task.name.startswith(str(project))
