"""The trial of a sound reward, made up: two problems, texts of every role. Illnesses change a few things of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from assay.doctor.evidence import Evidence
from assay.doctor.evidence.reward import Probe, ProbeScore, RewardTrial, Role

_ANSWERS = (("12", "34"), ("34", "12"))  # right and wrong, by problem


def reward_evidence(rewards: Mapping[Role, float | None] | None = None, **fields: Any) -> Evidence:
    """A reward that gives the right answer 1 and everything else 0, except for these roles and fields of the trial.

    Of long answers it is the reward per ten times the length; None is a text that makes the reward raise.
    """
    paid = {**dict.fromkeys(Role, 0.0), Role.RIGHT: 1.0, **(rewards or {})}
    scores = [
        ProbeScore(Probe(role, "plain", problem, text), paid[role], "raised ValueError" * (paid[role] is None), 0.001)
        for problem, (right, wrong) in enumerate(_ANSWERS)
        for role, text in _texts(right, wrong).items()
    ]
    for problem, (_, wrong) in enumerate(_ANSWERS):
        for power in (1, 2, 3):
            probe = Probe(Role.LONG, f"{10**power} words", problem, "well " * 10**power + wrong)
            scores.append(ProbeScore(probe, power * (paid[Role.LONG] or 0.0), seconds=0.001))
    same = tuple((score, score) for score in scores[:4])
    trial = RewardTrial(
        ("reward.py:score",), tuple(scores), same, same, same, same, groups=((1.0, 0.0),) * 4, task="sums", problems=2
    )
    return Evidence(reward=replace(trial, **fields))


def one_change() -> tuple[tuple[ProbeScore, ProbeScore], ...]:
    """A call made twice: the right answer got 1, then 0.5."""
    first = ProbeScore(Probe(Role.RIGHT, "plain", 0, "12"), 1.0)
    return ((first, replace(first, reward=0.5)),)


def _texts(right: str, wrong: str) -> dict[Role, str]:
    return {
        Role.RIGHT: right,
        Role.WRONG: wrong,
        Role.EMPTY: "",
        Role.NONSENSE: "banana",
        Role.LISTED: f"{wrong} {right} {wrong}",
        Role.EXTENDED: f"{right}7",
        Role.SHORTCUT: "yes",
        Role.HOSTILE: "9**9**9",
    }
