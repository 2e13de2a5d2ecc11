"""SAMP01 to SAMP07 in the source: many ways to write the same fault, and neighbours that must stay silent."""

import pytest
from doctor.illnesses.read_script import edit_script, findings_in

from assay.doctor.examples.scripts import GENERATE, LOOP

HEAD = """
import copy, random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical, OneHotCategorical
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("tiny")
ids = torch.zeros(2, 3)
out = model(ids)
"""


def findings(text, code, folder):
    return findings_in(text, folder, [code])


RAW = {
    "function": "torch.multinomial(out.logits[:, -1], 1)",
    "method": "out.logits[:, -1].multinomial(1)",
    "keyword": "torch.multinomial(input=out.logits[:, -1], num_samples=1)",
    "a misleading name": "probs = out.logits[:, -1]\ntorch.multinomial(probs, 1)",
    "scaled and cast": "w = (out.logits[:, -1].float() / 0.7)\ntorch.multinomial(w, 1)",
    "of a tuple": "w = model(ids)[0][:, -1]\ntorch.multinomial(w, 1)",
    "of a dictionary": "w = model(ids)['logits'][:, -1]\ntorch.multinomial(w, 1)",
    "through a function": "def pick(scores):\n    return torch.multinomial(scores, 1)\npick(out.logits[:, -1, :])",
    "through a lambda": "pick = lambda s: torch.multinomial(s, 1)\npick(out.logits[:, -1, :])",
    "through an attribute": """class Sampler:
    def __init__(self, scores):
        self.scores = scores
    def draw(self):
        return torch.multinomial(self.scores, 1)
Sampler(out.logits[:, -1]).draw()""",
    "filtered by top-k": """logits = out.logits[:, -1]
best = torch.topk(logits, 5).values[:, -1:]
logits = logits.masked_fill(logits < best, float("-inf"))
torch.multinomial(logits, 1)""",
    "the values of top-k": "w, where = out.logits[:, -1].topk(5)\ntorch.multinomial(w, 1)",
    "a log-softmax": "torch.multinomial(F.log_softmax(out.logits[:, -1], -1), 1)",
    "softmax, then log": "p = out.logits[:, -1].softmax(-1)\ntorch.multinomial(torch.log(p), 1)",
    "Categorical, first argument": "Categorical(out.logits[:, -1]).sample()",
    "Categorical, by keyword": "Categorical(probs=out.logits[:, -1]).sample()",
    "OneHotCategorical": "OneHotCategorical(probs=out.logits[:, -1]).sample()",
    "a qualified name": "torch.distributions.Categorical(probs=out.logits[:, -1]).sample()",
    "probabilities as logits": "Categorical(logits=F.softmax(out.logits[:, -1], dim=-1)).sample()",
    "probabilities called logits": "logits = out.logits[:, -1].softmax(-1)\nCategorical(logits=logits).sample()",
    "probabilities, second argument": "Categorical(None, out.logits[:, -1].softmax(-1)).sample()",
    "softmax twice": "p = out.logits[:, -1].softmax(-1)\ntorch.multinomial(torch.softmax(p, -1), 1)",
    "softmax over the batch": "torch.multinomial(torch.softmax(out.logits[:, -1, :], dim=0), 1)",
    "relu": "torch.multinomial(F.relu(out.logits[:, -1]) + 1e-8, 1)",
    "shifted to be positive": "w = out.logits[:, -1]\ntorch.multinomial(w - w.min(-1, keepdim=True).values, 1)",
    "numpy": "np.random.choice(64, p=out.logits[0, -1].detach().cpu().numpy())",
    "numpy's generator": "rng = np.random.default_rng(0)\nrng.choice(64, p=out.logits[0, -1].numpy())",
    "python": "random.choices(range(64), weights=out.logits[0, -1].tolist())",
    "python, second argument": "random.choices(range(64), out.logits[0, -1].tolist(), k=1)",
    "an own network": """class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(8, 8), nn.Linear(8, 64)
    def forward(self, x):
        return self.head(self.body(x)[0])
net = Policy()
torch.multinomial(net(ids)[:, -1], 1)""",
    "a sequential that ends in a linear layer": """actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
Categorical(actor(ids)).sample()""",
    "only one of two branches": """if ids.sum() > 0:
    t = torch.multinomial(out.logits[:, -1].softmax(-1), 1)
else:
    t = torch.multinomial(out.logits[:, -1], 1)""",
}
RIGHT = {
    "softmax": "torch.multinomial(out.logits[:, -1].softmax(-1), 1)",
    "a misleading name": "logits = F.softmax(out.logits[:, -1], -1)\ntorch.multinomial(logits, 1)",
    "exp of a log-softmax": "lp = F.log_softmax(out.logits[:, -1], -1)\ntorch.multinomial(lp.exp(), 1)",
    "exp of logits": "torch.multinomial((out.logits[:, -1] - 5).exp(), 1)",
    "Categorical with logits": "Categorical(logits=out.logits[:, -1] / 0.7).sample()",
    "Categorical with log-probs": "Categorical(logits=F.log_softmax(out.logits[:, -1], -1)).sample()",
    "log of probabilities": "p = out.logits[:, -1].softmax(-1)\nCategorical(logits=torch.log(p + 1e-9)).sample()",
    "the Gumbel trick": """g = -torch.log(-torch.log(torch.rand_like(out.logits[:, -1])))
token = (out.logits[:, -1] + g).argmax(-1)""",
    "exponentials": "p = out.logits[:, -1].softmax(-1)\nt = (p / torch.empty_like(p).exponential_(1)).argmax(-1)",
    "nucleus sampling": """p = torch.softmax(out.logits[:, -1] / 0.8, dim=-1)
best, where = torch.sort(p, dim=-1, descending=True)
best[best.cumsum(-1) - best > 0.9] = 0.0
best.div_(best.sum(dim=-1, keepdim=True))
where.gather(-1, torch.multinomial(best, 1))""",
    "top-k, then softmax": """logits = out.logits[:, -1]
v, _ = torch.topk(logits, 5)
logits[logits < v[:, [-1]]] = -float("Inf")
torch.multinomial(F.softmax(logits, dim=-1), 1)""",
    "softmax of one row": "torch.multinomial(torch.softmax(out.logits[0, -1], dim=0), 1)",
    "counts": "torch.multinomial(torch.tensor([3.0, 1.0]), 1)",
    "a network that ends in a softmax": """actor = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2), nn.Softmax(dim=-1))
Categorical(actor(ids)).sample()""",
    "a forward that ends in a softmax": """class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
    def forward(self, x):
        return F.softmax(self.head(x), dim=-1)
Categorical(Actor()(ids)).sample()""",
    "a sigmoid gate normalised": """class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)
torch.multinomial(Gate()(ids), 1)""",
    "a policy that nobody knows": "def act(policy, state):\n    return Categorical(policy(state)).sample()",
    "weights of a data set": "random.choices(range(3), weights=[0.2, 0.3, 0.5])",
}


