"""Rows laid out in two dimensions: a mean over the wrong one (ADV01), rows joined in another order (ADV10)."""

import pytest
from doctor.illnesses.read_script import codes_in
from doctor.illnesses.small_trainer import trainer

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.programs.read.script import read_program
from assay.verdict import State

CODES = ("ADV01", "ADV02", "ADV10")
ROWS = "    prompts = prompts.repeat_interleave(G, dim=0)\n"
ANSWERS = "    answers = (a + b).repeat_interleave(G)\n"
TILED = ((ROWS, "    prompts = prompts.repeat(G, 1)\n"), (ANSWERS, "    answers = (a + b).repeat(G)\n"))
EINOPS = (("import torch\n", "from einops import rearrange, reduce, repeat\nimport torch\n"),)
NUMPY = (("import torch\n", "import numpy as np\nimport torch\n"),)


def state_of(code, text, folder):
    path = folder / "script.py"
    path.write_text(text)
    diagnosis = diagnose(Evidence(programs=(read_program(path),)), [by_code(code)])
    return diagnosis.words[0].verdict.state


ACROSS = {
    "keepdim": (
        "r = rewards.view(P, G)\nadv = ((r - r.mean(0, keepdim=True)) / (r.std(0, keepdim=True) + 1)).flatten()",
    ),
    "without keepdim": ("r = rewards.view(P, G)\nadv = ((r - r.mean(0)) / (r.std(0) + 1e-4)).reshape(-1)",),
    "as many prompts as there are": ("r = rewards.view(-1, G)\nadv = (r - r.mean(dim=0)).view(-1)",),
    "as many answers as there are": ("r = rewards.reshape(P, -1)\nadv = (r - r.mean(0)).reshape(-1)",),
    "counted from the end": ("r = rewards.view(P, G)\nadv = (r - r.mean(-2, keepdim=True)).flatten()",),
    "unflatten": ("r = rewards.unflatten(0, (P, G))\nadv = (r - r.mean(0, keepdim=True)).flatten()",),
    "einops": (
        "r = rearrange(rewards, '(p g) -> p g', g=G)\nadv = rearrange(r - r.mean(0, keepdim=True), 'p g -> (p g)')",
        *EINOPS,
    ),
    "einops.reduce": (
        "r = rearrange(rewards, '(p g) -> p g', p=P)\n"
        "adv = rearrange(r - reduce(r, 'p g -> 1 g', 'mean'), 'p g -> (p g)')",
        *EINOPS,
    ),
    "std alone": ("r = rewards.view(P, G)\nadv = ((r - r.mean(1, keepdim=True)) / (r.std(0) + 1e-4)).flatten()",),
    "variance": ("r = rewards.view(P, G)\nadv = ((r - r.mean(0)) / torch.sqrt(r.var(0) + 1e-6)).flatten()",),
    "std_mean": ("r = rewards.view(P, G)\ns, m = torch.std_mean(r, dim=0)\nadv = ((r - m) / (s + 1e-4)).flatten()",),
    "turned before": ("r = rewards.view(P, G).t()\nadv = (r - r.mean(1, keepdim=True)).t().reshape(-1)",),
    "spread over rows": ("r = rewards.view(P, G)\nadv = rewards - r.mean(0).repeat(P)",),
    "numpy": ("r = np.array(rewards).reshape(P, G)\nadv = torch.tensor(r - r.mean(axis=0)).flatten()", *NUMPY),
    "every n-th row": (
        "adv = torch.zeros_like(rewards)\nfor g in range(G):\n"
        "    rows = rewards[g::G]\n    adv[g::G] = rows - rows.mean()",
    ),
    "every n-th number of a list": (
        "scores = rewards.tolist()\nadv = [0.0] * len(scores)\nfor i in range(P * G):\n    peers = scores[i % G::G]\n"
        "    adv[i] = scores[i] - sum(peers) / len(peers)\nadv = torch.tensor(adv)",
    ),
    "by turns": ("r = rewards.view(G, P)\nadv = (r - r.mean(1, keepdim=True)).flatten()", *TILED),
    "stacked slices": (
        "r = torch.stack([rewards[p * G:(p + 1) * G] for p in range(P)])\nadv = (r - r.mean(0)).flatten()",
    ),
    "stacked pieces": ("r = torch.stack(rewards.split(G))\nadv = (r - r.mean(0)).flatten()",),
    "lists in a list": (
        "r = torch.tensor([[rewards[p * G + g] for g in range(G)] for p in range(P)])\nadv = (r - r.mean(0)).flatten()",
    ),
    "columns": (
        "adv, r = torch.empty(P, G), rewards.view(P, G)\nfor g in range(G):\n"
        "    adv[:, g] = r[:, g] - r[:, g].mean()\nadv = adv.flatten()",
    ),
    "in a function": (
        "adv = advantages(rewards, G)",
        (
            "def reward_fn(",
            "def advantages(rewards, size):\n    r = rewards.reshape(-1, size)\n"
            "    return (r - r.mean(dim=0)).reshape(-1)\n\n\ndef reward_fn(",
        ),
    ),
}
WITHIN = {
    "keepdim": (
        "r = rewards.view(P, G)\nadv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1)).flatten()",
    ),
    "counted from the end": ("r = rewards.view(P, G)\nadv = (r - r.mean(-1, keepdim=True)).flatten()",),
    "as many prompts as there are": ("r = rewards.view(-1, G)\nadv = (r - r.mean(1, keepdim=True)).flatten()",),
    "as many answers as there are": ("r = rewards.reshape(P, -1)\nadv = (r - r.mean(1, keepdim=True)).flatten()",),
    "unflatten": ("r = rewards.unflatten(0, (P, G))\nadv = (r - r.mean(1, keepdim=True)).flatten()",),
    "einops": (
        "r = rearrange(rewards, '(p g) -> p g', g=G)\nadv = rearrange(r - r.mean(1, keepdim=True), 'p g -> (p g)')",
        *EINOPS,
    ),
    "std of the batch": (
        "r = rewards.view(P, G)\nadv = ((r - r.mean(1, keepdim=True)) / (rewards.std() + 1)).flatten()",
    ),
    "std_mean": (
        "r = rewards.view(P, G)\ns, m = torch.std_mean(r, dim=1, keepdim=True)\nadv = ((r - m) / (s + 1)).flatten()",
    ),
    "turned and turned back": ("r = rewards.view(P, G).t()\nadv = (r - r.mean(0, keepdim=True)).t().reshape(-1)",),
    "spread over rows": ("r = rewards.view(P, G)\nadv = rewards - r.mean(1).repeat_interleave(G)",),
    "numpy": (
        "r = np.array(rewards).reshape(P, G)\nadv = torch.tensor(r - r.mean(axis=1, keepdims=True)).flatten()",
        *NUMPY,
    ),
    "neighbours": (
        "adv = torch.zeros_like(rewards)\nfor p in range(P):\n"
        "    rows = rewards[p * G:(p + 1) * G]\n    adv[p * G:(p + 1) * G] = rows - rows.mean()",
    ),
    "neighbours of a list": (
        "scores = rewards.tolist()\nadv = []\nfor i in range(0, P * G, G):\n    peers = scores[i:i + G]\n"
        "    level = sum(peers) / len(peers)\n    adv += [s - level for s in peers]\nadv = torch.tensor(adv)",
    ),
    "by turns": ("r = rewards.view(G, P)\nadv = (r - r.mean(0, keepdim=True)).flatten()", *TILED),
    "stacked slices": (
        "r = torch.stack([rewards[p * G:(p + 1) * G] for p in range(P)])\n"
        "adv = (r - r.mean(1, keepdim=True)).flatten()",
    ),
    "stacked pieces": ("r = torch.stack(rewards.split(G))\nadv = (r - r.mean(1, keepdim=True)).flatten()",),
    "rows": (
        "adv, r = torch.empty(P, G), rewards.view(P, G)\nfor p in range(P):\n    adv[p] = r[p] - r[p].mean()\n"
        "adv = adv.flatten()",
    ),
    "every n-th row by turns": (
        "adv = torch.zeros_like(rewards)\nfor p in range(P):\n"
        "    rows = rewards[p::P]\n    adv[p::P] = rows - rows.mean()",
        *TILED,
    ),
}


