"""The loop with hand-made stages: which verb is called when, and where a run may stand."""

from dataclasses import replace

import torch
from fixtures.tiny import uneven_samples

from assay.train.loop import Stages, train
from assay.train.progress import CollectedGroups, Progress, StepInProgress
from assay.types import NO_SIGNAL, FrozenBatch, Learned, Minibatch, Totals, Update

UPDATE = Update(
    **{
        **dict.fromkeys(Update.__dataclass_fields__, 0.0),
        "applied": True,
        "skipped": "",
        "tokens": 5,
        "tensors": 3,
        "tensors_changed": 3,
        "clipped_tokens": 0,
    }
)


def logged_stages(log, updates=None, rounds=1, minibatches=2, epochs=2):
    updates = iter(updates) if updates else None
    batch = FrozenBatch((Minibatch((), Totals(1, 1, 1.0, 1)),) * minibatches, ((),) * minibatches, epochs)

    def note(name, result):
        def stage(*arguments):
            log.append((name, *[a for a in arguments if isinstance(a, Progress)]))
            return result(*arguments) if callable(result) else result

        return stage

    def choose(collected, groups):
        done = collected.rounds + 1
        return CollectedGroups(prompts_drawn=collected.prompts_drawn + 4, rounds=done, complete=done >= rounds)

    return Stages(
        draw=note("draw", ()),
        generate=note("generate", ()),
        score=note("score", ()),
        choose=choose,
        credit=note("credit", tuple(uneven_samples())),
        pack=note("pack", batch.minibatches),
        freeze=note("freeze", batch),
        learn=note("learn", lambda *_: Learned(next(updates) if updates else UPDATE, (torch.zeros(1),), 0.0, 0.0)),
        record=note("record", None),
        safe_point=lambda progress, current: log.append(("safe", progress, current is not None)),
    )


def names(log):
    return [entry[0] for entry in log if entry[0] != "safe"]


def test_one_step_calls_the_verbs_in_order():
    log = []
    train(logged_stages(log), Progress(), None, steps=1)
    before = ["draw", "generate", "score", "credit", "pack", "freeze"]
    assert names(log) == [*before, "learn", "learn", "learn", "learn", "record"]


def test_refilling_repeats_draw_generate_score_only():
    log = []
    train(logged_stages(log, rounds=3), Progress(), None, steps=1)
    assert names(log)[:10] == ["draw", "generate", "score"] * 3 + ["credit"]


def test_places_count_steps_updates_versions_and_the_cursor():
    log = []
    train(logged_stages(log, rounds=2), Progress(), None, steps=2)
    learning = [entry[1] for entry in log if entry[0] == "learn"]
    assert [(progress.step, progress.update, progress.policy_version) for progress in learning] == [
        (0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 4), (1, 1, 5), (1, 2, 6), (1, 3, 7),
    ]  # fmt: skip
    assert log[-1] == ("safe", Progress(step=2, update=0, cursor=16, policy_version=8), False)


def test_there_is_a_safe_point_before_a_step_after_its_rollouts_and_after_each_update():
    log = []
    train(logged_stages(log), Progress(), None, steps=1)
    safe = [(entry[1].step, entry[1].update, entry[2]) for entry in log if entry[0] == "safe"]
    assert safe == [(0, 0, False), (0, 0, True), (0, 1, True), (0, 2, True), (0, 3, True), (0, 4, True), (1, 0, False)]


def test_a_run_taken_up_inside_a_step_goes_on_with_the_next_update():
    log, stages = [], None
    stages = logged_stages(log)
    current = StepInProgress(
        CollectedGroups(prompts_drawn=4, rounds=1, complete=True), tuple(uneven_samples()), stages.freeze(())
    )
    current = replace(current, updates=(UPDATE,) * 3, new_logprobs=((torch.zeros(1),),) * 2)
    log.clear()
    train(stages, Progress(step=5, update=3, cursor=20, policy_version=7), current, steps=6)
    assert names(log) == ["learn", "record"]
    assert log[-1][1] == Progress(step=6, update=0, cursor=24, policy_version=8)


def test_skipped_updates_are_counted_in_a_row_unless_they_are_healthy():
    broken = replace(UPDATE, applied=False, skipped="the loss is nan")
    idle = replace(UPDATE, applied=False, skipped=NO_SIGNAL)
    log = []
    train(logged_stages(log, updates=[broken, broken, idle, UPDATE]), Progress(), None, steps=1)
    counts = [entry[1].skipped_in_a_row for entry in log if entry[0] == "safe"]
    assert counts == [0, 0, 1, 2, 0, 0, 0]
    assert log[-1][1].policy_version == 1


def test_a_step_without_any_sample_is_recorded_and_passed():
    log = []
    train(logged_stages(log, minibatches=0), Progress(), None, steps=1)
    assert names(log)[-3:] == ["pack", "freeze", "record"]


def test_a_finished_run_does_nothing_more():
    log = []
    train(logged_stages(log), Progress(step=3), None, steps=3)
    assert names(log) == []
