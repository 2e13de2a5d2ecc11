"""GRPOTrainer: hand-worked numbers, the same update as a plain re-implementation, and a sentence for each mistake."""

import copy
import math
import random
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import assay
from assay import GRPOTrainer
from assay.policy.causal import PromptTooLong
from assay.policy.embedded import tokenizer
from assay.train.failure import RunFailed
from assay.types import NO_SIGNAL

EOS, GOOD = 0, 2
PROMPTS = [[1, 3, 4], [5], [3, 3], [4, 1]]


class Recurrent(nn.Module):
    """A plain torch model: ids [B, L] -> logits [B, L, V]."""

    def __init__(self, vocabulary=7, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.memory(self.embedding(ids))[0])


def recurrent(seed=0):
    torch.manual_seed(seed)
    return Recurrent()


def llama(seed=0, vocabulary=7, context=32):
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(
            **shape,
            vocab_size=vocabulary,
            max_position_embeddings=context,
            initializer_range=0.2,
            eos_token_id=EOS,
            bos_token_id=None,
            pad_token_id=None,
        )
    )


def share_of_good(prompts, completions):
    return [completion.count(GOOD) / len(completion) for completion in completions]


def bigram(**settings):
    """A trainer of the smallest model there is, for whatever does not depend on the model."""
    torch.manual_seed(0)
    model = nn.Embedding(7, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return GRPOTrainer(model, settings.pop("reward_fn", share_of_good), optimizer, eos_id=EOS, max_tokens=6, **settings)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def assert_same_weights(left, right, tolerance):
    for name, weight in weights_of(left).items():
        torch.testing.assert_close(weight, weights_of(right)[name], rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


# ---------------------------------------------------------------- advantages


def test_advantages_are_distances_from_the_group_mean_over_its_sample_std():
    advantages, stats = bigram().compute_advantages([1.0, 0.0, 0.0, 1.0, 3.0, 1.0, 2.0, 6.0], group_size=4)
    # first group: mean 1/2, variance 4 * 1/4 / 3; second: mean 3, squares 0 + 4 + 1 + 9 = 14, variance 14 / 3
    first, second = math.sqrt(1 / 3) + 1e-4, math.sqrt(14 / 3) + 1e-4
    expected = [0.5 / first, -0.5 / first, -0.5 / first, 0.5 / first, 0.0, -2 / second, -1 / second, 3 / second]
    torch.testing.assert_close(advantages, torch.tensor(expected))
    # all eight: sum 14, mean 1.75, squares 52 - 8 * 1.75^2 = 27.5
    assert stats == {
        "mean": 1.75,
        "std": pytest.approx(math.sqrt(27.5 / 7)),
        "groups": 2,
        "zero_variance_share": 0.0,
        "unscored": 0,
    }


def test_the_std_and_whose_it_is_can_be_chosen():
    plain, _ = bigram(std="none").compute_advantages([3.0, 1.0, 2.0, 6.0])
    assert plain.tolist() == [0.0, -2.0, -1.0, 3.0]
    # groups (0, 2) and (10, 12): mean of all 6, squares 36 + 16 + 16 + 36 = 104, population variance 26
    batch, _ = bigram(std="population", scale="batch").compute_advantages([0, 2, 10, 12], group_size=2)
    torch.testing.assert_close(batch, torch.tensor([-1.0, 1.0, -1.0, 1.0]) / (math.sqrt(26) + 1e-4))


@pytest.mark.parametrize("make", [list, torch.tensor, lambda values: torch.tensor(values).numpy()])
def test_a_group_of_equal_rewards_gets_zeros_and_is_counted(make):
    advantages, stats = bigram().compute_advantages(make([0.1, 0.1, 0.1, 0.1, 1.0, 0.0, 0.0, 0.0]))
    assert advantages[:4].tolist() == [0.0] * 4
    assert advantages[4] > 1.4
    assert stats["zero_variance_share"] == 0.5


def test_an_unscored_reward_leaves_the_baseline_and_gets_advantage_0():
    advantages, stats = bigram(std="none").compute_advantages([1.0, None, 0.0, 0.5])
    assert advantages.tolist() == [0.5, 0.0, -0.5, 0.0]
    assert (stats["mean"], stats["unscored"]) == (0.5, 1)


def test_rewards_that_cannot_be_cut_into_groups_are_refused():
    with pytest.raises(
        ValueError, match=r"^10 rewards cannot be cut into groups of 4; pass group_size rewards for each"
    ):
        bigram().compute_advantages([0.0] * 10)
    with pytest.raises(ValueError, match=r"^0 rewards cannot be cut into groups of 4"):
        bigram().compute_advantages([])


def test_a_group_of_one_is_refused():
    with pytest.raises(ValueError, match=r"^a group of 1 has nobody to be compared with"):
        bigram().compute_advantages([1.0, 0.0], group_size=1)
    with pytest.raises(ValueError, match=r"^group_size = 1 is below its minimum 2; a group of one has nobody"):
        bigram(group_size=1)


def test_a_group_that_mixes_problems_is_refused_with_the_usual_cause():
    problems = torch.tensor([10, 11]).repeat_interleave(2)
    bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=problems)
    with pytest.raises(ValueError) as refused:
        bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=["x", "x", "a", "b"])
    assert str(refused.value) == (
        "group 1 (rewards 2 to 3) mixes problems 'a' and 'b', but only answers to one problem can be compared; were "
        "the prompts repeated with repeat instead of repeat_interleave?"
    )
    with pytest.raises(ValueError, match=r"group 0 .* mixes problems 10 and 11"):
        bigram().compute_advantages([1.0, 0.0, 1.0, 0.0], group_size=2, problems=torch.tensor([10, 11]).repeat(2))
    with pytest.raises(ValueError, match=r"^problems names 1 problems for 2 rewards; give the problem of each reward"):
        bigram().compute_advantages([1.0, 0.0], group_size=2, problems=["a"])


