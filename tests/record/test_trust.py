"""Code that a run's own config names runs for whoever started the run; for all others only if they say so."""

import json
import os
import stat

import pytest

from assay import config as configuration
from assay.config import ConfigError
from assay.record import RunDirectory
from assay.record.trust import LOGS, POLICY, REWARDS, is_signed, load_config, refuse_untrusted, signed

ALL = (POLICY, REWARDS, LOGS)
# what a config can name that runs or sends something, and the words of the refusal
NAMED = {
    "reward.functions=/data/reward.py:score": (REWARDS, "reward.functions runs /data/reward.py:score"),
    "model.trust_remote_code=true": (POLICY, "model.trust_remote_code runs the Python code that comes with embedded"),
    "task.options.unsafe_scorer=true": (REWARDS, "task.options.unsafe_scorer lets sort_digits evaluate what the model"),
    "log.wandb=theirs": (LOGS, "log.wandb sends the metrics to its project theirs"),
    "log.trackio=theirs": (LOGS, "log.trackio sends the metrics to its project theirs"),
}
JUDGE = ["reward.functions=judge", "judge.url=http://there/v1", "judge.key_variable=MY_KEY"]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A user without a key yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def a_run(path, *settings):
    config = configuration.load(None, settings)
    RunDirectory.create(path, configuration.to_toml(config, meanings=False), {}, signed(config))
    return path


def as_another_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    signed(configuration.load(None, ["log.wandb=x"]))  # who has a key of his own


def refusal(run, *uses, overrides=()):
    config = load_config(run, overrides)
    with pytest.raises(ConfigError) as caught:
        refuse_untrusted(run, config, uses, {override.partition("=")[0] for override in overrides})
    return str(caught.value)


@pytest.mark.parametrize("setting", NAMED)
def test_who_started_a_run_is_not_asked_and_everybody_else_is(tmp_path, monkeypatch, setting):
    run = a_run(tmp_path / "run", setting)
    refuse_untrusted(run, load_config(run), ALL)
    as_another_user(monkeypatch, tmp_path)
    part, words = NAMED[setting]
    sentence = refusal(run, part)
    assert sentence.startswith(f"{run / 'config.toml'}: {words}")
    assert sentence.endswith("read what it would run, then add --trust")
    refuse_untrusted(run, load_config(run), [use for use in ALL if use != part])  # a command that does not use it


def test_a_judge_behind_a_url_is_named_with_the_key_that_it_would_get(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run", *JUDGE)
    refuse_untrusted(run, load_config(run), ALL)
    as_another_user(monkeypatch, tmp_path)
    sentence = refusal(run, REWARDS)
    assert "judge.url sends prompts, answers and the value of MY_KEY to http://there/v1" in sentence
    refuse_untrusted(run, load_config(run, ["reward.functions=exact"]), ALL, ["reward.functions"])  # it is not asked


def test_all_that_would_run_is_named_in_one_sentence(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run", *NAMED)
    as_another_user(monkeypatch, tmp_path)
    assert all(words in refusal(run, *ALL) for _, words in NAMED.values())


def test_a_run_that_names_no_code_needs_neither_key_nor_signature(tmp_path, state):
    run = a_run(tmp_path / "run", "reward.functions=[exact, task, math]", "judge.url=http://unused/v1")
    assert "signature" not in json.loads((run / "run.json").read_text())
    assert not state.exists()
    refuse_untrusted(run, load_config(run), ALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/data/reward.py:score", "/data/other.py:score"),
        ("/data/reward.py:score", "/data/reward.py:steal"),
        ("trust_remote_code = false", "trust_remote_code = true"),
        ('url = "http://here/v1"', 'url = "http://there/v1"'),
        ('key_variable = ""', 'key_variable = "OPENAI_API_KEY"'),
        ("options = {}", "options = {unsafe_scorer = true}"),
        ('wandb = ""', 'wandb = "theirs"'),
    ],
)
def test_a_config_that_was_changed_is_refused(tmp_path, old, new):
    settings = ['reward.functions=["/data/reward.py:score", "judge"]', "judge.url=http://here/v1"]
    run = a_run(tmp_path / "run", *settings)
    refuse_untrusted(run, load_config(run), ALL)
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    refusal(run, *ALL)


def test_a_setting_that_does_not_run_anything_may_change(tmp_path):
    run = a_run(tmp_path / "run", "reward.functions=/data/reward.py:score")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("steps = 120", "steps = 240"))
    refuse_untrusted(run, load_config(run), ALL)


def test_with_remote_code_the_model_that_it_comes_with_is_signed(tmp_path):
    run = a_run(tmp_path / "run", "model.trust_remote_code=true", "model.path=/models/mine")
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("/models/mine", "/models/theirs"))
    assert "comes with /models/theirs" in refusal(run, POLICY)


def test_what_the_user_says_on_the_command_line_is_his_own(tmp_path, monkeypatch):
    run = a_run(tmp_path / "run", "reward.functions=/data/reward.py:score")
    as_another_user(monkeypatch, tmp_path)
    own = ["reward.functions=/home/me/reward.py:score"]
    refuse_untrusted(run, load_config(run, own), ALL, ["reward.functions"])
    assert "/data/reward.py:score" in refusal(run, REWARDS, overrides=["rollout.temperature=0.5"])


@pytest.mark.parametrize("mark", ["", "{}", '{"signature": 3}', '{"signature": ""}', "[]", "[" * 100_000])
def test_a_mark_without_a_signature_is_not_signed(tmp_path, mark):
    run = a_run(tmp_path / "run", "log.wandb=mine")
    (run / "run.json").write_text(mark)
    assert not is_signed(run, load_config(run))


def test_the_key_is_for_this_user_alone(tmp_path, state):
    run = a_run(tmp_path / "run", "log.wandb=mine")
    key = state / "assay/key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert key.read_text().strip() not in (run / "run.json").read_text()
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    key.chmod(0o644)  # as a backup may restore it
    assert is_signed(run, load_config(run))
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_second_run_is_signed_with_the_same_key(tmp_path):
    runs = [a_run(tmp_path / name, "log.wandb=mine") for name in ("a", "b")]
    assert len({json.loads((run / "run.json").read_text())["signature"] for run in runs}) == 1


@pytest.mark.parametrize("key", ["", "xyz", "ab", "[" * 9])
def test_a_key_that_is_none_signs_nothing(tmp_path, state, key):
    (state / "assay").mkdir(parents=True)
    (state / "assay/key").write_text(key)
    run = a_run(tmp_path / "run", "log.wandb=mine")
    assert "signature" not in json.loads((run / "run.json").read_text())
    refusal(run, LOGS)


def test_where_no_key_can_be_kept_training_goes_on_unsigned(tmp_path, state):
    state.write_text("a file where a directory is wanted")
    run = a_run(tmp_path / "run", "log.wandb=mine")
    assert "signature" not in json.loads((run / "run.json").read_text())
    refusal(run, LOGS)


def test_a_key_that_is_a_pipe_does_not_hang(tmp_path, state):
    (state / "assay").mkdir(parents=True)
    os.mkfifo(state / "assay/key")
    assert signed(configuration.load(None, ["log.wandb=mine"])) == {}
