"""GRPOTrainer.train_step: the update of a plain re-implementation, invariances, and learning."""

import copy
import math

import pytest
import torch
from fixtures.small_models import (
    EOS,
    PROMPTS,
    assert_same_weights,
    bigram,
    llama,
    recurrent,
    share_of_good,
    weights_of,
)
from torch import nn

from assay import GRPOTrainer
from assay.train.failure import RunFailed
from assay.types import NO_SIGNAL

# ---------------------------------------------------------------- one step


def plain_grpo_step(model, prompts, completions, rewards, *, lr, group, low, high, epochs=1, temperature=1.0, kl=0.0):
    """GRPO in plain PyTorch, one unpadded row at a time: eq. 3 of DeepSeekMath, SGD, gradient norm clipped to 1."""

    def logprobs(network, prompt, completion):
        ids = torch.tensor([prompt + completion])
        output = network(ids)
        logits = (output if isinstance(output, torch.Tensor) else output.logits)[0]
        return torch.stack(
            [
                (logits[len(prompt) + index - 1] / temperature).log_softmax(0)[token]
                for index, token in enumerate(completion)
            ]
        )

    reference = copy.deepcopy(model)
    rows = list(zip(prompts, completions, strict=True))
    with torch.no_grad():
        old = [logprobs(model, *row) for row in rows]
    advantages = []
    for first in range(0, len(rewards), group):
        mine = torch.tensor(rewards[first : first + group])
        advantages += ((mine - mine.mean()) / (mine.std() + 1e-4)).tolist()
    clipped = 0
    for _ in range(epochs):
        total = torch.zeros(())
        for row, before, advantage in zip(rows, old, advantages, strict=True):
            now = logprobs(model, *row)
            ratio = torch.exp(now - before)
            bounded = torch.clamp(ratio, 1 - low, 1 + high)
            clipped += int((bounded * advantage < ratio * advantage).sum())
            token_loss = -torch.minimum(ratio * advantage, bounded * advantage)
            if kl:
                with torch.no_grad():
                    distance = logprobs(reference, *row)
                apart = distance - now
                token_loss = token_loss + kl * ratio * (torch.exp(apart) - apart - 1)
            total = total + token_loss.mean() / len(rows)
        gradients = torch.autograd.grad(total, list(model.parameters()))
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= lr * gradient / max(norm.item(), 1.0)
    return clipped


@pytest.mark.parametrize("make", [recurrent, llama])
@pytest.mark.parametrize(
    "variant",
    [
        {"lr": 0.5},
        {"lr": 1.0, "epochs": 3, "temperature": 0.7, "kl": 0.3, "low": 0.05, "high": 0.1},
    ],
)
def test_a_step_is_the_one_of_a_plain_reimplementation(make, variant):
    seen = []

    def reward_fn(prompts, completions):
        rewards = share_of_good(prompts, completions)
        seen.append((prompts, completions, rewards))
        return rewards

    settings = {"low": 0.2, "high": 0.2, "epochs": 1, "temperature": 1.0, "kl": 0.0, **variant}
    model = make()
    expected = copy.deepcopy(model).eval()
    trainer = GRPOTrainer(
        model,
        reward_fn,
        torch.optim.SGD(model.parameters(), lr=settings["lr"]),
        group_size=4,
        kl_coef=settings["kl"],
        clip_range=(settings["low"], settings["high"]),
        eos_id=EOS,
        max_tokens=6,
        temperature=settings["temperature"],
        epochs=settings["epochs"],
        microbatches=3,
    )
    stats = trainer.train_step(PROMPTS, 0)
    ((prompts, completions, rewards),) = seen
    assert prompts == [prompt for prompt in PROMPTS for _ in range(4)]
    assert len({len(completion) for completion in completions}) > 1  # padding is at work
    clipped = plain_grpo_step(expected, prompts, completions, rewards, group=4, **settings)
    moved = max((weights_of(make())[name] - weight).abs().max() for name, weight in weights_of(model).items())
    assert moved > 0.01
    assert_same_weights(model, expected, 1e-6)
    tokens = sum(map(len, completions))
    assert stats["tokens"] == tokens
    assert stats["clipped_share"] == pytest.approx(clipped / (settings["epochs"] * tokens))
    if settings["epochs"] > 1:
        assert clipped > 0
    assert stats["reward_mean"] == pytest.approx(sum(rewards) / 16)


