"""What a large KL, or advantages that are rounding alone, hide is not taken for a fault."""

import numpy as np

from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.illnesses.ratio import clip_inverted, inverted
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.loss import aggregation_of, weights
from assay.doctor.recompute.terms import gradient_parts, loss_settings
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
    verdict = clip_inverted.check_batch(edit_batch(sound, gradients=gradients_BT, token_loss=None))
    assert verdict.state is not State.FINDING


def test_advantages_that_are_rounding_alone_have_no_sign():
    batch = healthy_batch(update=1, kl_coef=0.0, kl=None, kl_loss=None, kl_mean=None)

    def verdict(rewards_B):
        gradients_BT = np.where(batch.arrays["mask"], 3e-4, 0.0)  # of the sign of A
        advantages = np.full(batch.arrays["advantages"].shape, 3e-4)
        changes = {"gradients": gradients_BT, "advantages": advantages, "rewards": rewards_B, "ratio": None}
        return inverted._by_gradient(edit_batch(batch, **changes))

    assert verdict(np.full(batch.arrays["rewards"].shape, 0.3)).state is State.NOT_APPLICABLE
    assert verdict(batch.arrays["rewards"]).state is State.FINDING


def test_what_is_left_of_a_misjudged_kl_has_no_sign():
    batch = healthy_batch(update=1, kl_coef=0.04)
    mask_BT = batch.arrays["mask"]
    _, kl_BT = gradient_parts(batch, weights(batch, aggregation_of(batch)), loss_settings(batch))
    sign_BT = np.sign(np.where(mask_BT, batch.token_advantages, 0.0))
    gradients_BT = kl_BT + sign_BT * 0.2 * np.abs(kl_BT)
    assert inverted._by_gradient(edit_batch(batch, gradients=gradients_BT)).state is not State.FINDING
