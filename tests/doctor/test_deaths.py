"""The plainest deaths of a run, in curves, logs and observed batches, and healthy runs that look like them."""

import json

import numpy as np
import pytest

import assay
from assay import observation
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.open import open_evidence
from assay.doctor.examples import healthy_curves, of_curves
from assay.verdict import Confidence, State

NAN = float("nan")


def first(curves):
    """(code, confidence) of the first finding above possible; None if there is none."""
    sure = [word for word in diagnose(of_curves(curves)).findings if word.confidence is not Confidence.POSSIBLE]
    return (sure[0].code, sure[0].confidence) if sure else None


def log(tmp_path, **columns):
    """The first finding above possible in a log, and what every check says."""
    steps = max(np.size(column) for column in columns.values())
    rows = [
        {"step": step + 1, **{name: float(np.broadcast_to(column, steps)[step]) for name, column in columns.items()}}
        for step in range(steps)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnose(open_evidence(path))
    assert not diagnosis.of(State.CRASHED)
    sure = [word.code for word in diagnosis.findings if word.confidence is not Confidence.POSSIBLE]
    return sure[0] if sure else None, diagnosis


def wave(steps, level=0.4, size=0.1):
    return level + size * np.sin(1.7 * np.arange(steps)) * np.cos(0.3 * np.arange(steps))


def a_trl_log(steps=30, **changes):
    learning = {
        "loss": wave(steps, 0.0, 0.01234), "reward": wave(steps), "reward_std": 0.31, "grad_norm": wave(steps, 0.5123),
        "frac_reward_zero_std": 0.25, "completions/clipped_ratio": 0.04, "entropy": 0.61, "learning_rate": 1e-6,
        "kl": 0.001,
    }  # fmt: skip
    return {**learning, **changes}


def a_verl_log(steps=30, **changes):
    learning = {
        "actor/pg_loss": wave(steps, 0.0, 0.01234), "critic/rewards/mean": wave(steps), "critic/rewards/min": 0.0,
        "critic/rewards/max": 1.0, "critic/advantages/min": -1.7, "critic/advantages/max": 1.9, "actor/entropy": 0.61,
        "actor/grad_norm": wave(steps, 0.5123), "actor/lr": 1e-6, "response_length/clip_ratio": 0.04,
        "actor/pg_clipfrac": 0.003,
    }  # fmt: skip
    return {**learning, **changes}


def from_step(step, value, column):
    return np.where(np.arange(len(column)) + 1 >= step, value, column)


# what kills a run


@pytest.mark.parametrize("steps", [5, 12, 60])
@pytest.mark.parametrize(
    ("code", "columns"),
    [
        ("OPT02", {"learning_rate": 0.0}),
        ("MET05", {"gradient_norm": 0.0}),
        ("REW01", {"reward_mean": 0.0, "reward_std": 0.0, "reward_max": 0.0, "zero_variance_share": 1.0}),
        ("REW01", {"reward_mean": 1.0, "reward_std": 0.0, "reward_min": 1.0, "zero_variance_share": 1.0}),
        ("REW01", {"reward_mean": 0.5, "reward_std": 0.0, "zero_variance_share": 1.0}),
        ("MET03", {"truncated_share": 1.0, "reward_mean": 0.0, "reward_std": 0.0, "zero_variance_share": 1.0}),
        ("NUM03", {"loss": NAN, "gradient_norm": NAN}),
        ("NUM03", {"updates_skipped": 2, "updates_applied": 0, "loss": None}),
        ("OPT02", {"tensors_changed_share": 0.0}),
    ],
)
def test_a_death_from_the_first_step_on_is_named_first_and_aloud(code, columns, steps):
    assert first(healthy_curves(steps=steps, **columns))[0] == code


def test_a_loss_that_is_nan_from_some_step_on_is_proven_and_nothing_is_called_finite(tmp_path):
    steps = np.arange(1, 31)
    broken = {name: np.where(steps >= 25, NAN, 0.1234) for name in ("loss", "grad_norm", "entropy")}
    code, diagnosis = log(tmp_path, **a_trl_log(**broken))
    assert code == "NUM03"
    assert diagnosis.findings[0].confidence is Confidence.PROVEN
    assert "from step 25 on" in diagnosis.findings[0].verdict.message
    assert not any("steady and finite" in word.verdict.message for word in diagnosis.words)


@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_a_gradient_that_is_never_finite_is_named(tmp_path, value):
    code, diagnosis = log(tmp_path, **a_trl_log(grad_norm=value))
    assert code == "NUM03"
    assert not any("steady and finite" in word.verdict.message for word in diagnosis.words)


@pytest.mark.parametrize("step", [2, 11, 20])
def test_a_reward_that_falls_to_zero_for_good_is_named(tmp_path, step):
    assert first(healthy_curves(steps=30, reward_mean=from_step(step, 0.0, wave(30))))[0] == "MET08"
    assert log(tmp_path, **a_trl_log(reward=from_step(step, 0.0, wave(30))))[0] == "MET08"
    assert log(tmp_path, **a_verl_log(**{"critic/rewards/mean": from_step(step, 0.0, wave(30))}))[0] == "MET08"


@pytest.mark.parametrize("entropy", [0.001, 9.5])
def test_a_policy_that_is_lost_in_one_update_is_named_at_the_fourth_step(entropy):
    entropies = [1.0, entropy, entropy, entropy]
    assert first(healthy_curves(steps=4, entropy=entropies, reward_mean=[0.4, 0.1, 0.0, 0.0]))[0] == "MET08"


@pytest.mark.parametrize(("rate", "size"), [(5.0, 135e6), (0.1, 135e6), (5.0, 84e3), (0.0, 135e6)])
def test_a_rate_that_no_model_survives_is_named(rate, size):
    settings = {"learning_rate": rate, "parameters": int(size), "lora_rank": 0}
    assert first(healthy_curves(steps=3, settings=settings)) == ("HYP01", Confidence.LIKELY)


def test_a_schedule_that_ends_too_early_is_named(tmp_path):
    rates = np.maximum(1e-6 * (1 - np.arange(30) / 20), 0.0)
    assert log(tmp_path, **a_trl_log(learning_rate=rates))[0] == "OPT02"


def test_a_mismatch_that_grows_is_not_corrected_by_weights(tmp_path):
    mismatch = np.geomspace(0.012, 0.41, 30)
    drifting = {
        "sampling/sampling_logp_difference/mean": mismatch,
        "sampling/sampling_logp_difference/max": 4 * mismatch,
        "sampling/importance_sampling_ratio/mean": 0.9,
    }
    assert log(tmp_path, **a_trl_log(**drifting))[0] in ("SAMP06", "SYNC01")


def test_a_share_of_clipped_tokens_that_grows_is_named(tmp_path):
    clipped = np.geomspace(0.01, 0.61, 30)
    assert log(tmp_path, **a_trl_log(**{"clip_ratio/region_mean": clipped}))[0] == "MET02"
    assert log(tmp_path, **a_verl_log(**{"actor/pg_clipfrac": clipped}))[0] == "MET02"


def test_advantages_of_one_sign_or_beyond_all_bounds_are_named_in_a_log_of_verl(tmp_path):
    assert log(tmp_path, **a_verl_log(**{"critic/advantages/min": 0.0}))[0] == "ADV03"
    _, diagnosis = log(tmp_path, **a_verl_log(**{"critic/advantages/max": 4e3}))
    assert "ADV04" in [word.code for word in diagnosis.findings]


def test_a_log_of_verl_whose_rewards_never_vary_is_named(tmp_path):
    flat = {"critic/rewards/mean": 0.0, "critic/rewards/max": 0.0, "critic/advantages/min": 0.0}
    code, _ = log(tmp_path, **a_verl_log(**{**flat, "critic/advantages/max": 0.0, "actor/grad_norm": 0.0}))
    assert code == "REW01"


# what looks like it and is healthy


@pytest.mark.parametrize(
    "columns",
    [
        {"learning_rate": np.minimum(np.arange(30) / 10, 1.0) * 1e-6},  # a warm-up begins at 0
        {"learning_rate": 1e-6 * np.linspace(1, 0, 30)},  # and many schedules end there
        {"gradient_norm": np.where(np.arange(30) % 3 == 0, 0.0, 0.5)},
        {"gradient_norm": [NAN] * 3 + [0.5] * 27},  # a scaler finds its scale
        {
            "reward_mean": np.where(np.arange(30) < 8, 0.0, wave(30)),
            "reward_std": np.where(np.arange(30) < 8, 0.0, 0.3),
        },
        {"reward_mean": np.minimum(np.linspace(0.2, 1.5, 30), 1.0), "reward_std": np.linspace(0.4, 0.0, 30)},
        {"reward_mean": np.where(np.arange(30) % 4 == 3, 0.0, 0.2)},
        {"truncated_share": 1.0, "reward_mean": np.linspace(0.1, 0.8, 30)},  # answers of a fixed length
        {"entropy": np.geomspace(1.0, 0.02, 30), "reward_mean": np.linspace(0.3, 0.95, 30)},
        {"entropy": [1.0, *[0.01] * 29], "reward_mean": [0.2, *[0.97] * 29]},  # solved in one step
        {"mismatch_mean": np.linspace(0.02, 0.05, 30), "mismatch_max": 0.4},
        {"clipped_share": 0.2},
        {"tensors_changed_share": 0.8, "learning_rate": 5e-8},  # weights near 1 cannot move by it
    ],
)
def test_healthy_curves_that_look_like_a_death_are_not_called_one(columns):
    settings = {"dtype": "bfloat16"} if "mismatch_mean" in columns else {}
    assert first(healthy_curves(steps=30, settings=settings, **columns)) is None


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_a_step_or_two_is_not_judged(steps):
    assert first(healthy_curves(steps=steps, reward_mean=0.0, reward_std=0.0, learning_rate=0.0)) is None


def test_a_constant_reward_is_solved_if_an_evaluation_says_so():
    curves = healthy_curves(reward_mean=1.0, reward_std=0.0, reward_min=1.0, zero_variance_share=1.0, gradient_norm=0.0)
    evaluated = type(curves)(curves.rows, (), [{"step": 60, "pass_at_1": 0.98}], (), curves.settings)
    assert first(curves)[0] == "REW01"
    assert first(evaluated) is None


def test_few_rows_without_a_right_answer_are_only_possible():
    curves = healthy_curves(steps=6, rollouts_scored=8, reward_mean=0.0, reward_std=0.0, zero_variance_share=1.0)
    assert first(curves) is None


def test_a_rate_that_was_rounded_to_three_decimals_is_not_zero(tmp_path):
    path = tmp_path / "out.log"
    lines = [
        f"step:{step} - actor/lr:0.000 - actor/grad_norm:0.{step % 9}12 - critic/rewards/mean:0.{300 + step % 13} "
        f"- critic/rewards/min:0.000 - critic/rewards/max:1.000 - actor/entropy:0.6{step % 7}1"
        for step in range(1, 31)
    ]
    path.write_text("\n".join(lines))
    diagnosis = diagnose(open_evidence(path))
    assert not [word for word in diagnosis.findings if word.confidence is not Confidence.POSSIBLE]
    assert any("three decimals" in note for note in diagnosis.notes)


@pytest.mark.parametrize("make", [a_trl_log, a_verl_log])
def test_a_log_of_a_learning_run_is_silent(tmp_path, make):
    assert log(tmp_path, **make())[1].findings == []


# observed batches


def observed(*, steps=8, rewards=None, **fields):
    """(code, confidence) of the findings after some steps of a loop that observes itself."""
    observation._doctor.cache_clear()
    random = np.random.default_rng(0)
    for step in range(1, steps + 1):
        rewards_B = random.integers(0, 2, 16).astype(float) if rewards is None else np.full(16, rewards)
        advantages_B = rewards_B - rewards_B.reshape(4, 4).mean(axis=1).repeat(4)
        diagnosis = assay.observe(
            step=step,
            update=0,
            tokens=random.integers(0, 99, (16, 6)),
            mask=np.ones((16, 6), dtype=bool),
            new_logprobs=-np.ones((16, 6)),
            old_logprobs=-np.ones((16, 6)),
            advantages=advantages_B,
            rewards=rewards_B,
            group_ids=np.arange(16) // 4,
            **fields,
        )
    observation._doctor.cache_clear()
    return [word.code for word in diagnosis.findings if word.confidence is not Confidence.POSSIBLE]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("REW01", {"rewards": 0.0}),
        ("REW01", {"rewards": 1.0}),
        ("NUM03", {"loss": NAN}),
        ("OPT02", {"learning_rate": 0.0}),
        ("OPT02", {"gradient_norm": 0.0}),
        ("MET03", {"rewards": 0.0, "finished": np.zeros(16, dtype=bool)}),
    ],
)
def test_a_loop_that_observes_itself_hears_of_its_death(capsys, code, fields):
    assert observed(**fields)[0] == code
    assert f"assay: {code}" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [{}, {"learning_rate": 1e-6, "loss": 0.01, "gradient_norm": 0.4}])
def test_a_loop_that_learns_is_left_in_peace(fields):
    assert observed(**fields) == []