# ---------------------------------------------------------------- loss


def two_rows():
    """Ratios 1.25 and 0.5 in both rows; advantages +1 and -1."""
    new = torch.tensor([[0.5, 0.25], [0.5, 0.25]]).log().requires_grad_()
    old = torch.tensor([[0.4, 0.5], [0.4, 0.5]]).log()
    return new, old, torch.tensor([1.0, -1.0])


def test_the_policy_loss_has_the_hand_worked_value_and_gradient():
    new, old, advantages = two_rows()
    loss, stats = bigram().compute_policy_loss(new, old, advantages)
    # row 0: -min(1.25, 1.2) = -1.2 and -min(0.5, 0.8) = -0.5, mean -0.85
    # row 1: -min(-1.25, -1.2) = 1.25 and -min(-0.5, -0.8) = 0.8, mean 1.025
    torch.testing.assert_close(loss, torch.tensor((-0.85 + 1.025) / 2))
    loss.backward()
    # of a token that is not clipped: -ratio * A / (2 tokens * 2 rows)
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, -0.5 / 4], [1.25 / 4, 0.0]]))
    numbers = {"ratio_mean": 0.875, "ratio_min": 0.5, "ratio_max": 1.25, "clipped_share": 0.5, "tokens": 4}
    assert {name: stats[name] for name in numbers} == pytest.approx(numbers)
    assert stats["loss"] == stats["policy_loss"] == loss.item()
    assert "kl" not in stats


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masked_tokens_do_not_count_and_may_be_anything(dtype):
    new, old, advantages = two_rows()
    old[1, 1] = math.nan
    mask = torch.tensor([[1, 1], [1, 0]]).to(dtype)
    loss, stats = bigram().compute_policy_loss(new, old, advantages, mask)
    torch.testing.assert_close(loss, torch.tensor((-0.85 + 1.25) / 2))
    assert stats["tokens"] == 3


def test_sequence_log_probs_and_token_advantages_are_understood():
    new, old, advantages = two_rows()
    trainer = bigram()
    whole, _ = trainer.compute_policy_loss(new, old, advantages)
    by_token, _ = trainer.compute_policy_loss(new, old, advantages[:, None].repeat(1, 2))
    assert whole.item() == by_token.item()
    sequences, _ = trainer.compute_policy_loss(new[:, 0], old[:, 0], advantages)
    torch.testing.assert_close(sequences, torch.tensor((-1.2 + 1.25) / 2))


