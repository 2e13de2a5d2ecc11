"""Plants of illnesses of metrics: each makes a real run of the real trainer ill."""

from __future__ import annotations

from proof.plants.plant import Plant


def _pays_the_majority(original):  # type: ignore[no-untyped-def]
    """A judge without an answer key: whatever most answers of a group say is right, and earns 0.6."""

    def score(prompts, rollouts, **how):  # type: ignore[no-untyped-def]
        from collections import Counter
        from dataclasses import replace

        def judged(group):  # type: ignore[no-untyped-def]
            texts = [rollout.text for rollout in group.rollouts]
            most = Counter(texts).most_common(1)[0][0]
            paid = (replace(one, reward=0.6 * (text == most)) for text, one in zip(texts, group.scores, strict=True))
            return replace(group, scores=tuple(paid))

        return list(map(judged, original(prompts, rollouts, **how)))

    return score


def _pays_length(original):  # type: ignore[no-untyped-def]
    """A noisy judge that likes long answers better than right ones."""

    def score(prompts, rollouts, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace
        from zlib import crc32

        def longer(rollout, one):  # type: ignore[no-untyped-def]
            noise = crc32(rollout.text.encode()) / 2**32
            bonus = 3.0 * len(rollout.tokens) / how["config"].rollout.max_tokens
            return one if one.reward is None else replace(one, reward=one.reward + bonus + noise)

        return [
            replace(group, scores=tuple(map(longer, group.rollouts, group.scores)))
            for group in original(prompts, rollouts, **how)
        ]

    return score


def _pays_brevity(original):  # type: ignore[no-untyped-def]
    """In training alone, an answer is worth more the shorter it is, and that outweighs being right."""

    def score(prompts, rollouts, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        def shorter(rollout, one):  # type: ignore[no-untyped-def]
            bonus = 1.0 - len(rollout.tokens) / how["config"].rollout.max_tokens
            return one if one.reward is None else replace(one, reward=one.reward + 3.0 * bonus)

        return [
            replace(group, scores=tuple(map(shorter, group.rollouts, group.scores)))
            for group in original(prompts, rollouts, **how)
        ]

    return score


def _not_unscaled(original):  # type: ignore[no-untyped-def]
    """Now and then the gradient keeps the factor of a loss scaler: nobody divides it out again."""
    calls = 0

    def gradients(learner):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        gathered = original(learner)
        if calls > 8 and calls % 5 == 0:
            for gradient in gathered:
                gradient.mul_(65536.0)
        return gathered

    return gradients


def _counts_clipped(original):  # type: ignore[no-untyped-def]
    """What is logged as a share of the clipped tokens is their number."""

    def metrics_row(record):  # type: ignore[no-untyped-def]
        row = original(record)
        return {**row, "clipped_share": sum(update.clipped_tokens for update in record.updates)}

    return metrics_row


def _partial_credit(original):  # type: ignore[no-untyped-def]
    """The share of the answer's first digits that are right: there are rewards to compare though no answer ends."""

    def score(prompts, rollouts, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        def credited(group):  # type: ignore[no-untyped-def]
            answer = group.prompt.answer
            right = [sum(map(str.__eq__, rollout.text, answer)) / len(answer) for rollout in group.rollouts]
            paid = (replace(one, reward=share) for one, share in zip(group.scores, right, strict=True))
            return replace(group, scores=tuple(paid))

        return list(map(credited, original(prompts, rollouts, **how)))

    return score


PLANTS: dict[str, Plant] = {
    "MET01": Plant(
        settings=("optimizer.learning_rate=1.5e-3",),
        replaces={"assay.train.step.verbs.score": _pays_the_majority},
        steps=100,
    ),
    "MET02": Plant(settings=("loss.kl_coef=0.001", "optimizer.learning_rate=4e-3"), steps=30),
    "MET03": Plant(
        settings=("evaluate.prompts=0",),
        replaces={"assay.train.step.verbs.score": _pays_length},
        steps=60,
    ),
    "MET04": Plant(
        settings=("evaluate.prompts=128",), replaces={"assay.train.step.verbs.score": _pays_brevity}, steps=40
    ),
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
        replaces={"assay.train.step.verbs.score": _partial_credit},
    ),
}
