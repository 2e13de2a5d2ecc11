"""
## What it checks
A step down the loss must make tokens with a positive advantage likelier: d loss / d log-prob has the sign of -A on
every token where the policy part decides. The check compares signs, and the loss itself with the one that is meant.

## Why it hurts
With the sign flipped the policy learns to avoid what is rewarded. The reward falls, slowly at first, and entropy often
falls with it; curves that fall are then blamed on the learning rate.

## How to fix it
The objective is maximised and optimizers minimise: there is exactly one minus between them.

    # before: negated in the surrogate and again in the loss
    surrogate = -torch.min(ratio * advantages, clipped * advantages)
    loss = -masked_mean(surrogate, mask)
    # after
    surrogate = torch.min(ratio * advantages, clipped * advantages)
    loss = -masked_mean(surrogate, mask)

## When it is wrong
An optimizer with maximize=True climbs, and wants the objective itself. Record the gradient of what is minimised, or
leave this code out. A ratio that is upside down flips the gradient too, and not the loss: that is inverted (RAT04).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.recompute import gradient_parts, terms
from assay.doctor.recompute.loss import aggregation_of, weights
from assay.programs.edits import Spot, together
from assay.programs.facts.kinds import Kind
from assay.programs.facts.loss.signs import is_centred_factor, is_maximised, is_minimised, policy_sign
from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.bonuses import entropies
from assay.programs.run.ratio import slope
from assay.programs.run.roles import flows
from assay.programs.run.sight import numbers_of
from assay.programs.run.token_weights import token_weights
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Confidence, Edit, Fact, Severity, Verdict, finding, healthy, likely, not_applicable

DECIDES = 2.0  # times the KL's part: the policy part alone then sets the sign
NEARLY_ALL = 0.99  # of these tokens
EXACT = 0.1  # of the loss that is meant: what is further from it and from its negative is neither
VISIBLE = 1e-2  # of the sum of the terms' sizes: a smaller loss has no sign that could be trusted
ALL_IN_RUN = 0.999  # of the tokens of an update of a run


def check_batch(batch: Batch) -> Verdict:
    mask_BT, gradients_BT = batch.need("mask", "gradients")
    weights_BT = weights(batch, aggregation_of(batch))
    policy_BT, kl_BT = gradient_parts(batch, weights_BT)
    decided_BT = mask_BT & (np.abs(policy_BT) > DECIDES * np.abs(kl_BT)) & np.isfinite(gradients_BT)
    dead_BT = decided_BT & (gradients_BT == 0)
    decided_BT = decided_BT & ~dead_BT
    if not decided_BT.any():
        return not_applicable("no token has a gradient that its advantage decides")
    against_BT = decided_BT & (np.sign(gradients_BT) == -np.sign(policy_BT))
    share = float(against_BT.sum() / decided_BT.sum())
    fact = Fact("share of the tokens that the loss pulls against their advantage", share, 1 - NEARLY_ALL, batch.step)
    if 1 - NEARLY_ALL < share < NEARLY_ALL:
        return not_applicable(f"{share:.0%} of the tokens are pulled against their advantage: this is not a sign")
    if share < NEARLY_ALL and dead_BT.sum() > (1 - NEARLY_ALL) * (dead_BT | decided_BT).sum():
        return not_applicable(without_gradient(dead_BT, decided_BT))
    if share < NEARLY_ALL:
        return healthy(f"the loss pulls {1 - share:.0%} of the tokens the way of their advantage", fact)
    sign = _sign_of_loss(batch, weights_BT)
    if sign > 0:
        return not_applicable("the loss has the right sign and its gradient has not: inverted (RAT04) speaks of that")
    return finding(
        f"the loss pulls {share:.0%} of the tokens that have a gradient against their advantage: its sign is flipped",
        fact,
        Fact("tokens looked at", int(decided_BT.sum())),
        confidence=Confidence.PROVEN if sign < 0 else Confidence.LIKELY,  # else an inverted ratio does it too
    )


def check_source(program: Program) -> Iterator[Verdict]:
    if not is_minimised(program) and not is_maximised(program):
        return  # who makes the step, and which way, is not seen
    right = 1 if is_maximised(program) else -1
    for loss, of_loss in program.losses:
        for term in of_loss:
            if not _is_judged(program, term):
                continue
            sign = policy_sign(program, term)
            if sign == right:
                yield healthy("the objective has the right sign in the loss", places=(term.core.place,))
            elif sign is not None:
                way = "descends" if right < 0 else "climbs"
                yield likely(
                    f"`{term.core.place.text}` has a {'plus' if sign > 0 else 'minus'} in a loss that the optimizer "
                    f"{way}: what is rewarded is made rarer",
                    places=(term.core.place, loss.place),
                    why=program.kinds.why(term.core),
                )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    yield from _of_entropy(run)
    for seen in token_weights(run):
        roles = [backward.roles for backward in seen.update.backwards if backward.roles is not None]
        slopes = {slope(piece.ratio or piece.new, piece, role.flow) for role in roles for piece in role.pieces}
        if slopes != {1}:
            continue
        if all(part.against > ALL_IN_RUN for part in seen.parts):
            has_ratio = all(piece.ratio is not None for piece in seen.update.pieces)
            yield finding(
                "the loss pulls every token against its advantage, although what it is multiplied by grows with the "
                "new log-probs: the sign of the loss is flipped",
                # a cost that is made smaller has the same numbers
                confidence=Confidence.PROVEN if has_ratio else Confidence.LIKELY,
                places=(seen.place, seen.update.backwards[0].loss.place),
            )
        elif all(part.against < 1 - ALL_IN_RUN for part in seen.parts):
            yield healthy("the loss pulls every token the way of its advantage")


def _of_entropy(run: WatchedRun) -> Iterator[Verdict]:
    """An entropy that the loss makes smaller: as a bonus it is subtracted."""
    climbs = any(update.maximize for update in run.updates)
    for backward, flow in flows(run):
        if not backward.pieces:
            continue
        for value, way in entropies(flow):
            if (way > 0) == climbs:
                yield healthy("the loss falls as the entropy rises: a bonus")
                continue
            yield finding(
                "the loss grows with the entropy of the policy: what should keep the policy random makes it certain",
                Fact("mean entropy in that update", float(np.abs(np.nan_to_num(_numbers(value))).mean())),
                severity=Severity.HARMFUL,
                confidence=Confidence.LIKELY,
                places=(value.place, backward.loss.place),
                fix="Subtract the entropy bonus from a loss that is minimised: loss = policy_loss - c * entropy.",
            )


def _numbers(value: Value) -> Array:
    numbers = numbers_of(value)
    return np.zeros(1) if numbers is None else numbers


def without_gradient(dead_BT: Array, decided_BT: Array) -> str:
    """Why the way of a loss that does not pull at all tokens is not judged."""
    return (
        f"the gradient is 0 at {int(dead_BT.sum())} of {int((dead_BT | decided_BT).sum())} tokens with an advantage: "
        "that is not a sign, law_of_the_gradient (LAW05) speaks of it"
    )


def _sign_of_loss(batch: Batch, weights_BT: Array) -> int:
    """1: the recorded loss is on the side of the one that is meant; -1: on the other; 0: too near to 0."""
    found = terms(batch)
    meant_BT = np.where(found.mask_BT, found.policy_BT, 0.0)
    recorded_BT = batch.get("token_loss")
    if recorded_BT is not None:
        kl_BT = 0.0 if found.kl_BT is None else found.kl_coef * found.kl_BT
        inside = np.isfinite(recorded_BT) & found.mask_BT
        near, far = (float(np.abs(recorded_BT - side * meant_BT - kl_BT)[inside].sum()) for side in (1, -1))
        return int(np.sign(np.nan_to_num(far - near)))
    part = batch.numbers.get("policy_loss", batch.numbers.get("loss"))
    meant = float((weights_BT * meant_BT).sum())
    if part is None or abs(meant) < VISIBLE * float((weights_BT * np.abs(meant_BT)).sum()):
        return 0
    near, far = abs(float(part) - meant), abs(float(part) + meant)
    # another fault may turn the sign of a sum of both signs; a flipped loss is what is meant, times -1
    return int(np.sign(far - near)) if min(near, far) < EXACT * abs(meant) else 0


def _is_judged(program: Program, term: Term) -> bool:
    """A clipped objective, or log-probs or a ratio times an advantage."""
    if term.kind is TermKind.SURROGATE:
        return True
    if term.kind is not TermKind.POLICY:
        return False
    kinds = (Kind.RATIO, Kind.CLIPPED_RATIO, Kind.LOGPROBS, Kind.NEGATIVE_LOGPROBS)
    return program.kinds.is_a(term.core, *kinds) and any(is_centred_factor(program, factor) for factor in term.factors)


def _turned(sign: float) -> Batch:
    batch = healthy_batch(update=1)
    arrays = {
        name: sign * values for name, values in batch.arrays.items() if name.startswith(("gradients", "token_loss"))
    }
    numbers = {name: sign * value for name, value in batch.numbers.items() if "loss" in name}
    return edit_batch(batch, **arrays, **numbers)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A minus before the gain, where it is used once; else where it is made."""
    targets = spot.statement.node.targets if isinstance(spot.statement.node, ast.Assign) else []
    if targets and isinstance(targets[0], ast.Name) and spot.statement.node.value is spot.node:
        uses = [
            name
            for name in Spot(spot.text, spot.function).all(ast.Name)
            if name.node.id == targets[0].id and isinstance(name.node.ctx, ast.Load) and name.span > spot.span
        ]
        is_loss = "loss" in targets[0].id
        yield spot.negated() if is_loss else None
        yield uses[0].negated() if len(uses) == 1 and not is_loss else None
    yield spot.negated()
    other = {"max": "min", "maximum": "minimum"}.get(spot.name)
    renamed = spot.renamed(other) if other else None
    yield together([spot.negated(), renamed], spot.text) if renamed is not None else None


ILLNESS = illness(
    __name__,
    code="LOSS01",
    severity=Severity.FATAL,
    summary="the loss has the wrong sign: the policy learns to avoid what is rewarded",
    fix="Keep exactly one minus between the objective and the loss that is minimised.",
    symptoms=(
        "reward goes down",
        "loss has the wrong sign",
        "minimises the reward",
        "policy gets worse every step",
        "reward falls to 0",
    ),
    sick=lambda: of_batch(_turned(-1.0)),
    well=lambda: of_batch(_turned(1.0)),
    scripts=Scripts(sick=with_change("((-gain + 0.04 * kl)", "((gain + 0.04 * kl)"), well=GRPO),
    explains=frozenset({"LOSS06", "RAT04", "KL01", "CLIP02", "MET01", "MET02", "MET06"}),
)
