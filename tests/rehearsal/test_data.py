"""Rows that stand in for a data set: the columns that a script looks up, answers that can be computed."""

import ast
import csv
import json
import re

import pytest

from assay.rehearsal.problems import Formats, completion, formats_of, problem
from assay.rehearsal.rows import columns_asked, make_rows
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.data import Groups, Rows, _loaded, _part, write_rows

SCRIPT = """
from datasets import load_dataset
data = load_dataset("someone/sums", split="train")
data = data.filter(lambda row: row["num_terms"] <= 5 and row["level"] < 4)
for row in data:
    prompt, gold = row["problem"], row.get("ground_truth")
    batch["input_ids"] = encode(prompt)
data.remove_columns(["source"])
"""


def asked(text=SCRIPT):
    return columns_asked([ast.parse(text)])


def test_columns_are_what_the_script_looks_up_and_not_what_a_batch_holds():
    assert asked() == {"num_terms": True, "level": True, "problem": False, "ground_truth": False, "source": False}


def test_a_column_that_is_computed_with_holds_numbers():
    rows = make_rows("someone/sums", asked(), (), 12)
    assert all(isinstance(row["num_terms"], int) and isinstance(row["level"], int) for row in rows)
    assert all(row["num_terms"] <= 5 for row in rows)


def test_the_answer_of_every_row_is_the_sum_in_its_question():
    for row in make_rows("someone/sums", asked(), (), 64):
        numbers = [int(number) for number in re.findall(r"\d+", row["problem"])]
        assert len(numbers) == 2
        assert row["ground_truth"] == str(sum(numbers))


def test_rows_differ_and_some_are_long():
    questions = [row["question"] for row in make_rows("openai/gsm8k main", {}, (), 64)]
    assert len(set(questions)) > 55
    lengths = sorted(len(question.split()) for question in questions)
    assert lengths[0] < 8
    assert lengths[-1] > 300


def test_well_known_data_sets_have_their_own_columns():
    (gsm8k,) = make_rows("openai/gsm8k main", asked(), (), 1)
    assert set(gsm8k) == {"question", "answer"}
    assert gsm8k["answer"].endswith(f"#### {problem(0).total}")
    (countdown,) = make_rows("Jiayi-Pan/Countdown-Tasks-3to4", asked(), (), 1)
    assert set(countdown) == {"nums", "target"}


@pytest.mark.parametrize("number", range(24))
def test_a_puzzle_can_be_solved_with_its_numbers(number):
    made = problem(number)
    assert sorted(int(digit) for digit in re.findall(r"\d", made.expression)) == sorted(made.numbers)
    first, sign, second, other, third = made.expression.split()
    a, b, c = int(first), int(second), int(third)
    value = {"++": a + b + c, "*+": a * b + c, "+*": a + b * c, "+-": a + b - c}[sign + other]
    assert value == made.target


def test_answers_are_written_as_the_scripts_prompt_asks():
    import random

    formats = formats_of(["Write <plan> first </plan> and then <SOLUTION></SOLUTION>", "<b>bold</b>"])
    assert (formats.thinking, formats.answer) == (("plan",), ("SOLUTION",))
    draw = random.Random(0)
    texts = [completion(draw, problem(1), formats, False) for _ in range(100)]
    assert sum("<SOLUTION>" in text and "</plan>" in text for text in texts) > 70
    said = [int(found.group(1)) for text in texts if (found := re.search(r"<SOLUTION>\n?(\d+)", text))]
    assert 0.3 < sum(number == problem(1).total for number in said) / len(said) < 0.9
    assert formats_of(["nothing"]) == Formats()


def test_a_slice_of_a_split_takes_rows_that_are_there():
    rows = [{"a": number} for number in range(200)]
    assert len(_part(rows, "train[:10%]")) == 20
    assert _part(rows, "train[5:7]") == [{"a": 5}, {"a": 6}]
    assert _part(rows, "train[9000:9100]") == rows[:32]
    assert _part(rows, "train") == rows


