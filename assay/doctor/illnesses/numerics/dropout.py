"""
## What it checks
Whether the trainer's own scoring, repeated on the same weights and the same input, gives the same log-probs; and
whether dropout modules were active in that pass. In a script: a network with dropout (layers of its own, a config, an
adapter, a pretrained model that is known for it) that scores in train mode.

## Why it hurts
With dropout every pass asks another, random, smaller network. The ratio new / old is then not 1 before anything was
learned, clipping cuts tokens at random, and KL to the reference measures noise. The policy that is trained is not the
policy that sampled.

## How to fix it
Put the model into eval mode for every pass, the one with gradients included, or build it without dropout.

    # before
    model.train()
    new = logprobs(model, batch)
    # after: eval mode only switches dropout off, gradients flow as before
    model.eval()
    new = logprobs(model, batch)

## When it is wrong
A dropout module whose probability is 0 does nothing; a trainer may also repeat the same random numbers in both passes.
Where a repeated scoring gives the same numbers the check is silent. Kernels that add up in no fixed order leave
differences of rounding size, which are within the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import with_change
from assay.doctor.facts.rounding import SAME_PASS, dtype_of
from assay.programs.edits import Spot
from assay.programs.facts.loss.terms import TermKind
from assay.programs.facts.optimizer.modes import dropout_of, mode_at
from assay.programs.facts.sampling.samplers import is_trained
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Missing, Place, Severity, Verdict, finding, healthy

SHARE = 0.01  # of the loss tokens: fewer are outliers


def check_batch(batch: Batch) -> Verdict:
    modules = batch.numbers.get("dropout_modules")
    again_BT, new_BT, mask_BT = (batch.get(name) for name in ("scored_again", "new_logprobs", "mask"))
    if again_BT is None or new_BT is None or mask_BT is None or not np.isfinite((again_BT - new_BT)[mask_BT]).any():
        if modules is None:
            raise Missing("scored_again or dropout_modules")
        fact = Fact("active dropout modules", int(modules), 0, batch.step)
        if not modules:
            return healthy("no dropout module is active", fact)
        return finding(
            f"{int(modules)} dropout modules are active when log-probs are computed",
            fact,
            confidence=Confidence.LIKELY,  # their probability may be 0
        )
    limit = SAME_PASS[dtype_of(batch)]
    distance_BT = np.where(mask_BT, np.abs(again_BT - new_BT), 0.0)
    off_BT = distance_BT > limit  # a NaN is another illness
    row, token = (int(place) for place in np.unravel_index(np.nanargmax(distance_BT), distance_BT.shape))
    share = float(off_BT.sum() / mask_BT.sum())
    fact = Fact("largest |scored again - new|", float(distance_BT[row, token]), limit, batch.step, row, token)
    facts = (fact, Fact("active dropout modules", int(modules) if modules is not None else "not recorded"))
    if not off_BT.any():
        return healthy("scoring twice gives the same log-probs", *facts)
    if not modules and _repeats(batch, again_BT, mask_BT, limit):
        return healthy("scoring is not random; the pass with gradients differs from those without: see RAT01", *facts)
    cause = f"{int(modules)} dropout modules are active" if modules else "something in the pass is random"
    return finding(
        f"scoring twice with the same weights gives other log-probs for {share:.0%} of the loss tokens: {cause}",
        *facts,
        Fact("share of loss tokens off", share, SHARE),
        confidence=Confidence.PROVEN if share > SHARE else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    """The passes behind a policy's loss: those of a network with dropout that is in train mode."""
    seen: set[Place] = set()
    for loss, terms in program.losses:
        if not any(term.kind in (TermKind.SURROGATE, TermKind.POLICY) for term in terms):
            continue
        for call in program.origins.forwards(loss):
            model = call.arguments.get("model")
            if call.op != "forward" or model is None or not is_trained(program, model):
                continue
            drops = list(dropout_of(program, model, call))
            training, since = mode_at(program, model, call)
            if not drops or training is None or drops[0][0].place in seen:
                continue
            layer, chance = drops[0]
            if not training:
                yield healthy(f"{model.shown} has dropout, and is in eval mode", places=(call.place, layer.place))
                continue
            seen.add(layer.place)
            yield finding(
                f"`{call.place.text}` scores the tokens with dropout of {chance:g} active (`{layer.place.text}`), in "
                "train mode: another random network than the one that sampled",
                places=((since or layer).place, call.place, layer.place),
            )


def _repeats(batch: Batch, again_BT: Array, mask_BT: Array, limit: float) -> bool:
    """Whether the other passes without gradients agree: what is random would differ between any two."""
    others = [batch.get(name) for name in ("scored_permuted", "scored_alone")]
    known = [other_BT for other_BT in others if other_BT is not None]
    return bool(known) and all(np.mean(np.abs(other - again_BT)[mask_BT] > limit) <= SHARE for other in known)


def _scored_again(spread: float, modules: int) -> Batch:
    batch = healthy_batch()
    noise_BT = spread * np.random.default_rng(3).standard_normal(batch.arrays["mask"].shape)
    return edit_batch(batch, scored_again=batch.arrays["new_logprobs"] + noise_BT, dropout_modules=modules)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """train() --> eval(); not safe: some layers cannot be differentiated in eval mode."""
    yield spot.renamed("eval", safe=False) if spot.name == "train" and not spot.node.args else None


ILLNESS = illness(
    __name__,
    code="MODE01",
    severity=Severity.HARMFUL,
    summary="scoring is random: the same tokens and weights give different log-probs",
    fix="Put the model into eval mode for every pass, the one with gradients included.",
    symptoms=(
        "ratio is not 1 because of dropout",
        "model in train mode while generating",
        "log-probs differ on every call",
        "forgot model.eval()",
    ),
    sick=lambda: of_batch(_scored_again(0.05, modules=4)),
    well=lambda: of_batch(_scored_again(0.0001, modules=0)),
    scripts=Scripts(
        sick=with_change('from_pretrained("tiny")', 'from_pretrained("gpt2").train()'),
        well=with_change('from_pretrained("tiny")', 'from_pretrained("gpt2").eval()'),
    ),
    explains=frozenset(
        {"RAT01", "SAMP06", "NUM02", "KL05", "MASK04", "LOSS03", "MET02"}
        | {f"ALGN0{number}" for number in (1, 3, 4, 5, 9)}
        | {"ALGN10", "RAT07"}
    ),
)
