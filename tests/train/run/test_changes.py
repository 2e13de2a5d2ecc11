"""`assay train --resume RUN --change section.key=value`: what may change in the middle of a run, that it is recorded,
and that a killed run keeps the change."""

import json
import shutil

import pytest
from fixtures.cases import thorough
from fixtures.commands import Trap, assert_same_bits, rows, settings

from assay import config as configuration
from assay.doctor.evidence.run_directory import read_run
from assay.record.settings import settings_by_step
from assay.train.evaluate.model_card import model_card
from assay.train.run.changes import changeable_keys, with_changes

UPDATE = "assay.train.step.learner:Learner.update"
RATE = ("--change", "optimizer.learning_rate=0.002")


@pytest.fixture(scope="module")
def stopped(assay_command, run_root):
    """A run that was stopped after update 2 of step 2 of 4, with two passes over two minibatches a step."""
    run = run_root / "stopped-for-changes"
    trap = Trap(UPDATE, 6, "TERM", "after")
    ended = assay_command.run("train", *settings(run__steps=4), "--out", run, traps=[trap])
    assert ended.code == 143, ended.stderr
    return run


def resume(assay_command, run, *arguments, **how):
    ended = assay_command.run("train", "--resume", run, *arguments, **how)
    assert ended.code == 0, ended.stderr
    return ended


def changed(run):
    return [event for event in rows(run / "events.jsonl") if event["kind"] == "changed"]


@pytest.fixture(scope="module")
def straight(assay_command, stopped, run_root):
    """The stopped run, gone on with another rate and never killed."""
    run = run_root / "changed-and-not-killed"
    shutil.copytree(stopped, run)
    resume(assay_command, run, *RATE)
    return run


@pytest.fixture(scope="module")
def unchanged(assay_command, stopped, run_root):
    """The stopped run, gone on as it was."""
    run = run_root / "not-changed"
    shutil.copytree(stopped, run)
    resume(assay_command, run)
    return run


def test_a_change_takes_effect_and_is_on_record(assay_command, stopped, run_path):
    shutil.copytree(stopped, run_path)
    ended = resume(assay_command, run_path, *RATE, "--change", "loss.clip_high=0.3")
    assert "optimizer.learning_rate = 0.001 becomes 0.002, from step 2 on" in ended.stderr
    assert [row["learning_rate"] for row in rows(run_path / "metrics.jsonl")] == [0.001, 0.002, 0.002, 0.002]
    facts = [{name: event[name] for name in ("setting", "before", "after", "step")} for event in changed(run_path)]
    assert facts == [
        {"setting": "loss.clip_high", "before": 0.2, "after": 0.3, "step": 1},
        {"setting": "optimizer.learning_rate", "before": 0.001, "after": 0.002, "step": 1},
    ]
    config = configuration.load(run_path / "config.toml")
    assert (config.optimizer.learning_rate, config.loss.clip_high) == (0.002, 0.3)
    # a later resume changes nothing and asks nothing
    resume(assay_command, run_path, "--set", "run.steps=5")
    assert len(changed(run_path)) == 2
    notes = read_run(run_path).notes
    assert any("optimizer.learning_rate was changed from 0.001 to 0.002 after step 1" in note for note in notes)
    assert assay_command.run("verify", run_path).code == 0


def test_without_a_change_the_run_would_have_gone_on_otherwise(unchanged, straight):
    first, second = (rows(place / "metrics.jsonl") for place in (unchanged, straight))
    assert first[0] == second[0]
    assert first[-1]["update_norm"] != second[-1]["update_norm"]


@pytest.mark.parametrize(
    ("place", "number", "when"),
    [
        ("assay.record:RunDirectory.replace_file", 1, "before"),
        ("assay.record:RunDirectory.replace_file", 1, "after"),
        ("assay.record:RunDirectory.append_event", 1, "after"),
        (UPDATE, 4, "after"),
        *thorough(("assay.train.run.saver:Saver.restore", 1, "after"), (UPDATE, 1, "after")),
    ],
)
def test_a_run_that_is_killed_after_a_change_goes_on_with_it(
    assay_command, stopped, straight, run_path, place, number, when
):
    shutil.copytree(stopped, run_path)
    ended = assay_command.run("train", "--resume", run_path, *RATE, traps=[Trap(place, number, "KILL", when)])
    assert ended.code == -9, ended.stderr
    is_lost = "replace_file" in place and when == "before"  # then the change was never made
    resume(assay_command, run_path, *(RATE if is_lost else ()))
    assert_same_bits(run_path, straight)
    assert changed(run_path)[-1]["after"] == 0.002


