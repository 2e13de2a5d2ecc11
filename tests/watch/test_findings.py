"""Faults that are planted in a healthy script are proven on its real tensors; the healthy script is left alone."""

import json

import pytest
from watch.running import LETTERS, planted, run_watched


def codes(report):
    return {finding["code"]: finding["confidence"] for finding in report["findings"]}


def report_on(serve, script):
    done = serve(script, "3", how="json")
    assert done["code"] == 0
    return json.loads(done["text"])


def beyond_notes(report):
    """Findings, except that all steps have the same prompts: of this script it is true, and only possible."""
    note = ("LAW11", "possible")
    return [word for word in report["findings"] if (word["code"], word["confidence"]) != note]


def test_a_healthy_script_has_no_findings_and_much_was_looked_at(serve):
    report = report_on(serve, LETTERS)
    assert beyond_notes(report) == []
    assert report["crashed"] == []
    assert {"RAT01", "RAT04", "SAMP01", "ALGN02", "ADV01", "ADV05", "MASK02", "OPT02"} <= {
        one["code"] for one in report["passed"]
    }


PLANTS = {
    "SAMP01": [("logits / TEMPERATURE, dim=-1)\n    return scores", "logits, dim=-1)\n    return scores")],
    "RAT04": [("torch.exp(new - old)", "torch.exp(old - new)")],
    "LOSS01": [("loss = -((gain", "loss = ((gain")],
    "RAT02": [("            ratio = ", "            old = new.detach()\n            ratio = ")],
    "MASK02": [("((ended - (completions == END).long()) == 0).float()", "torch.ones(completions.shape)")],
    "ADV02": [(".repeat_interleave(GROUP)[:, None]", ".repeat(GROUP)[:, None]")],
    "OPT02": [("Adam(model.parameters()", "Adam(model.head.parameters()")],
}


@pytest.mark.parametrize("code", PLANTS)
def test_a_planted_fault_is_proven(serve, tmp_path, code):
    report = report_on(serve, planted(tmp_path, *PLANTS[code]))
    assert codes(report).get(code) == "proven"


MIN = "torch.min(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])"
# the same loop, written in another way: every tensor is still recognised, and nobody is accused
ALIKE = {
    "a bonus of bare log-probs": [("((gain * mask)", "(((gain - 0.01 * new) * mask)")],
    "a difference of scaled log-probs": [("((gain * mask)", "(((gain - (0.02 * new - 0.02 * old)) * mask)")],
    "a bonus of log-probs taken out again": [
        (
            "new = logprobs_of(model, prompts, completions)",
            "new, bare = logprobs_of(model, prompts, completions, True)",
        ),
        ("prompts, completions):", "prompts, completions, twice=False):"),
        (
            "    return scores.gather",
            "    if twice:\n        ids = completions.unsqueeze(2)\n"
            "        return scores.gather(2, ids).squeeze(2), scores.gather(2, ids).squeeze(2)\n"
            "    return scores.gather",
        ),
        ("((gain * mask)", "(((gain - 0.01 * bare) * mask)"),
    ],
    "advantages indexed twice": [
        ("for _ in range(UPDATES):", "for rows in [torch.arange(len(prompts))] * UPDATES:"),
        (MIN, MIN.replace("[:, None]", "[rows][:, None]")),
    ],
}


@pytest.mark.parametrize("form", ALIKE)
def test_a_sound_loop_that_is_written_in_another_way_is_seen_whole_and_left_alone(serve, tmp_path, form):
    script = planted(tmp_path, *ALIKE[form])
    report = report_on(serve, script)
    assert beyond_notes(report) == []
    assert {"RAT01", "SAMP01", "ADV01", "ALGN02"} <= {one["code"] for one in report["passed"]}
    assert "drifting later: by design" in serve(script, "3")["text"]


def test_an_optimizer_that_does_not_hold_the_policy_is_told_once(serve, tmp_path):
    report = report_on(serve, planted(tmp_path, ("Adam(model.parameters()", "Adam(Model().parameters()")))
    assert codes(report).get("OPT02") == "proven"
    assert [note for note in report["notes"] if "update" in note or "optimizer step" in note] == [
        "6 optimizer steps were observed, but none of them could be read as a step of the model whose log-probs are in "
        "the loss"
    ]


def test_the_ratio_is_printed_by_update_and_explained(serve):
    text = serve(LETTERS, "3")["text"]
    assert "1.0 on the first update of each rollout batch, drifting later: by design" in text
    assert "      3      2 " in text
    assert "most often missing: entropy (1), forced (1)" in text


def test_fail_on_turns_a_finding_into_exit_code_1(tmp_path):
    script = planted(tmp_path, *PLANTS["RAT04"])
    assert run_watched(script, "2", fail_on="error").returncode == 1


def test_the_first_number_that_is_not_finite_is_named_by_its_line(serve, tmp_path):
    edit = ("ratio = torch.exp(new - old)", "ratio = torch.exp(new - old) / (mask - mask)")
    report = json.loads(serve(planted(tmp_path, edit), "3", how="json")["text"])
    line = LETTERS.read_text().splitlines().index("            ratio = torch.exp(new - old)") + 1
    assert any(f"script.py:{line}" in note and "not finite" in note for note in report["notes"])
