"""MASK01 to MASK08 in the source: many ways to write the same fault, and neighbours that must stay silent."""

import pytest
from doctor.illnesses.read_script import codes_in, likely_codes_in

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples.scripts import GRPO, LOOP, WHOLE
from assay.programs.read.script import read_program

CODES = ("MASK01", "MASK02", "MASK03", "MASK04", "MASK06", "MASK07", "MASK08")
ENDS = "    ends = (ids[:, start:] == policy.config.eos_token_id).int()\n"
MASK = "    mask = (ends.cumsum(dim=1) - ends == 0).float()\n"
LOSS = "        loss = ((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)\n"
SHARED = "policy.config.pad_token_id = policy.config.eos_token_id\n"


def found(text, folder, codes=CODES):
    return codes_in(text, folder, codes)


def with_mask(lines, text=GRPO):
    assert text.count(ENDS + MASK) == 1
    indented = "".join(f"    {line}\n" for line in lines.strip().splitlines())
    return text.replace(ENDS + MASK, indented)


def with_loss(line, text=GRPO):
    assert text.count(LOSS) == 1
    return text.replace(LOSS, "".join(f"        {one}\n" for one in line.splitlines()))


INDEX = """out = ids[:, start:]
is_end = out == policy.config.eos_token_id
first = torch.full((is_end.size(0),), is_end.size(1), dtype=torch.long)
first[is_end.any(dim=1)] = is_end.int().argmax(dim=1)[is_end.any(dim=1)]
steps = torch.arange(is_end.size(1)).expand(is_end.size(0), -1)
mask = ({}).float()
"""
WITHOUT_THE_END = {
    "a count with the end in it": "out = ids[:, start:]\n"
    "mask = ((out == policy.config.eos_token_id).cumsum(1) == 0).float()",
    "below one": "out = ids[:, start:]\nmask = ((out == policy.config.eos_token_id).int().cumsum(-1) < 1).float()",
    "inverted": "out = ids[:, start:]\nmask = (~(out == policy.config.eos_token_id).cumsum(1).bool()).float()",
    "one minus": "out = ids[:, start:]\nmask = 1 - (out == policy.config.eos_token_id).int().cumsum(1).clamp(max=1)",
    "a running product": "out = ids[:, start:]\n"
    "mask = (out != policy.config.eos_token_id).int().cumprod(dim=1).float()",
    "strictly before the index": INDEX.format("steps < first.unsqueeze(1)"),
    "at most the index before": INDEX.format("steps <= first[:, None] - 1"),
    "the index is greater": INDEX.format("first.unsqueeze(1) > steps"),
    "by value": "mask = (ids[:, start:] != policy.config.eos_token_id).float()",
    "a field of the tokenizer": "tokenizer = policy\nout = ids[:, start:]\n"
    "mask = (out.ne(tokenizer.eos_token_id)).cumprod(1)",
    "filled in place": "out = ids[:, start:]\nmask = torch.ones_like(out)\n"
    "mask[(out == policy.config.eos_token_id).cumsum(1) > 0] = 0",
    "masked fill": "out = ids[:, start:]\ngone = (out == policy.config.eos_token_id).cumsum(1).bool()\n"
    "mask = torch.ones_like(out).masked_fill(gone, 0).float()",
    "where": "out = ids[:, start:]\ngone = (out == policy.config.eos_token_id).cumsum(1) >= 1\n"
    "mask = torch.where(gone, 0.0, 1.0)",
    "through a function": "def kept(tokens, stop_id):\n    return (tokens == stop_id).cumsum(1) == 0\n"
    "mask = kept(ids[:, start:], policy.config.eos_token_id).float()",
}
WITH_THE_END = {
    "the count minus itself": "ends = (ids[:, start:] == policy.config.eos_token_id).int()\n"
    "mask = ((ends.cumsum(1) - ends) == 0).float()",
    "a padded count": "import torch.nn.functional as F\n"
    "count = (ids[:, start:] == policy.config.eos_token_id).int().cumsum(1)\n"
    "mask = (F.pad(count, (1, 0))[:, :-1] == 0).float()",
    "a count cut and joined": "hit = (ids[:, start:] == policy.config.eos_token_id).int()\n"
    "before = torch.cat([torch.zeros_like(hit[:, :1]), hit.cumsum(1)[:, :-1]], dim=1)\nmask = (before == 0).float()",
    "up to the index": INDEX.format("steps <= first.unsqueeze(1)"),
    "below the index plus one": INDEX.format("steps < first.unsqueeze(1) + 1"),
    "a rolled product": "out = ids[:, start:]\nalive = (out != policy.config.eos_token_id).int().cumprod(1)\n"
    "mask = torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], dim=1).float()",
    "none before, or this is it": "hit = ids[:, start:] == policy.config.eos_token_id\ncount = hit.cumsum(1)\n"
    "mask = ((count == 0) | ((count == 1) & hit)).float()",
    "a count of two without one": "hit = (ids[:, start:] == policy.config.eos_token_id).int()\n"
    "mask = (hit.cumsum(1).cumsum(1) <= 1).float()",
    "by value where padding has its own id": "mask = (ids[:, start:] != policy.config.pad_token_id).float()",
}