CHANGES = [
    "optimizer.schedule=linear optimizer.warmup=20 optimizer.beta1=0.8 optimizer.weight_decay=0.1 "
    "optimizer.clip_norm=0.1 run.max_skipped=9",
    "optimizer.microbatches=4 optimizer.share_prompts=false rollout.max_rows=4 model.gradient_checkpointing=true",
    "loss.objective=gspo loss.correction=token loss.entropy_coef=0.01",
    "loss.objective=cispo loss.dual_clip=3.0 loss.delta=2.0",
    "checkpoint.every=3 checkpoint.keep=5 checkpoint.final=false evaluate.every=1 record.rollouts=none "
    "log.completions=0",
    "reward.timeout=5.0 reward.workers=2",
]


@pytest.mark.parametrize("changes", CHANGES)
def test_each_kind_of_change_is_taken_inside_of_a_step(assay_command, stopped, run_path, changes):
    shutil.copytree(stopped, run_path)
    options = [part for change in changes.split() for part in ("--change", change)]
    resume(assay_command, run_path, *options, "--doctor", "strict")
    settings = [change.partition("=")[0] for change in changes.split()]
    assert sorted(event["setting"] for event in changed(run_path)) == sorted(settings)
    assert [row["step"] for row in rows(run_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert all(row["first_ratio_max_deviation"] < 1e-5 for row in rows(run_path / "metrics.jsonl"))


def test_the_settings_above_are_among_those_that_may_change():
    for change in " ".join(CHANGES).split():
        section, _, key = change.partition("=")[0].partition(".")
        assert key in changeable_keys(section)


def test_smaller_passes_apply_to_the_step_under_way_if_it_has_no_update_yet(assay_command, run_path):
    trap = Trap("assay.train.step.learner:Learner.freeze", 2, "TERM", "after")
    ended = assay_command.run("train", *settings(run__steps=3), "--out", run_path, traps=[trap])
    assert ended.code == 143, ended.stderr
    ended = resume(
        assay_command, run_path, "--change", "optimizer.microbatches=8",
        count=["assay.policy.causal:CausalPolicy.logprobs"],
    )  # fmt: skip
    smaller = ended.passed["assay.policy.causal:CausalPolicy.logprobs"]
    # steps 2 and 3: 2 minibatches x 8 passes, once for the old log-probs and twice for the updates
    assert smaller >= 2 * 2 * 8 * 2


def test_the_kl_can_be_switched_on_between_steps_and_not_inside_of_one(assay_command, stopped, run_path):
    inside, between = run_path, run_path.with_name("between")
    shutil.copytree(stopped, inside)
    ended = assay_command.run("train", "--resume", inside, "--change", "loss.kl_coef=0.1")
    assert ended.code == 2
    assert "stands inside step 2" in ended.sentences[0]
    assert "--set run.steps=2" in ended.sentences[0]
    shutil.copytree(stopped, between)
    resume(assay_command, between, "--set", "run.steps=2")
    resume(assay_command, between, "--set", "run.steps=4", "--change", "loss.kl_coef=0.1")
    kl = [row["ref_kl"] for row in rows(between / "metrics.jsonl")]
    assert kl[:2] == [None, None]
    assert all(value > 0 for value in kl[2:])  # to the model that the run began with, not to that of step 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.path=smollm2", "cannot change in the middle of a run"),
        ("rollout.temperature=0.5", "these may: max_rows, refill_rounds"),
        ("optimizer.epochs=3", "cannot change in the middle of a run"),
        ("task.options.max_digits=5", "--set task.options=..."),
        ("run.seed=2", "these may: steps, threads, max_skipped"),
        ("reward.functions=exact", "begins with this policy"),
        ("optimizer.learning_rate=auto", "give the new one"),
        ('optimizer.learning_rate="auto"', "give the new one"),
        ("optimizer.learning_rate=fast", "must be a number"),
        (f"optimizer.learning_rate={'9' * 400}", "has 400 digits"),
        ("run.threads=100000000", "more than 1024"),
        ("optimizer.lr=1", "optimizer.learning_rate"),
        ("learning_rate=1", "--change 'learning_rate=1' lacks the section"),
        ("nothing", "--change 'nothing' is not of the form"),
        ("evaluate.patience=2", "evaluate.every"),
        ("run.steps=1", "has done 1 steps and begun step 2"),
    ],
)
def test_what_cannot_change_is_refused_in_one_sentence_and_nothing_is_written(
    assay_command, stopped, run_path, change, words
):
    shutil.copytree(stopped, run_path)
    before = {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()}
    ended = assay_command.run("train", "--resume", run_path, "--change", change)
    assert ended.code == 2, ended.stderr
    assert len(ended.sentences) == 1
    assert words in ended.sentences[0]
    assert {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()} == before


