"""Rewards of your own: assay train --set reward.functions=examples/reward.py:score

A function is called by the names of its parameters: prompt, completion, answer, tokens, id, truncated, fields, or a
field of the task's problems. One call scores one completion. Return a number, or several by name: they are added up,
and each is recorded. Raising is fine: the completion is then recorded as unscored, with the reason, and leaves its
group's baseline.
"""


def score(completion: str, answer: str) -> dict[str, float]:
    exact = float(completion == answer)
    right_place = sum(given == wanted for given, wanted in zip(completion, answer, strict=False)) / len(answer)
    return {"exact": exact, "digits": 0.2 * right_place}


def lengths(completions: list[str], answers: list[str]) -> list[float]:
    """A plural first parameter: all answers to one prompt at once, one number for each."""
    return [-abs(len(completion) - len(answer)) for completion, answer in zip(completions, answers, strict=True)]


def places(completion: str, answer: str) -> list[float]:
    """A list for a single completion: one number per step; a step is a line, or ends with reward.step_separator."""
    return [float(line in answer) for line in completion.split("\n")]
