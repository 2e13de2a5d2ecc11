"""Laws in the logs of every trainer: broken ones are named above possible, and sound runs that look alike are not."""

import json

import numpy as np
import pytest
from doctor.evidence.logs.own_names import LOGS, STEPS, rows_of

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.open import open_evidence
from assay.verdict import Confidence, State

AT = np.arange(STEPS)


def noise(spread, seed=3):
    return spread * np.random.default_rng(seed).standard_normal(STEPS)


def said(tmp_path, rows):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnose(open_evidence(path))
    assert not diagnosis.of(State.CRASHED)
    return {word.code: word.confidence for word in diagnosis.findings}


def sure(tmp_path, rows):
    return {code for code, confidence in said(tmp_path, rows).items() if confidence is not Confidence.POSSIBLE}


def logged(**columns):
    """Trainers that log all of these keys of the run."""
    return [name for name, names in LOGS.items() if set(columns) <= {how for how in names.values() if how}]


STILL = {"kl": np.abs(2e-6 + noise(1e-6)), "reward": 0.45 + noise(0.03, 4), "entropy": 0.36 + noise(0.01, 5)}
FROZEN = 0.006 + np.maximum(AT - 35, 0) * 0.003 + np.abs(noise(5e-4))
WITH_DISTANCE = ("TRL", "SkyRL", "slime", "open-instruct", "NeMo-RL", "OpenRLHF", "prime-rl", "verl")


@pytest.mark.parametrize("trainer", [*WITH_DISTANCE, "no trainer known here"])
def test_weights_that_stop_reaching_the_sampler_are_seen_where_the_distance_begins_to_grow(tmp_path, trainer):
    found = said(tmp_path, rows_of(trainer, mismatch=FROZEN))
    assert found["LAW09"] is Confidence.LIKELY


@pytest.mark.parametrize("trainer", WITH_DISTANCE)
@pytest.mark.parametrize(
    "mismatch",
    [
        np.where(AT == 0, 0.006, 0.033) + np.abs(noise(1e-3)),  # one step behind by design
        np.minimum(0.006 + 0.008 * AT, 0.03) + np.abs(noise(1e-3)),  # a queue that fills up
        np.linspace(0.008, 0.024, STEPS) + np.abs(noise(1e-3)),  # arithmetic that drifts slowly
        np.linspace(0.03, 0.015, STEPS) + np.abs(noise(1e-3)),  # falls with the entropy
        0.012 + 0.03 * (AT % 20 == 7),  # single steps
        0.01 + np.where((AT > 30) & (AT < 50), 0.03, 0.0),  # comes back
    ],
)
def test_a_distance_that_does_not_begin_to_grow_is_not_called_old_weights(tmp_path, trainer, mismatch):
    assert not sure(tmp_path, rows_of(trainer, mismatch=mismatch))


@pytest.mark.parametrize("trainer", ["TRL", "verl", "slime", "torchtune"])
def test_a_kl_of_exactly_0_in_a_run_that_is_pulled_is_a_reference_that_follows(tmp_path, trainer):
    assert sure(tmp_path, rows_of(trainer, kl=0.0)) == {"KL05"}


@pytest.mark.parametrize("trainer", ["NeMo-RL", "SkyRL", "open-instruct", "no trainer known here"])
def test_where_a_trainer_logs_a_kl_of_0_without_a_reference_it_is_only_possible(tmp_path, trainer):
    assert said(tmp_path, rows_of(trainer, kl=0.0)).get("KL05") is Confidence.POSSIBLE
    assert not sure(tmp_path, rows_of(trainer, kl=0.0))


@pytest.mark.parametrize("trainer", logged(kl=0, gradient=0, rate=0))
def test_gradients_that_move_nothing_break_the_law_of_the_step(tmp_path, trainer):
    assert "LAW07" in sure(tmp_path, rows_of(trainer, **STILL))


