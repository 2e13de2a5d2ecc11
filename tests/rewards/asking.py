"""What the tests of rewards ask about: a task of one problem, rollouts of a token a character."""

from assay.types import Problem, Prompt, Rollout, Score, StopReason


class TwoDigits:
    """Its own reward is half a point for each right digit."""

    own_reward = ""
    fingerprint = ""

    def training_problem(self, index):
        return Problem("a", "31>", "13", fields={"level": 3})

    heldout_problem = training_problem

    def score(self, prompt, rollout):
        return Score.of({"digits": sum(a == b for a, b in zip(rollout.text, prompt.answer, strict=False)) / 2})


def asked(*texts, id="a", answer="13", **fields):
    """One prompt and a rollout of each text."""
    prompt = Prompt(id, "31>", (1,), answer, {"level": 3, **fields})
    return [
        (prompt, Rollout(id, tuple(map(ord, text)) or (0,), (0.0,) * max(len(text), 1), StopReason.EOS, 0, text))
        for text in texts
    ]


def characters(tokens):
    return "".join(map(chr, tokens))


def score_all(reward, pairs):
    return reward.score(pairs, lambda index, score: None)


def body(code, parameters="prompt, completion, answer"):
    return f"def score({parameters}):\n    {code}\n"
