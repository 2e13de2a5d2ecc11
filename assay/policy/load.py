"""model.path -> Policy: the place where the kind of policy is decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from assay.config import Config, ConfigError
from assay.config.sections import ModelConfig
from assay.foreign.directory import CONFIG
from assay.foreign.faults import translate_faults
from assay.foreign.read import explain_fault, read_model, trial_of
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec, end_tokens
from assay.policy.embedded import embedded_directory
from assay.policy.gguf import unpack_gguf
from assay.policy.policy import Policy
from assay.policy.probe import UnfitModel, examine_policy, vocabulary_of, with_family
from assay.policy.where import check_model_path, smollm2_file

HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py"]  # nothing that could be unpickled


def resolve_auto(config: Config) -> Config:
    """The config with device and dtype decided: what is recorded is what was used."""
    device, dtype = config.run.device, config.model.dtype
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" and config.model.path != "embedded" else "float32"
    return replace(config, run=replace(config.run, device=device), model=replace(config.model, dtype=dtype))


def load_policy(
    config: Config,
    on_warm_step: Callable[[int, int], None],
    say: Callable[[str], None] = lambda sentence: None,
) -> Policy:
    """The policy of the [model] section; the embedded one is made first if need be."""
    config = resolve_auto(config)
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device = 'cuda', but torch sees no GPU; set run.device = 'cpu'")
    directory = model_directory(config.model, on_warm_step, say)
    model, tokenizer = _read(directory, config.model, say)
    ends = end_tokens(model, tokenizer, stated=json.loads((directory / "config.json").read_text()))
    if not ends:
        raise ConfigError(
            f"neither tokenizer nor model in {directory} names an EOS token: no completion could ever end"
        )
    model.to(config.run.device).eval()
    if config.model.gradient_checkpointing:
        try:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        except ValueError as error:
            raise ConfigError(f"model.gradient_checkpointing: the model in {directory} has none: {error}") from error
    policy = CausalPolicy(
        model,
        TokenizerCodec(tokenizer),
        ends,
        config.rollout.temperature,
        checkpointing=config.model.gradient_checkpointing,
    )
    with translate_faults(lambda error: _unfit(directory, model, error)):
        vocabulary = vocabulary_of(policy)
        if len(tokenizer) > vocabulary:
            raise ConfigError(
                f"the tokenizer in {directory} has {len(tokenizer)} tokens, but the model knows only {vocabulary}; "
                "they do not belong together"
            )
        policy = examine_policy(policy, say)
    if not policy.abilities.cache:
        say("the model's cache cannot be shared by a group: every token is computed from the whole sequence, slowly")
    if suggested := suggested_sampling(model):
        say(f"the model's generation config suggests {suggested}; it is not applied: the [rollout] section decides")
    return with_adapter(policy, config, say) if config.model.lora_rank else policy


def _unfit(directory: Path, model: Any, error: BaseException) -> str:
    what = f"the model in {directory}"
    if isinstance(error, UnfitModel):
        return f"{what} cannot be trained: {error}"
    return f"{what} cannot be run: {explain_fault(directory, (CONFIG,), trial_of(model), error)}"


def model_directory(
    settings: ModelConfig, on_warm_step: Callable[[int, int], None], say: Callable[[str], None]
) -> Path:
    """Where the files of the model are, on this machine; a GGUF file is unpacked, a model on the hub is fetched."""
    check_model_path(settings.path)
    if settings.path == "embedded":
        return embedded_directory(settings.warm_steps, on_warm_step)
    if settings.path == "smollm2":
        return unpack_gguf(smollm2_file(), say)
    path = Path(settings.path)
    if path.suffix == ".gguf":
        return unpack_gguf(path, say)
    if (path / "config.json").is_file():
        return path
    if (path / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path = {settings.path!r} holds a LoRA adapter without its model; merge the two first, for instance "
            "with: assay export RUN --merge"
        )
    if (path / "run.json").is_file():
        raise ConfigError(
            f"model.path = {settings.path!r} is a run; give one of its models, for instance {path / 'final'}"
        )
    if path.exists():
        raise ConfigError(f"model.path = {settings.path!r} is not a Hugging Face model directory: no config.json in it")
    return _fetch(settings.path, say)


def _fetch(name: str, say: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    say(f"looking for {name} in the local hub cache and on the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ConfigError(
            f"model.path = {name!r} is not a directory on this machine, and the hub could not give it "
            f"({type(error).__name__}); give the path of a model directory"
        ) from error


def _read(directory: Path, settings: ModelConfig, say: Callable[[str], None]) -> tuple[Any, Any]:
    """(model, tokenizer)."""
    model, tokenizer, loading = read_model(
        directory,
        AutoModelForCausalLM,
        dtype=getattr(torch, settings.dtype),
        what=f"the model in {directory}",
        trust_remote_code=settings.trust_remote_code,
    )
    suggested = getattr(model, "generation_config", None)
    if suggested is not None and not suggested.do_sample and suggested_sampling(model):
        suggested.do_sample = True  # transformers saves no file that names a temperature and does not sample
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        raise ConfigError(f"the model in {directory} lacks weights ({missing}): they would start at random")
    if loading["unexpected_keys"]:
        unused = sorted(loading["unexpected_keys"])
        say(
            f"{len(unused)} tensors in {directory} are not part of the model and are left out, for instance {unused[0]}"
        )
    return model, tokenizer


def with_adapter(policy: Policy, config: Config, say: Callable[[str], None] = lambda sentence: None) -> Policy:
    """The policy with low-rank adapters on a frozen model; they begin as the identity."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ConfigError("model.lora_rank needs the package peft; run: pip install 'assay[lora]'") from error
    targets = config.model.lora_targets
    settings = LoraConfig(
        r=config.model.lora_rank,
        lora_alpha=config.model.lora_alpha,
        lora_dropout=0.0,  # dropout would make new differ from old with equal weights
        target_modules=targets if targets == "all-linear" else [name.strip() for name in targets.split(",")],
        task_type="CAUSAL_LM",
    )
    assert isinstance(policy, CausalPolicy)  # as task_type says
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.run.seed)
        try:
            adapter = get_peft_model(policy.model, settings).eval()
        except ValueError as error:
            raise ConfigError(f"model.lora_targets = {targets!r} fits no module of the model: {error}") from error
    adapted = {name.rpartition(".lora_A.")[0].rpartition(".")[2] for name, _ in adapter.named_parameters()}
    for name in [] if targets == "all-linear" else map(str.strip, targets.split(",")):
        if name.rpartition(".")[2] not in adapted:
            raise ConfigError(f"model.lora_targets names {name!r}, which fits no module of the model")
    adapted_policy = replace(policy, model=adapter.get_base_model(), adapter=adapter, family=None)
    return adapted_policy if policy.family is None else with_family(adapted_policy, say)


def with_merged_adapter(policy: Policy, say: Callable[[str], None]) -> Policy:
    """The policy with its adapter merged into the model's weights, which are trained again; only rounding differs."""
    assert isinstance(policy, CausalPolicy)
    model = policy.adapter.merge_and_unload().eval()
    model.requires_grad_(True)
    return examine_policy(replace(policy, model=model, adapter=None, family=None, onlookers=[]), say)


def suggested_sampling(model: Any) -> str:
    """What a model's generation config would change about sampling, had it a say."""
    suggested = getattr(model, "generation_config", None)
    neutral = {
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "typical_p": 1.0,
    }
    values = {name: getattr(suggested, name, None) for name in neutral}
    return ", ".join(f"{name} = {value}" for name, value in values.items() if value not in (None, neutral[name]))