@pytest.mark.parametrize("form", WITHOUT_THE_END)
def test_a_mask_without_the_end_token_is_found(form, tmp_path):
    codes = found(with_mask(WITHOUT_THE_END[form]), tmp_path)
    assert "MASK01" in codes
    assert codes <= {"MASK01", "MASK02", "MASK06"}


@pytest.mark.parametrize("form", WITH_THE_END)
def test_a_mask_with_the_end_token_is_not(form, tmp_path):
    assert not found(with_mask(WITH_THE_END[form]), tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        "mask = (ids[:, start:] != policy.config.pad_token_id).float()",
        "mask = ids[:, start:].ne(policy.config.pad_token_id).float()",
        "out = ids[:, start:]\nmask = torch.ones_like(out)\nmask[out == policy.config.pad_token_id] = 0",
    ],
)
def test_a_mask_by_value_is_found_only_where_padding_is_the_end_token(lines, tmp_path):
    text = with_mask(lines)
    assert not found(text, tmp_path)
    assert found(text.replace("optimizer =", SHARED + "optimizer =", 1), tmp_path) == {"MASK01"}


def test_a_padding_token_that_may_be_the_end_token_is_merely_possible(tmp_path):
    text = with_mask("mask = (ids[:, start:] != policy.config.pad_token_id).float()").replace(
        "optimizer =", "if policy.config.pad_token_id is None:\n    " + SHARED + "optimizer =", 1
    )
    path = tmp_path / "script.py"
    path.write_text(text)
    (word,) = diagnose(Evidence(programs=(read_program(path),)), [by_code("MASK01")]).findings
    assert word.confidence == "possible"
    assert len(word.verdict.places) == 2, "where the mask is, and where padding becomes the end token"


AFTER_THE_END = {
    "ones": "mask = torch.ones_like(ids[:, start:]).float()",
    "ones of a size": "out = ids[:, start:]\nmask = torch.ones(out.shape)",
    "a comparison that always holds": "out = ids[:, start:]\n"
    "mask = (torch.arange(out.size(1)).expand(out.size(0), -1) >= 0).float()",
    "tokens are never negative": "mask = (ids[:, start:] >= 0).float()",
    "another fill than the one that is tested": "mask = (ids[:, start:] != -1).float()",
}


@pytest.mark.parametrize("form", AFTER_THE_END)
def test_a_mask_that_goes_on_after_the_end_is_found(form, tmp_path):
    assert found(with_mask(AFTER_THE_END[form]), tmp_path) == {"MASK02"}


