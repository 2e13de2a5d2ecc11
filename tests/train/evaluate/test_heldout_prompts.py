"""Which held-out problems an evaluation asks: each once, whatever its number, and no more numbers than needed."""

from dataclasses import replace

import pytest
import torch

from assay.config import Config
from assay.config.sections import EvaluateConfig, ModelConfig, RunConfig, TaskConfig
from assay.policy.load import load_policy
from assay.tasks import open_task
from assay.train.evaluate.evaluate import heldout_prompts
from assay.types import Problem

CONFIG = Config(run=RunConfig(threads=1, device="cpu"), model=ModelConfig(warm_steps=2, dtype="float32"))


@pytest.fixture(scope="module")
def policy():
    threads = torch.get_num_threads()
    yield load_policy(CONFIG, lambda *_: None)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def asking(prompts, **options):
    return replace(CONFIG, evaluate=EvaluateConfig(prompts=prompts), task=TaskConfig(options=options))


class Listed:
    """Held-out problems by hand: number -> text, answer and fields. It remembers the numbers it was asked for."""

    def __init__(self, problem, own_reward=""):
        self.problem = problem
        self.own_reward = own_reward
        self.numbers = []

    def heldout_problem(self, index):
        self.numbers.append(index)
        text, answer, fields = self.problem(index)
        return Problem(f"listed-heldout-{index}", text, answer, fields=fields)


def test_a_small_task_is_asked_each_of_its_problems_once(policy):
    config = asking(64, min_digits=2, max_digits=2)
    task = open_task(config)
    there = {task.heldout_problem(index).text for index in range(2000)}
    prompts = heldout_prompts(task, policy, config)
    assert sorted(prompt.text for prompt in prompts) == sorted(there)
    assert 5 < len(there) < 30


def test_further_numbers_make_up_for_problems_that_came_before(policy):
    config = asking(12, min_digits=2, max_digits=2)
    task = open_task(config)
    assert len({task.heldout_problem(index).text for index in range(12)}) < 12
    prompts = heldout_prompts(task, policy, config)
    assert len(prompts) == len({prompt.text for prompt in prompts}) == 12
    fewer = heldout_prompts(task, policy, asking(5, min_digits=2, max_digits=2))
    assert fewer == prompts[:5]


def test_problems_that_all_differ_cost_one_number_each(policy):
    task = Listed(lambda index: (f"{index}>", "1", {}))
    assert len(heldout_prompts(task, policy, asking(7))) == 7
    assert task.numbers == list(range(7))


@pytest.mark.parametrize(("prompts", "numbers"), [(3, 2 + 64), (100, 2 + 100)])
def test_the_search_ends_when_nothing_new_comes(policy, prompts, numbers):
    task = Listed(lambda index: (f"{index % 2}>", "1", {}))
    assert [prompt.id for prompt in heldout_prompts(task, policy, asking(prompts))] == [
        "listed-heldout-0",
        "listed-heldout-1",
    ]
    assert task.numbers == list(range(numbers))


def test_a_rare_problem_is_still_found(policy):
    task = Listed(lambda index: (f"{index // 60}>", "1", {}))
    assert [prompt.text for prompt in heldout_prompts(task, policy, asking(3))] == ["0>", "1>", "2>"]


def test_another_answer_or_another_field_makes_another_problem(policy):
    rows = [("12>", "12", {}), ("12>", "21", {}), ("12>", "12", {"level": 1}), ("12>", "12", {"level": 2})]
    assert len(heldout_prompts(Listed(lambda index: rows[index % 4]), policy, asking(9))) == 4


def test_a_question_made_of_two_seeds_is_one_problem(policy):
    task = Listed(lambda index: (f"{index % 3}>", "1", {"seed": index}), own_reward="package.module:score")
    assert len(heldout_prompts(task, policy, asking(9))) == 3


def test_the_messages_belong_to_the_problem():
    from assay.train.evaluate.evaluate import _content

    task, user = Listed(None), {"role": "user", "content": "Why?"}
    plain, chat = Problem("a", "Why?", "x"), Problem("a", "Why?", "x", (user,))
    system = replace(chat, messages=({"role": "system", "content": "Be brief."}, user))
    assert len({_content(problem, task) for problem in (plain, chat, system)}) == 3
    assert _content(replace(chat, id="b"), task) == _content(chat, task)
