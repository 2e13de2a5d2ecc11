"""The bench around the checks: what is asked, in which order, for how long; the command in whole."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import app
from assay.config import Config, ConfigError, load
from assay.doctor.evidence import RewardTrial
from assay.doctor.evidence.reward import ProbeScore, Role
from assay.reward_check.command import check
from assay.reward_check.completions import read_completions
from assay.reward_check.probes import is_ordinary, probes_of
from assay.reward_check.trial import GIVE_UP, PROCESSES, Clock, to_ask_again, try_reward
from assay.tasks import open_task
from assay.types import Problem, Score
from assay.verdict import State

GALLERY = Path(__file__).parents[2] / "examples" / "broken_rewards.py"
PROBLEMS = [Problem("a", "1+1=", "2"), Problem("b", "5-9=", "-4"), Problem("c", "4+4=", "8")]
KNOWN = RewardTrial(("mine",), ())


class Scripted:
    """A reward that is a plain function of the completion, and remembers how it was used."""

    def __init__(self, workers, give):
        self.workers, self.give, self.batches, self.is_closed = workers, give, [], False

    def score(self, asked, on_score):
        self.batches.append([(prompt.id, rollout.text) for prompt, rollout in asked])
        scores = [self.give(rollout.text) for _, rollout in asked]
        for index, score in enumerate(scores):
            on_score(index, score)
        return scores

    def close(self):
        self.is_closed = True


def opened(give):
    made = []

    def open_reward(workers):
        made.append(Scripted(workers, give))
        return made[-1]

    return made, open_reward


def length(text):
    return Score.of({"length": float(len(text))})


def test_each_probe_is_asked_alone_then_ordinary_ones_again_anew_reversed_and_in_parallel():
    made, open_reward = opened(length)
    measured = try_reward(open_reward, PROBLEMS, [(PROBLEMS[0], ["x", "xyz"])], KNOWN)
    probes = probes_of(PROBLEMS)
    ordinary = [(PROBLEMS[probe.problem].id, probe.text) for probe in probes if is_ordinary(probe)]
    first, fresh, parallel = made
    assert [batch[0][1] for batch in first.batches[: len(probes)]] == [probe.text for probe in probes]
    assert [batch[0] for batch in first.batches[len(probes) :]] == ordinary * 2
    assert [batch[0] for batch in fresh.batches[:-1]] == ordinary  # the same from its start as the first process
    assert fresh.batches[-1] == ordinary[::-1]
    paid_first = sorted(ordinary, key=lambda one: not one[1])  # what is worth something goes to each process first
    assert parallel.batches == [paid_first, [("a", "x"), ("a", "xyz")]]
    assert [one.workers for one in made] == [1, 1, PROCESSES]
    assert all(one.is_closed for one in made)
    assert measured.groups == ((1.0, 3.0),)
    assert measured.calls == sum(len(batch) for one in made for batch in one.batches)
    assert all(first.probe == second.probe for first, second in (*measured.reversed_batch, *measured.parallel))
    assert measured.stopped == ""


def test_a_reward_that_keeps_running_out_of_time_is_given_up():
    made, open_reward = opened(lambda text: Score.failed("mine: took longer than 2 s"))
    measured = try_reward(open_reward, PROBLEMS, [], KNOWN)
    assert measured.calls == GIVE_UP == len(measured.scores)
    assert "gave up" in measured.stopped
    assert len(made) == 1


def test_no_more_is_asked_when_the_time_is_over():
    _, open_reward = opened(length)
    measured = try_reward(open_reward, PROBLEMS, [], KNOWN, budget=-1.0)
    assert (measured.calls, measured.scores) == (0, ())
    assert "were over" in measured.stopped


def test_a_slow_reward_is_asked_again_about_fewer_problems():
    ordinary = [ProbeScore(probe, 1.0, "", 1.0) for probe in probes_of(PROBLEMS) if is_ordinary(probe)]

    def problems(seconds_left):
        clock = Clock(lambda text: None, time.monotonic() + seconds_left)
        return {one.probe.problem for one in to_ask_again(ordinary, clock)}

    # 0.6 of the time left, for 5 passes of 1 s a call: 60 s are enough for 7 answers, 4 a problem; 200 s for 24
    assert problems(60.0) == {0, 1}
    assert problems(200.0) == {0, 1, 2}
    assert problems(1.0) == {0}
    late = [replace(one, error="took longer than 2 s") for one in ordinary[:1]]
    assert to_ask_again([*late, *ordinary[1:]], Clock(lambda text: None, time.monotonic() + 200.0)) == ordinary[1:]


def test_a_call_that_may_have_waited_for_a_process_is_not_timed():
    _, open_reward = opened(lambda text: length(text) if text != "-4" else Score.failed("raised"))
    first, wrong, after, later = try_reward(open_reward, PROBLEMS, [], KNOWN).scores[:4]
    assert (first.seconds, wrong.reward, after.seconds) == (None, None, None)
    assert later.seconds is not None


def run(*words):
    return CliRunner().invoke(app, ["reward-check", *map(str, words)])


def test_the_command_finds_nothing_in_a_sound_reward():
    done = run("exact", "--samples", 3)
    assert done.exit_code == 0, done.output
    assert "0 findings" in done.output


def test_the_command_fails_on_a_reward_that_evaluates_what_a_model_wrote():
    done = run(f"{GALLERY}:evaluates", "--samples", 2, "--timeout", 0.3, "--json", "--option", "min_digits=5")
    shown = json.loads(done.stdout)
    (fails,) = [check for check in shown["checks"] if check["code"] == "REW02"]
    assert (done.exit_code, fails["state"], fails["severity"]) == (1, "finding", "harmful")
    assert "9**9**9" in fails["evidence"][0]


def test_processes_that_are_in_each_others_way_are_found():
    config = load(None, [f'reward.functions=["{GALLERY}:locks"]'])
    found = [word.code for word in check(config, samples=4).diagnosis.findings]
    assert found == ["REW10"]


def test_the_built_in_and_the_example_rewards_are_clean():
    example = GALLERY.parent / "reward.py"
    for function in ("last_number", "task", f"{example}:score"):
        diagnosis = check(load(None, [f'reward.functions=["{function}"]']), samples=4).diagnosis
        assert not diagnosis.findings, function
        assert not diagnosis.of(State.CRASHED)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exakt"], "did you mean 'exact'?"),
        (["missing.py:score"], "there is no file missing.py"),
        (["exact", "--completions", "nowhere.jsonl"], "nowhere.jsonl"),
        (["exact", "--set", "reward.wrkers=2"], "reward.workers"),
    ],
)
def test_bad_usage_is_one_sentence_and_two(words, said):
    done = run(*words)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_words_of_the_command_replace_the_functions_of_a_config(tmp_path):
    config = tmp_path / "my.toml"
    config.write_text('[reward]\nfunctions = ["exact", "last_number"]\nweights = [1.0, 0.5]\n')
    assert json.loads(run("--config", config, "--samples", 2, "--json").stdout)["functions"] == ["exact", "last_number"]
    assert json.loads(run("exact", "--config", config, "--samples", 2, "--json").stdout)["functions"] == ["exact"]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_completions_are_grouped_by_id_or_prompt_and_find_their_answers(tmp_path):
    task = open_task(Config())
    known = task.training_problem(3)
    rows = [
        {"prompt": known.text, "completion": "1"},
        {"id": 7, "prompt": "2+2=", "completion": "4", "answer": 4, "level": "easy"},
        {"prompt": known.text, "completion": known.answer},
    ]
    (first, texts), (second, others) = read_completions(write(tmp_path / "answers.jsonl", *rows), task)
    assert (first, texts) == (known, ["1", known.answer])
    assert (second, others) == (Problem("7", "2+2=", "4", fields={"level": "easy"}), ["4"])


def test_a_logged_reward_that_is_not_a_number_is_not_in_the_way(tmp_path):
    row = {"prompt": "2+2=", "completion": "4", "answer": "4", "reward": float("nan")}
    ((problem, texts),) = read_completions(write(tmp_path / "answers.jsonl", row), open_task(Config()))
    assert (problem.answer, texts) == ("4", ["4"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "1"}, 'line 2: no text "completion"'),
        ({"completion": "1"}, 'line 2: neither "id" nor "prompt"'),
        ({"prompt": "never posed", "completion": "1"}, "line 2: 'never posed' is none of the first 2000 problems"),
        ([1], "line 2: is an array, not an object"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_by_line(tmp_path, row, said):
    path = write(tmp_path / "answers.jsonl", {"prompt": "1+1=", "completion": "2", "answer": "2"}, row)
    with pytest.raises(ConfigError, match=said):
        read_completions(path, open_task(Config()))


def test_completions_without_variance_are_reported(tmp_path):
    rows = [{"prompt": f"{n}", "completion": "9", "answer": "1"} for n in range(3) for _ in range(4)]
    done = run("exact", "--samples", 2, "--completions", write(tmp_path / "answers.jsonl", *rows), "--json")
    states = {check["code"]: check for check in json.loads(done.stdout)["checks"]}
    assert states["ADV09"]["headline"].startswith("3 of 3 groups of your completions")
    assert states["REW12"]["state"] == "finding"


def test_the_roles_of_the_probes_are_all_used():
    assert {probe.role for probe in probes_of(PROBLEMS)} == set(Role)
