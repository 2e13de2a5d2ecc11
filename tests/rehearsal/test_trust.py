"""What a rehearsal may say: findings that stand-ins could have caused are left out, those of the text stay."""

from dataclasses import replace

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import Word
from assay.rehearsal.report import join
from assay.rehearsal.trust import DEPENDS, doubts, lowered
from assay.verdict import Confidence, Place, State, finding, healthy, likely, not_applicable

ILLNESSES = {illness.code: illness for illness in catalogue()}
LINE_7, LINE_9 = Place("train.py", 7, 4, 7, 20), Place("train.py", 9)


def word(code, verdict, seen_in=""):
    return Word(ILLNESSES[code], verdict, seen_in=seen_in)


def test_every_code_that_depends_on_something_is_an_illness():
    assert set(DEPENDS) <= set(ILLNESSES)


def test_a_constant_reward_is_doubted_where_rewards_were_made_and_the_sign_of_the_loss_never_is():
    everything = ("data", "rewards", "sizes", "weights", "device", "engine", "processes")
    assert doubts("REW01", ["rewards"], autocast=False, rounds=False) == ("rewards",)
    assert doubts("LOSS01", everything, autocast=True, rounds=True) == ()
    assert doubts("REW01", ["device"], autocast=False, rounds=False) == ()


def test_precision_is_doubted_only_under_autocast_and_a_stuck_ratio_only_in_16_bits():
    assert doubts("NUM01", ["device"], autocast=False, rounds=True) == ()
    assert doubts("NUM01", ["device"], autocast=True, rounds=True) == ("device",)
    assert doubts("RAT02", ["weights"], autocast=False, rounds=False) == ()
    assert doubts("RAT02", ["weights"], autocast=False, rounds=True) == ("weights",)


def test_a_doubted_finding_is_left_out_and_says_why():
    seen = word("REW01", finding("every reward is 0"), "run")
    joined = join(seen, word("REW01", not_applicable("no reward")), seen, ["rewards", "data"])
    assert joined.verdict.state is State.NOT_ENOUGH_DATA
    assert joined.verdict.message == "values of its own: in a rehearsal rewards and rows of data are replaced"


def test_what_was_read_stays_where_the_numbers_are_doubted():
    read = word("OPT01", likely("bf16 weights", places=(LINE_7,)))
    seen = word("OPT01", finding("rounded away"), "run")
    assert join(seen, read, seen, ["weights"]) == replace(read, seen_in="text")


def test_a_suspicion_is_dropped_if_the_numbers_of_that_line_are_healthy():
    read = word("KL01", likely("the KL is subtracted", places=(LINE_7,)), "text")
    here = word("KL01", healthy("it is a penalty", places=(Place("train.py", 7),)), "run")
    elsewhere = word("KL01", healthy("it is a penalty", places=(LINE_9,)), "run")
    assert join(read, read, here, []).verdict.state is State.HEALTHY
    assert join(read, read, elsewhere, []) == read


def test_a_law_that_is_explained_or_only_likely_becomes_a_note():
    explained, alone = word("LAW05", finding("not the gradient")), word("LAW02", finding("not the tokens"))
    unsure = word("LAW07", finding("uphill", confidence=Confidence.LIKELY))
    cause = word("KL01", finding("upside down"))
    after = lowered([explained, alone, unsure, cause], {"LAW05": "KL01"})
    assert [found.confidence.value for found in after] == ["possible", "proven", "possible", "proven"]


def test_a_stuck_ratio_is_doubted_where_the_rewards_were_equal():
    assert doubts("RAT02", ["rewards"], autocast=False, rounds=False) == ("rewards",)
    assert doubts("RAT02", ["weights"], autocast=False, rounds=False) == ()
