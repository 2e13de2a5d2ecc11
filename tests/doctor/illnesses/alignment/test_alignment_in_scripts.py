"""ALGN01 to ALGN09 in the source: many ways to write the same fault, and neighbours that must stay silent."""

import pytest
from doctor.illnesses.read_script import edit_script, findings_in

from assay.doctor.examples.scripts import GENERATE, LOOP
from assay.doctor.illnesses.alignment.sampled_token_logp import SCRIPT_SICK, SCRIPT_WELL


def findings(text, code, folder):
    return findings_in(text, folder, [code])


CUT = "model(ids)[:, prompts.shape[1] - 1:-1] / TEMPERATURE"
PICKED = "logprobs = F.log_softmax(logits, dim=-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)"
MASKED = "model(input_ids=ids, attention_mask=attention)"
COMPLETIONS = '    completions = ids[:, prompts["input_ids"].shape[1]:]\n'
REWARDS = "    rewards = torch.tensor("
CONCATENATED = '    attention = torch.cat([prompts["attention_mask"], mask.long()], dim=1)\n'

FAULTS = {
    "ALGN01": {
        "one late": (LOOP, (CUT, "model(ids)[:, prompts.shape[1]:] / TEMPERATURE")),
        "one early": (LOOP, (CUT, "model(ids)[:, prompts.shape[1] - 2:-2] / TEMPERATURE")),
        "from the end": (LOOP, (CUT, "model(ids)[:, -completions.shape[1]:] / TEMPERATURE")),
        "a length in a variable": (
            LOOP,
            (f"    logits = {CUT}", f"    n = completions.size(1)\n    logits = {CUT[:10]}[:, -n:] / TEMPERATURE"),
        ),
        "the whole sequence": (GENERATE, (".logits[:, :-1]", ".logits"), ("ids[:, 1:].unsqueeze", "ids.unsqueeze")),
        "shifted twice": (
            GENERATE,
            ("model(input_ids=ids,", "model(input_ids=ids[:, :-1],"),
            ("[:, :-1].f", "[:, 1:].f"),
        ),
        "by cross-entropy": (
            LOOP,
            (CUT, "model(ids)[:, prompts.shape[1]:] / TEMPERATURE"),
            (PICKED, 'logprobs = -F.cross_entropy(logits.transpose(1, 2), completions, reduction="none")'),
        ),
        "by a distribution": (
            LOOP,
            (CUT, "model(ids)[:, prompts.shape[1]:] / TEMPERATURE"),
            (PICKED, "logprobs = torch.distributions.Categorical(logits=logits).log_prob(completions)"),
        ),
        "with logits_to_keep": (
            GENERATE,
            (
                "attention_mask=attention).logits[:, :-1].float()",
                "attention_mask=attention, logits_to_keep=kept).logits",
            ),
            ("ids[:, 1:].unsqueeze", "ids[:, -kept:].unsqueeze"),
        ),
    },
    "ALGN02": {
        "of a batch": (
            GENERATE,
            (
                COMPLETIONS,
                COMPLETIONS
                + "    said = tokenizer.batch_decode(completions)\n    completions = tokenizer(said, padding=True, "
                'return_tensors="pt").input_ids\n    ids = torch.cat([prompts["input_ids"], completions], 1)\n',
            ),
        ),
        "row by row": (
            GENERATE,
            (
                COMPLETIONS,
                COMPLETIONS + "    rows = [tokenizer.encode(tokenizer.decode(row)) for row in ids]\n"
                "    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)\n",
            ),
        ),
        "through an own vocabulary": (
            LOOP,
            (
                "    completions = ids[:, prompts.shape[1]:]\n",
                "    completions = ids[:, prompts.shape[1]:]\n"
                "    texts = [''.join(letters[i] for i in row) for row in completions.tolist()]\n"
                "    completions = torch.tensor([[number[c] for c in text] for text in texts])\n",
            ),
            ("GROUP, LENGTH", 'letters = "abc"\nnumber = {c: i for i, c in enumerate(letters)}\nGROUP, LENGTH'),
        ),
    },
    "ALGN03": {
        "completions alone": (
            LOOP,
            (CUT, "model(completions)[:, :-1] / TEMPERATURE"),
            ("completions.unsqueeze", "completions[:, 1:].unsqueeze"),
        ),
        "cut inside a function": (
            GENERATE,
            (MASKED, "model(input_ids=ids[:, -kept:])"),
            ("ids[:, 1:].unsqueeze", "ids[:, -kept:][:, 1:].unsqueeze"),
        ),
        "a filler before them": (
            LOOP,
            (CUT, "model(torch.cat([torch.full_like(completions[:, :1], 0), completions[:, :-1]], 1)) / TEMPERATURE"),
        ),
        "other rows": (
            LOOP,
            (
                CUT,
                "model(torch.cat([prompts.roll(1, 0), completions], dim=1))[:, prompts.shape[1] - 1:-1] / TEMPERATURE",
            ),
        ),
    },
    "ALGN05": {
        "no mask at scoring": (GENERATE, (MASKED, "model(input_ids=ids)")),
        "none, positional": (GENERATE, (MASKED, "model(ids)")),
        "ones at scoring": (GENERATE, (MASKED, "model(input_ids=ids, attention_mask=torch.ones_like(ids))")),
        "ones at generate": (
            GENERATE,
            ("(**prompts, do", '(prompts["input_ids"], attention_mask=torch.ones_like(prompts["input_ids"]), do'),
        ),
        "none at generate, padding is the end": (
            GENERATE,
            ("(**prompts, do", "(prompts.input_ids, do"),
            ("GROUP = 8", "GROUP = 8\ntokenizer.pad_token = tokenizer.eos_token"),
        ),
    },
    "ALGN06": {
        "another name": (
            GENERATE,
            (CONCATENATED, CONCATENATED + "    own = attention\n    own[:, :5] = 0\n    mask = own[:, 5:].float()\n"),
        ),
        "a view": (
            GENERATE,
            (CONCATENATED, CONCATENATED + "    own = attention.view(-1, 9)\n    own[:, 0] = 0\n    mask = own * 1.0\n"),
        ),
    },
    "ALGN07": {
        "side right": (GENERATE, ('truncation_side="left"', 'truncation_side="right"')),
        "side not said": (GENERATE, (', truncation_side="left"', "")),
        "side set later": (
            GENERATE,
            (', truncation_side="left"', ""),
            ("GROUP = 8", 'GROUP = 8\ntokenizer.truncation_side = "right"'),
        ),
        "ids cut": (
            GENERATE,
            ("(**prompts, do", '(prompts["input_ids"][:, :256], attention_mask=prompts["attention_mask"][:, :256], do'),
        ),
        "text cut": (GENERATE, ("tokenize=False) for", "tokenize=False)[:2000] for")),
    },
    "ALGN08": {
        "not said": (GENERATE, ("add_generation_prompt=True, ", "")),
        "off": (GENERATE, ("add_generation_prompt=True", "add_generation_prompt=False")),
        "tokenized at once": (
            GENERATE,
            ("add_generation_prompt=True, tokenize=False", 'return_tensors="pt"'),
            (
                'tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")',
                "{'input_ids': texts[0]}",
            ),
        ),
        "off in a variable": (
            GENERATE,
            ("add_generation_prompt=True", "add_generation_prompt=OPEN"),
            ("GROUP = 8", "GROUP, OPEN = 8, False"),
        ),
    },
    "ALGN09": {
        "next of iter": (SCRIPT_SICK,),
        "first of a list": (SCRIPT_SICK, ("next(iter(entry.values()))", "list(entry.values())[0]")),
        "the best one": (
            LOOP,
            (
                "    loss = -(logprobs",
                "    old = F.log_softmax(model(ids), -1).max(-1).values.detach()\n"
                "    loss = -(torch.exp(logprobs - old)",
            ),
        ),
    },
}
SILENT = {
    "ALGN01": {
        "a loop": (LOOP,),
        "generate": (GENERATE,),
        "from the end": (LOOP, (CUT, "model(ids)[:, -completions.shape[1] - 1:-1] / TEMPERATURE")),
        "ids cut before": (LOOP, (CUT, "model(ids[:, :-1])[:, prompts.shape[1] - 1:] / TEMPERATURE")),
        "longer logits": (GENERATE, (".logits[:, :-1]", ".logits"), ("ids[:, 1:]", "ids[:, 1:]")),
        "labels rolled": (GENERATE, (".logits[:, :-1]", ".logits"), ("ids[:, 1:].uns", "ids.roll(-1, 1).uns")),
        "logits_to_keep": (
            GENERATE,
            ("attention_mask=attention).logits", "attention_mask=attention, logits_to_keep=kept + 1).logits"),
            ("ids[:, 1:].unsqueeze", "ids[:, -kept:].unsqueeze"),
        ),
        "numbers that are not known": (LOOP, (CUT, "model(ids)[:, batches.first:batches.last] / TEMPERATURE")),
        "masked tokens of a diffusion model": (
            LOOP,
            (CUT, "model(ids.masked_fill(hidden, 0))[:, prompts.shape[1]:] / TEMPERATURE"),
        ),
    },
    "ALGN02": {
        "decoded for the reward": (GENERATE,),
        "a loop": (LOOP,),
        "the text is scored, and not trained on": (
            GENERATE,
            (
                REWARDS,
                '    again = tokenizer(tokenizer.batch_decode(ids), padding=True, return_tensors="pt")\n'
                "    with torch.no_grad():\n"
                '        print(logprobs_of(again["input_ids"], again["attention_mask"], 5))\n' + REWARDS,
            ),
        ),
    },
    "ALGN03": {
        "as they are": (LOOP,),
        "generate": (GENERATE,),
        "a window": (LOOP, ("logits = model(ids)[:, -1] /", "logits = model(ids[:, -128:])[:, -1] /")),
        "a filler before the whole": (
            LOOP,
            (
                CUT,
                "model(torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1))[:, prompts.shape[1]:] / TEMPERATURE",
            ),
        ),
        "without the last token": (LOOP, (CUT, "model(ids[:, :-1])[:, prompts.shape[1] - 1:] / TEMPERATURE")),
    },
    "ALGN05": {
        "as they are": (GENERATE,),
        "one prompt": (GENERATE, ("tokenizer(texts, pad", "tokenizer(texts[0], pad"), (MASKED, "model(input_ids=ids)")),
        "the same prompt": (
            GENERATE,
            ("tokenizer(texts, pad", 'tokenizer(["Say a number."] * GROUP, pad'),
            (MASKED, "model(input_ids=ids)"),
        ),
        "no padding": (GENERATE, ("padding=True, ", ""), (MASKED, "model(input_ids=ids)")),
        "generate finds it": (GENERATE, ("(**prompts, do", "(prompts.input_ids, do")),
    },
    "ALGN06": {
        "a copy": (
            GENERATE,
            (CONCATENATED, CONCATENATED + "    own = attention.clone()\n    own[:, :5] = 0\n    mask = own[:, 5:]\n"),
        ),
        "its own name": (GENERATE, (CONCATENATED, CONCATENATED + "    attention[:, :1] = 0\n")),
        "a buffer that is filled": (LOOP, ("    ids = prompts\n", "    ids = prompts\n    ids[:, 0] = 1\n")),
    },
    "ALGN07": {
        "as they are": (GENERATE,),
        "no truncation": (GENERATE, (', truncation_side="left"', ""), ("truncation=True, max_length=512, ", "")),
        "side not said, of a tokenizer made elsewhere": (
            GENERATE,
            ('AutoTokenizer.from_pretrained("tiny", padding_side="left", truncation_side="left")', "batches.tokenizer"),
        ),
        "the end kept": (GENERATE, ("tokenize=False) for", "tokenize=False)[-2000:] for")),
        "fewer questions": (GENERATE, ("in questions for _", "in questions[:16] for _")),
        "a loop": (LOOP,),
    },
    "ALGN08": {
        "as they are": (GENERATE,),
        "the final message goes on": (GENERATE, ("add_generation_prompt=True", "continue_final_message=True")),
        "a whole conversation": (
            GENERATE,
            ('"content": question}]', '"content": question}, {"role": "assistant", "content": "So"}]'),
            ("add_generation_prompt=True, ", ""),
        ),
        "not known": (GENERATE, ("=True, tokenize=False) for", "=batches.open, tokenize=False) for")),
    },
    "ALGN09": {
        "by token": (SCRIPT_WELL,),
        "only one is asked for": (SCRIPT_SICK, ("logprobs=5", "logprobs=0")),
        "stability": (LOOP, ("F.log_softmax(logits, dim=-1)", "F.log_softmax(logits - logits.amax(-1, True), -1)")),
    },
}  # fmt: skip


def cases(table):
    return [pytest.param(code, case, id=f"{code}: {name}") for code in table for name, case in table[code].items()]


@pytest.mark.parametrize(("code", "case"), cases(FAULTS))
def test_a_fault_of_alignment_is_found(code, case, tmp_path):
    assert findings(edit_script(*case), code, tmp_path)


@pytest.mark.parametrize(("code", "case"), cases(SILENT))
def test_a_neighbour_of_it_is_not(code, case, tmp_path):
    assert not findings(edit_script(*case), code, tmp_path)


@pytest.mark.parametrize("text", [LOOP, GENERATE], ids=["loop", "generate"])
@pytest.mark.parametrize("code", [*FAULTS])
def test_the_clean_trainers_have_none_of_them(text, code, tmp_path):
    assert not findings(text, code, tmp_path)
