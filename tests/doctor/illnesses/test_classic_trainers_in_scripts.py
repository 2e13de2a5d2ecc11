"""Trainers of small policies over a few actions: log-probs of the rollout are old, and nothing is said of tokens."""

import pytest
from doctor.illnesses.classic_trainers import AGENT, BANDIT, PPO, TRAJECTORIES, WALK
from doctor.illnesses.read_script import edit_script

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.programs.read.script import read_program
from assay.verdict import State

OF_TEXT = [illness for illness in catalogue() if illness.source is not None]
OF_TOKENS = ("MASK01", "MASK02", "MASK03", "MASK04", "MASK06", "MASK07", "MASK08", "ALGN05", "ALGN07", "ALGN08", "KL05")
LOSS = "        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()\n"
RATIO = "        ratio = torch.exp(logp - old_logp)\n"
AGAIN = "F.log_softmax(policy(ctx), -1).gather(1, actions).squeeze(1)\n"
STORED = 'traj["log_probs"].append(logp[action].detach())'
OLD_OF_TRAJECTORY = '            old = torch.stack(t["log_probs"])\n'
SCORED = "            logps = Categorical(logits=policy(states)).log_prob(actions)\n"
OLD_KL = "        kl = torch.exp(old_logp - logp) - (old_logp - logp) - 1\n"
WALK_RATIO = "            ratio = torch.exp(logps - old_logps)\n"

SOUND = {
    "episodes of a group": WALK,
    "a buffer and mini-batches": PPO,
    "a bandit": BANDIT,
    "an agent with a memory": AGENT,
    "trajectories in dictionaries": TRAJECTORIES,
    "numbers in place of tensors": edit_script(
        TRAJECTORIES,
        (STORED, 'traj["log_probs"].append(logp[action].item())'),
        (OLD_OF_TRAJECTORY, '            old = torch.tensor(t["log_probs"])\n'),
    ),
    "a KL to the last policy": edit_script(BANDIT, (LOSS, f"{OLD_KL}{LOSS}        loss = loss + 0.1 * kl.mean()\n")),
    "a KL to the last policy, without a ratio": edit_script(
        BANDIT, (RATIO, OLD_KL), (LOSS, "        loss = -(logp * adv).mean() + 0.1 * kl.mean()\n")
    ),
    "a KL that stops the updates": edit_script(
        BANDIT, (LOSS, f"{LOSS}        if (old_logp - logp).mean().item() > 0.05:\n            break\n")
    ),
    "one update, log-probs alone": edit_script(
        BANDIT, (RATIO, ""), (LOSS, "        loss = -(logp * adv).mean()\n"), ("range(MINI_EPOCHS)", "range(1)")
    ),
    "a reference of its own": edit_script(
        WALK,
        (
            "env, policy = Walk(), Policy()\n",
            "import copy\nenv, policy = Walk(), Policy()\nref = copy.deepcopy(policy)\n",
        ),
        (
            WALK_RATIO,
            f"{WALK_RATIO}            with torch.no_grad():\n"
            "                ref_logps = Categorical(logits=ref(states)).log_prob(actions)\n"
            "            kl = torch.exp(ref_logps - logps) - (ref_logps - logps) - 1\n",
        ),
        (").mean()\n        loss = loss / GROUP", ").mean() + 0.04 * kl.mean()\n        loss = loss / GROUP"),
    ),
}
FAULTY = {
    "old computed again": (
        "RAT02",
        edit_script(BANDIT, (RATIO, f"        with torch.no_grad():\n            old_logp = {AGAIN}{RATIO}")),
    ),
    "old is its own copy": (
        "RAT02",
        edit_script(BANDIT, ("torch.exp(logp - old_logp)", "torch.exp(logp - logp.detach())")),
    ),
    "old of a trajectory computed again": (
        "RAT02",
        edit_script(
            TRAJECTORIES,
            (
                OLD_OF_TRAJECTORY,
                "            with torch.no_grad():\n"
                "                old = policy(states)[torch.arange(len(actions)), actions]\n",
            ),
        ),
    ),
    "old of an episode computed again": (
        "RAT02",
        edit_script(
            WALK,
            (
                WALK_RATIO,
                "            with torch.no_grad():\n"
                f"                old_logps = {SCORED.strip().removeprefix('logps = ')}\n{WALK_RATIO}",
            ),
        ),
    ),
    "a reference that is the policy": (
        "KL05",
        edit_script(
            BANDIT,
            (
                LOSS,
                f"        with torch.no_grad():\n            ref_logp = {AGAIN}"
                f"{OLD_KL.replace('old_logp', 'ref_logp')}{LOSS}        loss = loss + 0.1 * kl.mean()\n",
            ),
        ),
    ),
    "the ratio upside down": ("RAT04", edit_script(AGENT, ("logprobs - old_logprobs)", "old_logprobs - logprobs)"))),
    "the sign of the loss": ("LOSS01", edit_script(PPO, ("pg = -torch.min", "pg = torch.min"))),
    "a mean over contexts": (
        "ADV01",
        edit_script(BANDIT, ("grouped.mean(1, keepdim=True)", "grouped.mean(0, keepdim=True)")),
    ),
    "no exp": ("RAT08", edit_script(WALK, ("torch.exp(logps - old_logps)", "logps - old_logps"))),
}


def read(text, folder):
    path = folder / "script.py"
    path.write_text(text)
    return diagnose(Evidence(programs=(read_program(path),)), OF_TEXT)


@pytest.mark.parametrize("form", SOUND)
def test_a_sound_trainer_of_actions_has_no_finding(form, tmp_path):
    assert [(word.code, word.verdict.message) for word in read(SOUND[form], tmp_path).findings] == []


@pytest.mark.parametrize("form", FAULTY)
def test_a_fault_of_a_trainer_of_actions_is_named_first(form, tmp_path):
    code, text = FAULTY[form]
    assert [word.code for word in read(text, tmp_path).findings][:1] == [code]


@pytest.mark.parametrize(
    "text", [WALK, PPO, BANDIT, AGENT, TRAJECTORIES], ids=["walk", "ppo", "bandit", "agent", "lists"]
)
def test_nothing_is_said_of_masks_and_references_where_there_are_none(text, tmp_path):
    words = {word.code: word.verdict.state for word in read(text, tmp_path).words}
    assert {words[code] for code in OF_TOKENS} == {State.NOT_APPLICABLE}