def test_files_of_rows_are_written_by_their_ending(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    stage = Stage(script=script, folder=tmp_path, home=tmp_path)
    for name in ("a.json", "a.jsonl", "a.csv", "a.parquet", "a.txt"):
        assert write_rows(stage, tmp_path / "data" / name, name)
    assert not write_rows(stage, tmp_path / "model.bin", "model.bin")
    rows = json.loads((tmp_path / "data/a.json").read_text())
    lines = (tmp_path / "data/a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "data/a.csv").open(newline="") as file:
        assert [row["problem"] for row in csv.DictReader(file)] == [row["problem"] for row in rows]
    assert {made.kind for made in stage.replacements} == {"data"}


def test_rows_without_the_package_behave_as_a_data_set():
    rows = Rows.from_dict({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    assert (len(rows), rows[1], rows["b"], rows[:2]) == (
        3,
        {"a": 2, "b": "y"},
        ["x", "y", "z"],
        {"a": [1, 2], "b": ["x", "y"]},
    )
    doubled = rows.map(lambda row: {"c": 2 * row["a"]}, remove_columns=["b"])
    assert doubled.to_list() == [{"a": 1, "c": 2}, {"a": 2, "c": 4}, {"a": 3, "c": 6}]
    batched = rows.map(lambda part: {"c": [len(text) for text in part["b"]]}, batched=True)
    assert batched["c"] == [1, 1, 1]
    assert rows.filter(lambda row: row["a"] > 1).select(range(10))["a"] == [2, 3]
    assert isinstance(rows.train_test_split(test_size=1), Groups)


def test_rows_are_repeated_batched_sorted_and_joined_as_a_data_set_is():
    rows = Rows.from_dict({"a": [3, 1, 2], "b": ["x", "y", "x"]})
    assert rows.repeat(2)["a"] == [3, 1, 2, 3, 1, 2]
    assert list(rows.iter(2)) == [{"a": [3, 1], "b": ["x", "y"]}, {"a": [2], "b": ["x"]}]
    assert rows.batch(2, drop_last_batch=True).to_list() == [{"a": [3, 1], "b": ["x", "y"]}]
    assert rows.sort("a", reverse=True)["a"] == [3, 2, 1]
    assert rows.unique("b") == ["x", "y"]
    assert rows.rename_columns({"a": "c"}).column_names == ["c", "b"]
    parts = Groups(train=rows, test=rows.take(1))
    assert parts.rename_column("b", "d")["test"].to_list() == [{"a": 3, "d": "x"}]
    assert parts.num_rows == {"train": 3, "test": 1}


def test_rows_in_the_format_of_torch_are_tensors_where_they_are_numbers():
    rows = Rows.from_list([{"ids": [1, 2], "n": 1, "text": "x"}, {"ids": [3, 4, 5], "n": 2, "text": "y"}])
    rows.set_format("torch", columns=["ids", "n"])
    assert list(rows[0]) == ["ids", "n"]
    assert rows[0]["ids"].tolist() == [1, 2]
    assert [part.tolist() for part in rows[:]["ids"]] == [[1, 2], [3, 4, 5]]  # of different lengths
    assert rows["n"].tolist() == [1, 2]
    everything = rows.with_format("pt", columns=["n"], output_all_columns=True).select([1])
    assert (everything[0]["n"].item(), everything[0]["ids"], everything[0]["text"]) == (2, [3, 4, 5], "y")
    assert rows.with_format(None)[0]["ids"] == [1, 2]


def test_a_split_of_any_name_is_there_and_can_be_taken_away():
    made = _loaded(lambda split: Rows([{"of": split}]), Groups, None, False)
    assert list(made) == ["train", "test", "validation"]
    del made["unsupervised"]
    assert made.pop("extra")[0] == {"of": "extra"}
    assert made["train_sft"][0] == {"of": "train_sft"}
    assert made.pop("none", 3) == 3