@pytest.mark.parametrize("form", ACROSS)
def test_a_mean_or_std_over_prompts_is_named(form, tmp_path):
    credit, *edits = ACROSS[form]
    assert codes_in(trainer(credit, None, None, *edits), tmp_path, CODES) == {"ADV01"}


@pytest.mark.parametrize("form", WITHIN)
def test_a_mean_over_the_answers_to_one_prompt_is_healthy(form, tmp_path):
    credit, *edits = WITHIN[form]
    text = trainer(credit, None, None, *edits)
    assert codes_in(text, tmp_path, CODES) == set()
    assert state_of("ADV01", text, tmp_path) is State.HEALTHY


LISTED = (ANSWERS, "    answers = [x for x in a + b for _ in range(G)]\n"), ("ans.item()", "ans")
REPEATED = {
    "comprehension": ((ROWS, "    prompts = torch.stack([p for p in prompts for _ in range(G)])\n"), *LISTED),
    "loops": (
        (
            ROWS,
            "    rows = []\n    for q in prompts:\n        for _ in range(G):\n            rows.append(q)\n"
            "    prompts = torch.stack(rows)\n",
        ),
        *LISTED,
    ),
    "a new dimension": (
        (ROWS, "    prompts = prompts[:, None].expand(P, 8, -1).reshape(P * 8, -1)\n"),
        (ANSWERS, "    answers = (a + b)[:, None].expand(P, 8).reshape(-1)\n"),
    ),
    "numpy": (
        *NUMPY,
        (ROWS, "    prompts = torch.from_numpy(np.repeat(prompts.numpy(), G, axis=0))\n"),
        (ANSWERS, "    answers = torch.from_numpy(np.repeat((a + b).numpy(), G))\n"),
    ),
    "einops": (
        *EINOPS,
        (ROWS, "    prompts = repeat(prompts, 'p t -> (p g) t', g=G)\n"),
        (ANSWERS, "    answers = repeat(a + b, 'p -> (p g)', g=G)\n"),
    ),
    "by number": (
        (ROWS, "    prompts = prompts[torch.arange(P).repeat_interleave(G)]\n"),
        (ANSWERS, "    answers = (a + b)[torch.arange(P).repeat_interleave(G)]\n"),
    ),
    "in another file, with names that speak": (
        ("import torch\n", "from task import spread\nimport torch\n"),
        (ROWS, "    prompts = spread(prompts)\n"),
        (ANSWERS, "    answers = spread(a + b)\n"),
    ),
}