def test_ones_are_right_where_rows_never_end(tmp_path):
    text = LOOP.replace(
        "loss = -(logprobs * advantages).mean()", "loss = -(logprobs * advantages * torch.ones_like(logprobs)).mean()"
    )
    assert text != LOOP
    assert not found(text, tmp_path)


STEPS = """
import torch
from task import Net, prompts_of, rewards_of
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
EOS, PAD = 2, 0

def sample(ids):
    done = torch.zeros(len(ids), dtype=torch.bool)
    masks = []
    start = ids.shape[1]
    for _ in range(16):
        token = torch.multinomial(net(ids)[:, -1].softmax(-1), 1).squeeze(1)
        token = torch.where(done, torch.full_like(token, PAD), token)
        masks.append(~done)
        done = done | (token == EOS)
        ids = torch.cat([ids, token[:, None]], dim=1)
    return ids, ids[:, start:], torch.stack(masks, dim=1).float()

for step in range(10):
    prompts = prompts_of(step).repeat_interleave(8, 0)
    ids, out, mask = sample(prompts)
    r = rewards_of(out).view(-1, 8)
    advantages = (r - r.mean(1, keepdim=True)).view(-1, 1)
    logits = net(ids)[:, prompts.shape[1] - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, out.unsqueeze(-1)).squeeze(-1)
    loss = -(logp * advantages * mask).sum() / mask.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
APPEND = "        masks.append(~done)\n        done = done | (token == EOS)\n"


def test_flags_of_a_sampling_loop_are_followed(tmp_path):
    assert STEPS.count(APPEND) == 1
    assert not found(STEPS, tmp_path)
    late = "        done = done | (token == EOS)\n        masks.append(~done)\n"
    assert "MASK01" in found(STEPS.replace(APPEND, late), tmp_path)
    ones = APPEND.replace("~done)", "torch.ones_like(done))")
    assert found(STEPS.replace(APPEND, ones), tmp_path) == {"MASK02"}


LISTS = """
import torch
from task import Net, prompts_of, reward_of
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
EOS, PAD = 2, 0

def complete(prompt):
    ids = []
    for _ in range(16):
        token = int(torch.multinomial(net(torch.tensor([prompt + ids]))[0, -1].softmax(-1), 1))
        ids.append(token)
        if token == EOS:
            break
    return ids

for step in range(10):
    samples = [(prompt, complete(prompt)) for prompt in prompts_of(step) for _ in range(8)]
    width = max(len(p) + len(c) for p, c in samples)
    rows = [p + c + [PAD] * (width - len(p) - len(c)) for p, c in samples]
    kept = [[0] * len(p) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c in samples]
    ids, mask = torch.tensor(rows), torch.tensor(kept)[:, 1:].float()
    r = torch.tensor([reward_of(p, c) for p, c in samples]).view(-1, 8)
    advantages = (r - r.mean(1, keepdim=True)).view(-1, 1)
    logp = net(ids)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    loss = -(logp * advantages * mask).sum() / mask.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("[[0] * len(p) + [1]", "[[1] * len(p) + [1]", "MASK03"),
        ("+ [0] * (width - len(p) - len(c)) for", "+ [1] * (width - len(p) - len(c)) for", "MASK02"),
        ("[1] * len(c) + [0] * (w", "[1] * (len(c) - 1) + [0] + [0] * (w", "MASK01"),
        ("[1] * len(c) + [0]", "[int(t != EOS) for t in c] + [0]", "MASK01"),
    ],
)
def test_masks_that_are_built_as_lists_are_followed(old, new, code, tmp_path):
    assert not found(LISTS, tmp_path)
    assert LISTS.count(old) == 1
    assert code in found(LISTS.replace(old, new), tmp_path)


