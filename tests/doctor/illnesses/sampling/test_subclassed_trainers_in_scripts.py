"""Checks of sampling and alignment in subclasses of a library's trainer: the loss is what a method returns."""

import pytest
from doctor.illnesses.read_script import findings_in

ROLLOUT = """
    def drawn(self, model, texts):
        prompts = self.processing_class(texts, padding=True, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**prompts, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64)
        completions = ids[:, prompts["input_ids"].shape[1]:]
        is_end = completions == self.processing_class.eos_token_id
        mask = (is_end.cumsum(1) - is_end.long() == 0).long()
        return ids, completions, torch.cat([prompts["attention_mask"], mask], dim=1), mask

    def scored(self, model, ids, attention, kept):
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1].float() / 0.7
        logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
        return logprobs[:, -kept:]

    def weighed(self, model, inputs):
        texts = [self.processing_class.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
                 for chat in inputs["chats"]]
        ids, completions, attention, mask = self.drawn(model, texts)
        rewards = self.reward(completions)
        advantages = (rewards - rewards.mean()).unsqueeze(1)
        logprobs = self.scored(model, ids, attention, completions.shape[1])
        ratio = torch.exp(logprobs - logprobs.detach())
        return -(ratio * advantages * mask).sum() / mask.sum().clamp(min=1)
"""
COMPUTE_LOSS = f"""
import torch
from transformers import Trainer

class Reinforce(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss = self.weighed(model, inputs)
        return (loss, None) if return_outputs else loss
{ROLLOUT}
"""
TRAINING_STEP = f"""
import torch
from trl import SFTTrainer

class Online(SFTTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        loss = self.weighed(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()
{ROLLOUT}
"""
GIVEN_ROLLOUTS = """
import torch
from trl import GRPOTrainer

class Own(GRPOTrainer):
    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        kept = inputs["completion_ids"].size(1)
        logits = model(input_ids=ids, attention_mask=attention).logits
        logits = logits[:, -kept - 1:-1] / self.temperature
        logprobs = torch.log_softmax(logits, dim=-1).gather(2, inputs["completion_ids"].unsqueeze(2)).squeeze(2)
        mask = inputs["completion_mask"]
        ratio = torch.exp(logprobs - inputs["old_per_token_logps"])
        clipped = torch.clamp(ratio, 0.8, 1.2)
        gain = torch.min(ratio * inputs["advantages"].unsqueeze(1), clipped * inputs["advantages"].unsqueeze(1))
        return -(gain * mask).sum() / mask.sum().clamp(min=1)
"""
CODES = ["SAMP01", "SAMP02", "SAMP03", "SAMP04", "SAMP05", "SAMP07", "ALGN01", "ALGN02", "ALGN03"]
CODES += ["ALGN05", "ALGN06", "ALGN07", "ALGN08", "ALGN09"]
FAULTS = {
    "a temperature": ("SAMP01", (".float() / 0.7", ".float()")),
    "a truncation": ("SAMP02", ("top_p=1.0", "top_p=0.9")),
    "a default of the checkpoint": ("SAMP03", ("top_k=0, ", "")),
    "greedy": ("SAMP04", ("do_sample=True, temperature=0.7, top_k=0, top_p=1.0", "do_sample=False")),
    "no shift": ("ALGN01", (".logits[:, :-1].float()", ".logits[:, 1:].float()")),
    "text in between": (
        "ALGN02",
        (
            "        is_end =",
            "        said = self.processing_class.batch_decode(completions)\n"
            "        completions = self.processing_class(said, padding=True, return_tensors='pt').input_ids\n"
            "        ids = torch.cat([prompts['input_ids'], completions], dim=1)\n        is_end =",
        ),
    ),
    "no prompt": (
        "ALGN03",
        ("(input_ids=ids, attention_mask=attention)", "(input_ids=ids[:, -kept:])"),
        ("ids[:, 1:].unsq", "ids[:, -kept:][:, 1:].unsq"),
    ),
    "no mask": ("ALGN05", ("(input_ids=ids, attention_mask=attention)", "(input_ids=ids)")),
    "a cut prompt": ("ALGN07", ("tokenize=False)", "tokenize=False)[:2000]")),
    "no generation prompt": ("ALGN08", ("add_generation_prompt=True, ", "")),
}
TRAINERS = {"compute_loss": COMPUTE_LOSS, "training_step": TRAINING_STEP}


def findings(text, folder, *codes):
    return findings_in(text, folder, codes)


@pytest.mark.parametrize("text", [*TRAINERS.values(), GIVEN_ROLLOUTS], ids=[*TRAINERS, "_compute_loss"])
def test_a_clean_subclass_has_no_finding(text, tmp_path):
    assert not findings(text, tmp_path, *CODES)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_subclass_is_found(trainer, fault, tmp_path):
    text = TRAINERS[trainer]
    code, *edits = FAULTS[fault]
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    assert [one.code for one in findings(text, tmp_path, *CODES)][:1] == [code]


@pytest.mark.parametrize(
    "cut", ["logits[:, -kept:]", "logits[:, -kept - 2:-2]", "logits[:, inputs['prompt_ids'].size(1):]"]
)
def test_a_shift_is_found_where_the_library_draws(cut, tmp_path):
    text = GIVEN_ROLLOUTS.replace("logits[:, -kept - 1:-1]", cut)
    assert [one.code for one in findings(text, tmp_path, *CODES)] == ["ALGN01"]
