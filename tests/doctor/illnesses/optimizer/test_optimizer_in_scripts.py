"""What an optimizer holds and in which precision, what samples, in which mode, at what cost: forms and neighbours."""

import pytest
from doctor.illnesses.read_script import codes_in, edit_script

from assay.doctor.catalogue import by_code
from assay.doctor.examples.scripts import GRPO

CODES = "OPT01 OPT02 OPT03 OPT04 SYNC01 NUM01 NUM02 MODE01 PERF01 PERF02".split()
LOADED = 'policy = AutoModelForCausalLM.from_pretrained("tiny")'
OPTIMIZER = "optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)"
FLOAT = "-1].float()"
OLD = "        old = score(policy, ids, start)\n"
REF = "        ref = score(reference, ids, start)\n"
NO_GRAD = "    with torch.no_grad():\n"
NEW = "        new = score(policy, ids, start)\n"
LOOP = "for step in range(100):\n"
BACKWARD = "        loss.backward()\n"
STEP = "        optimizer.step()\n"
SAMPLED = "    ids = policy.generate("
LIMIT = "max_new_tokens=64)"
DDP = "wrapped = torch.nn.parallel.DistributedDataParallel(policy)"
LORA = "from peft import LoraConfig, get_peft_model\n"


def found(text, folder):
    return codes_in(text, folder, CODES)


def with_changes(*pairs):
    return edit_script(GRPO, *pairs)


def loaded(arguments, *more):
    return with_changes((LOADED, f"policy = AutoModelForCausalLM.from_pretrained({arguments})"), *more)


