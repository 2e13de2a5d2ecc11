"""Held-out evaluation: hand-worked numbers, then the real engine, then `assay eval` on a run directory."""

import itertools
import json
import math
import statistics
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from assay import config as configuration
from assay.cli import app
from assay.config import Config
from assay.config.sections import EvaluateConfig, ModelConfig, RewardConfig, RolloutConfig, RunConfig, TaskConfig
from assay.engine.open import open_engine
from assay.policy.load import load_policy
from assay.record import RunDirectory, RunError, read_evaluations
from assay.record.evaluations import HeldoutAnswers, forget_answers, read_answers, write_answers
from assay.rewards import open_rewards
from assay.tasks import open_task
from assay.train.evaluate.evaluate import WORDS, evaluate, evaluation_row, heldout_prompts, pass_at_k
from assay.train.evaluate.export import export_weights
from assay.train.run import checkpoint
from assay.train.show.summary import summary_facts
from assay.train.step.failed_rewards import RewardFailed
from assay.types import Problem, Rollout, Score, StopReason


def quiet(*_):
    pass


@pytest.fixture(scope="module", autouse=True)
def _surroundings():
    """Threads and kernels are put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


SMALL = Config(
    run=RunConfig(threads=1, device="cpu"),
    model=ModelConfig(warm_steps=40, dtype="float32"),
    task=TaskConfig(options={"min_digits": 2, "max_digits": 3}),
    rollout=RolloutConfig(max_tokens=5),
    evaluate=EvaluateConfig(prompts=6, samples=3),
)


def answer(length=2, stop=StopReason.EOS):
    return Rollout("p", (1,) * length, (-0.5,) * length, stop, -1, "")


def number(value):
    return Score.failed("broken") if value is None else Score.of({"own": value})


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("n", "c", "k"), [(n, c, k) for n in range(1, 7) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_all_choices_of_k_answers_that_hold_one_that_passes(n, c, k):
    choices = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0)])
def test_a_pass_at_k_that_is_not_defined_is_refused(n, c, k):
    with pytest.raises(ValueError, match="is not defined"):
        pass_at_k(n, c, k)


def test_a_row_is_worked_out_by_hand():
    # greedy, then four samples; a pass is 0.5 or more
    rewards = [[1.0, 1.0, 0.0, 0.5, 0.25], [None, 0.0, 0.0, None, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0]]
    scores = [[number(reward) for reward in own] for own in rewards]
    tries = [[answer(9)] + [answer(length) for length in (1, 2, 3, 4)] for _ in rewards]
    tries[0][1] = answer(6, StopReason.LENGTH)
    tries[0][0] = answer(6, StopReason.LENGTH)  # the greedy answer is in neither share nor length
    row = evaluation_row(7, tries, scores, pass_reward=0.5)
    shares = [2 / 4, 0 / 4, 4 / 4]
    deviation = math.sqrt(sum((share - 0.5) ** 2 for share in shares) / 2)
    assert row == {
        "step": 7,
        "prompts": 3,
        "samples": 4,
        "reward_greedy": pytest.approx(1 / 2),
        "reward_greedy_std_error": pytest.approx(math.sqrt(0.5) / math.sqrt(2)),  # of 1 and 0
        "reward_sampled": pytest.approx((1.75 + 0.0 + 4.0) / 11),
        "reward_sampled_std_error": pytest.approx(statistics.stdev([1.75 / 4, 0.0, 1.0]) / math.sqrt(3)),
        "unscored_greedy": 1,
        "unscored_sampled": 1,
        "pass_greedy": pytest.approx(1 / 3),
        "pass_at_1": pytest.approx(6 / 12),
        "pass_at_1_std_error": pytest.approx(deviation / math.sqrt(3)),
        "pass_at_k": pytest.approx(2 / 3),
        "k": 4,
        "truncated_share": pytest.approx(1 / 12),
        "length_mean": pytest.approx((6 + 2 + 3 + 4 + 10 + 10) / 12),
        "reward_own_greedy": pytest.approx(1 / 2),
        "reward_own_sampled": pytest.approx((1.75 + 0.0 + 4.0) / 11),
    }


def test_a_reward_that_misses_the_mark_by_rounding_alone_passes():
    nearly = 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1 + 0.1  # sum() rounds less from Python 3.12 on
    assert nearly < 1.0
    row = evaluation_row(0, [[answer(), answer(), answer()]], [[number(nearly), number(nearly), number(0.999)]], 1.0)
    assert (row["pass_greedy"], row["pass_at_1"]) == (1.0, 0.5)
    assert row["pass_at_1_std_error"] is None  # one prompt says nothing of how prompts differ


def test_without_a_single_score_there_is_no_mean_reward_and_nothing_has_passed():
    row = evaluation_row(0, [[answer(), answer()]], [[number(None), number(None)]], 0.0)
    assert (row["reward_greedy"], row["reward_sampled"]) == (None, None)
    assert (row["pass_greedy"], row["pass_at_1"], row["pass_at_k"]) == (0.0, 0.0, 0.0)


def test_the_summary_shows_pass_at_k_from_the_first_evaluation_to_the_last():
    common = {"k": 4, "prompts": 9, "reward_greedy": 0.5, "reward_sampled": 0.25, "pass_greedy": 0.5, "pass_at_1": 0.25}
    rows = [{**common, "step": step, "pass_at_k": value} for step, value in ((0, 0.375), (5, 0.1), (9, 0.875))]
    facts = summary_facts([], rows)
    assert facts["held-out"] == "greedy 0.500 -> 0.500, sampled 0.250 -> 0.250 (n = 9)"
    assert facts["passed"] == "greedy 0.500 -> 0.500, pass@1 0.250 -> 0.250, pass@4 0.375 -> 0.875"


# ---------------------------------------------------------------- with the engine


class Own:
    """A reward of the test's own: `judge(prompt, rollout)` of each answer, the last one first."""

    def __init__(self, judge):
        self.judge = judge
        self.asked = []

    def score(self, asked, on_score):
        self.asked = list(asked)
        scores = [self.judge(prompt, rollout) for prompt, rollout in asked]
        for index in reversed(range(len(scores))):
            on_score(index, scores[index])
        return scores


