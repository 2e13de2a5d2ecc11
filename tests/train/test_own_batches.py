"""GRPOTrainer as guides write it: a plain module, log-probs of one's own, loss.backward(), accumulation."""

import math

import pytest
import torch
from torch import nn

from assay import GRPOTrainer
from assay.types import NO_SIGNAL

ACTIONS = 3


def right(inputs, outputs):
    return [float(output == one) for one, output in zip(inputs, outputs, strict=True)]


def actor(rate=0.1, **settings):
    """A policy over three actions: no tokens, no end token, nothing that could be sampled as a text."""
    torch.manual_seed(0)
    model = nn.Linear(ACTIONS, ACTIONS, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return model, GRPOTrainer(model, settings.pop("reward_fn", right), optimizer, **settings)


def scored(model, inputs, outputs):
    """log p(output | input) of each row, by the definition of softmax."""
    logits = model(torch.eye(ACTIONS)[inputs])
    return (logits - logits.exp().sum(-1, keepdim=True).log()).gather(-1, torch.tensor(outputs)[:, None])[:, 0]


def batch_of(model, inputs, outputs):
    log_probs = scored(model, inputs, outputs)
    return {"inputs": inputs, "outputs": outputs, "log_probs": log_probs, "old_log_probs": log_probs.detach()}


def test_the_walk_through_of_a_guide_runs_as_it_is_written():
    model, trainer = actor(rate=0.5, group_size=4, kl_coef=0.0, clip_range=0.2)
    advantages, stats = trainer.compute_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), group_size=4)
    assert stats["zero_variance_share"] == 0.0
    log_probs = scored(model, [0, 0, 0, 0], [0, 1, 2, 0])
    loss = trainer.compute_policy_loss(log_probs, log_probs.detach(), advantages)
    loss.backward()
    assert model.weight.grad.abs().sum() > 0
    before = torch.softmax(model.weight.detach().T, -1).diagonal()
    for step in range(60):
        inputs = [0] * 4 + [1] * 4 + [2] * 4
        outputs = torch.distributions.Categorical(logits=model(torch.eye(3)[inputs])).sample().tolist()
        stats = trainer.train_step(batch_of(model, inputs, outputs), step)
        assert stats["step"] == step
        assert stats["ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    after = torch.softmax(model.weight.detach().T, -1).diagonal()
    assert (after > before).all()


def test_a_step_is_plain_gradient_descent_on_the_hand_worked_loss():
    model, trainer = actor(rate=0.1, group_size=2, std="none", clip_norm=0.0)
    twin = nn.Linear(ACTIONS, ACTIONS, bias=False)
    twin.load_state_dict(model.state_dict())
    inputs, outputs = [0, 0, 2, 2], [0, 1, 1, 2]
    stats = trainer.train_step(batch_of(model, inputs, outputs), 0)
    # rewards 1 0 0 1, group means 1/2: advantages +-1/2; at ratio 1 the gradient is that of -mean(A * log p)
    loss = -(torch.tensor([0.5, -0.5, -0.5, 0.5]) * scored(twin, inputs, outputs)).mean()
    (gradient,) = torch.autograd.grad(loss, twin.weight)
    torch.testing.assert_close(model.weight, twin.weight - 0.1 * gradient)
    assert stats["updates_applied"] == 1
    assert stats["gradient_norm"] == pytest.approx(gradient.norm().item())
    assert stats["reward_mean"] == 0.5


def test_accumulated_batches_give_the_update_of_one_large_batch():
    rows = [([0, 0], [0, 1]), ([2, 2], [1, 2]), ([1, 1], [1, 0]), ([0, 0], [2, 0])]
    whole_model, whole = actor(group_size=2)
    inputs, outputs = ([row for part in parts for row in part] for parts in zip(*rows, strict=True))
    whole.train_step(batch_of(whole_model, inputs, outputs), 0)
    model, trainer = actor(group_size=2, gradient_accumulation_steps=4)
    start = model.weight.detach().clone()
    counts = []
    for step, (inputs, outputs) in enumerate(rows):
        assert torch.equal(model.weight, start)
        counts.append(trainer.train_step(batch_of(model, inputs, outputs), step))
    assert [(stats["accumulated"], stats["updates_applied"]) for stats in counts] == [(1, 0), (2, 0), (3, 0), (4, 1)]
    torch.testing.assert_close(model.weight, whole_model.weight)


def test_a_gradient_that_was_left_behind_does_not_count():
    model, trainer = actor(group_size=2)
    clean_model, clean = actor(group_size=2)
    model.weight.grad = torch.full_like(model.weight, 7.0)
    for one, its in ((model, trainer), (clean_model, clean)):
        its.train_step(batch_of(one, [0, 0], [0, 1]), 0)
    torch.testing.assert_close(model.weight, clean_model.weight)


def test_equal_rewards_move_nothing_also_with_momentum():
    model, _ = actor()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    trainer = GRPOTrainer(model, right, optimizer, group_size=2)
    trainer.train_step(batch_of(model, [0, 0], [0, 1]), 0)
    before = model.weight.detach().clone()
    stats = trainer.train_step(batch_of(model, [0, 0], [1, 2]), 1)
    assert (stats["skipped"], stats["updates_applied"], stats["zero_variance_share"]) == (NO_SIGNAL, 0, 1.0)
    assert torch.equal(model.weight, before)


def test_a_gradient_that_is_not_finite_never_reaches_the_optimizer():
    model, trainer = actor(group_size=2)
    before = model.weight.detach().clone()
    batch = batch_of(model, [0, 0], [0, 1])
    batch["log_probs"] = batch["log_probs"] * math.nan
    stats = trainer.train_step(batch, 0)
    assert stats["skipped"].startswith("the gradient norm is ")
    assert torch.equal(model.weight, before)


def test_inputs_may_be_named_once_and_ids_may_be_tensors():
    seen = []

    def reward_fn(inputs, outputs):
        seen.append((inputs, outputs))
        return [float(output[0] == one) for one, output in zip(inputs, outputs, strict=True)]

    model, trainer = actor(group_size=2, reward_fn=reward_fn)
    batch = batch_of(model, [0, 0, 2, 2], [0, 1, 1, 2])
    batch["inputs"], batch["outputs"] = torch.tensor([0, 2]), torch.tensor([[0], [1], [1], [2]])
    assert trainer.train_step(batch, 0)["reward_mean"] == 0.5
    assert seen == [([0, 0, 2, 2], [[0], [1], [1], [2]])]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outputs": None}, "the batch has no 'outputs'; it needs 'inputs', 'outputs', 'log_probs', 'old_log_probs'"),
        ({"answers": [1, 2]}, "no reward function takes 'answers'; add it to the function's arguments"),
        ({"answers": [1]}, "1 answers do not fit 4 outputs; pass one for each input, or one for each output"),
        ({"outputs": [0, 1, 1]}, "3 outputs cannot be cut into groups of 2; pass group_size outputs for each input"),
        ({"inputs": [0, 1, 2]}, "3 inputs do not fit 4 outputs; pass one for each input, or one for each output"),
        ({"inputs": [0, 2, 0, 2]}, r"group 0 .* mixes problems 0 and 2, but only answers to one problem"),
        ({"inputs": "abcd"}, "inputs is the str 'abcd'; pass a list, one entry for each row"),
        ({"log_probs": torch.zeros(3, requires_grad=True)}, "log_probs has 3 rows for 4 outputs"),
        ({"old_log_probs": torch.zeros(4, requires_grad=True)}, "old_log_probs carries gradient"),
        ({"log_probs": torch.zeros(4)}, "log_probs carries no gradient"),
        ({"log_probs": torch.zeros(4, requires_grad=True)}, "the gradient of log_probs reaches no weight"),
    ],
)
def test_a_batch_that_cannot_be_learned_from_is_refused_in_one_sentence(change, sentence):
    model, trainer = actor(group_size=2)
    batch = {**batch_of(model, [0, 0, 2, 2], [0, 1, 1, 2]), **change}
    before = model.weight.detach().clone()
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        trainer.train_step({name: value for name, value in batch.items() if value is not None}, 0)
    assert torch.equal(model.weight, before)


def test_an_end_token_is_asked_for_only_when_something_is_to_be_sampled():
    _, trainer = actor()
    trainer.compute_advantages([1.0, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"^the model's config names no end token; pass eos_id="):
        trainer.train_step([[1, 2]], 0)
    with pytest.raises(ValueError, match=r"^the model's config names no end token; pass eos_id="):
        trainer.train([[1, 2]])


def test_what_cannot_be_accumulated_is_refused():
    with pytest.raises(ValueError, match=r"^objective = 'dapo' divides by the tokens of the whole update"):
        actor(objective="dapo", gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match=r"^gradient_accumulation_steps = 0 is below its minimum 1"):
        actor(gradient_accumulation_steps=0)
    embedding = nn.Embedding(7, 7)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^gradient_accumulation_steps counts batches of your own log-probs"):
        GRPOTrainer(embedding, right, optimizer, eos_id=0, gradient_accumulation_steps=2).train_step([[1]], 0)
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"^a batch of log-probs needs an optimizer to step with"):
        GRPOTrainer(model, right, group_size=2).train_step(batch_of(model, [0, 0], [0, 1]), 0)
