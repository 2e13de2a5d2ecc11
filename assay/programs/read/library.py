"""What calls into libraries give: torch, numpy, transformers, accelerate, peft, argparse, and Python's own."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from assay.programs.graph import UNKNOWN, Value, bound, canonical
from assay.programs.read import containers
from assay.programs.read.engines import initialized
from assay.programs.read.settings import READERS, parsed
from assay.programs.read.things import Class, Function, Instance, Library, Listing, Partial, Table

if TYPE_CHECKING:
    from assay.programs.read.calls import Calls

Values = list[Value]
Keywords = dict[str, Value]

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
_MODELS = ("pretrained", "instance", "deepcopy", "module", "wrapped", "prepared", "submodule")
# parts of a library's network that people call by themselves
_PARTS = frozenset("lm_head model transformer base_model score v_head value_head embed_out backbone module".split())


def is_model(value: Value) -> bool:
    if value.op == "instance":
        return isinstance(value.thing, Instance) and value.thing.of.is_module
    if value.op == "attribute" and value.name == "module" and value.input is not None:
        return value.input.op == "wrapped"
    return value.op in _MODELS


def is_known_method(name: str) -> bool:
    return name in KNOWN_METHODS or canonical(name) is not None


def call(machine: Calls, function: Library, positional: Values, keywords: Keywords, node: ast.AST) -> Value:
    path, last = function.path, function.last
    if function.root == "builtins":
        owner = path.split(".")[1]
        if last in _TOKENIZES and owner not in (last, "str", "bytes"):  # a name that the file does not define
            return method(machine, machine.new("unknown", node, name=owner), last, positional, keywords, node)
        return _builtin(machine, last, positional, keywords, node)
    if path.endswith("copy.deepcopy") or path in ("copy.copy", "deepcopy"):
        return _copied(machine, positional, node, "copy" if path == "copy.copy" else "")
    is_optimizer = last in OPTIMIZERS or (".optim." in path and last[:1].isupper() and "lr_scheduler" not in path)
    if is_optimizer and not any(part in _OTHER_FRAMEWORKS for part in path.split(".")):
        arguments = bound("optimizer", last, positional, keywords)
        arguments = {("parameters" if name in ("input", "params") else name): one for name, one in arguments.items()}
        if "1" in arguments:
            arguments.setdefault("lr", arguments.pop("1"))
        return machine.new("optimizer", node, arguments, name=last)
    if (
        "lr_scheduler" in path
        or (last.startswith("get_") and last.endswith("_schedule_with_warmup"))
        or last == "get_scheduler"
    ):
        return machine.new("scheduler", node, _all(positional, keywords), name=last)
    if last == "from_pretrained":
        owner = path.rpartition(".")[0].rpartition(".")[2]
        is_language_model = "Model" in owner or "ForCausalLM" in owner
        op = "pretrained" if is_language_model else "call"
        return machine.new(op, node, _all(positional, keywords), name=owner)
    if last == "from_config" and "Model" in path:
        return machine.new("pretrained", node, _all(positional, keywords), name=path.split(".")[-2])
    if last.endswith(("ForCausalLM", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification")):
        return machine.new("pretrained", node, _all(positional, keywords), name=last)
    if (
        last in WRAPPERS
        and path != "re.compile"
        and (inner := [*positional, *(keywords[one] for one in ("module", "model") if one in keywords)])
    ):
        others = {name: one for name, one in keywords.items() if one is not inner[0]}
        return machine.new("wrapped", node, _all([inner[0], *positional[1:]], others), name=last, thing=inner[0].thing)
    if path.endswith("deepspeed.initialize") and (engine := initialized(machine, positional, keywords, node)):
        return engine
    if last in ("Categorical", "OneHotCategorical"):
        return machine.new("categorical", node, _named(("probs", "logits"), positional, keywords), name=last)
    if last == "partial" and positional:
        return machine.new("partial", node, thing=Partial(positional[0], positional[1:], keywords))
    if last in ("TensorDataset",):
        return machine.new("tensor_dataset", node, _all(positional, keywords))
    if last in ("DataLoader", "BatchSampler", "SubsetRandomSampler"):
        return machine.new(
            "dataloader",
            node,
            _named(("input", "batch_size", "shuffle"), positional, _renamed(keywords, "dataset", "input")),
            name=last,
        )
    if last in PROGRESS:
        return machine.new(
            "progress" if last != "trange" else "range", node, _progress(machine, last, positional, keywords, node)
        )
    if last in ("SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotMap", "ConfigDict"):
        table = Table(dict(keywords), is_namespace=True)
        if positional and isinstance(positional[0].thing, Table):
            table.entries |= positional[0].thing.entries
        return machine.new("table", node, keywords, thing=table)
    text = positional[0].constant if positional and path.endswith(tuple(READERS)) else None
    if isinstance(text, str) and (written := parsed(machine, text, node)) is not None:
        return written
    if path.endswith("OmegaConf.create") and positional and isinstance(positional[0].thing, Table):
        return machine.new("table", node, thing=Table(positional[0].thing.entries, is_namespace=True))
    if last in ("defaultdict", "OrderedDict", "Counter"):
        factory = positional[0] if last == "defaultdict" and positional else None
        return machine.new("table", node, keywords, thing=Table(dict(keywords), factory=factory))
    if last == "deque":
        return machine.listing(node, [], exact=False)
    if last == "ArgumentParser":
        return machine.new("parser", node, thing=Table(is_namespace=True))
    if last in ("cli", "parse") and positional and isinstance(positional[0].thing, Class):
        return containers.configured_instance(machine, positional[0], node)  # tyro, simple_parsing, draccus
    if last == "HfArgumentParser" and positional:
        return machine.new("parser", node, {"input": positional[0]}, name=last)
    if (
        last in ("Fire", "run")
        and positional
        and isinstance(positional[0].thing, Function)
        and function.root in ("fire", "typer", "asyncio")
    ):
        return machine.invoke(positional[0], [], {}, node)
    if last in ("manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything"):
        return machine.new("manual_seed", node, _named(("seed",), positional, keywords), name=path)
    if path.startswith(("torch.nn.utils.clip_grad", "torch.nn.utils.clip_grads")) or last in (
        "clip_grad_norm_",
        "clip_grad_value_",
    ):
        return machine.new("clip_grad_norm", node, bound("clip_grad_norm", last, positional, keywords))
    if path == "torch.autograd.backward" and positional:
        return machine.new("backward", node, {"input": positional[0]})
    if function.root in NUMERIC or path.startswith("torch."):
        return _numeric(machine, function, positional, keywords, node)
    operation = canonical(last)
    if operation is not None and function.root in ("einops", "trl", "verl", "functional", "F"):
        return machine.new(operation, node, bound(operation, last, positional, keywords), name=path)
    return machine.new("call", node, _all(positional, keywords), name=path)


def _numeric(machine: Calls, function: Library, positional: Values, keywords: Keywords, node: ast.AST) -> Value:
    path, last = function.path, function.last
    if path.startswith("torch.nn.") and last[:1].isupper() and "functional" not in path and "utils" not in path:
        return machine.new("module", node, _all(positional, keywords), name=last)
    if last in ("minimum", "maximum"):
        return machine.new(last, node, bound(last, last, positional, keywords), name=path)
    if last in ("min", "max"):
        return _extreme(machine, last, positional, keywords, node, path)
    named = {"fmean": "mean", "stdev": "std", "pstdev": "std"}.get(last) or canonical(last)
    if named is None:
        return machine.new("call", node, _all(positional, keywords), name=path)
    arguments = bound(named, last, positional, keywords)
    if named == "std" and function.root == "numpy":
        arguments = {("correction" if name in ("ddof", "unbiased") else name): one for name, one in arguments.items()}
    return _made(machine, named, arguments, node, path)


def _made(machine: Calls, op: str, arguments: Keywords, node: ast.AST, name: str) -> Value:
    constant: Any = UNKNOWN
    if op in ("tensor", "cast", "leave"):
        inner = arguments.get("data") or arguments.get("input")
        if inner is not None and isinstance(inner.constant, int | float):
            constant = inner.constant
    thing = None
    if op in ("tensor", "cast") and (inner := arguments.get("data") or arguments.get("input")) is not None:
        thing = inner.thing if isinstance(inner.thing, Instance | Class) else None
    return machine.new(op, node, arguments, name=name, constant=constant, thing=thing)


def _extreme(machine: Calls, last: str, positional: Values, keywords: Keywords, node: ast.AST, name: str) -> Value:
    """torch.min(a, b) is elementwise; torch.min(a) and torch.min(a, 1) reduce."""
    other = positional[1] if len(positional) > 1 else keywords.get("other")
    if other is not None and not isinstance(other.constant, int) and "dim" not in keywords:
        op = "minimum" if last == "min" else "maximum"
        return machine.new(op, node, {"input": positional[0], "other": other}, name=name)
    return machine.new(last, node, bound(last, last, positional, keywords), name=name)


def method(machine: Calls, base: Value, name: str, positional: Values, keywords: Keywords, node: ast.AST) -> Value:
    """A method of something that is not an object of the program."""
    thing = base.thing
    if isinstance(thing, Listing):
        changed = containers.of_listing(machine, base, thing, name, positional, node)
        if changed is not None:
            return changed
    if isinstance(thing, Table):
        found = containers.of_table(machine, base, thing, name, positional, keywords, node)
        if found is not None:
            return found
    if base.op == "parser" and name == "parse_args_into_dataclasses":
        return containers.parsed_classes(machine, base, node)
    if name == "prepare" and len(positional) >= 1:
        machine.new("prepare", node, {"engine": base, **_all(positional, keywords)})
        return positional[0] if len(positional) == 1 else machine.listing(node, positional)
    if name in ("unwrap_model", "unwrap") and positional and is_model(positional[0]):
        return machine.new("wrapped", node, {"0": positional[0]}, name="unwrap_model", thing=positional[0].thing)
    if name in ("unwrap_model", "prepare_model", "prepare_optimizer", "unwrap") and positional:
        machine.new("prepare", node, {"engine": base, **_all(positional, keywords)}, name=name)
        return positional[0]
    if name in ("backward", "manual_backward") and positional:
        return machine.new("backward", node, {"input": positional[0], "engine": base, **keywords})
    if name == "scale" and len(positional) == 1:
        return machine.new("scaled", node, {"input": positional[0], "engine": base})
    if name == "step" and positional and positional[0].op in ("optimizer", "prepared"):
        return machine.new("step", node, {"input": positional[0], "engine": base})
    if name in ("clip_grad_norm_", "clip_grad_value_"):
        return machine.new("clip_grad_norm", node, bound("clip_grad_norm", name, positional, keywords))
    if (
        name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes")
        and len(positional) == 1
        and "index" not in keywords
    ):
        return machine.new("cast", node, {"input": positional[0], "engine": base}, name=name)
    if name in ("min", "max") and positional and not isinstance(positional[0].constant, int):
        return _extreme(machine, name, [base, *positional], keywords, node, name)
    if name in KNOWN_METHODS:
        event = machine.new(name, node, {"input": base, **_all(positional, keywords, start=1)}, name=name)
        return base if name in RETURNS_ITSELF else event
    if name == "submodule" or (
        name in ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "share_memory") and is_model(base)
    ):
        machine.new("moved", node, {"input": base, **_all(positional, keywords, start=1)}, name=name)
        return base
    if name in _PARTS and is_model(base) and base.op != "instance":
        part = machine.attribute(base, name, node)
        arguments = {f"given_{key}": one for key, one in _all(positional, keywords).items()}
        return machine.new("forward", node, {"model": part, **arguments}, name=name)
    op = canonical(name)
    if op is not None:
        arguments = bound(op, name, [base, *positional], keywords)
        if op == "cast" and name == "requires_grad_" and is_model(base):
            machine.new("requires_grad_", node, arguments, name=name)
            return base
        return _made(machine, op, arguments, node, name)
    return machine.new("method", node, {"input": base, **_all(positional, keywords, start=1)}, name=name)


def unknown_call(machine: Calls, callee: Value, positional: Values, keywords: Keywords, node: ast.AST) -> Value:
    """A call of something that is not known: a model, a tokenizer, a function that came in as a parameter."""
    if is_model(callee) or (callee.op == "phi" and any(is_model(one) for one in callee.arguments.values())):
        arguments = {f"given_{name}": one for name, one in _all(positional, keywords).items()}
        return machine.new("forward", node, {"model": callee, **arguments}, name=callee.name)
    return machine.new("call", node, {"callee": callee, **_all(positional, keywords)}, name=callee.name)


def field_default(machine: Calls, default: Value, node: ast.AST) -> Value:
    """The default of a field of a dataclass; a user may set another, so it decides no branch."""
    if default.op == "call" and default.name.endswith("field"):
        if "default" in default.arguments:
            default = default.arguments["default"]
        elif "default_factory" in default.arguments:
            return machine.invoke(default.arguments["default_factory"], [], {}, node)
    if default.constant is not UNKNOWN:
        return machine.new("config", node, {"input": default}, constant=default.constant)
    return default


def _copied(machine: Calls, positional: Values, node: ast.AST, name: str = "") -> Value:
    if not positional:
        return machine.new("call", node, name="deepcopy")
    original = positional[0]
    thing = original.thing
    if isinstance(thing, Instance):
        copy = Instance(thing.of)
        machine.keep(copy)
        for (owner, name), value in list(machine.heap.items()):
            if owner == id(thing):  # its layers are copies too
                is_layer = value.op in (*_MODELS, "deepcopy") and value is not original
                machine.heap[id(copy), name] = _copied(machine, [value], node) if is_layer else value
        thing = copy
    elif isinstance(thing, Listing):
        thing = Listing(list(thing.elements), thing.exact)
    elif isinstance(thing, Table):
        thing = Table(dict(thing.entries), list(thing.rest), thing.factory, thing.is_namespace)
    return machine.new("deepcopy", node, {"input": original}, name=name, thing=thing)


def _builtin(machine: Calls, name: str, positional: Values, keywords: Keywords, node: ast.AST) -> Value:
    first = positional[0] if positional else None
    if name in ("range", "slice"):
        names = ("stop",) if len(positional) == 1 else ("start", "stop", "step")
        return machine.new(name, node, dict(zip(names, positional, strict=False)))
    if name in ("zip", "enumerate", "reversed"):
        keys = ("input",) if name != "zip" else ()
        return machine.new(name, node, _named(keys, positional, {}), name=name)
    if name in ("list", "tuple", "set", "sorted", "iter", "frozenset"):
        if first is None:
            return machine.listing(node, [])
        if isinstance(first.thing, Listing):
            ordered = name in ("list", "tuple", "iter")
            copied = machine.listing(node, first.thing.elements, first.thing.exact and ordered)
            copied.name = "" if ordered else name
            copied.thing.parts = (first,)
            return copied
        copied = machine.listing(node, [machine.element(first, node)], exact=False)
        copied.name = name if name in ("set", "sorted", "frozenset") else ""
        copied.thing.parts = (first,)
        return copied
    if name == "next" and first is not None:
        return machine.first(first, node)
    if name == "map" and len(positional) > 1:
        parts = [machine.element(one, node) for one in positional[1:]]
        return machine.listing(node, [machine.invoke(positional[0], parts, {}, node)], exact=False)
    if name == "filter" and len(positional) > 1:
        return positional[1]
    if name == "dict":
        table = Table(dict(keywords))
        if first is not None and isinstance(first.thing, Table):
            table.entries = {**first.thing.entries, **table.entries}
        return machine.new("table", node, keywords, thing=table)
    if name in ("float", "int", "bool", "round") and first is not None:
        op = "leave" if name == "float" and first.constant is UNKNOWN else "cast"
        return machine.new(op, node, {"input": first}, name=name, constant=_number(name, first))
    if name in ("sum", "abs") and first is not None:
        return machine.new(name, node, {"input": first}, name=f"builtins.{name}")
    if name in ("min", "max"):
        if len(positional) == 2:
            op = "minimum" if name == "min" else "maximum"
            constants = [one.constant for one in positional]
            known = all(isinstance(one, int | float) for one in constants)
            constant = (min if name == "min" else max)(constants) if known else UNKNOWN
            return machine.new(
                op, node, {"input": positional[0], "other": positional[1]}, name=f"builtins.{name}", constant=constant
            )
        return machine.new(name, node, _all(positional, {}), name=f"builtins.{name}")
    if name == "len" and first is not None:
        exact = isinstance(first.thing, Listing) and first.thing.exact and first.op == "listing"
        constant = len(first.thing.elements) if exact else UNKNOWN
        return machine.new("len", node, {"input": first}, constant=constant)
    if name == "getattr" and len(positional) >= 2 and isinstance(positional[1].constant, str) and first is not None:
        return machine.attribute(first, positional[1].constant, node)
    if name == "setattr" and len(positional) == 3 and isinstance(positional[1].constant, str) and first is not None:
        machine.heap[id(first.thing if isinstance(first.thing, Instance) else first), positional[1].constant] = (
            positional[2]
        )
        machine.keep(first)
        return machine.constant(node, None)
    return machine.new("call", node, _all(positional, keywords), name=f"builtins.{name}")


def _number(name: str, value: Value) -> Any:
    if isinstance(value.constant, int | float) and abs(value.constant) < 1e15:
        kinds: dict[str, Any] = {"float": float, "int": int, "bool": bool, "round": round}
        return kinds[name](value.constant)
    return UNKNOWN


def _progress(machine: Calls, last: str, positional: Values, keywords: Keywords, node: ast.AST) -> Keywords:
    if last == "trange":
        return _named(("stop",), positional, {})
    return _named(("input",), positional, _renamed(keywords, "iterable", "input"))


def _renamed(keywords: Keywords, old: str, new: str) -> Keywords:
    return {(new if name == old else name): value for name, value in keywords.items()}


def _named(names: tuple[str, ...], positional: Values, keywords: Keywords) -> Keywords:
    given = {(names[number] if number < len(names) else str(number)): one for number, one in enumerate(positional)}
    return {**given, **keywords}


def _all(positional: Values, keywords: Keywords, start: int = 0) -> Keywords:
    return {**{str(number): one for number, one in enumerate(positional, start)}, **keywords}