@pytest.mark.parametrize("make", [recurrent, llama])
def test_a_model_learns_to_say_the_rewarded_token(make):
    model = make()
    trainer = GRPOTrainer(
        model,
        share_of_good,
        torch.optim.Adam(model.parameters(), lr=0.02),
        eos_id=EOS,
        max_tokens=6,
        group_size=8,
        epochs=2,
    )
    history = trainer.train(PROMPTS, steps=20)
    rewards = [stats["reward_mean"] for stats in history]
    assert rewards[0] < 0.3
    assert min(rewards[-3:]) > 0.8
    assert all(stats["first_ratio_max_deviation"] == 0.0 for stats in history)
    assert all(stats["mismatch_max"] < 1e-4 for stats in history)


def test_without_an_optimizer_adamw_learns_on_float32_masters_of_a_bfloat16_model():
    model = llama().bfloat16()
    before = weights_of(model)
    trainer = GRPOTrainer(model, share_of_good, learning_rate=1e-3, max_tokens=6)
    trainer.train(PROMPTS, steps=2)
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    assert all(weight.dtype == torch.float32 for weight in trainer.optimizer.param_groups[0]["params"])
    assert any(not torch.equal(weight, before[name]) for name, weight in weights_of(model).items())


def trained(**settings):
    model = recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = GRPOTrainer(model, share_of_good, optimizer, eos_id=EOS, max_tokens=6, **settings)
    return model, [trainer.train_step(PROMPTS, step) for step in range(2)]


def test_gradient_accumulation_does_not_change_the_update():
    whole, stats = trained()
    for microbatches in (2, 4, 16):
        parts, other = trained(microbatches=microbatches)
        assert_same_weights(whole, parts, 1e-6)
        assert [one["loss"] for one in other] == pytest.approx([one["loss"] for one in stats], abs=1e-6)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_gradient_accumulation_is_several_smaller_passes(microbatches):
    rows = []
    trainer = bigram(microbatches=microbatches)
    trainer.model.register_forward_hook(
        lambda module, ids, logits: rows.append(len(logits)) if logits.requires_grad else None
    )
    trainer.train_step(PROMPTS, 0)
    assert rows == [16 // microbatches] * microbatches


def test_the_step_and_the_seed_decide_what_is_sampled():
    def sampled(step, seed=0):
        seen = []
        trainer = bigram(reward_fn=lambda prompts, completions: seen.append(completions) or [0.0] * 16, seed=seed)
        trainer.train_step(PROMPTS, step)
        return seen[0]

    assert sampled(0) == sampled(0)
    assert sampled(0) != sampled(1)
    assert sampled(0) != sampled(0, seed=1)


def test_minibatches_and_epochs_are_more_updates_and_the_ratio_leaves_1():
    _, once = trained()
    _, cut = trained(minibatches=2)
    _, thrice = trained(epochs=3)
    assert [stats["updates_applied"] for stats in (once[0], cut[0], thrice[0])] == [1, 2, 3]
    assert (once[0]["ratio_min"], once[0]["ratio_max"]) == (1.0, 1.0)
    spread = [stats[0]["ratio_max"] - stats[0]["ratio_min"] for stats in (once, trained(epochs=2)[1], thrice)]
    assert 0.0 == spread[0] < 0.01 < spread[1] < spread[2]


def test_the_kl_coefficient_holds_the_policy_near_its_reference():
    free, _ = trained()
    held, stats = trained(kl_coef=5.0)
    assert stats[0]["kl"] == 0.0 < stats[1]["kl"]
    start = weights_of(recurrent())
    far, near = (
        sum((weights_of(model)[name] - start[name]).square().sum() for name in start) for model in (free, held)
    )
    assert near < far
    assert "kl" not in trained()[1][0]


def test_the_same_seed_gives_the_same_weights_to_the_bit():
    def run(seed):
        model = recurrent()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        trainer = GRPOTrainer(
            model, share_of_good, optimizer, eos_id=EOS, max_tokens=6, epochs=2, seed=seed, prompts_per_step=3
        )
        return trainer.train(PROMPTS, steps=4), weights_of(model)

    torch.rand(7)  # the global generator must not matter
    (first, left), (second, right), (_, other) = run(3), run(3), run(4)
    assert first == second
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not all(torch.equal(left[name], other[name]) for name in left)


def test_equal_rewards_take_no_step_and_say_so():
    trainer = bigram(reward_fn=lambda prompts, completions: [1.0] * len(completions))
    before = weights_of(trainer.model)
    stats = trainer.train_step(PROMPTS, 0)
    assert (stats["skipped"], stats["updates_applied"], stats["zero_variance_share"]) == (NO_SIGNAL, 0, 1.0)
    assert (stats["loss"], stats["gradient_norm"]) == (0.0, 0.0)
    assert torch.equal(before["weight"], trainer.model.weight)


def test_dropout_is_off_even_if_the_caller_switches_the_model_to_training():
    model = nn.Sequential(nn.Embedding(7, 16), nn.Dropout(0.5), nn.Linear(16, 7))
    trainer = GRPOTrainer(model, share_of_good, torch.optim.SGD(model.parameters()), eos_id=EOS, max_tokens=6, epochs=2)
    model.train()
    assert trainer.train_step(PROMPTS, 0)["first_ratio_max_deviation"] == 0.0


class Poisoned(nn.Embedding):
    """Sound outputs, NaN gradients."""

    def forward(self, ids):
        logits = super().forward(ids)
        if logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * math.nan)
        return logits


