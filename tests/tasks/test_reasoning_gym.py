"""Problems and scores of reasoning-gym, and the faults of its scorers that families are refused for."""

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from assay.config import ConfigError

pytest.importorskip("reasoning_gym")
from assay.tasks import reasoning_gym as gym
from assay.tasks.reasoning_gym import ReasoningGym, families, score
from assay.tasks.reasoning_gym_refused import REFUSED
from assay.types import Prompt, Rollout, StopReason

SMALL = {"max_terms": 3, "max_digits": 1}


def chain_sum(seed=1, **more):
    return ReasoningGym("chain_sum", {**SMALL, **more}, seed)


def unsafe(family):
    return ReasoningGym(family, {"unsafe_scorer": True}, seed=1)


def test_a_problem_is_a_question_with_its_answer_and_the_way_to_make_it_again():
    problem = chain_sum().training_problem(12)
    assert problem.id == "chain_sum-train-12"
    assert problem.messages == ({"role": "user", "content": problem.text},)
    assert json.loads(json.dumps(problem.fields)) == problem.fields
    sum_text = problem.text.partition(":")[2].rstrip("= ").replace(" ", "")
    terms = sum_text.replace("-", "+-").split("+")
    assert sum(map(int, terms)) == int(problem.answer)
    assert len(terms) in (2, 3)
    raw = chain_sum(style="raw").training_problem(12)
    assert (raw.text, raw.messages) == (f"{problem.text}\n", ())


def test_the_number_alone_decides_the_problem_and_the_seed_decides_all():
    one, again, other = chain_sum(), chain_sum(), chain_sum(seed=2)
    numbers = [900, 3, 64, 63, 0]
    assert [one.training_problem(n).text for n in numbers] == [
        again.training_problem(n).text for n in reversed(numbers)
    ][::-1]
    assert len({one.training_problem(n).text for n in range(130)}) > 90
    assert sum(one.training_problem(n).text == other.training_problem(n).text for n in range(130)) < 5


def test_no_heldout_question_is_ever_trained_on():
    tasks = [chain_sum(seed) for seed in (1, 2)]
    training = {task.training_problem(n).text for task in tasks for n in range(800)}
    heldout = {task.heldout_problem(n).text for task in tasks for n in range(60)}
    assert len(heldout) > 50
    assert not training & heldout


def test_no_more_items_are_made_than_are_asked_for():
    gym._entry.cache_clear()
    task = ReasoningGym("caesar_cipher", {}, seed=1)
    assert gym._entry.cache_info().misses == 0
    task.training_problem(0)
    task.training_problem(0)
    assert gym._entry.cache_info().misses <= 3


def test_what_a_family_prints_while_it_works_is_not_shown(capfd):
    gym._entry.cache_clear()
    ReasoningGym("bf", {"difficulty": 3}, seed=1).training_problem(0)
    assert capfd.readouterr().out == ""


def test_the_librarys_scorer_decides_on_the_part_asked_for():
    problem = chain_sum(answer="last_number").training_problem(0)
    assert score(f"I think {problem.answer}.", problem.fields) == 1.0
    assert score("no idea", problem.fields) == 0.0
    whole = chain_sum().training_problem(0)
    assert whole.answer == problem.answer
    assert score(f" {whole.answer}\n", whole.fields) == 1.0
    assert 0.0 < score(f"I think {whole.answer}.", whole.fields) < 0.5  # the library's credit for containing it
    line = chain_sum(answer="last_line").training_problem(0)
    assert score(f"Let me see.\n{line.answer}\n", line.fields) == 1.0


def test_of_gsm_symbolic_the_last_number_counts_unless_asked_for_otherwise():
    problem = ReasoningGym("gsm_symbolic", {}, seed=1).training_problem(0)
    assert score(f"There are 987654 days, so it is {problem.answer}.", problem.fields) == 1.0
    assert score(f"{problem.answer} or 987654", problem.fields) < 0.5
    whole = ReasoningGym("gsm_symbolic", {"answer": "whole"}, seed=1).training_problem(0)
    assert score(f"{whole.answer} or 987654", whole.fields) == 1.0


def test_the_score_is_not_asked_of_the_task_itself():
    task = chain_sum()
    module, _, function = task.own_reward.partition(":")
    assert getattr(sys.modules[module], function) is score
    with pytest.raises(RuntimeError, match="is scored in a reward worker"):
        task.score(Prompt("a", "b", (1,), "c"), Rollout("a", (1,), (0.0,), StopReason.EOS, 0, ""))


def test_another_process_scores_the_same_question():
    problem = ReasoningGym("family_relationships", {}, seed=1).training_problem(0)
    fields, code = dict(problem.fields), "import json, sys; from assay.tasks.reasoning_gym import score; "
    code += "print(score(*json.loads(sys.stdin.read())))"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([problem.answer, fields]),
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "1.0"


