"""ALGN01 to ALGN09 in scripts that carry tokens in lists: an own tokenizer, an own engine, rows padded by hand."""

import pytest
from doctor.illnesses.read_script import edit_script, findings_in

LISTS = """
import torch
import torch.nn.functional as F
from task import GPT, batches, reward

PIECES = ["<pad>", "<eos>", "<user>", "<bot>"] + [chr(n) for n in range(97, 123)]
PAD, EOS = 0, 1

class Tokenizer:
    def __init__(self):
        self.numbers = {piece: number for number, piece in enumerate(PIECES)}

    def encode(self, text):
        return [self.numbers[letter] for letter in text]

    def decode(self, ids):
        return "".join(PIECES[i] for i in ids)

    def apply_chat_template(self, messages, add_generation_prompt=False):
        ids = []
        for message in messages:
            ids += [self.numbers["<user>"]] + self.encode(message["content"])
        if add_generation_prompt:
            ids += [self.numbers["<bot>"]]
        return ids

class Engine:
    @torch.no_grad()
    def generate(self, prompts):
        results = []
        for prompt in prompts:
            ids, entries = [], []
            for _ in range(8):
                logprobs = F.log_softmax(model(torch.tensor([prompt + ids]))[0, -1], dim=-1)
                token = int(torch.multinomial(logprobs.exp(), 1))
                entry = {other: logprobs[other].item() for other in logprobs.topk(3).indices.tolist()}
                entry[token] = logprobs[token].item()
                ids.append(token)
                entries.append(entry)
            results.append({"token_ids": ids, "logprobs": entries})
        return results

def padded(rows, value):
    width = max(len(row) for row in rows)
    return torch.tensor([list(row) + [value] * (width - len(row)) for row in rows])

tokenizer, engine, model = Tokenizer(), Engine(), GPT(len(PIECES))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

for questions in batches():
    chats = [[{"role": "user", "content": one}] for one in questions for _ in range(8)]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    prompts = [prompt[-64:] for prompt in prompts]
    samples = []
    for prompt, result in zip(prompts, engine.generate(prompts)):
        tokens = result["token_ids"]
        found = [entry[token] for entry, token in zip(result["logprobs"], tokens)]
        samples.append(dict(prompt=prompt, completion=tokens, logprobs=found))
    ids = padded([one["prompt"] + one["completion"] for one in samples], PAD)
    labels = padded([[-100] * len(one["prompt"]) + one["completion"] for one in samples], -100)
    mask = padded([[0] * len(one["prompt"]) + [1] * len(one["completion"]) for one in samples], 0)
    sampler = padded([[0.0] * len(one["prompt"]) + one["logprobs"] for one in samples], 0.0)[:, 1:]
    rewards = torch.tensor([reward(tokenizer.decode(one["completion"])) for one in samples]).view(-1, 8)
    advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
    logits = model(ids)[:, :-1]
    targets = labels[:, 1:].clamp(min=0)
    logprobs = F.log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(logprobs - sampler)
    loss = -(ratio * advantages * mask[:, 1:]).sum() / mask.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FOUND = 'found = [entry[token] for entry, token in zip(result["logprobs"], tokens)]'
TEMPLATE = "tokenizer.apply_chat_template(chat, add_generation_prompt=True) for"
JOINED = 'ids = padded([one["prompt"] + one["completion"] for one in samples], PAD)\n'
LABELS = '    labels = padded([[-100] * len(one["prompt"]) + one["completion"] for one in samples], -100)\n'
MASK = 'mask = padded([[0] * len(one["prompt"]) + [1] * len(one["completion"]) for one in samples], 0)\n'
TOKENS = 'tokens = result["token_ids"]\n'
ADVANTAGES = "advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)\n"
CUT = "prompts = [prompt[-64:] for prompt in prompts]"
BUFFERS = """    width = max(len(one["prompt"]) + len(one["completion"]) for one in samples)
    ids, labels = torch.full((len(samples), width), PAD), torch.full((len(samples), width), -100)
    for row, one in enumerate(samples):
        start, end = len(one["prompt"]), len(one["prompt"]) + len(one["completion"])
        ids[row, :start] = torch.tensor(one["prompt"])
        ids[row, start:end] = torch.tensor(one["completion"])
        labels[row, start:end] = torch.tensor(one["completion"])
