import math
from dataclasses import asdict, replace

import pytest
import torch
from fixtures.tiny import sample, tiny_policy, uneven_samples

from assay.config import LossConfig, OptimizerConfig
from assay.grpo import OBJECTIVES
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.train.step import learner as learner_module
from assay.train.step.learner import Learner, learning_rate
from assay.train.step.pack import pack_rows
from assay.types import NO_SIGNAL, Microbatch

CPU = torch.device("cpu")


def minibatches(samples, *, order=None, minibatches=1, microbatches=1, sharing=Sharing.NEVER, **how):
    order, packing = range(len(samples)) if order is None else order, CausalPacking(CPU, sharing)
    return pack_rows(samples, order, packing, minibatches=minibatches, microbatches=microbatches, max_tokens=8, **how)


def learner(loss=None, optimizer=None, *, policy=None, with_reference=False):
    policy = policy or tiny_policy()
    reference = tiny_policy(seed=1).frozen_copy() if with_reference else None
    return Learner(policy, reference, loss or LossConfig(), optimizer or OptimizerConfig(), total_updates=10)


def one_update(samples, loss=None, change=lambda batch: batch, epochs=1, clip_norm=1e9, **cut):
    """(update, weights after it): one SGD step of a visible size, from fixed weights. Adam would hide the size."""
    policy = tiny_policy()
    reference = tiny_policy(seed=1).frozen_copy() if loss and loss.kl_coef else None
    settings = OptimizerConfig(epochs=epochs, clip_norm=clip_norm)
    sgd = torch.optim.SGD(policy.model.parameters(), lr=1.0)
    one = Learner(policy, reference, loss or LossConfig(), settings, total_updates=10, optimizer=sgd)
    (minibatch,) = minibatches(samples, **cut)
    batch = one.freeze([replace(minibatch, microbatches=tuple(map(change, minibatch.microbatches)))])
    learned = one.update(batch.minibatches[0], batch.frozen[0], 0)
    assert learned.update.applied
    return learned.update, {name: weight.detach().clone() for name, weight in zip(one.names, one.weights, strict=True)}


def assert_same_step(first, second, tolerance=2e-6):
    assert first[0].loss == pytest.approx(second[0].loss, abs=tolerance)
    for name, weight in first[1].items():
        assert torch.allclose(weight, second[1][name], atol=tolerance, rtol=0), name


LOSSES = [LossConfig(objective=name) for name in OBJECTIVES] + [
    LossConfig(kl_coef=0.1, entropy_coef=0.01),
    LossConfig(kl_coef=0.1, kl_estimator="k2", kl_gradient="naive"),
    LossConfig(correction="sequence", correction_mode="mask", correction_high=100.0),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.objective}-{loss.kl_coef}-{loss.correction}")
def test_the_gradient_does_not_depend_on_the_cut_into_microbatches(loss):
    whole = one_update(uneven_samples(), loss)
    assert whole[0].gradient_norm > 1e-3
    for parts in (2, 4, 8):
        assert_same_step(whole, one_update(uneven_samples(), loss, microbatches=parts))
    for tokens in (1, 12, 20):
        by_tokens = one_update(uneven_samples(), loss, microbatches=0, pass_tokens=tokens, sharing=Sharing.ALWAYS)
        assert_same_step(whole, by_tokens)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.objective}-{loss.kl_coef}-{loss.correction}")
def test_the_gradient_does_not_depend_on_the_order_of_rows_and_groups(loss):
    whole = one_update(uneven_samples(), loss)
    assert_same_step(whole, one_update(uneven_samples(), loss, order=[7, 2, 5, 0, 3, 6, 1, 4], microbatches=2))


def pad(batch: Microbatch, rows_of_garbage: float) -> Microbatch:
    """Three more columns on the right of everything; garbage under the mask."""
    inputs = batch.inputs

    def wider(tensor, value):
        return torch.cat([tensor, torch.full((len(tensor), 3), value, dtype=tensor.dtype)], dim=1)

    hidden_BT = wider(batch.mask_BT, False)
    moved_BT = inputs.predictors_BT + inputs.predictors_BT // inputs.ids_RS.shape[1] * 3  # rows are 3 tokens wider
    wider_inputs = replace(
        inputs,
        ids_RS=wider(inputs.ids_RS, 12),
        positions_RS=wider(inputs.positions_RS, 2),
        predictors_BT=wider(moved_BT.where(inputs.predictors_BT >= 0, -1), 2),
        targets_BT=wider(inputs.targets_BT, 5),
    )
    return replace(
        batch,
        inputs=wider_inputs,
        mask_BT=hidden_BT,
        sampler_BT=wider(batch.sampler_BT, 0.0).where(hidden_BT, rows_of_garbage),
        advantages_BT=wider(batch.advantages_BT, 0.0).where(hidden_BT, rows_of_garbage),
    )


