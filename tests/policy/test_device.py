"""A model on a GPU that is not the current one, without Triton, or spread over devices: the decisions, on a CPU."""

import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest
import torch
from fixtures.compared import sampled
from fixtures.families import PROMPTS, family_policy
from fixtures.tiny import tiny_policy, uneven_samples

from assay.engine import scheduler, shared_weights
from assay.engine.shared_weights import SharedWeightsEngine
from assay.llama import forward, head
from assay.llama.family import NotOfTheFamily, join_family
from assay.machine.device import as_current, missing_kernels
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.probe import with_family
from assay.train.step.pack import pack_rows

SECOND_GPU = torch.device("cuda:1")


def test_only_a_gpu_is_made_the_current_device():
    guard = as_current(SECOND_GPU)
    assert isinstance(guard, torch.cuda.device)
    assert guard.idx == 1
    assert isinstance(as_current(torch.device("cpu")), nullcontext)


@pytest.fixture
def current(monkeypatch):
    """The devices that are current, innermost last, as far as the entries of engine and update say so."""
    devices = []

    @contextmanager
    def recorded(device):
        devices.append(device)
        yield
        devices.pop()

    for module in (forward, head, shared_weights):
        monkeypatch.setattr(module, "as_current", recorded)
    return devices


def watched(monkeypatch, module, name, current):
    """How many devices were current at each call of a function of the module."""
    real, seen = getattr(module, name), []
    monkeypatch.setattr(module, name, lambda *given, **named: seen.append(list(current)) or real(*given, **named))
    return seen


def test_an_update_launches_its_kernels_on_the_device_of_the_model(monkeypatch, current):
    policy = tiny_policy()
    samples = uneven_samples()
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(policy.device, Sharing.ALWAYS),
    )
    layers = watched(monkeypatch, forward, "add_norm", current)
    logits = watched(monkeypatch, head, "_logits", current)
    policy.logprobs(minibatch.microbatches[0].inputs)
    assert layers == [[policy.device]] * 5  # two a layer, and the last one
    assert logits == [[policy.device]]
    assert current == []


@pytest.mark.parametrize("of_the_family", [True, False])
def test_rollouts_are_decoded_on_the_device_of_the_model(monkeypatch, current, of_the_family):
    policy, family = family_policy()
    if of_the_family:
        policy = replace(policy, family=family)
    decoding = watched(monkeypatch, *((scheduler, "decode") if of_the_family else (shared_weights, "draw")), current)
    sampled(policy, PROMPTS, group_size=2, max_tokens=2)
    assert decoding == [[policy.device]] * (1 if of_the_family else 2)  # the portable path draws twice
    assert current == []


def test_only_a_gpu_needs_triton(monkeypatch):
    cpu = torch.device("cpu")
    assert [missing_kernels(device) for device in (SECOND_GPU, cpu)] == ["", ""]
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails now
    assert "pip install triton" in missing_kernels(SECOND_GPU)
    assert missing_kernels(cpu) == ""


def test_on_a_gpu_without_triton_a_model_takes_the_portable_path_and_the_reason_is_said(monkeypatch):
    policy, said = tiny_policy(), []
    assert policy.family is not None
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(CausalPolicy, "device", property(lambda self: SECOND_GPU))
    assert with_family(policy, said.append).family is None
    (sentence,) = said
    assert sentence.startswith("LlamaForCausalLM is decoded and trained by the portable path, slowly, because")
    assert "Triton" in sentence


def test_weights_on_several_devices_are_not_read_as_one_model():
    model = tiny_policy().model
    join_family(model)
    model.model.norm.to("meta")
    with pytest.raises(NotOfTheFamily, match="several devices: cpu, meta"):
        join_family(model)


def test_a_device_without_a_decoder_takes_the_portable_path_and_says_so():
    policy, _ = family_policy()
    model, said = policy.model.to("meta"), []
    policy = replace(policy, model=model, family=join_family(model), say=said.append)
    assert SharedWeightsEngine(policy)._decoder(5) is None
    assert said == ["tokens are sampled by the portable path, slowly, because no decoder is made for meta"]
