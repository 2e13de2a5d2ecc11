"""One frozen config of small parts. TOML file + `--set section.key=value` -> Config.

Every setting carries its meaning beside its default; `assay train --print-config` prints both.
"""

from assay.config.read import (
    from_mapping,
    load,
    read_options,
    template,
    to_mapping,
    to_toml,
    typed,
    with_absolute_paths,
)
from assay.config.refusals import ConfigError, nearest
from assay.config.sections import (
    AdvantageConfig,
    CheckpointConfig,
    Config,
    EvaluateConfig,
    JudgeConfig,
    LogConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RecordConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TaskConfig,
)

__all__ = [
    "AdvantageConfig",
    "CheckpointConfig",
    "Config",
    "ConfigError",
    "EvaluateConfig",
    "JudgeConfig",
    "LogConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RecordConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "TaskConfig",
    "from_mapping",
    "load",
    "nearest",
    "read_options",
    "template",
    "to_mapping",
    "to_toml",
    "typed",
    "with_absolute_paths",
]
