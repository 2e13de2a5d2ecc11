"""The functions of examples/reward.py do what they say."""

from pathlib import Path

from rewards.asking import asked, score_all

EXAMPLE = Path(__file__).parents[2] / "examples" / "reward.py"


def test_the_example_functions_score(rewards):
    names = ("score", "lengths", "places")
    scores = score_all(rewards(functions=[f"{EXAMPLE}:{name}" for name in names]), asked("13", "1\n4"))
    assert dict(scores[0].components) == {"score/exact": 1.0, "score/digits": 0.2, "lengths": 0.0, "places": 1.0}
    assert dict(scores[1].components) == {"score/exact": 0.0, "score/digits": 0.1, "lengths": -1.0, "places": 1.0}
    assert scores[1].steps == ((2, 1.0), (3, 0.0))
