"""json and two_words: what a right answer earns, and what hostile text does not do."""

import json
import time

import pytest
from tasks.scoring import scored

from assay.config import ConfigError
from assay.tasks.json_object import JsonObject, JsonOptions
from assay.tasks.two_words import WORDS, TwoWords, TwoWordsOptions
from assay.types import Problem

JSON = JsonObject(JsonOptions(), seed=1)
WANTED = Problem("a", "Write ...", '{"name": "Ada", "age": 31}')
LAMP = Problem("a", "Write ...", "lamp river")


def components(text, task=JSON):
    return dict(scored(task, WANTED, text).components)


def test_the_object_asked_for_earns_one_in_whatever_order_and_spacing():
    for text in ('{"name": "Ada", "age": 31}', ' {"age":31,\n"name":"Ada"}\n'):
        assert scored(JSON, WANTED, text).reward == 1.0


@pytest.mark.parametrize(
    ("text", "parses", "keys", "values"),
    [
        ('{"name": "Ada", "age": 32}', 0.25, 0.25, 0.25),
        ('{"name": "Ada", "age": "31"}', 0.25, 0.25, 0.25),
        ('{"name": "Ada", "age": 31, "city": "Rome"}', 0.25, 0.0, 0.5),
        ('{"name": "Ada"}', 0.25, 0.0, 0.25),
        ('["name", "Ada"]', 0.25, 0.0, 0.0),
        ("31", 0.25, 0.0, 0.0),
        ('{"name": "Ada", "age": 31} Done.', 0.0, 0.0, 0.0),
        ("{'name': 'Ada', 'age': 31}", 0.0, 0.0, 0.0),
        ('{"name": "Ada", "name": "Ada", "age": 31}', 0.0, 0.0, 0.0),
        ("NaN", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
    ],
)
def test_each_part_of_an_answer_earns_its_part(text, parses, keys, values):
    assert components(text) == {"parses": parses, "keys": keys, "values": values}


def test_true_is_not_one():
    one = Problem("a", "", '{"count": 1}')
    assert dict(scored(JSON, one, '{"count": true}').components)["values"] == 0.0
    assert dict(scored(JSON, one, '{"count": 1}').components)["values"] == 0.5


def test_a_fence_is_refused_unless_asked_for():
    fenced = '```json\n{"name": "Ada", "age": 31}\n```'
    assert scored(JSON, WANTED, fenced).reward == 0.0
    assert scored(JsonObject(JsonOptions(fences=True), seed=1), WANTED, fenced).reward == 1.0


@pytest.mark.parametrize(
    "text",
    ["[" * 20_000, '{"a":' * 5_000, "[" * 10_000 + "]" * 10_000, "9" * 20_000, '"' + "\\" * 19_999, "-" * 20_000]
    + ["[" * depth + "]" * depth for depth in (101, 900, 1000, 1100)],
)
def test_hostile_json_earns_nothing_quickly_and_raises_nothing(text):
    start = time.process_time()
    for task in (JSON, JsonObject(JsonOptions(fences=True), seed=1)):
        assert scored(task, WANTED, text).reward == 0.0
    assert time.process_time() - start < 0.5


def test_nested_json_that_a_person_might_write_parses():
    assert components("[" * 50 + "]" * 50)["parses"] == 0.25


@pytest.mark.parametrize("keys", [1, 2, 6])
def test_what_is_asked_for_stands_in_the_question_and_is_the_answer(keys):
    task = JsonObject(JsonOptions(keys=keys), seed=4)
    for problem in [task.training_problem(index) for index in range(50)]:
        wanted = json.loads(problem.answer)
        assert len(wanted) == keys
        assert all(f'"{key}" set to {json.dumps(value)}' in problem.text for key, value in wanted.items())
        assert problem.messages == ({"role": "user", "content": problem.text},)
        assert scored(task, problem, problem.answer).reward == 1.0


@pytest.mark.parametrize("keys", [1, 2])
def test_no_object_is_trained_on_and_held_out_whatever_the_order_of_its_keys(keys):
    task = JsonObject(JsonOptions(keys=keys), seed=1)

    def objects(draw, count):
        return {json.dumps(json.loads(draw(index).answer), sort_keys=True) for index in range(count)}

    training, heldout = objects(task.training_problem, 3000), objects(task.heldout_problem, 300)
    assert len(training) > 40 * keys
    assert len(heldout) > 3 * keys
    assert not training & heldout


def test_seven_keys_are_refused():
    with pytest.raises(ConfigError, match=r"task\.options\.keys = 7 exceeds the 6 keys there are"):
        JsonObject(JsonOptions(keys=7), seed=1)


def test_a_sentence_earns_the_share_of_its_words():
    task = TwoWords(TwoWordsOptions(), seed=1)
    for text, reward in (
        ("The LAMP shone over the river.", 1.0),
        ("A river ran past the house.", 0.5),
        ("Nothing of that kind here at all.", 0.0),
        ("Streetlamps light the rivers at night.", 0.0),
        ("Lamp, river.", 0.0),
        ("", 0.0),
    ):
        assert scored(task, LAMP, text).reward == reward
    assert scored(TwoWords(TwoWordsOptions(min_words=2), seed=1), LAMP, "Lamp, river.").reward == 1.0


def test_a_long_hostile_text_is_a_text_without_the_words():
    task = TwoWords(TwoWordsOptions(), seed=1)
    start = time.process_time()
    for text in ("lam" * 7_000, "\x00" * 20_000, "l " * 10_000):
        assert scored(task, LAMP, text).reward == 0.0
    assert time.process_time() - start < 0.5


def test_no_two_words_are_trained_on_and_held_out_in_whatever_order():
    task = TwoWords(TwoWordsOptions(), seed=1)
    training = {frozenset(task.training_problem(index).answer.split()) for index in range(3000)}
    heldout = {frozenset(task.heldout_problem(index).answer.split()) for index in range(300)}
    assert len(training) > 1000
    assert len(heldout) > 100
    assert not training & heldout
    assert all(len(pair) == 2 and pair <= set(WORDS) for pair in training | heldout)
