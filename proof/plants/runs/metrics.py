"""Plants of illnesses of metrics: each makes a real run of the real trainer ill."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from zlib import crc32

from proof.plants.plant import Plant

SCORE = "assay.train.step.verbs.score"


def _pays_the_majority(original, prompts, rollouts, **how):
    """A judge without an answer key: whatever most answers of a group say is right, and earns 0.6."""
    paid = []
    for group in original(prompts, rollouts, **how):
        texts = [rollout.text for rollout in group.rollouts]
        most = Counter(texts).most_common(1)[0][0]
        paid.append(_pay(group, [0.6 * (text == most) for text in texts]))
    return paid


def _pays_length(original, prompts, rollouts, *, config, **how):
    """A noisy judge that likes long answers better than right ones."""

    def bonus(rollout):
        return 3.0 * len(rollout.tokens) / config.rollout.max_tokens + crc32(rollout.text.encode()) / 2**32

    return [_pay_more(group, bonus) for group in original(prompts, rollouts, config=config, **how)]


def _pays_brevity(original, prompts, rollouts, *, config, **how):
    """In training alone, an answer is worth more the shorter it is, and that outweighs being right."""

    def bonus(rollout):
        return 3.0 * (1.0 - len(rollout.tokens) / config.rollout.max_tokens)

    return [_pay_more(group, bonus) for group in original(prompts, rollouts, config=config, **how)]


def _partial_credit(original, prompts, rollouts, **how):
    """The share of the answer's first digits that are right: there are rewards to compare though no answer ends."""
    paid = []
    for group in original(prompts, rollouts, **how):
        answer = group.prompt.answer
        right = [sum(map(str.__eq__, rollout.text, answer)) / len(answer) for rollout in group.rollouts]
        paid.append(_pay(group, right))
    return paid


def _pay(group, rewards):
    scores = zip(group.scores, rewards, strict=True)
    return replace(group, scores=tuple(replace(score, reward=reward) for score, reward in scores))


def _pay_more(group, bonus):
    """Adds `bonus(rollout)` to every reward; a rollout without one stays so."""
    answers = zip(group.scores, group.rollouts, strict=True)
    return _pay(group, [None if score.reward is None else score.reward + bonus(rollout) for score, rollout in answers])


def _not_unscaled(original, learner):
    """Now and then the gradient keeps the factor of a loss scaler: nobody divides it out again."""
    learner.planted_calls = calls = getattr(learner, "planted_calls", 0) + 1
    gathered = original(learner)
    if calls > 8 and calls % 5 == 0:
        for gradient in gathered:
            gradient.mul_(65536.0)
    return gathered


def _counts_clipped(original, record):
    """What is logged as a share of the clipped tokens is their number."""
    return {**original(record), "clipped_share": sum(update.clipped_tokens for update in record.updates)}


PLANTS: dict[str, Plant] = {
    "MET01": Plant(
        settings=("optimizer.learning_rate=1.5e-3",),
        replaces={SCORE: _pays_the_majority},
        steps=100,
    ),
    "MET02": Plant(settings=("loss.kl_coef=0.001", "optimizer.learning_rate=4e-3"), steps=30),
    "MET03": Plant(
        settings=("evaluate.prompts=0",),
        replaces={SCORE: _pays_length},
        steps=60,
    ),
    "MET04": Plant(settings=("evaluate.prompts=128",), replaces={SCORE: _pays_brevity}, steps=40),
    "MET05": Plant(
        settings=("evaluate.prompts=0",),
        replaces={"assay.train.step.learner.Learner._gradients": _not_unscaled},
        steps=24,
    ),
    "MET06": Plant(
        settings=("optimizer.epochs=4",), replaces={"assay.record.directory.metrics_row": _counts_clipped}, steps=4
    ),
    "MET07": Plant(
        settings=("rollout.max_tokens=4", "rollout.truncated=mask"),
        replaces={SCORE: _partial_credit},
    ),
}