def exact(prompt, rollout):
    return Score.of({"exact": float(rollout.text == prompt.answer)})


@pytest.fixture(scope="module")
def policy(_surroundings):
    return load_policy(SMALL, quiet)


def evaluated(policy, config=SMALL, reward=None, **named):
    task = open_task(config)
    given = {"on_token": quiet, "on_scored": quiet, **named}
    return evaluate(open_engine(policy), policy, task, reward or Own(exact), config, 3, **given)


def test_an_evaluation_gives_the_same_row_and_answers_at_every_call(policy):
    first = evaluated(policy)
    torch.manual_seed(9)
    assert evaluated(policy) == first
    assert first.row["step"] == 3
    other = replace(SMALL, run=replace(SMALL.run, seed=2))
    assert evaluated(policy, other).answers != first.answers


def test_the_greedy_answer_is_the_likeliest_and_the_samples_differ(policy):
    reward = Own(exact)
    result = evaluated(policy, reward=reward)
    assert len(reward.asked) == 6 * (1 + 3)
    own = [[rollout for prompt, rollout in reward.asked if prompt.id == one.id] for one in result.answers]
    assert [one.greedy for one in result.answers] == [rollouts[0].text for rollouts in own]
    assert [one.sampled for one in result.answers] == [tuple(rollout.text for rollout in tries[1:]) for tries in own]
    assert any(len(set(one.sampled)) > 1 for one in result.answers)
    hotter = evaluated(replace(policy, temperature=5.0))
    assert [one.greedy for one in hotter.answers] == [one.greedy for one in result.answers]
    colder = replace(policy, temperature=1e-3)
    for one in evaluated(colder).answers:
        assert set(one.sampled) == {one.greedy}


def test_each_score_stays_with_its_answer_although_they_are_heard_in_another_order(policy):
    marks = {}

    def mark(prompt, rollout):
        marks.setdefault((prompt.id, rollout.text), float(len(marks)))
        return Score.of({"mark": marks[prompt.id, rollout.text]})

    seen = []
    result = evaluated(policy, reward=Own(mark), on_scored=lambda done, total: seen.append((done, total)))
    for one in result.answers:
        assert one.greedy_reward == marks[one.id, one.greedy]
        assert one.sampled_rewards == tuple(marks[one.id, text] for text in one.sampled)
    assert seen == [(done, 24) for done in range(1, 25)]