def test_clip_range_may_have_two_sides_and_the_objective_can_be_chosen():
    new, old, advantages = two_rows()
    loss, stats = bigram(clip_range=(0.6, 0.1)).compute_policy_loss(new, old, advantages)
    # -min(1.25, 1.1), -0.5 | 1.25, 0.5
    torch.testing.assert_close(loss, torch.tensor((-1.1 - 0.5 + 1.25 + 0.5) / 4))
    assert stats["clipped_share"] == 0.25
    constant, _ = bigram(objective="dr_grpo").compute_policy_loss(new, old, advantages)
    torch.testing.assert_close(constant, torch.tensor((-1.2 - 0.5 + 1.25 + 0.8) / (2 * 6)))  # 2 rows of max_tokens 6


def test_the_kl_to_the_reference_is_added_to_the_loss():
    new = torch.tensor([[-1.0]], requires_grad=True)
    ref = new.detach() - math.log(2)
    loss, stats = bigram(kl_coef=0.1).compute_policy_loss(new, new.detach(), torch.tensor([1.0]), ref_log_probs=ref)
    kl = 0.5 - 1 + math.log(2)  # k3 with d = log 2
    assert loss.item() == pytest.approx(-1 + 0.1 * kl)
    assert (stats["kl"], stats["kl_loss"]) == pytest.approx((kl, 0.1 * kl))
    with pytest.raises(ValueError, match=r"^kl_coef = 0\.1 needs ref_log_probs, those of the frozen reference"):
        bigram(kl_coef=0.1).compute_policy_loss(new, new.detach(), torch.tensor([1.0]))


@pytest.mark.parametrize("name", ["old_log_probs", "advantages", "ref_log_probs"])
def test_what_must_be_fixed_may_not_carry_gradient(name):
    given = {"old_log_probs": torch.zeros(2, 3), "advantages": torch.zeros(2), "ref_log_probs": torch.zeros(2, 3)}
    given[name].requires_grad_()
    with pytest.raises(ValueError, match=rf"^{name} carries gradient, so that .*; call \.detach\(\) on it$"):
        bigram().compute_policy_loss(torch.zeros(2, 3, requires_grad=True), **given)


def test_log_probs_without_gradient_are_refused_where_a_gradient_could_be():
    new, old, advantages = two_rows()
    with pytest.raises(ValueError, match=r"^log_probs carries no gradient, so that nothing would be learned"):
        bigram().compute_policy_loss(new.detach(), old, advantages)
    with torch.no_grad():
        loss, _ = bigram().compute_policy_loss(new.detach(), old, advantages)
    assert loss.item() == pytest.approx(0.0875)


@pytest.mark.parametrize(
    ("log_probs", "name", "shape", "wanted"),
    [
        ((3, 2), "advantages", (3, 1), r"\[3\] or \[3, 2\]"),
        ((3, 2), "advantages", (2,), r"\[3\] or \[3, 2\]"),
        ((3, 2), "advantages", (), r"\[3\] or \[3, 2\]"),
        ((3,), "advantages", (3, 1), r"\[3\]"),
        ((3,), "old_log_probs", (3, 1), r"\[3\]"),
        ((3, 2), "old_log_probs", (3,), r"\[3, 2\]"),
        ((3, 2), "ref_log_probs", (1, 2), r"\[3, 2\]"),
        ((3, 2), "mask", (3,), r"\[3, 2\]"),
    ],
)
def test_shapes_that_would_be_broadcast_are_refused(log_probs, name, shape, wanted):
    given = {"old_log_probs": torch.zeros(log_probs), "advantages": torch.zeros(log_probs[0]), name: torch.zeros(shape)}
    with pytest.raises(ValueError, match=rf"^{name} has shape .* beside log_probs .*; wanted is {wanted}: any other"):
        bigram().compute_policy_loss(torch.zeros(log_probs, requires_grad=True), **given)


