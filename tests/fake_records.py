"""Steps made by hand, and run directories that hold them."""

from dataclasses import replace
from pathlib import Path

from assay.record import RunDirectory
from assay.types import Group, Prompt, Rollout, Sample, Score, StepRecord, StopReason, Update


def fake_update(**facts: object) -> Update:
    plain = Update(
        applied=True,
        skipped="",
        loss=0.5,
        policy_loss=0.25,
        kl_loss=0.125,
        entropy_loss=0.125,
        learning_rate=0.001,
        gradient_norm=2.0,
        update_norm=0.5,
        tensors=4,
        tensors_changed=4,
        tokens=6,
        ratio_sum=6.0,
        ratio_square_sum=6.0,
        ratio_min=1.0,
        ratio_max=1.0,
        clipped_tokens=0,
        old_kl_sum=0.0,
        ref_kl_sum=0.6,
        entropy_sum=3.0,
        mismatch_sum=0.6,
        mismatch_max=0.25,
        correction_sum=6.0,
        correction_square_sum=6.0,
    )
    return replace(plain, **facts)


def fake_group(number: int, scores: list[Score], text: str = "12") -> Group:
    """Rollout i has i + 2 tokens; the last one is cut off by the limit."""
    prompt = Prompt(f"sort-{number}", f"{text}>", (5, 6), "12")
    rollouts = tuple(
        Rollout(
            prompt.id,
            tuple(range(index, 2 * index + 2)),
            tuple(-0.1 * (token + 1) for token in range(index + 2)),
            StopReason.LENGTH if index == len(scores) - 1 else StopReason.EOS,
            number,
            text,
        )
        for index in range(len(scores))
    )
    return Group(prompt, rollouts, tuple(scores))


def fake_record(step: int = 1, groups: tuple[Group, ...] | None = None, **facts: object) -> StepRecord:
    """Two groups of two: rewards 1 and 0, then 3 and a failure. Lengths are 2 and 3 in each."""
    if groups is None:
        groups = (
            fake_group(0, [Score.of({"exact": 1.0}), Score.of({"exact": 0.0})]),
            fake_group(1, [Score.of({"exact": 1.0, "format": 2.0}), Score.failed("raised ValueError")]),
        )
    samples = tuple(
        Sample(group.prompt, rollout, 0.5 - index, in_loss=score.reward is not None)
        for group in groups
        for index, (rollout, score) in enumerate(zip(group.rollouts, group.scores, strict=True))
    )
    logprobs = tuple(sample.rollout.sampler_logprobs for sample in samples)
    plain = StepRecord(
        step=step,
        policy_version=7,
        groups=groups,
        samples=samples,
        updates=(fake_update(),),
        old_logprobs=logprobs,
        new_logprobs=logprobs,
        ref_logprobs=None,
        groups_without_signal=1,
        refill_rounds=0,
        seconds={"generated": 1.5, "loss": 0.5},
        memory_bytes={"generated": 1000},
    )
    return replace(plain, **facts)


def new_run(path: Path, steps: int = 0) -> RunDirectory:
    run = RunDirectory.create(path, "[run]\nsteps = 3\n", {"python": "3.11"})
    for step in range(1, steps + 1):
        run.append_step(fake_record(step))
    return run


def contents(
    path: Path, *, leave_out: tuple[str, ...] = ("events.jsonl", "run.json", "checksums.jsonl")
) -> dict[str, bytes]:
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name not in leave_out)
    return {str(file.relative_to(path)): file.read_bytes() for file in files}
