import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

CHARS = "0123456789+= ab"


def build_tokenizer():
    vocab = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    for ch in CHARS:
        vocab[ch] = len(vocab)
    tk = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tk.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tk.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tk, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def build_model(tok):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.08))


def sums():
    return Dataset.from_list(
        [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 15) for b in range(2, 8)])


def digits_reward(completions, answer, **kwargs):
    scores = []
    for text, gold in zip(completions, answer):
        hits = sum(ch in gold for ch in text)
        scores.append(hits / (len(text) + 1) + 0.2 * (len(text) < 8))
    return scores


BASE = dict(
    max_steps=10, per_device_train_batch_size=16, num_generations=4, max_completion_length=10, learning_rate=4e-3,
    lr_scheduler_type="constant", beta=0.0, report_to="none", save_strategy="no", logging_steps=1, use_cpu=True,
    bf16=False, gradient_checkpointing=False, disable_tqdm=True)


class ClipHigher(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        tokens = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), dim=1)
        attention = torch.cat((inputs["prompt_mask"], inputs["completion_mask"]), dim=1)
        mask = inputs["completion_mask"]
        logps, ent, _ = self._get_per_token_logps_and_entropies(
            model, tokens, attention, mask.size(1), compute_entropy=True)
        old = inputs["old_per_token_logps"]
        adv = inputs["advantages"][:, None]
        ratio = torch.exp(logps - old)
        clipped = ratio.clamp(1 - self.epsilon_high, 1 + self.epsilon_low)
        token_loss = -torch.minimum(ratio * adv, clipped * adv)
        with torch.no_grad():
            self._metrics["train"]["entropy"].append(float((ent * mask).sum() / mask.sum()))
        return (token_loss * mask).sum() / mask.sum().clamp(min=1) / self.current_gradient_accumulation_steps


def make(out):
    torch.manual_seed(10)
    tok = build_tokenizer()
    args = GRPOConfig(output_dir=out, **{**BASE, "seed": 10, "loss_type": "bnpo", "num_iterations": 4, "max_steps": 12,
                                         "learning_rate": 6e-3, "epsilon": 0.05, "epsilon_high": 0.4})
    return ClipHigher(model=build_model(tok), reward_funcs=digits_reward, args=args, train_dataset=sums(),
                      processing_class=tok)