def test_a_prompt_in_the_mask_is_found(tmp_path):
    assert not found(WHOLE, tmp_path)
    assert found(WHOLE.replace("zeros_like(prompts)", "ones_like(prompts)"), tmp_path) == {"MASK03"}
    padding = "mask = (ids != policy.config.pad_token_id)[:, 1:].float()\n"
    lines = WHOLE[WHOLE.index("    ends = ") : WHOLE.index("    rewards = ")]
    assert found(WHOLE.replace(lines, "    " + padding), tmp_path) == {"MASK03"}
    cut = padding + "    mask[:, : start - 1] = 0\n"
    assert not found(WHOLE.replace(lines, "    " + cut), tmp_path)


OVER_THE_WIDTH = {
    "a plain mean": "loss = ((-gain + 0.04 * kl) * mask).mean()",
    "a mean of each row": "loss = ((-gain + 0.04 * kl) * mask).mean(dim=1).mean()",
    "torch.mean": "loss = torch.mean((-gain + 0.04 * kl) * mask)",
    "all elements": "loss = ((-gain + 0.04 * kl) * mask).sum() / mask.numel()",
    "the width": "loss = (((-gain + 0.04 * kl) * mask).sum(1) / mask.shape[1]).mean()",
    "the size": "loss = (((-gain + 0.04 * kl) * mask).sum(-1) / mask.size(1)).mean()",
}
OVER_TOKENS = {
    "a mean of each row's tokens": "loss = (((-gain + 0.04 * kl) * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()",
    "a constant": "loss = ((-gain + 0.04 * kl) * mask).sum() / (ids.shape[0] * 64)",
    "the rows": "loss = ((-gain + 0.04 * kl) * mask).sum() / mask.shape[0]",
    "picked tokens": "loss = (-gain + 0.04 * kl)[mask.bool()].mean()",
    "selected tokens": "loss = torch.masked_select(-gain + 0.04 * kl, mask.bool()).mean()",
    "a ratio of whole sequences": "logs = ((new - old) * mask).sum(1) / mask.sum(1).clamp(min=1)\n"
    "ratio = torch.exp(logs)\nrow = advantages.view(-1)\n"
    "loss = -torch.min(ratio * row, ratio.clamp(0.8, 1.2) * row).mean()",
}


@pytest.mark.parametrize("form", OVER_THE_WIDTH)
def test_a_mean_over_padding_is_found(form, tmp_path):
    assert "MASK04" in found(with_loss(OVER_THE_WIDTH[form]), tmp_path)


@pytest.mark.parametrize("form", OVER_TOKENS)
def test_a_mean_over_tokens_is_not(form, tmp_path):
    assert not found(with_loss(OVER_TOKENS[form]), tmp_path, ("MASK04", "MASK02", "MASK06"))


BY_ROW = "loss = (((-gain + 0.04 * kl) * mask).sum(1) / {}).mean()"
DROPPED = GRPO.replace("mask = (ends", "mask = ends.any(dim=1, keepdim=True) * (ends")


@pytest.mark.parametrize("count", ["mask.sum(1)", "mask.sum(dim=-1)", "torch.sum(mask, dim=1)", "mask.sum(1).float()"])
def test_a_row_without_tokens_is_divided_by(count, tmp_path):
    assert found(with_loss(BY_ROW.format(count), DROPPED), tmp_path) == {"MASK06"}
    assert not found(with_loss(BY_ROW.format(count)), tmp_path), "a mask with the first end token is never empty"


@pytest.mark.parametrize(
    "count",
    [
        "mask.sum(1).clamp(min=1)",
        "torch.clamp(mask.sum(1), min=1)",
        "(mask.sum(1) + 1e-8)",
        "torch.maximum(mask.sum(1), torch.tensor(1.0))",
        "mask.sum(1).clamp_min(1.0)",
    ],
)
def test_a_floor_below_the_count_is_enough(count, tmp_path):
    assert not found(with_loss(BY_ROW.format(count), DROPPED), tmp_path)


