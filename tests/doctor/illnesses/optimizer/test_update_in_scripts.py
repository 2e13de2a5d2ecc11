"""Accumulation and the order of an update in the text of a script: many ways to go wrong, and their neighbours."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO

CODES = ("LOSS02", "LOSS03", "LOSS04")
UPDATE = GRPO[GRPO.index("    for epoch in range(2):") :]
STEP = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
MEAN = "(-torch.min(r * a, r.clamp(0.8, 1.2) * a) * m).sum(1).div(m.sum(1).clamp(min=1)).mean()"
TOKENS = "(-torch.min(r * a, r.clamp(0.8, 1.2) * a) * m).sum()"
PART = "r, a, m = torch.exp(score(policy, ids[rows], start) - old[rows]), advantages[rows], mask[rows]"


def found(text, folder):
    return codes_in(text, folder, CODES)


def with_step(lines, before=""):
    """The script with other lines in place of zero_grad, backward, step."""
    assert GRPO.count(STEP) == 1
    text = GRPO.replace(STEP, "".join(f"        {line}\n" for line in lines))
    return text.replace("for step in range(100):", f"{before}\nfor step in range(100):") if before else text


def with_update(lines, before=""):
    """The script with another update on the same rollouts."""
    text = GRPO.replace(UPDATE, "".join(f"    {line}\n" for line in lines))
    return text.replace("for step in range(100):", f"{before}\nfor step in range(100):") if before else text


def parts(loss, backward, head="for rows in torch.arange(len(ids)).chunk(4):", after=("optimizer.step()",)):
    lines = ["optimizer.zero_grad()", head, f"    {PART}", f"    loss = {loss}", *(f"    {one}" for one in backward)]
    return [*lines, *after]


CLIP = "torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)"
SCHEDULER = "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)"
SCALER = "scaler = torch.amp.GradScaler()"
SCALED = ("scaler.step(optimizer)", "scaler.update()")
MEASURE = "norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), float('inf'))"
RAISE = ("    optimizer.zero_grad()", "    raise", "optimizer.step()")
SKIP = ("    optimizer.zero_grad()", "    continue", "optimizer.step()")
OUT_OF_ORDER = {
    "cleared after backward": with_step(["loss.backward()", "optimizer.zero_grad()", "optimizer.step()"]),
    "cleared by the model": with_step(["loss.backward()", "policy.zero_grad()", "optimizer.step()"]),
    "cleared and clipped in between": with_step(["loss.backward()", "optimizer.zero_grad()", CLIP, "optimizer.step()"]),
    "stepped before backward": with_step(["optimizer.zero_grad()", "optimizer.step()", "loss.backward()"]),
    "stepped, then backward, then cleared": with_step(["optimizer.step()", "loss.backward()", "optimizer.zero_grad()"]),
    "never cleared": with_step(["loss.backward()", "optimizer.step()"]),
    "cleared once, before the loop": with_step(["loss.backward()", "optimizer.step()"], "optimizer.zero_grad()"),
    "clipped after the step": with_step(["optimizer.zero_grad()", "loss.backward()", "optimizer.step()", CLIP]),
    "clipped before backward": with_step(["optimizer.zero_grad()", CLIP, "loss.backward()", "optimizer.step()"]),
    "scheduler first": with_step(
        ["optimizer.zero_grad()", "loss.backward()", "scheduler.step()", "optimizer.step()"], SCHEDULER
    ),
    "step without parentheses": with_step(["optimizer.zero_grad()", "loss.backward()", "optimizer.step"]),
    "never stepped": with_step(["optimizer.zero_grad()", "loss.backward()"]),
    "a scaler's step after the clear": with_step(
        ["scaler.scale(loss).backward()", "optimizer.zero_grad()", "scaler.step(optimizer)", "scaler.update()"], SCALER
    ),
    "in a function": with_step(
        ["update(loss)"], "def update(value):\n    value.backward()\n    optimizer.zero_grad()\n    optimizer.step()\n"
    ),
    "in two functions": with_step(
        ["differentiate(loss)", "move()"],
        "def differentiate(x):\n    x.backward()\n    optimizer.zero_grad()\n\ndef move():\n    optimizer.step()\n",
    ),
    "cleared inside the loop over parts": with_update(parts(MEAN, ["optimizer.zero_grad()", "(loss / 4).backward()"])),
    "stepped in the loop over parts, cleared outside": with_update(
        parts(MEAN, ["loss.backward()", "optimizer.step()"], after=())
    ),
}
IN_ORDER = {
    "as it is": GRPO,
    "cleared at the end": with_step(["loss.backward()", "optimizer.step()", "optimizer.zero_grad()"]),
    "set to none": with_step(["optimizer.zero_grad(set_to_none=True)", "loss.backward()", CLIP, "optimizer.step()"]),
    "cleared by the model": with_step(["policy.zero_grad()", "loss.backward()", "optimizer.step()"]),
    "by hand": with_step(["for p in policy.parameters():", "    p.grad = None", "loss.backward()", "optimizer.step()"]),
    "by hand, in place": with_step(
        ["loss.backward()", "optimizer.step()", "for p in policy.parameters():", "    p.grad.zero_()"]
    ),
    "a scaler": with_step(
        ["optimizer.zero_grad()", "scaler.scale(loss).backward()", "scaler.unscale_(optimizer)", CLIP, *SCALED],
        SCALER,
    ),
    "scheduler last": with_step(
        ["optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "scheduler.step()"], SCHEDULER
    ),
    "norm measured after the step": with_step(
        ["optimizer.zero_grad()", "loss.backward()", "optimizer.step()", MEASURE]
    ),
    "cleared where an error was": with_step(
        ["optimizer.zero_grad()", "try:", "    loss.backward()", "except RuntimeError:", *RAISE]
    ),
    "cleared by a library": with_step(
        ["loss.backward()", "optimizer.step()", "clean(optimizer)"], "from lib import clean"
    ),
    "every second time": with_step(
        ["loss.backward()", "if epoch % 2:", "    optimizer.step()", "    optimizer.zero_grad()"]
    ),
    "the step applies the turn before": with_step(["optimizer.step()", "optimizer.zero_grad()", "loss.backward()"]),
    "closure": with_step(
        [
            "def closure():",
            "    optimizer.zero_grad()",
            "    loss.backward()",
            "    return loss",
            "optimizer.step(closure)",
        ]
    ),
    "a skipped update": with_step(["optimizer.zero_grad()", "loss.backward()", "if not torch.isfinite(loss):", *SKIP]),
    "another optimizer cleared in between": with_step(
        ["optimizer.zero_grad()", "loss.backward()", "other.zero_grad()", "optimizer.step()"],
        "other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)",
    ),
}


@pytest.mark.parametrize("form", OUT_OF_ORDER)
def test_gradients_that_are_cleared_made_or_used_out_of_order_are_named(form, tmp_path):
    assert "LOSS04" in found(OUT_OF_ORDER[form], tmp_path)


@pytest.mark.parametrize("form", IN_ORDER)
def test_an_update_in_order_is_not(form, tmp_path):
    assert found(IN_ORDER[form], tmp_path) == set()


EVERY = "if (number + 1) % 4 == 0:"
ENUMERATED = "for number, rows in enumerate(torch.arange(len(ids)).chunk(8)):"
ACCELERATE = "from accelerate import Accelerator\naccelerator = Accelerator(gradient_accumulation_steps=4)"


def every_fourth(backward):
    return parts(
        MEAN, [backward, EVERY, "    optimizer.step()", "    optimizer.zero_grad()"], head=ENUMERATED, after=()
    )


def accelerated(loss, backward):
    lines = [f"    {line}" for line in (PART, f"loss = {loss}", backward, "optimizer.step()", "optimizer.zero_grad()")]
    return ["for rows in torch.arange(len(ids)).chunk(4):", "  with accelerator.accumulate(policy):", *lines]


PROMPTS = (
    GRPO[: GRPO.index("for step in range(100):")]
    + """
