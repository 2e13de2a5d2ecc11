"""Passes that are given the prompt alone (ALGN03), and texts that are encoded again on the way to the loss (ALGN02)."""

import pytest
from doctor.illnesses.read_script import edit_script, findings_in

from assay.doctor.examples.scripts import GENERATE

SCORED = "    logprobs = logprobs_of(ids, attention, completions.shape[1])\n"
LOGPROBS = """def logprobs_of(ids, attention, kept):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1].float() / 0.7
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logprobs[:, -kept:]
"""
PICKS = "    logprobs = logits.log_softmax(-1).gather(-1, {}.unsqueeze(-1)).squeeze(-1)\n"
PROMPT_PASS = "    logits = model(**prompts).logits[:, :-1].float() / 0.7\n"
AGAIN = '    again = tokenizer(texts, return_tensors="pt", padding=True)\n'

SICK = {
    "the prompt is scored": PROMPT_PASS + PICKS.format('prompts["input_ids"][:, 1:]'),
    "the answer is picked at the prompt": PROMPT_PASS + PICKS.format("completions[:, 1:]"),
    "the prompt is encoded again": AGAIN
    + "    logits = model(again.input_ids).logits[:, :-1].float() / 0.7\n"
    + PICKS.format("again.input_ids[:, 1:]"),
    "prompts kept in a list": "    kept = []\n    for row in prompts['input_ids']:\n        kept.append(row)\n"
    "    stacked = torch.stack(kept)\n    logits = model(stacked).logits[:, :-1].float() / 0.7\n"
    + PICKS.format("completions[:, 1:]"),
}


@pytest.mark.parametrize("case", SICK)
def test_a_pass_over_the_prompt_alone_is_found(case, tmp_path):
    assert findings_in(edit_script(GENERATE, (SCORED, SICK[case])), tmp_path, ["ALGN03"])


WELL = {
    "prompt and answer": SCORED,
    "another loss over texts with answers": SCORED
    + '    pairs = tokenizer(answers, return_tensors="pt")\n    other = model(pairs.input_ids).logits[:, :-1]\n'
    + "    extra = torch.nn.functional.cross_entropy(other.flatten(0, 1), pairs.input_ids[:, 1:].flatten())\n"
    + "    logprobs = logprobs + extra\n",
    "prompt and answer joined by hand": '    whole = torch.cat([prompts["input_ids"], completions], dim=1)\n'
    "    logprobs = logprobs_of(whole, attention, completions.shape[1])\n",
}


@pytest.mark.parametrize("case", WELL)
def test_a_pass_over_prompt_and_answer_is_not(case, tmp_path):
    assert not findings_in(edit_script(GENERATE, (SCORED, WELL[case])), tmp_path, ["ALGN03"])


ENCODED = '["input_ids"]\n    ids = torch.cat([prompts["input_ids"], completions], dim=1)\n'
COMPLETIONS = '    completions = ids[:, prompts["input_ids"].shape[1]:]\n'
TEXTS = '    answered = tokenizer.batch_decode(ids[:, prompts["input_ids"].shape[1]:])\n'
AGAIN_SICK = {
    "stripped": TEXTS + "    answered = [text.strip() for text in answered]\n"
    '    completions = tokenizer(answered, padding=True, return_tensors="pt")' + ENCODED,
    "joined with the prompt": TEXTS + "    both = [a + b for a, b in zip(texts, answered)]\n"
    '    ids = tokenizer(both, padding=True, return_tensors="pt").input_ids\n' + COMPLETIONS,
    "through the chat template": TEXTS
    + '    chats = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}]'
    " for q, a in zip(texts, answered)]\n"
    "    ids = tokenizer.apply_chat_template(chats, return_tensors='pt')\n" + COMPLETIONS,
    "kept in a list of records": TEXTS + "    records = []\n    for text in answered:\n"
    "        records.append({'text': text.rstrip()})\n"
    "    completions = tokenizer([r['text'] for r in records], padding=True, return_tensors='pt')" + ENCODED,
}


@pytest.mark.parametrize("case", AGAIN_SICK)
def test_texts_that_are_encoded_again_are_found(case, tmp_path):
    assert findings_in(edit_script(GENERATE, (COMPLETIONS, AGAIN_SICK[case])), tmp_path, ["ALGN02"])


AGAIN_WELL = {
    "a judge reads the text": COMPLETIONS
    + TEXTS
    + "    judged = judge(tokenizer(answered, return_tensors='pt').input_ids)\n"
    "    buffer = {'ids': [], 'scores': []}\n    buffer['ids'].append(ids)\n"
    "    buffer['scores'].append(judged - judged.mean())\n"
    "    buffer = {key: torch.cat(rows) for key, rows in buffer.items()}\n    ids = buffer['ids']\n",
    "a tool answers": COMPLETIONS + TEXTS + "    results = [run_tool(text) for text in answered]\n"
    "    forced = tokenizer(results, padding=True, return_tensors='pt')['input_ids']\n"
    "    ids = torch.cat([ids, forced], dim=1)\n",
}


@pytest.mark.parametrize("case", AGAIN_WELL)
def test_texts_that_only_rewards_and_tools_read_are_not(case, tmp_path):
    assert not findings_in(edit_script(GENERATE, (COMPLETIONS, AGAIN_WELL[case])), tmp_path, ["ALGN02"])
