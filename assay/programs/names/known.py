"""The names that libraries have: in the version this list was made from, and in older ones.

python -m assay.programs.names.known      # writes known.json again; needs torch, numpy and transformers
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

_SHORT = 3  # letters: torch.npu is not a misspelt torch.cpu
FILE = Path(__file__).with_name("known.json")
_MODULES = (
    "torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.nn.utils.rnn torch.optim "
    "torch.optim.lr_scheduler torch.distributions torch.cuda torch.distributed torch.linalg torch.amp torch.autograd "
    "torch.utils.data torch.random torch.backends torch.special numpy numpy.random numpy.linalg math random "
    "os os.path time json copy"
).split()
_CLASSES = {"torch.Tensor": "torch", "torch.nn.Module": "torch.nn", "numpy.ndarray": "numpy"}
# those of transformers that training scripts use; the thousands of model classes are left out
_TRANSFORMERS = ("Auto", "Train", "get_", "Generation", "Logits", "Stopping", "set_seed", "pipeline", "BitsAndBytes",
                 "DataCollator", "default_data", "PreTrained", "TextStreamer")  # fmt: skip
# what older versions had
_REMOVED = {
    "torch": "symeig lstsq qr eig gels btrifact btriunpack solve matrix_rank potrf trtrs stft_ _six persistent_term "
    "FloatTensor get_num_interop has_mkl has_cudnn has_lapack has_cuda",
    "numpy": "float int bool object str long unicode complex alltrue sometrue product cumproduct in1d trapz row_stack "
    "asfarray NaN Inf NINF PINF infty PZERO NZERO Infinity cast source msort float_ complex_ unicode_ string_ mat "
    "find_common_type issctype maximum_sctype sctype2char issubclass_ issubsctype set_string_function rank asscalar "
    "recfromcsv recfromtxt safe_eval who lookfor deprecate byte_bounds compare_chararrays round_ typeDict disp "
    "nbytes obj2sctype sctypes set_numeric_ops tracemalloc_domain add_newdoc add_docstring ptp fv pv npv pmt irr",
    "torch.optim": "_LRScheduler",
    "torch.optim.lr_scheduler": "_LRScheduler",
    "torch.nn.functional": "upsample_nearest upsample_bilinear sigmoid tanh",
    "torch.nn": "Container DataParallelCriterion",
    "transformers": "AutoModelWithLMHead AutoModelForVision2Seq",
    "time": "clock",
    "os": "getcwdu errno",
    "math": "",
}


@cache
def known_names() -> dict[str, frozenset[str]]:
    """By the path of a module or a class."""
    return {path: frozenset(names.split()) for path, names in json.loads(FILE.read_text()).items()}


def unknown(path: str, name: str) -> str | None:
    """What is meant by a name that no known version of a library's module or class has, "" if that is not clear.

    None: it exists, or the list does not say.
    """
    names = known_names().get(path)
    if names is None or name in names or name.startswith("_"):
        return None
    if path == "transformers":
        # names of other versions differ from these by a word or by capitals
        names = frozenset(known for known in names if known.lower() != name.lower() and known.startswith("Auto"))
    near = get_close_matches(name, names, 1, 0.93 if path == "transformers" else 0.8)
    if near and len(name) > _SHORT:
        return f"{path}.{near[0]}"
    root = path.partition(".")[0]
    if root != "torch" or path == "torch.Tensor":
        return ""
    others = ("torch.nn.functional", "torch", "torch.nn", "torch.optim", "torch.distributions", "torch.nn.utils")
    return next((f"{other}.{name}" for other in others if other != path and name in known_names()[other]), "")


def _write() -> None:
    found: dict[str, str] = {}
    for path in _MODULES:
        module = import_module(path)
        names = {name for name in dir(module) if not name.startswith("_")} | set(_REMOVED.get(path, "").split())
        names |= {module.name for module in iter_modules(getattr(module, "__path__", []))}
        found[path] = " ".join(sorted(names))
    for path, owner in _CLASSES.items():
        cls = getattr(import_module(owner), path.rpartition(".")[2])
        found[path] = " ".join(sorted(name for name in dir(cls) if not name.startswith("__")))
    instance = import_module("torch.nn").Module()
    found["torch.nn.Module"] = " ".join(sorted({*found["torch.nn.Module"].split(), *vars(instance)}))
    used = [name for name in dir(import_module("transformers")) if name.startswith(_TRANSFORMERS)]
    found["transformers"] = " ".join(sorted({*used, *_REMOVED["transformers"].split()}))
    FILE.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    _write()
