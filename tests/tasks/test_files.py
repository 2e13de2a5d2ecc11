"""Rows of one's own become problems: templates, conversations, the split, the order."""

import json

import pytest
from tasks.scoring import scored

from assay.config import ConfigError
from assay.tasks.files import FileOptions, FileTask

COLORS = [{"prompt": f"Color {number}?", "answer": f"c{number}"} for number in range(200)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def open_rows(tmp_path, rows, seed=1, name="data.jsonl", needs_answer=True, needs_heldout=True, **options):
    path = write_lines(tmp_path / name, rows)
    return FileTask(path, FileOptions(**options), seed, needs_answer=needs_answer, needs_heldout=needs_heldout)


def only_problem(tmp_path, row, **options):
    return open_rows(tmp_path, [row], needs_heldout=False, heldout=0.0, **options).training_problem(0)


def training_texts(task, start=0, count=None):
    count = task.sizes[0] if count is None else count
    return [task.training_problem(index).text for index in range(start, start + count)]


def test_a_prompt_becomes_a_user_message_and_the_answer_its_answer(tmp_path):
    problem = only_problem(tmp_path, {"prompt": "Why?", "answer": "So."})
    assert problem.id == "data-train-0-row-1"
    assert (problem.text, problem.answer) == ("Why?", "So.")
    assert problem.messages == ({"role": "user", "content": "Why?"},)


def test_question_is_the_prompt_when_there_is_no_prompt_and_numbers_become_text(tmp_path):
    assert only_problem(tmp_path, {"question": 7, "answer": 0.5}).text == "7"
    assert only_problem(tmp_path, {"question": 7, "answer": 0.5}).answer == "0.5"
    assert only_problem(tmp_path, {"question": "no", "prompt": "yes", "answer": "a"}).text == "yes"


def test_a_template_is_filled_by_name_and_braces_in_the_data_are_data(tmp_path):
    row = {"a": "{b} {{x}} {0}", "b": "two", "right": 3, "answer": "no"}
    problem = only_problem(tmp_path, row, prompt="{a} and {b}, {{b}} } {", answer="right")
    assert problem.text == "{b} {{x}} {0} and two, {b} } {"
    assert problem.answer == "3"


def test_raw_text_has_no_messages_and_a_system_text_comes_first(tmp_path):
    row = {"prompt": "Go on", "answer": "a"}
    assert only_problem(tmp_path, row, chat=False).messages == ()
    first, second = only_problem(tmp_path, row, system="Be brief.").messages
    assert (first, second) == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go on"})


def test_a_conversation_is_posed_as_it_stands(tmp_path):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    messages.append({"role": "user", "content": "Why?"})
    problem = only_problem(tmp_path, {"prompt": messages, "answer": "So."}, system="Be brief.")
    assert problem.text == "Why?"
    assert problem.messages == ({"role": "system", "content": "Be brief."}, *messages)
    own = [{"role": "system", "content": "Own."}, *messages]
    assert only_problem(tmp_path, {"prompt": own, "answer": "a"}, system="Be brief.").messages == tuple(own)


def test_other_fields_travel_along(tmp_path):
    row = {"prompt": "Why?", "answer": "So.", "level": 3, "tags": ["a", {"b": None}], "sure": True}
    assert only_problem(tmp_path, row).fields == {"level": 3, "tags": ["a", {"b": None}], "sure": True}


def test_every_row_is_on_one_side_and_equal_prompts_are_on_the_same(tmp_path):
    doubled = [*COLORS, *({**row, "answer": "other"} for row in COLORS)]
    task = open_rows(tmp_path, doubled, heldout=0.25)
    training = training_texts(task)
    heldout = [task.heldout_problem(index).text for index in range(task.sizes[1])]
    assert sorted(training + heldout) == sorted(row["prompt"] for row in doubled)
    assert not set(training) & set(heldout)
    assert 60 < len(heldout) < 140


def test_the_split_does_not_depend_on_the_seed_and_the_order_does(tmp_path):
    one, two = (open_rows(tmp_path, COLORS, seed=seed) for seed in (1, 2))
    assert set(training_texts(one)) == set(training_texts(two))
    assert training_texts(one) != training_texts(two)


def test_every_epoch_has_all_rows_in_a_new_order_that_the_index_alone_decides(tmp_path):
    task = open_rows(tmp_path, COLORS)
    size = task.sizes[0]
    first, second = training_texts(task), training_texts(task, start=size)
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != sorted(first)
    again = open_rows(tmp_path, COLORS)
    assert [again.training_problem(index).text for index in (size + 3, 5, size + 3)] == [second[3], first[5], second[3]]


def test_the_heldout_rows_are_in_a_random_order_that_the_seed_decides(tmp_path):
    tasks = [open_rows(tmp_path, COLORS, seed=seed, heldout=0.3) for seed in (1, 1, 2)]
    orders = [[int(task.heldout_problem(i).id.rpartition("-")[2]) for i in range(task.sizes[1])] for task in tasks]
    assert len(orders[0]) > 30
    assert orders[0] == orders[1]
    assert orders[0] not in (sorted(orders[0]), orders[2])


def test_heldout_numbers_begin_anew_after_the_last(tmp_path):
    task = open_rows(tmp_path, COLORS)
    count = task.sizes[1]
    assert task.heldout_problem(count).text == task.heldout_problem(0).text
    assert task.heldout_problem(1).text != task.heldout_problem(0).text


def test_a_second_file_is_the_heldout_part(tmp_path):
    other = write_lines(tmp_path / "test.jsonl", [{"prompt": "New?", "answer": "n"}])
    task = open_rows(tmp_path, COLORS, heldout_file=str(other))
    assert task.sizes == (200, 1)
    assert task.heldout_problem(3).id == "test-heldout-3-row-1"


def test_a_prompt_in_both_files_is_refused_by_line(tmp_path):
    other = write_lines(tmp_path / "test.jsonl", [COLORS[4], COLORS[7]])
    with pytest.raises(ConfigError, match=r"data\.jsonl: line 5: this prompt is in .*test\.jsonl too \(2 in all are\)"):
        open_rows(tmp_path, COLORS, heldout_file=str(other))


def user(text):
    return [{"role": "user", "content": text}]


ALIKE = {
    "as a message": lambda text: user(text),
    "with the common system message": lambda text: [{"role": "system", "content": "Be  brief.\n"}, *user(text)],
    "with white space": lambda text: f"\n {text.replace(' ', '   ')} ",
    "with white space in a message": lambda text: user(f"{text}\n"),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_a_prompt_posed_in_another_form_is_on_the_same_side(tmp_path, kind):
    rows = [*COLORS, *({**row, "prompt": ALIKE[kind](row["prompt"])} for row in COLORS)]
    task = open_rows(tmp_path, rows, heldout=0.5, system=" Be brief.")

    def posed(draw, count):
        return {int(draw(index).text.split()[1].rstrip("?")) for index in range(count)}

    training = posed(task.training_problem, task.sizes[0])
    heldout = posed(task.heldout_problem, task.sizes[1])
    assert len(training) + len(heldout) == 200
    assert not training & heldout
    other = write_lines(tmp_path / "test.jsonl", [{**COLORS[4], "prompt": ALIKE[kind](COLORS[4]["prompt"])}])
    with pytest.raises(ConfigError, match=r"data\.jsonl: line 5: this prompt is in .*test\.jsonl too"):
        open_rows(tmp_path, COLORS, heldout_file=str(other), system="Be brief.")


def test_prompts_that_differ_in_case_or_in_a_system_message_or_a_role_differ(tmp_path):
    def first(word, role="system"):
        return [{"role": role, "content": word}, *user("Why?")]

    developer = first("Be brief.", "developer")
    other = write_lines(tmp_path / "test.jsonl", [{"prompt": first("Be brief."), "answer": "x"}])
    rows = [{"prompt": prompt, "answer": "x"} for prompt in ("why?", first("Be long."), first("be brief."), developer)]
    assert open_rows(tmp_path, rows, heldout_file=str(other)).sizes == (4, 1)
    assert open_rows(tmp_path, [GOOD], heldout_file=str(other)).sizes == (1, 1)
    with pytest.raises(ConfigError, match="this prompt is in"):
        open_rows(tmp_path, [GOOD], heldout_file=str(other), system="Be brief.")


def test_the_side_of_a_row_does_not_depend_on_the_system_message_or_the_chat(tmp_path):
    settings = ({}, {"system": "Be brief."}, {"system": " Be  long."}, {"chat": False})
    sides = {frozenset(training_texts(open_rows(tmp_path, COLORS, **one))) for one in settings}
    assert len(sides) == 1


def test_only_the_first_rows_are_read_when_there_is_a_limit(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", COLORS[:40])
    path.write_text(path.read_text() + "this line is broken\n")
    assert sum(FileTask(path, FileOptions(limit=40), 1).sizes) == 40


def test_exactly_the_answer_white_space_aside_earns_one(tmp_path):
    task = open_rows(tmp_path, COLORS)
    problem = task.training_problem(0)
    assert scored(task, problem, f" {problem.answer}\n").reward == 1.0
    for wrong in ("", f"{problem.answer}.", problem.answer.upper()):
        assert scored(task, problem, wrong).reward == 0.0


def test_the_fingerprint_changes_with_a_byte_of_either_file(tmp_path):
    other = write_lines(tmp_path / "test.jsonl", [{"prompt": "New?", "answer": "n"}])
    marks = {open_rows(tmp_path, COLORS).fingerprint, open_rows(tmp_path, COLORS[1:]).fingerprint}
    marks.add(open_rows(tmp_path, COLORS, heldout_file=str(other)).fingerprint)
    write_lines(other, [{"prompt": "New!", "answer": "n"}])
    marks.add(open_rows(tmp_path, COLORS, heldout_file=str(other)).fingerprint)
    assert len(marks) == 4
    assert open_rows(tmp_path, COLORS).fingerprint in marks


def test_rows_without_an_answer_need_a_reward_function(tmp_path):
    rows = [{"prompt": f"Write {number}"} for number in range(40)]
    assert open_rows(tmp_path, rows, needs_answer=False).training_problem(0).answer == ""
    with pytest.raises(ConfigError, match=r"data\.jsonl: line 1: has no field 'answer'.*reward\.functions"):
        open_rows(tmp_path, rows)
    with pytest.raises(ConfigError, match="has no field 'solution'"):
        open_rows(tmp_path, rows, needs_answer=False, answer="solution")


GOOD = {"prompt": "Why?", "answer": "So."}


def nested(levels):
    """An array in an array in an object in an array ..."""
    value = 1
    for level in range(levels):
        value = {"a": value} if level % 3 == 0 else [value]
    return value


def test_what_is_nearly_too_deep_or_too_long_is_read(tmp_path):
    problem = only_problem(tmp_path, {"prompt": "Why?", "answer": -(10**300) + 1, "more": nested(64)})
    assert problem.answer == "-" + "9" * 300
    assert problem.fields["more"] == nested(64)


def test_an_empty_answer_will_do_where_no_answer_is_needed(tmp_path):
    assert only_problem(tmp_path, {"prompt": "Why?", "answer": ""}, needs_answer=False).answer == ""


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"answer": "x"}, r"data\.jsonl: line 2: has no field 'prompt' \(its fields: answer\)"),
        ({"prompt": "x"}, r"data\.jsonl: line 2: has no field 'answer'"),
        (
            {"prompt": None, "answer": "x"},
            r"line 2: field 'prompt' is empty \(null\), where text or a number is needed",
        ),
        ({"prompt": {"a": 1}, "answer": "x"}, r"line 2: field 'prompt' is a dict"),
        ({"prompt": "x", "answer": True}, r"line 2: field 'answer' is a bool"),
        ({"prompt": "x", "answer": ["y"]}, r"line 2: field 'answer' is a list"),
        ({"prompt": " \n", "answer": "x"}, r"line 2: the prompt is empty"),
        ({"prompt": "a\ud800", "answer": "x"}, r"line 2: field 'prompt': holds half of a surrogate pair"),
        ({"prompt": "a", "answer": "x", "more": ["\ud800"]}, r"line 2: field 'more': holds half of a surrogate pair"),
        ({"prompt": [], "answer": "x"}, r"line 2: field 'prompt': is an empty conversation"),
        ({"prompt": ["x"], "answer": "x"}, r"line 2: field 'prompt': a message must have the texts"),
        ({"prompt": [{"role": "user"}], "answer": "x"}, r"a message must have the texts 'role' and 'content'"),
        (
            {"prompt": [{"role": "user", "content": "a", "tool_calls": [1]}], "answer": "x"},
            r"line 2: field 'prompt': a message holds 'tool_calls'",
        ),
        (
            {"prompt": [{"role": "User", "content": "a"}], "answer": "x"},
            r"line 2: field 'prompt': the role 'User' is not one of system, developer, user, assistant, tool",
        ),
        ({"prompt": "x", "answer": " \n"}, r"line 2: field 'answer' is empty, so that saying nothing would be right"),
        ({"prompt": "x", "answer": 10**399}, r"line 2: field 'answer' is a number of more than 300 digits; write"),
        ({"prompt": -(10**399), "answer": "x"}, r"line 2: field 'prompt' is a number of more than 300 digits; write"),
        ({"prompt": "x", "answer": "y", "more": nested(65)}, r"line 2: field 'more': is nested more than 64 levels"),
        ({"prompt": "x", "answer": "y", "more": nested(900)}, r"line 2: field 'more': is nested more than 64 levels"),
        ({"prompt": [nested(900)], "answer": "y"}, r"line 2: field 'prompt': is nested more than 64 levels"),
        ({"prompt": "x", "answer": "y", "more": {"\ud800": 1}}, r"line 2: field 'more': holds half of a surrogate"),
        ({"prompt": "x", "answer": "y", "\ud800": 1}, r"line 2: holds half of a surrogate"),
        ({"prompt": [{"role": "assistant", "content": "a"}], "answer": "x"}, r"the last message is the assistant's"),
    ],
)
def test_a_bad_row_is_refused_by_line_and_field(tmp_path, row, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_rows(tmp_path, [GOOD, row], needs_heldout=False)


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        ([], {}, r"data\.jsonl: holds no rows"),
        ([GOOD], {"prompt": "{promt}"}, r"names \{promt\}, but .*line 1 has no field 'promt'; did you mean 'prompt'\?"),
        ([GOOD], {"prompt": "{prompt} {answer}"}, r"the prompt template shows the answer.*take \{answer\} out of it"),
        ([GOOD], {"answer": "prompt"}, r"prompt = '\{prompt\}': the prompt template shows the answer"),
        ([GOOD], {"prompt": "always"}, r"names no field, so that all prompts would be the same"),
        ([{"q": "x", "answer": "y"}], {}, r"line 1: has no field 'prompt' and no 'question'.*prompt = '\{q\}'"),
        ([GOOD], {}, r"with 1 row and task\.options\.heldout = 0\.1 no row is held out; add rows"),
        ([GOOD], {"heldout": 0.99999}, r"no row is left to train on"),
        ([GOOD], {"heldout": 1.5}, r"task\.options\.heldout = 1\.5 is a share"),
        ([GOOD], {"system": "x", "chat": False}, r"task\.options\.system is a chat message"),
        ([{"prompt": [{"role": "user", "content": "a"}], "answer": "x"}], {"chat": False}, r"is a conversation"),
        ([GOOD], {"heldout_file": "nowhere.jsonl"}, r"nowhere\.jsonl: there is no such file"),
    ],
)
def test_what_cannot_be_a_task_is_refused_with_the_fix(tmp_path, rows, options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_rows(tmp_path, rows, **options)
