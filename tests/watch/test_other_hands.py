"""Language models that are not called as modules: functions over layers, loops over a cell; sound forms and faults."""

import json

import pytest
from fixtures.cases import thorough
from watch.forms import SCRIPTS

SCORE = "logits_of(parts, ids[:, :-1])[:, GIVEN - 1 :]"
STEP = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
BY_GRAD = (
    "        gradients = torch.autograd.grad(loss, list(learner.parameters()))\n"
    "        for parameter, gradient in zip(learner.parameters(), gradients, strict=True):\n"
    "            parameter.grad = gradient\n"
    "        optimizer.step()\n"
)
DRAW = "torch.multinomial(writer.head(state).softmax(-1), 1).squeeze(1)"
GUMBEL = "(writer.head(state) - torch.log(-torch.log(torch.rand(len(topics), LETTERS)))).argmax(dim=1)"
SYNC = "    worker.load_state_dict(learner.state_dict())\n"

SOUND = {
    "layers: as it is": ("layers.py", []),
    "layers: gradients by torch.autograd.grad": ("layers.py", [(STEP, BY_GRAD)]),
    "layers: ids that were a list": ("layers.py", [("ids = answers(", "ids = torch.tensor(answers("),
                                                   ("(worker, asked)", "(worker, asked).tolist())")]),
    "layers: hot on both sides": ("layers.py", [("(worker, asked)", "(worker, asked, 1.4)"),
                                                (f"{SCORE}.log", f"({SCORE} / 1.4).log")]),
    "layers: cross-entropy": (
        "layers.py",
        [("    table = logits_of", "    logits = logits_of"), (".log_softmax(-1)", ""),
         ("table.gather(-1, ids[:, GIVEN:, None])[..., 0]",
          "-nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, GIVEN:], reduction='none')")],
    ),
    "layers: chosen log-probs, picked again by position": (
        "layers.py",
        [("None])[..., 0]", "None])[..., 0].gather(1, torch.arange(ids.shape[1] - GIVEN).expand(len(ids), -1))")],
    ),
    "layers: the learner itself samples": ("layers.py", [("(worker, asked)", "(learner, asked)")]),
    "cells: as it is": ("cells.py", []),
    "cells: one weight of advantage and mask": (
        "cells.py", [("(advantages * new * weights).sum(1).mean()", "(new * (advantages * weights)).sum(1).mean()")],
    ),
    "cells: draws by Gumbel's noise": ("cells.py", [(DRAW, GUMBEL)]),
    "cells: a mean over all tokens": (
        "cells.py", [("(advantages * new * weights).sum(1).mean()", "(advantages * new * live / live.sum()).sum()")],
    ),
}  # fmt: skip
FAULTS = {
    "layers: the worker keeps its first weights": (
        "layers.py", {"SYNC01", "RAT05", "LAW09"}, [(SYNC, "    pass\n")],
    ),
    "layers: cool draws, plain scores": ("layers.py", {"SAMP01"}, [("(worker, asked)", "(worker, asked, 0.6)")]),
    "layers: groups across prompts": (
        "layers.py", {"ADV01", "ADV02", "LAW04"},
        [("table.mean(1", "table.mean(0"), ("table.std(1", "table.std(0")],
    ),
    "layers: scores one place too early": (
        "layers.py", {"ALGN01", "LAW03", "LAW01", "SAMP06"},
        [(f"{SCORE}.log", "logits_of(parts, ids)[:, GIVEN:].log")],
    ),
    "layers: uphill": ("layers.py", {"LOSS01", "LAW05"}, [("loss = -torch.min", "loss = torch.min")]),
    "layers: the larger of both": ("layers.py", {"CLIP02", "LAW05"}, [("-torch.min", "-torch.max")]),
    "layers: a rate of 0": ("layers.py", {"OPT02", "LAW07", "HYP01", "OPT01"}, [("lr=2e-3", "lr=0.0")]),
    "layers: old is new": ("layers.py", {"RAT02"}, [("(new - old)", "(new - new.detach())")]),
    "layers: the last token is overwritten": (
        "layers.py", {"ALGN02", "LAW02"}, [("    wanted =", "    ids[:, -1] = ids[:, -2]\n    wanted =")],
    ),
    "layers: one prompt for all": (
        "layers.py", {"LAW11"},
        [("torch.randint(0, LETTERS, (PROMPTS, GIVEN))", "torch.tensor([[1, 2, 3]]).expand(PROMPTS, -1)")],
    ),
    "cells: the end is not trained": (
        "cells.py", {"MASK01", "LAW06"}, [("live[row, : len(text)]", "live[row, : len(text) - 1]")],
    ),
    "cells: padding is trained": (
        "cells.py", {"MASK02", "LAW06"},
        [("live = torch.zeros(len(texts), width)", "live = torch.ones(len(texts), width)")],
    ),
    "cells: no reward is paid": (
        "cells.py", {"REW01"},
        [("    return sum(", "    return 0.0 * sum("), (" + 0.2 * (text", " + 0.0 * (text"), ("range(5)", "range(14)")],
    ),
    "cells: the same random numbers in each step": (
        "cells.py", {"SAMP05", "LAW11"}, [("    topics =", "    torch.manual_seed(5)\n    topics =")],
    ),
}  # fmt: skip


def report_on(serve, tmp_path, script, edits):
    text = (SCRIPTS / script).read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "script.py"
    path.write_text(text)
    done = serve(path, how="json")
    assert done["code"] == 0, done["words"]
    return json.loads(done["text"])


def some(table):
    names = sorted(table)
    return [*names[::2], *thorough(*names[1::2])]


@pytest.mark.parametrize("name", some(SOUND))
def test_a_sound_form_is_understood_and_left_alone(serve, tmp_path, name):
    report = report_on(serve, tmp_path, *SOUND[name])
    assert [finding for finding in report["findings"] if finding["confidence"] != "possible"] == []
    assert report["crashed"] == []
    assert {"LAW02", "LAW04", "LAW05", "LAW06", "LAW11"} <= {one["code"] for one in report["passed"]}


@pytest.mark.parametrize("name", some(FAULTS))
def test_a_fault_is_named(serve, tmp_path, name):
    script, codes, edits = FAULTS[name]
    report = report_on(serve, tmp_path, script, edits)
    found = [finding["code"] for finding in report["findings"] if finding["confidence"] in ("proven", "likely")]
    assert codes & set(found), found
    assert report["crashed"] == []
