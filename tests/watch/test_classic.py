"""Six scripts with a small environment, as people write them, sound and broken: each fault is named first."""

import json

import pytest
from fixtures.cases import thorough
from watch.forms import SCRIPTS

STEPS = 8  # optimizer steps that are watched
SOUND = {  # script --> laws that were computed on its numbers and hold
    "pole.py": {"LAW01", "LAW03", "LAW04", "LAW05"},
    "grid_returns.py": {"LAW01", "LAW03", "LAW04", "LAW05"},
    "ppo_walk.py": {"LAW03", "LAW04", "LAW05"},
    "lake_critic.py": {"LAW04"},
    "contexts_numpy.py": {"LAW01", "LAW03", "LAW05"},
    "code_game.py": {"LAW03", "LAW05"},
}
BROKEN = {  # what is broken --> (script, the code that is named first, edits)
    "each action is paid for what came before it": (
        "pole.py",
        "LAW04",
        [("in policy.rewards[::-1]:", "in policy.rewards:"), ("returns.insert(0, R)", "returns.append(R)")],
    ),
    "returns stand in the opposite order": ("pole.py", "LAW04", [("returns.insert(0, R)", "returns.append(R)")]),
    "the own reward is left out": (
        "pole.py",
        "LAW04",
        [
            (
                "        R = r + GAMMA * R\n        returns.insert(0, R)",
                "        returns.insert(0, GAMMA * R)\n        R = r + GAMMA * R",
            )
        ],
    ),
    "returns go on over the ends of episodes": (
        "grid_returns.py",
        "LAW04",
        [
            ("            batch_weights += list(discount_cumsum(ep_rews, 0.97))\n", ""),
            (
                "    o = torch.as_tensor",
                "    batch_weights = list(discount_cumsum(batch_rews, 0.97))\n    o = torch.as_tensor",
            ),
        ],
    ),
    "actions are scored at the next state": (
        "grid_returns.py",
        "LAW03",
        [
            ("        batch_obs.append(obs.copy())\n", ""),
            ("batch_acts.append(act)\n", "batch_acts.append(act)\n        batch_obs.append(obs.copy())\n"),
        ],
    ),
    "GAE goes on over the ends of episodes": (
        "ppo_walk.py",
        "LAW04",
        [
            ("nextnonterminal = 1.0 - next_done", "nextnonterminal = 1.0"),
            ("nextnonterminal = 1.0 - dones[t + 1]", "nextnonterminal = 1.0"),
        ],
    ),
    "the entropy is punished": (
        "ppo_walk.py",
        "LOSS01",
        [("pg_loss - ent_coef * entropy_loss", "pg_loss + ent_coef * entropy_loss")],
    ),
    "advantages of other rows": (
        "ppo_walk.py",
        "ALGN10",
        [("b_advantages[mb_inds]", "b_advantages[np.random.permutation(len(b_inds))[:48]]")],
    ),
    "the policy's loss trains the critic": (
        "lake_critic.py",
        "LAW05",
        [("adv = returns - values.detach()", "adv = returns - values")],
    ),
    "returns of a critic's script go on over ends": (
        "lake_critic.py",
        "LAW04",
        [("0.95 * running * (0.0 if t.done else 1.0)", "0.95 * running")],
    ),
    "the reward never varies": (
        "contexts_numpy.py",
        "REW01",
        [("R = R.reshape(C, G)", "R = (R > 1e6).astype(float).reshape(C, G)")],
    ),
    "old is computed again in each epoch": (
        "contexts_numpy.py",
        "RAT02",
        [("ratio = torch.exp(logp - logp_old)", "ratio = torch.exp(logp - logp.detach())")],
    ),
    "the likeliest action is stored": (
        "code_game.py",
        "ALGN02",
        [("            acts.append(a)\n", "            acts.append(d.probs.argmax())\n")],
    ),
    "the ratio is turned around": (
        "code_game.py",
        "RAT04",
        [("torch.exp(new - old[rows])", "torch.exp(old[rows] - new)")],
    ),
}
QUICK = [name for number, name in enumerate(BROKEN) if number % 2 == 0]


def report_on(serve, tmp_path, script, edits=()):
    text = (SCRIPTS / script).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "script.py"
    path.write_text(text)
    done = serve(path, how="json", steps=STEPS)
    assert done["code"] == 0, done["words"]
    report = json.loads(done["text"])
    assert [note for note in report["notes"] if "fault of assay" in note] == []
    return report


@pytest.mark.parametrize("script", SOUND)
def test_a_sound_script_is_left_alone_and_its_laws_are_computed(serve, tmp_path, script):
    report = report_on(serve, tmp_path, script)
    assert [finding["message"] for finding in report["findings"] if finding["confidence"] != "possible"] == []
    assert SOUND[script] <= {one["code"] for one in report["passed"]}


@pytest.mark.parametrize("name", [*QUICK, *thorough(*(name for name in BROKEN if name not in QUICK))])
def test_a_fault_of_a_small_environment_is_named_first(serve, tmp_path, name):
    script, code, edits = BROKEN[name]
    report = report_on(serve, tmp_path, script, edits)
    assert [finding["code"] for finding in report["findings"]][:1] == [code]
    assert report["findings"][0]["confidence"] != "possible"