@pytest.mark.parametrize("text", RAW.values(), ids=RAW.keys())
def test_weights_that_are_no_probabilities_are_found(text, tmp_path):
    assert findings(HEAD + text, "SAMP07", tmp_path)


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT.keys())
def test_right_weights_are_left_alone(text, tmp_path):
    assert not findings(HEAD + text, "SAMP07", tmp_path)


SCORED = "logits = model(ids)[:, prompts.shape[1] - 1:-1] / TEMPERATURE"
DRAWN = "logits = model(ids)[:, -1] / TEMPERATURE"
CALL = "do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64"
FAULTS = {
    "SAMP01": {
        "not at scoring": (LOOP, (SCORED, SCORED.removesuffix(" / TEMPERATURE"))),
        "not at drawing": (LOOP, (DRAWN, DRAWN.removesuffix(" / TEMPERATURE"))),
        "another number": (LOOP, (SCORED, SCORED.replace("TEMPERATURE", "0.7"))),
        "multiplied": (LOOP, (SCORED, SCORED.replace("/ T", "* T"))),
        "after the log-softmax": (
            LOOP,
            (SCORED, SCORED.removesuffix(" / TEMPERATURE")),
            ("dim=-1).gather", "dim=-1).div(TEMPERATURE).gather"),
        ),
        "of generate": (GENERATE, (".float() / 0.7", ".float()")),
        "of generate, other": (GENERATE, ("temperature=0.7", "temperature=1.0")),
        "generate by default": (GENERATE, ("temperature=0.7, ", "")),
        "in a config object": (
            GENERATE,
            (CALL, "generation_config=GenerationConfig(do_sample=True, temperature=0.9, top_k=0)"),
            ("import AutoModel", "import GenerationConfig, AutoModel"),
        ),
    },
    "SAMP02": {
        "top_p": (GENERATE, ("top_p=1.0", "top_p=0.95")),
        "top_k": (GENERATE, ("top_k=0", "top_k=50")),
        "min_p": (GENERATE, ("top_k=0", "top_k=0, min_p=0.1")),
        "penalty": (GENERATE, ("top_k=0", "top_k=0, repetition_penalty=1.2")),
        "keywords in a dictionary": (
            GENERATE,
            (CALL, "**kwargs"),
            ("GROUP = 8", f"GROUP = 8\nkwargs = dict({CALL.replace('1.0', '0.9')})"),
        ),
        "top-k by hand": (
            LOOP,
            ("weights = F", "logits[logits < torch.topk(logits, 9).values[:, -1:]] = -1e9\n        weights = F"),
        ),
        "nucleus by hand": (
            LOOP,
            (
                "F.softmax(logits, dim=-1)\n",
                "F.softmax(logits, dim=-1)\n"
                "        best, where = weights.sort(-1, descending=True)\n"
                "        out = (best.cumsum(-1) - best > 0.9).scatter(1, where, best.cumsum(-1) - best > 0.9)\n"
                "        weights = weights.masked_fill(out, 0.0)\n",
            ),
        ),
        "min-p by hand": (
            LOOP,
            (
                "F.softmax(logits, dim=-1)\n",
                "F.softmax(logits, dim=-1)\n"
                "        weights = torch.where(weights < 0.1 * weights.amax(-1, keepdim=True), 0.0, weights)\n",
            ),
        ),
    },
    "SAMP03": {
        "no settings": (GENERATE, ("top_k=0, top_p=1.0, ", "")),
        "no top_k": (GENERATE, ("top_k=0, ", "")),
        "a config without it": (
            GENERATE,
            (CALL, "generation_config=GenerationConfig(do_sample=True, temperature=0.7)"),
            ("import AutoModel", "import GenerationConfig, AutoModel"),
        ),
        "written into the model": (
            GENERATE,
            ("top_k=0, ", ""),
            ("GROUP = 8", "GROUP = 8\nmodel.generation_config.top_k = 20"),
        ),
        "a config changed later": (
            GENERATE,
            (CALL, "generation_config=config"),
            ("GROUP = 8", "GROUP = 8\nconfig = model.generation_config\nconfig.do_sample = True"),
        ),
    },
    "SAMP04": {
        "do_sample off": (GENERATE, ("do_sample=True", "do_sample=False")),
        "do_sample not said": (GENERATE, ("do_sample=True, ", "")),
        "temperature 0": (GENERATE, ("temperature=0.7", "temperature=0.0")),
        "argmax": (LOOP, ("torch.multinomial(weights, 1)", "weights.argmax(-1, keepdim=True)")),
        "max": (LOOP, ("torch.multinomial(weights, 1)", "weights.max(-1, keepdim=True).indices")),
        "one draw copied": (
            LOOP,
            ("    prompts = prompts.repeat_interleave(GROUP, dim=0)\n", ""),
            ("ids = sample(prompts)", "ids = sample(prompts).repeat_interleave(GROUP, dim=0)"),
        ),
    },
    "SAMP05": {
        "before generate": (GENERATE, ("    model.eval()", "    torch.manual_seed(42)\n    model.eval()")),
        "of transformers": (
            GENERATE,
            ("    model.eval()", "    set_seed(42)\n    model.eval()"),
            ("import AutoModel", "import set_seed, AutoModel"),
        ),
        "in the sampling function": (LOOP, ("    ids = prompts\n", "    torch.manual_seed(0)\n    ids = prompts\n")),
        "a generator": (
            LOOP,
            ("    ids = prompts\n", "    rng = torch.Generator().manual_seed(0)\n    ids = prompts\n"),
            ("(weights, 1)", "(weights, 1, generator=rng)"),
        ),
    },
}
SILENT = {
    "SAMP01": {
        "as they are": (LOOP,),
        "of generate": (GENERATE,),
        "1 everywhere": (LOOP, ("8, 16, 0.8", "8, 16, 1.0"), (SCORED, SCORED.removesuffix(" / TEMPERATURE"))),
        "the inverse": (LOOP, (SCORED, SCORED.replace("/ TEMPERATURE", "* (1 / 0.8)"))),
        "in place": (LOOP, (SCORED, SCORED.removesuffix(" / TEMPERATURE") + "\n    logits.div_(TEMPERATURE)")),
    },
    "SAMP02": {
        "as they are": (GENERATE,),
        "the same cut at scoring": (
            LOOP,
            ("weights = F", "logits[logits < torch.topk(logits, 9).values[:, -1:]] = -1e9\n        weights = F"),
            (
                SCORED,
                SCORED + "\n    logits = logits.masked_fill(logits < torch.topk(logits, 9).values[..., -1:], -1e9)",
            ),
        ),
        "a nucleus of all tokens": (
            LOOP,
            (
                "        ids = torch.cat(",
                "        best, order = weights.sort(-1, descending=True)\n"
                "        best[best.cumsum(-1) - best > 1.0] = 0\n"
                "        weights = torch.zeros_like(weights).scatter(-1, order, best)\n        ids = torch.cat(",
            ),
        ),
        "switched off": (
            LOOP,
            ("def sample(prompts):", "def sample(prompts, top_k=0):"),
            (
                "weights = F",
                "if top_k > 0:\n            logits[logits < torch.topk(logits, top_k).values[:, -1:]] = -1e9\n"
                "        weights = F",
            ),
        ),
        "a test with top_p": (
            GENERATE,
            (
                "    optimizer.step()",
                "    optimizer.step()\n    print(model.generate(**prompts, do_sample=True, top_p=0.9))",
            ),
        ),
    },
    "SAMP03": {
        "as they are": (GENERATE,),
        "written into the model": (
            GENERATE,
            ("top_k=0, ", ""),
            ("GROUP = 8", "GROUP = 8\nmodel.generation_config.top_k = 0"),
        ),
        "greedy": (GENERATE, ("do_sample=True", "do_sample=False"), ("top_k=0, ", "")),
    },
    "SAMP04": {
        "as they are": (GENERATE,),
        "a greedy baseline": (
            GENERATE,
            ("    model.train()", "        best = model.generate(**prompts, do_sample=False)\n    model.train()"),
        ),
        "a greedy row beside the drawn ones": (
            GENERATE,
            (
                "    model.train()",
                "        ids = torch.cat([ids, model.generate(**prompts, do_sample=False)], dim=0)\n    model.train()",
            ),
        ),
        "a loop": (LOOP,),
    },
    "SAMP05": {
        "before the loop": (GENERATE, ("GROUP = 8", "GROUP = 8\ntorch.manual_seed(0)")),
        "with the step": (
            GENERATE,
            ("for questions, answers in batches():", "for step, (questions, answers) in enumerate(batches()):"),
            ("    model.eval()", "    torch.manual_seed(step)\n    model.eval()"),
        ),
        "python's": (
            GENERATE,
            ("import torch\n", "import torch, random\n"),
            ("    model.eval()", "    random.seed(0)\n    model.eval()"),
        ),
        "one generator": (
            LOOP,
            ("GROUP, LENGTH", "rng = torch.Generator().manual_seed(0)\nGROUP, LENGTH"),
            ("(weights, 1)", "(weights, 1, generator=rng)"),
        ),
    },
}