@pytest.mark.parametrize("garbage", [0.0, 1e6, math.nan, math.inf])
def test_padding_and_what_stands_under_the_mask_change_nothing(garbage):
    loss = LossConfig(kl_coef=0.1, correction="token", correction_high=100.0)
    plain = one_update(uneven_samples(), loss, epochs=2)
    padded = one_update(uneven_samples(), loss, epochs=2, change=lambda batch: pad(batch, garbage))
    assert_same_step(plain, padded)
    assert plain[0].tokens == padded[0].tokens == 27


def test_a_prompt_computed_once_for_its_completions_gives_the_same_update():
    for loss in (LossConfig(kl_coef=0.1), LossConfig(objective="gspo", entropy_coef=0.01)):
        apart = one_update(uneven_samples(), loss)
        together = one_update(uneven_samples(), loss, sharing=Sharing.WHERE_IT_PAYS)
        assert_same_step(apart, together)
        order = [7, 0, 3, 2, 5, 1, 4, 6]
        in_parts = one_update(uneven_samples(), loss, sharing=Sharing.WHERE_IT_PAYS, microbatches=3, order=order)
        assert_same_step(apart, in_parts)


def test_the_first_update_has_ratio_exactly_1_and_an_identical_reference_has_kl_exactly_0():
    policy = tiny_policy()
    one = Learner(policy, policy.frozen_copy(), LossConfig(kl_coef=0.1), OptimizerConfig(epochs=4), total_updates=4)
    batch = one.freeze(minibatches(uneven_samples(), microbatches=3))
    update = one.update(batch.minibatches[0], batch.frozen[0], 0).update
    assert (update.ratio_min, update.ratio_max, update.ratio_sum) == (1.0, 1.0, 27.0)
    assert (update.ref_kl_sum, update.kl_loss, update.old_kl_sum) == (0.0, 0.0, 0.0)


def test_the_spread_of_the_ratio_grows_with_the_inner_epoch():
    one = learner(LossConfig(), OptimizerConfig(epochs=4, learning_rate=1e-4))
    batch = one.freeze(minibatches(uneven_samples()))
    updates = [one.update(batch.minibatches[0], batch.frozen[0], number).update for number in range(4)]
    spreads = [update.ratio_max - update.ratio_min for update in updates]
    assert spreads[0] == 0.0
    assert spreads == sorted(spreads)
    assert spreads[3] > 2 * spreads[1] > 0


def test_an_update_raises_the_log_probs_of_good_answers_and_lowers_those_of_bad_ones():
    one = learner(LossConfig(), OptimizerConfig(epochs=2, learning_rate=1e-3))
    (minibatch,) = minibatches(uneven_samples())
    batch = one.freeze([minibatch])
    (microbatch,) = minibatch.microbatches
    before = one.policy.logprobs(microbatch.inputs)[0].detach()
    one.update(minibatch, batch.frozen[0], 0)
    change_BT = one.policy.logprobs(microbatch.inputs)[0].detach() - before
    assert (change_BT * microbatch.advantages_BT * microbatch.mask_BT).sum() > 0


