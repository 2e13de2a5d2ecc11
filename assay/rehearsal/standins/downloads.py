"""What a script downloads by its address: rows, files of a model, and weights that stand for those it has."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from assay.rehearsal.stage import Stage

WEIGHTS = b"weights that a rehearsal did not download"  # a file that begins with it is a checkpoint that is not there
_OF_MODELS = ("vocab.json", "merges.txt", "config.json", "generation_config.json", "model.safetensors")
_OF_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
_OF_ROWS = (".json", ".jsonl", ".csv", ".txt", ".parquet")


def content_of(stage: Stage, url: str) -> bytes | None:
    """None if the address is not that of a file."""
    path = Path(urlsplit(url).path)
    kind = path.suffix.lower()
    if path.name in _OF_MODELS or (kind == ".json" and "tokenizer" in path.stem.lower()):
        from assay.rehearsal.standins.models import Checkpoints

        made = Checkpoints(stage).made(path.parent.as_posix().strip("/") or "model")
        return (made / (path.name if (made / path.name).is_file() else "tokenizer.json")).read_bytes()
    if kind in _OF_WEIGHTS:
        stage.replaced("weights", path.name, "the weights as they are")
        return WEIGHTS
    if kind in _OF_ROWS:
        from assay.rehearsal.standins.data import write_rows

        rows = stage.home / "downloads" / path.name
        write_rows(stage, rows, url)
        return rows.read_bytes()
    return None


def is_of_weights(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(WEIGHTS)) == WEIGHTS