UNMASKED = [
    "kl.mean()",
    "torch.mean(kl).item()",
    "ratio.mean()",
    "(new - old).mean().item()",
    "((ratio - 1).abs() > 0.2).float().mean()",
    "new.detach().mean()",
    "kl.std()",
]


@pytest.mark.parametrize("statistic", UNMASKED)
def test_a_statistic_over_padding_is_found(statistic, tmp_path):
    assert found(GRPO + f"    print({statistic})\n", tmp_path) == {"MASK07"}


@pytest.mark.parametrize(
    "shown", ["print({})", "log = {{'kl': {}}}", "history.append({}.item())", "print(f'kl {{{}}}')"]
)
def test_a_statistic_over_padding_that_is_only_shown_is_a_note(shown, tmp_path):
    text = GRPO.replace("for step in range(100):", "history = []\nfor step in range(100):")
    text += f"        {shown.format('kl.mean()')}\n"
    assert found(text, tmp_path) == {"MASK07"}
    assert likely_codes_in(text, tmp_path, CODES) == set()


@pytest.mark.parametrize(
    "term",
    ["0.01 * kl.mean()", "0.1 * (new - old).mean()", "(ratio - ratio.mean()).square().sum()", "new.mean() * 1e-3"],
)
def test_a_statistic_over_padding_that_the_loss_is_made_of_is_more_than_a_note(term, tmp_path):
    text = GRPO.replace(
        "        optimizer.zero_grad()\n", f"        loss = loss + {term}\n        optimizer.zero_grad()\n"
    )
    assert likely_codes_in(text, tmp_path, CODES) & {"MASK07", "MASK04"}


@pytest.mark.parametrize(
    "statistic",
    [
        "(kl * mask).sum() / mask.sum()",
        "kl[mask.bool()].mean()",
        "rewards.mean().item()",
        "advantages.std()",
        "((new - old) * mask).sum(1).mean()",
        "mask.sum(1).mean()",
        "loss.mean()",
        "(((ratio - 1).abs() > 0.2).float() * mask).sum() / mask.sum()",
    ],
)
def test_a_statistic_under_the_mask_or_of_rows_is_not(statistic, tmp_path):
    assert not found(GRPO + f"    print({statistic})\n", tmp_path)


BANS = [
    "logits[..., model.config.pad_token_id] = float('-inf')",
    "logits[:, :, model.config.pad_token_id] = -torch.inf",
    "logits[..., model.config.pad_token_id] = -float('inf')",
    "logits = logits.index_fill(-1, torch.tensor([model.config.pad_token_id]), float('-inf'))",
]


@pytest.mark.parametrize("ban", BANS)
def test_padding_with_probability_0_under_a_mask_is_found(ban, tmp_path):
    text = GRPO.replace("    return torch.log", f"    {ban}\n    return torch.log")
    assert found(text, tmp_path) == {"MASK08"}
    filled = with_loss("loss = (-gain + 0.04 * kl).masked_fill(mask == 0, 0.0).sum() / mask.sum().clamp(min=1)", text)
    assert "MASK08" not in found(filled, tmp_path)


def test_other_tokens_may_be_banned(tmp_path):
    for line in ("logits[..., 50000:] = float('-inf')", "logits[..., 7] = float('-inf')", "logits[..., 0] = -1e4"):
        assert not found(GRPO.replace("    return torch.log", f"    {line}\n    return torch.log"), tmp_path)


def test_several_rows_of_one_call_without_any_mask_are_found(tmp_path):
    rows = GRPO.replace("top_p=1.0,", "top_p=1.0, num_return_sequences=8,").replace(".repeat_interleave(8, dim=0)", "")
    bare = with_loss("loss = (-gain + 0.04 * kl).mean()", rows)
    assert found(bare, tmp_path) == {"MASK02"}
    assert not found(bare.replace("num_return_sequences=8", "num_return_sequences=1"), tmp_path)
    assert not found(with_loss("loss = (-gain + 0.04 * kl)[mask.bool()].mean()", rows), tmp_path)
