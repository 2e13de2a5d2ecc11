"""Where a value comes from: which network made it, and whether a gradient flows back through it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from assay.programs.facts.kinds import Kind, Kinds
from assay.programs.graph import UNKNOWN, Graph, Value
from assay.programs.walk import ancestors, follow, walk

# containers and choices: whether a gradient flows is decided by what is in them
_HOLDS = frozenset("phi listing table element index stack cat setitem in_place starred zip enumerate items".split())
_CUTS = frozenset(
    "detach leave tensor multinomial sample argmax generate eq ne lt le gt ge logical_and logical_or logical_not not "
    "one_hot arange constant library config string len range argsort randperm".split()
)
_PICKS = frozenset("gather take_along_dim index where masked_fill index_select".split())  # by ids or a mask
_SELECTORS = {
    "gather": ("index",),
    "take_along_dim": ("index",),
    "index_select": ("index",),
    "cross_entropy": ("target",),
    "nll_loss": ("target",),
    "log_prob": ("value", "1"),
    "where": ("condition",),
    "masked_fill": ("mask",),
    "element": ("key",),
}
_FORM = frozenset("device dtype shape ndim size dim numel".split())  # of a tensor: none of its numbers
NETWORKS = frozenset({"instance", "pretrained", "deepcopy", "module"})
_PARTS = frozenset("module base_model model lm_head transformer score v_head value_head embed_out backbone".split())
_SHELLS = frozenset({"wrapped", "cast", "moved", "submodule"})  # around a network, or parts of it
_REGISTERS = ("add_module", "register_module", "register_parameter", "set_submodule")
_ADAPTERS = re.compile(r"lora|adapter|peft|inject|trainable|unfreeze", re.I)
_ADAPTER = re.compile(r"lora|adapt|low_?rank|peft", re.I)  # in the words of who makes them by hand
_PLAIN = re.compile(r"^given_(base|plain|reference|ref|frozen|(no|without|disable|skip)_)", re.I)
_BY_NAME = re.compile(r"^(disable|enable|set)_(adapter|lora)|^(un)?merge_(adapter|lora)", re.I)
_MOST_BEHIND = 200


class Origins:
    def __init__(self, graph: Graph, kinds: Kinds) -> None:
        self.graph = graph
        self.kinds = kinds
        self._gradient: dict[int, bool | None] = {}
        self._forwards: dict[int, list[Value]] = {}
        self._switched: dict[int, bool] = {}
        self._frozen = self._find_frozen()
        self._switches = _find_switches(graph)

    # gradients

    def gradient(self, value: Value) -> bool | None:
        """Whether the value depends on parameters through autograd; None where the text does not say."""
        if id(value) not in self._gradient:
            self._solve(value)
        return self._gradient[id(value)]

    def _solve(self, value: Value) -> None:
        """Answers for all that the value is made of, until nothing changes: in a loop that may be the value itself."""
        unknown = walk(
            value, lambda current: [part for part in self._behind(current) if id(part) not in self._gradient]
        )
        ordered = sorted(unknown, key=lambda current: current.order)
        for part in ordered:
            self._gradient[id(part)] = False
        changes = True
        while changes:
            changes = False
            for part in ordered:
                answer = self._find_gradient(part)
                if answer and part.context.grad_unknown and part.op not in _HOLDS:
                    answer = None
                if answer is not self._gradient[id(part)]:
                    self._gradient[id(part)] = answer
                    changes = True

    def _behind(self, value: Value) -> list[Value]:
        """The values whose gradients decide about this one."""
        if value.op in _CUTS or value.op in ("forward", "parameter"):
            return []
        if value.op in _PICKS:
            return [part for name, part in value.arguments.items() if name in ("input", "other", "value")]
        return value.inputs

    def _find_gradient(self, value: Value) -> bool | None:
        if value.op == "module" and value.name == "Parameter":
            return True
        if value.setting("requires_grad", False) is True and value.op in ("call", "tensor", "full"):
            return not self.forwards(value)  # a leaf; a copy of a loss is none
        if value.op in _CUTS or (value.op == "attribute" and value.name in ("data", "shape", "device", "dtype")):
            return False
        if value.op not in _HOLDS and value.context.no_grad:
            return False
        if value.op == "forward":
            model = network(value.arguments["model"])
            return not any(same_network(model, part) for part in self._frozen)
        if value.op == "call" and "callee" in value.arguments and is_network_call(value, self.kinds):
            model = network(value.arguments["callee"])
            return True if any(same_network(model, part) for part in self._strangers) else None
        if value.op == "parameter" or (value.op in ("call", "method", "attribute") and "callee" in value.arguments):
            return None
        if value.op == "method" and value.input is not None and network(value.input).op in NETWORKS:
            return None  # what a method of a network gives, the text does not say
        answers = [self._gradient[id(part)] for part in self._behind(value)]
        if True in answers:
            return True
        return None if None in answers or (not answers and value.op in ("attribute", "unknown")) else False

    @cached_property
    def _strangers(self) -> list[Value]:
        """Networks that are handed in, of which the text shows that they are trained.

        An optimizer holds their parameters; or a loss is differentiated that no other network is in.
        """
        found = [network(model) for model in self._held()]
        for backward in self.graph.of("backward"):
            calls = self.forwards(backward.input) if backward.input is not None else []
            attached = [call for call in calls if not call.context.no_grad]
            if any(call.op == "forward" for call in attached):
                continue
            models = [network(call.arguments["callee"]) for call in attached]
            if models and all(same_network(model, models[0]) for model in models):
                found.append(models[0])
        return found

    def _held(self) -> list[Value]:
        """The networks whose parameters an optimizer holds."""
        return [
            network(parameters.input)
            for optimizer in self.graph.of("optimizer")
            for parameters in _parameters(optimizer.arguments.get("parameters"))
            if parameters.input is not None
        ]

    def _find_frozen(self) -> list[Value]:
        """Networks whose parameters are set to need no gradient."""
        found: list[Value] = []
        for value, on in gradient_switches(self.graph):
            target = value.input
            parameters = None if target is None else parameters_of(target)
            if on is not False or target is None:
                continue
            if parameters is not None and value.context.branches != parameters.context.branches:
                continue  # some of its parameters only
            model = network(target if parameters is None or parameters.input is None else parameters.input)
            if not self._is_thawed(model, value):
                found.append(model)
        return found

    def _is_thawed(self, model: Value, frozen: Value) -> bool:
        """Whether parameters of a frozen network are trained all the same: adapters, a part that is thawed later."""
        for value in self.graph.of("wrapped"):
            if value.name in ("get_peft_model", "PeftModel") and network(value) is model:
                return True
        last = max((value.order for value in self.graph.of("backward")), default=frozen.order)
        for value, base in _new_parts(self.graph):
            if frozen.order < value.order < last and _is_part_of(base, model):
                return True
        for optimizer in self.graph.of("optimizer"):
            given = optimizer.arguments.get("parameters")
            if given is not None and optimizer.order > frozen.order and _is_filtered(given):
                return True  # an optimizer without parameters raises: some are left
        return any(
            on is not False
            and value.order >= frozen.order
            and value.input is not None
            and model in ancestors(value.input)
            for value, on in gradient_switches(self.graph)
        )

    # networks

    def forwards(self, value: Value) -> list[Value]:
        """The calls of networks whose output the value is made of; what the ids or a mask came from is not followed."""
        if id(value) not in self._forwards:
            self._forwards[id(value)] = self._find_forwards(value)
        return list(self._forwards[id(value)])

    def _find_forwards(self, value: Value) -> list[Value]:
        def data(one: Value) -> list[Value]:
            if one.op in ("attribute", "method") and one.name in _FORM:
                return []
            numbers = [part for name, part in one.arguments.items() if not _is_selector(one, name)]
            return [part for part in numbers if not self.kinds.is_a(part, Kind.SAMPLED, Kind.MASK, Kind.COUNT)]

        def is_end(one: Value) -> bool:
            return one.op in ("generate", "multinomial", "sample") or is_network_call(one, self.kinds)

        return [part for part in walk(value, data, until=is_end) if is_network_call(part, self.kinds)]

    def networks(self, value: Value) -> list[Value]:
        """The networks behind a value, each once."""
        found: list[Value] = []
        for call in self.forwards(value):
            model = network(call.arguments["model"] if call.op == "forward" else call.arguments["callee"])
            if not any(same_network(model, part) for part in found):
                found.append(model)
        return found

    def is_reference(self, value: Value) -> bool | None:
        """Whether log-probs come from another network than those that are trained. None: the text does not say."""
        calls = self.forwards(value)
        if not calls:
            return None
        if all(self.is_switched(call) for call in calls):
            return True
        trained = self.trained()
        if not trained:
            return None
        networks = self.networks(value)
        if any(same_network(model, other) for model in networks for other in trained):
            return False
        # a parameter may stand for any network, unless those that are trained are parameters too
        is_open = any(model.op == "parameter" for model in networks) and not any(
            model.op == "parameter" for model in trained
        )
        return None if is_open else True

    def is_switched(self, call: Value) -> bool:
        """Whether a pass runs with adapters off, or with other weights put in for it: not as the network is trained."""
        if id(call) not in self._switched:
            self._switched[id(call)] = call.context.adapter_off or self._is_switched_by_hand(call)
        return self._switched[id(call)]

    def _is_switched_by_hand(self, call: Value) -> bool:
        """Whether switches stand otherwise than in the passes of the same network that are differentiated."""
        model = call.arguments.get("model")
        if model is None or not call.context.no_grad or not (self._switches or _is_told_off(call)):
            return False
        trained = [
            other
            for backward in self.graph.of("backward")
            if backward.input is not None
            for other in self.forwards(backward.input)
            if other.op == "forward" and not other.context.no_grad and same_network(other.arguments["model"], model)
        ]
        mine = self._settings_at(call, model)
        return bool(trained) and all(
            mine != self._settings_at(other, model) or _is_told_off(call) > _is_told_off(other) for other in trained
        )

    def _settings_at(self, call: Value, model: Value) -> dict[str, object]:
        """How each switch stands when a pass runs; before the first of its kind as the last one leaves it."""
        own = [switch for switch in self._switches if switch.op != "load_state_dict" or _loads(switch, model)]
        own.sort(key=lambda switch: (switch.order < call.order, switch.order))
        return {_switch(switch): _position(switch) for switch in own}

    def trained(self) -> list[Value]:
        """The networks whose parameters an optimizer holds; else those through which a loss is differentiated."""
        found = self._held()
        if not found:
            for backward in self.graph.of("backward"):
                if backward.input is not None:
                    found += self.networks(backward.input)
        return found


def _is_selector(value: Value, name: str) -> bool:
    """Whether an argument only says which numbers are taken: ids, places, a condition."""
    if value.op == "index":
        return name != "input"
    return name in _SELECTORS.get(value.op, ())


def network(value: Value) -> Value:
    """The network itself, without wrappers, casts and what a loop may have left of it."""
    return follow(value, _inside_its_shell)


def _inside_its_shell(value: Value) -> Value | None:
    if value.op in _SHELLS:
        return value.arguments.get("input") or value.arguments.get("0") or value.arguments.get("module")
    if value.op == "phi" and "0" in value.arguments:
        return next((part for part in value.inputs if part.constant is UNKNOWN), None)
    whole = value.input if value.op == "attribute" and value.name in _PARTS else None
    if whole is not None and value.name == "module" and whole.op in ("parameter", "attribute"):
        return whole
    return whole if whole is not None and (whole.op in _SHELLS or whole.op in NETWORKS) else None


def gradient_switches(graph: Graph) -> Iterator[tuple[Value, object]]:
    """(statement, whether it is on) of each requires_grad_(...) and .requires_grad = ..."""
    for value in graph.of("requires_grad_", "cast", "setattr"):
        if value.name.startswith("requires_grad"):
            is_set = value.op == "setattr"
            yield (
                value,
                value.setting("value" if is_set else "1", UNKNOWN if is_set else value.setting("requires_grad", True)),
            )


def _find_switches(graph: Graph) -> list[Value]:
    """Statements that switch adapters, or put other weights in, where another one switches back."""
    found = [
        value
        for value in graph.of("setattr", "method", "load_state_dict")
        if value.op == "load_state_dict" or (value.op == "method" and _BY_NAME.search(value.name)) or _is_flag(value)
    ]
    positions: dict[str, set[object]] = {}
    for value in found:
        positions.setdefault(_switch(value), set()).add(_position(value))
    return [value for value in found if len(positions[_switch(value)]) > 1]


def _is_flag(value: Value) -> bool:
    """layer.on = False, in words that speak of adapters: the name, the class, or the test around it."""
    if value.op != "setattr" or not isinstance(value.setting("value"), bool | int | float):
        return False
    around = [branch.condition.place.text for branch in value.context.branches]
    words = [value.name, value.place.text, *around, *value.context.functions]
    return any(_ADAPTER.search(word) for word in words)


def _is_told_off(call: Value) -> bool:
    """policy(ids, adapters=False), policy(ids, base_only=True)"""
    return any(
        (value.constant is False and _ADAPTER.search(name)) or (value.constant is True and _PLAIN.search(name))
        for name, value in call.arguments.items()
        if name.startswith("given_")
    )


def _switch(value: Value) -> str:
    return value.name if value.op == "setattr" else "weights" if value.op == "load_state_dict" else "adapter"


def _position(value: Value) -> object:
    if value.op == "setattr":
        return value.setting("value")
    if value.op == "load_state_dict":
        return value.order
    return value.name, *(part.constant for name, part in value.arguments.items() if name != "input")


def _loads(value: Value, model: Value) -> bool:
    return value.input is not None and same_network(value.input, model)


def _new_parts(graph: Graph) -> Iterator[tuple[Value, Value]]:
    """(statement, where to) of each layer that is put into a network by hand, and of adapters from elsewhere."""
    for value in graph.of("setattr", "call", "method"):
        if value.op == "setattr" or value.name == "builtins.setattr":
            base, part = value.argument("input") or value.argument("0"), value.argument("value") or value.argument("2")
        elif value.op == "method":
            base, part = value.input, value.argument("2") if value.name in _REGISTERS else None
        else:
            base, part = value.argument("0"), value if _ADAPTERS.search(value.name.rpartition(".")[2]) else None
        is_layer = part is not None and (part.op == "module" or (part.op == "instance" and part.thing.cls.is_module))
        if base is not None and part is not None and (part is value or is_layer):
            yield value, base


def _is_part_of(part: Value, model: Value) -> bool:
    """Whether a layer was reached from a network."""
    return same_network(part, model) or any(value is model for value in islice(ancestors(part), _MOST_BEHIND))


def _is_filtered(parameters: Value) -> bool:
    """[p for p in model.parameters() if p.requires_grad]"""
    return any("requires_grad" in part.place.text for part in islice(ancestors(parameters), _MOST_BEHIND))


def parameters_of(value: Value) -> Value | None:
    """`network.parameters()`, where the value is one of them in a loop."""
    whole = value.input if value.op == "element" else None
    return whole if whole is not None and whole.op == "parameters" else None


def given_to(call: Value) -> list[Value]:
    """What a call of a network is given."""
    return [value for name, value in call.arguments.items() if name.startswith("given_")]


def same_network(one: Value, other: Value) -> bool:
    one, other = network(one), network(other)
    return one is other or (one.thing is not None and one.thing is other.thing)


def is_network_call(value: Value, kinds: Kinds) -> bool:
    """A call of a whole network: of the program's own, of a library's, or of a parameter that is used as one."""
    if value.op == "forward":
        return not value.name.endswith("Loss") and value.name not in ("Softmax", "LogSoftmax")
    if value.op == "call" and "callee" in value.arguments:
        return kinds.is_a(value, Kind.OUTPUT, Kind.LOGITS) or any(
            user.op in ("attribute", "index") and user.name == "logits" for user in value.users
        )
    return False


def _parameters(value: Value | None) -> list[Value]:
    """Each `network.parameters()` behind what an optimizer is given."""
    ops = ("parameters", "named_parameters")
    return (
        [part for part in walk(value, until=lambda current: current.op in ops) if part.op in ops]
        if value is not None
        else []
    )
