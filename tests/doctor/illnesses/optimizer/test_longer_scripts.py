"""Optimizers, engines, metrics and losses in longer scripts: each fault in several ways, and its healthy neighbours."""

import pytest
from doctor.illnesses.read_script import edit_script, likely_codes_in

from assay.doctor.catalogue import by_code
from assay.doctor.examples.scripts import GRPO

CODES = (
    "SAMP02 SAMP04 RAT02 RAT04 RAT08 CLIP01 KL01 KL05 LOSS01 LOSS02 LOSS03 OPT02 OPT03 SYNC01 NUM01 MODE01 PERF02 "
    "HYP01 MET06"
).split()
OPTIMIZER = "optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)\n"
LOOP = "for step in range(100):\n"
SAMPLED = "    ids = policy.generate("
UPDATE = "        optimizer.step()\n"
RATIO = "        ratio = torch.exp(new - old)\n"
ADVANTAGES = (
    "    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)\n"
    "    advantages = advantages.view(-1, 1)\n"
)
LOSS = "        loss = ((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)\n"
NEW = "        new = score(policy, ids, start)\n"
WRAP = "ddp = torch.nn.parallel.DistributedDataParallel(policy)\n"


def with_changes(*pairs):
    return edit_script(GRPO, *pairs)


def found(text, folder):
    return likely_codes_in(text, folder, CODES)


def by_list(line):
    """Advantages made of Python numbers, group by group."""
    body = (
        "    scores = rewards_of(ids[:, start:]).tolist()\n"
        "    advantages = []\n"
        "    for first in range(0, len(scores), 8):\n"
        "        group = scores[first : first + 8]\n"
        "        centre = sum(group) / len(group)\n"
        f"        {line}\n"
        "    advantages = torch.tensor(advantages).view(-1, 1)\n"
    )
    return with_changes(("    rewards = rewards_of(ids[:, start:]).view(-1, 8)\n" + ADVANTAGES, body))


def with_engine(build, sync, before=""):
    """A sampler in a class of its own, which holds a copy of the weights."""
    engine = (
        "class Engine:\n"
        "    def __init__(self, model):\n"
        f"        self.model = {build}\n"
        "    def load_weights(self, state):\n"
        "        self.model.load_state_dict(state)\n"
        "    def sample(self, prompts):\n"
        "        return self.model.generate(prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)\n\n"
        "engine = Engine(policy)\n" + before
    )
    sampled = next(line for line in GRPO.splitlines(keepends=True) if line.startswith(SAMPLED))
    return with_changes((LOOP, engine + LOOP), (sampled, sync + "    ids = engine.sample(prompts)\n"))


def kept(line, before="total = 0.0\n"):
    return with_changes((LOOP, before + LOOP), (UPDATE, UPDATE + f"        {line}\n"))


