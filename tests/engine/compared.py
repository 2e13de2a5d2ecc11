"""The same completions, as the sampler and as the trainer see them; and a tokenizer that spells in bytes."""

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

from assay.config.sections import RolloutConfig
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.causal_packing import CausalPacking, Sharing
from assay.policy.codec import TokenizerCodec
from assay.train.step.pack import pack
from assay.types import Sample

BYTE_EOS = 256


def sampled(policy, prompts, *, seed=0, group_size=8, greedy=False, **settings):
    return SharedWeightsEngine(policy).generate(
        prompts,
        group_size=group_size,
        settings=RolloutConfig(**settings),
        seed=seed,
        policy_version=0,
        greedy=greedy,
    )


def packed(prompts, groups, *, share_prompts=False, advantages=(1.0, -1.0)):
    """One micro-batch of all rollouts; advantages take turns."""
    rows = [(one, rollout) for one, tries in zip(prompts, groups, strict=True) for rollout in tries]
    samples = [
        Sample(one, rollout, advantages[row % len(advantages)], in_loss=True) for row, (one, rollout) in enumerate(rows)
    ]
    return pack(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=1,
        max_tokens=32,
        packing=CausalPacking(torch.device("cpu"), Sharing(share_prompts)),
    )


def trainers_and_samplers(policy, prompts, groups, *, share_prompts=False):
    """(log-probs of the loss tokens as the trainer computes them, as the sampler reported them)."""
    (batch,) = packed(prompts, groups, share_prompts=share_prompts)[0].microbatches
    assert (batch.inputs.branches_RS is not None) == share_prompts
    with torch.no_grad():
        logprobs_BT = policy.logprobs(batch.inputs)[0]
    return logprobs_BT[batch.mask_BT], batch.sampler_BT[batch.mask_BT]


class Fixed(nn.Module):
    """Logits that depend on the position alone: row t of `logits_LV` predicts token t + 1."""

    def __init__(self, logits_LV):
        super().__init__()
        self.logits_LV = nn.Parameter(torch.as_tensor(logits_LV, dtype=torch.float32))

    def forward(self, ids_BL):
        return self.logits_LV[: ids_BL.shape[1]].expand(len(ids_BL), -1, -1)


def speller(tokens, vocabulary=257, context=40, start=1):
    """A model that writes these tokens one after the other, behind a prompt of `start` tokens."""
    logits_LV = torch.zeros(context, vocabulary)
    for position, token in enumerate(tokens):
        logits_LV[start - 1 + position, token] = 50.0
    return Fixed(logits_LV)


def byte_tokenizer(*words):
    """One token a byte, <eos> (256), and behind it one token for each of `words`."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    # the 256 letters of byte-level BPE, in the order of the bytes they stand for
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    named = {byte: chr(byte) for byte in plain}
    named |= {byte: chr(256 + place) for place, byte in enumerate(sorted(set(range(256)) - set(plain)))}
    assert set(named.values()) == set(letters)
    vocabulary = {named[byte]: byte for byte in range(256)} | {"<eos>": BYTE_EOS}
    for word in words:
        vocabulary["".join(named[byte] for byte in word.encode())] = len(vocabulary)
    spelling = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    spelling.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    spelling.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=spelling, eos_token="<eos>", pad_token="<eos>")


def spelling_policy(tokens, *words, temperature=1.0):
    tokenizer = byte_tokenizer(*words)
    module = speller(tokens, len(tokenizer))
    return CausalPolicy(module.eval(), TokenizerCodec(tokenizer), (BYTE_EOS,), temperature)
