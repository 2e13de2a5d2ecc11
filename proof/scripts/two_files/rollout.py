"""Sampling side: a small engine in the manner of an inference server, and the rewards."""
import copy
import random

import torch

SYMBOLS = ["<pad>", "<eos>", "(", ")", "[", "]", "x", "()", "?"]
PAD_ID, EOS_ID = 0, 1
IDS = {s: i for i, s in enumerate(SYMBOLS)}


def encode(text):
    out = []
    while text:
        n = 2 if text[:2] in IDS else 1
        out.append(IDS[text[:n]])
        text = text[n:]
    return out


def decode(ids):
    return "".join(SYMBOLS[i] for i in ids if i not in (PAD_ID, EOS_ID))


class Engine:
    """Returns, for every generated position, a dict {token id: log-prob} like serving frameworks do."""

    def __init__(self, model):
        self.model = copy.deepcopy(model).eval()
        self.version = 0

    def update_weights(self, state_dict, version):
        self.model.load_state_dict(state_dict)
        self.version = version

    @torch.no_grad()
    def generate(self, prompts, max_tokens, temperature=1.0, n_logprobs=3):
        results = []
        for prompt in prompts:
            ids, logprobs = [], []
            for _ in range(max_tokens):
                logits = self.model(torch.tensor([prompt + ids]))[0, -1]
                logits = logits / temperature
                probs = torch.softmax(logits, dim=0)
                token = int(torch.multinomial(probs, 1))
                row = torch.log(probs)
                best = torch.topk(row, n_logprobs).indices.tolist()
                entry = {t: row[t].item() for t in best}
                entry[token] = row[token].item()
                ids.append(token)
                logprobs.append(entry)
                if token == EOS_ID:
                    break
            results.append({"token_ids": ids, "logprobs": logprobs})
        return results


def balanced(text):
    depth = 0
    for c in text:
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        if depth < 0:
            return False
    return depth == 0


def reward(prompt_text, completion_ids):
    text = prompt_text + decode(completion_ids)
    value = 1.0 if balanced(text.replace("?", "")) else 0.0
    value -= 0.1 * text.count("x")
    if completion_ids and completion_ids[-1] == EOS_ID:
        value += 0.2
    return value


def make_batch(n_prompts):
    return ["".join(random.choice("([x") for _ in range(random.randint(2, 5))) + "?" for _ in range(n_prompts)]


def collect(engine, texts, group_size, max_prompt_len, max_tokens, temperature):
    prompts = [encode(t)[-max_prompt_len:] for t in texts for _ in range(group_size)]
    owners = [t for t in texts for _ in range(group_size)]
    outputs = engine.generate(prompts, max_tokens, temperature=temperature)
    samples = []
    for prompt, owner, out in zip(prompts, owners, outputs):
        token_ids = out["token_ids"]
        sampler_logprobs = [d[t] for d, t in zip(out["logprobs"], token_ids)]
        samples.append(
            dict(
                prompt=prompt,
                completion=token_ids,
                sampler_logprobs=sampler_logprobs,
                reward=reward(owner, token_ids),
            )
        )
    return samples