def test_set_on_a_resumed_run_names_the_option_that_changes_it(assay_command, stopped):
    ended = assay_command.run("train", "--resume", stopped, "--set", "loss.kl_coef=1")
    assert ended.code == 2
    assert "use --change loss.kl_coef=1, which records the change" in ended.sentences[0]
    assert "--change is only for --resume" in assay_command.run("train", *RATE).sentences[0]


def test_an_edited_config_is_still_refused_after_a_change(assay_command, stopped, run_path):
    shutil.copytree(stopped, run_path)
    trap = Trap(UPDATE, 1, "KILL", "before")  # before a checkpoint holds the change
    assert assay_command.run("train", "--resume", run_path, *RATE, traps=[trap]).code == -9
    config = run_path / "config.toml"
    config.write_text(config.read_text().replace("learning_rate = 0.002", "learning_rate = 0.003"))
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 2
    assert "was saved with 0.001; put the old value back, or give it as --change" in ended.sentences[0]


def test_a_finished_run_says_that_nothing_is_left_and_an_edited_end_is_taken_up(assay_command, run_path):
    assert assay_command.run("train", *settings(run__steps=2), "--out", run_path).code == 0
    ended = resume(assay_command, run_path)
    assert "all 2 steps are done; --set run.steps=4 would add as many" in ended.stderr
    assert "doctor:" not in ended.stderr  # it looked at nothing
    config = run_path / "config.toml"
    config.write_text(config.read_text().replace("steps = 2\n", "steps = 3\n"))
    resume(assay_command, run_path)
    assert len(rows(run_path / "metrics.jsonl")) == 3
    assert assay_command.run("verify", run_path).code == 0


def test_steps_are_judged_by_the_settings_that_made_them():
    config = configuration.load(None, ["loss.clip_high=0.4", "loss.kl_coef=0.2"])
    at = settings_by_step(
        config,
        [
            {"kind": "start"},
            {"kind": "changed", "setting": "loss.clip_high", "before": 0.2, "after": 0.3, "step": 10},
            {"kind": "resume", "step": 10},
            {"kind": "changed", "setting": "loss.clip_high", "before": 0.3, "after": 0.4, "step": 40},
            {"kind": "changed", "setting": "loss.kl_coef", "before": 0.0, "after": 0.2, "step": 40},
            {"kind": "resume", "step": 40},
            # the checkpoint of step 40 was damaged: the run went on from step 20 with the settings of now
            {"kind": "changed", "setting": "loss.clip_high", "before": 0.3, "after": 0.4, "step": 20},
            {"kind": "changed", "setting": "loss.kl_coef", "before": 0.0, "after": 0.2, "step": 20},
            {"kind": "resume", "step": 20},
        ],
    )
    made_by = {step: (at(step)["clip_high"], at(step)["kl_coef"]) for step in (1, 10, 11, 20, 21, 30, 50)}
    assert made_by == {
        1: (0.2, 0.0), 10: (0.2, 0.0), 11: (0.3, 0.0), 20: (0.3, 0.0), 21: (0.4, 0.2), 30: (0.4, 0.2), 50: (0.4, 0.2),
    }  # fmt: skip


@pytest.mark.parametrize("event", [{}, {"setting": 3, "step": 9}, {"setting": "a.b", "before": 1, "step": 9}])
def test_events_that_somebody_changed_leave_the_config_as_it_is(event):
    config = configuration.load(None, [])
    at = settings_by_step(config, [{"kind": "changed", "step": 9, **event}])
    assert at(1)["clip_high"] == 0.2


def test_a_change_that_is_taken_back_is_on_record_too(assay_command, stopped, run_path):
    shutil.copytree(stopped, run_path)
    trap = Trap(UPDATE, 1, "KILL", "before")  # before a checkpoint holds the change
    assert assay_command.run("train", "--resume", run_path, *RATE, traps=[trap]).code == -9
    assert assay_command.run("train", "--resume", run_path, traps=[trap]).code == -9
    assert len(changed(run_path)) == 1  # going on with a change is not another change
    ended = resume(assay_command, run_path, "--change", "optimizer.learning_rate=0.001")
    assert "optimizer.learning_rate = 0.002 becomes 0.001, from step 2 on" in ended.stderr
    assert [(event["before"], event["after"]) for event in changed(run_path)] == [(0.001, 0.002), (0.002, 0.001)]
    assert [row["learning_rate"] for row in rows(run_path / "metrics.jsonl")] == [0.001] * 4


