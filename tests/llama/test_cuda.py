"""The decoder for a GPU against the Hugging Face model, in Triton's interpreter; on a GPU it is checked by
benchmarks/gpu_decode.py."""

import gc
from dataclasses import replace
from weakref import ref

import fixtures.interpreted  # noqa: F401  before triton
import pytest
import torch
import transformers
from fixtures.cases import thorough
from fixtures.families import family_policy
from peft import LoraConfig, get_peft_model

from assay.config.sections import RolloutConfig
from assay.engine.shared_weights import SharedWeightsEngine
from assay.llama.cuda import CudaDecoder
from assay.llama.decoder import Decoding, Start
from assay.llama.family import Family, join_family
from assay.llama.kernels import decode_state as fields

SHAPE = {
    "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 23, "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip
TARGETS = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
PROMPTS = [[3, 5, 7, 9, 11], [2]]
GROUP = 2
LIMIT = 4


def model_of(kind, *, adapters=False, layers=1):
    torch.manual_seed(1)
    shape = {**SHAPE, "num_hidden_layers": layers, **({"head_dim": 8} if kind == "Qwen3" else {})}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**shape)).eval()
    if adapters:
        get_peft_model(model, LoraConfig(r=3, lora_alpha=6, target_modules=TARGETS))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or "bias" in name or "lora_B" in name:
                weight.add_(torch.randn_like(weight) * 0.5)
    return model


def decoder_of(model):
    model.family = join_family(model)
    return CudaDecoder(model.family)


def opened(model, *, slots=4, limit=LIMIT, temperature=1.0, top_k=0):
    """(decoder with the prompts remembered, uniforms_RT)."""
    uniforms_RT = torch.rand(8, limit, generator=torch.Generator().manual_seed(2))
    decoder = decoder_of(model)
    open_again(decoder, slots, limit, temperature, top_k, uniforms_RT)
    return decoder, uniforms_RT


def open_again(decoder, slots, limit, temperature, top_k, uniforms_RT):
    settings = RolloutConfig(max_tokens=limit, top_k=top_k)
    decoder.open(Decoding(slots, 2, 4, settings, temperature, uniforms_RT))
    decoder.prefill([(1 - number, prompt[:-1]) for number, prompt in enumerate(PROMPTS)])


