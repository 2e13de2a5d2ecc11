"""ADV01 to ADV08 in the source: many ways to write the same fault, and neighbours that must stay silent."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples.scripts import GRPO
from assay.doctor.illnesses.advantages.returns_from_whitened import SICK as WHITENED_RETURNS
from assay.doctor.illnesses.advantages.returns_from_whitened import WELL as CRITIC
from assay.programs.read.script import read_program

CODES = ("ADV01", "ADV02", "ADV03", "ADV04", "ADV05", "ADV06", "ADV07", "ADV08")
LINES = GRPO[GRPO.index("    rewards = rewards_of") : GRPO.index("    with torch.no_grad")]


def found(text, folder, codes=CODES):
    return codes_in(text, folder, codes)


def with_advantages(lines):
    """The script with `r`, the rewards of all rows, and lines that make [rows, 1] advantages of them."""
    made = ["r = rewards_of(ids[:, start:])", *lines.strip().splitlines()]
    return GRPO.replace(LINES, "".join(f"    {line}\n" for line in made)).replace(
        "import copy\n", "import copy\nimport math\nimport numpy as np\nimport statistics\n"
    )


GROUPED = "g = r.view(-1, 8)\nm = g.mean(dim=1, keepdim=True)\n"
NO_FLOOR = {
    "std": GROUPED + "advantages = ((g - m) / g.std(dim=1, keepdim=True)).view(-1, 1)",
    "through a name": GROUPED + "s = g.std(1, keepdim=True)\nadvantages = ((g - m) / s).view(-1, 1)",
    "torch.std": GROUPED + "advantages = ((g - m) / torch.std(g, dim=1, keepdim=True)).view(-1, 1)",
    "root of the variance": GROUPED + "advantages = ((g - m) / g.var(1, keepdim=True).sqrt()).view(-1, 1)",
    "a power": GROUPED + "advantages = ((g - m) / g.var(1, keepdim=True) ** 0.5).view(-1, 1)",
    "rsqrt": GROUPED + "advantages = ((g - m) * g.var(1, keepdim=True).rsqrt()).view(-1, 1)",
    "written out": GROUPED
    + "s = ((g - m) ** 2).mean(dim=1, keepdim=True).sqrt()\nadvantages = ((g - m) / s).view(-1, 1)",
    "torch.div": GROUPED + "advantages = torch.div(g - m, g.std(1, keepdim=True)).view(-1, 1)",
    "in place": GROUPED + "c = g - m\nc /= g.std(1, keepdim=True)\nadvantages = c.view(-1, 1)",
    "std of what is centred": GROUPED + "c = g - m\nadvantages = (c / c.std(1, keepdim=True)).view(-1, 1)",
    "biased": GROUPED + "advantages = ((g - m) / g.std(1, unbiased=False, keepdim=True)).view(-1, 1)",
    "std_mean": "g = r.view(-1, 8)\ns, m = torch.std_mean(g, dim=1, keepdim=True)\n"
    "advantages = ((g - m) / s).view(-1, 1)",
    "epsilon on the quotient": GROUPED + "advantages = ((g - m) / g.std(1, keepdim=True) + 1e-8).view(-1, 1)",
    "epsilon on the numerator": GROUPED + "advantages = ((g - m + 1e-8) / g.std(1, keepdim=True)).view(-1, 1)",
    "epsilon on the rewards": GROUPED + "advantages = ((g - m) / (g + 1e-8).std(1, keepdim=True)).view(-1, 1)",
    "an epsilon of 0": GROUPED + "advantages = ((g - m) / (g.std(1, keepdim=True) + 0.0)).view(-1, 1)",
    "repeated to rows": "m = r.view(-1, 8).mean(1).repeat_interleave(8)\n"
    "s = r.view(-1, 8).std(1).repeat_interleave(8)\n"
    "advantages = ((r - m) / s).unsqueeze(1)",
    "through a function": "def normal(x):\n    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)\n"
    "advantages = normal(r.view(-1, 8)).view(-1, 1)",
    "numpy": "g = np.array(r.tolist()).reshape(-1, 8)\n"
    "a = (g - g.mean(axis=1, keepdims=True)) / g.std(axis=1, keepdims=True)\n"
    "advantages = torch.tensor(a).view(-1, 1)",
    "np.std": "g = np.asarray(r.tolist()).reshape(-1, 8)\n"
    "a = (g - np.mean(g, axis=1, keepdims=True)) / np.std(g, axis=1, keepdims=True)\n"
    "advantages = torch.as_tensor(a).view(-1, 1)",
}
FLOOR = {
    "epsilon": GROUPED + "advantages = ((g - m) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)",
    "epsilon first": GROUPED + "advantages = ((g - m) / (1e-4 + g.std(1, keepdim=True))).view(-1, 1)",
    "clamp": GROUPED + "advantages = ((g - m) / g.std(1, keepdim=True).clamp(min=1e-4)).view(-1, 1)",
    "clamp_min": GROUPED + "advantages = ((g - m) / g.std(1, keepdim=True).clamp_min(1e-4)).view(-1, 1)",
    "maximum": GROUPED
    + "s = torch.maximum(g.std(1, keepdim=True), torch.tensor(1e-4))\nadvantages = ((g - m) / s).view(-1, 1)",
    "where on the std": GROUPED + "s = g.std(1, keepdim=True)\ns = torch.where(s == 0, 1.0, s)\n"
    "advantages = ((g - m) / s).view(-1, 1)",
    "where on the quotient": GROUPED + "s = g.std(1, keepdim=True)\n"
    "advantages = torch.where(s > 0, (g - m) / s, 0.0).view(-1, 1)",
    "set where it is 0": GROUPED + "s = g.std(1, keepdim=True)\ns[s == 0] = 1\nadvantages = ((g - m) / s).view(-1, 1)",
    "nan_to_num": GROUPED + "advantages = torch.nan_to_num((g - m) / g.std(1, keepdim=True)).view(-1, 1)",
    "under the root": GROUPED + "advantages = ((g - m) * torch.rsqrt(g.var(1, keepdim=True) + 1e-8)).view(-1, 1)",
    "no std at all": GROUPED + "advantages = (g - m).view(-1, 1)",
    "leave one out": "g = r.view(-1, 8)\nadvantages = (g - (g.sum(1, keepdim=True) - g) / 7).view(-1, 1)",
    "a configured epsilon": "EPS = 1e-6\n"
    + GROUPED
    + "advantages = ((g - m) / (g.std(1, keepdim=True) + EPS)).view(-1, 1)",
}


@pytest.mark.parametrize("form", NO_FLOOR)
def test_a_std_that_nothing_keeps_from_0_is_found(form, tmp_path):
    assert found(with_advantages(NO_FLOOR[form]), tmp_path) == {"ADV04"}


@pytest.mark.parametrize("form", FLOOR)
def test_a_std_that_something_keeps_from_0_is_not(form, tmp_path):
    assert not found(with_advantages(FLOOR[form]), tmp_path)


BY_PROMPT = """
import torch
from transformers import AutoModelForCausalLM
from task import prompts_of, rewards_of
policy = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