def own(layers, mode=""):
    """A network of the script's own instead of a loaded one."""
    lines = ["class Net(torch.nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += ["        self.embed = torch.nn.Embedding(9, 8)", f"        self.body = {layers}", ""]
    lines += ["    def forward(self, ids):", "        return Output(self.body(self.embed(ids)))", ""]
    lines += [
        "    def generate(self, prompts, **how):",
        "        return draw(self, prompts)",
        "",
        f"policy = Net(){mode}",
    ]
    return with_changes((LOADED, "\n".join(["from task import Output, draw", *lines]))).replace("policy.config", "task")


SICK = {
    "OPT01": {
        "torch_dtype": loaded('"tiny", torch_dtype=torch.bfloat16'),
        "by its name": loaded('"tiny", torch_dtype="bfloat16"'),
        "cast": with_changes((LOADED, LOADED + ".to(torch.bfloat16)")),
        "cast and moved": with_changes((LOADED, LOADED + '\npolicy = policy.to("cuda", dtype=torch.bfloat16)')),
        "a method": with_changes((LOADED, LOADED + ".bfloat16()")),
        "through a variable": with_changes((LOADED, "kind = torch.bfloat16\n" + LOADED[:-1] + ", dtype=kind)")),
        "half": with_changes((LOADED, LOADED + ".half()")),
        "where there is a GPU": loaded('"tiny", dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32'),
        "a rate that the text does not show": loaded(
            '"tiny", dtype=torch.bfloat16', (OPTIMIZER, OPTIMIZER.replace("1e-6", "settings.rate"))
        ),
        "a data set with data": loaded(
            '"tiny", dtype=torch.bfloat16',
            (OPTIMIZER, f"class Rows:\n    pass\nrows = Rows()\nrows.data = []\n{OPTIMIZER}"),
        ),
        "a configured rate": loaded('"tiny", dtype=torch.bfloat16', (OPTIMIZER, OPTIMIZER.replace("1e-6", "5e-6"))),
    },
    "OPT02": {
        "another copy": with_changes((OPTIMIZER, OPTIMIZER.replace("policy.", "copy.deepcopy(policy)."))),
        "the reference": with_changes((OPTIMIZER, OPTIMIZER.replace("policy.", "reference."))),
        "loaded again afterwards": with_changes((OPTIMIZER, f"{OPTIMIZER}\n{LOADED}")),
        "copied afterwards": with_changes((OPTIMIZER, OPTIMIZER + "\npolicy = copy.deepcopy(policy)")),
        "adapters afterwards": with_changes(
            (OPTIMIZER, f"{LORA}{OPTIMIZER}\npolicy = get_peft_model(policy, LoraConfig(r=8))")
        ),
        "a list of parameters": with_changes((OPTIMIZER, OPTIMIZER.replace("policy.p", "reference.p"))),
        "detached": with_changes((BACKWARD, "        loss = loss.detach()\n        loss.backward()\n")),
        "a new tensor": with_changes(
            (BACKWARD, "        loss = torch.tensor(loss.item(), requires_grad=True)\n        loss.backward()\n")
        ),
        "under no_grad": with_changes((NEW, "        with torch.no_grad():\n    " + NEW)),
        "frozen": with_changes((OPTIMIZER, "policy.requires_grad_(False)\n" + OPTIMIZER)),
        "frozen one by one": with_changes(
            (OPTIMIZER, f"for p in policy.parameters():\n    p.requires_grad = False\n{OPTIMIZER}")
        ),
        "the head alone": with_changes((OPTIMIZER, OPTIMIZER.replace("policy.", "policy.lm_head."))),
    },
    "OPT03": {
        "the network inside": with_changes(
            (OPTIMIZER, f"{DDP}\n{OPTIMIZER}"), (NEW, NEW.replace("policy", "wrapped.module"))
        ),
        "the network beside": with_changes((OPTIMIZER, f"{DDP}\n{OPTIMIZER}")),
        "unwrapped by accelerate": with_changes(
            (OPTIMIZER, f"{OPTIMIZER}\npolicy, optimizer = accelerator.prepare(policy, optimizer)"),
            (NEW, NEW.replace("policy", "accelerator.unwrap_model(policy)")),
            ("import copy\n", "import copy\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"),
        ),
        "left out of prepare": with_changes(
            (OPTIMIZER, f"{OPTIMIZER}\noptimizer = accelerator.prepare(optimizer)"),
            ("import copy\n", "import copy\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"),
        ),
    },
    "SYNC01": {
        "a copy": with_changes(
            (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP), (SAMPLED, SAMPLED.replace("policy", "sampler"))
        ),
        "a copy whose own log-probs divide": with_changes(
            (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP),
            (SAMPLED, SAMPLED.replace("policy", "sampler")),
            (OLD, OLD.replace("policy", "sampler")),
        ),
        "loaded before the loop": with_changes(
            (LOOP, "sampler = copy.deepcopy(policy)\nsampler.load_state_dict(policy.state_dict())\n" + LOOP),
            (SAMPLED, SAMPLED.replace("policy", "sampler")),
        ),
        "errors swallowed": with_changes(
            (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP),
            (
                SAMPLED,
                "    try:\n        sampler.load_state_dict(policy.state_dict())\n    except RuntimeError:\n"
                "        print('later')\n" + SAMPLED.replace("policy", "sampler"),
            ),
        ),
        "every eighth step": with_changes(
            (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP),
            (
                SAMPLED,
                "    if step % 8 == 0:\n        sampler.load_state_dict(policy.state_dict())\n"
                + SAMPLED.replace("policy", "sampler"),
            ),
        ),
        "vLLM": with_changes(
            (LOOP, 'from vllm import LLM\nengine = LLM(model="tiny")\n' + LOOP),
            (SAMPLED, SAMPLED.replace("policy", "engine")),
        ),
    },
    "NUM01": {
        "cast": with_changes((FLOAT, "-1].to(torch.bfloat16)")),
        "half": with_changes((FLOAT, "-1].half()")),
        "float first": with_changes((FLOAT, "-1].float().bfloat16()")),
        "logsumexp": with_changes(
            (
                "    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)",
                "    logits = logits.half()\n    picked = logits.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)\n"
                "    return picked - logits.logsumexp(-1)",
            )
        ),
        "as the model gives them": loaded('"tiny", dtype=torch.bfloat16', (FLOAT, "-1]"), ("lr=1e-6", "lr=1e-3")),
    },
    "NUM02": {
        "old under autocast": with_changes(
            (OLD, '        with torch.autocast("cuda", dtype=torch.bfloat16):\n    ' + OLD)
        ),
        "the reference under autocast": with_changes((REF, "        with torch.cuda.amp.autocast():\n    " + REF)),
        "new under autocast": with_changes((NEW, '        with torch.autocast("cuda"):\n    ' + NEW)),
        "old kept in 16 bits": with_changes((OLD, OLD.rstrip("\n") + ".to(torch.bfloat16)\n")),
        "through a variable": with_changes(
            (LOOP, 'mixed = torch.autocast("cuda")\n' + LOOP), (OLD, "        with mixed:\n    " + OLD)
        ),
    },
    "MODE01": {
        "gpt2 in train mode": loaded('"gpt2"', (LOOP, "policy.train()\n" + LOOP)),
        "told to drop": loaded('"tiny", attention_dropout=0.1', (LOOP, "policy.train()\n" + LOOP)),
        "adapters": with_changes(
            (OPTIMIZER, f"{LORA}policy = get_peft_model(policy, LoraConfig(lora_dropout=0.05))\n{OPTIMIZER}"),
            (LOOP, "policy.train()\n" + LOOP),
        ),
        "eval to sample, train to learn": loaded(
            '"gpt2"', (SAMPLED, "    policy.eval()\n" + SAMPLED), (NEW, "        policy.train()\n" + NEW)
        ),
    },
    "PERF01": {
        "at the call": with_changes((LIMIT, LIMIT[:-1] + ", use_cache=False)")),
        "in a config": with_changes(
            (LIMIT, LIMIT[:-1] + ", generation_config=how)"),
            (LOOP, "from transformers import GenerationConfig\nhow = GenerationConfig(use_cache=False)\n" + LOOP),
        ),
        "in the model's config": with_changes((LOOP, "policy.generation_config.use_cache = False\n" + LOOP)),
        "checkpointing in train mode": with_changes(
            (LOOP, "policy.gradient_checkpointing_enable()\npolicy.train()\n" + LOOP)
        ),
    },
    "PERF02": {
        "losses in a list": with_changes(
            (LOOP, "losses = []\n" + LOOP), (STEP, STEP + "        losses.append(loss)\n")
        ),
        "a part of the loss": with_changes(
            (LOOP, "seen = []\n" + LOOP), (STEP, STEP + "        seen.append(kl.mean())\n")
        ),
        "tuples": with_changes((LOOP, "seen = []\n" + LOOP), (STEP, STEP + "        seen.append((step, loss))\n")),
        "in a table of lists": with_changes(
            (LOOP, 'log = {"loss": []}\n' + LOOP), (STEP, STEP + '        log["loss"].append(loss)\n')
        ),
        "a running sum": with_changes((LOOP, "total = 0.0\n" + LOOP), (STEP, STEP + "        total += loss\n")),
        "the reference with gradients": with_changes(
            (".eval().requires_grad_(False)", ".eval()"), (REF, "    ref = score(reference, ids, start)\n")
        ),
    },
}


@pytest.mark.parametrize(("code", "form"), [(code, form) for code, forms in SICK.items() for form in forms])
def test_each_form_of_the_fault_is_named(code, form, tmp_path):
    codes = found(SICK[code][form], tmp_path)
    assert code in codes
    assert codes - {code} <= by_code(code).explains


WELL = {
    "bfloat16 with a rate it can hold": loaded('"tiny", dtype=torch.bfloat16', ("lr=1e-6", "lr=1e-3")),
    "bfloat16 adapters": loaded(
        '"tiny", dtype=torch.bfloat16',
        (OPTIMIZER, f"{LORA}policy = get_peft_model(policy, LoraConfig(r=8))\n{OPTIMIZER}"),
    ),
    "bfloat16 and back": loaded('"tiny", dtype=torch.bfloat16', (OPTIMIZER, "policy = policy.float()\n" + OPTIMIZER)),
    "bfloat16 if asked for": loaded('"tiny", dtype=torch.bfloat16 if policy_name else torch.float32'),
    "bfloat16 under deepspeed": loaded(
        '"tiny", dtype=torch.bfloat16', (LOOP, "import deepspeed\nengine = deepspeed.initialize(policy)\n" + LOOP)
    ),
    "parameters that need a gradient": with_changes(
        (OPTIMIZER, "optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-6)")
    ),
    "groups": with_changes((OPTIMIZER, 'optimizer = torch.optim.AdamW([{"params": policy.parameters()}], lr=1e-6)')),
    "moved after the optimizer": with_changes((OPTIMIZER, OPTIMIZER + '\npolicy = policy.to("cuda")')),
    "compiled after the optimizer": with_changes((OPTIMIZER, OPTIMIZER + "\npolicy = torch.compile(policy)")),
    "adapters before the optimizer": with_changes(
        (OPTIMIZER, f"{LORA}policy = get_peft_model(policy, LoraConfig(r=8))\n{OPTIMIZER}")
    ),
    "frozen but for the head": with_changes(
        (
            OPTIMIZER,
            "policy.requires_grad_(False)\npolicy.lm_head.requires_grad_(True)\n"
            + OPTIMIZER.replace("policy.", "policy.lm_head."),
        )
    ),
    "some parameters frozen": with_changes(
        (OPTIMIZER, f"for p in policy.parameters():\n    if p.dim() < 2:\n        p.requires_grad = False\n{OPTIMIZER}")
    ),
    "through the wrapper": with_changes((OPTIMIZER, f"{DDP}\n{OPTIMIZER}"), (NEW, NEW.replace("policy", "wrapped"))),
    "wrapped where there are several processes": with_changes(
        (OPTIMIZER, f"{OPTIMIZER}\nif torch.distributed.is_initialized():\n    policy = {DDP.partition('= ')[2]}"),
        (SAMPLED, SAMPLED.replace("policy", "reference")),
    ).replace("ids = reference.generate", "ids = policy.generate"),
    "gradients averaged by hand": with_changes(
        (OPTIMIZER, f"{DDP}\n{OPTIMIZER}"),
        (STEP, "        for p in policy.parameters():\n            torch.distributed.all_reduce(p.grad)\n" + STEP),
    ),
    "a copy that follows": with_changes(
        (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP),
        (SAMPLED, "    sampler.load_state_dict(policy.state_dict())\n" + SAMPLED.replace("policy", "sampler")),
    ),
    "a copy that is behind, whose own log-probs divide": with_changes(
        (LOOP, "sampler = copy.deepcopy(policy)\n" + LOOP),
        (
            SAMPLED,
            "    if step % 4 == 0:\n        sampler.load_state_dict(policy.state_dict())\n"
            + SAMPLED.replace("policy", "sampler"),
        ),
        (OLD, OLD.replace("policy", "sampler")),
    ),
    "vLLM that is fed": with_changes(
        (LOOP, 'from vllm import LLM\nfrom task import sync_weights\nengine = LLM(model="tiny")\n' + LOOP),
        (SAMPLED, "    sync_weights(engine, policy)\n" + SAMPLED.replace("policy", "engine")),
    ),
    "log-softmax in float32 by its argument": loaded(
        '"tiny", dtype=torch.bfloat16',
        (FLOAT, "-1]"),
        ("dim=-1).g", "dim=-1, dtype=torch.float32).g"),
        ("lr=1e-6", "lr=1e-3"),
    ),
    "autocast for every pass": with_changes(
        ("    logits = model(ids)", '    with torch.autocast("cuda"):\n        out = model(ids)\n    logits = out')
    ),
    "autocast that is off": with_changes((OLD, '        with torch.autocast("cuda", enabled=False):\n    ' + OLD)),
    "gpt2 in eval mode": loaded('"gpt2"'),
    "gpt2 in train mode between": loaded('"gpt2"', (LOOP, "policy.train()\npolicy.eval()\n" + LOOP)),
    "gpt2 without dropout": loaded(
        '"gpt2", attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0', (LOOP, "policy.train()\n" + LOOP)
    ),
    "dropout disabled": loaded(
        '"gpt2"',
        (LOOP, "from trl.trainer.utils import disable_dropout\npolicy.train()\ndisable_dropout(policy)\n" + LOOP),
    ),
    "checkpointing in eval mode": with_changes(
        (LOOP, "policy.gradient_checkpointing_enable()\n" + LOOP),
        (SAMPLED, "    policy.eval()\n" + SAMPLED),
        (NEW, "        policy.train()\n" + NEW),
    ),
    "scoring without a cache": with_changes(("model(ids).", "model(ids, use_cache=False).")),
    "numbers in a list": with_changes(
        (LOOP, "seen = []\n" + LOOP), (STEP, STEP + "        seen.append(loss.item())\n")
    ),
    "detached in a list": with_changes(
        (LOOP, "seen = []\n" + LOOP), (STEP, STEP + "        seen.append(loss.detach())\n")
    ),
    "losses that are differentiated together": with_changes(
        (
            BACKWARD,
            "        several = []\n        for part in range(2):\n            several.append(loss * part)\n"
            "        torch.stack(several).sum().backward()\n",
        ),
    ),
    "a running sum of numbers": with_changes(
        (LOOP, "total = 0.0\n" + LOOP), (STEP, STEP + "        total += loss.item()\n")
    ),
}


@pytest.mark.parametrize("form", WELL)
def test_its_healthy_neighbours_are_not(form, tmp_path):
    assert found(WELL[form], tmp_path) == set()


LAYERS = {
    "a layer": ("torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(8, 9))", "", {"MODE01"}),
    "a layer with its default": ("torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(8, 9))", "", {"MODE01"}),
    "inside of an encoder": ("torch.nn.TransformerEncoderLayer(8, 2)", "", {"MODE01"}),
    "switched off": ("torch.nn.Sequential(torch.nn.Dropout(0.0), torch.nn.Linear(8, 9))", "", set()),
    "an encoder without": ("torch.nn.TransformerEncoderLayer(8, 2, dropout=0.0)", "", set()),
    "in eval mode": ("torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(8, 9))", ".eval()", set()),
}


@pytest.mark.parametrize("form", LAYERS)
def test_dropout_of_the_scripts_own_network(form, tmp_path):
    layers, mode, codes = LAYERS[form]
    assert found(own(layers, mode), tmp_path) == codes


PAIR = by_code("OPT04").scripts.well
TWICE = {
    "the same network twice": PAIR.replace("Adam(critic.parameters()", "Adam(actor.parameters()"),
    "lists that overlap": PAIR.replace("Adam(critic.p", "Adam(list(actor.parameters()) + list(critic.p")
    .replace("lr=1e-3", "), lr=1e-3")
    .replace("parameters(), ),", "parameters()),"),
    "a layer of the other": PAIR.replace("critic = nn.Sequential(nn.Linear(8, 32)", "critic = nn.Sequential(actor[0]")
    .replace("actor = nn.Sequential(nn.Linear(8, 32)", "first = nn.Linear(8, 32)\nactor = nn.Sequential(first")
    .replace("nn.Sequential(actor[0]", "nn.Sequential(first"),
}


@pytest.mark.parametrize("form", TWICE)
def test_parameters_in_two_optimizers_are_named(form, tmp_path):
    assert "OPT04" in found(TWICE[form], tmp_path)


def test_one_optimizer_after_the_other_is_not(tmp_path):
    text = GRPO + GRPO[GRPO.index("for step in range(100):") :].replace(
        "for step", "optimizer = torch.optim.Adam(policy.parameters())\nfor step"
    )
    assert found(text, tmp_path) == set()
