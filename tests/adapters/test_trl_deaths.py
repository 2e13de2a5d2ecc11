"""The plainest deaths of a TRL run are printed in its first steps, and a slow beginning is not called one."""

import pytest
import torch

pytest.importorskip("trl")

from adapters.tiny_trl import Models, fresh, quietly

from assay.adapters.trl import attach
from assay.verdict import Confidence


@pytest.fixture(scope="module")
def models(run_root):
    quietly()
    return Models(fresh(run_root))


def with_schedule(trainer, rate, factor):
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=rate)
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: factor)


def constant(completions, **others):
    return [0.0] * len(completions)


def printed(trainer, caplog):
    """Codes of the findings that were printed."""
    doctor = attach(trainer)
    trainer.train()
    sure = [word.code for word in doctor.findings if word.confidence is not Confidence.POSSIBLE]
    assert all(f"assay: {code}" in caplog.text for code in sure[:1])
    return sure


@pytest.mark.parametrize(("rate", "factor", "code"), [(1e-2, 0.0, "OPT02"), (5.0, 1.0, "HYP01")])
def test_the_rate_of_the_optimizer_is_judged_whoever_made_it(models, caplog, rate, factor, code):
    trainer = models.trainer(max_steps=4)
    with_schedule(trainer, rate, factor)
    assert printed(trainer, caplog)[0] == code


def test_a_rate_of_zero_is_named_at_once(models, caplog):
    assert printed(models.trainer(max_steps=1, learning_rate=0.0), caplog) == ["HYP01"]


def test_a_reward_that_never_varies_is_named(models, caplog):
    assert printed(models.trainer(max_steps=8, rewards=constant), caplog) == ["REW01"]


def test_a_long_warm_up_at_a_usual_rate_is_left_in_peace(models, caplog):
    settings = {"learning_rate": 1e-6, "warmup_steps": 100, "lr_scheduler_type": "linear"}
    assert printed(models.trainer(max_steps=5, **settings), caplog) == []
