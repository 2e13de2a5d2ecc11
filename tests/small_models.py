"""Models of a few hundred weights, and a trainer of the smallest, for the tests of GRPOTrainer."""

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from assay import GRPOTrainer

EOS, GOOD = 0, 2
PROMPTS = [[1, 3, 4], [5], [3, 3], [4, 1]]


class Recurrent(nn.Module):
    """A plain torch model: ids [B, L] -> logits [B, L, V]."""

    def __init__(self, vocabulary=7, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids):
        return self.head(self.memory(self.embedding(ids))[0])


def recurrent(seed=0):
    torch.manual_seed(seed)
    return Recurrent()


def llama(seed=0, vocabulary=7, context=32):
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(
            **shape,
            vocab_size=vocabulary,
            max_position_embeddings=context,
            initializer_range=0.2,
            eos_token_id=EOS,
            bos_token_id=None,
            pad_token_id=None,
        )
    )


def share_of_good(prompts, completions):
    return [completion.count(GOOD) / len(completion) for completion in completions]


def bigram(**settings):
    """A trainer of the smallest model there is, for whatever does not depend on the model."""
    torch.manual_seed(0)
    model = nn.Embedding(7, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return GRPOTrainer(model, settings.pop("reward_fn", share_of_good), optimizer, eos_id=EOS, max_tokens=6, **settings)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def assert_same_weights(left, right, tolerance):
    for name, weight in weights_of(left).items():
        torch.testing.assert_close(weight, weights_of(right)[name], rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)