@pytest.mark.parametrize("form", REPEATED)
def test_the_group_is_known_by_how_prompts_are_repeated(form, tmp_path):
    across = trainer("r = rewards.view(P, G)\nadv = (r - r.mean(0)).flatten()", None, None, *REPEATED[form])
    within = trainer(None, None, None, *REPEATED[form])
    assert codes_in(across, tmp_path, CODES) == {"ADV01"}
    assert codes_in(within, tmp_path, CODES) == set()
    assert state_of("ADV01", within, tmp_path) is State.HEALTHY


@pytest.mark.parametrize("dim", [0, 1])
def test_nothing_is_assured_of_dimensions_that_the_text_does_not_name(dim, tmp_path):
    text = trainer(
        f"r = rewards.view(first, second)\nadv = (r - r.mean({dim}, keepdim=True)).flatten()",
        None,
        None,
        ("import torch\n", "from task import first, second, spread\nimport torch\n"),
        (ROWS, "    prompts = spread(prompts)\n"),
        (ANSWERS, "    answers = spread(a + b)\n"),
    )
    assert state_of("ADV01", text, tmp_path) is State.NOT_ENOUGH_DATA


NUMBERED = "mean = torch.zeros({}).index_add(0, owner, rewards) / {}\nadv = rewards - mean[owner]"


