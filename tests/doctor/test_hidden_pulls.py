"""What a large KL, or advantages that are rounding alone, hide is not taken for a fault."""

import numpy as np

from assay.doctor.examples import edited, healthy_batch
from assay.doctor.illnesses import clip_inverted, inverted
from assay.doctor.recompute.consistent import consistent
from assay.verdict import State


def moved(**settings):
    """A later update: some tokens have left the clip range on either side."""
    batch = healthy_batch(update=1, **settings)
    old_BT, new_BT = batch.arrays["old_logprobs"], batch.arrays["new_logprobs"]
    row_BT, column_BT = np.indices(old_BT.shape)
    out_BT = ((row_BT + column_BT) % 8 == 0) & (old_BT < -0.7)
    new_BT = new_BT + np.where(out_BT, np.where(column_BT % 2 == 0, 0.35, -0.35), 0.0)
    return batch, out_BT, new_BT


def test_tokens_at_which_the_kl_outweighs_the_policy_term_are_no_proof_against_the_clip():
    batch, out_BT, new_BT = moved(kl_coef=0.04)
    ref_BT = np.where(out_BT, new_BT + 14.0, new_BT)  # exp(14) times 0.04: rounding of it hides an advantage
    sound = consistent(batch, new_logprobs=new_BT, ref_logprobs=ref_BT)
    gradients_BT = sound.arrays["gradients"].astype(np.float32).astype(np.float64)
    verdict = clip_inverted.check_batch(edited(sound, gradients=gradients_BT, token_loss=None))
    assert verdict.state is not State.FINDING


def test_advantages_that_are_rounding_alone_have_no_sign():
    batch = healthy_batch(update=1, kl_coef=0.0, kl=None, kl_loss=None, kl_mean=None)
    advantages = np.full(batch.arrays["advantages"].shape, 3e-4)
    rewards_B = np.full(batch.arrays["rewards"].shape, 0.3)
    sound = consistent(batch, advantages=advantages, rewards=rewards_B)
    turned = edited(sound, gradients=-sound.arrays["gradients"], ratio=None)
    assert inverted._by_gradient(turned).state is State.NOT_APPLICABLE
    larger = edited(turned, advantages=1e3 * advantages)
    assert inverted._by_gradient(larger).state is State.FINDING