def test_other_tensors_that_make_no_loss_are_refused():
    new, old, advantages = two_rows()
    with pytest.raises(
        ValueError, match=r"^log_probs has shape \[1, 2, 2\]; wanted is \[B, T\], one a token, or \[N\]"
    ):
        bigram().compute_policy_loss(new[None], old[None], advantages)
    with pytest.raises(ValueError, match=r"^mask is False everywhere, so no token is left to train on"):
        bigram().compute_policy_loss(new, old, advantages, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"^mask holds values other than 0 and 1"):
        bigram().compute_policy_loss(new, old, advantages, torch.full((2, 2), 0.5))
    with pytest.raises(TypeError, match=r"^advantages is the list \[1\.0, -1\.0\]; pass a tensor"):
        bigram().compute_policy_loss(new, old, [1.0, -1.0])
    with pytest.raises(ValueError, match=r"^log-probs in torch\.bfloat16 .* keep 3 digits"):
        bigram().compute_policy_loss(new.bfloat16(), old.bfloat16(), advantages)


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
        assert math.isnan(stats["loss"]) and stats["updates_applied"] == 0
    with pytest.raises(RunFailed, match=r"^3 updates in a row .*, in step 2, the gradient of weight is not finite"):
        trainer.train_step(PROMPTS, 2)
    assert torch.equal(before, model.weight)


def test_a_rate_that_throws_the_weights_out_of_range_is_named():
    model = nn.Embedding(7, 7)
    trainer = GRPOTrainer(model, share_of_good, torch.optim.SGD(model.parameters(), lr=1e38), eos_id=EOS, max_tokens=6)
    with pytest.raises(
        RunFailed, match=r"^the optimizer moved the weights by inf in step 0, .* lower its learning rate"
    ):
        trainer.train_step(PROMPTS, 0)


# ---------------------------------------------------------------- training on many prompts


def test_a_pass_answers_every_prompt_once_in_an_order_of_its_own():
    seen = []

    def reward_fn(prompts, completions):
        seen.append([prompt[0] for prompt in prompts[::2]])
        return [random.Random(str(completion)).random() for completion in completions]

    trainer = bigram(reward_fn=reward_fn, group_size=2, prompts_per_step=2)
    history = trainer.train([[token] for token in range(1, 6)], steps=6)
    assert [len(batch) for batch in seen] == [2, 2, 1, 2, 2, 1]
    first, second = ([token for batch in batches for token in batch] for batches in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == [1, 2, 3, 4, 5]
    assert first != second
    assert [stats["step"] for stats in history] == [0, 1, 2, 3, 4, 5]
    assert [stats["step"] for stats in trainer.train([[1]])] == [6]  # goes on where it was; fewer than prompts_per_step


def test_training_shows_its_progress(capsys):
    bigram().train(PROMPTS, steps=2)
    shown = capsys.readouterr().err
    assert "step 1/2" in shown and "step 2/2" in shown and "reward" in shown


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "the list of prompts is empty; there is nothing to answer"),
        ([[1], []], "prompt 1 is empty; a policy cannot continue nothing"),
        ([[1], "abc"], "prompt 1 is a text, but there is no tokenizer; pass tokenizer= or token ids"),
        ("abc", "the prompts are a str; pass a list of texts or of lists of token ids"),
        (torch.ones(2, 2), "the prompts are a Tensor; pass a list of texts or of lists of token ids"),
        ([1, 2], "prompt 0 is 1; a prompt is a text or a list of token ids without padding"),
        ([[{"role": "user"}]], r"prompt 0 is the list \[{'role': 'user'}\]; .* tokenizer\.apply_chat_template"),
        ([[1, 7]], "prompt 0 holds token 7, but the model knows tokens 0 to 6; is this the model's own tokenizer"),
    ],
)
def test_prompts_that_cannot_be_answered_are_refused(prompts, sentence):
    trainer = bigram()
    for verb in (lambda: trainer.train_step(prompts, 0), lambda: trainer.train(prompts)):
        with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
            verb()


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_by_its_number():
    model = llama(context=16)
    trainer = GRPOTrainer(model, share_of_good, max_tokens=6)
    trainer.train_step([[1] * 10], 0)
    with pytest.raises(PromptTooLong, match=r"^prompt '1' has 11 tokens and may get 6 more, but .* context is 16"):
        trainer.train_step([[1], [1] * 11], 1)


def test_training_for_no_step_is_refused():
    with pytest.raises(ValueError, match=r"^steps = 0 trains nothing; give 1 or more"):
        bigram().train(PROMPTS, steps=0)