@pytest.mark.parametrize(
    ("code", "case"), [(code, case) for code, cases in FAULTS.items() for case in cases.values()],
    ids=[f"{code}: {name}" for code, cases in FAULTS.items() for name in cases],
)  # fmt: skip
def test_a_fault_of_sampling_is_found(code, case, tmp_path):
    assert findings(edit_script(*case), code, tmp_path)


@pytest.mark.parametrize(
    ("code", "case"), [(code, case) for code, cases in SILENT.items() for case in cases.values()],
    ids=[f"{code}: {name}" for code, cases in SILENT.items() for name in cases],
)  # fmt: skip
def test_a_neighbour_of_it_is_not(code, case, tmp_path):
    assert not findings(edit_script(*case), code, tmp_path)


def test_the_line_that_must_change_comes_first(tmp_path):
    (found,) = findings(edit_script(LOOP, (SCORED, SCORED.removesuffix(" / TEMPERATURE"))), "SAMP01", tmp_path)
    first, second = found.verdict.places[:2]
    assert "log_softmax" in first.text
    assert "multinomial" in second.text
    assert "0.8" in found.verdict.message


PREFERENCES = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("gpt2", padding_side="left")
policy = AutoModelForCausalLM.from_pretrained("gpt2")
ref = AutoModelForCausalLM.from_pretrained("gpt2").eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

