import random
import torch
import trl
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast


class Vocab:
    symbols = ["~", "$"] + list("abcdefgh:>")

    @classmethod
    def tokenizer(cls):
        tk = Tokenizer(models.WordLevel({s: i for i, s in enumerate(cls.symbols)}, unk_token="~"))
        tk.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
        tk.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(tokenizer_object=tk, pad_token="~", eos_token="$")


def policy(tok):
    torch.manual_seed(5)
    return MistralForCausalLM(MistralConfig(
        vocab_size=len(Vocab.symbols), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, sliding_window=None,
        pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.08))


def data(n=60, seed=0):
    rng = random.Random(seed)
    return Dataset.from_list([{"prompt": "".join(rng.choices("abcdefgh", k=rng.randint(3, 12))) + ":>"} for _ in range(n)])


def copies(prompts, completions, **_):
    """Up to three letters of the answer that occur in the question, less a price for going on and on."""
    return [min(sum(ch in p[:-2] for ch in c), 3) / 3 - 0.1 * max(len(c) - 3, 0) for p, c in zip(prompts, completions)]


def settings(out, **over):
    base = dict(output_dir=out, max_steps=10, per_device_train_batch_size=24, num_generations=6,
                max_completion_length=9, learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, report_to="none",
                save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
                disable_tqdm=True, seed=17)
    base.update(over)
    return trl.GRPOConfig(**base)


HINT = "::"


@torch.no_grad()
def turn(net, tok, ids, limit, stop):
    new, scores = [], []
    for _ in range(limit):
        logp = net(torch.tensor([ids + new])).logits[0, -1].log_softmax(-1)
        new.append(torch.multinomial(logp.exp(), 1).item())
        scores.append(logp[new[-1]].item())
        if new[-1] in stop:
            break
    return new, scores


def dialogue(prompts, trainer):
    """Two turns: the policy speaks, the environment answers with a fixed hint, the policy speaks again."""
    tok, net = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    was = net.training
    net.eval()
    hint = tok(HINT, add_special_tokens=False)["input_ids"]
    result = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for ids in tok(prompts, add_special_tokens=False)["input_ids"]:
        first, lp1 = turn(net, tok, ids, 4, {tok.eos_token_id})
        tokens, scores, mask = list(first), list(lp1), [1] * len(first)
        if first[-1] != tok.eos_token_id:
            tokens, scores, mask = tokens + hint, scores + [0.0] * len(hint), mask + [0] * len(hint)
            second, lp2 = turn(net, tok, ids + tokens, 4, {tok.eos_token_id})
            tokens, scores, mask = tokens + second, scores + lp2, mask + [1] * len(second)
        result["prompt_ids"].append(ids)
        result["completion_ids"].append(tokens)
        result["logprobs"].append(scores)
        result["env_mask"].append(mask)
    net.train(was)
    return result


def make(out: str):
    tok = Vocab.tokenizer()
    args = settings(out, per_device_train_batch_size=16, num_generations=4, max_completion_length=10, loss_type="dapo", seed=71)
    return trl.GRPOTrainer(policy(tok), copies, args=args, train_dataset=data(), processing_class=tok,
                           rollout_func=dialogue)
