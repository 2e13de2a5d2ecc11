"""Whatever of ours fails: the script prints, returns and learns what it would, and is told nothing but at the end."""

import pytest
from watch.running import LETTERS

FAULTS = [
    "assay.watch.recorder:Recorder._given",
    "assay.watch.recorder:Recorder._result",
    "assay.watch.recorder:Recorder._before_backward",
    "assay.watch.recorder:Recorder._copy",
    "assay.watch.recorder:_summary",
    "assay.watch.places:Places.here",
    "assay.watch.observer:Observer.start",
    "assay.watch.observer:Observer.is_a_pass",
    "assay.watch.observer:Observer.passed",
    "assay.watch.observer:Observer.happened",
    "assay.watch.observer:Observer.stepping",
    "assay.watch.observer:Observer.stepped",
    "assay.watch.observer:Observer.stop",
    "assay.watch.observer:Observer._made",
    "assay.watch.observer:sampling_of",
    "assay.watch.observer:catch",
    "assay.watch.observer:patch_torch",
    "assay.watch.patches:Patches.undo",
    "assay.watch.models:Models.of",
    "assay.watch.models:Models.sums",
    "assay.watch.reading:find_roles",
    "assay.watch.reading:fields_of",
    "assay.watch.reading:batch_of",
    "assay.watch.reading:ask",
    "assay.watch.reading:as_of_now",
    "assay.watch.reading:Reading.settle",
    "assay.watch.ledger:Ledger.backward",
    "assay.watch.ledger:Ledger.after_backward",
    "assay.watch.ledger:Ledger.stepping",
    "assay.watch.ledger:Ledger.end",
    "assay.watch.weights:Weights.before",
    "assay.watch.report:mark",
    "assay.watch.report:diagnose",
    "assay.watch.report:report",
    "assay.watch.child:Watch._torch",
    "assay.watch.child:Watch.write",
]


@pytest.fixture(scope="module")
def plain(serve):
    return serve(LETTERS, "2", watched=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_ours_is_told_at_the_end_and_the_script_is_left_alone(serve, plain, fault):
    spoiled = serve(LETTERS, "2", fault=fault)
    assert plain["code"] == 0
    for part in ("code", "out", "words", "digest"):
        assert spoiled[part] == plain[part]
    used = fault != "assay.watch.recorder:_summary"  # letters are too few to be summed up
    assert ("by a fault of assay: Injected: injected" in " ".join(spoiled["text"].split())) == used


def test_with_no_fault_weights_random_numbers_and_output_are_the_same(serve, plain):
    watched = serve(LETTERS, "2")
    for part in ("code", "out", "words", "digest"):
        assert watched[part] == plain[part]
    assert "fault of assay" not in watched["text"]
    assert "0 findings" in watched["text"]


def test_steps_end_it_even_if_the_report_fails(serve):
    spoiled = serve(LETTERS, "9", steps=3, fault="assay.watch.report:report")
    assert spoiled["code"] == 0
    assert spoiled["out"].count("step") == 1