def update(prompt):
    ids = policy.generate(prompt.repeat(8, 1), do_sample=True, temperature=1.0, top_k=0, max_new_tokens=64)
    rewards = torch.tensor(rewards_of(ids))
    std = rewards.std()
    GUARD
    advantages = (rewards - rewards.mean()) / std
    logits = policy(ids).logits[:, :-1].float()
    logp = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    loss = -(logp * advantages[:, None]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

for prompt in prompts_of(0):
    update(prompt)
"""


def test_a_test_of_the_std_before_the_division_guards_it(tmp_path):
    assert found(BY_PROMPT.replace("GUARD", "pass"), tmp_path) == {"ADV04"}
    for guard in (
        "if std == 0:\n        return None",
        "if std < 1e-6:\n        return",
        "if std.item() == 0.0:\n        return",
        "if not std > 0:\n        return",
        "if rewards.max() == rewards.min():\n        return",
        "if torch.isclose(std, torch.tensor(0.0)):\n        return",
        "assert std > 0",
        "std = std if std > 0 else torch.tensor(1.0)",
    ):
        assert not found(BY_PROMPT.replace("GUARD", guard), tmp_path), guard
    assert found(BY_PROMPT.replace("GUARD", "print('std', std)"), tmp_path) == {"ADV04"}, "a print guards nothing"


FORMULAS = {
    "parentheses": GROUPED + "advantages = (g - m / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)",
    "variance": GROUPED + "advantages = ((g - m) / (g.var(1, keepdim=True) + 1e-4)).view(-1, 1)",
    "squared std": GROUPED + "advantages = ((g - m) / (g.std(1, keepdim=True) ** 2 + 1e-4)).view(-1, 1)",
    "mean afterwards": GROUPED + "advantages = (g / (g.std(1, keepdim=True) + 1e-4) - m).view(-1, 1)",
    "own reward left in": "g = r.view(-1, 8)\nadvantages = (g - g.sum(1, keepdim=True) / (8 - 1)).view(-1, 1)",
}


@pytest.mark.parametrize("form", FORMULAS)
def test_a_formula_that_is_not_meant_is_found(form, tmp_path):
    text = with_advantages(FORMULAS[form])
    if form == "own reward left in":
        text = text.replace("(8 - 1)", "(n - 1)").replace(
            "    g = r.view(-1, 8)\n", "    g, n = r.view(-1, 8), len(prompts)\n"
        )
    assert found(text, tmp_path) == {"ADV05"}


BATCH_WIDE = {
    "flat": "advantages = ((r - r.mean()) / (r.std() + 1e-4)).view(-1, 1)",
    "grouped, then over all": "g = r.view(-1, 8)\nadvantages = ((g - g.mean()) / (g.std() + 1e-4)).view(-1, 1)",
    "one group of all": "g = r.view(1, -1)\nadvantages = (g - g.mean(1, keepdim=True)).view(-1, 1)",
}


@pytest.mark.parametrize("form", BATCH_WIDE)
def test_a_mean_over_several_prompts_is_found(form, tmp_path):
    assert "ADV01" in found(with_advantages(BATCH_WIDE[form]), tmp_path)


def test_advantages_that_have_a_baseline_may_be_normalised_over_the_batch(tmp_path):
    rloo = "g = r.view(-1, 8)\na = (g - (g.sum(1, keepdim=True) - g) / 7).flatten()\n"
    text = with_advantages(rloo + "advantages = ((a - a.mean()) / (a.std() + 1e-8)).view(-1, 1)")
    assert not found(text, tmp_path)


def test_the_order_of_groups_must_be_that_of_the_rows(tmp_path):
    tiled = GRPO.replace("prompts_of(step).repeat_interleave(8, dim=0)", "prompts_of(step).repeat(8, 1)")
    assert "ADV02" in found(tiled, tmp_path)
    turned = tiled.replace("rewards_of(ids[:, start:]).view(-1, 8)", "rewards_of(ids[:, start:]).view(8, -1).t()")
    assert "ADV02" not in found(turned, tmp_path)


def test_whitening_within_a_row_is_found(tmp_path):
    spread = "advantages = advantages.view(-1, 1) * mask\n"
    text = GRPO.replace("advantages = advantages.view(-1, 1)\n", spread + "    LINE\n")
    for dim in ("1", "-1"):
        a = "advantages"
        line = f"{a} = ({a} - {a}.mean({dim}, keepdim=True)) / ({a}.std({dim}, keepdim=True) + 1e-6)"
        assert found(text.replace("LINE", line), tmp_path) == {"ADV06"}
    assert not found(text.replace("LINE", "pass"), tmp_path)


def test_groups_are_no_tokens(tmp_path):
    assert not found(GRPO, tmp_path, ("ADV06",))


def test_returns_of_whitened_advantages_are_found(tmp_path):
    assert found(WHITENED_RETURNS, tmp_path) == {"ADV07"}
    assert not found(CRITIC, tmp_path)
    renamed = CRITIC.replace("whitened = ", "advantages = ").replace("* whitened", "* advantages")
    assert not found(renamed, tmp_path)
    again = renamed.replace("    with torch.no_grad", "    returns = advantages + values\n    with torch.no_grad", 1)
    assert found(again, tmp_path) == {"ADV07"}


ROWS = "rewards = torch.tensor([rewards_of(one) for one in ids[:, start:]])"
SHAPES = {
    "a row against tokens": ("advantages = advantages.view(-1)", None),
    "one axis too many": ("advantages = advantages.view(-1, 1, 1)", None),
    "unsqueezed twice": ("advantages = advantages.view(-1).unsqueeze(-1).unsqueeze(-1)", None),
    "a column against sums": (
        "advantages = advantages.view(-1, 1)",
        "rows = (new * mask).sum(1)\nloss = -(rows * advantages).mean()",
    ),
    "a row against a column of sums": (
        "advantages = advantages.flatten()",
        "rows = (new * mask).sum(1, keepdim=True)\nloss = -(rows * advantages).mean()",
    ),
}
FITTING = {
    "a column": ("advantages = advantages.view(-1, 1)", None),
    "indexed": ("advantages = advantages.view(-1)[:, None]", None),
    "rows against sums": (
        "advantages = advantages.view(-1)",
        "rows = (new * mask).sum(1)\nloss = -(rows * advantages).mean()",
    ),
}


def shaped(lines, loss):
    text = GRPO.replace("rewards = rewards_of(ids[:, start:])", ROWS)
    text = text.replace("advantages = advantages.view(-1, 1)", lines)
    if loss is not None:
        before = text[text.index("        ratio = ") : text.index("        optimizer.zero_grad")]
        text = text.replace(before, "".join(f"        {line}\n" for line in loss.splitlines()))
    return text


@pytest.mark.parametrize("form", SHAPES)
def test_shapes_that_are_stretched_are_found(form, tmp_path):
    assert "ADV08" in found(shaped(*SHAPES[form]), tmp_path, ("ADV08",))


@pytest.mark.parametrize("form", FITTING)
def test_shapes_that_fit_are_not(form, tmp_path):
    assert not found(shaped(*FITTING[form]), tmp_path, ("ADV08",))


def test_whitened_advantages_of_an_environment_are_merely_possible(tmp_path):
    drawn = BY_PROMPT[BY_PROMPT.index("policy.generate") : BY_PROMPT.index("\n    rewards")]
    text = BY_PROMPT.replace(drawn, "rewards_of(prompt)")
    text = text.replace("rewards = torch.tensor(rewards_of(ids))", "advantages = rewards_of(ids)").replace(
        "GUARD", "pass"
    )
    text = text.replace("std = rewards.std()", "std = advantages.std()").replace(
        "(rewards - rewards.mean()) / std", "(advantages - advantages.mean()) / std"
    )
    path = tmp_path / "script.py"
    path.write_text(text)
    (word,) = diagnose(Evidence(programs=(read_program(path),)), [by_code("ADV04")]).findings
    assert word.confidence == "possible"