def test_updates_that_are_not_finite_are_skipped_and_the_third_in_a_row_is_an_error():
    model = Poisoned(7, 7)
    before = model.weight.detach().clone()
    trainer = GRPOTrainer(model, share_of_good, torch.optim.Adam(model.parameters()), eos_id=EOS, max_tokens=6)
    for step in range(2):
        stats = trainer.train_step(PROMPTS, step)
        assert stats["skipped"] == "the gradient of weight is not finite"
        assert math.isnan(stats["loss"])
        assert stats["updates_applied"] == 0
    with pytest.raises(RunFailed, match=r"^3 updates in a row .*, in step 2, the gradient of weight is not finite"):
        trainer.train_step(PROMPTS, 2)
    assert torch.equal(before, model.weight)


class Exploding(torch.optim.SGD):
    """An optimizer whose step overflows."""

    def step(self):
        super().step()
        with torch.no_grad():
            self.param_groups[0]["params"][0][0, 0] = torch.inf


def test_a_step_that_throws_the_weights_out_of_range_is_named():
    model = nn.Embedding(7, 7)
    trainer = GRPOTrainer(model, share_of_good, Exploding(model.parameters(), lr=0.1), eos_id=EOS, max_tokens=6)
    with pytest.raises(
        RunFailed, match=r"^the optimizer moved the weights by inf in step 0, .* lower its learning rate"
    ):
        trainer.train_step(PROMPTS, 0)


def test_a_model_that_takes_the_portable_path_is_told_with_the_reason():
    trainer = GRPOTrainer(llama(), share_of_good, None, eos_id=EOS, max_tokens=3)
    trainer.model.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"LlamaForCausalLM is .* portable path, slowly, because model.layers.0 has"):
        trainer.train_step(PROMPTS, 0)
    with pytest.warns(UserWarning, match="because Recurrent is none of LlamaForCausalLM"):
        GRPOTrainer(recurrent(), share_of_good, None, eos_id=EOS, max_tokens=3)