def test_a_flat_batch_moves_nothing_not_even_by_momentum():
    one = learner(LossConfig(), OptimizerConfig(epochs=1))
    batch = one.freeze(minibatches(uneven_samples()))
    one.update(batch.minibatches[0], batch.frozen[0], 0)
    before = [weight.detach().clone() for weight in one.weights]
    flat = [replace(packed, advantage=0.0) for packed in uneven_samples()]
    batch = one.freeze(minibatches(flat))
    update = one.update(batch.minibatches[0], batch.frozen[0], 1).update
    assert (update.applied, update.skipped) == (False, NO_SIGNAL)
    assert all(torch.equal(weight, start) for weight, start in zip(one.weights, before, strict=True))
    # with a KL term there is something to learn even so
    pulled = learner(LossConfig(kl_coef=0.1), OptimizerConfig(epochs=1), with_reference=True)
    batch = pulled.freeze(minibatches(flat))
    assert pulled.update(batch.minibatches[0], batch.frozen[0], 0).update.applied


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["advantage", "weight", "old"])
def test_nothing_that_is_not_finite_reaches_the_optimizer(place, value):
    one = learner(LossConfig(), OptimizerConfig(epochs=2))
    batch = one.freeze(minibatches(uneven_samples()))
    one.update(batch.minibatches[0], batch.frozen[0], 0)  # Adam has moments by now
    if place == "advantage":
        poisoned = [
            replace(packed, advantage=value) if row == 4 else packed for row, packed in enumerate(uneven_samples())
        ]
        batch = one.freeze(minibatches(poisoned))
    elif place == "old":
        batch.frozen[0][0].old_BT[4, 1] = value
    else:
        with torch.no_grad():
            one.weights[3][0, 0] = value
    weights = [weight.detach().clone() for weight in one.weights]
    moments = [{key: state.clone() for key, state in one.optimizer.state[m].items()} for m in one.masters]
    update = one.update(batch.minibatches[0], batch.frozen[0], 1).update
    assert not update.applied
    assert update.skipped != NO_SIGNAL
    expected = {
        "advantage": "advantage of row 4, token 0",
        "weight": "log-prob",
        "old": "old log-prob of row 4, token 1",
    }[place]
    assert expected in update.skipped
    for weight, start in zip(one.weights, weights, strict=True):
        assert torch.equal(weight.nan_to_num(), start.nan_to_num())
    for master, moment in zip(one.masters, moments, strict=True):
        assert all(torch.equal(one.optimizer.state[master][key], value) for key, value in moment.items())
    assert all(weight.grad is None for weight in one.weights)


def test_masters_keep_updates_that_bfloat16_would_round_away():
    policy = tiny_policy(dtype=torch.bfloat16)
    settings = OptimizerConfig(
        epochs=1, learning_rate=1e-5, warmup=0
    )  # a bfloat16 weight near 0.3 moves in steps of 2e-3
    one = Learner(policy, None, LossConfig(), settings, total_updates=100)
    start = [weight.detach().clone() for weight in one.weights]
    masters = [master.detach().clone() for master in one.masters]
    for number in range(3):
        batch = one.freeze(minibatches(uneven_samples(), microbatches=2))
        update = one.update(batch.minibatches[0], batch.frozen[0], number).update
        assert update.tensors_changed == update.tensors
    moved = [float((m - s).detach().abs().max()) for m, s in zip(one.masters, masters, strict=True)]
    assert min(moved) == pytest.approx(3e-5, rel=0.2)
    assert all(
        torch.equal(w.float(), m.to(torch.bfloat16).float()) for w, m in zip(one.weights, one.masters, strict=True)
    )
    assert sum(torch.equal(w, s) for w, s in zip(one.weights, start, strict=True)) > 0  # the point of having masters


def test_gradients_are_clipped_to_the_norm():
    steps = []
    for clip_norm in (1e9, 0.01):
        one = learner(LossConfig(), OptimizerConfig(epochs=1, clip_norm=clip_norm))
        one.optimizer, one.scheduled = torch.optim.SGD(one.masters, lr=1.0), False
        batch = one.freeze(minibatches(uneven_samples()))
        steps.append(one.update(batch.minibatches[0], batch.frozen[0], 0).update)
    assert steps[0].update_norm == pytest.approx(steps[0].gradient_norm, rel=1e-4)
    assert steps[1].gradient_norm == pytest.approx(steps[0].gradient_norm)  # as measured, before the clip
    assert steps[1].update_norm == pytest.approx(0.01, rel=1e-3)


def test_learning_rate_schedules_by_hand():
    def rates(schedule, warmup=0):
        settings = OptimizerConfig(learning_rate=8.0, schedule=schedule, warmup=warmup)
        return [learning_rate(settings, update, 4 + warmup) for update in range(4 + warmup)]

    assert rates("constant") == [8.0] * 4
    assert rates("linear") == [8.0, 6.0, 4.0, 2.0]
    assert rates("cosine") == pytest.approx([8.0, 8 * 0.8535534, 4.0, 8 * 0.1464466])
    assert rates("constant", warmup=4)[:5] == [2.0, 4.0, 6.0, 8.0, 8.0]