@pytest.mark.parametrize("trainer", logged(kl=0, gradient=0, rate=0))
@pytest.mark.parametrize(
    "moves",
    [
        {"kl": 2e-8 * (AT + 1.0) ** 2},  # a small rate: the KL is small and grows
        {"kl": 1e-6 + 4e-4 * (AT % 10)},  # the reference is renewed
        {"reward": 0.3 + 0.004 * AT + noise(0.03)},  # it learns
        {"entropy": np.linspace(0.4, 0.3, STEPS)},
        {"rate": 1e-9 * AT},  # a long warm-up
        {"reward": 0.97 + noise(0.005), "zero_share": 0.95},  # solved
    ],
)
def test_a_run_of_which_something_moves_does_not(tmp_path, trainer, moves):
    if "entropy" in LOGS[trainer].values() or "entropy" not in moves:
        assert "LAW07" not in said(tmp_path, rows_of(trainer, **STILL | moves))


def test_a_resumed_run_on_its_plateau_is_silent(tmp_path):
    rows = [row | {"step": row["step"] + 500} for row in rows_of("TRL", **STILL | {"kl": 0.02 + noise(1e-3)})]
    assert said(tmp_path, rows) == {}


KL = np.geomspace(1e-5, 6.0, STEPS)


@pytest.mark.parametrize("trainer", ["TRL", "NeMo-RL"])
def test_a_loss_that_is_a_negative_multiple_of_the_kl_pays_for_it(tmp_path, trainer):
    found = said(tmp_path, rows_of(trainer, kl=KL, loss=-0.04 * KL + noise(1e-6)))
    assert found["KL01"] is Confidence.LIKELY
    assert "KL01" not in said(tmp_path, rows_of(trainer, kl=KL, loss=0.04 * KL + noise(1e-6)))
    assert "KL01" not in said(tmp_path, rows_of(trainer, kl=KL, loss=-0.01 + noise(5e-3)))


def test_the_part_of_the_loss_beside_the_policy_is_held_against_the_kl(tmp_path):
    def rows(sign):
        given = rows_of("torchtune", kl=KL)
        return [row | {"loss": row["policy_loss"] + sign * 0.01 * row["kl_loss"]} for row in given]

    assert said(tmp_path, rows(-1))["KL01"] is Confidence.LIKELY
    assert "KL01" not in said(tmp_path, rows(1))


NOISY = {"train/probs_ratio": 1.02, "train/probs_ratio_min": 0.04, "train/probs_ratio_max": 18.0}


def with_columns(trainer, columns, **changes):
    wave = 1 + 0.1 * np.sin(AT)
    return [
        row | {name: 1 + (value - 1) * wave[at] if "min" not in name else value for name, value in columns.items()}
        for at, row in enumerate(rows_of(trainer, **changes))
    ]


@pytest.mark.parametrize(
    ("trainer", "columns"),
    [
        ("NeMo-RL", NOISY),
        (
            "AReaL",
            {
                f"ppo_actor/update/importance_weight/{kind}": value
                for kind, value in zip(("avg", "min", "max"), NOISY.values(), strict=True)
            },
        ),
    ],
)
def test_noise_in_the_scoring_raises_the_mean_ratio_from_the_first_step_on(tmp_path, trainer, columns):
    assert sure(tmp_path, with_columns(trainer, columns)) == {"RAT01"}
    moved = {name: 1.0005 if value == 1.02 else value for name, value in columns.items()}  # many updates: wide, mean 1
    assert not sure(tmp_path, with_columns(trainer, moved))
    late = with_columns(trainer, columns)
    late[:10] = rows_of(trainer)[:10]  # a policy that begins to move far is not noise
    assert "RAT01" not in sure(tmp_path, late)


def test_clipping_at_a_rate_of_0_is_not_the_work_of_an_update(tmp_path):
    warm = np.maximum(AT - 3, 0) * 1e-8
    assert "RAT01" in sure(tmp_path, rows_of("TRL", rate=warm, clipped=0.03))
    assert not sure(tmp_path, rows_of("TRL", rate=warm, clipped=np.where(AT < 5, 0.0, 0.03)))


