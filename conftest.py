"""Before anything is imported, tests get a home and caches of their own."""

import os
import shutil
import tempfile
from pathlib import Path

# One directory for all processes of a test session: what is expensive to make (the embedded model, the unpacked
# SmolLM2) is made once, and nothing of the user's home or caches is read or written.
HOME = "ASSAY_TEST_HOME"
PLACES = {
    "HOME": "",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "HF_HOME": ".cache/huggingface",
    "TORCH_HOME": ".cache/torch",
    "TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor",
    "TRITON_HOME": "",
    "TRITON_CACHE_DIR": ".triton/cache",
    "MPLCONFIGDIR": ".config/matplotlib",
    "WANDB_DIR": ".cache/wandb-runs",
    "WANDB_CACHE_DIR": ".cache/wandb",
    "WANDB_CONFIG_DIR": ".config/wandb",
    "WANDB_DATA_DIR": ".local/share/wandb",
}
# each would win over the places above
OVERRULING = (
    "HF_ASSETS_CACHE", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_TOKEN_PATH", "HF_XET_CACHE",
    "HUGGINGFACE_ASSETS_CACHE", "HUGGINGFACE_HUB_CACHE", "PYTORCH_KERNEL_CACHE_PATH", "TRACKIO_DIR",
    "TRANSFORMERS_CACHE", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR",
)  # fmt: skip

makes_the_home = HOME not in os.environ  # not in the processes that a test session starts
if makes_the_home:
    os.environ[HOME] = tempfile.mkdtemp(prefix="assay-tests-")
for variable, place in PLACES.items():
    path = Path(os.environ[HOME], place)
    path.mkdir(parents=True, exist_ok=True)
    os.environ[variable] = str(path)
for variable in OVERRULING:
    os.environ.pop(variable, None)

# As `assay train` does for bfloat16 on a CPU, before the first matrix product: virtual machines announce AMX and then
# refuse it, and the process dies with SIGILL (assay/train/run/cpu.py).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_unconfigure():
    if makes_the_home:
        shutil.rmtree(os.environ[HOME], ignore_errors=True)
