"""A batch takes what people have: tensors, lists, any dtype; and refuses what cannot be, in one sentence."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.config import Config
from assay.grpo import OBJECTIVES
from assay.record.batch import CHOICES, FIELDS, NUMBERS, SETTINGS, Batch, BatchError
from assay.record.settings import settings_of
from assay.verdict import Missing

PAGE = Path(__file__).parents[2] / "docs/batch-file.md"


def tables() -> dict[str, str]:
    arrays = ["| name | shape | kind | meaning |", "|---|---|---|---|"] + [
        f"| `{name}` | {' or '.join(one.shapes)} | {one.kind} | {one.meaning} |" for name, one in FIELDS.items()
    ]
    others = [
        ["| name | meaning |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in part.items())]
        for part in (NUMBERS, SETTINGS)
    ]
    return {"Arrays": "\n".join(arrays), "Numbers": "\n".join(others[0]), "Settings": "\n".join(others[1])}


def page_with_tables(text: str) -> str:
    for heading, table in tables().items():
        text = re.sub(
            rf"(## {heading}\n\n).*?(\n\n## )", lambda match, t=table: match[1] + t + match[2], text, flags=re.S
        )
    return text


def test_the_page_lists_every_field():
    text = PAGE.read_text()
    assert page_with_tables(text) == text, "renew the page with: python tests/record/test_batch.py"


def test_tensors_of_any_dtype_and_lists_are_taken_alike():
    values = [[-1.5, -0.25]]
    for given in (values, np.array(values, dtype=np.float16), torch.tensor(values, dtype=torch.bfloat16)):
        batch = Batch.of({"new_logprobs": given})
        assert batch.need("new_logprobs")[0].tolist() == values
        assert batch.need("new_logprobs")[0].dtype == np.float64


def test_a_tensor_with_a_gradient_is_taken_and_left_alone():
    tensor = torch.zeros(1, 2, requires_grad=True)
    Batch.of({"new_logprobs": tensor, "loss": tensor.sum()})
    assert tensor.requires_grad
    assert tensor.grad is None


def test_group_ids_may_be_words():
    assert Batch.of({"group_ids": ["b", "a", "b"]}).need("group_ids")[0].tolist() == [1, 0, 1]


def test_logprobs_one_shorter_than_the_tokens_are_those_of_the_later_tokens():
    batch = Batch.of({"tokens": [[7, 8, 9]], "mask": [[0, 1, 1]], "new_logprobs": [[-1.0, -2.0]]})
    tokens, mask = batch.need("tokens", "mask")
    assert tokens.tolist() == [[8, 9]]
    assert mask.tolist() == [[True, True]]


def test_what_is_absent_is_named():
    with pytest.raises(Missing, match="ref_logprobs, advantages"):
        Batch.of({"mask": [[1]]}).need("mask", "ref_logprobs", "advantages")
    with pytest.raises(Missing, match="loss"):
        Batch.of({}).number("loss")
    with pytest.raises(Missing, match="temperature"):
        Batch.of({}).setting("temperature")


def test_none_is_the_same_as_absent():
    assert Batch.of({"mask": None, "loss": None, "temperature": None}).arrays == {}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"advantage": [1.0]}, "'advantage' is not a field of a batch; did you mean advantages?"),
        ({"mask": [[1, 2]]}, "mask holds 2; it must be 0 or 1"),
        ({"mask": [[0.5]]}, "mask holds fractions or NaN; it must be 0 or 1"),
        ({"tokens": [[1.5]]}, "tokens holds fractions or NaN; it must be whole numbers"),
        ({"tokens": [["a"]]}, "tokens holds <U1, not numbers"),
        ({"tokens": [[1], [1, 2]]}, "tokens is ragged; pad its rows to one length"),
        ({"rewards": [[1.0]]}, "rewards has 2 dimensions; it must be [B]"),
        ({"tokens": [[1, 2]], "rewards": [1.0, 0.0]}, "rewards has 2 rows but tokens has 1; all of them must agree"),
        ({"tokens": [[1, 2]], "mask": [[1]]}, "mask has 1 token columns but tokens has 2; all of them must agree"),
        ({"loss": "low"}, "loss is 'low'; it must be a number"),
        ({"loss": [1.0, 2.0]}, "loss is [1.0, 2.0]; it must be a number"),
        ({"step": -1}, "step is -1; it must be a whole number"),
        ({"step": float("nan")}, "step is nan; it must be a whole number"),
        ({"update": 1.5}, "update is 1.5; it must be a whole number, 0 or more"),
        ({"objective": "ppo"}, "objective is 'ppo'; it must be grpo, bnpo, dr_grpo, dapo, gspo, cispo or sapo"),
        ({"std": 3}, "std is 3; it must be sample, population or none"),
        ({"kl_estimator": "k4"}, "kl_estimator is 'k4'; it must be k1, k2 or k3"),
        ({"dtype": 16}, "dtype is 16; it must be a word"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"temperature": 0.0}, "temperature is 0.0; it must be more than 0"),
        ({"kl_coef": True}, "kl_coef is True; it must be a number"),
        ({"mask_truncated": "yes"}, "mask_truncated is 'yes'; it must be true or false"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(values, sentence):
    with pytest.raises(BatchError) as error:
        Batch.of(values)
    assert sentence in str(error.value)


def test_every_choice_is_one_that_the_settings_name_and_the_trainer_knows():
    defaults = settings_of(Config())
    for name, choices in CHOICES.items():
        words = SETTINGS[name] if name != "objective" else (PAGE.parent / "objectives.md").read_text()
        assert all(re.search(rf"\b{choice}\b", words) for choice in choices)
        assert name == "aggregation" or defaults[name] in choices
        assert [Batch.of({name: choice}).setting(name) for choice in choices] == list(choices)
    assert set(CHOICES["objective"]) == set(OBJECTIVES)


def test_settings_of_this_trainer_and_numbers_of_numpy_and_torch_are_taken():
    assert Batch.of(settings_of(Config())).setting("dtype") == "auto"
    given = {"temperature": np.float32(0.5), "kl_coef": torch.tensor(0.25), "process_rewards": np.bool_(True)}
    assert Batch.of({**given, "update": 1.0, "step": np.int64(3), "eos_ids": [1, 2]}).settings == {
        "temperature": 0.5, "kl_coef": 0.25, "process_rewards": True, "eos_ids": [1, 2]
    }  # fmt: skip
    assert Batch.of({"objective": "my_own", "trainer": "assay"}).setting("objective") == "my_own"


@pytest.mark.parametrize("name", [name for name in FIELDS if name.endswith("_logprobs")])
def test_negatives_of_logprobs_are_refused(name):
    with pytest.raises(BatchError, match=f"{name} are mostly positive; give log-probs, not their negatives"):
        Batch.of({name: [[1.5, 0.25, 0.0]]})
    with pytest.raises(BatchError, match="mostly positive"):
        Batch.of({name: [[1.5, -1.0, -1.0]], "mask": [[1, 0, 0]]})
    for values, mask in (([[1.5, -0.2]], [[1, 1]]), ([[1.5, 1.5, -1.0]], [[0, 0, 1]]), ([[1e-4, 1e-4]], [[1, 1]])):
        Batch.of({name: values, "mask": mask})
    Batch.of({name: [[np.inf, np.nan]], "mask": [[1, 1]]})  # not finite is another illness


def test_texts_have_one_entry_a_row():
    with pytest.raises(BatchError, match="prompt has 1 rows but rewards has 2"):
        Batch.of({"rewards": [1.0, 0.0]}, texts={"prompt": ["a"]})
    with pytest.raises(BatchError, match="'answers' is not a text"):
        Batch.of({}, texts={"answers": []})


def test_one_advantage_a_row_is_spread_over_its_tokens():
    batch = Batch.of({"tokens": [[1, 2], [3, 4]], "advantages": [0.5, -0.5]})
    assert batch.token_advantages.tolist() == [[0.5, 0.5], [-0.5, -0.5]]


if __name__ == "__main__":
    PAGE.write_text(page_with_tables(PAGE.read_text()))
    sys.exit(0)
