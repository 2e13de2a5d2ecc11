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


def digits_reward(completions, answer, **kwargs):
    scores = []
    for text, gold in zip(completions, answer):
        hits = sum(ch == gold[-1] for ch in text)
        scores.append(hits / max(len(text), 1) + 0.2 * (len(text) > 3))
    return scores


def make(out):
    torch.manual_seed(3)
    tok = build_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id,
        bos_token_id=None))
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(1, 15) for b in range(2, 8)]
    args = GRPOConfig(
        output_dir=out, max_steps=10, per_device_train_batch_size=16, num_generations=8, max_completion_length=10,
        learning_rate=6e-4, lr_scheduler_type="constant", importance_sampling_level="sequence", epsilon=0.03,
        epsilon_high=0.04, loss_type="grpo", num_iterations=2, beta=0.0, report_to="none", save_strategy="no",
        logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, seed=3)
    return GRPOTrainer(model=model, reward_funcs=digits_reward, args=args, train_dataset=Dataset.from_list(rows),
                       processing_class=tok)
