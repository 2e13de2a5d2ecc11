"""Each broken reward of the gallery is caught by its name, and sound ones are left alone.

Most run in this process, through the same code that calls them in a worker; a new opening loads the file anew.
"""

import itertools
from pathlib import Path

import pytest

from assay.doctor.evidence import RewardTrial
from assay.reward_check.command import fails, judge
from assay.reward_check.trial import try_reward
from assay.rewards.call import read_signature
from assay.rewards.modules import load_functions
from assay.types import Problem, Score
from assay.verdict import Severity, State

GALLERY = Path(__file__).parents[2] / "examples" / "broken_rewards.py"
SUMS = [Problem(f"sum-{a}", f"{a} - {b} =", str(a - b)) for a, b in [(30, 17), (5, 29), (90, 2), (41, 8), (6, 72)]]
ROLLOUTS = 4096  # answers a step

BROKEN = {
    "none_on_junk": ("REW02", Severity.HARMFUL),
    "nan_on_junk": ("REW02", Severity.HARMFUL),
    "text": ("REW02", Severity.FATAL),
    "raises_on_empty": ("REW02", Severity.HARMFUL),
    "constant": ("REW01", Severity.FATAL),
    "noisy": ("REW08", Severity.HARMFUL),
    "only_new": ("REW09", Severity.HARMFUL),
    "ranks": ("REW09", Severity.HARMFUL),
    "inverted": ("REW03", Severity.FATAL),
    "not_empty": ("REW04", Severity.FATAL),
    "swapped": ("REW05", Severity.FATAL),
    "any_number": ("REW06", Severity.FATAL),
    "contains": ("REW07", Severity.HARMFUL),
    "contains_briefly": ("REW07", Severity.HARMFUL),
    "ends_with": ("REW07", Severity.HARMFUL),
    "any_tags": ("REW17", Severity.HARMFUL),
    "says_yes": ("REW17", Severity.HARMFUL),
    "echoes": ("REW17", Severity.HARMFUL),
    "anagram": ("REW17", Severity.HARMFUL),
    "in_millions": ("REW11", Severity.HARMFUL),
    "hairline": ("ADV04", Severity.HARMFUL),
    "longer_is_better": ("REW13", Severity.FATAL),
    "style": ("REW16", Severity.FATAL),
    "slow": ("REW15", Severity.WASTEFUL),
}


class InThisProcess:
    """The function of a file, loaded anew, asked prompt by prompt as the pool asks it."""

    def __init__(self, spec):
        self.function = read_signature(next(load_functions([spec])), {})

    def score(self, asked, on_score):
        scores = []
        for _, group in itertools.groupby(asked, key=lambda pair: pair[0].id):
            samples = [
                {"prompt": p.text, "completion": r.text, "answer": p.answer, "tokens": [], "id": p.id}
                | {"truncated": r.truncated, "fields": p.fields}
                for p, r in group
            ]
            for result in self.function.results(samples, timeout=2.0, separator="\n"):
                error = result.get("error")
                scores.append(Score.failed(error) if error else Score.of(result["components"]))
                on_score(len(scores) - 1, scores[-1])
        return scores

    def close(self):
        pass


def judged(name, problems=SUMS):
    known = RewardTrial((name,), rollouts_per_step=ROLLOUTS)
    diagnosis = judge(try_reward(lambda workers: InThisProcess(f"{GALLERY}:{name}"), problems, [], known))
    assert not diagnosis.of(State.CRASHED)
    return {word.code: word for word in diagnosis.findings}, diagnosis.causes


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reward_is_caught_by_its_name(name):
    code, severity = BROKEN[name]
    found, followers = judged(name)
    assert code in found, found
    assert code not in followers, "it is the cause, not a consequence"
    assert found[code].severity is severity
    others = set(found) - set(followers) - {code}
    assert not {other for other in others if fails(found[other])}, f"{others} are blamed too"
    assert found[code].fix


@pytest.mark.parametrize("name", ["partial_credit", "brief", "tagged", "format_share", "exact_and_tags"])
def test_a_sound_reward_is_left_alone(name):
    found, _ = judged(name)
    assert not found
