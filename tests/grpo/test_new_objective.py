"""A new objective is one registered function: config, trainer and doctor know it without another edit."""

from contextlib import contextmanager
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from fixtures.commands import TINY
from fixtures.small_models import PROMPTS, bigram

from assay import grpo
from assay.config import ConfigError, LossConfig, load, to_toml
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.run_directory import read_run
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.live import LiveDoctor
from assay.doctor.recompute import gradients, loss, nearest_loss, nearest_ratio
from assay.doctor.recompute.loss import aggregation_of, weights
from assay.doctor.recompute.terms import totals
from assay.record.batch import Batch
from assay.train.run import run
from assay.train.watch import DoctorStop
from assay.verdict import State


def simple(ratio_BT, advantages_BT, new_BT, settings):
    """Simple Policy Optimization (arXiv 2401.16025): -(r A - |A| (r - 1)^2 / (2 epsilon))."""
    penalty_BT = advantages_BT.abs() * (ratio_BT - 1).square() / (2 * settings.clip_high)
    return penalty_BT - ratio_BT * advantages_BT, ratio_BT.isnan()


def weighted(ratio_BT, advantages_BT, new_BT, settings):
    """-sg(r) A log new: off-policy REINFORCE."""
    return -ratio_BT.detach() * advantages_BT * new_BT, ratio_BT.isnan()


TOYS = {
    "by token": (simple, {"level": "token", "aggregation": "token_mean", "settings": ("clip_high",)}),
    "by sequence": (simple, {"level": "sequence", "aggregation": "sequence_mean", "settings": ("clip_high",)}),
    "by log-prob": (weighted, {"level": "token", "aggregation": "constant", "detached": True}),
    "by log-prob, sequence": (weighted, {"level": "sequence", "aggregation": "token_mean", "detached": True}),
}


@contextmanager
def registered(kind):
    term, facts = TOYS[kind]
    grpo.objective("toy", **facts)(term)
    try:
        yield
    finally:
        del grpo.OBJECTIVES["toy"]


def test_the_config_knows_it():
    with registered("by token"):
        config = load(None, ["loss.objective=toy"])
        assert config.loss.objective == "toy"
        assert "| sapo | toy)" in to_toml(config, meanings=True)
        assert Batch.of({"objective": "toy"}).setting("objective") == "toy"
        with pytest.raises(ConfigError, match="did you mean 'toy'"):
            load(None, ["loss.objective=toyy"])
    with pytest.raises(ConfigError, match=r"loss\.objective = 'toy' is not one of grpo, "):
        load(None, ["loss.objective=toy"])


@pytest.mark.parametrize("kind", TOYS)
def test_the_trainer_class_trains_with_it(kind):
    with registered(kind):
        history = bigram(objective="toy", epochs=2).train(PROMPTS, steps=2)
    assert [stats["skipped"] for stats in history] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["by token", "by log-prob, sequence"])
def test_a_run_with_it_is_recomputed_and_found_healthy(kind, tmp_path):
    with registered(kind):
        config = load(None, [*(f"{name}={value}" for name, value in TINY.items()), "loss.objective=toy"])
        path, said = tmp_path / "run", []
        assert run.start(config, path, LiveDoctor("strict", said.append, path, stop=DoctorStop)) == 0
        diagnosis = diagnose(read_run(path))
    assert [word.code for word in diagnosis.findings if word.level == "error"] == []
    assert "LOSS06" in [word.code for word in diagnosis.of(State.HEALTHY)], "the loss was recomputed"


@pytest.mark.parametrize("kind", TOYS)
def test_the_doctor_recomputes_its_loss_and_gradient(kind):
    with registered(kind):
        settings = LossConfig(objective="toy", kl_coef=0.05, clip_high=0.1)
        batch = edit_batch(healthy_batch(update=1), **asdict(settings), aggregation=None, loss=None, ratio=None)
        arrays = {name: torch.tensor(values) for name, values in batch.arrays.items()}
        new_BT = arrays["new_logprobs"].requires_grad_(True)
        expected = grpo.policy_loss(
            new_BT=new_BT,
            old_BT=arrays["old_logprobs"],
            ref_BT=arrays["ref_logprobs"],
            advantages_BT=torch.tensor(batch.token_advantages.copy()),
            mask_BT=arrays["mask"],
            totals=totals(batch),
            settings=settings,
        )
        expected.total.backward()
        assert loss(batch) == pytest.approx(expected.total.item(), rel=1e-10)
        found_BT = gradients(batch, weights(batch, aggregation_of(batch)))
        gradient_BT = np.where(batch.arrays["mask"], new_BT.grad.numpy(), 0.0)
        np.testing.assert_allclose(found_BT, gradient_BT, atol=1e-9)
        known = edit_batch(batch, loss=expected.total.item(), ratio=expected.ratio_BT.numpy())
        assert nearest_loss(known).is_configured
        assert nearest_ratio(known).is_configured
        other = grpo.policy_loss(
            new_BT=new_BT.detach(),
            old_BT=arrays["old_logprobs"],
            ref_BT=arrays["ref_logprobs"],
            advantages_BT=torch.tensor(batch.token_advantages.copy()),
            mask_BT=arrays["mask"],
            totals=totals(batch),
            settings=replace(settings, objective="sapo"),
        )
        assert not nearest_loss(edit_batch(batch, loss=other.total.item())).is_configured
