"""How large a pass may be: what a token costs, what there is to spend, and that a run keeps to what it settled on."""

from dataclasses import replace

import pytest
import torch
from fixtures.tiny import EOS_ID, portable_policy, tiny_policy
from transformers import GPT2Config, GPT2LMHeadModel

from assay import config as configuration
from assay.config import ConfigError, load
from assay.policy.causal import CausalPolicy
from assay.policy.load import with_adapter
from assay.policy.probe import examine_policy
from assay.train.run import budget, run
from assay.train.run.budget import LEAST_TOKENS, budgeted, bytes_a_token, pass_tokens, standing_bytes

CONFIG = load(None, ["model.path=x"])


def test_the_tokens_of_a_pass_by_hand():
    assert pass_tokens(10, 10 * 4096, 8192) == 4096
    assert pass_tokens(10, 10 * 4096 - 1, 8192) == 2048
    assert pass_tokens(10, 10**9, 8192) == 8192
    assert pass_tokens(10**9, 0, 8192) == LEAST_TOKENS  # whatever there is, some tokens must be computed
    assert pass_tokens(10, -5, 8192) == LEAST_TOKENS


@pytest.mark.parametrize("make", [tiny_policy, portable_policy])
def test_a_token_costs_what_its_pass_keeps(make):
    """At least the inputs of every linear layer: the hidden states four times a layer, and the inner width."""
    policy = make()
    least = 4 * (2 * (4 * 16 + 32))
    cost = bytes_a_token(policy, CONFIG)
    assert least < cost < 20 * least
    assert bytes_a_token(replace(policy), CONFIG) == cost
    assert all(weight.grad is None for weight in policy.model.parameters())


@pytest.mark.parametrize("make", [tiny_policy, portable_policy])
def test_the_cost_of_a_token_does_not_depend_on_how_many_are_measured(make, monkeypatch):
    """So the weights, which would be divided among more tokens or fewer, are left out."""
    policy = make()
    cost = bytes_a_token(policy, CONFIG)
    with torch.no_grad():  # whatever the caller has switched off
        assert bytes_a_token(policy, CONFIG) == cost
    monkeypatch.setattr(budget, "PROBE_TOKENS", 6)
    assert bytes_a_token(policy, CONFIG) == pytest.approx(cost, rel=0.03)


class Slicing(torch.nn.Module):
    """Keeps 13 of 100 numbers a token for its gradient, and with them the memory of all 100."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(13, 100))

    def forward(self, ids_BL):
        return self.weight[ids_BL][..., :13].square()


def test_a_part_that_is_kept_costs_the_whole_that_it_is_part_of():
    policy = CausalPolicy(Slicing().eval(), tiny_policy().codec, (EOS_ID,), 1.0)
    assert bytes_a_token(policy, CONFIG) >= 100 * 4


def test_recomputed_activations_cost_less():
    policy = tiny_policy()
    assert bytes_a_token(replace(policy, checkpointing=True), CONFIG) < bytes_a_token(policy, CONFIG) / 2


def test_what_will_stand_in_memory_by_hand():
    policy = tiny_policy()
    count = sum(weight.numel() for weight in policy.model.parameters())
    assert standing_bytes(policy, needs_reference=False) == 12 * count  # gradient and two moments
    assert standing_bytes(policy, needs_reference=True) == 16 * count
    rounded = tiny_policy(dtype=torch.bfloat16)
    assert standing_bytes(rounded, needs_reference=True) == 18 * count  # and a master; the copy is in bfloat16
    adapted = with_adapter(tiny_policy(), replace(CONFIG, model=replace(CONFIG.model, lora_rank=2)))
    trained = sum(weight.numel() for weight in adapted.model.parameters() if weight.requires_grad)
    assert standing_bytes(adapted, needs_reference=True) == 12 * trained


def test_only_a_cut_by_tokens_is_settled_and_only_once():
    policy = tiny_policy()
    assert budgeted(CONFIG, policy).optimizer.pass_tokens == 8192
    for given in (["optimizer.microbatches=2"], ["optimizer.pass_tokens=33"]):
        config = load(None, ["model.path=x", *given])
        assert budgeted(config, policy) is config


@pytest.mark.parametrize("given", [[], ["loss.kl_coef=0.1"]])
def test_a_pass_is_given_half_of_what_the_optimizer_and_the_reference_leave(monkeypatch, given):
    policy, config = tiny_policy(), load(None, ["model.path=x", *given])
    standing = standing_bytes(policy, needs_reference=bool(given))
    half = 1024 * bytes_a_token(policy, config)
    for free, tokens in ((standing + 2 * half, 1024), (standing + 2 * half - 2, 512), (2**62, 8192)):
        monkeypatch.setattr(budget, "free_bytes", lambda device, free=free: free)
        assert budgeted(config, policy).optimizer.pass_tokens == tokens


def test_on_a_cpu_a_pass_keeps_no_more_than_so_many_bytes_whatever_is_free(monkeypatch):
    policy = tiny_policy()
    monkeypatch.setattr(budget, "free_bytes", lambda device: 2**62)
    monkeypatch.setattr(budget, "MOST_BYTES_ON_A_CPU", 2048 * bytes_a_token(policy, CONFIG))
    assert budgeted(CONFIG, policy).optimizer.pass_tokens == 2048


def test_a_context_shorter_than_the_measured_pass_is_kept_to():
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 13}
    model = GPT2LMHeadModel(GPT2Config(**shape, eos_token_id=EOS_ID, bos_token_id=None))  # it has no ninth position
    policy = examine_policy(CausalPolicy(model.eval(), tiny_policy().codec, (EOS_ID,), 1.0))
    assert bytes_a_token(policy, CONFIG) > 0


def test_tokens_of_a_pass_and_a_number_of_passes_cannot_both_be_given():
    both = ["model.path=x", "optimizer.microbatches=2", "optimizer.pass_tokens=33"]
    with pytest.raises(ConfigError) as refused:
        load(None, both)
    assert str(refused.value) == (
        "optimizer.pass_tokens = 33 would be ignored: optimizer.microbatches = 2 says into how many passes an update "
        "is cut; set one of the two to 0"
    )
    for zero in ("optimizer.microbatches=0", "optimizer.pass_tokens=0"):
        load(None, [*both, zero])


def test_a_run_keeps_the_size_of_its_passes(tmp_path):
    settings = [
        "run.steps=1",
        "evaluate.prompts=0",
        "rollout.prompts=2",
        "model.warm_steps=2",
        "checkpoint.final=false",
    ]
    assert run.start(load(None, settings), tmp_path / "run") == 0
    kept = configuration.load(tmp_path / "run" / "config.toml").optimizer
    assert (kept.microbatches, kept.pass_tokens) == (0, 8192)
