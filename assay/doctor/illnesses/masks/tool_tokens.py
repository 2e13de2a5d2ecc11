"""
## What it checks
Tokens that the policy did not sample are not in the loss: tool output, text of a template between turns, an EOS that
the trainer added to an answer that was cut off. They are marked in `forced`; an added EOS is also seen without, as an
EOS one column behind the last sampled token of a row that is not finished.

## Why it hurts
The policy gradient is about decisions of the policy. A forced token is none: to raise or lower its probability teaches
the policy to imitate its tools, and its ratio and KL measure nothing.

## How to fix it
Write the mask while the sequence is put together: 1 where the policy spoke, 0 where anybody else did.

    # before: everything after the prompt is trained
    mask = torch.ones(len(answer_ids) + len(tool_ids))
    # after
    mask = torch.cat([torch.ones(len(answer_ids)), torch.zeros(len(tool_ids))])

## When it is wrong
If tool output is trained on purpose (as supervised text), it needs a loss of its own, without advantages. A mistake in
`forced` itself shows as log-probs of the sampler on tokens that are marked as forced.
"""

from __future__ import annotations

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import healthy_batch, of_batch
from assay.doctor.recompute.consistent import consistent
from assay.record.batch import Array
from assay.verdict import Fact, Missing, Severity, Verdict, finding, healthy, not_applicable


def check_batch(batch: Batch) -> Verdict:
    tokens_BT, mask_BT = batch.need("tokens", "mask")
    forced_BT, added_BT = batch.get("forced"), _added_eos(batch, tokens_BT)
    if forced_BT is None and added_BT is None:
        raise Missing("forced")
    foreign_BT = np.logical_or.reduce([part_BT for part_BT in (forced_BT, added_BT) if part_BT is not None])
    trained_BT = mask_BT & foreign_BT
    count, rows = int(trained_BT.sum()), int(trained_BT.any(axis=1).sum())
    if not foreign_BT.any():
        if forced_BT is None:
            raise Missing("forced")  # rows without an added EOS may still hold the words of a tool
        return not_applicable("every token was sampled by the policy")
    if count == 0:
        return healthy("no forced token is in the loss", Fact("forced tokens", int(foreign_BT.sum())))
    row, token = np.argwhere(trained_BT)[0]
    what = "tokens that the policy did not sample"
    if added_BT is not None and bool((added_BT >= trained_BT).all()):
        what = "EOS tokens that were added to cut-off answers"
    return finding(
        f"{count} {what} are in the loss, in {rows} of {len(mask_BT)} rows",
        Fact("forced tokens in the loss", count, 0, batch.step, int(row), int(token)),
        Fact("as a share of all loss tokens", count / int(mask_BT.sum())),
    )


def _added_eos(batch: Batch, tokens_BT: Array) -> Array | None:
    """An EOS right behind the last sampled token of a row that did not end; None if the evidence does not show it."""
    lengths_B, finished_B = batch.get("lengths"), batch.get("finished")
    if lengths_B is None or finished_B is None or "eos_ids" not in batch.settings:
        return None
    is_eos_BT = np.isin(tokens_BT, np.asarray(batch.setting("eos_ids")))
    behind_BT = np.arange(tokens_BT.shape[1]) == lengths_B[:, None]
    return np.asarray(behind_BT & is_eos_BT & ~finished_B[:, None])


def _example(*, trained: bool) -> Evidence:
    """Two tokens in the middle of a few rows come from a tool."""
    batch = healthy_batch()
    forced_BT = np.zeros(batch.arrays["mask"].shape, dtype=bool)
    forced_BT[[2, 6, 11], 1:3] = True
    mask_BT = batch.arrays["mask"] & (trained | ~forced_BT)
    return of_batch(consistent(batch, forced=forced_BT, mask=mask_BT))


ILLNESS = illness(
    __name__,
    code="MASK05",
    severity=Severity.HARMFUL,
    summary="tokens that the policy did not sample are in the loss",
    fix="Set the mask to 0 on tool output, template text and added EOS while the sequence is put together.",
    symptoms=(
        "tool output is trained",
        "observation tokens are in the loss",
        "multi-turn: environment tokens in the loss",
    ),
    sick=lambda: _example(trained=True),
    well=lambda: _example(trained=False),
    explains=frozenset({"RAT07", "SAMP06"}),
)
