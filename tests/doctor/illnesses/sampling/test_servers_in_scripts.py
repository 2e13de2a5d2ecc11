"""Sampling that a server does, likeliest tokens of which one is drawn, and passes whose layers run under autocast."""

from doctor.illnesses.read_script import codes_in, edit_script

from assay.doctor.examples.scripts import GENERATE, LOOP

SAMPLED = (
    "        ids = model.generate(**prompts, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64)\n"
)
ASKED = """        asked = {{"prompts": texts, "temperature": {}, "top_p": {}, "max_tokens": 64}}
        answered = {}.post("http://localhost/generate", json=asked).json()
        ids = torch.cat([prompts["input_ids"], torch.tensor(answered["completion_ids"])], dim=1)
"""


def found(folder, temperature, top_p, client="requests"):
    text = edit_script(GENERATE, (SAMPLED, ASKED.format(temperature, top_p, client)))
    return codes_in(text.replace("import torch\n", "import torch\nimport requests\n", 1), folder, ["SAMP01", "SAMP02"])


def test_a_server_that_samples_is_asked_for_its_settings(tmp_path):
    assert found(tmp_path, 0.7, 1.0) == set()
    assert found(tmp_path, 0.9, 1.0) == {"SAMP01"}
    assert found(tmp_path, 0.7, 0.9) == {"SAMP02"}
    assert found(tmp_path, 0.7, 0.9, "requests.Session()") == {"SAMP02"}


def test_a_judge_on_a_server_is_not_the_sampler(tmp_path):
    judged = "    marks = requests.post('http://judge', json={'prompt': texts, 'temperature': 0.1}).json()\n"
    text = edit_script(GENERATE, ("    is_end = ", judged + "    is_end = "))
    assert codes_in("import requests\n" + text, tmp_path, ["SAMP01", "SAMP02"]) == set()


def test_one_of_the_likeliest_tokens_is_a_truncated_draw(tmp_path):
    drawn = "        ids = torch.cat([ids, torch.multinomial(weights, 1)], dim=1)\n"
    likeliest = (
        "        best, places = torch.topk(logits, 5)\n"
        "        chosen = places.gather(-1, torch.multinomial(F.softmax(best, dim=-1), 1))\n"
        "        ids = torch.cat([ids, chosen], dim=1)\n"
    )
    assert codes_in(edit_script(LOOP, (drawn, likeliest)), tmp_path, ["SAMP02"]) == {"SAMP02"}
    assert codes_in(LOOP, tmp_path, ["SAMP02"]) == set()


NETWORK = """
import torch
from torch import nn
from transformers import AutoModelForCausalLM
from task import batches

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = AutoModelForCausalLM.from_pretrained("tiny")

    def forward(self, ids, mixed=False):
        with torch.autocast("cuda", enabled=mixed):
            return self.body(ids).logits

def score(policy, ids, mixed):
    logits = policy(ids, mixed=mixed)[:, :-1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)

policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-6)
for ids, advantages in batches():
    with torch.no_grad():
        old = score(policy, ids, OLD)
    for _ in range(2):
        ratio = torch.exp(score(policy, ids, True) - old)
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_layers_under_autocast_count_as_their_network(tmp_path):
    assert codes_in(NETWORK.replace("OLD", "False"), tmp_path, ["NUM02"]) == {"NUM02"}
    assert codes_in(NETWORK.replace("OLD", "True"), tmp_path, ["NUM02"]) == set()
