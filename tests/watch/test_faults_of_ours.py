"""Whatever of ours fails: the script prints, returns and learns what it would, and is told nothing but at the end."""

import pytest
from fixtures.cases import thorough
from watch.running import LETTERS

FAULTS = [
    "assay.programs.run.observe.recorder:CallRecorder._given",
    "assay.programs.run.observe.recorder:CallRecorder._result",
    "assay.programs.run.observe.recorder:CallRecorder._before_backward",
    "assay.programs.run.observe.recorder:CallRecorder._copy",
    "assay.programs.run.observe.recorder:_is_finite",
    "assay.programs.run.observe.places:Places.here",
    "assay.programs.run.observe.observer:ScriptObserver.start",
    "assay.programs.run.observe.observer:ScriptObserver.is_a_pass",
    "assay.programs.run.observe.observer:ScriptObserver.add_pass",
    "assay.programs.run.observe.observer:ScriptObserver.add_event",
    "assay.programs.run.observe.observer:ScriptObserver.before_step",
    "assay.programs.run.observe.observer:ScriptObserver.after_step",
    "assay.programs.run.observe.observer:ScriptObserver.stop",
    "assay.programs.run.observe.observer:ScriptObserver._made",
    "assay.programs.run.observe.observer:sampling_of",
    "assay.programs.run.observe.observer:catch",
    "assay.programs.run.observe.observer:patch_torch",
    "assay.programs.run.observe.patches:Patches.undo",
    "assay.programs.run.observe.models:Models.of",
    "assay.programs.run.observe.models:Models.sums",
    "assay.programs.run.observe.updates:find_roles",
    "assay.programs.run.observe.updates:fields_of",
    "assay.programs.run.observe.updates:batch_of",
    "assay.programs.run.observe.updates:_ask",
    "assay.programs.run.observe.updates:as_of_now",
    "assay.programs.run.observe.updates:UpdateReader.settle",
    "assay.programs.run.observe.ledger:GradientLedger.backward",
    "assay.programs.run.observe.ledger:GradientLedger.after_backward",
    "assay.programs.run.observe.ledger:GradientLedger.stepping",
    "assay.programs.run.observe.ledger:GradientLedger.stepped",
    "assay.programs.run.observe.observer:Weights.after",
    "assay.watch.report:first_not_finite",
    "assay.watch.report:diagnose",
    "assay.watch.report:report",
    "assay.watch.child:ScriptWatch._torch",
    "assay.watch.child:ScriptWatch.write",
]


@pytest.fixture(scope="module")
def plain(serve):
    return serve(LETTERS, "2", watched=False)


@pytest.mark.parametrize("fault", [*FAULTS[::2], *thorough(*FAULTS[1::2])])
def test_a_fault_of_ours_is_told_at_the_end_and_the_script_is_left_alone(serve, plain, fault):
    spoiled = serve(LETTERS, "2", fault=fault)
    assert plain["code"] == 0
    for part in ("code", "out", "words", "digest"):
        assert spoiled[part] == plain[part]
    used = fault != "assay.programs.run.observe.recorder:_is_finite"  # letters are too few to be summed up
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
