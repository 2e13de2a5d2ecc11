"""Every trainer's log in its own names: silent on a run that learns, right on a sick one, never above possible."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from doctor.evidence.logs.own_names import LOGS, STEPS, rows_of

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.logs.names import PLAIN, TRAINERS
from assay.doctor.evidence.open import open_evidence
from assay.record.metrics import METRICS
from assay.verdict import Confidence, State

AT = np.linspace(0.0, 1.0, STEPS)
RISING = np.interp(AT, [0.0, 0.4], [0.3, 0.4])
SICK = {
    "MET01": {"entropy": np.maximum(0.5 * np.exp(-12 * AT), 0.01), "reward": RISING},
    "MET02": {"kl": np.geomspace(1e-3, 6.0, STEPS), "reward": RISING},
    "MET03": {"truncated": np.interp(AT, [0.0, 0.8], [0.03, 0.8]), "reward": 0.35 + 0.01 * np.sin(np.arange(STEPS))},
    "REW01": {"reward": 0.5, "reward_std": 0.0},
    "ADV09": {"zero_share": 0.9, "reward": 0.2 + 0.01 * np.sin(np.arange(STEPS))},
    "MET05": {"gradient": 0.0, "reward": 0.3 + 0.01 * np.sin(np.arange(STEPS))},
    "SAMP06": {"mismatch": 0.4},
}
NEEDED = {
    "MET01": "entropy", "MET02": "ref_kl", "MET03": "truncated_share", "REW01": "reward_std",
    "ADV09": "zero_variance_share", "MET05": "gradient_norm", "SAMP06": "mismatch_mean",
}  # fmt: skip
OF_OTHERS = {
    "advantage_min", "advantage_max", "mismatch_kl", "mismatch_probs", "mismatch_factor", "old_less_new",
    "prompt_length_mean", "prompt_length_min", "prompt_length_max", "prompt_truncated_share",
}  # fmt: skip
BY_NAME = {trainer.name: trainer for trainer in (*TRAINERS, PLAIN)}
# its KL is signed and unused in the run above; weights correct TRL's mismatch
CANNOT = {("OpenRLHF", "MET02"), ("TRL", "SAMP06")}

SAID = [
    (trainer, code)
    for code, metric in NEEDED.items()
    for trainer in LOGS
    if metric in BY_NAME[trainer].names and (trainer, code) not in CANNOT
]


def written(tmp_path: Path, rows: list[dict], name: str = "metrics.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def findings(path: Path) -> dict[str, Confidence]:
    diagnosis = diagnose(open_evidence(path))
    assert not diagnosis.of(State.CRASHED)
    return {word.code: word.confidence for word in diagnosis.findings}


def test_the_synthetic_logs_cover_every_table():
    assert set(LOGS) == set(BY_NAME) - {"Assay"}


@pytest.mark.parametrize("trainer", LOGS)
def test_a_log_is_recognised_by_its_columns_and_a_learning_run_is_silent(tmp_path, trainer):
    path = written(tmp_path, rows_of(trainer), "anything.txt")
    evidence = open_evidence(path)
    assert evidence.notes[0].startswith(f"read as a log of {trainer}: ")
    assert evidence.curves.has("reward_mean", "loss") or evidence.curves.has("reward_mean", "policy_loss")
    assert len(evidence.curves) == STEPS
    assert findings(path) == {}


@pytest.mark.parametrize(("trainer", "code"), SAID)
def test_a_sick_run_is_named_and_above_possible_only_where_the_curve_is_the_death(tmp_path, trainer, code):
    found = findings(written(tmp_path, rows_of(trainer, **SICK[code])))
    assert code in found
    sure = {known for known, confidence in found.items() if confidence is not Confidence.POSSIBLE}
    assert sure <= {"REW01", "MET05", "SAMP06"}


@pytest.mark.parametrize("trainer", LOGS)
def test_a_run_that_has_solved_its_task_is_silent(tmp_path, trainer):
    solved = np.interp(AT, [0.0, 0.5], [0.3, 0.985])
    path = written(
        tmp_path,
        rows_of(
            trainer,
            reward=solved,
            reward_std=np.sqrt(solved * (1 - solved)),
            zero_share=np.interp(AT, [0.0, 0.5], [0.3, 0.95]),
            entropy=np.maximum(0.5 * np.exp(-12 * AT), 0.01),
            gradient=np.interp(AT, [0.0, 0.3], [0.4, 0.0]),
        ),
    )
    assert findings(path) == {}


@pytest.mark.parametrize("trainer", LOGS)
def test_a_csv_of_the_same_numbers_gives_the_same_curves(tmp_path, trainer):
    rows = rows_of(trainer)
    path = tmp_path / "table"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert open_evidence(path).curves == open_evidence(written(tmp_path, rows)).curves


def test_every_name_maps_to_a_metric_of_ours():
    for trainer in (*TRAINERS, PLAIN):
        assert set(trainer.names) <= {*METRICS, *OF_OTHERS}, trainer.name
        names = [name for own in trainer.names.values() for name in own]
        assert len(names) == len(set(names)), trainer.name


def test_a_share_of_stops_is_turned_into_a_share_of_truncated(tmp_path):
    curves = open_evidence(written(tmp_path, rows_of("open-instruct", truncated=0.25))).curves
    np.testing.assert_allclose(curves.need("truncated_share")[0], 0.25)


def test_a_signed_kl_is_left_out_and_that_is_said(tmp_path):
    evidence = open_evidence(written(tmp_path, rows_of("verl", kl=np.sin(np.arange(STEPS)) / 1e3)))
    assert not evidence.curves.has("ref_kl")
    assert any("k1" in note for note in evidence.notes)


def test_a_negative_k3_of_trl_is_a_finding(tmp_path):
    assert findings(written(tmp_path, rows_of("TRL", kl=-0.01))) == {"MET06": Confidence.POSSIBLE}


def test_two_columns_of_one_metric_that_disagree_are_noted(tmp_path):
    rows = [{**row, "critic/score/mean": row["critic/rewards/mean"] + 0.1} for row in rows_of("verl")]
    evidence = open_evidence(written(tmp_path, rows))
    assert evidence.curves.need("reward_mean")[0][0] == rows[0]["critic/rewards/mean"]
    assert any("'critic/rewards/mean'" in note and "'critic/score/mean'" in note for note in evidence.notes)
    assert not any("something else" in note for note in open_evidence(written(tmp_path, rows_of("verl"))).notes)


def test_columns_that_are_not_known_are_counted_and_named(tmp_path):
    rows = [{**row, "my\x1bmetric": 1.0} for row in rows_of("torchtune")]
    note = open_evidence(written(tmp_path, rows)).notes[0]
    assert "3 of 13 columns are not used or not known" in note
    assert "'my\\x1bmetric'" in note


def test_parts_of_the_reward_are_kept_and_a_length_penalty_is_not_held_against_it(tmp_path):
    rows = [
        {**row, "rewards/soft_overlong/mean": -float(at), "rewards/accuracy/mean": row["reward"] + float(at)}
        for row, at in zip(rows_of("TRL"), 0.3 * AT, strict=True)
    ]
    assert open_evidence(written(tmp_path, rows)).curves.has("reward_accuracy_mean", "reward_overlong_mean")
    assert findings(written(tmp_path, rows)) == {}
    rows = [{**row, "rewards/format/mean": row["rewards/soft_overlong/mean"]} for row in rows]
    assert findings(written(tmp_path, rows)) == {"MET04": Confidence.POSSIBLE}


def test_the_held_out_rate_of_verl_is_compared_with_the_reward(tmp_path):
    rows = [
        {**row, "val-core/openai/gsm8k/acc/mean@1": 0.5 - 0.3 * at} for row, at in zip(rows_of("verl"), AT, strict=True)
    ]
    assert findings(written(tmp_path, rows)) == {"MET04": Confidence.POSSIBLE}


def test_a_reward_beyond_the_convention_has_the_scale_of_its_means(tmp_path):
    def scale(trainer, **changes):
        return open_evidence(written(tmp_path, rows_of(trainer, **changes))).curves.settings.get("max_reward")

    assert scale("torchtune") == 1.0
    assert scale("open-instruct") == 10.0
    assert scale("torchtune", reward=np.linspace(2.0, 7.0, STEPS)) == 7.0
    assert scale("verl") is None  # it logs the largest reward of each step


def test_weights_that_correct_the_sampler_are_seen_in_the_columns(tmp_path):
    rows = rows_of("TRL", mismatch=0.2)
    assert findings(written(tmp_path, rows)) == {}
    # 0.4 nats per token are more than weights can correct
    assert findings(written(tmp_path, rows_of("TRL", **SICK["SAMP06"]))) == {"SAMP06": Confidence.LIKELY}
    for row in rows:
        del row["sampling/importance_sampling_ratio/mean"]
    assert findings(written(tmp_path, rows)) == {"SAMP06": Confidence.LIKELY}


def test_several_held_out_sets_are_not_compared_with_one_reward(tmp_path):
    rows = rows_of("verl")
    steps = [row["step"] for row in open_evidence(written(tmp_path, rows[::-1])).curves.evaluations]
    assert steps == list(range(1, STEPS + 1))
    evidence = open_evidence(written(tmp_path, [{**row, "val-core/math/acc/mean@1": 0.5} for row in rows]))
    assert evidence.curves.evaluations == []
    assert any("2 held-out sets" in note for note in evidence.notes)
