"""An adapter of a trainer that nobody knows, over what all adapters share: a loop of a page, and a doctor beside it."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from assay.adapters.attached import FAILURES, Attached, Rollouts
from assay.examine.inputs import PassInputs
from assay.examine.loss_probes import token_gradients
from assay.examine.part import Part
from assay.record.batch import Batch
from assay.record.batch_file import read_batch

LETTERS, LENGTH, GROUP = 6, 8, 4
SETTINGS = {
    "objective": "grpo", "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.0, "std": "sample", "baseline": "mean",
    "scale": "group", "advantage_epsilon": 1e-4, "group_size": GROUP, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
    "min_p": 0.0, "updates_per_rollout": 1, "microbatches": 1, "trainer": "toy", "max_tokens": LENGTH,
}  # fmt: skip


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(LETTERS, LETTERS)

    def forward(self, ids):
        return self.table(ids)


class Trainer:
    """Answers are rewarded for their letters; `sign` is that of the loss."""

    def __init__(self, sign=1.0):
        torch.manual_seed(0)
        self.model, self.sign, self.steps = Model(), sign, 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def logprobs(self, prompts, tokens):
        logits = self.model(torch.cat([prompts, tokens], dim=1))[:, :-1]
        return logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]

    def train(self, steps, attached):
        attached.begin()
        for _ in range(steps):
            prompts = torch.arange(4).repeat_interleave(GROUP)[:, None]
            tokens = prompts
            for _ in range(LENGTH):
                chances = self.model(tokens)[:, -1].softmax(-1).detach()
                tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
            tokens = tokens[:, 1:]
            rewards = tokens.float().sum(dim=1).view(-1, GROUP)
            scaled = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            advantages = scaled.view(-1)
            attached.sampled(prompts, tokens, rewards.view(-1))
            with attached.look_at_pass() as given:
                new = self.logprobs(prompts, tokens)
            ratio = (new - new.detach()).exp()
            loss = self.sign * -(ratio * advantages[:, None]).mean(dim=1).mean()
            attached.lost(loss, new, tokens, advantages, given)
            self.optimizer.zero_grad()
            loss.backward()
            attached.before_optimizer()
            self.optimizer.step()
            attached.after_step()
            self.steps += 1
            attached.end_step()
        attached.end()


class Adapter(Attached):
    def __init__(self, trainer, directory, report):
        super().__init__(directory, report, "toy")
        self.trainer = trainer

    def steps_done(self):
        return self.trainer.steps

    def settings(self):
        return SETTINGS | {"steps": 9}

    def metrics(self):
        return {"reward_mean": float(self.rewards.mean())}

    def update_batch(self, look):
        groups = [row // GROUP for row in look.rows]
        more = {"rewards": self.rewards, "group_ids": groups, "loss": float(self._losses[0])}
        return Batch.of({**look.fields(pad=0), **SETTINGS, **more}, source=f"toy step {look.rollouts.step}")

    def rollout_batch(self, rollouts):
        raise AssertionError("rewards are always known")

    def sampled(self, prompts, tokens, rewards):
        self.rewards = rewards
        finished = [False] * len(tokens)
        self.add_rollouts(Rollouts(self.trainer.steps, prompts.tolist(), tokens.tolist(), finished))

    def look_at_pass(self):
        look = self.look_at_loss() if self.is_on() else None
        return nullcontext() if look is None else PassInputs(self.trainer.model).watching()

    def lost(self, loss, new, tokens, advantages, given):
        if (look := self._look) is not None:
            fixed = {"tokens": tokens, "mask": torch.ones_like(tokens) != 0, "advantages": advantages}
            logprobs = {"new_logprobs": new.detach(), "old_logprobs": new.detach()}
            gradients = token_gradients(loss, new, keep_graph=True)
            look.parts.append(Part(tuple(range(len(tokens))), {**fixed, **logprobs, "gradients": gradients}))
            look.inputs.append(given)
        self.add_loss(loss)

    def before_optimizer(self):
        if (look := self._look) is not None:
            how = (self.trainer.model, 1.0, nullcontext(), self.reference_row)
            self.attempt(lambda: look.add_plain_logprobs(*how), None)
            self.before_step(list(self.trainer.model.parameters()))


def run(directory, steps=6, **how):
    said, trainer = [], Trainer(**how)
    adapter = Adapter(trainer, directory, said.append)
    trainer.train(steps, adapter)
    return adapter, said


def test_a_sound_loop_has_no_finding_and_its_updates_are_kept(tmp_path):
    adapter, said = run(tmp_path / "assay")
    assert [text for text in said if "possible" not in text] == []
    assert [word.code for word in adapter.findings if str(word.confidence) != "possible"] == []
    healthy = {word.code for word in adapter.diagnosis.words if str(word.verdict.state) == "healthy"}
    assert {"RAT01", "ALGN01", "LOSS01", "ADV05", "OPT02", "SAMP01"} <= healthy
    files = sorted(path.name for path in (tmp_path / "assay" / "examined").iterdir())
    assert files == [f"step-00000{step}-update-1.safetensors" for step in range(1, 6)]
    batch = read_batch(tmp_path / "assay" / "examined" / files[0])
    assert torch.allclose(torch.tensor(batch.arrays["plain_logprobs"]), torch.tensor(batch.arrays["new_logprobs"]))
    assert (batch.numbers["tensors_changed"], batch.numbers["update"], batch.numbers["step"]) == (1, 0, 1)
    assert batch.arrays["input_ids"].shape == (16, 1 + LENGTH)
    rows = [json.loads(line) for line in (tmp_path / "assay" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_a_loop_that_pulls_the_wrong_way_is_named_once_with_what_follows_from_it(tmp_path):
    adapter, (text,) = run(tmp_path / "assay", sign=-1.0)
    assert text.startswith("assay: RAT04 inverted (fatal, proven) at step 1: ")
    assert "follows from it: LOSS01" in text
    assert adapter.findings[0].code == "RAT04"
    assert "RAT04" in adapter.report("concise")


def test_a_resumed_run_goes_on_in_its_directory_and_does_not_repeat_itself(tmp_path):
    run(tmp_path / "assay", sign=-1.0, steps=3)
    said, trainer = [], Trainer(sign=-1.0)
    trainer.steps = 3
    trainer.train(2, Adapter(trainer, tmp_path / "assay", said.append))
    assert said == []
    rows = [json.loads(line) for line in (tmp_path / "assay" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("place", ["update_batch", "metrics", "settings"])
def test_an_adapter_that_breaks_is_reported_twice_and_training_goes_on(tmp_path, monkeypatch, place):
    def broken(*given):
        raise KeyError("a field of another version")

    monkeypatch.setattr(Adapter, place, broken)
    adapter, said = run(tmp_path / "assay")
    assert adapter.trainer.steps == 6
    assert len(said) == 2
    assert said[0].startswith("assay: the doctor could not look at step 2 (KeyError: 'a field of another version')")
    assert said[1].endswith("it does not look any more; training goes on")
    assert adapter._failures == FAILURES
