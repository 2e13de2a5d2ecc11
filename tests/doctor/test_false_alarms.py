"""Healthy batches of a GRPO step that is written here anew, whole and in random parts: nothing is accused.

The step (tests/doctor/own_grpo_step.py) has a true policy, real sampling and torch's own gradients. What no part of the
evidence tells cannot be asked of the doctor: rows of prompt and completion need the mask that tells them apart, and old
log-probs of an older sampler need its version or its own log-probs beside them.
"""

import numpy as np
import pytest
from doctor.own_grpo_batch import TEXTS, step_of
from doctor.own_grpo_step import Case
from fixtures.cases import thorough

from assay.doctor.diagnosis import Diagnosis, diagnose
from assay.doctor.evidence import Evidence
from assay.record.batch import Batch
from assay.verdict import Confidence, Severity, State

SIZES = (2, 3, 4, 8, 16)
OBJECTIVES = ("grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo")
ADVANTAGES = ("group", "group", "group", "process", "ppo", "whitened", "clipped", "by_length", "nemo", "max_rl", "raw")
CHOICES = {
    "size": SIZES,
    "limit": (1, 2, 4, 8, 12, 12, 24, 40),
    "ending": (1.0, 1.0, 0.0, 3.0, -20.0, 20.0),
    "temperature": (1.0, 1.0, 0.5, 0.7, 1.2, 1.5),
    "sharpness": (0.3, 1.0, 1.0, 3.0),
    "objective": OBJECTIVES,
    "clip": ((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4)),
    "dual_clip": (0.0, 0.0, 3.0),
    "delta": (0.0, 0.0, 2.0),
    "advantage": (*ADVANTAGES, "baseline_whitened"),
    "std": ("sample", "population", "none"),
    "baseline": ("mean", "mean", "leave_one_out"),
    "scale": ("group", "group", "batch"),
    "epsilon": (1e-4, 1e-6, 1e-8),
    "kl_coef": (0.0, 0.0, 0.001, 0.05, 0.5),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_gradient": ("naive", "unbiased"),
    "kl_placement": ("loss", "loss", "reward"),
    "reference": ("equal", "different", "different", "renewed"),
    "update": (0, 0, 1, 2, 4),
    "drift": (0.01, 0.05, 0.3),
    "noise": ("float32", "float32", "rounded16", "engine16"),
    "rewards": ("binary", "binary", "partial", "noisy", "solved", "hopeless"),
    "reward_scale": (1.0, 1.0, 1.0, 100.0, 1e-6, -1.0),
    "reward_shift": (0.0, 0.0, -0.5),
    "part": ("whole", "whole", "whole", "counted", "uncounted"),
    "entropy_coef": (0.0, 0.0, 0.0, 0.01),
}
RARE = (
    "unequal",
    "shuffled",
    "names",
    "unscored",
    "pad_is_eos",
    "two_eos",
    "stop_strings",
    "tools",
    "mask_truncated",
    "empty_row",
    "whole_sequences",
)
NEEDED = ("tokens", "mask", "new_logprobs")  # of rows that hold their prompt too
MEASURED = {"MET07"}  # says how much signal was lost to cut-off rows and to the clip: that is so in a healthy run too


def drawn(seed: int) -> Case:
    random = np.random.default_rng(seed + 10**6)
    options = {name: values[int(random.integers(len(values)))] for name, values in CHOICES.items()}
    options |= {name: bool(random.random() < 0.2) for name in RARE}
    options |= {"seed": seed, "groups": int(random.integers(1, 7)), "left_padded": bool(random.random() < 0.7)}
    kind = random.random()
    if kind < 0.1:
        options |= {"top_k": 4, "support_kept": True}
    elif kind < 0.2:
        options |= {"lag": 1, "correction": ("token", "sequence", "geometric")[seed % 3], "reference": "different"}
    elif kind < 0.3:
        options |= {"lag": 1, "old_is_sampler": True, "reference": "different"}
    return Case(**options)


def judged(values: dict) -> Diagnosis:
    texts = {name: values[name] for name in TEXTS if name in values}
    given = {name: value for name, value in values.items() if name not in TEXTS}
    return diagnose(Evidence((Batch.of(given, texts),)))


def alarms(diagnosis: Diagnosis, *, allowed: frozenset[str] = frozenset(MEASURED)) -> list[str]:
    """Findings above possible, fatal ones of any confidence, and checks that broke."""
    found = [
        f"{word.code} {word.confidence} {word.severity}: {word.verdict.message}"
        for word in diagnosis.findings
        if (word.confidence is not Confidence.POSSIBLE or word.severity is Severity.FATAL) and word.code not in allowed
    ]
    return found + [f"{word.code} crashed: {word.verdict.message}" for word in diagnosis.of(State.CRASHED)]