"""
BY_ROW = """    labels = ids.clone()
    for row, one in enumerate(samples):
        labels[row, :len(one["prompt"])] = -100
"""
LATE = ("model(ids)[:, :-1]", "model(ids)[:, 1:]")
OWN_WIDTH = ("mask[:, 1:]).sum()", "mask[:, :-1]).sum()")


def given_ids(row):
    return "    " + JOINED, f"    ids = padded([{row} for one in samples], PAD)\n"


FAULTS = {
    "ALGN01": {
        "labels in lists": [LATE],
        "labels in a buffer": [("    " + JOINED + LABELS, BUFFERS), LATE],
        "a copy with ignored tokens": [(LABELS, "    labels = ids.clone()\n    labels[:, :5] = -100\n"), LATE],
        "ignored row by row": [(LABELS, BY_ROW), LATE],
        "ignored by masked_fill": [
            (LABELS, ""),
            (MASK, MASK + "    labels = ids.masked_fill(mask == 0, -100)\n"),
            LATE,
        ],
        "ignored by where": [(LABELS, ""), (MASK, MASK + "    labels = torch.where(mask == 1, ids, -100)\n"), LATE],
        "and made whole again": [(LABELS, BY_ROW + "    labels[labels == -100] = 0\n"), LATE],
        "a mask that is not shifted": [OWN_WIDTH],
    },
    "ALGN02": {
        "by the own tokenizer": [(TOKENS, "tokens = tokenizer.encode(tokenizer.decode(result['token_ids']))\n")],
        "later": [
            (
                JOINED,
                "texts = [tokenizer.decode(one['completion']) for one in samples]\n"
                "    for one, text in zip(samples, texts):\n"
                "        one['completion'] = tokenizer.encode(text) + [EOS]\n    " + JOINED,
            )
        ],
        "the whole text": [
            (
                "    " + JOINED + LABELS,
                "    ids = padded([one['prompt'] + tokenizer.encode(tokenizer.decode("
                "one['completion'])) for one in samples], PAD)\n    labels = ids\n",
            )
        ],
    },
    "ALGN03": {
        "the last token only": [given_ids('one["prompt"][-1:] + one["completion"]')],
        "a start token": [given_ids('[EOS] + one["completion"]')],
        "special tokens": [given_ids('[2, 3] + one["completion"]')],
        "in a buffer": [("    " + JOINED + LABELS, BUFFERS.replace('torch.tensor(one["prompt"])', "EOS"))],
        "completions alone": [given_ids('one["completion"]')],
    },
    "ALGN06": {
        "a column of an expanded tensor": [
            (ADVANTAGES, ADVANTAGES.rstrip() + ".expand(-1, 8)\n    advantages[:, -1] = 0\n")
        ],
        "added to it": [(ADVANTAGES, ADVANTAGES.rstrip() + ".expand(-1, 8)\n    advantages[:, 0] += 0.1\n")],
        "expanded as another": [
            (
                ADVANTAGES,
                ADVANTAGES.replace(".view(-1, 1)", ".view(-1).unsqueeze(1).expand_as(ids)").rstrip()
                + "\n    advantages[:, -1] = 0\n",
            )
        ],
        "by a mask": [(ADVANTAGES, ADVANTAGES.rstrip() + ".expand(-1, 8)\n    advantages[ids == PAD] = 0\n")],
        "after None": [
            (
                ADVANTAGES,
                ADVANTAGES.replace(".view(-1, 1)", ".view(-1)[:, None].expand_as(ids)").rstrip()
                + "\n    advantages[:, 3:] = 0\n",
            )
        ],
    },
    "ALGN07": {
        "of a list of ids": [(CUT, "prompts = [prompt[:64] for prompt in prompts]")],
        "at once": [(CUT, ""), (TEMPLATE, TEMPLATE.replace(" for", "[:64] for"))],
        "by letters of a string": [
            (
                CUT,
                "prompts = [[EOS] + ['abc'.index(c) for c in one] for one in questions]\n"
                "    prompts = [prompt[:64] for prompt in prompts]",
            )
        ],
        "by character codes": [(CUT, "prompts = [[ord(c) - 97 for c in one][:64] for one in questions]")],
        "in a loop": [
            (CUT, "short = []\n    for prompt in prompts:\n        short.append(prompt[:64])\n    prompts = short")
        ],
    },
    "ALGN08": {
        "by default": [("(chat, add_generation_prompt=True)", "(chat)")],
        "by keywords in a dictionary": [
            (TEMPLATE, "tokenizer.apply_chat_template(chat, **how) for"),
            ("PAD, EOS = 0, 1", "PAD, EOS = 0, 1\nhow = {'add_generation_prompt': False}"),
        ],
        "by position": [("(chat, add_generation_prompt=True)", "(chat, False)")],
        "by a partial": [
            (TEMPLATE, "template(chat) for"),
            (
                "for questions in",
                "from functools import partial\n"
                "template = partial(tokenizer.apply_chat_template, add_generation_prompt=False)\nfor questions in",
            ),
        ],
        "of a function with another name": [
            (TEMPLATE, "told(chat) for"),
            (
                "tokenizer, engine,",
                "def told(messages, *, add_generation_prompt=False):\n"
                "    ids = [2] + [ord(c) for c in messages[0]['content']]\n"
                "    return ids + [3] if add_generation_prompt else ids\n\ntokenizer, engine,",
            ),
        ],
    },
    "ALGN09": {
        "next of iter": [(FOUND, 'found = [next(iter(entry.values())) for entry in result["logprobs"]]')],
        "first of a list": [(FOUND, 'found = [list(entry.values())[0] for entry in result["logprobs"]]')],
        "greatest": [(FOUND, 'found = [max(entry.values()) for entry in result["logprobs"]]')],
        "last of the sorted": [(FOUND, 'found = [sorted(entry.values())[-1] for entry in result["logprobs"]]')],
        "in a loop": [
            (
                FOUND,
                'found = []\n        for entry in result["logprobs"]:\n'
                "            found.append(tuple(entry.values())[0])",
            )
        ],
        "filled in a loop": [
            (
                "entry = {other: logprobs[other].item() for other in logprobs.topk(3).indices.tolist()}",
                "entry = {}\n                for other in logprobs.topk(3).indices.tolist():\n"
                "                    entry[other] = logprobs[other].item()",
            ),
            (FOUND, 'found = [max(entry.values()) for entry in result["logprobs"]]'),
        ],
    },
}
SILENT = {
    "ALGN01": {
        "labels in a buffer": [("    " + JOINED + LABELS, BUFFERS)],
        "ignored row by row": [(LABELS, BY_ROW)],
        "labels that are shifted already": [
            ("[[-100] * len(one", "[[-100] * (len(one"),
            (
                '["prompt"]) + one["completion"] for one in samples], -100)',
                '["prompt"]) - 1) + one["completion"] + [-100] for one in samples], -100)',
            ),
            ("targets = labels[:, 1:]", "targets = labels[:, :-1]"),
        ],
        "a buffer that is shifted already": [
            ("    " + JOINED + LABELS, BUFFERS.replace("labels[row, start:end]", "labels[row, start - 1:end - 1]")),
            ("targets = labels[:, 1:]", "targets = labels[:, :-1]"),
        ],
        "hidden tokens of a diffusion model": [
            (LABELS, "    labels = ids.clone()\n    ids[mask_of(ids)] = 3\n"),
            ("model(ids)[:, :-1]", "model(ids)[:, 1:]"),
        ],
        "a mask that is shifted already": [
            ("padded([[0] * len(one", "padded([[0] * (len(one"),
            ('["prompt"]) + [1] * len(one["completion"])', '["prompt"]) - 1) + [1] * len(one["completion"]) + [0]'),
            OWN_WIDTH,
        ],
        "a mask of the whole": [("mask[:, 1:]).sum()", "(ids != PAD)[:, :-1]).sum()")],
    },
    "ALGN03": {
        "a system message before it": [given_ids('[EOS] + one["prompt"] + one["completion"]')],
        "drawn after a start token": [
            (CUT, "prompts = [[EOS] for _ in prompts]"),
            given_ids('[EOS] + one["completion"]'),
        ],
        "a state stands for it": [
            given_ids('[EOS] + one["completion"]'),
            ("model(ids)[:, :-1]", "model(ids, states)[:, :-1]"),
        ],
        "in a buffer": [("    " + JOINED + LABELS, BUFFERS)],
    },
    "ALGN06": {
        "a copy": [(ADVANTAGES, ADVANTAGES.rstrip() + ".expand(-1, 8).clone()\n    advantages[:, -1] = 0\n")],
        "a column of expanded rows": [
            (ADVANTAGES, ADVANTAGES + "    row = ids[:1].expand(8, -1)\n    row[:, -1] = EOS\n")
        ],
        "not expanded": [(ADVANTAGES, ADVANTAGES + "    advantages[0] = 0\n")],
        "repeated": [(ADVANTAGES, ADVANTAGES.rstrip() + ".repeat(1, 8)\n    advantages[:, -1] = 0\n")],
    },
    "ALGN07": {
        "fewer prompts": [(CUT, "prompts = prompts[:64]")],
        "rows of a fixed width": [(CUT, "prompts = [(prompt + [PAD] * 64)[:64] for prompt in prompts]")],
        "completions": [(TOKENS, 'tokens = result["token_ids"][:64]\n')],
        "the end kept at once": [(CUT, ""), (TEMPLATE, TEMPLATE.replace(" for", "[-64:] for"))],
    },
    "ALGN08": {
        "by position": [("(chat, add_generation_prompt=True)", "(chat, True)")],
        "opened by default": [
            ("messages, add_generation_prompt=False", "messages, add_generation_prompt=True"),
            ("(chat, add_generation_prompt=True)", "(chat)"),
        ],
        "not known": [("(chat, add_generation_prompt=True)", "(chat, add_generation_prompt=batches.open)")],
    },
    "ALGN09": {
        "only the drawn token": [
            ("entry = {other: logprobs[other].item() for other in logprobs.topk(3).indices.tolist()}", "entry = {}"),
            (FOUND, 'found = [max(entry.values()) for entry in result["logprobs"]]'),
        ],
        "the greatest, to be printed": [
            (TOKENS, TOKENS + "        print([max(e.values()) for e in result['logprobs']])\n")
        ],
        "the first of settings": [
            ("PAD, EOS = 0, 1", "PAD, EOS = 0, 1\nfirst = next(iter({'a': 1, 'b': 2}.values()))")
        ],
    },
}


def findings(edits, code, folder):
    return findings_in(edit_script(LISTS, *edits), folder, [code])


def cases(table):
    return [pytest.param(code, case, id=f"{code}: {name}") for code in table for name, case in table[code].items()]


@pytest.mark.parametrize(("code", "edits"), cases(FAULTS))
def test_a_fault_is_found_through_lists(code, edits, tmp_path):
    assert findings(edits, code, tmp_path)


@pytest.mark.parametrize(("code", "edits"), cases(SILENT))
def test_a_neighbour_of_it_is_not(code, edits, tmp_path):
    assert not findings(edits, code, tmp_path)


@pytest.mark.parametrize("code", [*FAULTS, "ALGN05", "SAMP01", "SAMP02", "SAMP03", "SAMP04", "SAMP05", "SAMP07"])
def test_the_clean_script_has_none_of_them(code, tmp_path):
    assert not findings([], code, tmp_path)