def test_the_mark_that_passes_is_a_setting(policy):
    half = Own(lambda prompt, rollout: Score.of({"half": 0.5}))
    assert evaluated(policy, reward=half).row["pass_at_k"] == 0.0
    lower = replace(SMALL, evaluate=replace(SMALL.evaluate, pass_reward=0.5))
    assert evaluated(policy, lower, half).row["pass_at_k"] == 1.0


def test_a_penalty_for_length_is_no_part_of_a_heldout_reward(policy):
    penalised = replace(SMALL, rollout=replace(SMALL.rollout, truncated="penalise", penalty_tokens=2))
    assert evaluated(policy, penalised).row == evaluated(policy).row


def test_a_reward_that_always_fails_ends_the_evaluation(policy):
    with pytest.raises(RewardFailed, match="the last failure: no luck"):
        evaluated(policy, reward=Own(lambda prompt, rollout: Score.failed("no luck")))


class Two:
    """A task with two held-out problems."""

    own_reward = ""

    def heldout_problem(self, index):
        return Problem(f"two-{index}", ("21>", "31>")[index % 2], ("12", "13")[index % 2])


def test_a_task_with_few_heldout_problems_is_asked_each_of_them_once(policy):
    assert [prompt.id for prompt in heldout_prompts(Two(), policy, SMALL)] == ["two-0", "two-1"]
    result = evaluate(open_engine(policy), policy, Two(), Own(exact), SMALL, 0, quiet, quiet)
    assert result.row["prompts"] == 2


def test_only_the_first_answers_are_kept_in_words(policy):
    many = replace(SMALL, evaluate=replace(SMALL.evaluate, prompts=WORDS + 2, samples=1))
    result = evaluated(policy, many)
    assert result.row["prompts"] == WORDS + 2
    assert [one.id for one in result.answers] == [one.id for one in heldout_prompts(open_task(many), policy, many)][
        :WORDS
    ]


# ---------------------------------------------------------------- answers in words

HOSTILE = HeldoutAnswers("p", "2\x001>", "12", "\ud800\x1b[2J", None, ("12", ""), (1.0, None), "key is hunter22")


