"""Faults planted by other routes than the illnesses' own plants: the doctor must know them by their numbers."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures.cases import thorough

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import EOS, PAD, B, P, T, edit_batch, healthy_batch
from assay.doctor.recompute.consistent import consistent
from assay.engine.shared_weights import SharedWeightsEngine
from assay.verdict import Confidence, State
from proof.plants.plant import Plant
from proof.trial import diagnose_trial, run_trial

GENERATE = "assay.engine.shared_weights.SharedWeightsEngine.generate"
LOSS = "assay.train.step.learner.policy_loss"
LOGPROBS = "assay.policy.causal.CausalPolicy.logprobs"
TENSORS = "assay.train.step.pack._microbatch"
COLD = ("rollout.temperature=0.7",)


def _divided_after_the_softmax(original, policy, inputs, **how):
    values_BT, entropy_BT = original(replace(policy, temperature=1.0), inputs, **how)
    return values_BT / policy.temperature, entropy_BT


def _engine_with_a_temperature_of_its_own(original, engine, prompts, **how):
    return original(_with(engine, temperature=0.6), prompts, **how)


def _goes_on_behind_eos(original, engine, prompts, **how):
    return original(_with(engine, eos_ids=()), prompts, **how)


def _with(engine, **changes):
    return SharedWeightsEngine(replace(engine.policy, **changes))


def _mask_one_token_late(original, *given, **how):
    batch = original(*given, **how)
    return replace(batch, mask_BT=batch.mask_BT.roll(1, dims=1))


def _first_token_twice(original, samples, *rest):
    longer = [replace(one.prompt, tokens=one.prompt.tokens[:1] + one.prompt.tokens) for one in samples]
    return original([replace(one, prompt=prompt) for one, prompt in zip(samples, longer, strict=True)], *rest)


def _not_packed(original, policy, say):
    return policy


def _not_checked(original, policy, *rest):
    return policy


def _first_token_hidden(original, branches_RS, dtype):
    import torch

    mask = original(branches_RS, dtype).clone()
    mask[:, :, 1:, 0] = torch.finfo(dtype).min
    return mask


def _mask_of_all_rows(original, samples, *rest, **how):
    return original([replace(one, in_loss=True) for one in samples], *rest, **how)


def _discounted(original, groups, *rest, **how):
    return tuple(
        replace(one, advantage=tuple(one.advantage * 0.9**place for place in range(len(one.rollout.tokens)))[::-1])
        for one in original(groups, *rest, **how)
    )


def _times_the_length(original, groups, *rest, **how):
    samples = original(groups, *rest, **how)
    return tuple(replace(one, advantage=one.advantage * len(one.rollout.tokens)) for one in samples)


def _in_a_random_order(original, groups, *rest, **how):
    samples = original(groups, *rest, **how)
    order = np.random.default_rng(3).permutation(len(samples))
    return tuple(replace(one, advantage=samples[at].advantage) for one, at in zip(samples, order, strict=True))


def _kl_diluted_by_padding(original, **given):
    mask_BT, settings = given["mask_BT"], given["settings"]
    loss = original(**{**given, "settings": replace(settings, kl_coef=0.0)})
    difference_BT = (given["ref_BT"] - given["new_BT"]).where(mask_BT, 0.0)
    kl = settings.kl_coef * (difference_BT.expm1() - difference_BT).mean()
    return replace(loss, total=loss.total + kl, kl=kl.detach())


def _no_rate(original, *given):
    return 0.0


FORMS = {
    "T divides after the softmax": (
        "SAMP01",
        Plant(COLD, {LOGPROBS: _divided_after_the_softmax}),
    ),
    "the engine has a T of its own": ("SAMP01", Plant((), {GENERATE: _engine_with_a_temperature_of_its_own})),
    "the engine goes on behind EOS": ("MASK02", Plant((), {GENERATE: _goes_on_behind_eos})),
    "the mask is one token late": ("MASK02", Plant((), {TENSORS: _mask_one_token_late})),
    "a prompt's first token comes twice": (
        "ALGN03",
        Plant((), {"assay.train.step.verbs.pack_step": _first_token_twice}),
    ),
    "a prompt's first token is hidden": (
        "ALGN05",
        Plant(
            (),
            {
                "assay.policy.probe.with_family": _not_packed,
                "assay.policy.causal.branch_mask": _first_token_hidden,
                "assay.policy.causal.CausalPolicy.check_shortcuts": _not_checked,
            },
        ),
    ),
    "mask_truncated is ignored": (
        "LOSS06",
        Plant(("rollout.truncated=mask", "rollout.max_tokens=6"), {TENSORS: _mask_of_all_rows}),
    ),
    "advantages fade along the row": ("ADV05", Plant((), {"assay.train.step.verbs.credit": _discounted})),
    "advantages times the length": ("ADV05", Plant((), {"assay.train.step.verbs.credit": _times_the_length})),
    "advantages in a random order": ("ALGN10", Plant((), {"assay.train.step.verbs.credit": _in_a_random_order})),
    "the KL is a mean over padding": (
        "MASK04",
        Plant(("loss.kl_coef=0.2", "loss.kl_gradient=naive", "optimizer.epochs=3"), {LOSS: _kl_diluted_by_padding}),
    ),
    "the learning rate is 0": ("OPT02", Plant((), {"assay.train.step.learner.learning_rate": _no_rate}, steps=4)),
}


@pytest.mark.parametrize("form", [*list(FORMS)[::2], *thorough(*list(FORMS)[1::2])])
def test_a_fault_in_another_form_is_named_first(form, run_path):
    code, plant = FORMS[form]
    run_trial(plant, seed=1, directory=run_path)
    found = diagnose_trial(run_path, plant).findings
    assert found, "nothing was found"
    assert found[0].code == code, [(word.code, word.verdict.message) for word in found]
    proven = [word.illness for word in found if word.confidence is Confidence.PROVEN]
    others = [illness.code for illness in proven if illness.code != code and not by_code(code).can_cause(illness)]
    assert others == []


def _verdict(code, batch):
    (word,) = diagnose(Evidence((batch,)), [by_code(code)]).words
    return word.verdict


def test_positions_are_not_blamed_for_a_token_that_the_mask_hides():
    batch = healthy_batch()
    attention_BS = batch.arrays["attention_mask"].copy()
    first_B = np.argmax(batch.arrays["prompt_mask"], axis=1)
    attention_BS[np.arange(B), first_B] = False
    hidden = edit_batch(batch, attention_mask=attention_BS, scored_alone=batch.arrays["scored_alone"] + 0.3)
    assert _verdict("ALGN05", hidden).state is State.FINDING
    assert _verdict("ALGN04", hidden).state is State.NOT_APPLICABLE


def test_an_extra_token_before_the_prompt_is_no_padding_where_it_is_one_of_the_prompts_ids():
    batch = healthy_batch()
    prompts_BP, mask_BP, tokens_BT = (batch.arrays[name] for name in ("prompt_tokens", "prompt_mask", "tokens"))
    rows = [np.concatenate([[p[m][0]], p[m], t]) for p, m, t in zip(prompts_BP, mask_BP, tokens_BT, strict=True)]
    width = P + T + 1
    ids_BS = np.array([np.pad(row, (0, width - len(row)), constant_values=PAD) for row in rows])
    ends_B = 1 + mask_BP.sum(axis=1) + batch.arrays["lengths"]
    attention_BS = np.arange(width) < ends_B[:, None]
    positions_BS = np.cumsum(attention_BS, axis=1) - 1
    doubled = edit_batch(
        batch,
        input_ids=ids_BS,
        attention_mask=attention_BS,
        position_ids=positions_BS,
        pad_id=None,
    )
    assert _verdict("ALGN05", doubled).state is State.NOT_APPLICABLE
    assert _verdict("ALGN03", doubled).state is State.FINDING


def test_a_mask_is_not_judged_by_the_length_of_other_tokens():
    batch = healthy_batch()
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[:, 0] = 2
    other = edit_batch(batch, tokens=tokens_BT)
    assert _verdict("ALGN02", other).state is State.FINDING
    assert _verdict("ALGN05", other).state is State.NOT_APPLICABLE


def test_an_eos_inside_of_the_sampled_tokens_is_only_possible():
    batch = healthy_batch()
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[:, 1] = EOS
    verdict = _verdict("MASK02", edit_batch(batch, tokens=tokens_BT, sampled_tokens=tokens_BT))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.POSSIBLE)


@pytest.mark.parametrize(("forced", "state"), [(False, State.FINDING), (True, State.HEALTHY)])
def test_as_many_tokens_as_were_sampled_may_lie_beyond_the_length_only_between_turns(forced, state):
    batch = healthy_batch()
    lengths_B, finished_B = batch.need("lengths", "finished")
    columns_T = np.arange(T)
    mask_BT = (columns_T >= 1) & (columns_T <= np.minimum(lengths_B, T - 1)[:, None])
    forced_BT = np.zeros((B, T), dtype=bool)
    forced_BT[:, 0] = forced
    verdict = _verdict("MASK02", edit_batch(batch, mask=mask_BT, forced=forced_BT))
    assert verdict.state is state
    assert finished_B.any()


def test_a_loss_that_is_not_repeated_proves_nothing_about_padding_masks_and_cuts():
    batch = healthy_batch(update=1)
    loss = float(batch.number("loss"))
    other = edit_batch(batch, loss_again=loss + 0.1, loss_padded=loss, loss_perturbed=loss, loss_split=loss)
    for code in ("MASK04", "MASK07", "LOSS03"):
        assert _verdict(code, other).state is State.NOT_APPLICABLE


def test_a_multiple_of_the_rewards_that_is_no_known_formula_is_only_likely_not_centred():
    batch = healthy_batch()
    clamped_B = np.maximum(batch.arrays["advantages"], 0.0)
    verdict = _verdict("ADV03", edit_batch(batch, advantages=clamped_B, loss=None, gradients=None))
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)


@pytest.mark.parametrize(
    ("step", "state"), [(1, State.NOT_APPLICABLE), (5, State.FINDING), (100, State.NOT_APPLICABLE)]
)
def test_a_learning_rate_of_0_is_a_fault_in_the_middle_of_a_run_only(step, state):
    batch = edit_batch(healthy_batch(), learning_rate=0.0, step=step, tensors_changed=0, update_norm=0.0)
    assert _verdict("OPT02", batch).state is state


def test_a_ratio_of_1_is_not_proven_stuck_where_nothing_tells_that_weights_moved():
    batch = healthy_batch(update=1)
    same = edit_batch(batch, new_logprobs=batch.arrays["old_logprobs"])
    assert _verdict("RAT02", same).confidence is Confidence.PROVEN
    assert _verdict("RAT02", edit_batch(same, update_norm=None)).confidence is Confidence.LIKELY
    assert _verdict("RAT02", edit_batch(same, update_norm=0.0)).state is State.NOT_APPLICABLE


@pytest.mark.parametrize(("share", "confidence"), [(1.0, Confidence.PROVEN), (0.7, Confidence.LIKELY)])
def test_a_clip_is_proven_wrong_only_where_the_gradient_is_all_there_or_not_at_all(share, confidence):
    """r A without its clip, and a loss that damps what is outside of the clip range: another one, not a wrong clip."""
    batch = healthy_batch(update=1, kl_coef=0.0, token_loss=None)
    mask_BT, old_BT, new_BT = batch.need("mask", "old_logprobs", "new_logprobs")
    far = consistent(batch, new_logprobs=np.where(mask_BT, old_BT + 3 * (new_BT - old_BT), 0.0))
    ratio_BT = np.exp(far.arrays["new_logprobs"] - old_BT)
    pull_BT = np.where(mask_BT, -far.token_advantages * ratio_BT / mask_BT.sum(), 0.0)
    pull_BT = np.where(np.abs(ratio_BT - 1) > 0.2, share * pull_BT, pull_BT)
    verdict = _verdict("CLIP02", edit_batch(far, token_loss=None, gradients=pull_BT))
    assert (verdict.state, verdict.confidence) == (State.FINDING, confidence)
