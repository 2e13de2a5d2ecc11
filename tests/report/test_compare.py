"""Runs side by side: the first number that differs, settings, scores."""

from dataclasses import replace

import pytest
from fixtures.fake_records import fake_record
from report.pages import parsed, sentence_in, small_run

from assay.record import RunDirectory
from assay.report.compare import (
    CompareError,
    Difference,
    check_comparable,
    compare_page,
    equality_lines,
    first_difference,
    scores_table,
    settings_table,
    text_of,
)
from assay.report.opened import open_path


def run_of(path, *records, **settings):
    small_run(path, steps=0, **settings)
    run = RunDirectory.open(path)
    for record in records:
        run.append_step(record)
    return open_path(path)


def with_token(record, row, token):
    """The same record with another first token in one completion."""
    group = record.groups[0]
    rollout = replace(group.rollouts[row], tokens=(token, *group.rollouts[row].tokens[1:]))
    rollouts = tuple(rollout if at == row else other for at, other in enumerate(group.rollouts))
    samples = tuple(
        replace(sample, rollout=rollout) if sample.rollout is group.rollouts[row] else sample
        for sample in record.samples
    )
    return replace(record, groups=(replace(group, rollouts=rollouts), *record.groups[1:]), samples=samples)


def test_equal_runs_have_no_difference(tmp_path):
    runs = [run_of(tmp_path / name, fake_record(1), fake_record(2)) for name in "ab"]
    assert first_difference(*runs) is None
    assert equality_lines(runs) == ["a and b: equal in all 2 steps that both record"]


def test_the_first_number_that_differs_is_named_with_its_step(tmp_path):
    one = run_of(tmp_path / "a", fake_record(1), fake_record(2), fake_record(3))
    update = replace(fake_record().updates[0], loss=0.75)
    other = run_of(tmp_path / "b", fake_record(1), fake_record(2, updates=(update,)), fake_record(3, updates=(update,)))
    assert first_difference(one, other) == Difference(2, "loss", 0.5, 0.75)


def test_a_token_that_differs_comes_before_the_numbers_made_of_it(tmp_path):
    record = fake_record(1)
    update = replace(record.updates[0], loss=0.75)
    one = run_of(tmp_path / "a", record)
    other = run_of(tmp_path / "b", replace(with_token(record, 1, 99), updates=(update,)))
    assert first_difference(one, other) == Difference(1, "tokens of completion 1, token 0", 1, 99)


def test_runs_that_should_be_equal_get_a_command_that_replays_them(tmp_path):
    update = replace(fake_record().updates[0], loss=0.75)
    runs = [run_of(tmp_path / "a", fake_record(1)), run_of(tmp_path / "b", fake_record(1, updates=(update,)))]
    (first, second) = equality_lines(runs)
    assert first == "step 1: loss is 0.5 in a and 0.75 in b"
    assert second.endswith(f"assay train {tmp_path}/a/config.toml --set run.steps=1 --out replay")
    other = run_of(tmp_path / "c", fake_record(1, updates=(update,)), run__seed=2)
    assert len(equality_lines([runs[0], other])) == 1, "another seed is meant to differ"


def test_settings_that_differ_are_listed_once_with_the_values_of_all(tmp_path):
    runs = [
        run_of(tmp_path / name, fake_record(1), rollout__temperature=value)
        for name, value in (("a", 1.0), ("b", 0.7), ("c", 1.0))
    ]
    assert settings_table(runs) == [("rollout.temperature", [1.0, 0.7, 1.0])]


def test_scores_stand_with_their_seed_and_their_error(tmp_path):
    run_of(tmp_path / "a", fake_record(1), run__seed=5)
    RunDirectory.open(tmp_path / "a").append_evaluation(
        {"step": 1, "prompts": 64, "reward_greedy": 0.5, "reward_greedy_std_error": 0.0625, "reward_sampled": 0.25}
    )
    runs = [open_path(tmp_path / "a"), run_of(tmp_path / "b", fake_record(1))]
    line = next(line for line in text_of(runs).splitlines() if line.startswith("a "))
    assert line.split("  ")[0] == "a"
    for words in ("5", "0.500 +- 0.062", "0.250", "64 after step 1"):
        assert words in line


def test_the_page_draws_all_runs_over_each_other(tmp_path):
    runs = [run_of(tmp_path / name, fake_record(1), fake_record(2)) for name in "abc"]
    page = compare_page(runs)
    reward = next(chart for chart in parsed(page).data["charts"] if chart["key"] == "reward_mean")
    assert [series["name"] for series in reward["series"]] == ["a", "b", "c"]
    assert sentence_in(page, "equal in all 2 steps")
    assert sentence_in(page, "No setting differs")


def test_what_has_no_curves_cannot_be_compared(tmp_path):
    with pytest.raises(CompareError, match="holds no curves"):
        check_comparable([run_of(tmp_path / "a")])


def test_runs_that_differ_by_their_seed_get_a_mean_over_seeds(tmp_path):
    for name, seed, score in (("a", 1, 0.5), ("b", 2, 0.75), ("c", 3, 0.25)):
        run_of(tmp_path / name, fake_record(1), run__seed=seed)
        RunDirectory.open(tmp_path / name).append_evaluation({"step": 1, "prompts": 8, "reward_sampled": score})
    runs = [open_path(tmp_path / name) for name in "abc"]
    assert scores_table(runs)[3] == ["mean of 3 seeds", "", "", "-", "0.500 +- 0.144", "-", ""]
    other = run_of(tmp_path / "d", fake_record(1), rollout__temperature=0.7)
    assert len(scores_table([runs[0], other])) == 2, "not the same but for the seed"
