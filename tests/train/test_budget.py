"""How large a pass may be: what a token costs, what there is to spend, and that a run keeps to what it settled on."""

from dataclasses import replace

import pytest
import torch
from tiny import portable_policy, tiny_policy

from assay import config as configuration
from assay.config import load
from assay.policy.load import with_adapter
from assay.train import run
from assay.train.budget import LEAST_TOKENS, budgeted, bytes_a_token, pass_tokens, standing_bytes

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


def test_recomputed_activations_cost_less():
    policy = tiny_policy()
    assert bytes_a_token(replace(policy, recompute=True), CONFIG) < bytes_a_token(policy, CONFIG) / 2


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


def test_a_run_keeps_the_size_of_its_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = [
        "run.steps=1",
        "evaluate.prompts=0",
        "rollout.prompts=2",
        "model.warm_steps=5",
        "checkpoint.final=false",
    ]
    assert run.start(load(None, settings), tmp_path / "run") == 0
    kept = configuration.load(tmp_path / "run" / "config.toml").optimizer
    assert (kept.microbatches, kept.pass_tokens) == (0, 8192)
