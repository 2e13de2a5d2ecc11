"""Whose code does a run directory run? The config of a run may name code; somebody else may have written that config.

What training runs is signed when a run is created, with a random key that this user alone can read, and the signature
stands in run.json. A run whose signature fits goes on without a question. One that was copied from another machine, or
whose config was changed, is refused until its reader says --trust. docs/trust.md has it in plain words.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.machine import durable

SIGNATURE = "signature"  # in run.json
POLICY, REWARDS, LOGS = "policy", "rewards", "logs"  # the parts of a config that a command makes use of
_PURPOSE = b"what a run may run, 1\n"
_KEY_BYTES = 32


def signed(config: Config) -> dict[str, str]:
    """The signature for run.json; {} if there is nothing to sign, or this user's key cannot be written."""
    settings = _settings(config)
    key = _key(create=True) if settings else None
    return {SIGNATURE: _signature(key, settings)} if key else {}


def is_signed(run: Path, config: Config) -> bool:
    """Whether this user started the run with what its config would run."""
    settings = _settings(config)
    if not settings:
        return True
    key = _key(create=False)
    try:
        mark = json.loads(durable.read_file(run / "run.json"))
        signature = mark[SIGNATURE]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    if key is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(signature.encode(), _signature(key, settings).encode())


def refuse_untrusted(run: Path, config: Config, uses: Collection[str], overridden: Collection[str] = ()) -> None:
    """Raises ConfigError if a command that uses these parts would run what only the run's own config names.

    `config` is what the command goes by; settings in `overridden` are the user's own words."""
    found = _uses(config).items()
    reasons = [use.sentence for setting, use in found if use.part in uses and setting not in overridden]
    if reasons and not is_signed(run, load_config(run)):
        raise ConfigError(
            f"{run / 'config.toml'}: {' and '.join(reasons)}, and you did not start this run on this machine with that "
            "config; read what it would run, then add --trust"
        )


def load_config(run: Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a run, with the user's own settings over it."""
    file = run / "config.toml"
    try:
        durable.require_regular(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; restore it from a copy of the run") from error
    return configuration.load(file, overrides)


@dataclass(frozen=True, slots=True)
class _Use:
    """Something that training would run or send because of a setting."""

    part: str  # of the config, that the setting belongs to
    sentence: str  # what would happen
    signed: Any  # the value that a signature covers


def _uses(config: Config) -> dict[str, _Use]:
    reward, judge, log, model, task = config.reward, config.judge, config.log, config.model, config.task
    files = [spec for spec in reward.functions if ":" in spec]
    found: dict[str, _Use] = {}
    if files:
        found["reward.functions"] = _Use(REWARDS, f"reward.functions runs {', '.join(files)}", files)
    if task.options.get("unsafe_scorer"):
        sentence = f"task.options.unsafe_scorer lets {task.name} evaluate what the model writes"
        found["task.options.unsafe_scorer"] = _Use(REWARDS, sentence, task.name)
    if "judge" in reward.functions and judge.url:
        key = f" and the value of {judge.key_variable}" if judge.key_variable else ""
        sentence = f"judge.url sends prompts, answers{key} to {judge.url}"
        found["judge.url"] = _Use(REWARDS, sentence, [judge.url, judge.key_variable])
    if model.trust_remote_code:
        sentence = f"model.trust_remote_code runs the Python code that comes with {model.path}"
        found["model.trust_remote_code"] = _Use(POLICY, sentence, model.path)
    for name in ("wandb", "trackio"):
        if project := getattr(log, name):
            found[f"log.{name}"] = _Use(LOGS, f"log.{name} sends the metrics to its project {project}", project)
    return found


def _settings(config: Config) -> dict[str, Any]:
    """What is signed."""
    return {setting: use.signed for setting, use in _uses(config).items()}


def _signature(key: bytes, settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True).encode("ascii")
    return hmac.new(key, _PURPOSE + text, hashlib.sha256).hexdigest()


def _key(*, create: bool) -> bytes | None:
    """This user's key; None where there is none, it cannot be made, or it is not this user's alone."""
    try:
        base = os.environ.get("XDG_STATE_HOME", "")
        directory = (Path(base) if os.path.isabs(base) else Path.home() / ".local/state") / "assay"
        if create:
            _make_key(directory)
        return _read_key(directory / "key")
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a home
        return None


def _read_key(file: Path) -> bytes:
    descriptor = durable.open_regular(file)
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != os.geteuid():
            raise OSError(f"{file} belongs to another user")
        if stat.S_IMODE(facts.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        key = bytes.fromhex(os.read(descriptor, 4096).decode("ascii").strip())
    finally:
        os.close(descriptor)
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{file} does not hold a key")
    return key


def _make_key(directory: Path) -> None:
    """Once, and whole when it gets its name: two runs that start together use the same key."""
    file = directory / "key"
    if file.exists():
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = directory / f"{durable.ASIDE}{secrets.token_hex(16)}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_bytes(_KEY_BYTES).hex().encode("ascii") + b"\n")
        os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(aside, file)
    finally:
        os.close(descriptor)
        aside.unlink()
