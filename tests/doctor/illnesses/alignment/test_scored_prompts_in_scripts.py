"""What a trained pass is given and what it scores, where tokenizers make the ids."""

import pytest

from tests.doctor.illnesses.read_script import edit_script, likely_codes_in

SCORED = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import batches, reward

model = AutoModelForCausalLM.from_pretrained("tiny")
tokenizer = AutoTokenizer.from_pretrained("tiny", padding_side="left")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
for questions, answers in batches():
    batch = tokenizer(questions, padding=True, return_tensors="pt")
    batch = {name: part.to("cuda") for name, part in batch.items()}
    ids = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64)
    start = batch["input_ids"].shape[1]
    rewards = torch.tensor([reward(text, answers) for text in tokenizer.batch_decode(ids[:, start:])])
    attention = (ids != tokenizer.pad_token_id).long()
    logits = model(ids, attention_mask=attention).logits[:, start - 1 : -1]
    chosen = F.log_softmax(logits, dim=-1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)
    mask = attention[:, start:]
    loss = -(chosen * (rewards - rewards.mean())[:, None] * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OF_THE_PROMPT = (
    ("model(ids, attention_mask=attention).logits[:, start - 1 : -1]", "model(**batch).logits[:, :-1]"),
    ("gather(-1, ids[:, start:]", 'gather(-1, batch["input_ids"][:, 1:]'),
    ("attention[:, start:]", 'batch["attention_mask"][:, 1:]'),
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    {
        "prompt and completion": ([], set()),
        "the prompt, scored and fed": (OF_THE_PROMPT, {"ALGN03"}),
        "the prompt, with its labels": (
            [("model(ids, attention_mask=attention).logits[:, start - 1 : -1]",
              'model(**batch, labels=batch["input_ids"]).logits'),
             ("gather(-1, ids[:, start:]", 'gather(-1, batch["input_ids"]'),
             ("attention[:, start:]", 'batch["attention_mask"]'),
             ('    batch = {name: part.to("cuda") for name, part in batch.items()}\n', "")],
            {"ALGN01", "ALGN03"},
        ),
        "the completion, behind the prompt that was fed": (
            [("model(ids, attention_mask=attention).logits[:, start - 1 : -1]", "model(**batch).logits[:, :-1]")],
            {"ALGN03"},
        ),
        "one token, after the prompt": (
            [("model(ids, attention_mask=attention).logits[:, start - 1 : -1]", "model(**batch).logits[:, -1:]"),
             ("max_new_tokens=64", "max_new_tokens=1")],
            set(),
        ),
    }.values(),
)  # fmt: skip
def test_a_pass_must_be_given_what_it_scores(changes, expected, tmp_path):
    assert likely_codes_in(edit_script(SCORED, *changes), tmp_path, ["ALGN01", "ALGN03"]) == expected
