"""What an examination says of an update: right numbers, of the right rows, and not one bit of the run changed."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.cases import thorough
from fixtures.tiny import EOS_ID, sample, tiny_policy
from torch import nn

from assay.config import load
from assay.examine.inputs import RowInputs
from assay.policy.causal_packing import CausalPacking
from assay.record import read_events, read_metrics
from assay.record.batch_file import read_batch
from assay.train.examined_rows import chosen_rows, plan
from assay.train.progress import CollectedGroups, StepInProgress
from assay.train.run import run
from assay.train.step import learner
from assay.train.step.pack import pack_rows
from assay.train.watch import DoctorStop
from assay.types import FrozenBatch, Group, Score

SMALL = {
    "run.steps": 3,
    "evaluate.prompts": 0,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "model.warm_steps": 20,
    "optimizer.warmup": 0,
    "checkpoint.final": "false",
}


def config_of(**changes):
    chosen = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return load(None, [f"{name}={value}" for name, value in chosen.items()])


class Kept:
    """A watcher that keeps what it is given; raises DoctorStop at a step, if told to."""

    def __init__(self, stop_at=None):
        self.batches, self.steps, self.ended, self.stop_at = [], [], 0, stop_at

    def examined(self, batch):
        self.batches.append(batch)
        if batch.step == self.stop_at:
            raise DoctorStop("enough")

    def step(self, record, row, timings):
        assert record.step == row["step"] == timings["step"]
        self.steps.append(record.step)

    def finished(self):
        self.ended += 1


@pytest.fixture
def examined(tmp_path):
    def go(**changes):
        kept = Kept()
        assert run.start(config_of(**changes), tmp_path / "run", kept) == 0
        events = read_events(tmp_path / "run").rows
        assert [event for event in events if event["kind"] == "not examined"] == []
        return kept

    return go


VARIANTS = {
    "no sharing": {"optimizer__share_prompts": "false", "optimizer__microbatches": 3},
    "minibatches": {"optimizer__minibatches": 2, "optimizer__epochs": 1},
    "KL in the reward": {"loss__kl_coef": 0.1, "loss__kl_placement": "reward"},
    "top-k": {"rollout__top_k": 5, "rollout__top_p": 0.9},
    "adapters": {"model__lora_rank": 4, "loss__kl_coef": 0.1},
    "gspo": {"loss__objective": "gspo", "rollout__truncated": "mask", "rollout__max_tokens": 4},
    "entropy, correction": {"loss__entropy_coef": 0.01, "loss__correction": "token", "loss__objective": "cispo"},
}
MORE_VARIANTS = {
    "plain": {},
    "shared, in parts": {"optimizer__microbatches": 3},
    "reference": {"loss__kl_coef": 0.1, "optimizer__epochs": 1},
    "temperature": {"rollout__temperature": 0.7},
    "recomputed": {"model__gradient_checkpointing": "true"},
}
ALWAYS = {
    "tokens", "mask", "sampled_tokens", "prompt_tokens", "prompt_mask", "lengths", "finished", "forced", "entropy",
    "sampler_versions", "input_ids", "attention_mask", "position_ids", "new_logprobs", "old_logprobs", "ratio",
    "sampler_logprobs", "advantages", "clipped", "gradients", "plain_logprobs", "plain_raw_logprobs", "scored_again",
    "scored_padded", "scored_permuted", "scored_alone", "gradients_split", "gradients_perturbed",
}  # fmt: skip


SCORED = {"scored_again", "scored_padded", "scored_permuted", "scored_alone"}


@pytest.mark.parametrize("variant", [*VARIANTS, *thorough(*MORE_VARIANTS)])
def test_a_sound_run_gives_the_same_numbers_by_every_way(examined, variant):
    changes = (VARIANTS | MORE_VARIANTS)[variant]
    kept = examined(**changes)
    last = kept.batches[0].setting("updates_per_rollout") - 1
    assert [(batch.number("step"), batch.number("update")) for batch in kept.batches] == [(1, 0), (2, last)]
    assert (kept.steps, kept.ended) == ([1, 2, 3], 1)
    for batch in kept.batches:
        is_first = batch is kept.batches[0]
        assert ALWAYS - set(batch.arrays) == (set() if is_first else SCORED)
        mask_BT, new_BT = batch.need("mask", "new_logprobs")
        inside_BT = np.arange(mask_BT.shape[1]) < batch.arrays["lengths"][:, None]
        for name in ("plain_logprobs", *(SCORED if is_first else ())):
            np.testing.assert_allclose(batch.arrays[name][inside_BT], new_BT[inside_BT], atol=2e-5, err_msg=name)
        np.testing.assert_allclose(
            batch.arrays["sampler_logprobs"][inside_BT], batch.arrays["old_logprobs"][inside_BT], atol=2e-5
        )
        for how in ("again", "padded", "permuted", "split", "perturbed"):
            assert batch.number(f"loss_{how}") == pytest.approx(batch.number("loss"), abs=1e-6)
        for how in ("split", "perturbed"):
            np.testing.assert_allclose(batch.arrays[f"gradients_{how}"], batch.arrays["gradients"], atol=1e-7)
        assert not batch.arrays["gradients"][~mask_BT].any()
        raw_differs = (
            np.abs(batch.arrays["plain_raw_logprobs"] - batch.arrays["plain_logprobs"])[inside_BT].max() > 0.01
        )
        assert raw_differs == (variant in ("temperature", "top-k"))
        assert (batch.get("ref_logprobs") is not None) == (variant in ("reference", "adapters"))
        assert (batch.get("plain_ref_logprobs") is not None) == (
            variant in ("reference", "adapters", "KL in the reward")
        )
        assert (batch.get("rewards") is None) == (variant == "minibatches")
    if batch.get("ref_logprobs") is not None:
        ref_BT, plain_BT = batch.need("ref_logprobs", "plain_ref_logprobs")
        np.testing.assert_allclose(plain_BT[inside_BT], ref_BT[inside_BT], atol=2e-5)
        assert np.abs(new_BT - ref_BT)[inside_BT].max() > 1e-4  # the second step: the policy has moved


@pytest.mark.parametrize("sharing", ["true", "false"])
def test_the_model_was_given_each_prompt_and_its_completion_at_positions_from_0(examined, sharing):
    (batch, _) = examined(optimizer__share_prompts=sharing).batches
    ids, seen, positions, prompts, prompt_mask, tokens, lengths = batch.need(
        "input_ids", "attention_mask", "position_ids", "prompt_tokens", "prompt_mask", "tokens", "lengths"
    )
    for row in range(len(ids)):
        own = [*prompts[row][prompt_mask[row]], *tokens[row, : lengths[row]]]
        assert ids[row][seen[row]].tolist() == own
        assert positions[row][seen[row]].tolist() == list(range(len(own)))


def test_the_gradient_of_each_token_is_minus_its_advantage_over_all_loss_tokens(examined):
    """dapo at ratio 1; 96 rows are too many, so that the batch is a part of its update."""
    (batch, _) = examined(rollout__prompts=24).batches
    mask_BT, gradients_BT, advantages_B = batch.need("mask", "gradients", "advantages")
    assert len(mask_BT) == 16
    assert batch.setting("sequences") == 96
    assert batch.setting("loss_tokens") > mask_BT.sum()
    wanted_BT = np.where(mask_BT, -advantages_B[:, None] / batch.setting("loss_tokens"), 0.0)
    np.testing.assert_allclose(gradients_BT, wanted_BT, atol=1e-9)
    assert batch.number("loss") == pytest.approx(wanted_BT.sum(), abs=1e-6)
    rewards_GS, advantages_GS = batch.arrays["rewards"].reshape(4, 4), advantages_B.reshape(4, 4)
    centred_GS = rewards_GS - rewards_GS.mean(axis=1, keepdims=True)
    std_GS = rewards_GS.std(axis=1, ddof=1, keepdims=True)
    np.testing.assert_allclose(advantages_GS, centred_GS / (std_GS + 1e-4), atol=1e-6)


def test_an_examined_run_has_the_bits_of_one_that_is_not(tmp_path):
    for name, watcher in (("off", None), ("on", Kept())):
        assert run.start(config_of(model__lora_rank=2), tmp_path / name, watcher) == 0
    for file in ("metrics.jsonl", "config.toml", *(f"rollouts/step-00000{step}.parquet" for step in (1, 2, 3))):
        assert (tmp_path / "on" / file).read_bytes() == (tmp_path / "off" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "on" / "examined").iterdir()) == [
        "step-000001-update-1.safetensors",
        "step-000002-update-2.safetensors",
    ]
    assert not (tmp_path / "off" / "examined").exists()
    finished = read_events(tmp_path / "on").rows[-1]
    assert 0 < finished["doctor_seconds"] < finished["seconds"]


def test_the_file_holds_the_batch(examined, tmp_path):
    (batch, _) = examined().batches
    read = read_batch(tmp_path / "run" / "examined" / "step-000001-update-1.safetensors")
    assert set(read.arrays) == set(batch.arrays)
    assert all(np.array_equal(read.arrays[name], batch.arrays[name]) for name in batch.arrays)
    assert read.numbers == batch.numbers
    assert read.texts["completion"] == batch.texts["completion"]


def test_no_rollouts_on_disk_if_none_are_to_be_recorded(examined, tmp_path):
    assert len(examined(record__rollouts="none").batches) == 2
    assert not (tmp_path / "run" / "examined").exists()


def test_a_run_that_is_stopped_is_saved_and_goes_on_to_the_same_bits(tmp_path):
    assert run.start(config_of(), tmp_path / "straight", Kept()) == 0
    with pytest.raises(run.RunFailed, match="enough"):
        run.start(config_of(), tmp_path / "stopped", Kept(stop_at=2))
    assert len(read_metrics(tmp_path / "stopped").rows) == 1
    assert read_events(tmp_path / "stopped").rows[-1]["kind"] == "failed"
    again = Kept()
    assert run.resume(tmp_path / "stopped", watcher=again) == 0
    assert [(batch.number("step"), batch.number("update")) for batch in again.batches] == [(3, 0)]
    examined = [f"examined/step-00000{number}-update-{number}.safetensors" for number in (1, 2)]
    for file in ("metrics.jsonl", "rollouts/step-000003.parquet", *examined):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


@pytest.mark.parametrize(
    "place", ["assay.policy.causal.CausalPolicy.plain_logprobs", "assay.train.examine.loss_probes"]
)
def test_a_question_that_breaks_is_told_and_the_run_goes_on(tmp_path, monkeypatch, capsys, place):
    def broken(*given):
        raise RuntimeError("out of memory\nhere")

    monkeypatch.setattr(place, broken)
    kept = Kept()
    assert run.start(config_of(), tmp_path / "run", kept) == 0
    assert (kept.batches, kept.steps) == ([], [1, 2, 3])
    reasons = [event["reason"] for event in read_events(tmp_path / "run").rows if event["kind"] == "not examined"]
    assert reasons[0] == "update 1 of step 1 could not be examined: RuntimeError: out of memory here"
    assert reasons[0] in capsys.readouterr().err


def test_an_examined_file_that_cannot_be_written_is_told_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    def full(batch):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("assay.train.watch.to_bytes", full)
    kept = Kept()
    assert run.start(config_of(), tmp_path / "run", kept) == 0
    assert (len(kept.batches), kept.steps) == (2, [1, 2, 3])
    assert "step-000001-update-1.safetensors could not be written: No space left" in capsys.readouterr().err


def test_a_loss_that_depends_on_the_cut_or_on_what_is_masked_shows(examined, monkeypatch):
    right = learner.policy_loss

    def mean_of_the_microbatch(*, totals, mask_BT, **tensors):
        own = replace(totals, share_of_rollout_tokens=float(mask_BT.sum()))
        return right(totals=own, mask_BT=mask_BT, **tensors)

    monkeypatch.setattr(learner, "policy_loss", mean_of_the_microbatch)
    (batch, _) = examined().batches
    assert abs(batch.number("loss_split") - batch.number("loss")) > 1e-4
    assert batch.number("loss_padded") == pytest.approx(batch.number("loss"), abs=1e-6)
    assert np.abs(batch.arrays["gradients_split"]).max() > 1.5 * np.abs(batch.arrays["gradients"]).max()


def test_a_loss_that_looks_under_the_mask_shows(examined, monkeypatch):
    right = learner.policy_loss

    def whitened(*, advantages_BT, **tensors):
        return right(advantages_BT=advantages_BT - advantages_BT.mean(), **tensors)

    monkeypatch.setattr(learner, "policy_loss", whitened)
    (batch, _) = examined().batches
    assert not abs(batch.number("loss_perturbed") - batch.number("loss")) < 1e-3
    assert not np.abs(batch.arrays["gradients_perturbed"] - batch.arrays["gradients"]).max() < 1e-4
    assert batch.number("loss_split") != pytest.approx(batch.number("loss"), abs=1e-6)


def test_weights_that_stand_still_are_counted(examined, monkeypatch):
    def only_the_first(self):
        yield
        for master in self.masters[1:]:
            master.grad = None

    monkeypatch.setattr(learner.Learner, "_folding", contextmanager(only_the_first))
    (batch, _) = examined().batches
    tensors = batch.number("tensors")
    assert (batch.number("tensors_changed"), batch.number("tensors_without_gradient")) == (1, tensors - 1)
    assert 0 < batch.number("numbers_changed_share") < 0.1


def test_weights_that_all_learn_are_counted_too(examined):
    (batch, _) = examined().batches
    assert batch.number("tensors_without_gradient") == 0
    assert batch.number("numbers_changed_share") > 0.9


def step_of(groups, signal):
    """Groups of 4 rollouts each; those in `signal` have advantages."""
    made, samples = [], []
    for number in range(groups):
        size = 1.0 if number in signal else 0.0
        own = [sample(number, (2, 3), (4, EOS_ID), size if half else -size) for half in (0, 0, 1, 1)]
        samples += own
        made.append(Group(own[0].prompt, tuple(one.rollout for one in own), (Score.of({"r": 0.0}),) * 4))
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=2,
        max_tokens=4,
        packing=CausalPacking(torch.device("cpu")),
    )
    return StepInProgress(CollectedGroups(tuple(made)), tuple(samples), FrozenBatch((minibatch,), ((),), 1)), minibatch


@pytest.mark.parametrize(
    ("groups", "signal", "wanted"),
    [
        (3, [0], [0, 1]),  # 1.5 passes of 12 rows pay for 5 questions to 3 rows: 8 rows, the least
        (11, [1], [0, 1, 2]),  # 13 rows
        (50, [2], [0, 1, 2, 3]),  # 16 rows, the most
        (50, [30], [0, 1, 2, 30]),  # a group with a signal is never missing
        (50, [], [0, 1, 2, 3]),
    ],
)
def test_whole_groups_are_examined_as_far_as_they_are_paid_for(groups, signal, wanted):
    current, minibatch = step_of(groups, signal)
    rows = [4 * group + index for group in wanted for index in range(4)]
    assert chosen_rows(minibatch, current, plan(1, len(current.samples), has_reference=False)) == rows


def test_active_dropout_is_counted_and_a_silent_one_is_not():
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.0), nn.Sequential(nn.Dropout(0.2)), nn.Dropout(0.3))
    seen = RowInputs(replace(tiny_policy(), model=model.eval(), family=None), [])
    model.train()
    model[3].eval()
    with seen.watching():
        model(torch.ones(2))
    assert seen.dropout_modules == 2
    assert all(not module._forward_pre_hooks for module in model.modules())