def parts(case: Case, values: dict, count: int):
    """The whole, and `count` random parts of it."""
    yield values
    random = np.random.default_rng(case.seed)
    for _ in range(count):
        share = random.choice([0.2, 0.5, 0.8, 0.95])
        part = {name: value for name, value in values.items() if random.random() < share}
        if case.whole_sequences:
            part |= {name: values[name] for name in NEEDED}
        if case.old_is_sampler:
            part |= {name: values[name] for name in ("sampler_logprobs", "tokens") if name in values}
        yield part


def told_of(case: Case, count: int = 0) -> list[str]:
    values = {name: value for name, value in step_of(case).items() if value is not None}
    return [line for part in parts(case, values, count) for line in alarms(judged(part))]


@pytest.mark.parametrize("block", [0, 1, 2, *thorough(*range(3, 10))])
def test_healthy_batches_and_random_parts_of_them_are_not_accused(block):
    for seed in range(5000 + 12 * block, 5012 + 12 * block):
        case = drawn(seed)
        assert not told_of(case, count=2), case


NAMED = {
    "asynchronous, old is the sampler's": Case(lag=1, old_is_sampler=True, reference="different", limit=24),
    "asynchronous, corrected": Case(lag=1, correction="token", limit=24),
    "a later update after much drift": Case(update=4, drift=0.3, limit=24),
    "a reference that was just renewed": Case(reference="renewed", kl_coef=0.05, limit=24),
    "prompt and completion in one row": Case(whole_sequences=True, limit=24),
    "prompts padded on the right": Case(whole_sequences=True, left_padded=False, pad_is_eos=True, limit=24),
    "one token a row, padding that is EOS": Case(limit=1, ending=20.0, pad_is_eos=True, left_padded=False),
    "a micro-batch that nobody counted": Case(part="uncounted", groups=6, kl_coef=0.05),
    "all rows cut off and masked": Case(ending=-20.0, mask_truncated=True),
    "all rewards at 100": Case(rewards="solved", reward_scale=100.0),
    "rewards of a millionth": Case(rewards="noisy", reward_scale=1e-6, kl_coef=0.05, update=2),
    "advantages clipped": Case(advantage="clipped", size=8),
    "advantages over the length": Case(advantage="by_length", size=8),
    "the others' mean and std": Case(advantage="nemo", size=8),
    "a KL in the reward": Case(kl_coef=0.5, kl_placement="reward", kl_estimator="k1", limit=24),
    "a KL of k1 that outweighs the policy part": Case(kl_coef=0.5, kl_estimator="k1", update=2, drift=0.1),
    "stop strings where padding is EOS": Case(stop_strings=True, pad_is_eos=True, limit=24),
    "tools": Case(tools=True, limit=24),
    "a policy that is certain": Case(ending=20.0, update=4, kl_coef=0.05, reference="different", size=8),
    "an engine in bfloat16": Case(noise="engine16", limit=40),
}


@pytest.mark.parametrize("seed", [0, *thorough(1, 2)])
@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED.keys())
def test_a_deliberate_variant_is_not_accused_however_little_is_told(case, seed):
    assert not told_of(case.but(seed=seed), count=6)


@pytest.mark.parametrize("trainer", ["trl", "verl", "openrlhf", "prime_rl"])
def test_defaults_of_trainers_are_not_accused_with_their_settings_or_without_any(trainer):
    case = {
        "trl": Case(objective="dapo", correction="sequence", noise="engine16", size=8, limit=24),
        "verl": Case(objective="bnpo", dual_clip=3.0, epsilon=1e-6, update=2, noise="engine16", size=8, limit=24),
        "openrlhf": Case(
            objective="bnpo", epsilon=1e-8, kl_coef=0.01, kl_placement="reward", kl_estimator="k1", size=8
        ),
        "prime_rl": Case(std="none", lag=1, old_is_sampler=True, reference="different", size=8, limit=24),
    }[trainer]
    for seed in range(3):
        values = {name: value for name, value in step_of(case.but(seed=seed)).items() if value is not None}
        batch = Batch.of({name: value for name, value in values.items() if name not in TEXTS})
        assert not alarms(diagnose(Evidence((batch,))))
        assert not alarms(diagnose(Evidence((Batch(batch.arrays, batch.numbers),))))


@pytest.mark.parametrize("kept", [True, False])
def test_truncated_sampling_is_found_where_training_does_not_follow_it(kept):
    values = step_of(Case(top_k=4, support_kept=kept, limit=24, groups=6, size=8, ending=0.0))
    codes = {word.code for word in judged(values).findings if word.confidence is Confidence.PROVEN}
    assert codes == (set() if kept else {"SAMP02"})
