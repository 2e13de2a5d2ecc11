import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

LETTERS = "abcdefghij>"


def letter_tokenizer(extra=()):
    names = ["<|pad|>", "<|end|>", *extra, *LETTERS]
    t = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<|pad|>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    t.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<|pad|>", eos_token="<|end|>")


def small_gpt(tok):
    torch.manual_seed(21)
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tok), n_positions=64, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
        initializer_range=0.15))


def spells(prompts, completions, **kw):
    return [sum(a == b for a, b in zip(c, p[:-1])) / 3 - 0.02 * len(c) for p, c in zip(prompts, completions)]


class OwnScoring(GRPOTrainer):
    """Plain scoring, four rows at a time, with positions counted from the first real token."""

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None,
                                           compute_entropy=False, compute_aux_loss=False, **unused):
        logps, entropies = [], []
        for ids, seen in zip(input_ids.split(4), attention_mask.split(4)):
            where = (seen.cumsum(-1) - 1).clamp(min=0)
            logits = model(input_ids=ids, attention_mask=seen, position_ids=where).logits
            logits = logits[:, -logits_to_keep - 1:-1].float() / self.temperature
            table = torch.log_softmax(logits, dim=-1)
            logps.append(table.gather(-1, ids[:, -logits_to_keep:, None]).squeeze(-1))
            entropies.append(-(table.exp() * table).sum(-1))
        return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def make(out):
    tok = letter_tokenizer()
    small_gpt(tok).save_pretrained(f"{out}/start")
    rows = [{"prompt": "".join(LETTERS[(i + k * n) % 10] for k in range(n)) + ">"} for i in range(10) for n in (1, 3, 6)]
    cfg = GRPOConfig(output_dir=out, max_steps=10, per_device_train_batch_size=20, num_generations=5,
                     max_completion_length=8, learning_rate=2e-3, beta=0.03, lr_scheduler_type="constant",
                     temperature=0.8, report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False,
                     gradient_checkpointing=False, disable_tqdm=True, seed=103)
    return OwnScoring(model=GPT2LMHeadModel.from_pretrained(f"{out}/start"), reward_funcs=[spells], args=cfg, train_dataset=Dataset.from_list(rows),
                      processing_class=tok)
