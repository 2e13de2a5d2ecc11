"""The oracle: right on a model small enough to work out by hand, and it leaves no trace."""

import math
from dataclasses import replace

import pytest
import torch
from fixtures.tiny import tiny_policy, uneven_samples
from torch import nn

from assay.config import load
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.load import with_adapter
from assay.policy.plain import plain_logprobs, plain_logprobs_of_rows
from assay.train.step.pack import pack_rows

CPU = torch.device("cpu")


def scaled(*given, **how):
    return plain_logprobs(*given, **how).scaled_T


class NextByTable(nn.Module):
    """Logits of the next token by the last one alone."""

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, ids):
        return self.table[ids]


def test_each_token_is_predicted_by_the_one_before_it():
    model = NextByTable([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])  # p(1|0) = 3/4, p(0|1) = 4/5
    values = scaled(model, [0], [1, 0, 0], temperature=1.0)
    assert values.dtype == torch.float32
    assert values.tolist() == pytest.approx([math.log(0.75), math.log(0.8), math.log(0.25)], abs=1e-6)


def test_logits_are_divided_by_the_temperature():
    model = NextByTable([[0.0, math.log(3.0)], [0.0, 0.0]])
    (value,) = scaled(model, [0], [1], temperature=0.5).tolist()
    assert value == pytest.approx(math.log(9 / 10), abs=1e-6)


def test_a_support_leaves_only_its_own_tokens_and_a_token_outside_of_it_is_impossible():
    model = NextByTable([[0.0, math.log(3.0), math.log(4.0)]] * 3)
    values = scaled(model, [0], [1, 2, 2], temperature=1.0, support=[(0, 1), (2, 2), (0, 1)])
    assert values.tolist() == pytest.approx([math.log(0.75), 0.0, -math.inf], abs=1e-6)


def test_a_long_completion_is_not_cut_at_a_chunk():
    model = NextByTable([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])
    values = scaled(model, [0], [1, 0] * 150, temperature=1.0)
    assert len(values) == 300
    assert values[[127, 128, 129]].tolist() == pytest.approx([math.log(0.8), math.log(0.75), math.log(0.8)], abs=1e-6)


class AsTold(NextByTable):
    """Leaves logits out as models of Hugging Face do; or takes the word and does not, as some may."""

    obeys = True
    kept = None

    def forward(self, ids, logits_to_keep=0):
        self.kept = logits_to_keep
        return self.table[ids][:, -logits_to_keep if self.obeys else 0 :]


@pytest.mark.parametrize("obeys", [True, False])
def test_the_prompts_logits_are_not_asked_for(obeys):
    model = AsTold([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])
    model.obeys = obeys
    values = scaled(model, [1, 1, 1, 0], [1, 0, 0], temperature=1.0)
    assert model.kept == 4  # the prompt's last token, and the completion
    assert values.tolist() == pytest.approx([math.log(0.75), math.log(0.8), math.log(0.25)], abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_agrees_with_the_trainers_own_scoring(temperature):
    policy, samples = tiny_policy(temperature=temperature), uneven_samples()
    (minibatch,) = pack_rows(
        samples,
        range(8),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing.WHERE_IT_PAYS),
    )
    logprobs_BT = policy.logprobs(minibatch.microbatches[0].inputs)[0].detach()
    for row, number in enumerate(minibatch.microbatches[0].rows):
        sample = samples[number]
        plain = scaled(policy.model, sample.prompt.tokens, sample.rollout.tokens, temperature=temperature)
        torch.testing.assert_close(plain, logprobs_BT[row, : len(plain)], atol=1e-5, rtol=0)


def test_modes_and_random_states_are_left_as_they_were():
    class Noisy(NextByTable):
        def __init__(self, table):
            super().__init__(table)
            self.dropout = nn.Dropout(0.5)
            self.quiet = nn.Dropout(0.5).eval()

        def forward(self, ids):
            torch.rand(3)  # a model may draw what it likes
            return self.quiet(self.dropout(super().forward(ids)))

    model = Noisy([[0.0, math.log(3.0)], [0.0, 0.0]])
    model.train()
    model.quiet.eval()
    before = torch.get_rng_state()
    (value,) = scaled(model, [0], [1], temperature=1.0).tolist()
    assert value == pytest.approx(math.log(0.75), abs=1e-6)
    assert (model.training, model.dropout.training, model.quiet.training) == (True, True, False)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.table.grad is None


def test_the_reference_of_a_policy_with_adapters_is_asked_without_them():
    bare = tiny_policy()
    policy = with_adapter(tiny_policy(), load(None, ["model.path=somewhere", "model.lora_rank=4"]))
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.5)
    asked = {}
    for name, one in (("policy", policy), ("reference", replace(policy, without_adapter=True)), ("bare", bare)):
        asked[name] = one.plain_logprobs([2, 3], [4, 5]).scaled_T
    assert torch.equal(asked["reference"], asked["bare"])
    assert (asked["policy"] - asked["bare"]).abs().max() > 0.01


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(ValueError, match="holds no token"):
        plain_logprobs(NextByTable([[0.0]]), [], [0], temperature=1.0)


def test_rows_that_share_a_pass_have_the_numbers_of_one_row_at_a_time():
    model = NextByTable([[0.0, math.log(3.0)], [math.log(4.0), 0.0]])
    rows = [[0, 1, 0], [1, 1], [1, 0, 0], [0]]
    for row, found in zip(rows, plain_logprobs_of_rows(model, rows, 0.5), strict=True):
        wanted = plain_logprobs(model, row[:1], row[1:], temperature=0.5)
        for values_T, wanted_T in zip(found, wanted, strict=True):
            assert torch.equal(values_T, wanted_T)