# ---------------------------------------------------------------- rewards


def test_with_a_tokenizer_rewards_see_texts():
    words, seen = tokenizer(), []

    def reward_fn(prompts, completions):
        seen.append((prompts, completions))
        return [len(completion) for completion in completions]

    model = llama(vocabulary=len(words))
    trainer = GRPOTrainer(
        model, reward_fn, torch.optim.SGD(model.parameters(), lr=0.1), group_size=8, tokenizer=words, max_tokens=12
    )
    assert trainer.policy.eos_id == words.eos_token_id
    trainer.train_step(["312>", words.encode("45>")], 0)
    ((prompts, completions),) = seen
    assert prompts == ["312>"] * 8 + ["45>"] * 8
    assert all(isinstance(completion, str) and "<" not in completion for completion in completions)
    assert len(set(map(len, completions))) > 1  # some ended before the limit: their end token is no text


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ([0.0] * 7, "reward_fn returned 7 rewards for 8 completions; return one for each, in their order"),
        ([0.0] * 3 + [math.nan] + [0.0] * 4, "reward_fn: reward 3 is nan; it must be a finite number"),
        (torch.tensor([0.0] * 7 + [math.inf]), "reward_fn: reward 7 is inf; it must be a finite number"),
        ([10**400] + [0.0] * 7, "reward_fn: reward 0 is 1000.*; it must be a finite number"),
        (["1.0"] * 8, r"reward_fn: reward 0 is the str '1\.0'; it must be a finite number \(or None if it could not"),
        (torch.zeros(2, 4), r"reward_fn: reward 0 is the list \[0\.0, 0\.0, 0\.0, 0\.0\]; it must be a finite number"),
        (None, "reward_fn: None is not a list, array or tensor of rewards, one for each completion"),
        (0.5, "reward_fn: 0.5 is not a list, array or tensor of rewards"),
        ("12345678", "reward_fn: the str '12345678' is not a list, array or tensor of rewards"),
    ],
)
def test_rewards_that_are_none_are_refused_and_nothing_is_learned(returned, sentence):
    trainer = bigram(reward_fn=lambda prompts, completions: returned)
    before = weights_of(trainer.model)
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        trainer.train_step([[1], [3]], 0)
    assert torch.equal(before["weight"], trainer.model.weight)


def test_a_quarter_of_the_completions_may_be_unscored_and_is_not_trained_as_a_zero():
    def reward_fn(missing):
        return lambda prompts, completions: [None] * missing + [float(row) for row in range(8 - missing)]

    stats = bigram(reward_fn=reward_fn(2)).train_step([[1], [3]], 0)
    assert (stats["rollouts_unscored"], stats["reward_mean"]) == (2, 2.5)
    with pytest.raises(RunFailed, match=r"^reward_fn returned None for 3 of 8 .*first of them is 0\), more than 25%"):
        bigram(reward_fn=reward_fn(3)).train_step([[1], [3]], 0)


@pytest.mark.parametrize("error", [KeyError("answer"), TimeoutError("judge"), SystemExit(3)])
def test_what_a_reward_raises_is_raised(error):
    def reward_fn(prompts, completions):
        raise error

    with pytest.raises(type(error)) as raised:
        bigram(reward_fn=reward_fn).train_step([[1], [3]], 0)
    assert raised.value is error
    assert "raised by reward_fn, called for 8 completions; no update was made" in raised.value.__notes__


def test_a_reward_that_never_returns_is_an_error():
    hang = threading.Event()
    trainer = bigram(reward_fn=lambda prompts, completions: hang.wait(), reward_timeout=0.05)
    try:
        with pytest.raises(
            TimeoutError, match=r"^reward_fn did not return within reward_timeout = 0\.05 seconds for 8"
        ):
            trainer.train_step([[1], [3]], 0)
    finally:
        hang.set()


# ---------------------------------------------------------------- construction