def test_another_question_of_the_same_seed_is_an_error_and_not_a_score():
    fields = {**chain_sum().training_problem(0).fields, "question_digest": "0" * 16}
    with pytest.raises(RuntimeError, match="reasoning_gym/chain_sum made another question of the same seed"):
        score("1", fields)


def test_families_are_refused_with_the_reason_unless_asked_for():
    assert set(REFUSED) <= set(families())
    assert "composite" not in families()
    with pytest.raises(
        ConfigError, match=r"reasoning_gym/n_queens is refused: its scorer runs Python's eval .* = true"
    ):
        ReasoningGym("n_queens", {}, seed=1)
    assert unsafe("n_queens").training_problem(0).text


def test_the_documentation_lists_the_refused_families():
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    table = page.partition("| families | why |")[2]
    assert {name for name in re.findall(r"\w+", table) if name in families()} == set(REFUSED)


@pytest.mark.parametrize("family", ["binary_matrix", "n_queens", "spiral_matrix", "string_insertion"])
def test_the_eval_families_really_execute_an_answer(family, tmp_path):
    written = tmp_path / "written"
    score(f"[__import__('pathlib').Path({str(written)!r}).touch()]", unsafe(family).training_problem(0).fields)
    assert written.exists()


def test_the_other_refused_scorers_are_as_described():
    halting = unsafe("game_of_life_halting").training_problem(0)
    assert score("banana", halting.fields) == 1.0
    flips = [unsafe("coin_flip").training_problem(n) for n in range(40)]
    assert sum(score("0", problem.fields) == 1.0 for problem in flips) > 30
    assert score("nan", unsafe("complex_arithmetic").training_problem(0).fields) == 1.0
    junk = {"letter_jumble": " banana", "sokoban": " banana", "spell_backward": "banana", "word_sorting": ", banana"}
    for family, behind in junk.items():
        problems = [unsafe(family).training_problem(n) for n in range(12)]
        assert max(score(one.answer + behind, one.fields) for one in problems) > 1 - 1e-12
    backward = [unsafe("spell_backward").training_problem(n) for n in range(40)]
    assert max(score(f"{one.answer}7", one.fields) for one in backward) > 1.0
    for family in ("graph_color", "propositional_logic", "rubiks_cube", "rush_hour", "boxnet"):
        assert unsafe(family).training_problem(0).answer == ""
    for family, answer in (("prime_factorization", "I do not know"), ("boxnet", "5")):
        problem = unsafe(family).training_problem(0)
        with pytest.raises((ValueError, TypeError)):
            score(answer, problem.fields)


@pytest.mark.parametrize(
    ("family", "options", "sentence"),
    [
        ("chainsum", {}, r"reasoning-gym has no family 'chainsum'; did you mean 'chain_sum'\?"),
        ("chain_sum", {"max_term": 3}, r"unknown option task\.options\.max_term .*did you mean 'max_terms'\?"),
        ("chain_sum", {"seed": 3}, r"unknown option task\.options\.seed"),
        ("chain_sum", {"max_terms": "3"}, r"task\.options\.max_terms = '3' must be a whole number"),
        ("chain_sum", {"min_terms": 5, "max_terms": 4}, r"reasoning_gym/chain_sum refuses task\.options .*min_terms"),
        ("chain_sum", {"style": "few_shot"}, r"task\.options\.style = 'few_shot' is not one of chat, raw"),
        ("basic_arithmetic", {"whitespace": "double"}, r"whitespace = 'double' is not one of no_space, single, random"),
        ("basic_arithmetic", {"operators": "+"}, r"operators = '\+' must be a list, not str"),
        ("basic_arithmetic", {"operators": [1]}, r"operators = 1 must be a text"),
        ("time_intervals", {"min_date": date(2020, 1, 1)}, r"min_date cannot be set in a config"),
        ("chain_sum", {"max_terms": date(2020, 1, 1)}, r"^task\.options\.max_terms = .* must be a whole number"),
        ("time_intervals", {"min_date": "2020-01-01"}, r"min_date cannot be set in a config"),
    ],
)
def test_a_wrong_option_is_refused_by_name(family, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ReasoningGym(family, options, seed=1)


def test_lists_and_numbers_of_a_config_reach_the_library():
    task = ReasoningGym("basic_arithmetic", {"operators": ["+"], "allow_parentheses": False}, seed=1)
    questions = [task.training_problem(n).text for n in range(20)]
    assert any("+" in question for question in questions)
    assert not any("*" in question or "/" in question for question in questions)
    ReasoningGym("rearc", {"diff_ub": 0.3}, seed=1)  # which the library declares to be a whole number


def test_a_family_with_too_few_questions_is_refused():
    only = ReasoningGym("count_bits", {"min_n": 5, "max_n": 5}, seed=1)
    assert "number 5?" in only.training_problem(0).text
    with pytest.raises(ConfigError, match=r"has too few different questions .* make its options wider"):
        only.heldout_problem(0)
