"""A reward of your own: assay train --set task.reward=examples/reward.py:score

One call scores one completion. Return a number, or several by name: they are added up, and each is recorded.
Raising is fine: the completion is then recorded as unscored, with the reason, and leaves its group's baseline.
"""


def score(prompt: str, completion: str, answer: str) -> dict[str, float]:
    exact = float(completion == answer)
    right_place = sum(given == wanted for given, wanted in zip(completion, answer, strict=False)) / len(answer)
    return {"exact": exact, "digits": 0.2 * right_place}
