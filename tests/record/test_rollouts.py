"""One row a rollout: what comes back, what is kept, and that hostile text does no harm."""

from dataclasses import replace

import pytest
from fixtures.fake_records import fake_group, fake_record, new_run

from assay.record import RunError, read_evaluations, read_events, read_metrics, read_rollouts
from assay.types import Score

HOSTILE = [
    "",
    "\x00",
    "\ud800 and \udfff",
    "</script><!-- ]]>",
    "\x1b[2J\x1b]8;;http://x\x07",
    "\u202e\u2028\u2029\ufeff",
    "a\nb\r\nc\x0b\x85",
    '"\\"{}[],',
    "=cmd|' /C calc'!A0",
    "\U0001f600" * 3,
    "x" * 1_000_000,
    b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),
]


def test_every_rollout_comes_back_as_it_was(tmp_path):
    run = new_run(tmp_path / "run")
    record = fake_record()
    per_token = replace(record.samples[1], advantage=(0.25, -0.5, 1.0))
    record = replace(record, samples=(record.samples[0], per_token, *record.samples[2:]))
    run.append_step(replace(record, ref_logprobs=tuple((-2.0,) * len(x) for x in record.old_logprobs)))
    rows = list(read_rollouts(run.path, step=1))
    assert [(row["group"], row["row"], row["prompt_id"]) for row in rows] == [
        (0, 0, "sort-0"),
        (0, 1, "sort-0"),
        (1, 2, "sort-1"),
        (1, 3, "sort-1"),
    ]
    as_float32 = [pytest.approx(value, rel=1e-7) for value in (-0.1, -0.2, -0.3)]
    assert rows[1] == {
        "step": 1,
        "group": 0,
        "row": 1,
        "prompt_id": "sort-0",
        "prompt_text": "12>",
        "prompt_tokens": [5, 6],
        "text": "12",
        "tokens": [1, 2, 3],
        "sampler_logprobs": as_float32,
        "old_logprobs": as_float32,
        "new_logprobs": as_float32,
        "ref_logprobs": [-2.0, -2.0, -2.0],
        "mask": [True, True, True],
        "rewards": {"exact": 0.0},
        "reward": 0.0,
        "error": "",
        "advantage": None,
        "token_advantages": [0.25, -0.5, 1.0],
        "stop": "length",
        "policy_version": 0,
    }
    assert (rows[0]["advantage"], rows[0]["token_advantages"], rows[0]["stop"]) == (0.5, None, "eos")
    assert rows[2]["rewards"] == {"exact": 1.0, "format": 2.0}
    assert (rows[3]["reward"], rows[3]["rewards"], rows[3]["error"]) == (None, {}, "raised ValueError")
    assert rows[3]["mask"] == [False, False, False]


def test_a_rollout_outside_the_batch_has_no_logprobs_of_the_trainer(tmp_path):
    record = fake_record()
    trained = replace(
        record, samples=record.samples[2:], old_logprobs=record.old_logprobs[2:], new_logprobs=record.new_logprobs[2:]
    )
    run = new_run(tmp_path / "run")
    run.append_step(trained)
    rows = list(read_rollouts(run.path))
    assert [row["old_logprobs"] is None for row in rows] == [True, True, False, False]
    assert [row["advantage"] for row in rows] == [None, None, 0.5, -0.5]
    assert [any(row["mask"]) for row in rows] == [False, False, True, False]


def test_samples_and_logprobs_that_fit_no_rollout_are_refused(tmp_path):
    run, record = new_run(tmp_path / "run"), fake_record()
    with pytest.raises(ValueError, match="2 samples belong to no rollout"):
        run.append_step(replace(record, groups=record.groups[:1]))
    with pytest.raises(ValueError, match="4 samples but 3 new_logprobs"):
        run.append_step(replace(record, new_logprobs=record.new_logprobs[1:]))
    assert (read_metrics(run.path).rows, list(read_rollouts(run.path))) == ((), [])


@pytest.mark.parametrize(
    ("rewards", "count", "kept"),
    [
        ([3.0, 1.0, 2.0, 5.0, 4.0], 1, [1, 3]),
        ([3.0, 1.0, None, 2.0, 5.0, 4.0], 2, [0, 1, 2, 3, 4, 5][1:]),  # 3.0 is the middle one
        ([1.0, 1.0, 1.0, 1.0], 1, [0, 3]),
        ([2.0, 1.0, 3.0], 2, [0, 1, 2]),
        ([2.0], 4, [0]),
    ],
)
def test_extremes_keep_the_best_the_worst_and_every_failure(tmp_path, rewards, count, kept):
    scores = [Score.failed("x") if reward is None else Score.of({"a": reward}) for reward in rewards]
    run = new_run(tmp_path / "run")
    run.append_step(fake_record(groups=(fake_group(0, scores), fake_group(1, scores))), keep="extremes", extremes=count)
    rows = [row["row"] for row in read_rollouts(run.path)]
    assert rows == kept + [len(rewards) + index for index in kept]


def test_keeping_no_rollouts_writes_no_file(tmp_path):
    run = new_run(tmp_path / "run")
    run.append_step(fake_record(), keep="none")
    assert list((run.path / "rollouts").iterdir()) == []
    assert [row["step"] for row in read_metrics(run.path).rows] == [1]
    with pytest.raises(RunError, match="holds no rollouts of step 1"):
        read_rollouts(run.path, step=1)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_recorded_and_read_back(tmp_path, text):
    run = new_run(tmp_path / "run")
    scores = [Score(1.0, {text: 1.0}, ""), Score.failed(text)]
    run.append_step(fake_record(groups=(fake_group(0, scores, text),)))
    run.append_event("refusal", reason=text, where=[text])
    run.append_evaluation({"step": 1, "note": text})
    safe = text.encode("utf-8", "backslashreplace").decode()
    rows = list(read_rollouts(run.path))
    assert [(row["text"], row["prompt_text"]) for row in rows] == [(safe, safe + ">")] * 2
    assert (rows[0]["rewards"], rows[1]["error"]) == ({safe: 1.0}, safe)
    [event] = read_events(run.path).rows
    assert (event["kind"], event["reason"], event["where"]) == ("refusal", safe, [safe])
    assert read_evaluations(run.path).rows == ({"step": 1, "note": safe},)
    assert len(read_metrics(run.path).rows) == 1


def test_pandas_opens_all_steps_at_once(tmp_path):
    pandas = pytest.importorskip("pandas")
    run = new_run(tmp_path / "run", steps=1)
    run.append_step(fake_record(2, groups=(fake_group(0, [Score.failed("x"), Score.of({"other": 1.0})]),)))
    rollouts = pandas.read_parquet(run.path / "rollouts")
    assert rollouts["step"].tolist() == [1, 1, 1, 1, 2, 2]
    assert dict(rollouts["rewards"][2]) == {"exact": 1.0, "format": 2.0}
    assert rollouts["reward"].isna().tolist() == [False, False, False, True, True, False]
    metrics = pandas.read_json(run.path / "metrics.jsonl", lines=True)
    assert metrics["reward_other_mean"].isna().tolist() == [True, False]


def test_duckdb_opens_all_steps_at_once(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    run = new_run(tmp_path / "run", steps=2)
    query = f"select step, sum(reward), max(len(tokens)) from '{run.path}/rollouts/*.parquet' group by 1 order by 1"
    assert duckdb.sql(query).fetchall() == [(1, 4.0, 3), (2, 4.0, 3)]
