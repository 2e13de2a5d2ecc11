"""How sure and how grave each check is of its own sick batch. An illness that is not in the table is not judged."""

import pytest

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence

# an invariant was computed again and failed: nothing else, and nobody's intention, gives the same numbers
PROVEN = """
    fatal ADV02 ADV06 ADV12 ALGN01 ALGN03 ALGN10 KL01 LOSS01 LOSS05 MASK06 OPT01 RAT04 SAMP04
    harmful ADV01 ADV03 ADV04 ADV05 ADV07 ALGN02 ALGN04 ALGN05 ALGN09 CLIP01 CLIP02 KL02 KL04 KL05 LOSS03 LOSS06
    harmful MASK01 MASK02 MASK03 MASK04 MASK05 MASK07 MASK08 MODE01 NUM02 OPT02 RAT01 RAT02 RAT06 RAT07
    harmful SAMP01 SAMP02 SAMP05 SAMP06 SYNC01
    wasteful MET06
"""
LIKELY = """
    fatal ADV10 REW01
    harmful ADV09 ALGN07
    wasteful MET07
"""
TABLE = [
    (code, severity, confidence)
    for confidence, lines in (("proven", PROVEN), ("likely", LIKELY))
    for severity, *codes in map(str.split, lines.strip().splitlines())
    for code in codes
]


@pytest.mark.parametrize(("code", "severity", "confidence"), TABLE)
def test_a_sick_batch_is_named_as_sure_and_as_grave_as_it_may_be(code, severity, confidence):
    illness = by_code(code)
    (word,) = diagnose(Evidence(illness.sick().batches), [illness]).words
    assert (str(word.confidence), str(word.severity)) == (confidence, severity)
