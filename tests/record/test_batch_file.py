"""A batch survives its file to the bit; a file from elsewhere, damaged or foreign, is read or refused by name."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from assay.doctor.examples import edit_batch, healthy_batch
from assay.record.batch import Batch, BatchError
from assay.record.batch_file import METADATA_KEY, read_batch, write_batch


def test_a_batch_comes_back_as_it_was(tmp_path):
    batch = edit_batch(healthy_batch(), loss=float("nan"), kl_loss=float("-inf"), rewards=[float("nan")] * 16)
    write_batch(tmp_path / "b.safetensors", batch)
    again = read_batch(tmp_path / "b.safetensors")
    assert set(again.arrays) == set(batch.arrays)
    for name, array in batch.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
        assert again.arrays[name].dtype == array.dtype
    assert {name: str(value) for name, value in again.numbers.items()} == {
        name: str(value) for name, value in batch.numbers.items()
    }
    assert again.settings == {**batch.settings, "eos_ids": [1]}
    assert again.texts == batch.texts
    assert again.source == "b.safetensors"


def test_a_number_that_32_bits_cannot_hold_keeps_64(tmp_path):
    batch = Batch.of({"rewards": [0.1, 1e300], "group_ids": [2**40, 1]})
    write_batch(tmp_path / "b.safetensors", batch)
    again = read_batch(tmp_path / "b.safetensors")
    assert again.arrays["rewards"].tolist() == [0.1, 1e300]
    assert again.arrays["group_ids"].tolist() == [2**40, 1]


def test_a_file_of_another_program_is_read_without_metadata(tmp_path):
    tensors = {
        "new_logprobs": torch.tensor([[-1.5, -0.25]], dtype=torch.bfloat16),
        "old_logprobs": torch.tensor([[-1.5, -0.25]], dtype=torch.float16),
        "mask": torch.tensor([[1.0, 0.0]]),
        "tokens": torch.tensor([[3, 4]], dtype=torch.int16),
    }
    save_file(tensors, tmp_path / "b.safetensors")
    batch = read_batch(tmp_path / "b.safetensors")
    assert batch.arrays["new_logprobs"].tolist() == batch.arrays["old_logprobs"].tolist() == [[-1.5, -0.25]]
    assert batch.arrays["mask"].tolist() == [[True, False]]
    assert batch.arrays["tokens"].tolist() == [[3, 4]]


def metadata(**header):
    return {METADATA_KEY: json.dumps(header)}


@pytest.mark.parametrize(
    ("tensors", "meta", "sentence"),
    [
        ({"logprobs": torch.zeros(1, 1)}, None, "'logprobs' is not a field of a batch; did you mean"),
        ({"mask": torch.zeros(1, 1), "rewards": torch.zeros(3)}, None, "3 rows but mask has 1"),
        ({}, {METADATA_KEY: "{"}, "is not JSON"),
        ({}, {METADATA_KEY: "[]"}, "must be an object"),
        ({}, metadata(numbers=[1]), "must be an object"),
        ({}, metadata(schema_version=9), "has schema version 9, this Assay reads 1"),
        ({}, metadata(texts={"prompt": "one"}), "must be a list of strings"),
        ({}, metadata(numbers={"loss": [1, 2]}), "loss is [1, 2]; it must be a number"),
        ({"mask": torch.zeros(1, 1, dtype=torch.float8_e4m3fn)}, None, "mask is stored as F8_E4M3"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path, tensors, meta, sentence):
    path = tmp_path / "b.safetensors"
    save_file(tensors, path, metadata=meta)
    with pytest.raises(BatchError) as error:
        read_batch(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_every_cut_of_a_file_is_refused(tmp_path):
    path = tmp_path / "b.safetensors"
    write_batch(path, healthy_batch())
    whole = path.read_bytes()
    for size in [*range(0, 400, 7), *range(400, len(whole), len(whole) // 40)]:
        path.write_bytes(whole[:size])
        with pytest.raises(BatchError, match="damaged or no safetensors file"):
            read_batch(path)


def test_a_directory_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(BatchError, match="could not be read"):
            read_batch(path)


def test_it_is_read_and_written_without_torch(tmp_path):
    code = (
        "import sys; from pathlib import Path; from assay.record.batch import Batch; "
        "from assay.record.batch_file import read_batch, write_batch; path = Path(sys.argv[1]); "
        "write_batch(path, Batch.of({'mask': [[1]]})); read_batch(path); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "b.safetensors")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "False"
