"""A difference of log-probs in the place of the ratio: the same gradient in one update, another one in several."""

import numpy as np
import pytest
from doctor.illnesses.read_script import codes_in
from doctor.illnesses.small_trainer import trainer

from assay.doctor.catalogue import by_code
from assay.doctor.examples import edit_batch, healthy_batch
from assay.verdict import State

CODES = ("RAT01", "RAT02", "RAT03", "RAT04", "RAT08", "CLIP01", "CLIP02", "LOSS01")
OLD = "with torch.no_grad():\n    old = logprobs_of(model, ids, start)\n"
STEP = "opt.zero_grad()\nloss.backward()\nopt.step()"
MEAN = "loss = -({} * mask).sum() / mask.sum()\n"
COPY = "ratio = new - new.detach()\n"
ONCE = {
    "its own copy": COPY + MEAN.format("ratio * adv[:, None]"),
    "old log-probs": OLD + "ratio = new - old\n" + MEAN.format("ratio * adv[:, None]"),
    "clamped around 0": COPY
    + "gain = torch.min(ratio * adv[:, None], ratio.clamp(-0.2, 0.2) * adv[:, None])\n"
    + MEAN.format("gain"),
    "summed over the row": "ratio = ((new - new.detach()) * mask).sum(1)\nloss = -(ratio * adv).mean()\n",
    "one added": "ratio = 1 + new - new.detach()\n" + MEAN.format("ratio * adv[:, None]"),
    "masked first": "ratio = (new - new.detach()) * mask\nloss = -(ratio * adv[:, None]).sum() / mask.sum()\n",
    "its exp": "ratio = torch.exp(new - new.detach())\n" + MEAN.format("ratio * adv[:, None]"),
    "log-probs": MEAN.format("new * adv[:, None]"),
}
SEVERAL = {
    "old log-probs": "ratio = new - old\n" + MEAN.format("ratio * adv[:, None]"),
    "its own copy": COPY + MEAN.format("ratio * adv[:, None]"),
    "masked first": "ratio = (new - old) * mask\nloss = -(ratio * adv[:, None]).sum() / mask.sum()\n",
    "clamped around 1": "ratio = new - old\n"
    "gain = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])\n" + MEAN.format("gain"),
}


@pytest.mark.parametrize("form", ONCE)
def test_a_log_ratio_of_one_update_is_silent(form, tmp_path):
    update = f"new = logprobs_of(model, ids, start)\n{ONCE[form]}{STEP}"
    assert codes_in(trainer(None, None, update), tmp_path, CODES) == set()


@pytest.mark.parametrize("form", SEVERAL)
def test_a_log_ratio_of_several_updates_is_named(form, tmp_path):
    body = f"new = logprobs_of(model, ids, start)\n{SEVERAL[form]}{STEP}".replace("\n", "\n    ")
    text = trainer(None, None, f"{OLD}for epoch in range(4):\n    {body}")
    assert "RAT08" in codes_in(text, tmp_path, CODES)


def test_a_log_ratio_of_mini_batches_is_named(tmp_path):
    body = (
        "new = logprobs_of(model, ids[rows], start)\nratio = new - old[rows]\n"
        f"loss = -(ratio * adv[rows, None] * mask[rows]).sum() / mask.sum()\n{STEP}"
    ).replace("\n", "\n    ")
    text = trainer(None, None, f"{OLD}for rows in torch.randperm(P * G).split(8):\n    {body}")
    assert codes_in(text, tmp_path, CODES) == {"RAT08"}


def test_a_log_ratio_clamped_around_1_is_named_in_one_update_too(tmp_path):
    body = COPY + "gain = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])\n" + MEAN.format("gain")
    text = trainer(None, None, f"new = logprobs_of(model, ids, start)\n{body}{STEP}")
    assert codes_in(text, tmp_path, CODES) == {"RAT08"}


def test_a_batch_with_a_log_ratio_of_0_and_the_pull_of_a_sound_loss_is_left_alone():
    batch = healthy_batch()
    zeros_BT = np.zeros_like(batch.arrays["new_logprobs"])
    same = edit_batch(batch, old_logprobs=batch.arrays["new_logprobs"], ratio=zeros_BT)
    turned = edit_batch(same, gradients=-batch.arrays["gradients"])
    check = by_code("RAT04").batch
    assert check(same).state is not State.FINDING
    assert check(turned).state is State.FINDING


KEPT = {
    "in a list": ("kept = []\n", "if epoch == 0:\n    kept.append(new.detach())\nold = kept[0]\n"),
    "in a name": ("old = None\n", "if old is None:\n    old = new.detach()\n"),
    "in a dictionary": ("kept = {}\n", "if epoch == 0:\n    kept['old'] = new.detach()\nold = kept['old']\n"),
    "by a condition": ("old = None\n", "old = new.detach() if epoch == 0 else old\n"),
}


@pytest.mark.parametrize("form", KEPT)
def test_a_copy_that_is_made_in_the_first_turn_alone_is_old(form, tmp_path):
    before, within = KEPT[form]
    loss = "ratio = torch.exp(new - old)\n" + MEAN.format("ratio * adv[:, None]")
    body = f"new = logprobs_of(model, ids, start)\n{within}{loss}{STEP}".replace("\n", "\n    ")
    text = trainer(None, None, f"{before}for epoch in range(4):\n    {body}")
    assert codes_in(text, tmp_path, CODES) == set()