@pytest.mark.parametrize("trainer", ["slime", "SkyRL", "open-instruct", "no trainer known here"])
def test_a_distance_as_large_as_truncation_from_the_first_step_on_is_named(tmp_path, trainer):
    entropy = np.linspace(0.6, 0.4, STEPS)
    found = said(tmp_path, rows_of(trainer, entropy=entropy, mismatch=0.13 * entropy + noise(1e-3)))
    assert found["SAMP06"] is Confidence.LIKELY
    low = said(tmp_path, rows_of(trainer, entropy=entropy, mismatch=0.045 + noise(5e-4)))  # 8 bits, or many experts
    assert low.get("SAMP06") in (None, Confidence.POSSIBLE)


@pytest.mark.parametrize("trainer", LOGS)
def test_short_and_resumed_logs_of_a_sound_run_are_silent(tmp_path, trainer):
    rows = rows_of(trainer)
    assert not sure(tmp_path, rows[:10])
    assert not sure(tmp_path, [row | {"step": row["step"] + 500} for row in rows[40:]])


@pytest.mark.parametrize(
    ("trainer", "mismatch"), [("verl", 0.25), ("NeMo-RL", 0.09), ("OpenRLHF", 0.4), ("prime-rl", 0.6)]
)
def test_other_distances_that_are_large_from_the_first_step_on_are_named(tmp_path, trainer, mismatch):
    assert sure(tmp_path, rows_of(trainer, mismatch=mismatch + noise(0.002))) == {"SAMP06"}
    late = np.where(AT < 2, 0.02, mismatch)  # asynchronous: the first steps are fresh
    assert "SAMP06" not in sure(tmp_path, rows_of(trainer, mismatch=late))


@pytest.mark.parametrize("trainer", ["slime", "SkyRL", "open-instruct", "NeMo-RL", "no trainer known here"])
def test_a_sampler_that_keeps_its_first_weights_is_named(tmp_path, trainer):
    behind = 0.005 + 0.08 * (1 - np.exp(-AT / 60)) + np.abs(noise(3e-4))
    assert "LAW09" in sure(tmp_path, rows_of(trainer, mismatch=behind))


@pytest.mark.parametrize("trainer", ["verl", "OpenRLHF", "slime", "torchtune"])
def test_old_and_new_that_differ_from_the_first_step_on_are_not_scored_alike(tmp_path, trainer):
    assert "RAT01" in sure(tmp_path, rows_of(trainer, signed=0.02 + noise(0.002)))
    assert not sure(tmp_path, rows_of(trainer, signed=np.abs(2e-3 + noise(5e-4))))  # several updates per batch
    assert not sure(tmp_path, rows_of(trainer, signed=np.linspace(1e-4, 0.02, STEPS)))  # ever larger steps


@pytest.mark.parametrize("trainer", ["verl", "torchtune"])
def test_a_kl_that_stays_that_of_one_update_while_the_reward_rises_has_a_reference_that_follows(tmp_path, trainer):
    assert "KL05" in sure(tmp_path, rows_of(trainer, kl=3e-5 + np.abs(noise(5e-6))))
    assert "KL05" not in said(tmp_path, rows_of(trainer, kl=1e-4 * (AT / STEPS) ** 2))
    assert "KL05" not in said(tmp_path, rows_of(trainer, kl=1e-6 + 4e-4 * (AT % 10)))  # renewed on purpose


def test_arguments_beside_the_log_say_that_a_batch_gets_one_update(tmp_path):
    rows = rows_of("TRL", clipped=0.02 + np.abs(noise(0.002)))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = {"num_iterations": 1, "steps_per_generation": 4, "gradient_accumulation_steps": 4}
    found = {}
    for passes in (1, 2):
        (folder / "args.json").write_text(json.dumps(arguments | {"num_iterations": passes}))
        words = diagnose(open_evidence(folder)).findings
        found[passes] = {word.code for word in words if word.confidence is not Confidence.POSSIBLE}
    assert found == {1: {"RAT01"}, 2: set()}