def start(slot, rollout):
    prompt = PROMPTS[rollout // GROUP]
    return Start(slot, rollout, 1 - rollout // GROUP, len(prompt), prompt[-1])


@torch.no_grad()
def check(model, rollout, tokens_T, logprobs_T, uniforms_RT, temperature=1.0):
    """The tokens are those of the inverse CDF in float64, the log-probs are the model's own."""
    prompt = PROMPTS[rollout // GROUP]
    ids = torch.tensor([prompt + tokens_T.tolist()])
    logits_TV = model(ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    logprobs_TV = logits_TV.log_softmax(1)
    exact_T = logprobs_TV.gather(1, tokens_T.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logprobs_T.double(), exact_T, rtol=0, atol=5e-5)
    drawn_T = uniforms_RT[rollout, : len(tokens_T)].double().unsqueeze(1)
    assert tokens_T.tolist() == (logprobs_TV.exp().cumsum(1) > drawn_T).int().argmax(1).tolist()


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", *thorough("Llama", "Mistral")])
def test_the_numbers_are_the_model_s(kind):
    model = model_of(kind, layers=2)
    decoder, uniforms_RT = opened(model, slots=3, temperature=0.7)
    decoder.start([start(slot, rollout) for slot, rollout in enumerate((0, 1, 2))])
    decoder.advance(3)
    looked = decoder.look()()
    assert looked.tokens_LC.shape == looked.logprobs_LC.shape == (3, 3)
    assert looked.support_LCK is None
    for slot in range(3):
        check(model, slot, looked.tokens_LC[slot], looked.logprobs_LC[slot], uniforms_RT, 0.7)


def test_adapters_are_computed_beside_the_weights():
    model = model_of("Llama", adapters=True, layers=2)
    decoder, uniforms_RT = opened(model)
    decoder.start([start(0, 0), start(1, 2)])
    decoder.advance(2)
    looked = decoder.look()()
    for slot, rollout in ((0, 0), (1, 2)):
        check(model, rollout, looked.tokens_LC[slot], looked.logprobs_LC[slot], uniforms_RT)


def test_slots_start_again_are_kept_and_run_on_beside_each_other():
    """A rollout has its tokens, wherever it sits, whoever sits beside it and whenever somebody looks."""
    model = model_of("Llama")
    decoder, uniforms_RT = opened(model)
    decoder.start([start(0, 0), start(1, 1), start(2, 2), start(3, 3)])
    decoder.advance(2)
    first = decoder.look()()
    decoder.start([start(1, 3)])  # who sat here has ended; this one begins anew
    decoder.advance(1)
    second = decoder.look()()
    decoder.keep([1, 0])
    decoder.start([start(0, 2)])
    decoder.advance(1)
    third = decoder.look()()
    assert third.tokens_LC.shape == (2, 1)
    tokens_T = torch.cat([first.tokens_LC[0], second.tokens_LC[0], third.tokens_LC[1]])
    logprobs_T = torch.cat([first.logprobs_LC[0], second.logprobs_LC[0], third.logprobs_LC[1]])
    check(model, 0, tokens_T, logprobs_T, uniforms_RT)
    assert second.tokens_LC[1, 0] == first.tokens_LC[3, 0]  # the same rollouts, in other slots
    assert third.tokens_LC[0, 0] == first.tokens_LC[2, 0]
    check(model, 2, third.tokens_LC[0], third.logprobs_LC[0], uniforms_RT)


def test_a_decoder_is_opened_again_with_other_sizes_and_sees_new_weights():
    model = model_of("Llama")
    decoder, uniforms_RT = opened(model, slots=2)
    decoder.start([start(0, 0)])
    decoder.advance(1)
    decoder.close()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    open_again(decoder, 6, LIMIT + 1, 1.0, 0, uniforms_RT)
    decoder.start([start(5, 1)])
    decoder.advance(2)
    looked = decoder.look()()
    check(model, 1, looked.tokens_LC[5], looked.logprobs_LC[5], uniforms_RT)


def test_a_support_is_drawn_from_and_told():
    model = model_of("Llama")
    decoder, _ = opened(model, top_k=2)
    decoder.start([start(0, 0), start(1, 2)])
    decoder.advance(2)
    looked = decoder.look()()
    assert looked.support_LCK.shape == (4, 2, 2)
    for slot, rollout in ((0, 0), (1, 2)):
        prompt, tokens = PROMPTS[rollout // GROUP], looked.tokens_LC[slot].tolist()
        with torch.no_grad():
            logits_TV = model(torch.tensor([prompt + tokens])).logits[0]
        for number, token in enumerate(tokens):
            likeliest = logits_TV[len(prompt) - 1 + number].topk(2)
            assert looked.support_LCK[slot, number].tolist() == likeliest.indices.tolist()
            share = likeliest.values.log_softmax(0)[likeliest.indices.tolist().index(token)]
            assert looked.logprobs_LC[slot, number].item() == pytest.approx(share.item(), abs=5e-5)


def test_a_slot_at_its_limit_stays_within_its_room():
    model = model_of("Llama")
    decoder, _ = opened(model, slots=2, limit=1)
    decoder.start([start(0, 0)])
    decoder.advance(1)
    decoder.look()()
    others = decoder.memory.caches[0][:, :, 1:2].fill_(3.0).clone()
    decoder.advance(1)
    assert decoder.step.state_LF[0, fields.DONE.value] == 0
    assert torch.equal(decoder.memory.caches[0][:, :, 1:2], others)
    with pytest.raises(ValueError, match="without a look"):
        decoder.advance(1 + decoder.ahead)


@pytest.mark.parametrize(("name", "on", "off"), [("fp32_precision", "tf32", "ieee"), ("allow_tf32", True, False)])
def test_float32_weights_are_not_multiplied_inexactly(name, on, off):
    model = model_of("Llama")
    setattr(torch.backends.cuda.matmul, name, on)
    try:
        with pytest.raises(ValueError, match="need exact products"):
            opened(model)
    finally:
        setattr(torch.backends.cuda.matmul, name, off)
    opened(model)


def test_slots_that_fit_shrink_with_what_a_slot_needs():
    model = model_of("Llama")
    decoder = decoder_of(model)
    few, many = decoder.slots_that_fit(0.125, 10**6, 10**6), decoder.slots_that_fit(0.125, 100, 100)
    assert 0 < few < many
    assert decoder.slots_that_fit(1.0, 10**13, 1) == 0


def test_an_engine_keeps_one_decoder_for_as_long_as_it_samples_from_the_same_family(monkeypatch):
    policy, family = family_policy("llama", num_hidden_layers=1)
    engine = SharedWeightsEngine(replace(policy, family=family))
    monkeypatch.setattr(Family, "device", property(lambda self: torch.device("cuda")))
    decoder = engine._decoder(8)
    assert engine._decoder(9) is decoder  # its graphs are expensive to rebuild
    other, gone = join_family(policy.model), ref(decoder)
    del decoder
    engine.policy = replace(policy, family=other)
    assert engine._decoder(8).family is other
    gc.collect()
    assert gone() is None
