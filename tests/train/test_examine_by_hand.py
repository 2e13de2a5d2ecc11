"""What an examination records, beside the same numbers computed here: from the files of the run, by finite differences,
and by a forward pass written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.config import load
from assay.record import read_rollouts
from assay.train import examine
from assay.train.examined_rows import ALL, FEW, Plan, plan
from assay.train.run import run
from assay.train.step.learner import Learner

SMALL = {
    "run.steps": 2,
    "evaluate.prompts": 0,
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "model.warm_steps": 20,
    "optimizer.warmup": 0,
    "checkpoint.final": "false",
}


class KeptLooks:
    """A watcher that keeps the batches, the examinations, and all weights before and after their updates."""

    def __init__(self, monkeypatch):
        self.batches, self.looks, self.before, self.after = [], [], [], []
        watching, update = examine.Examination.watching, Learner.update

        def watch_and_keep(look):
            self.looks.append(look)
            return watching(look)

        def update_and_keep(learner, *given, observer=None):
            if observer is not None:
                self.before.append([master.detach().clone() for master in learner.masters])
            learned = update(learner, *given, observer=observer)
            if observer is not None:
                self.after.append([master.detach().clone() for master in learner.masters])
            return learned

        monkeypatch.setattr(examine.Examination, "watching", watch_and_keep)
        monkeypatch.setattr(Learner, "update", update_and_keep)

    def examined(self, batch):
        self.batches.append(batch)

    def step(self, record, row, timings):
        pass

    def finished(self):
        pass


@pytest.fixture
def looked_at(tmp_path, monkeypatch):
    def go(**changes):
        kept = KeptLooks(monkeypatch)
        chosen = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
        config = load(None, [f"{name}={value}" for name, value in chosen.items()])
        assert run.start(config, tmp_path / "run", kept) == 0
        return kept, [list(read_rollouts(tmp_path / "run", step)) for step in (1, 2)]

    return go


SETTINGS = {
    "ends and truncation": {"rollout__max_tokens": 4},
    "masked truncation, parts": {"rollout__max_tokens": 4, "rollout__truncated": "mask", "optimizer__microbatches": 3},
    "KL in the reward": {"loss__kl_coef": 0.5, "loss__kl_placement": "reward", "optimizer__minibatches": 1},
    "several minibatches": {"optimizer__minibatches": 2, "optimizer__epochs": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_was_sampled_and_scored_is_what_the_rollout_files_say(looked_at, name):
    kept, steps = looked_at(**SETTINGS[name])
    for batch, look, recorded in zip(kept.batches, kept.looks, steps, strict=True):
        assert len(look.rows) == len(batch.arrays["tokens"])
        for number, row in enumerate(look.rows):
            wanted, length = recorded[row], len(recorded[row]["tokens"])
            own = {field: values[number] for field, values in batch.arrays.items()}
            assert own["lengths"] == length
            assert own["tokens"][:length].tolist() == own["sampled_tokens"][:length].tolist() == wanted["tokens"]
            assert own["mask"].tolist() == [*wanted["mask"], *[False] * (len(own["mask"]) - length)]
            assert own["prompt_tokens"][own["prompt_mask"]].tolist() == wanted["prompt_tokens"]
            assert own["finished"] == (wanted["stop"] != "length")
            assert own["sampler_versions"] == wanted["policy_version"]
            assert (batch.texts["completion"][number], batch.texts["prompt_id"][number]) == (
                wanted["text"],
                wanted["prompt_id"],
            )
            assert own["advantages"] == pytest.approx(wanted["advantage"], abs=1e-6)
            if "rewards" in own:
                assert own["rewards"] == pytest.approx(wanted["reward"], abs=1e-9)
                assert own["group_ids"] == wanted["group"]
            assert own["sampler_logprobs"][:length] == pytest.approx(wanted["sampler_logprobs"], abs=1e-6)
            assert own["old_logprobs"][:length] == pytest.approx(wanted["old_logprobs"], abs=1e-6)
    truncated = {row["stop"] for rows in steps for row in rows}
    assert truncated >= ({"eos", "length"} if "max_tokens" in str(SETTINGS[name]) else {"eos"})


def test_finite_differences_give_the_same_gradients(looked_at):
    """The loss of the update as a function of each log-prob, moved by a little: clip, KL and entropy included."""
    kept, _ = looked_at(loss__kl_coef=0.2, loss__objective="grpo", optimizer__epochs=3, optimizer__learning_rate=1e-3)
    look, batch = kept.looks[1], kept.batches[1]
    assert batch.number("update") > 0
    assert batch.arrays["clipped"].any() or np.abs(batch.arrays["ratio"] - 1)[batch.arrays["mask"]].max() > 1e-3
    by_hand = {}
    for part in look._parts:
        wide = part.each(lambda values: values.double() if values.is_floating_point() else values)
        for place, row in enumerate(part.rows):
            for token in range(int(part.tensors["mask"][place].sum())):
                losses = []
                for step in (1e-5, -1e-5):
                    new_BT = wide.tensors["new_logprobs"].clone()
                    new_BT[place, token] += step
                    moved = replace(wide, tensors={**wide.tensors, "new_logprobs": new_BT})
                    losses.append(examine.losses([moved], look._loss_of).total)
                by_hand[row, token] = (losses[0] - losses[1]) / 2e-5
    recorded_BT = batch.arrays["gradients"]
    assert len(by_hand) > 20
    for (row, token), slope in by_hand.items():
        assert recorded_BT[look.rows.index(row), token] == pytest.approx(slope, abs=1e-6)


def test_changed_numbers_are_counted_as_they_are(looked_at):
    kept, _ = looked_at()
    for batch, before, after in zip(kept.batches, kept.before, kept.after, strict=True):
        changed = [int((new != old).sum()) for new, old in zip(after, before, strict=True)]
        assert batch.number("tensors") == len(changed)
        assert batch.number("tensors_changed") == sum(count > 0 for count in changed)
        assert batch.number("numbers_changed_share") == pytest.approx(sum(changed) / sum(one.numel() for one in before))
        moved = torch.cat([(new - old).flatten() for new, old in zip(after, before, strict=True)]).double().norm()
        assert batch.number("update_norm") == pytest.approx(float(moved), rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout__temperature": 0.7},
        {"rollout__top_k": 4, "rollout__temperature": 1.3},
        {"model__lora_rank": 4, "loss__kl_coef": 0.1},
    ],
    ids=["temperature", "top-k", "adapters"],
)
def test_the_oracle_gives_what_a_forward_pass_written_out_gives(looked_at, changes):
    """At the second look the weights are those behind its update; before it they are in `before`."""
    kept, _ = looked_at(**changes)
    look, batch = kept.looks[1], kept.batches[1]
    policy = look.learner.policy
    for master, old in zip(look.learner.masters, kept.before[1], strict=True):
        master.data.copy_(old)
    names = ["plain_logprobs", *(["plain_ref_logprobs"] if look.learner.reference is not None else [])]
    for number, row in list(enumerate(look.rows))[:4]:
        prompt, rollout = look._prompts[row].tokens, look._sampled[row]
        for name in names:
            ids = torch.tensor([[*prompt, *rollout.tokens]])
            with torch.no_grad():
                if name == "plain_ref_logprobs":
                    with policy.adapter.disable_adapter():
                        logits_LV = policy.model(input_ids=ids).logits[0].double()
                else:
                    logits_LV = policy.model(input_ids=ids).logits[0].double()
            for token, chosen in enumerate(rollout.tokens):
                logits_V = logits_LV[len(prompt) - 1 + token] / policy.temperature
                among = logits_V if rollout.support is None else logits_V[list(set(rollout.support[token]))]
                wanted = float(logits_V[chosen] - among.logsumexp(0))
                assert batch.arrays[name][number, token] == pytest.approx(wanted, abs=2e-5), (name, row, token)


def test_other_ways_of_scoring_really_pack_otherwise(looked_at, monkeypatch):
    seen = []
    real = examine.Examination._logprobs_by_row

    def keep(look, batch):
        seen.append((len(batch.rows), tuple(batch.rows), batch.inputs.targets_BT.shape[1]))
        return real(look, batch)

    monkeypatch.setattr(examine.Examination, "_logprobs_by_row", keep)
    kept, _ = looked_at(optimizer__microbatches=4)  # micro-batches of 4 rows
    count, width = len(kept.looks[0].rows), kept.batches[0].arrays["tokens"].shape[1]
    parts = -(-count // 4)
    backwards = [row for size, rows, _ in seen[:parts] for row in rows]
    assert sorted(backwards) == list(range(count))
    assert backwards[0] > backwards[-1]
    alone, rest = seen[parts:][:count], seen[parts + count :]
    assert [rows for _, rows, _ in alone] == [(row,) for row in range(count)]
    padded = rest[: -(-count // 3)]
    assert all(rows[-1] == count and size <= 4 for size, rows, _ in padded)
    assert min(columns for _, _, columns in padded) > 1
    assert max(columns for _, _, columns in padded) >= width
    assert max(size for size, _, _ in seen) <= 4  # never more rows than the trainer's own micro-batches


def test_a_large_model_is_asked_less(looked_at, monkeypatch):
    assert plan(1_000, 12, has_reference=False) == Plan(8, ALL, cuts_groups=False)
    assert plan(10**9, 512, has_reference=True) == Plan(16, ALL, cuts_groups=True)
    assert plan(10**9, 32, has_reference=True) == Plan(4, FEW, cuts_groups=True)
    monkeypatch.setattr("assay.train.examined_rows.LARGE", 1)
    kept, steps = looked_at(rollout__prompts=2, rollout__group_size=8)
    first, second = kept.batches
    assert {name for name in first.arrays if name.startswith("scored_")} == {"scored_again", "scored_padded"}
    assert [name for name in second.arrays if name.startswith("scored_")] == []
    assert len(first.arrays["tokens"]) == 4
    assert first.get("rewards") is None  # of half a group nothing follows
    group = [row["advantage"] for row in steps[0] if row["group"] == steps[0][kept.looks[0].rows[0]]["group"]]
    examined = first.arrays["advantages"]
    assert (min(examined), max(examined)) == (pytest.approx(min(group)), pytest.approx(max(group)))
    mask_BT = first.arrays["mask"]
    np.testing.assert_allclose(first.arrays["scored_padded"][mask_BT], first.arrays["new_logprobs"][mask_BT], atol=2e-5)
    np.testing.assert_allclose(first.arrays["scored_again"][mask_BT], first.arrays["new_logprobs"][mask_BT], atol=2e-5)