def test_answers_come_back_as_they_were_but_for_secrets_and_lone_surrogates(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVICE_PASSWORD", "hunter22")
    run = RunDirectory.create(tmp_path / "run", "", {}).path
    write_answers(run, 16, [HOSTILE])
    assert (run / "evaluations/step-000016.jsonl").read_bytes().count(b"\n") == 1
    safe = replace(HOSTILE, greedy="\\ud800\x1b[2J", error="key is [value of SERVICE_PASSWORD]")
    assert read_answers(run, 16) == (safe,)
    with pytest.raises(RunError, match="holds no held-out answers of step 17"):
        read_answers(run, 17)
    (run / "evaluations/step-000016.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(RunError, match=r"step-000016\.jsonl line 1 is damaged"):
        read_answers(run, 16)


def test_a_rewound_run_forgets_the_answers_of_later_steps(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "", {}).path
    forget_answers(run, 0)  # nothing there yet
    for step in (0, 2, 4):
        write_answers(run, step, [HOSTILE])
    (run / "evaluations/.tmp-step-000006.jsonl").write_text("half")
    forget_answers(run, 2)
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == ["step-000000.jsonl", "step-000002.jsonl"]


# ---------------------------------------------------------------- assay eval


@pytest.fixture(scope="module")
def run(policy, tmp_path_factory):
    """A run with an evaluation before training and one checkpoint, after step 3."""
    directory = RunDirectory.create(
        tmp_path_factory.mktemp("runs") / "run", configuration.to_toml(SMALL, meanings=False), {}
    )
    task = open_task(SMALL)
    reward = open_rewards(SMALL, task, policy.codec.decode)
    row = evaluate(open_engine(policy), policy, task, reward, SMALL, 0, quiet, quiet).row
    directory.append_evaluation(row)
    tensors = {"weights": policy.model.state_dict()}
    state = {"place": {"step": 3}, "frozen": ""}
    checkpoint.save(directory.path / "checkpoints", "update-00000006", tensors, state, keep=1)
    return directory.path


def command(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_eval_gives_the_row_that_the_run_itself_would_give_and_writes_nothing(run):
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.rglob("*") if file.is_file()}
    ended = command("eval", run, "--json")
    assert ended.exit_code == 0, ended.stderr
    (recorded,) = read_evaluations(run).rows
    assert json.loads(ended.stdout) == {**recorded, "step": 3}
    assert "held-out answers scored 24 of 24" in ended.stderr
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.rglob("*") if file.is_file()} == before


def test_eval_shows_before_and_after_side_by_side_only_if_they_can_be_compared(run):
    ended = command("eval", run)
    head, *lines = ended.stdout.splitlines()
    assert head.split() == ["before", "training", "update-00000006"]
    assert lines[0].split() == ["prompts", "6", "6"]
    assert any(line.startswith("pass@3 ") for line in lines)
    for changed in (
        ["--prompts", 2],
        ["--samples", 2],
        ["--set", "rollout.temperature=0.5"],
        ["--set", "evaluate.pass_reward=0.5"],
    ):
        other = command("eval", run, *changed)
        assert other.exit_code == 0, other.stderr
        assert other.stdout.split()[0] == "update-00000006"


def test_what_is_set_is_what_is_asked(run):
    row = json.loads(command("eval", run, "--prompts", 2, "--samples", 5, "--json").stdout)
    assert (row["prompts"], row["samples"], row["k"]) == (2, 5, 5)
    low = json.loads(command("eval", run, "--set", "evaluate.pass_reward=0", "--json").stdout)
    assert low["pass_at_1"] == 1.0


def test_a_model_directory_is_evaluated_with_a_config(run, policy, tmp_path):
    export_weights(policy, tmp_path / "model", merge=False, source="embedded")
    (tmp_path / "ask.toml").write_text(configuration.to_toml(SMALL, meanings=False))
    ended = command("eval", tmp_path / "model", "--config", tmp_path / "ask.toml", "--json")
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout) == read_evaluations(run).rows[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{run}", "--set", "loss.kl_coef=1"], "--set loss.kl_coef=1 would change what is evaluated"),
        (["{run}", "--checkpoint", "update-7"], "holds no checkpoint 'update-7'; it holds update-00000006"),
        (["{run}", "--set", "evaluate.prompts=0"], "evaluate.prompts = 0 asks nothing"),
        (["{run}", "--config", "{config}"], "--config goes with a model directory"),
        (["{run}", "--set", "rollout.max_tokens=100"], "the model's context is 64"),
        (["{run}/checkpoints"], "is not a run directory"),
        (["{model}"], "is a model directory, not a run; say with --config"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(run, tmp_path, arguments, sentence):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    config = tmp_path / "x.toml"
    config.touch()
    ended = command("eval", *(argument.format(run=run, model=model, config=config) for argument in arguments))
    assert ended.exit_code == 2
    assert ended.stdout == ""
    (told,) = [line for line in ended.stderr.splitlines() if line.startswith("assay: ")]
    assert sentence in told


def test_a_reward_that_cannot_be_computed_is_exit_code_1(run, tmp_path):
    (tmp_path / "broken.py").write_text("def broken(prompt, completion, answer):\n    raise ValueError('no luck')\n")
    ended = command("eval", run, "--set", f"reward.functions={tmp_path}/broken.py:broken")
    assert ended.exit_code == 1
    assert "no luck" in ended.stderr


def test_a_weighted_sum_is_what_is_reported(run):
    functions = replace(SMALL, reward=RewardConfig(functions=("task",), weights=(0.5,))).reward
    one = json.loads(command("eval", run, "--json").stdout)
    half = json.loads(
        command(
            "eval",
            run,
            "--json",
            "--set",
            f"reward.functions={list(functions.functions)}",
            "--set",
            "reward.weights=0.5",
        ).stdout
    )
    assert half["reward_sampled"] == pytest.approx(one["reward_sampled"] / 2)


def test_export_writes_a_model_and_says_where(run, tmp_path):
    ended = command("export", run, "--out", tmp_path / "out")
    assert (ended.exit_code, ended.stdout.strip()) == (0, str(tmp_path / "out"))
    assert (tmp_path / "out/model.safetensors").is_file()
    again = command("export", run, "--out", tmp_path / "out")
    assert again.exit_code == 2
    assert "exists already" in again.stderr
