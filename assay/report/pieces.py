"""Token ids -> the piece of text that each of them is, for the token view.

A record holds ids and the text of the whole completion. Whose text a token is says the tokenizer that the run left in
final/, or the one beside the model that it trained. Without any, a text with one character per token is cut into
characters, and all else shows ids.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from assay.config import Config
from assay.doctor.evidence.open import ATTACHED
from assay.machine.user_error import UserError
from assay.policy.made import cache_root
from assay.policy.where import SMOLLM2
from assay.report.markup import readable

TOKENIZER = "tokenizer.json"
LARGEST = 64_000_000  # bytes of a tokenizer.json that is read


class TokenizerError(UserError, ValueError):
    """A tokenizer that was asked for and cannot be used. The message is one sentence with the file."""


class Pieces:
    def __init__(self, tokenizer: Any = None, source: str = "") -> None:
        self._tokenizer, self.source = tokenizer, source

    @property
    def knows_texts(self) -> bool:
        return self._tokenizer is not None

    def of(self, ids: Sequence[int], text: str | None, ends: Collection[int] = ()) -> list[str]:
        """One piece per id. A token that ends in the middle of a character is empty; the next one shows it whole."""
        if self._tokenizer is not None:
            return self._decoded(ids)
        plain = ["[end]" if token in ends else f"[{token}]" for token in ids]
        if text is not None and len(text) in (len(ids), len(ids) - 1):
            return [*map(readable, text), *plain[len(text) :]]
        return plain

    def _decoded(self, ids: Sequence[int]) -> list[str]:
        from tokenizers.decoders import DecodeStream

        from assay.foreign.faults import translate_faults

        stream = DecodeStream([], skip_special_tokens=False)
        pieces: list[str] = []
        for token in ids:
            try:
                if self._tokenizer.id_to_token(token) is None:
                    raise TokenizerError("an id that this tokenizer does not have")
                with translate_faults(str, TokenizerError):  # bytes after which a stream does not go on
                    pieces.append(readable(stream.step(self._tokenizer, token) or ""))
            except TokenizerError:
                pieces.append(f"[{token}]")
                stream = DecodeStream([], skip_special_tokens=False)
        return pieces


def pieces_of(run: Path, config: Config | None, chosen: Path | None = None) -> Pieces:
    """`chosen` is a tokenizer.json or its directory that the user names; it must be usable."""
    if chosen is not None:
        file = chosen / TOKENIZER if chosen.is_dir() else chosen
        tokenizer = _read(file)
        if tokenizer is None:
            raise TokenizerError(f"{file} is not a tokenizer.json that can be read; name the one of the trained model")
        return Pieces(tokenizer, f"{file.resolve().parent.name}/{file.name}")
    for file in _candidates(run, config):
        tokenizer = _read(file)
        if tokenizer is not None:
            return Pieces(tokenizer, f"{file.parent.name}/{file.name}")
    return Pieces()


def _candidates(run: Path, config: Config | None) -> list[Path]:
    """In a run of ours; beside the model it trained; in the output directory of another trainer and its checkpoints."""
    places = [run / name for name in ("final", "best", "seed")]
    if config is not None:
        places += _of_model(config.model.path)
    if run.name == ATTACHED:
        places += [run.parent, *sorted(run.parent.glob("checkpoint-*"), key=_number_in_name)[-1:]]
    return [place / TOKENIZER for place in places]


def _of_model(path: str) -> list[Path]:
    """A directory; what was unpacked of a GGUF file; a snapshot in the cache of Hugging Face."""
    file = SMOLLM2 if path == "smollm2" else path
    if file.endswith(".gguf"):
        return sorted(cache_root().glob(f"gguf-{glob.escape(Path(file).stem)}-*"))[-1:]
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub")
    snapshots = hub.expanduser() / f"models--{glob.escape(path.replace('/', '--'))}" / "snapshots"
    return [Path(path), Path(path) / "final", *sorted(snapshots.glob("*"))[-1:]]


def _number_in_name(path: Path) -> int:
    match = re.search(r"\d+$", path.name)
    return int(match[0]) if match else -1


def _read(file: Path) -> Any:
    """None where there is no such file, or one that is not a tokenizer."""
    from tokenizers import Tokenizer

    from assay.foreign.faults import translate_faults

    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            return None
        with translate_faults(str, TokenizerError):
            return Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except (OSError, TokenizerError):
        return None