@pytest.mark.parametrize(
    ("owner", "edits", "codes"),
    [
        ("// G", (), set()),
        ("% G", (), {"ADV02"}),
        ("% P", TILED, set()),
        ("// G", TILED, {"ADV02"}),
    ],
)
def test_rows_are_numbered_as_prompts_were_repeated(owner, edits, codes, tmp_path):
    credit = f"owner = torch.arange(P * G) {owner}\n{NUMBERED.format('P', 'G')}"
    assert codes_in(trainer(credit, None, None, *edits), tmp_path, CODES) == codes


def test_one_prompt_by_a_setting_is_one_group(tmp_path):
    text = trainer(None, None, None, ("P, G, MAX_NEW = 4, 8, 6", "P, G, MAX_NEW = 1, 8, 6"))
    assert codes_in(text, tmp_path, CODES) == set()


SCALED = "r = rewards.view(P, G)\nadv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)\n"
TURNED = {
    "T": (SCALED + "adv = adv.T.flatten()",),
    "t": (SCALED + "adv = adv.t().reshape(-1)",),
    "transpose": (SCALED + "adv = adv.transpose(0, 1).reshape(-1)",),
    "permute": (SCALED + "adv = adv.permute(1, 0).contiguous().view(-1)",),
    "a column": (SCALED + "adv = adv.T.reshape(-1, 1).squeeze(1)",),
    "turned before the mean": ("r = rewards.view(P, G).T\nadv = (r - r.mean(0, keepdim=True)).flatten()",),
    "einops": (
        "r = rearrange(rewards, '(p g) -> p g', g=G)\nadv = rearrange(r - r.mean(1, keepdim=True), 'p g -> (g p)')",
        *EINOPS,
    ),
}
IN_ORDER = {
    "flat": (SCALED + "adv = adv.flatten()",),
    "turned and turned back": ("r = rewards.view(P, G).T\nadv = (r - r.mean(0, keepdim=True)).T.flatten()",),
    "a column": (SCALED + "adv = adv.view(-1, 1).squeeze(1)",),
    "einops": (
        "r = rearrange(rewards, '(p g) -> g p', g=G)\nadv = rearrange(r - r.mean(0, keepdim=True), 'g p -> (p g)')",
        *EINOPS,
    ),
    "joined and joined again": (SCALED + "adv = adv.T.flatten()\nadv = adv.view(G, P).T.flatten()",),
    "tokens turned as well": (
        SCALED + "adv = adv.T.flatten()\n"
        "ids = ids.view(P, G, -1).transpose(0, 1).reshape(P * G, -1)\n"
        "mask = mask.view(P, G, -1).transpose(0, 1).reshape(P * G, -1)",
    ),
    "turned for a print": (SCALED + "print(adv.T.flatten())\nadv = adv.flatten()",),
}


@pytest.mark.parametrize("form", TURNED)
def test_advantages_that_are_joined_in_another_order_are_named(form, tmp_path):
    credit, *edits = TURNED[form]
    assert codes_in(trainer(credit, None, None, *edits), tmp_path, CODES) == {"ADV10"}


@pytest.mark.parametrize("form", IN_ORDER)
def test_advantages_in_the_order_of_their_rows_are_silent(form, tmp_path):
    credit, *edits = IN_ORDER[form]
    assert codes_in(trainer(credit, None, None, *edits), tmp_path, CODES) == set()
