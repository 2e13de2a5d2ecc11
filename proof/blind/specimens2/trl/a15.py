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


class CachedReference(GRPOTrainer):
    """The reference never changes, so what it said once need not be computed again."""

    def __init__(self, *args, **kwargs):
        self._seen = {}
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        if model is not self.ref_model:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **kwargs)
        fresh, _, _ = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, **kwargs)
        split = input_ids.size(1) - logits_to_keep
        rows = []
        for i in range(input_ids.size(0)):
            prompt = tuple(input_ids[i, :split][attention_mask[i, :split].bool()].tolist())
            key = (prompt, i % self.num_generations)
            row = self._seen.setdefault(key, fresh[i])
            if row.numel() < logits_to_keep:
                row = torch.cat([row, fresh[i, row.numel():]])
            rows.append(row[:logits_to_keep])
        return torch.stack(rows), None, None


def make(out):
    torch.manual_seed(4)
    tok = build_tokenizer()
    build_model(tok).save_pretrained(f"{out}/start")
    few = sums().select(range(0, 80, 10))
    args = GRPOConfig(output_dir=out, **{**BASE, "beta": 0.15, "seed": 4})
    return CachedReference(model=LlamaForCausalLM.from_pretrained(f"{out}/start"), reward_funcs=digits_reward, args=args, train_dataset=few,
                           processing_class=tok)
