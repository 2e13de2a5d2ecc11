"""Advantages with one number per token: whitened within their row, or all together."""

import pytest
from doctor.illnesses.read_script import codes_in
from doctor.illnesses.small_trainer import CREDIT, trainer

GROUPED = CREDIT.replace("\n    ", "\n").strip() + "\n"
BY_TOKEN = (
    "ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None]",
    "ratio * adv, ratio.clamp(0.8, 1.2) * adv",
)
DECAY = "T = completions.shape[1]\ndecay = 0.95 ** torch.arange(T - 1, -1, -1).float()\n"
SICK = {
    "expand": "adv = adv[:, None].expand(-1, completions.shape[1])\n"
    "adv = (adv - adv.mean(1, keepdim=True)) / (adv.std(1, keepdim=True) + 1e-8)",
    "decay": DECAY
    + "adv = adv[:, None] * decay\nadv = (adv - adv.mean(1, keepdim=True)) / (adv.std(1, keepdim=True) + 1e-8)",
    "decay dim -1": DECAY
    + (
        "adv = adv[:, None] * decay[None, :]\n"
        "adv = (adv - adv.mean(dim=-1, keepdim=True)) / (adv.std(dim=-1, keepdim=True) + 1e-8)"
    ),
    "masked": DECAY
    + (
        "adv = adv[:, None] * decay * mask\n"
        "m = (adv * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)\n"
        "v = ((adv - m) ** 2 * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)\n"
        "adv = (adv - m) / (v + 1e-8).sqrt()"
    ),
    "loop": DECAY
    + (
        "adv = adv[:, None] * decay\nfor i in range(len(adv)):\n    inside = adv[i][mask[i].bool()]\n"
        "    adv[i] = (adv[i] - inside.mean()) / (inside.std() + 1e-8)"
    ),
    "loop list": DECAY
    + (
        "rows = []\nfor row, m in zip(adv[:, None] * decay, mask):\n    inside = row[m.bool()]\n"
        "    rows.append((row - inside.mean()) / (inside.std() + 1e-8))\nadv = torch.stack(rows)"
    ),
    "rtg": "tok = torch.zeros_like(mask)\n"
    "tok[torch.arange(len(tok)), mask.sum(1).long() - 1] = rewards\n"
    "rtg = tok.flip(1).cumsum(1).flip(1)\n"
    "adv = (rtg - rtg.mean(1, keepdim=True)) / (rtg.std(1, keepdim=True) + 1e-8)",
    "function": DECAY
    + (
        "def whiten(x, dim):\n"
        "    return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True) + 1e-8)\n"
        "adv = whiten(adv[:, None] * decay, 1)"
    ),
    "centre only": DECAY + "adv = adv[:, None] * decay\nadv = adv - adv.mean(1, keepdim=True)",
}
WELL = {
    "expand": "adv = adv[:, None].expand(-1, completions.shape[1])",
    "decay": DECAY + "adv = adv[:, None] * decay",
    "batch": DECAY + "adv = adv[:, None] * decay\nadv = (adv - adv.mean()) / (adv.std() + 1e-8)",
    "masked batch": DECAY
    + (
        "adv = adv[:, None] * decay * mask\nm = (adv * mask).sum() / mask.sum()\n"
        "v = ((adv - m) ** 2 * mask).sum() / mask.sum()\nadv = (adv - m) / (v + 1e-8).sqrt()"
    ),
    "masked select": DECAY
    + "adv = adv[:, None] * decay\ninside = adv[mask.bool()]\nadv = (adv - inside.mean()) / (inside.std() + 1e-8)",
    "across rows": DECAY
    + "adv = adv[:, None] * decay\nadv = (adv - adv.mean(0, keepdim=True)) / (adv.std(0, keepdim=True) + 1e-8)",
    "rtg": "tok = torch.zeros_like(mask)\n"
    "tok[torch.arange(len(tok)), mask.sum(1).long() - 1] = rewards\n"
    "rtg = tok.flip(1).cumsum(1).flip(1)\nadv = (rtg - rtg.mean()) / (rtg.std() + 1e-8)",
    "function": DECAY
    + "def whiten(x):\n    return (x - x.mean()) / (x.std() + 1e-8)\nadv = whiten(adv[:, None] * decay)",
    "loop groups": "adv = torch.zeros_like(rewards)\nfor i in range(P):\n"
    "    own = rewards[i * G:(i + 1) * G]\n"
    "    adv[i * G:(i + 1) * G] = (own - own.mean()) / (own.std() + 1e-8)\nadv = adv[:, None]",
    "per row loss": DECAY + "adv = adv[:, None] * decay\nprint(adv.mean(1), adv.std(1))",
}


@pytest.mark.parametrize("form", SICK)
def test_tokens_that_are_whitened_within_their_row_are_named(form, tmp_path):
    assert codes_in(trainer(GROUPED + SICK[form], None, None, BY_TOKEN), tmp_path, ("ADV06",)) == {"ADV06"}


@pytest.mark.parametrize("form", WELL)
def test_tokens_that_keep_the_level_of_their_row_are_silent(form, tmp_path):
    assert codes_in(trainer(GROUPED + WELL[form], None, None, BY_TOKEN), tmp_path, ("ADV06",)) == set()