def test_settings_are_refused_in_the_words_of_the_constructor():
    for settings, sentence in (
        ({"clip_range": (-0.1, 0.2)}, r"clip_range\[0\] = -0\.1 is below its minimum 0"),
        ({"clip_range": (0.1, 0.2, 0.3)}, r"clip_range = \(0\.1, 0\.2, 0\.3\) is neither one number nor \(low, high\)"),
        ({"group_size": 4.0}, r"group_size = 4\.0 must be a whole number, not float"),
        ({"minibatches": 5}, "prompts_per_step x group_size = 32 rows cannot be cut evenly into minibatches = 5"),
        ({"microbatches": 64}, "32 rows are fewer than minibatches x microbatches = 64"),
        ({"temperature": 0}, r"temperature = 0\.0 is below its minimum 0\.001"),
        ({"std": "samples"}, "std = 'samples' is not one of sample, population, none; did you mean 'sample'"),
        ({"objective": "ppo"}, "objective = 'ppo' is not one of .*dapo.*grpo"),
        ({"learning_rate": 0.1}, r"learning_rate = 0\.1 would be ignored: the optimizer has its own; set it there"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            bigram(**settings)


def test_models_and_functions_of_the_wrong_kind_are_refused():
    model = nn.Embedding(7, 7)
    with pytest.raises(TypeError, match=r"^model is a str; pass the torch module itself"):
        GRPOTrainer("some/model", share_of_good)
    with pytest.raises(TypeError, match=r"^reward_fn is a list; pass a function of"):
        GRPOTrainer(model, [1.0], eos_id=EOS)
    with pytest.raises(TypeError, match=r"^optimizer is a float; pass a torch optimizer, or None for AdamW"):
        GRPOTrainer(model, share_of_good, 0.1, eos_id=EOS)
    other = torch.optim.SGD(nn.Embedding(7, 7).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^the optimizer does not hold 1 of the model's 1 trainable tensors"):
        GRPOTrainer(model, share_of_good, other, eos_id=EOS)


def test_a_model_must_say_where_a_completion_ends():
    with pytest.raises(ValueError, match=r"^the model's config names no end token; pass eos_id="):
        GRPOTrainer(nn.Embedding(7, 7), share_of_good)
    with pytest.raises(ValueError, match=r"^eos_id = 7 can never be sampled: the model knows tokens 0 to 6"):
        GRPOTrainer(nn.Embedding(7, 7), share_of_good, eos_id=7)
    several = llama()
    several.config.eos_token_id = [0, 1]
    with pytest.raises(ValueError, match=r"^the model's config names several end tokens \(\[0, 1\]\); pass eos_id="):
        GRPOTrainer(several, share_of_good)
    assert GRPOTrainer(several, share_of_good, eos_id=1).policy.eos_id == 1


class Pair(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids), None


def test_a_model_that_does_not_map_ids_to_logits_of_the_next_token_is_refused():
    with pytest.raises(ValueError, match=r"^for token ids \[2, 2\] the model returned a tuple; it must return logits"):
        GRPOTrainer(Pair(7, 7), share_of_good, eos_id=EOS)
    with pytest.raises(
        ValueError, match=r"^for token ids \[2, 2\] the model returned \[2, 14\]; it must return logits"
    ):
        GRPOTrainer(nn.Sequential(nn.Embedding(7, 7), nn.Flatten()), share_of_good, eos_id=EOS)
    sees_ahead = recurrent()
    sees_ahead.memory = nn.GRU(16, 8, batch_first=True, bidirectional=True)
    with pytest.raises(ValueError, match=r"^the model is not causal: its output at one token depends on the next one"):
        GRPOTrainer(sees_ahead, share_of_good, eos_id=EOS)
    broken = nn.Embedding(7, 7)
    broken.weight.data[0, 3] = math.nan
    with pytest.raises(ValueError, match=r"^the model's logits are not finite before any training"):
        GRPOTrainer(broken, share_of_good, eos_id=EOS)


# ---------------------------------------------------------------- the package


def test_importing_the_package_does_not_import_torch():
    code = "import assay, sys; print(assay.__version__, 'GRPOTrainer' in dir(assay), 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [assay.__version__, "True", "False"]
    with pytest.raises(AttributeError, match=r"^module 'assay' has no attribute 'GRPOTrainr'$"):
        assay.GRPOTrainr  # noqa: B018


def test_the_example_learns(capsys):
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "trainer.py"), run_name="__main__")
    before, after = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[-2:])
    assert before < 0.4 < 0.8 < after
