"""A policy -> a directory that transformers or PEFT loads. Written aside and renamed: it is whole or absent."""

from __future__ import annotations

import copy
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from assay import config as configuration
from assay import durable
from assay.config import ConfigError
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec, end_tokens
from assay.record import RunDirectory, RunError
from assay.train.saved_policy import open_saved


def export_weights(
    policy: CausalPolicy, target: Path, *, merge: bool, source: str | Path, replace: bool = False
) -> None:
    """Writes the policy's weights, in its compute dtype, and its tokenizer to `target`, which must not exist yet.

    With low-rank adapters, `merge` decides: full weights with the adapters added in, or the adapters alone, the PEFT
    way, for the base model at `source`. The policy itself stays as it is, bit for bit; merging holds a second copy of
    the weights for a moment. `replace` puts the new directory in the place of an older one.
    """
    if os.path.lexists(target) and not replace:
        raise ConfigError(_occupied(target))
    readable = durable.usual_mode()
    aside = target.with_name(f"{durable.ASIDE}{uuid.uuid4().hex}")
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        if policy.adapter is None:
            policy.model.save_pretrained(aside)  # type: ignore[operator]
        elif merge:
            copy.deepcopy(policy.adapter).merge_and_unload().save_pretrained(aside)
        else:
            _save_adapter(policy, aside, source)
        _tokenizer(policy).save_pretrained(aside)
        _correct_end_tokens(policy, aside / "config.json")
        (aside / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
        for file in aside.iterdir():
            file.chmod(readable)
            durable.sync_file(file)
        durable.sync_directory(aside)
        _publish(aside, target)
    except (OSError, ValueError, SafetensorError) as error:
        why = durable.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise RunError(f"{target} could not be written: {why}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # renamed by now, unless something failed


def export_run(
    run: Path,
    target: Path,
    *,
    merge: bool,
    name: str | None,
    on_warm_step: Callable[[int, int], None],
    report: Callable[[str], None],
) -> None:
    """`assay export`: the policy of a run, as checkpoint `name` or the newest one has it. Reads the run only."""
    if os.path.lexists(target):  # said before minutes are spent on loading
        raise ConfigError(_occupied(target))
    RunDirectory.open(run)
    target = _settled(target)
    if target.is_relative_to(run.resolve()):
        raise ConfigError(
            f"{target} lies inside the run {run}, which an export only reads; give a directory outside it"
        )
    config = configuration.load(run / "config.toml")
    saved = open_saved(run, config, name, on_warm_step, report)
    export_weights(saved.policy, target, merge=merge, source=config.model.path)


def _settled(target: Path) -> Path:
    """Where `target` is once its links and dots are followed: missing/.. is a place that exists."""
    settled = Path(os.path.realpath(target))
    if os.path.lexists(settled):
        raise ConfigError(_occupied(settled))
    return settled


def _occupied(target: Path) -> str:
    return f"{target} exists already; give a directory that does not exist yet"


def _save_adapter(policy: CausalPolicy, directory: Path, source: str | Path) -> None:
    base = str(source)
    if base in ("embedded", "smollm2") or base.endswith(".gguf"):  # a directory was made of it: the model knows where
        base = str(policy.model.name_or_path)
    named = policy.adapter.peft_config
    before = {name: settings.base_model_name_or_path for name, settings in named.items()}
    try:
        for settings in named.values():
            settings.base_model_name_or_path = base
        # no embedding was resized; to find that out by itself, PEFT would ask the hub
        policy.adapter.save_pretrained(directory, save_embedding_layers=False)
    finally:
        for name, settings in named.items():
            settings.base_model_name_or_path = before[name]


def _correct_end_tokens(policy: CausalPolicy, file: Path) -> None:
    """transformers writes the end token that a config class assumes, even if the model's own files name another one."""
    settings = json.loads(file.read_text()) if file.is_file() else {}
    if set(end_tokens(None, None, stated=settings)) - set(policy.eos_ids):
        settings["eos_token_id"] = list(policy.eos_ids)
        file.write_text(json.dumps(settings, indent=2) + "\n")


def _tokenizer(policy: CausalPolicy) -> Any:
    if not isinstance(policy.codec, TokenizerCodec):
        raise TypeError(f"a policy with a {type(policy.codec).__name__} has no Hugging Face tokenizer to save")
    return policy.codec.tokenizer


def _publish(aside: Path, target: Path) -> None:
    old = None
    if os.path.lexists(target):
        # a directory cannot be renamed over a full one
        old = target.with_name(f"{durable.ASIDE}{uuid.uuid4().hex}")
        os.rename(target, old)
    os.rename(aside, target)
    durable.sync_directory(target.parent)
    if old is not None:
        shutil.rmtree(old)