GROUP, PROMPTS = 8, 4
for step in range(100):
    optimizer.zero_grad()
    for number in range(PROMPTS):
        prompts = prompts_of(number).repeat_interleave(GROUP, dim=0)
        ids = policy.generate(prompts, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, max_new_tokens=64)
        rewards = rewards_of(ids)
        new = score(policy, ids, prompts.shape[1])
        gains = torch.exp(new - new.detach()) * (rewards - rewards.mean()).unsqueeze(1)
        loss = -(gains * (ids[:, prompts.shape[1] :] > 0)).sum() {}
        loss.backward()
    optimizer.step()
"""
)
WRONG_SUMS = {
    "means added up": with_update(parts(MEAN, ["loss.backward()"])),
    "means added up, rows by range": with_update(
        parts(MEAN, ["loss.backward()"], head="for rows in (slice(i, i + 4) for i in range(0, 16, 4)):")
    ),
    "every fourth, undivided": with_update(every_fourth("loss.backward()")),
    "a scaler, undivided": with_update(parts(MEAN, ["scaler.scale(loss).backward()"]), SCALER),
    "accelerate, and divided by hand": with_update(accelerated(MEAN, "accelerator.backward(loss / 4)"), ACCELERATE),
    "accelerate, and backward by hand": with_update(accelerated(MEAN, "loss.backward()"), ACCELERATE),
    "tokens of the whole, and the number of parts": with_update(
        parts(TOKENS + " / mask.sum()", ["loss = loss / n_parts", "loss.backward()"]), "n_parts = 4"
    ),
    "a mean over the answers to each prompt": PROMPTS.format("/ (GROUP * 64)"),
    "divided twice": with_update(
        parts(MEAN + " / len(chunks)", ["(loss / len(chunks)).backward()"], head="for rows in chunks:"),
    ).replace(
        "    optimizer.zero_grad()\n    for rows", "    chunks = ids.split(4)\n    optimizer.zero_grad()\n    for rows"
    ),
}
RIGHT_SUMS = {
    "divided by a number": with_update(parts(MEAN, ["(loss / 4).backward()"])),
    "every fourth, divided": with_update(every_fourth("(loss / 4).backward()")),
    "multiplied by a quarter": with_update(parts(MEAN, ["(loss * 0.25).backward()"])),
    "multiplied by the share": with_update(parts(MEAN, ["(loss * len(rows) / len(ids)).backward()"])),
    "tokens of the whole": with_update(parts(TOKENS + " / mask.sum()", ["loss.backward()"])),
    "a sum over a constant": with_update(parts(TOKENS + " / (16 * 64)", ["loss.backward()"])),
    "a mean over the answers to all prompts": PROMPTS.format("/ (GROUP * 64 * PROMPTS)"),
    "a plain sum": with_update(parts(TOKENS, ["loss.backward()"])),
    "accelerate": with_update(accelerated(MEAN, "accelerator.backward(loss)"), ACCELERATE),
    "a step for each part": with_update(
        parts(MEAN, ["optimizer.zero_grad()", "loss.backward()", "optimizer.step()"], after=())
    ),
    "summed before one backward": with_update(
        ["total = 0", *parts(MEAN, ["total = total + loss / 4"], after=("total.backward()", "optimizer.step()"))]
    ),
}


@pytest.mark.parametrize("form", WRONG_SUMS)
def test_gradients_of_parts_that_do_not_add_up_are_named(form, tmp_path):
    assert found(WRONG_SUMS[form], tmp_path) == {"LOSS02"}


@pytest.mark.parametrize("form", RIGHT_SUMS)
def test_gradients_of_parts_that_add_up_are_not(form, tmp_path):
    assert found(RIGHT_SUMS[form], tmp_path) == set()


OWN = {
    "the mask's own sum": with_update(parts(TOKENS + " / m.sum() / 4", ["loss.backward()"])),
    "clamped": with_update(parts(TOKENS + " / m.sum().clamp(min=1)", ["(loss / 4).backward()"])),
    "torch.sum": with_update(parts(f"torch.sum({TOKENS[:-6]}) / torch.sum(m)", ["(loss / 4).backward()"])),
    "selected by the mask": with_update(
        parts("(-torch.min(r * a, r.clamp(0.8, 1.2) * a))[m.bool()].mean()", ["(loss / 4).backward()"])
    ),
    "every fourth": with_update(every_fourth("(loss / 4).backward()")).replace(MEAN, TOKENS + " / m.sum()"),
    "accelerate": with_update(accelerated(TOKENS + " / m.sum()", "accelerator.backward(loss)"), ACCELERATE),
}


@pytest.mark.parametrize("form", OWN)
def test_a_part_that_is_divided_by_its_own_tokens_is_named(form, tmp_path):
    assert found(OWN[form], tmp_path) == {"LOSS03"}


def test_a_mini_batch_with_a_step_of_its_own_may_divide_by_its_own_tokens(tmp_path):
    lines = parts(TOKENS + " / m.sum()", ["optimizer.zero_grad()", "loss.backward()", "optimizer.step()"], after=())
    assert found(with_update(lines), tmp_path) == set()
