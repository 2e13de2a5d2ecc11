"""What calls into libraries give: torch, numpy, transformers, accelerate, peft, argparse, and Python's own."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Mapping
from typing import Any

from assay.programs.graph import UNKNOWN, Value, bound, canonical
from assay.programs.read.access import attribute, set_attribute
from assay.programs.read.collections import choices, element, first
from assay.programs.read.containers import configured_instance, method_of_listing, method_of_table, parsed_classes
from assay.programs.read.einops import arrange
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.records import fields_as_table, handed_over, iterated, named_tuple, started, transposed
from assay.programs.read.settings import READERS, parse_settings
from assay.programs.read.things import Call, Class, Function, Instance, Library, Listing, Partial, Table

NUMERIC = {"torch", "numpy", "math", "statistics", "scipy", "jax", "tensorflow", "mlx"}
OPTIMIZERS = frozenset(
    "Adam AdamW SGD RMSprop Adafactor Adagrad Lion AdamW8bit Adam8bit PagedAdamW8bit Muon NAdam RAdam Adamax "
    "PagedAdamW32bit ZeroRedundancyOptimizer DeepSpeedCPUAdam FusedAdam".split()
)
_OTHER_FRAMEWORKS = ("warp", "warp_nn", "jax", "flax", "optax", "tensorflow", "keras", "mlx", "paddle")
WRAPPERS = frozenset(
    "compile DistributedDataParallel DataParallel DDP FSDP FullyShardedDataParallel get_peft_model PeftModel "
    "prepare_model_for_kbit_training fully_shard checkpoint_wrapper".split()
)
PROGRESS = frozenset({"tqdm", "trange", "track"})
# methods that are events or that the checks know by name; all else is "method"
KNOWN_METHODS = frozenset(
    "backward step zero_grad eval train generate sample rsample log_prob entropy state_dict load_state_dict parameters "
    "named_parameters decode batch_decode encode convert_ids_to_tokens apply_chat_template disable_adapter "
    "gradient_checkpointing_enable update update_ merge_adapter unmerge_adapter set_seed "
    "reset_prefix_cache load_weights chat completions submit result".split()
)
_TOKENIZES = frozenset({"decode", "batch_decode", "encode", "apply_chat_template"})
RETURNS_ITSELF = frozenset({"eval", "train", "requires_grad_", "share_memory", "gradient_checkpointing_enable"})
MODELS = ("pretrained", "instance", "deepcopy", "module", "wrapped", "submodule")
_DEEPSPEED = ("args", "model", "optimizer", "model_parameters", "training_data", "lr_scheduler")
_SEEDS = ("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything")
_NAMESPACES = ("SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotMap", "ConfigDict")
_LANGUAGEMODELS = ("ForCausalLM", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")
_PLAIN_LAYERS = frozenset("Softmax LogSoftmax Dropout ReLU GELU SiLU Tanh Sigmoid Identity Flatten Softplus".split())
_LOSS_LAYERS = {
    "MSELoss": "mse_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "smooth_l1_loss", "KLDivLoss": "kl_div"
}  # fmt: skip
# parts of a library's network that people call by themselves
_PARTS = frozenset("lm_head model transformer base_model score v_head value_head embed_out backbone module".split())
_SHAPES = frozenset({"temperature", "top_p", "top_k", "min_p", "do_sample"})  # of the distribution of a draw
_LENGTHS = frozenset("max_new_tokens max_tokens max_completion_tokens max_gen_len max_length max_gen_tokens".split())
_DRAWS = re.compile(r"generat|rollout|sample_(?!weight)", re.I)  # in the name of a function that is given a network
_GATHERS = ("gather", "gather_for_metrics", "reduce", "pad_across_processes")
_MOVES = ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "share_memory")
_QUEUES = ("Queue", "SimpleQueue", "JoinableQueue", "LifoQueue", "PriorityQueue")
_CHECKPOINT_SETTINGS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug")
_NUMBERS: dict[str, Any] = {"float": float, "int": int, "bool": bool, "round": round}


def is_model(value: Value) -> bool:
    if value.op == "instance":
        return isinstance(value.thing, Instance) and value.thing.cls.is_module
    if value.op == "attribute" and value.name == "module" and value.input is not None:
        return value.input.op == "wrapped" or any(part.op == "wrapped" for part in choices(value.input))
    return value.op in MODELS


def is_without_weights(layer: str) -> bool:
    """Losses, activations and the like of torch.nn: they hold nothing that is trained."""
    return layer.endswith("Loss") or layer in _PLAIN_LAYERS


def is_known_method(name: str) -> bool:
    return name in KNOWN_METHODS or canonical(name) is not None


def call(interpreter: Interpreter, function: Library, given: Call) -> Value:
    path, last, node = function.path, function.last, given.node
    operand, keywords = given.first, given.keywords
    if function.root == "builtins":
        owner = path.split(".")[1]
        if last in _TOKENIZES and owner not in (last, "str", "bytes"):  # a name that the file does not define
            return method(interpreter, interpreter.new("unknown", node, name=owner), last, given)
        if not hasattr(builtins, owner) and is_drawing(keywords):
            return _draw(interpreter, given, last)
        return _builtin(interpreter, last, given)
    if last == "post" and (asked := _asked_of_server(given)):
        return interpreter.new("generate", node, asked, name=last)
    if path.endswith("copy.deepcopy") or path in ("copy.copy", "deepcopy"):
        if operand is None:
            return interpreter.new("call", node, name="deepcopy")
        return _copy(interpreter, operand, node, "copy" if path == "copy.copy" else "")
    if is_optimizer_class([path]):
        return interpreter.new("optimizer", node, given_to_optimizer(given), name=last)
    if (
        "lr_scheduler" in path
        or (last.startswith("get_") and last.endswith("_schedule_with_warmup"))
        or last == "get_scheduler"
    ):
        return interpreter.new("scheduler", node, given.arguments(), name=last)
    if last == "from_pretrained":
        owner = path.rpartition(".")[0].rpartition(".")[2]
        is_language_model = "Model" in owner or "ForCausalLM" in owner
        return interpreter.new("pretrained" if is_language_model else "call", node, given.arguments(), name=owner)
    if last == "from_config" and "Model" in path:
        return interpreter.new("pretrained", node, given.arguments(), name=path.split(".")[-2])
    if last.endswith(_LANGUAGEMODELS):
        return interpreter.new("pretrained", node, given.arguments(), name=last)
    wrapped = operand or keywords.get("module") or keywords.get("model")
    if last in WRAPPERS and path != "re.compile" and wrapped is not None:
        others = {name: value for name, value in keywords.items() if value is not wrapped}
        arguments = Call(node, [wrapped, *given.positional[1:]], others).arguments()
        return interpreter.new("wrapped", node, arguments, name=last, thing=wrapped.thing)
    if path.endswith("deepspeed.initialize") and (engine := _deepspeed(interpreter, given)) is not None:
        return engine
    if last in ("Categorical", "OneHotCategorical"):
        return interpreter.new("categorical", node, given.arguments("probs", "logits"), name=last)
    if operand is not None and (found := iterated(interpreter, path, given)) is not None:
        return found
    if path.endswith("checkpoint.checkpoint") and operand is not None:
        keywords = {name: value for name, value in keywords.items() if name not in _CHECKPOINT_SETTINGS}
        return interpreter.invoke(operand, Call(node, given.positional[1:], keywords))
    if last == "partial" and operand is not None:
        return interpreter.new("partial", node, thing=Partial(operand, Call(node, given.positional[1:], keywords)))
    if last == "TensorDataset":
        return interpreter.new("tensor_dataset", node, given.arguments())
    if last in ("DataLoader", "BatchSampler", "SubsetRandomSampler"):
        arguments = _rename(given.arguments("input", "batch_size", "shuffle"), dataset="input")
        return interpreter.new("dataloader", node, arguments, name=last)
    if last == "trange":
        return interpreter.new("range", node, Call(node, given.positional).arguments("stop"))
    if last in PROGRESS:
        return interpreter.new("progress", node, _rename(given.arguments("input"), iterable="input"))
    if last in _NAMESPACES:
        table = Table(dict(keywords), is_namespace=True)
        if operand is not None and isinstance(operand.thing, Table):
            table.entries |= operand.thing.entries
        return interpreter.new("table", node, keywords, thing=table)
    if operand is not None and isinstance(operand.constant, str) and path.endswith(READERS):
        written = parse_settings(interpreter, operand.constant, node)
        if written is not None:
            return written
    if path.endswith("OmegaConf.create") and operand is not None and isinstance(operand.thing, Table):
        return interpreter.new("table", node, thing=Table(operand.thing.entries, is_namespace=True))
    if last == "namedtuple" and len(given.positional) > 1:
        return named_tuple(interpreter, given)
    if last in ("defaultdict", "OrderedDict", "Counter"):
        factory = operand if last == "defaultdict" else None
        return interpreter.new("table", node, keywords, thing=Table(dict(keywords), factory=factory))
    if (begun := started(interpreter, path, given)) is not None:
        return begun
    if last == "deque" or (last in _QUEUES and function.root != "builtins"):
        return interpreter.listing(node, [], exact=False)
    if last == "ArgumentParser":
        return interpreter.new("parser", node, thing=Table(is_namespace=True))
    if last in ("cli", "parse") and operand is not None and isinstance(operand.thing, Class):
        return configured_instance(interpreter, operand, node)  # tyro, simple_parsing, draccus
    if last == "HfArgumentParser" and operand is not None:
        return interpreter.new("parser", node, {"input": operand}, name=last)
    is_main = last in ("Fire", "run") and function.root in ("fire", "typer", "asyncio")
    if is_main and operand is not None and isinstance(operand.thing, Function):
        return interpreter.invoke(operand, Call(node))
    if path == "requests.post" and (answer := _posted(interpreter, interpreter.library(node, path), given)) is not None:
        return answer
    if last in _SEEDS:
        return interpreter.new("manual_seed", node, given.arguments("seed"), name=path)
    if path.startswith("torch.nn.utils.clip_grad") or last in ("clip_grad_norm_", "clip_grad_value_"):
        return interpreter.new("clip_grad_norm", node, bound("clip_grad_norm", last, given.positional, keywords))
    if path == "torch.autograd.backward" and operand is not None:
        return interpreter.new("backward", node, {"input": operand})
    if function.root in NUMERIC:
        return _numeric(interpreter, function, given)
    if function.root == "einops" and (arranged := arrange(interpreter, last, given)) is not None:
        return arranged
    operation = canonical(last)
    if operation is not None and function.root in ("einops", "trl", "verl", "functional", "F"):
        return interpreter.new(operation, node, bound(operation, last, given.positional, keywords), name=path)
    network = next((value for value in given.positional[:2] if is_model(value)), None)
    if network is not None and last == "forward":  # forward(model, ids) of a library
        rest = [value for value in given.positional if value is not network]
        return _forward(interpreter, network, Call(node, rest, keywords), last)
    is_class = last[:1].isupper()
    if not is_class and (is_drawing(keywords) or (network is not None and _DRAWS.search(last))):
        return _draw(interpreter, given, last)
    return interpreter.new("call", node, given.arguments(), name=path)


def is_drawing(settings: Mapping[str, Value]) -> bool:
    """Whether a call draws tokens, by what it is given: a temperature or a cut of the distribution, and a length.

    A call with `messages` asks a judge, or another model than the one that is trained.
    """
    names = set(settings)
    shapes = len(names & _SHAPES)
    return "messages" not in names and ("sampling_params" in names or shapes > 1 or bool(shapes and names & _LENGTHS))


def _draw(interpreter: Interpreter, given: Call, name: str) -> Value:
    """A draw of tokens by a function that was not read, from the network that it is given."""
    network = next((value for value in given.positional[:2] if is_model(value)), None)
    others = [value for value in given.positional if value is not network]
    known = {"input": network} if network is not None else {}
    arguments = {**known, **Call(given.node, others, given.keywords).arguments(start=1)}
    return interpreter.new("generate", given.node, arguments, name=name)


def _posted(interpreter: Interpreter, base: Value, given: Call) -> Value | None:
    """The answer of a server that is asked for tokens, session.post(url, json={"temperature": ...}); else None."""
    body = given.keywords.get("json") or given.keywords.get("data")
    if body is not None and body.op == "call" and body.name == "json.dumps":
        body = body.argument("0")
    entries = body.thing.entries if body is not None and isinstance(body.thing, Table) else {}
    settings = {name: value for name, value in entries.items() if isinstance(name, str)}
    if body is None or not is_drawing(settings):
        return None
    return interpreter.new("generate", given.node, {"input": base, **settings, "body": body}, name="post")


def is_optimizer_class(paths: list[str]) -> bool:
    """Whether one of these is an optimizer of torch, or of a library like it."""
    for path in paths:
        last = path.rpartition(".")[2]
        is_named = last in OPTIMIZERS or (".optim." in path and last[:1].isupper() and "lr_scheduler" not in path)
        if is_named and not any(part in _OTHER_FRAMEWORKS for part in path.split(".")):
            return True
    return False


def given_to_optimizer(given: Call) -> dict[str, Value]:
    named = bound("optimizer", "", given.positional, given.keywords)
    arguments = _rename(named, input="parameters", params="parameters", param_groups="parameters")
    if "1" in arguments:
        arguments.setdefault("lr", arguments.pop("1"))
    return arguments


def _deepspeed(interpreter: Interpreter, given: Call) -> Value | None:
    """(engine, optimizer, loader, scheduler) of deepspeed.initialize; None where it is given no network."""
    arguments, node = given.arguments(*_DEEPSPEED), given.node
    model, optimizer = arguments.get("model"), arguments.get("optimizer")
    if model is None:
        return None
    others = {name: value for name, value in arguments.items() if name in ("config", "config_params", "args")}
    engine = interpreter.new("wrapped", node, {"0": model, **others}, name="deepspeed.initialize", thing=model.thing)
    if optimizer is None or optimizer.constant is None:
        held = arguments.get("model_parameters")
        if held is None or held.constant is None:
            held = interpreter.new("parameters", node, {"input": model}, name="parameters")
        rate = arguments.get("config")  # the learning rate that a configuration in the text gives its optimizer
        for key in ("optimizer", "params", "lr"):
            rate = rate.thing.entries.get(key) if rate is not None and isinstance(rate.thing, Table) else None
        known = {"lr": rate} if rate is not None else {}
        optimizer = interpreter.new("optimizer", node, {"parameters": held, **known}, name="deepspeed")
    loader = interpreter.new("unknown", node, name="training_dataloader")
    scheduler = arguments.get("lr_scheduler") or interpreter.new("unknown", node, name="lr_scheduler")
    return interpreter.listing(node, [engine, optimizer, loader, scheduler])


def _numeric(interpreter: Interpreter, function: Library, given: Call) -> Value:
    path, last, node = function.path, function.last, given.node
    if path.startswith("torch.nn.") and last[:1].isupper() and "functional" not in path and "utils" not in path:
        return interpreter.new("module", node, given.arguments(), name=last)
    if last in ("minimum", "maximum"):
        return interpreter.new(last, node, bound(last, last, given.positional, given.keywords), name=path)
    if last in ("min", "max"):
        return _extreme(interpreter, last, given, path)
    op = {"fmean": "mean", "stdev": "std", "pstdev": "std"}.get(last) or canonical(last)
    if path == "numpy.repeat":
        op = "repeat_interleave"  # numpy's tile is torch's repeat
    if op is None:
        return interpreter.new("call", node, given.arguments(), name=path)
    arguments = bound(op, last, given.positional, given.keywords)
    if op == "std" and function.root == "numpy":
        arguments = _rename(arguments, ddof="correction", unbiased="correction")
    return _operation(interpreter, op, arguments, node, path)


def _operation(interpreter: Interpreter, op: str, arguments: dict[str, Value], node: ast.AST, name: str) -> Value:
    constant: Any = UNKNOWN
    thing: Instance | Class | None = None
    inner = arguments.get("data") or arguments.get("input")
    if op in ("tensor", "cast", "leave") and inner is not None and isinstance(inner.constant, int | float):
        constant = inner.constant
    if op in ("tensor", "cast") and inner is not None and isinstance(inner.thing, Instance | Class):
        thing = inner.thing
    return interpreter.new(op, node, arguments, name=name, constant=constant, thing=thing)


def _extreme(interpreter: Interpreter, last: str, given: Call, name: str) -> Value:
    """torch.min(a, b) is elementwise; torch.min(a) and torch.min(a, 1) reduce."""
    other = given.positional[1] if len(given.positional) > 1 else given.keywords.get("other")
    if other is not None and not isinstance(other.constant, int) and "dim" not in given.keywords:
        return interpreter.new(f"{last}imum", given.node, {"input": given.positional[0], "other": other}, name=name)
    return interpreter.new(last, given.node, bound(last, last, given.positional, given.keywords), name=name)


def method(interpreter: Interpreter, base: Value, name: str, given: Call) -> Value:
    """A method of something that is not an object of the program."""
    node, operand, keywords = given.node, given.first, given.keywords
    found: Value | None = None
    if isinstance(base.thing, Listing):
        found = method_of_listing(interpreter, base, base.thing, name, given)
    elif isinstance(base.thing, Table):
        found = method_of_table(interpreter, base, base.thing, name, given)
    if found is None:
        found = handed_over(interpreter, base, name, given)
    if found is not None:
        return found
    if name == "post" and (asked := _asked_of_server(given)):
        return interpreter.new("generate", node, {"input": base, **asked}, name=name)
    if base.op == "parser" and name == "parse_args_into_dataclasses":
        return parsed_classes(interpreter, base, node)
    if operand is not None and name == "prepare":
        interpreter.new("prepare", node, {"engine": base, **given.arguments()})
        return operand if len(given.positional) == 1 else interpreter.listing(node, given.positional)
    if operand is not None and name in ("unwrap_model", "unwrap") and is_model(operand):
        return interpreter.new("wrapped", node, {"0": operand}, name="unwrap_model", thing=operand.thing)
    if operand is not None and name in ("unwrap_model", "prepare_model", "prepare_optimizer", "unwrap"):
        interpreter.new("prepare", node, {"engine": base, **given.arguments()}, name=name)
        return operand
    if operand is not None and name in ("backward", "manual_backward"):
        return interpreter.new("backward", node, {"input": operand, "engine": base, **keywords})
    if operand is not None and name == "scale" and len(given.positional) == 1:
        return interpreter.new("scaled", node, {"input": operand, "engine": base})
    if operand is not None and name == "step" and operand.op == "optimizer":
        return interpreter.new("step", node, {"input": operand, "engine": base})
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        return interpreter.new("clip_grad_norm", node, bound("clip_grad_norm", name, given.positional, keywords))
    if name in _GATHERS and operand is not None and len(given.positional) == 1 and "index" not in keywords:
        return interpreter.new("cast", node, {"input": operand, "engine": base}, name=name)
    if name in ("min", "max") and operand is not None and not isinstance(operand.constant, int):
        return _extreme(interpreter, name, given.with_first(base), name)
    if name in ("forward", "__call__"):
        return unknown_call(interpreter, base, given)
    if name in KNOWN_METHODS:
        event = interpreter.new(name, node, {"input": base, **given.arguments(start=1)}, name=name)
        return base if name in RETURNS_ITSELF else event
    if name == "submodule" or (name in _MOVES and is_model(base)):
        interpreter.new("moved", node, {"input": base, **given.arguments(start=1)}, name=name)
        return base
    if name in _PARTS and is_model(base) and base.op != "instance":
        return _forward(interpreter, attribute(interpreter, base, name, node), given, name)
    if name in ("post", "request") and (answer := _posted(interpreter, base, given)) is not None:
        return answer
    op = canonical(name)
    if op is None and is_drawing(keywords):
        return interpreter.new("generate", node, {"input": base, **given.arguments(start=1)}, name=name)
    if op is None:
        return interpreter.new("method", node, {"input": base, **given.arguments(start=1)}, name=name)
    if name == "repeat" and "axis" in keywords:  # of numpy
        op = "repeat_interleave"
    arguments = bound(op, name, [base, *given.positional], keywords)
    if name == "requires_grad_" and is_model(base):
        interpreter.new("requires_grad_", node, arguments, name=name)
        return base
    return _operation(interpreter, op, arguments, node, name)


def _asked_of_server(given: Call) -> dict[str, Value]:
    """What a server is asked to sample with: session.post(url, json={"prompts": ..., "temperature": ...})."""
    posted = given.keywords.get("json")
    entries = posted.thing.entries if posted is not None and isinstance(posted.thing, Table) else {}
    prompts = [entries[name] for name in ("prompts", "prompt", "input_ids", "inputs") if name in entries]
    if not prompts or "temperature" not in entries:
        return {}
    return {"1": prompts[0], **{name: value for name, value in entries.items() if isinstance(name, str)}}


def unknown_call(interpreter: Interpreter, callee: Value, given: Call) -> Value:
    """A call of something that is not known: a model, a tokenizer, a function that came in as a parameter."""
    if callee.op == "module" and callee.name in _LOSS_LAYERS:
        op = _LOSS_LAYERS[callee.name]
        settings = {name: value for name, value in callee.arguments.items() if not name.isdigit()}
        arguments = {**settings, **bound(op, op, given.positional, given.keywords)}
        return interpreter.new(op, given.node, arguments, name=callee.name)
    if is_model(callee) or (callee.op == "phi" and any(is_model(value) for value in callee.inputs)):
        return _forward(interpreter, callee, given, callee.name)
    if is_drawing(given.keywords):
        return _draw(interpreter, given, callee.name or "draw")
    return interpreter.new("call", given.node, {"callee": callee, **given.arguments()}, name=callee.name)


def _forward(interpreter: Interpreter, model: Value, given: Call, name: str) -> Value:
    arguments = {f"given_{key}": value for key, value in given.arguments().items()}
    return interpreter.new("forward", given.node, {"model": model, **arguments}, name=name)


def field_default(interpreter: Interpreter, default: Value, node: ast.AST) -> Value:
    """The default of a field of a dataclass; a user may set another, so it decides no branch."""
    if default.op == "call" and default.name.endswith("field"):
        if "default" in default.arguments:
            default = default.arguments["default"]
        elif "default_factory" in default.arguments:
            return interpreter.invoke(default.arguments["default_factory"], Call(node))
    if default.constant is not UNKNOWN:
        return interpreter.new("config", node, {"input": default}, constant=default.constant)
    return default


def _copy(interpreter: Interpreter, original: Value, node: ast.AST, name: str = "") -> Value:
    thing = original.thing
    if isinstance(thing, Instance):
        copy = Instance(thing.cls)
        interpreter.keep(copy)
        for (owner, key), value in list(interpreter.heap.items()):
            if owner == id(thing):  # its layers are copies too
                is_layer = value.op in MODELS and value is not original
                interpreter.heap[id(copy), key] = _copy(interpreter, value, node) if is_layer else value
        thing = copy
    elif isinstance(thing, Listing):
        thing = Listing(list(thing.elements), thing.exact)
    elif isinstance(thing, Table):
        thing = Table(dict(thing.entries), list(thing.rest), thing.factory, thing.is_namespace)
    return interpreter.new("deepcopy", node, {"input": original}, name=name, thing=thing)


def _builtin(interpreter: Interpreter, name: str, given: Call) -> Value:
    node, positional, operand = given.node, given.positional, given.first
    if name in ("range", "slice"):
        names = ("stop",) if len(positional) == 1 else ("start", "stop", "step")
        return interpreter.new(name, node, dict(zip(names, positional, strict=False)))
    if name == "zip" and (turned := transposed(interpreter, positional, node)) is not None:
        return turned
    if name == "vars" and operand is not None:
        return fields_as_table(interpreter, operand, node)
    if name in ("zip", "enumerate", "reversed"):
        return interpreter.new(
            name, node, Call(node, positional).arguments(*(["input"] if name != "zip" else [])), name=name
        )
    if name in ("list", "tuple", "set", "sorted", "iter", "frozenset"):
        if operand is None:
            return interpreter.listing(node, [])
        ordered = name in ("list", "tuple", "iter")
        if isinstance(operand.thing, Listing):
            copied = interpreter.listing(node, operand.thing.elements, operand.thing.exact and ordered)
        else:
            copied = interpreter.listing(node, [element(interpreter, operand, node)], exact=False)
        copied.name = "" if ordered else name
        copied.thing.parts = (operand,)
        return copied
    if name == "map" and len(positional) > 1:
        parts = [element(interpreter, source, node) for source in positional[1:]]
        return interpreter.listing(node, [interpreter.invoke(positional[0], Call(node, parts))], exact=False)
    if name == "filter" and len(positional) > 1:
        return positional[1]
    if name == "dict":
        table = Table(dict(given.keywords))
        if operand is not None and isinstance(operand.thing, Table):
            table.entries = {**operand.thing.entries, **table.entries}
        return interpreter.new("table", node, given.keywords, thing=table)
    if name in ("min", "max") and len(positional) == 2:
        constants = [value.constant for value in positional]
        known = all(isinstance(constant, int | float) for constant in constants)
        smallest_or_largest = (min if name == "min" else max)(constants) if known else UNKNOWN
        arguments = Call(node, positional).arguments("input", "other")
        return interpreter.new(f"{name}imum", node, arguments, name=f"builtins.{name}", constant=smallest_or_largest)
    if name in ("min", "max"):
        return interpreter.new(name, node, Call(node, positional).arguments(), name=f"builtins.{name}")
    if operand is not None:
        attribute_name = positional[1].constant if len(positional) > 1 else None
        if name == "next":  # each call gives another one
            inner = first(interpreter, operand, node)
            return interpreter.new("element", node, {"input": inner}, name="next", thing=inner.thing)
        if name in _NUMBERS:
            op = "leave" if name == "float" and operand.constant is UNKNOWN else "cast"
            return interpreter.new(op, node, {"input": operand}, name=name, constant=_number(name, operand.constant))
        if name in ("sum", "abs"):
            return interpreter.new(name, node, {"input": operand}, name=f"builtins.{name}")
        if name == "len":
            return interpreter.new("len", node, {"input": operand}, constant=_length(operand))
        if name == "getattr" and isinstance(attribute_name, str):
            return attribute(interpreter, operand, attribute_name, node)
        if name == "setattr" and isinstance(attribute_name, str) and len(positional) == 3:
            set_attribute(interpreter, operand, attribute_name, positional[2])
            interpreter.new("setattr", node, {"input": operand, "value": positional[2]}, name=attribute_name)
            return interpreter.constant(node, None)
    return interpreter.new("call", node, given.arguments(), name=f"builtins.{name}")


def _length(operand: Value) -> Any:
    """How long a list, a text or a dictionary is that the text of the script spells out."""
    thing = operand.thing
    if isinstance(operand.constant, str):
        return len(operand.constant)
    if isinstance(thing, Listing) and operand.op == "listing":
        if thing.exact:
            return len(thing.elements)
        spelt = thing.parts[0].constant if len(thing.parts) == 1 else None  # list("abc")
        return UNKNOWN if not isinstance(spelt, str) else len(set(spelt) if operand.name == "set" else spelt)
    return UNKNOWN


def _number(name: str, constant: Any) -> Any:
    return _NUMBERS[name](constant) if isinstance(constant, int | float) and abs(constant) < 1e15 else UNKNOWN


def _rename(arguments: dict[str, Value], **names: str) -> dict[str, Value]:
    return {names.get(name, name): value for name, value in arguments.items()}
