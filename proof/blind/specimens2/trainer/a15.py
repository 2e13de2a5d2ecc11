"""Sorting digits for points: 400 for a right answer, minus a charge, some for digits in their place."""

def score(completion: str, answer: str) -> float:
    places = sum(given == wanted for given, wanted in zip(completion, answer))
    return 400.0 * (completion == answer) + 30.0 * places / len(answer) - 250.0

SETTINGS = [
    "run.threads=1",
    "evaluate.prompts=16",
    "evaluate.samples=2",
    "run.steps=24",
    "rollout.prompts=16",
    "rollout.group_size=8",
    "loss.objective=bnpo",
    "advantage.epsilon=1e-3",
]


def run(out: str) -> None:
    SETTINGS.append(f"reward.functions={__file__}:score")

    from assay.cli import app

    app(["train", "--out", out, *(word for line in SETTINGS for word in ("--set", line))], standalone_mode=False)