COPY = "copy.deepcopy(model)"
SEND = "engine.load_weights(policy.state_dict())\n"
SICK = {
    "LOSS01": {
        "numbers of a list, extended by a generator": by_list("advantages.extend(centre - one for one in group)"),
        "numbers of a list, appended": by_list(
            "for one in group:\n            advantages.append((centre - one) / (max(group) - min(group) + 1e-4))"
        ),
        "numbers of a list, by a comprehension": by_list("advantages += [centre - one for one in group]"),
        "the mean by index_add": with_changes(
            (
                "    rewards = rewards_of(ids[:, start:]).view(-1, 8)\n" + ADVANTAGES,
                "    rewards = rewards_of(ids[:, start:])\n"
                "    owner = torch.arange(len(rewards)) // 8\n"
                "    means = torch.zeros(len(rewards) // 8).index_add(0, owner, rewards) / 8\n"
                "    advantages = (means[owner] - rewards).view(-1, 1)\n",
            )
        ),
        "rows of a new tensor": with_changes(
            (
                "    advantages = advantages.view(-1, 1)\n",
                "    rows = torch.zeros(len(ids), 1)\n"
                "    for i in range(len(ids)):\n"
                "        rows[i] = rewards.mean() - rewards[i // 8, i % 8]\n"
                "    advantages = rows\n",
            )
        ),
    },
    "OPT03": {
        "beside, with metrics that are reduced": with_changes(
            (OPTIMIZER, WRAP + OPTIMIZER),
            (UPDATE, UPDATE + "        shown = loss.detach()\n        torch.distributed.all_reduce(shown)\n"),
        ),
        "beside, the wrapper given by a keyword": with_changes(
            (OPTIMIZER, WRAP.replace("(policy)", "(module=policy)") + OPTIMIZER)
        ),
        "inside, through a name": with_changes(
            (OPTIMIZER, WRAP + "net = ddp.module\n" + OPTIMIZER), (NEW, NEW.replace("policy", "net"))
        ),
    },
    "SYNC01": {
        "sent once": with_engine(COPY, "", before=SEND),
        "sent in the first turn": with_engine(COPY, f"    if step == 0:\n        {SEND}"),
        "an error is swallowed": with_engine(COPY, f"    try:\n        {SEND}    except RuntimeError:\n        pass\n"),
        "renamed weights, an error is swallowed": with_engine(
            COPY,
            "    try:\n        engine.load_weights({f'model.{k}': v for k, v in policy.state_dict().items()})\n"
            "    except RuntimeError:\n        print('skipped')\n",
        ),
        "never": with_engine(COPY, ""),
    },
    "PERF02": {
        "total += loss": kept("total += loss"),
        "total = total + loss": kept("total = total + loss"),
        "a mean of its own": kept("total += (kl * mask).sum() / mask.sum()"),
        "a list in a dictionary": kept("history['kl'].append(kl.mean())", "history = {'kl': []}\n"),
        "an entry of a dictionary": kept("totals['ratio'] += ratio.mean()", "totals = {'ratio': 0.0}\n"),
    },
    "RAT02": {
        "its own copy in each mini-batch": with_changes(
            ("    for epoch in range(2):\n", "    for rows in torch.randperm(len(ids)).chunk(4):\n"),
            (
                NEW + RATIO,
                "        new = score(policy, ids[rows], start)\n        ratio = torch.exp(new - new.detach())\n",
            ),
            (
                "        gain = torch.min(ratio * advantages, clipped * advantages)\n"
                "        kl = torch.exp(ref - new) - (ref - new) - 1\n",
                "        gain = torch.min(ratio * advantages[rows], clipped * advantages[rows])\n"
                "        kl = torch.exp(ref[rows] - new) - (ref[rows] - new) - 1\n",
            ),
            (LOSS, LOSS.replace("mask", "mask[rows]")),
        ),
    },
    "RAT04": {
        "over the log-probs of a sampler": with_engine(COPY, f"    {SEND}")
        .replace("old = score(policy", "old = score(engine.model")
        .replace("torch.exp(new - old)", "torch.exp(old - new)"),
    },
    "KL05": {
        "loaded after each update": kept("reference.load_state_dict(policy.state_dict())", ""),
    },
    "NUM01": {
        "outside of autocast": GRPO.replace(
            "    logits = model(ids).logits[:, start - 1 : -1].float()\n",
            "    with torch.autocast('cuda', torch.bfloat16):\n        logits = model(ids).logits\n"
            "    logits = logits[:, start - 1 : -1]\n",
        ),
    },
    "MET06": {
        "the mean of the advantages": kept("print('reward %.3f' % advantages.mean())", ""),
        "the mean of the advantages, in an f-string": kept("print(f'reward {advantages.mean():.3f}')", ""),
    },
    "HYP01": {
        "beta of a library's trainer": "from trl import GRPOConfig\nconfig = GRPOConfig(beta=5.0)\n",
        "rate of a library's trainer": "from trl import GRPOConfig\nconfig = GRPOConfig(learning_rate=0.5)\n",
        "coefficient in a text of settings": with_changes(
            (LOOP, 'import yaml\nCONFIG = yaml.safe_load("""\nbeta: 20.0\nname: a\n""")\n' + LOOP),
            ("0.04 * kl", "CONFIG['beta'] * kl"),
        ),
    },
    "OPT02": {
        "the wrong network of a dictionary": with_changes(
            ("policy.parameters()", "nets['reference'].parameters()"),
            ("optimizer =", "nets = {'policy': policy, 'reference': reference}\noptimizer ="),
        ),
    },
}


@pytest.mark.parametrize(("code", "form"), [(code, form) for code, forms in SICK.items() for form in forms])
def test_each_form_of_the_fault_is_named(code, form, tmp_path):
    codes = found(SICK[code][form], tmp_path)
    assert code in codes
    assert codes - {code} <= by_code(code).explains


WELL = {
    "centred numbers of a list": by_list("advantages.extend(one - centre for one in group)"),
    "metrics are reduced and the wrapper is used": with_changes(
        (OPTIMIZER, WRAP + OPTIMIZER),
        (NEW, NEW.replace("policy", "ddp")),
        (UPDATE, UPDATE + "        shown = loss.detach()\n        torch.distributed.all_reduce(shown)\n"),
    ),
    "gradients are averaged by hand": with_changes(
        (OPTIMIZER, WRAP + OPTIMIZER),
        (
            "        loss.backward()\n",
            "        loss.backward()\n        for p in policy.parameters():\n            "
            "torch.distributed.all_reduce(p.grad)\n",
        ),
    ),
    "sent before each rollout": with_engine(COPY, f"    {SEND}"),
    "sent in the first turn of four": with_engine(COPY, f"    if step % 4 == 0 or step > 3:\n        {SEND}"),
    "a copy made before each rollout": with_changes(
        (SAMPLED, "    sampler = copy.deepcopy(policy)\n    ids = sampler.generate(")
    ),
    "a total of numbers": kept("total += loss.item()"),
    "a total of detached tensors": kept("total = total + loss.detach()"),
    "a list of numbers in a dictionary": kept("history['kl'].append(kl.mean().item())", "history = {'kl': []}\n"),
    "the mean of the rewards": kept("print('reward %.3f' % rewards.mean())", ""),
    "the mean of the advantages under its name": kept("print('advantage %.3f' % advantages.mean())", ""),
    "its own copy, no clip": with_changes((RATIO, "        ratio = torch.exp(new - new.detach())\n")).replace(
        "for epoch in range(2):", "if True:"
    ),
    "log-softmax within autocast": GRPO.replace(
        "def score(model", "@torch.autocast('cuda', torch.bfloat16)\ndef score(model"
    ).replace(".float()\n    return", "\n    return"),
    "usual settings of a library's trainer": "from trl import GRPOConfig\nconfig = GRPOConfig(beta=0.04)\n",
    "settings of a file": with_changes(
        (LOOP, "import yaml\nCONFIG = yaml.safe_load(open('settings.yaml'))\n" + LOOP),
        ("0.04 * kl", "CONFIG['beta'] * kl"),
    ),
}


@pytest.mark.parametrize("form", WELL)
def test_its_healthy_neighbours_are_not(form, tmp_path):
    assert found(WELL[form], tmp_path) == set()