def test_kl_in_the_reward_is_the_sum_of_log_prob_differences_over_the_completion():
    one = learner(LossConfig(kl_coef=0.1, kl_placement="reward", kl_estimator="k1"), with_reference=True)
    (minibatch,) = minibatches(uneven_samples())
    (batch,) = minibatch.microbatches
    new, ref = one.policy.logprobs(batch.inputs)[0], one.reference.logprobs(batch.inputs)[0]
    expected = [float((new - ref)[row][batch.mask_BT[row]].detach().sum()) for row in range(8)]
    assert one.sequence_kl(batch) == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) > 0.1


def test_an_optimizer_that_does_not_hold_the_weights_is_refused():
    policy = tiny_policy()
    other = torch.optim.SGD(tiny_policy().model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"does not hold 21 of the model's 21 trainable tensors"):
        Learner(policy, None, LossConfig(), OptimizerConfig(), 1, optimizer=other)
    rounded = tiny_policy(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="small updates would be rounded away"):
        Learner(
            rounded, None, LossConfig(), OptimizerConfig(), 1, optimizer=torch.optim.SGD(rounded.model.parameters())
        )
    frozen = tiny_policy()
    frozen.model.requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        Learner(frozen, None, LossConfig(), OptimizerConfig(), 1)


def test_a_row_out_of_the_loss_has_no_influence_on_the_direction():
    kept = uneven_samples()
    masked = [*kept[:-1], replace(kept[-1], in_loss=False)]
    other = [*kept[:-1], sample(3, (10, 11, 12), (12, 12), 99.0, in_loss=False)]
    assert_same_step(one_update(masked), one_update(other))


def test_the_entropy_bonus_raises_the_entropy_and_without_it_entropy_has_no_gradient():
    flat = [replace(packed, advantage=0.0) for packed in uneven_samples()]
    one = learner(LossConfig(entropy_coef=1.0), OptimizerConfig(epochs=1, learning_rate=1e-3, warmup=0))
    entropies = []
    for number in range(3):
        batch = one.freeze(minibatches(flat))
        entropies.append(one.update(batch.minibatches[0], batch.frozen[0], number).update.entropy_sum)
    assert entropies[0] < entropies[1] < entropies[2]
    (batch,) = minibatches(flat)[0].microbatches
    assert not one.policy.logprobs(batch.inputs)[1].requires_grad
    assert one.policy.logprobs(batch.inputs, entropy_gradient=True)[1].requires_grad


def test_an_update_without_a_single_loss_token_moves_nothing():
    one = learner(LossConfig(kl_coef=0.1), OptimizerConfig(epochs=1, warmup=0), with_reference=True)
    batch = one.freeze(minibatches(uneven_samples()))
    one.update(batch.minibatches[0], batch.frozen[0], 0)
    batch = one.freeze(minibatches([replace(packed, in_loss=False) for packed in uneven_samples()]))
    update = one.update(batch.minibatches[0], batch.frozen[0], 1).update
    assert (update.applied, update.tokens, update.update_norm) == (False, 0, 0.0)


def test_an_optimizer_that_climbs_is_refused():
    policy = tiny_policy()
    climber = torch.optim.SGD(policy.model.parameters(), lr=0.1, maximize=True)
    with pytest.raises(ValueError, match="maximize=True and would climb the loss"):
        Learner(policy, None, LossConfig(), OptimizerConfig(), 1, optimizer=climber)


