"""The same rows from every kind of file, and files that cannot be read."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from assay.config import ConfigError
from assay.tasks.files import FileOptions, FileTask
from assay.tasks.rows import fingerprint_of, read_rows

ROWS = [{"prompt": "A, or\nB?", "answer": "B"}, {"prompt": 'Say "\u00fc"', "answer": "\u00fc"}]


def values(path):
    return [dict(row.fields) for row in read_rows(path)]


def write(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8-sig")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, ["prompt", "answer"])
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.csv"])
def test_every_kind_of_file_holds_the_same_rows(tmp_path, name):
    assert values(write(tmp_path / name)) == ROWS


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_mark_of_the_byte_order_at_the_start_is_not_part_of_the_rows(tmp_path, name):
    text = write(tmp_path / name).read_bytes().removeprefix(b"\xef\xbb\xbf")
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text)
    assert values(tmp_path / name) == ROWS


def test_a_directory_is_read_file_by_file_in_the_order_of_names(tmp_path):
    for name, row in (("2.jsonl", ROWS[1]), ("1.parquet", ROWS[0])):
        write(tmp_path / name, [row])
    (tmp_path / "README.md").write_text("not rows")
    (tmp_path / "._2.jsonl").write_bytes(b"what a desktop keeps about 2.jsonl")
    assert values(tmp_path) == ROWS
    before = fingerprint_of(tmp_path)
    (tmp_path / "README.md").write_text("still not rows")
    assert fingerprint_of(tmp_path) == before
    write(tmp_path / "2.jsonl", ROWS)
    assert fingerprint_of(tmp_path) != before


def test_a_dataset_saved_by_hugging_face_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{**row, "messages": [{"role": "user", "content": "x"}], "level": 2} for row in ROWS]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    assert values(tmp_path / "saved") == rows
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows), "test": datasets.Dataset.from_list(rows)})
    splits.save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(ConfigError, match=r"several splits \(test, train\); name one of them"):
        values(tmp_path / "splits")
    assert values(tmp_path / "splits" / "train") == rows


def test_rows_are_numbered_as_an_editor_numbers_lines(tmp_path):
    assert [row.where for row in read_rows(write(tmp_path / "a.jsonl"))] == [
        f"{tmp_path / 'a.jsonl'}: line 1",
        f"{tmp_path / 'a.jsonl'}: line 3",
    ]
    assert [row.where.rpartition(" ")[2] for row in read_rows(write(tmp_path / "a.csv"))] == ["2", "4"]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.jsonl",
            '{"a": 1}\n' * 16 + '{"a": 1',
            r"a\.jsonl: line 17: not valid JSON \(.* at character \d+\); every line",
        ),
        ("a.jsonl", '{"a": NaN}', r"line 1: not valid JSON \(NaN is not JSON\)"),
        ("a.jsonl", "[" * 20_000, r"line 1: not valid JSON"),
        ("a.jsonl", '{"a": 1}\n{"a": 2, "b": 1, "b": 1}', r"line 2: an object holds the key 'b' twice; keep one"),
        ("a.jsonl", '{"a": [{"c": 1, "c": 2}]}', r"line 1: an object holds the key 'c' twice"),
        ("a.json", '[{"a": 1, "a": 2}]', r"a\.json: an object holds the key 'a' twice"),
        ("a.jsonl", "[1]", r"line 1: is an array, not an object"),
        ("a.jsonl", b"\xff\xfe", r"a\.jsonl: not UTF-8 text .* save it as UTF-8"),
        ("a.json", '{"a": 1}\n{"a": 2}', r"a\.json: not valid JSON \(Extra data.* is a \.jsonl file"),
        ("a.json", '{"a": 1}', r"a\.json: holds an object; it must be one array of objects"),
        ("a.json", '[{"a": 1}, 2]', r"a\.json: item 2: is a number, not an object"),
        ("a.csv", "a,b\n1,2\n3\n", r"a\.csv: line 3: has 1 cells, but line 1 names 2 columns"),
        ("a.csv", "a,a\n1,2\n", r"a\.csv: line 1: two columns are named 'a'"),
        ("a.csv", 'a,b\n"1,2\n', r"a\.csv: line 2: not valid CSV"),
        ("a.parquet", "PAR1 but not really", r"a\.parquet: not a Parquet file"),
        ("a.txt", "hello", r"a\.txt: files of rows end in"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=sentence):
        values(tmp_path / name)


def test_a_directory_without_rows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no dataset of save_to_disk and no file that ends in"):
        values(tmp_path)


def test_a_saved_dataset_cannot_name_files_elsewhere(tmp_path):
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')
    with pytest.raises(ConfigError, match="names files that are not Arrow files beside it"):
        values(tmp_path)


def test_bytes_are_refused_and_what_parquet_lacks_is_null(tmp_path):
    def fields(column):
        rows = [{"prompt": "a", "answer": "b", "more": column}]
        path = write(tmp_path / "a.parquet", rows)
        return FileTask(path, FileOptions(heldout=0.0), 1, needs_heldout=False).training_problem(0).fields

    assert fields([1.5, float("nan")]) == {"more": [1.5, None]}
    with pytest.raises(ConfigError, match=r"a\.parquet: row 1: field 'more': holds bytes, which JSON cannot"):
        fields({"image": b"\x89PNG"})
