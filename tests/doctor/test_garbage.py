"""Garbage in every field, number, setting and metric: a clear word, and never a check that breaks."""

import time

import numpy as np
import pytest
from doctor.own_grpo_batch import TEXTS, step_of
from doctor.own_grpo_step import Case
from fixtures.cases import thorough

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.examples import healthy_curves
from assay.record.batch import FIELDS, NUMBERS, SETTINGS, Batch, BatchError
from assay.verdict import Confidence, State

NOT_FINITE = (np.nan, np.inf, -np.inf)
ODD = ("x", "", -1, 0, 3.5, -0.7, 1e308, *NOT_FINITE, True, [1, 2], [], {}, "grpo", "off", "k3", np.float32(2), 10**30)
METRICS = tuple(healthy_curves(steps=1).rows[0])
INTEGERS = ((-5, 5), (0, 3), (0, 50), (-(2**40), 2**40), (7, 8))


def chosen(random, values):
    return values[int(random.integers(len(values)))]


def garbage(random, name, sizes):
    field = FIELDS[name]
    shape = tuple(sizes[letter] for letter in chosen(random, field.shapes))
    if field.kind == "bool":
        return random.random(shape) < chosen(random, (0, 0.1, 0.5, 1))
    if field.kind == "int":
        return random.integers(*chosen(random, INTEGERS), size=shape)
    numbers = random.standard_normal(shape) * chosen(random, (0, 1e-300, 1e-6, 1, 30, 1e5, 1e300))
    return np.where(random.random(shape) < chosen(random, (0, 0.2, 1)), chosen(random, (*NOT_FINITE, 0.0)), numbers)


def garbage_batch(seed):
    random = np.random.default_rng(seed)
    sizes = {
        "B": chosen(random, (0, 1, 2, 12)),
        "T": chosen(random, (0, 1, 9)),
        "P": chosen(random, (0, 1, 5)),
        "S": 14,
        "O": chosen(random, (0, 3)),
        "M": chosen(random, (0, 5)),
        "Q": chosen(random, (0, 2)),
        "I": chosen(random, (0, 7)),
    }
    values = {name: garbage(random, name, sizes) for name in FIELDS if random.random() < 0.8}
    values |= {name: chosen(random, (0.0, 1.0, -3.0, 1e300, *NOT_FINITE)) for name in NUMBERS if random.random() < 0.7}
    return values | {name: chosen(random, ODD) for name in SETTINGS if random.random() < 0.5}


def spoilt_batch(seed):
    """A sound batch in which a few values are garbage."""
    random = np.random.default_rng(seed)
    case = Case(seed=seed, kl_coef=0.05, update=seed % 3, tools=seed % 4 == 0, whole_sequences=seed % 5 == 0)
    values = {name: value for name, value in step_of(case).items() if value is not None and name not in TEXTS}
    sound = Batch.of(values)
    values = {**sound.arrays, **sound.numbers, **sound.settings}
    for name, value in values.items():
        if random.random() > 0.15:
            continue
        if name in FIELDS and value.dtype.kind == "f":
            values[name] = np.where(random.random(value.shape) < 0.3, chosen(random, (*NOT_FINITE, 1e300)), value)
        elif name in FIELDS:
            values[name] = np.zeros_like(value)
        else:
            values[name] = chosen(random, NOT_FINITE if name in NUMBERS else ODD)
    return values


def crashed(evidence):
    return [f"{word.code}: {word.verdict.message}" for word in diagnose(evidence).of(State.CRASHED)]


def unchecked(values):
    """What Batch.of would refuse: a file of another version, or another program, may hold such."""
    kinds = ({name: values[name] for name in values if name in names} for names in (FIELDS, NUMBERS, SETTINGS))
    return Batch(*kinds)


@pytest.mark.parametrize("batch_of", [garbage_batch, spoilt_batch])
@pytest.mark.parametrize("block", [0, *thorough(1, 2)])
def test_no_check_breaks_on_garbage(batch_of, block):
    for seed in range(30 * block, 30 * block + 30):
        assert not crashed(Evidence((unchecked(batch_of(seed)),))), seed


def refusal(values):
    try:
        return Batch.of(values), ""
    except BatchError as error:
        return None, str(error)


def test_what_cannot_be_is_refused_in_one_sentence_or_judged():
    for seed in range(60):
        batch, sentence = refusal(garbage_batch(seed))
        assert ("; " in sentence) if batch is None else not crashed(Evidence((batch,)))


@pytest.mark.parametrize("rows", [0, 1, 3, 25])
def test_no_check_breaks_on_garbage_in_curves(rows):
    for seed in range(20):
        random = np.random.default_rng(seed)
        pools = [(0.5, 2.0), NOT_FINITE, (0,), (None,), ("x", "1.5"), ([1],), (1e300, -1e300), (True,)]
        kinds = {name: chosen(random, pools) for name in METRICS}
        steps = [{name: chosen(random, pool) for name, pool in kinds.items() if random.random() < 0.9}] * rows
        settings = {name: chosen(random, ODD) for name in SETTINGS if random.random() < 0.5}
        evidence = Evidence(curves=Curves(steps, steps, steps, (), settings))
        assert not crashed(evidence), seed
        # a loss that is not finite is what it is, whoever wrote it
        assert {word.code for word in diagnose(evidence).findings if word.confidence is Confidence.PROVEN} <= {"NUM03"}


def test_a_setting_that_cannot_be_one_is_named_and_not_used():
    diagnosis = diagnose(Evidence((unchecked({"temperature": -1.0, "kl_coef": "much", "group_size": 4}),)))
    assert diagnosis.notes == (
        "the batch: the setting temperature = '-1.0' is not used: it must be a number, and not a negative one",
        "the batch: the setting kl_coef = 'much' is not used: it must be a number, and not a negative one",
    )


@pytest.mark.parametrize(
    ("name", "value"), [("kl_estimator", "low_var_kl"), ("aggregation", "prompt_mean"), ("correction", "icepop")]
)
def test_a_word_of_another_trainer_is_not_taken_for_a_default(name, value):
    values = {key: one for key, one in step_of(Case(kl_coef=0.05, update=1)).items() if one is not None}
    batch = unchecked({key: one for key, one in values.items() if key not in TEXTS} | {name: value, "loss": 9.0})
    words = {word.code: word.verdict for word in diagnose(Evidence((batch,))).words}
    assert words["LOSS06"].state is State.NOT_ENOUGH_DATA
    assert name in words["LOSS06"].message


def test_an_id_alone_ends_a_completion_as_well_as_a_list_of_one():
    values = {key: one for key, one in step_of(Case(limit=24)).items() if one is not None and key not in TEXTS}
    told = [
        [
            (word.code, word.verdict.message)
            for word in diagnose(Evidence((Batch.of({**values, "eos_ids": ids}),))).words
        ]
        for ids in (1, [1], (1,), np.array([1]))
    ]
    assert all(one == told[0] for one in told)


def test_a_long_run_is_read_in_seconds():
    curves = healthy_curves(steps=20_000)
    began = time.process_time()
    assert not diagnose(Evidence(curves=curves)).findings
    assert time.process_time() - began < 5
