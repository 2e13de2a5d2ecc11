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


def starts(prompts, completions, **_):
    return [float(any(ch in p[:4] for ch in c[:3])) for p, c in zip(prompts, completions)]


class GroupTrainer(trl.GRPOTrainer):
    def _calculate_rewards(self, *a, **k):
        self._r = super()._calculate_rewards(*a, **k)
        return self._r

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        r = self._r[:, 0].view(-1, self.num_generations)
        centred = r - r.mean(1, keepdim=True)
        batch["advantages"] = (centred / r.std(1, keepdim=True)).flatten()
        return batch


def make(out: str):
    tok = Vocab.tokenizer()
    args = settings(out, num_generations=12, per_device_train_batch_size=24, learning_rate=6e-3, max_steps=12, seed=53,
                    generation_kwargs={"remove_invalid_values": True}, loss_type="bnpo")
    return GroupTrainer(policy(tok), starts, args=args, train_dataset=data(), processing_class=tok)
