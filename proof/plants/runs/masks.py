"""Plants of illnesses of masks: each makes a real run of the real trainer ill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch
from proof.plants.plant import Plant

LOSS = "assay.train.step.learner.policy_loss"
MICROBATCH = "assay.train.step.pack._microbatch"


def _mask_by_value(original, samples, rows, packing):
    """Padding has the id of EOS, and the mask is `tokens != pad`."""
    batch = original(samples, rows, packing)
    mask_BT = batch.mask_BT.clone()
    for row, number in enumerate(rows):
        rollout = samples[number].rollout
        if rollout.stop == "eos":
            mask_BT[row] &= batch.inputs.targets_BT[row] != rollout.tokens[-1]
    return replace(batch, mask_BT=mask_BT)


def _mask_of_ones(original, samples, rows, packing):
    """The mask covers the padded width of the batch."""
    batch = original(samples, rows, packing)
    return replace(batch, mask_BT=batch.mask_BT.any(dim=1, keepdim=True).expand_as(batch.mask_BT).clone())


def _whole_sequences(original, samples, config, step, policy):
    """Everything but the first token of a sequence is a target, the prompt included."""
    whole = []
    for sample in samples:
        first, *rest = sample.prompt.tokens
        rollout = replace(
            sample.rollout,
            tokens=(*rest, *sample.rollout.tokens),
            sampler_logprobs=(*[float("nan")] * len(rest), *sample.rollout.sampler_logprobs),
        )
        whole.append(replace(sample, prompt=replace(sample.prompt, tokens=(first,)), rollout=rollout))
    return original(whole, config, step, policy)


def _divided_by_the_width(original, *, mask_BT, totals, **how):
    """(loss * mask).mean() in the place of a mean over loss tokens."""
    loss = original(mask_BT=mask_BT, totals=totals, **how)
    share = totals.share_of_rollout_tokens / mask_BT.numel()
    return replace(loss, total=loss.total * share, policy=loss.policy * share, kl=loss.kl * share)


def _tool_in_the_middle(batch: Batch) -> Batch:
    """This trainer has no tools: a token of every row is marked as the output of one."""
    forced_BT = np.zeros(batch.arrays["mask"].shape, dtype=bool)
    forced_BT[:, 1] = True
    return edit_batch(batch, forced=forced_BT)


def _rows_divided_by_their_counts(original, *, mask_BT, **how):
    """A mean over each row's tokens, then over rows; a row without tokens is 0 / 0."""
    loss = original(mask_BT=mask_BT, **how)
    counts_B = mask_BT.sum(dim=1)
    return replace(loss, total=loss.total * (counts_B / counts_B).mean())


def _centred_over_padding(original, *, advantages_BT, **how):
    """Advantages are centred once more before the loss, over padding too; NaN is an unscored row and left out."""
    return original(advantages_BT=advantages_BT - advantages_BT.mean(), **how)


def _mask_after_exp(original, *, new_BT, old_BT, mask_BT, **how):
    """exp(new - old) * mask, with whatever stands under the mask."""
    loss = original(new_BT=new_BT, old_BT=old_BT, mask_BT=mask_BT, **how)
    ratio_BT = (new_BT - old_BT).exp() * mask_BT
    return replace(loss, total=loss.total + (ratio_BT - ratio_BT.detach()).sum() * 1e-9)


PLANTS: dict[str, Plant] = {
    "MASK01": Plant(replaces={MICROBATCH: _mask_by_value}),
    "MASK02": Plant(replaces={MICROBATCH: _mask_of_ones}),
    "MASK03": Plant(replaces={"assay.train.step.verbs.pack_step": _whole_sequences}),
    "MASK04": Plant(replaces={LOSS: _divided_by_the_width}),
    "MASK05": Plant(edits=_tool_in_the_middle),
    "MASK06": Plant(
        settings=("rollout.truncated=mask", "rollout.max_tokens=5"),
        replaces={LOSS: _rows_divided_by_their_counts},
    ),
    "MASK07": Plant(replaces={LOSS: _centred_over_padding}),
    "MASK08": Plant(replaces={LOSS: _mask_after_exp}),
}
