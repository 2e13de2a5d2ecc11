"""A policy -> a directory that transformers or PEFT loads. Written aside and renamed: it is whole or absent."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from assay.config import Config, ConfigError
from assay.machine import durable
from assay.policy.codec import TokenizerCodec, end_tokens
from assay.policy.policy import Policy
from assay.record import RunDirectory, RunError, checksums, refuse_unwritable_name
from assay.record.trust import POLICY, load_config, refuse_untrusted
from assay.record.weights import clear_weights
from assay.train.evaluate.model_card import model_card
from assay.train.evaluate.saved_policy import open_saved
from assay.train.run.refusals import refuse_existing
from assay.train.run.seed import base_of


def export_weights(
    policy: Policy,
    target: Path,
    *,
    merge: bool,
    source: str | Path,
    card: str = "",
    on_written: Callable[[Path], None] = lambda directory: None,
) -> None:
    """Writes the policy's weights, in its compute dtype, its tokenizer and its model card to `target`, which must not
    exist when all is written.

    With low-rank adapters, `merge` decides: full weights with the adapters added in, or the adapters alone, the PEFT
    way, for the base model that the user named as `source`. The policy itself stays as it is, bit for bit; merging
    holds a second copy of the weights for a moment. Calls `on_written` with the directory before it gets its name.
    """
    readable = durable.usual_mode()
    aside = durable.new_aside(target)
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
        if card:
            (aside / "README.md").write_text(card, encoding="utf-8")
        for file in aside.iterdir():
            file.chmod(readable)
            durable.sync_file(file)
        durable.sync_directory(aside)
        on_written(aside)
        refuse_existing(target)  # another process may have made it meanwhile
        os.rename(aside, target)
        durable.sync_directory(target.parent)
    except ConfigError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        why = durable.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise RunError(f"{target} could not be written: {why}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # renamed by now, unless something failed


def publish(policy: Policy, config: Config, run: Path, name: str, step: int, say: Callable[[str], None]) -> None:
    """Writes the policy as it is after `step` to RUN/name and replaces what the run wrote there before."""

    def make_room(written: Path) -> None:
        clear_weights(run, name, say)
        checksums.note_directory(run, name, written)

    card = model_card(run, config, step=step, merge=False)
    base = base_of(run, config)
    export_weights(policy, run / name, merge=False, source=base, card=card, on_written=make_room)


def export_run(
    run: Path,
    target: Path,
    *,
    merge: bool,
    name: str | None,
    on_warm_step: Callable[[int, int], None],
    report: Callable[[str], None],
    trust: bool = False,
) -> None:
    """`assay export`: the policy of a run, as checkpoint `name` or the newest one has it. Reads the run only."""
    refuse_unwritable_name(target)
    refuse_existing(target)  # before minutes are spent on loading
    RunDirectory.open(run)
    target = _settled(target)
    if target.is_relative_to(run.resolve()):
        raise ConfigError(
            f"{target} lies inside the run {run}, which an export only reads; give a directory outside it"
        )
    config = load_config(run)
    if not trust:
        refuse_untrusted(run, config, (POLICY,))
    saved = open_saved(run, config, name, on_warm_step, report)
    card = model_card(run, config, step=saved.step, merge=merge)
    export_weights(saved.policy, target, merge=merge, source=base_of(run, config), card=card)


def _settled(target: Path) -> Path:
    """`target` with its links and dots resolved: missing/.. is a directory that exists."""
    settled = Path(os.path.realpath(target))
    refuse_existing(settled)
    return settled


def _save_adapter(policy: Policy, directory: Path, source: str | Path) -> None:
    for name, settings in policy.adapter.peft_config.items():
        before = dict(vars(settings))
        try:
            settings.base_model_name_or_path = str(source)
            for key, value in before.items():
                if isinstance(value, set):  # PEFT would write it in another order in every process
                    setattr(settings, key, sorted(value))
            # no embedding was resized; to find that out by itself, PEFT would ask the hub
            policy.adapter.save_pretrained(directory, selected_adapters=[name], save_embedding_layers=False)
        finally:
            vars(settings).update(before)


def _correct_end_tokens(policy: Policy, file: Path) -> None:
    """transformers writes the end token that a config class assumes, even if the model's own files name another one."""
    settings = json.loads(file.read_text()) if file.is_file() else {}
    if set(end_tokens(None, None, stated=settings)) - set(policy.eos_ids):
        settings["eos_token_id"] = list(policy.eos_ids)
        file.write_text(json.dumps(settings, indent=2) + "\n")


def _tokenizer(policy: Policy) -> Any:
    if not isinstance(policy.codec, TokenizerCodec):
        raise TypeError(f"a policy with a {type(policy.codec).__name__} has no Hugging Face tokenizer to save")
    return policy.codec.tokenizer