def test_a_clip_norm_of_0_clips_nothing():
    free, clipped = (one_update(uneven_samples(), clip_norm=norm)[0] for norm in (0.0, 0.01))
    assert free.update_norm == pytest.approx(free.gradient_norm, rel=1e-4)
    assert clipped.update_norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stepping_a_few_tensors_at_a_time_gives_the_same_bits(dtype, monkeypatch):
    ends = []
    for numbers in (learner_module.STEP_NUMBERS, 300, 1):
        monkeypatch.setattr(learner_module, "STEP_NUMBERS", numbers)
        one = learner(LossConfig(), OptimizerConfig(epochs=3, clip_norm=0.5), policy=tiny_policy(dtype=dtype))
        batch = one.freeze(minibatches(uneven_samples(), microbatches=2))
        updates = [one.update(batch.minibatches[0], batch.frozen[0], number).update for number in range(3)]
        moments = [one.optimizer.state[master] for master in one.masters]
        ends.append((len(one._chunks), updates, one.weights, one.masters, moments))
    assert [chunks for chunks, *_ in ends] == [1, 16, 21]
    for _, updates, weights, masters, moments in ends[1:]:
        assert updates == ends[0][1]
        for mine, theirs in zip((*weights, *masters), (*ends[0][2], *ends[0][3]), strict=True):
            assert torch.equal(mine, theirs)
        for mine, theirs in zip(moments, ends[0][4], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_gradients_of_rounded_weights_add_up_in_their_masters_and_are_gone_at_once():
    one = learner(LossConfig(), OptimizerConfig(epochs=1), policy=tiny_policy(dtype=torch.bfloat16))
    kept = []

    class Looks:
        def differentiating(self, *given):
            kept.append([weight.grad for weight in one.weights])

        def stepping(self, masters):
            kept.append([weight.grad for weight in one.weights])
            kept.append([master.grad.clone() for master in masters])

    batch = one.freeze(minibatches(uneven_samples(), microbatches=2))
    one.update(batch.minibatches[0], batch.frozen[0], 0, observer=Looks())
    *before, folded = kept
    assert len(before) == 3
    assert all(gradient is None for gradients in before for gradient in gradients)
    assert all(gradient.dtype == torch.float32 for gradient in folded)
    # and the weights are as they were for anybody else
    (microbatch,) = minibatches(uneven_samples())[0].microbatches
    one.policy.logprobs(microbatch.inputs)[0].sum().backward()
    assert all(weight.grad is not None for weight in one.weights)
    assert all(master.grad is None for master in one.masters)


def test_an_optimizer_that_is_handed_in_steps_everything_at_once(monkeypatch):
    monkeypatch.setattr(learner_module, "STEP_NUMBERS", 1)
    policy, seen = tiny_policy(), []
    sgd = torch.optim.SGD(policy.model.parameters(), lr=0.1)
    sgd.register_step_pre_hook(lambda *given: seen.append(sum(w.grad is not None for w in policy.model.parameters())))
    one = Learner(policy, None, LossConfig(), OptimizerConfig(epochs=1), 1, optimizer=sgd)
    batch = one.freeze(minibatches(uneven_samples()))
    one.update(batch.minibatches[0], batch.frozen[0], 0)
    assert seen == [21]


def test_the_statistics_of_an_update_do_not_depend_on_the_cut():
    statistics = []
    for parts in (1, 4):
        one = learner(
            LossConfig(kl_coef=0.1), OptimizerConfig(epochs=2, learning_rate=1e-3, warmup=0), with_reference=True
        )
        batch = one.freeze(minibatches(uneven_samples(), microbatches=parts))
        one.update(batch.minibatches[0], batch.frozen[0], 0)
        update = asdict(one.update(batch.minibatches[0], batch.frozen[0], 1).update)
        statistics.append({name: value for name, value in update.items() if name != "skipped"})
    assert statistics[0] == pytest.approx(statistics[1], rel=2e-4, abs=1e-6)
    assert statistics[0]["ratio_min"] < 0.99 < 1.01 < statistics[0]["ratio_max"]


class Assigning(torch.optim.Optimizer):
    """Puts new memory in the place of a parameter's, as some optimizers do."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            parameter.data = parameter.data - 0.1 * parameter.grad


def test_what_moved_is_seen_when_an_optimizer_assigns_new_weights():
    moved = []
    for make in (lambda weights: torch.optim.SGD(weights, lr=0.1), lambda weights: Assigning(weights, {"lr": 0.1})):
        policy = tiny_policy()
        optimizer = make(list(policy.model.parameters()))
        one = Learner(policy, None, LossConfig(), OptimizerConfig(epochs=1), 1, optimizer=optimizer)
        batch = one.freeze(minibatches(uneven_samples()))
        update = one.update(batch.minibatches[0], batch.frozen[0], 0).update
        moved.append((update.update_norm, update.tensors_changed))
    assert moved[0] == pytest.approx(moved[1])
    assert moved[0][1] > 0