def score(model, ids, start):
    logp = F.log_softmax(model(ids).logits[:, :-1], dim=-1)
    logp = logp.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    mask = (ids[:, 1:] != tok.pad_token_id).float()
    mask[:, : start - 1] = 0
    return (logp * mask).sum(-1)

for prompts in [["a", "b"]]:
    enc = tok(prompts, return_tensors="pt", padding=True)
    start = enc.input_ids.shape[1]
    ids = policy.generate(**enc, do_sample=True, temperature=0.7, top_p=0.9, num_return_sequences=2, max_new_tokens=16)
    better, worse = ids[0::2], ids[1::2]
    with torch.no_grad():
        ref_better, ref_worse = score(ref, better, start), score(ref, worse, start)
    margin = score(policy, better, start) - ref_better - (score(policy, worse, start) - ref_worse)
    loss = -F.logsigmoid(0.1 * margin).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("code", ["SAMP01", "SAMP02", "SAMP03"])
def test_pairs_of_answers_may_be_drawn_in_any_way(code, tmp_path):
    assert not findings(PREFERENCES, code, tmp_path)


def test_a_policy_gradient_beside_the_pairs_is_judged(tmp_path):
    both = edit_script(PREFERENCES, ("margin).mean()\n", "margin).mean() - (score(policy, ids, start) * 0.5).mean()\n"))
    assert findings(both, "SAMP02", tmp_path)
