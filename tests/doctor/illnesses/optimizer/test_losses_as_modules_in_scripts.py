"""A loss written as a module has no weights to forget (OPT02); numbers that weigh rewards are not rewards (REW01)."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO

LOSS = "        loss = ((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)\n"
CLASS = """
class Objective(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        INSIDE

    def forward(self, gain, kl, mask):
        return ((-gain + WEIGHT * kl) * mask).sum() / mask.sum().clamp(min=1)

objective = Objective(0.04)
"""
FORMULAS = {
    "a number": ("self.weight = weight", "self.weight"),
    "nothing": ("pass", "0.04"),
    "a tensor": ('self.register_buffer("weight", torch.tensor(weight))', "self.weight"),
    "two numbers": ("self.low, self.weight = 0.2, weight", "self.weight"),
}


def with_module(inside, weight, optimizer="policy.parameters()"):
    made = CLASS.replace("INSIDE", inside).replace("WEIGHT", weight)
    text = GRPO.replace(LOSS, "        loss = objective(gain, kl, mask)\n").replace("policy.parameters()", optimizer)
    return text.replace("optimizer = torch", f"{made}optimizer = torch", 1)


@pytest.mark.parametrize("form", FORMULAS)
def test_a_loss_without_weights_is_not_another_network(form, tmp_path):
    assert codes_in(with_module(*FORMULAS[form]), tmp_path, ["OPT02"]) == set()


@pytest.mark.parametrize(
    "optimizer",
    [
        "copy.deepcopy(policy).parameters()",
        "reference.parameters()",
        'AutoModelForCausalLM.from_pretrained("x").parameters()',
    ],
)
def test_an_optimizer_of_another_network_is_found_without_such_a_loss(optimizer, tmp_path):
    assert codes_in(GRPO.replace("policy.parameters()", optimizer), tmp_path, ["OPT02"]) == {"OPT02"}


REWARDS = "rewards = rewards_of(ids[:, start:]).view(-1, 8)"


@pytest.mark.parametrize(
    ("rewards", "codes"),
    [
        ("(torch.stack([rewards_of(ids), rewards_of(ids)], 1) * torch.tensor([0.5] * 2)).sum(1)", set()),
        ("(rewards_of(ids) * torch.tensor([0.5] * len(ids))[:, None]).sum(1)", set()),
        ("rewards_of(ids) / torch.tensor([2.0] * len(ids))", set()),
        ("torch.tensor([1.0] * len(ids))", {"REW01"}),
        ("torch.tensor([1.0 for _ in ids])", {"REW01"}),
        ("torch.tensor([0.5] * len(ids)) + 0.5", {"REW01"}),
    ],
)
def test_numbers_that_weigh_rewards_are_not_rewards(rewards, codes, tmp_path):
    assert GRPO.count(REWARDS) == 1
    assert codes_in(GRPO.replace(REWARDS, f"rewards = ({rewards}).view(-1, 8)"), tmp_path, ["REW01"]) == codes
