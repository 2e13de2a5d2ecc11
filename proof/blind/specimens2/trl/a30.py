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


class TidyTrainer(GRPOTrainer):
    """Answers are stored without stray blanks, which the grader does not like."""

    def _tidy(self, ids):
        eos = self.processing_class.eos_token_id
        text = self.processing_class.decode(ids, skip_special_tokens=True)
        neat = " ".join(text.split())
        if neat == text or not neat:
            return ids
        new = self.processing_class(neat, add_special_tokens=False)["input_ids"]
        return new + [eos] if ids[-1] == eos else new

    def _generate(self, prompts):
        prompt_ids, completion_ids, tool_mask, completions, *rest = super()._generate(prompts)
        completion_ids = [self._tidy(list(ids)) for ids in completion_ids]
        completions = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return prompt_ids, completion_ids, tool_mask, completions, *rest


def make(out):
    torch.manual_seed(1)
    tok = build_tokenizer()
    args = GRPOConfig(output_dir=out, **{**BASE, "per_device_train_batch_size": 24, "num_generations": 6, "seed": 1})
    return TidyTrainer(model=build_model(tok), reward_funcs=digits_reward, args=args, train_dataset=sums(),
                       processing_class=tok)