FALLING = 0.6 * np.exp(-AT / 25) + 0.02 + np.abs(noise(0.01))


@pytest.mark.parametrize("trainer", ["TRL", "verl", "OpenRLHF", "slime", "no trainer known here"])
def test_a_reward_that_falls_from_the_first_steps_on_while_the_entropy_rises_is_uphill(tmp_path, trainer):
    assert "LAW07" in sure(tmp_path, rows_of(trainer, reward=FALLING, entropy=0.3 + 0.004 * AT))


@pytest.mark.parametrize("trainer", ["TRL", "verl"])
def test_harder_prompts_make_a_reward_fall_too(tmp_path, trainer):
    """The policy becomes surer all the same, and the reward keeps half of what it had."""
    rewards = np.linspace(0.7, 0.45, STEPS) + noise(0.01)
    assert not sure(tmp_path, rows_of(trainer, reward=rewards, entropy=np.linspace(0.5, 0.3, STEPS)))


@pytest.mark.parametrize("trainer", ["TRL", "verl", "OpenRLHF"])
def test_a_reward_that_loses_most_of_its_height_is_a_collapse(tmp_path, trainer):
    """It stays above the worst one; the entropy leaves its range in the same steps."""
    rewards = np.where(AT < STEPS // 2, 0.3 + 0.4 * AT / STEPS, 0.06) + np.abs(noise(0.01))
    entropy = np.where(AT < STEPS // 2, 0.3, 0.3 + 0.2 * np.minimum(AT - STEPS // 2, 10))
    assert "MET08" in sure(tmp_path, rows_of(trainer, reward=rewards, entropy=entropy))


def beside(trainer, columns):
    return [
        row | {name: float(values[at]) for name, values in columns.items()} for at, row in enumerate(rows_of(trainer))
    ]


def test_prompts_of_the_same_lengths_in_every_step_are_the_same_prompts(tmp_path):
    lengths = {"prompt_length/mean": 110.25, "prompt_length/min": 61.0, "prompt_length/max": 203.0}
    rows = beside("verl", {name: np.full(STEPS, value) for name, value in lengths.items()})
    assert said(tmp_path, rows)["LAW11"] is Confidence.POSSIBLE
    varied = {name: value + (AT < STEPS // 2) * np.sin(AT) for name, value in lengths.items()}
    assert said(tmp_path, beside("verl", varied))["LAW11"] is Confidence.LIKELY
    varied = {name: value + np.sin(AT) for name, value in lengths.items()}
    assert not said(tmp_path, beside("verl", varied))
    assert not said(tmp_path, beside("verl", {name: np.full(STEPS, 64.0) for name in lengths}))


def test_a_rate_that_no_weight_can_follow_is_none(tmp_path):
    assert "OPT02" in sure(tmp_path, rows_of("TRL", rate=1e-11))


LINES = (
    "[2026-10-21 09:14:55] [INFO] Step {step} | loss:0.01 reward={reward} lr: 1e-06",
    '[rank0]: step {step} {{"loss": 0.01, "reward": {reward}, "lr": 1e-06}}',
    "[INFO] {{'loss': 0.01, 'reward': {reward}, 'lr': 1e-06, 'step': {step}}}",
)


@pytest.mark.parametrize("line", LINES)
def test_lines_that_a_launcher_prints_are_read_behind_its_brackets(tmp_path, line):
    path = tmp_path / "train.log"
    begin = "[2026-10-21 09:14:55,120] [INFO] [real_accelerator.py:260:get_accelerator] Setting ds_accelerator\n"
    path.write_text(begin + "".join(line.format(step=step, reward=step / 100) + "\n" for step in range(1, 31)))
    curves = open_evidence(path).curves
    assert curves.need("reward_mean")[0].tolist() == [step / 100 for step in range(1, 31)]
    assert curves.steps.tolist() == list(range(1, 31))
