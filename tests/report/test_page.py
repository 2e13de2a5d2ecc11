"""The page as a file: its parts, its policy, its data, its size; and runs that are short, cut off or empty."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest
from fixtures.fake_records import fake_record, new_run
from report.pages import halves, parsed, policy_of, sentence_in, small_run

from assay.doctor.evidence import Curves
from assay.record import RunDirectory
from assay.record.batch import Batch
from assay.record.batch_file import write_batch
from assay.report.opened import open_path
from assay.report.page import page_of
from assay.report.parts import signal_levels
from assay.types import Group

PARTS = ["verdict", "curves", "time", "signal", "groups", "ratio", "lengths", "setup"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = small_run(tmp_path_factory.mktemp("page") / "run")
    return page_of(open_path(run))


def sections(page):
    return [attributes["id"] for attributes in parsed(page).named("section")]


def test_the_parts_stand_in_the_order_in_which_they_are_read(page):
    assert sections(page) == PARTS
    links = [link["href"] for link in parsed(page).named("a") if link["href"].startswith("#")]
    assert [f"#{part}" for part in PARTS] == [link for link in links if link[1:] in PARTS][-len(PARTS) :]


def test_the_policy_allows_the_style_and_script_of_the_page_and_nothing_else(page):
    found, policy = parsed(page), policy_of(page)
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.styles]
    assert policy["style-src"] == f"'sha256-{hashes[0]}'"
    script = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{script}'"
    assert policy["default-src"] == policy["connect-src"] == policy["base-uri"] == "'none'"
    assert len(found.styles) == 1
    assert len(found.scripts) == 2
    assert found.named("script")[0] == {"type": "application/json", "id": "data"}


def test_the_page_names_no_other_file_and_no_address(page):
    for _, attributes in parsed(page).elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), attributes
    without_names = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"https?://|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", without_names
    )


def test_no_element_has_a_handler_or_a_style_of_its_own(page):
    for _, attributes in parsed(page).elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]


def test_every_id_is_there_once(page):
    ids = parsed(page).ids()
    assert len(ids) == len(set(ids))


def test_twelve_curves_share_one_axis_and_their_numbers_are_in_the_data(page):
    charts = parsed(page).data["charts"]
    assert len(charts) == 13, "twelve, and the seconds"
    assert {tuple(chart["ends"]) for chart in charts[:12]} == {(1, 3)}
    reward = next(chart for chart in charts if chart["key"] == "reward")
    assert reward["series"][0]["values"] == [pytest.approx(4 / 3, rel=1e-4)] * 3


def test_each_legend_entry_has_a_series_in_the_data(page):
    charts = {chart["key"]: chart for chart in parsed(page).data["charts"]}
    figures = re.findall(r'<figure class="chart[^"]*" data-chart="(\w+)".*?</figure>', page, re.DOTALL)
    assert {"reward", "entropy", "speed", "time"} <= set(figures)
    for key, block in re.findall(r'data-chart="(\w+)"(.*?)</figure>', page, re.DOTALL):
        if key in charts:
            places = [int(place) for place in re.findall(r'data-series="(\d+)"', block)]
            assert all(place < len(charts[key]["series"]) for place in places)


def test_the_verdict_counts_what_was_not_judged(page):
    assert sentence_in(page, "Not judged")
    assert re.search(r"\d+ checks: \d+ findings?, \d+ healthy", parsed(page).text)


def test_a_finding_of_the_run_that_the_record_no_longer_shows_is_named(tmp_path):
    run = small_run(tmp_path / "run")
    assert not sentence_in(page_of(open_path(run)), "Reported while the run was made")
    found = {"step": 2, "code": "LOSS01", "name": "loss_sign", "severity": "fatal", "confidence": "proven"}
    RunDirectory.open(run).append_finding({**found, "message": "its <b>sign</b> is flipped", "fix": "one minus"})
    page = page_of(open_path(run))
    assert sentence_in(page, "Loss sign (fatal, proven) at step 2: its <b>sign</b> is flipped")
    assert "<b>sign" not in page


def test_a_finding_names_the_prompt_it_is_about(tmp_path):
    batch = Batch.of(
        {
            "tokens": [[7, 8], [7, 8]], "mask": [[1, 1], [1, 1]], "old_logprobs": [[-1.0, -0.5]] * 2,
            "new_logprobs": [[-1.0, -0.5], [-1.0, -1.5]], "step": 1, "update": 0, "advantages": [1.0, -1.0],
        },
        texts={"prompt": ["first>", "second>"], "completion": ["ab", "ab"]},
    )  # fmt: skip
    write_batch(tmp_path / "batch.safetensors", batch)
    assert sentence_in(page_of(open_path(tmp_path / "batch.safetensors")), "row 1, token 1, prompt 'second>'")


def test_the_command_to_make_the_run_again_is_there(page):
    assert re.search(r"assay train \S+/config\.toml --out again", parsed(page).text)


def test_settings_that_are_not_the_default_are_marked_and_those_of_another_run_are_listed(tmp_path):
    run = small_run(tmp_path / "run", rollout__temperature=0.7)
    other = small_run(tmp_path / "other")
    page = page_of(open_path(run), against=open_path(other))
    assert re.search(r'<tr class="differs"><th scope="row">rollout.temperature</th><td>0.7</td>', page)
    assert re.search(r'<th scope="row">rollout.temperature</th><td>0.7</td><td>1.0</td>', page)


def test_the_signal_is_lost_step_by_step_as_worked_by_hand():
    row = {
        "tokens_generated": 1000, "rollouts_scored": 9, "rollouts_unscored": 1, "tokens_in_loss": 1000,
        "zero_variance_share": 0.25, "clipped_share": 0.1, "updates_applied": 1, "updates_skipped": 1,
    }  # fmt: skip
    tokens = [tokens for _, tokens, _ in signal_levels(Curves([row]))]
    assert tokens == pytest.approx([1000, 900, 675, 607.5, 303.75])


def test_groups_that_were_left_out_of_the_loss_are_not_taken_off_twice():
    row = {"tokens_generated": 1000, "tokens_in_loss": 600, "zero_variance_share": 0.4, "updates_applied": 1}
    assert [tokens for _, tokens, _ in signal_levels(Curves([row]))] == pytest.approx([1000, 1000, 600, 600, 600])


def test_a_log_without_tokens_has_no_signal_part():
    assert signal_levels(Curves([{"step": 1, "loss": 0.1}])) == []


def test_a_run_without_a_whole_step_is_a_page_of_empty_parts(tmp_path):
    run = new_run(tmp_path / "run")
    run.append_event("start", steps=3)
    page = page_of(open_path(run.path))
    assert sections(page) == PARTS
    assert sentence_in(page, "No step is recorded yet")
    assert sentence_in(page, "going on, or killed")


def test_a_run_that_records_no_rollouts_says_so(tmp_path):
    run = new_run(tmp_path / "run")
    for step in (1, 2):
        run.append_step(fake_record(step), keep="none")
    page = page_of(open_path(run.path))
    assert parsed(page).data["sources"] == []
    assert sentence_in(page, "No tokens are recorded")


def test_a_step_with_no_completion_at_all(tmp_path):
    run = new_run(tmp_path / "run")
    nobody = Group(fake_record().groups[0].prompt, (), ())
    run.append_step(fake_record(1, (nobody,), samples=(), old_logprobs=(), new_logprobs=(), updates=()))
    page = page_of(open_path(run.path))
    assert sections(page) == PARTS


def test_a_torn_record_is_shown_as_far_as_it_goes(tmp_path):
    run = small_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "rew')
    page = page_of(open_path(run))
    assert sentence_in(page, "was cut off while it was written and is left out")
    assert parsed(page).data["charts"][0]["ends"] == [1, 3]


def test_a_log_of_another_trainer_has_curves_and_says_what_it_lacks(tmp_path):
    lines = [f'{{"step": {step}, "reward": 0.{step}, "loss": 0.1, "grad_norm": 1.0}}' for step in range(1, 10)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    page = page_of(open_path(tmp_path / "log.jsonl"))
    assert parsed(page).data["charts"][0]["series"][0]["values"][:2] == [0.1, 0.2]
    assert sentence_in(page, "No tokens are recorded")
    assert sentence_in(page, "The record holds no timings")


def test_a_log_with_numbers_at_every_other_step_is_drawn_as_lines(tmp_path):
    rows = [
        {"step": step, "loss": 0.1, **({"reward": 0.5, "reward_std": 0.1} if step % 2 else {})} for step in range(1, 9)
    ]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reward = parsed(page_of(open_path(tmp_path / "log.jsonl"))).data["charts"][0]
    assert reward["series"][0] == {
        "name": "mean, with its standard deviation",
        "steps": [1, 3, 5, 7],
        "values": [0.5] * 4,
    }


def test_seconds_without_stages_are_those_of_the_step(tmp_path):
    run = small_run(tmp_path / "run")
    (run / "checksums.jsonl").unlink(missing_ok=True)
    (run / "timings.jsonl").write_text("".join(f'{{"step": {step}, "seconds": 2.0}}\n' for step in (1, 2, 3)))
    page = page_of(open_path(run))
    assert sentence_in(page, "6.00 s in 3 steps")
    assert parsed(page).data["charts"][-1]["series"] == [{"name": "step", "steps": [1, 2, 3], "values": [2.0] * 3}]


def full_batch(rows=64, tokens=512):
    """Every channel that a batch can hold."""
    draw = np.random.default_rng(0)
    logprobs = {name: -draw.exponential(size=(rows, tokens)) for name in ("new", "old", "ref", "sampler")}
    return Batch.of(
        {
            "tokens": draw.integers(0, 150_000, (rows, tokens)),
            "mask": np.ones((rows, tokens), bool),
            "lengths": np.full(rows, tokens),
            "rewards": draw.normal(size=rows),
            "group_ids": np.repeat(np.arange(rows // 8), 8),
            "advantages": draw.normal(size=(rows, tokens)),
            "gradients": draw.normal(size=(rows, tokens)) / rows / tokens,
            "entropy": draw.exponential(size=(rows, tokens)),
            "clipped": draw.random((rows, tokens)) < 0.02,
            "step": 7,
            "update": 1,
            **{f"{name}_logprobs": values for name, values in logprobs.items()},
        },
        texts={"prompt": ["why? " * 20] * rows, "completion": ["x" * tokens] * rows},
    )


def test_64_completions_of_512_tokens_with_every_channel_fit_in_a_mail_and_their_numbers_are_right(tmp_path):
    batch = full_batch()
    write_batch(tmp_path / "batch.safetensors", batch)
    page = page_of(open_path(tmp_path / "batch.safetensors"))
    assert len(page.encode()) < 2_000_000
    data = parsed(page).data
    (source,) = data["sources"]
    assert len(data["completions"]) == 64
    assert set(source["channels"]) == {"gradient", "log_ratio", "entropy", "kl", "logprob", "mismatch", "advantage"}
    row = data["completions"][source["stored"]["5"]]
    log_ratio = batch.arrays["new_logprobs"][5] - batch.arrays["old_logprobs"][5]
    assert halves(row["channels"]["log_ratio"]) == pytest.approx(log_ratio, rel=1e-3, abs=1e-3)