@pytest.mark.parametrize("change", ["optimizer.learning_rate=0.5", "rollout.max_rows=4"])
def test_a_finished_run_refuses_a_change_that_no_step_would_be_made_with(assay_command, unchanged, run_path, change):
    shutil.copytree(unchanged, run_path)
    before = {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()}
    ended = assay_command.run("train", "--resume", run_path, "--change", change)
    assert ended.code == 2, ended.stderr
    assert "the run has done all of its 4 steps" in ended.sentences[0]
    assert {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()} == before
    resume(assay_command, run_path, "--change", change, "--set", "run.steps=5")
    assert [event["steps"] for event in rows(run_path / "events.jsonl") if event["kind"] == "resume"] == [4, 5]


def test_the_model_card_names_the_settings_that_made_the_weights(straight, run_path):
    shutil.copytree(straight, run_path)
    card = (run_path / "final/README.md").read_text()
    assert "learning rate 0.002 |" in card
    assert "| changed on the way | `optimizer.learning_rate` from `0.001` to `0.002` after step 1 |" in card
    config = configuration.load(run_path / "config.toml", ["optimizer.learning_rate=0.5"])
    with (run_path / "events.jsonl").open("a") as events:
        event = {"kind": "changed", "step": 4, "setting": "optimizer.learning_rate", "before": 0.002, "after": 0.5}
        events.write(json.dumps(event) + "\n")
    assert model_card(run_path, config, step=4, merge=False) == card


def test_the_kl_cannot_move_from_the_reward_into_the_loss_inside_of_a_step(assay_command, run_path):
    changes = {"run__steps": 3, "loss__kl_coef": 0.1, "loss__kl_placement": "reward"}
    trap = Trap(UPDATE, 6, "TERM", "after")
    assert assay_command.run("train", *settings(**changes), "--out", run_path, traps=[trap]).code == 143
    move = ("--change", "loss.kl_placement=loss")
    ended = assay_command.run("train", "--resume", run_path, *move)
    assert ended.code == 2, ended.stderr
    assert "loss.kl_placement = 'loss' cannot begin now" in ended.sentences[0]
    # the command that the sentence gives works, and then so does the change
    advice = ended.sentences[0].partition("assay train ")[2].split()
    resume(assay_command, run_path, *advice[2:])
    resume(assay_command, run_path, *move, "--set", "run.steps=3")
    kl = [row["ref_kl"] for row in rows(run_path / "metrics.jsonl")]
    assert kl[1] is None
    assert kl[2] > 0


def test_a_change_to_a_kl_without_the_gradient_of_the_kl_is_refused_with_the_fix(tmp_path):
    file = tmp_path / "config.toml"
    recorded = configuration.load(None, ["loss.kl_coef=0.1"])
    file.write_text(configuration.to_toml(recorded, meanings=False))
    with pytest.raises(configuration.ConfigError, match=r"set loss\.kl_estimator = 'k1'"):
        with_changes(file, recorded, ["loss.kl_placement=reward"])
    assert with_changes(file, recorded, ["loss.kl_placement=reward", "loss.kl_estimator=k1"]).loss.kl_estimator == "k1"
    made = configuration.load(None, ["loss.kl_coef=0.1", "loss.kl_placement=reward", "loss.kl_estimator=k3"])
    file.write_text(configuration.to_toml(made, meanings=False))
    assert with_changes(file, made, ["loss.kl_coef=0.2"]).loss.kl_estimator == "k3"  # a run of before goes on


def test_a_constant_rate_may_begin_to_fall_in_a_run_that_becomes_longer(assay_command, stopped, run_path):
    shutil.copytree(stopped, run_path)
    resume(assay_command, run_path, "--change", "optimizer.schedule=linear", "--set", "run.steps=5")
    rates = [row["learning_rate"] for row in rows(run_path / "metrics.jsonl")]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.001
    ended = assay_command.run("train", "--resume", run_path, "--set", "run.steps=6")
    assert ended.code == 2
    assert "would move the end of the linear learning-rate schedule" in ended.sentences[0]


def test_zero_threads_are_counted_again(assay_command, stopped, run_path):
    shutil.copytree(stopped, run_path)
    resume(assay_command, run_path, "--change", "run.threads=2", "--set", "run.steps=2")
    resume(assay_command, run_path, "--change", "run.threads=0", "--set", "run.steps=3")
    assert [(event["before"], event["after"]) for event in changed(run_path)] == [(1, 2), (2, 1)]


@pytest.mark.parametrize("event", [{"kind": "resume"}, {"kind": "changed"}, {"kind": "changed", "step": "9"}])
def test_events_without_a_step_are_passed_over(event):
    change = {"kind": "changed", "setting": "loss.clip_high", "before": 0.3, "after": 0.2, "step": 9}
    assert settings_by_step(configuration.load(None, []), [change, event])(1)["clip_high"] == 0.3
