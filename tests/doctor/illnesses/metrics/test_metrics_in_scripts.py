"""Settings and metrics in the text of a script: values that do not work, numbers that are not what they are called."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO, with_change

CODES = ("HYP01", "MET06")
STEP = "        optimizer.step()\n"
RATE = "lr=1e-6"
OPTIMIZER = "torch.optim.AdamW(policy.parameters(), lr=1e-6)"


def found(text, folder):
    return codes_in(text, folder, CODES)


def logged(*lines, before=""):
    """The script with more lines after each update."""
    text = with_change(STEP, STEP + "".join(f"        {line}\n" for line in lines))
    return text.replace("for step in range(100):", f"{before}\nfor step in range(100):") if before else text


GAE = """
    values = critic(ids)
    gains, last = [], 0.0
    for t in {turns}:
        delta = rewards_of(ids)[:, t] + 0.99 * values[:, t + 1] - values[:, t]
        last = delta + {decay} * last
        gains.append(last)
    advantages = torch.stack(gains[::-1], dim=1)
"""


def credited(decay, turns="reversed(range(64))"):
    first = (
        "    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)\n"
    )
    text = with_change(first + "    advantages = advantages.view(-1, 1)\n", GAE.format(decay=decay, turns=turns))
    return text.replace("from task import", "from task import critic,")


SETTINGS = {
    "a rate of 1": with_change(RATE, "lr=1.0"),
    "a rate of 1, positional": with_change("parameters(), lr=1e-6", "parameters(), 1.0"),
    "a rate that was meant as 3e-4": with_change(RATE, "lr=3e4"),
    "a rate of 0": with_change(RATE, "lr=0.0"),
    "a rate from the command line": GRPO.replace(RATE, "lr=args.lr").replace(
        "policy = Auto",
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, default=0.5)\n"
        "args = parser.parse_args()\npolicy = Auto",
    ),
    "a rate of a dataclass": GRPO.replace(RATE, "lr=settings.rate").replace(
        "policy = Auto",
        "from dataclasses import dataclass\n\n@dataclass\nclass Settings:\n    rate: float = 0.5\n\n"
        "settings = Settings()\npolicy = Auto",
    ),
    "a KL of 10": with_change("0.04 * kl", "10 * kl"),
    "a KL of 5 behind the sum": with_change("(-gain + 0.04 * kl)", "(kl.mul(5.0) - gain)"),
    "a clip range of 0.9": with_change("1 - 0.2, 1 + 0.2", "1 - 0.9, 1 + 0.9"),
    "a temperature of 3": with_change("temperature=1.0", "temperature=3.0"),
    "a temperature of 0.05": with_change("temperature=1.0", "temperature=0.05"),
    "a decay that pulls to 0": with_change(RATE, "lr=1e-6, weight_decay=1.0"),
    "a sight of one token": credited("0.5 * 0.5"),
    "a sight of one token, counted down": credited("0.3", "range(63, -1, -1)"),
}


@pytest.mark.parametrize("form", SETTINGS)
def test_a_setting_that_no_training_bears_is_named(form, tmp_path):
    assert "HYP01" in found(SETTINGS[form], tmp_path)


USUAL = {
    "as it is": GRPO,
    "a rate for a small network": with_change(RATE, "lr=1e-2"),
    "plain descent": with_change(OPTIMIZER, "torch.optim.SGD(policy.parameters(), lr=1.0)"),
    "a rate that warms up": GRPO.replace(RATE, "lr=0.0").replace(
        "for step in", "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: s)\nfor step in"
    ),
    "a KL of 1": with_change("0.04 * kl", "1.0 * kl"),
    "clip higher": with_change("1 - 0.2, 1 + 0.2", "1 - 0.2, 1 + 0.28"),
    "a temperature of 1.5": with_change("temperature=1.0", "temperature=1.5"),
    "usual decay": with_change(RATE, "lr=1e-6, weight_decay=0.1"),
    "a long sight": credited("0.99 * 0.95"),
    "a moving average": credited("0.1", "range(64)"),
}


@pytest.mark.parametrize("form", USUAL)
def test_usual_settings_are_not(form, tmp_path):
    assert found(USUAL[form], tmp_path) == set()


COUNT = "(((ratio - 1).abs() > 0.2).float() * mask).sum()"
SHARE = f"{COUNT} / mask.sum()"
METRICS = {
    "a count in a table": logged(f'print({{"clip_fraction": {COUNT}.item()}})'),
    "a count in a text": logged(f'print(f"step {{step}} clipfrac {{{COUNT}:.3f}}")'),
    "a count by a variable": logged(f"clip_frac = {COUNT}", "print(f'{step} {clip_frac.item()}')"),
    "a count by percent": logged(f'print("step %d clipfrac %.3f" % (step, {COUNT}))'),
    "a count for a library": logged(f'wandb.log({{"train/clip_fraction": {COUNT}.item()}})', before="import wandb"),
    "a ratio as a KL": logged('print({"approx_kl": ratio.mean().item()})'),
    "minus the ratio as a KL": logged("approx_kl = -ratio.mean()", "print(f'kl {approx_kl.item()}')"),
    "a ratio under the mask as a KL": logged('print({"kl": ((ratio * mask).sum() / mask.sum()).item()})'),
    "a sum called a mean": logged("mean_kl = (kl * mask).sum()", "print(mean_kl.item())"),
    "a sum called an average": logged('print({"avg_kl": (kl * mask).sum().item()})'),
    "the last group's rewards": logged('print({"reward": rewards[-2:].mean().item()})'),
    "a total that is overwritten": logged("total_kl = (kl * mask).sum().item()", before="total_kl = 0.0")
    + "print(f'done: {total_kl}')\n",
}


@pytest.mark.parametrize("form", METRICS)
def test_a_number_that_is_not_what_it_is_called_is_named(form, tmp_path):
    assert found(METRICS[form], tmp_path) == {"MET06"}


HONEST = {
    "a share": logged(f'print({{"clip_fraction": ({SHARE}).item()}})'),
    "a mean of comparisons": logged('print({"clip_fraction": ((ratio - 1).abs() > 0.2).float().mean().item()})'),
    "a count that is divided later": logged(f"clip_frac = {COUNT}", "print(f'{(clip_frac / mask.sum()).item()}')"),
    "a count called so": logged(f'print({{"clipped_tokens": {COUNT}.item()}})'),
    "a KL": logged('print({"kl": ((kl * mask).sum() / mask.sum()).item()})'),
    "an estimate of the ratio's KL": logged('print({"approx_kl": ((ratio - 1) - (new - old)).mean().item()})'),
    "a ratio called so": logged('print({"ratio": ratio.mean().item()})'),
    "a sum called so": logged('print({"kl_sum": (kl * mask).sum().item()})'),
    "a sum over each row, averaged": logged('print({"mean_kl": (kl * mask).sum(1).mean().item()})'),
    "a moving average of rewards": logged(
        "history.append(rewards.mean().item())", 'print({"reward": sum(history[-100:]) / 100})', before="history = []"
    ),
    "a total that adds up": logged("total_kl += (kl * mask).sum().item()", before="total_kl = 0.0")
    + "print(f'done: {total_kl}')\n",
    "a total shown in its own turn": logged(
        "total_kl = (kl * mask).sum().item()", "print(f'{total_kl}')", before="total_kl = 0.0"
    ),
}


@pytest.mark.parametrize("form", HONEST)
def test_an_honest_number_is_not(form, tmp_path):
    assert found(HONEST[form], tmp_path) == set()
