"""Calls --> Values: the program's own functions are walked through, those of libraries are named."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read import library
from assay.programs.read.expressions import Expressions
from assay.programs.read.things import Bound, Class, Frame, Function, Instance, Library, Listing, Partial, Table
from assay.programs.walk import ancestors

DEEPEST = 24  # calls within calls
TIMES_ON_STACK = 1  # a function that calls itself is not followed
MOST_OF_FUNCTION = 6_000  # values: a function whose walks have made more is not walked through again


class Calls(Expressions):
    def run_body(self, body: Sequence[ast.stmt]) -> bool:
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        before = len(self.graph.values)
        value = self._call_of(node)
        if value.order >= before and not value.given:
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            if isinstance(node.func, ast.Attribute):
                parts.append(node.func.value)
            for part in parts:
                made = self._evaluated.get(id(part))
                for name, argument in value.arguments.items():
                    if argument is made:
                        value.given.setdefault(name, self.place(part))
        return value

    def _call_of(self, node: ast.Call) -> Value:
        base: Value | None = None
        if isinstance(node.func, ast.Attribute):
            if isinstance(node.func.value, ast.Call) and getattr(node.func.value.func, "id", "") == "super":
                return self._super(node.func.attr, node)
            base = self._evaluated[id(node.func.value)] = self.evaluate(node.func.value)
            own = isinstance(base.thing, Library | Class) or self._has(base, node.func.attr)
            callee = self.attribute(base, node.func.attr, node.func) if own else None
        else:
            callee = self.evaluate(node.func)
        positional, keywords = self._arguments(node)
        is_forward = isinstance(node.func, ast.Attribute) and node.func.attr == "forward"
        if base is not None and is_forward and isinstance(base.thing, Instance) and base.thing.of.is_module:
            return self._call_instance(base, base.thing, positional, keywords, node)
        if callee is not None:
            return self.invoke(callee, positional, keywords, node, base=base)
        assert base is not None
        assert isinstance(node.func, ast.Attribute)
        return library.method(self, base, node.func.attr, positional, keywords, node)

    def _has(self, base: Value, name: str) -> bool:
        """Whether the object has that attribute by the program's own doing."""
        if isinstance(base.thing, Instance):
            return (id(base.thing), name) in self.heap or base.thing.of.member(name) is not None
        if isinstance(base.thing, Table) and base.thing.is_namespace:
            return name in base.thing.entries
        stored = self.heap.get((id(base), name))
        return stored is not None and stored.op != "attribute"

    def _arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        positional: list[Value] = []
        for part in node.args:
            value = self._evaluated[id(part)] = self.evaluate(part)
            if isinstance(part, ast.Starred):
                if isinstance(value.thing, Listing) and value.thing.exact:
                    positional += value.thing.elements
                else:
                    positional.append(self.new("starred", part, {"input": value}))
            else:
                positional.append(value)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self._evaluated[id(keyword.value)] = self.evaluate(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value.thing, Table):
                keywords |= {str(key): one for key, one in value.thing.entries.items() if isinstance(key, str)}
                if value.thing.rest:
                    keywords["**"] = value
            else:
                keywords["**"] = value
        return positional, keywords

    def invoke(
        self,
        callee: Value,
        positional: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        name: str = "",
        base: Value | None = None,
    ) -> Value:
        thing = callee.thing
        if isinstance(thing, Partial):
            return self.invoke(thing.function, [*thing.positional, *positional], {**thing.keywords, **keywords}, node)
        if isinstance(thing, Bound):
            return self.enter(thing.function, [thing.owner, *positional], keywords, node, owner=thing.owner)
        if isinstance(thing, Function):
            return self.enter(thing, positional, keywords, node)
        if isinstance(thing, Class):
            return self.instantiate(callee, thing, positional, keywords, node)
        if isinstance(thing, Instance):
            return self._call_instance(callee, thing, positional, keywords, node)
        if isinstance(thing, Library):
            return library.call(self, thing, positional, keywords, node)
        if callee.op == "attribute" and callee.input is not None and library.is_known_method(callee.name):
            # clear = optimizer.zero_grad; clear()
            return library.method(self, callee.input, callee.name, positional, keywords, node)
        return library.unknown_call(self, callee, positional, keywords, node)

    def enter(
        self,
        function: Function,
        positional: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        owner: Value | None = None,
    ) -> Value:
        """Walks through the body of a function with these arguments."""
        body = id(function.node)
        spent = self.spent.get(body, 0)
        on_stack = self.running.count(body) >= TIMES_ON_STACK or len(self.running) >= DEEPEST
        if on_stack or spent > MOST_OF_FUNCTION:
            arguments = {str(number): one for number, one in enumerate([*positional, *keywords.values()])}
            return self.new("call", node, arguments, name=function.name)
        self.entered.add(body)
        calls = (*self.context.calls, self.place(node))
        frame = Frame(function.frame.module, outer=function.frame, owner=owner, defined_in=function.owner)
        before, self.frame = self.frame, frame
        first = len(self.graph.values)
        self.running.append(body)
        try:
            self._bind(function, positional, keywords, node)
            template = self._asked_of_template(function)
            context = self.context
            with self.under(
                no_grad=context.no_grad or function.no_grad,
                autocast=context.autocast or function.autocast,
                calls=calls,
                functions=(*context.functions, function.name),
            ):
                if isinstance(function.node, ast.Lambda):
                    frame.returned.append(self.evaluate(function.node.body))
                else:
                    self.run_body(function.node.body)
        finally:
            self.running.pop()
            self.spent[body] = spent + len(self.graph.values) - first
            self.frame = before
        if frame.yielded:
            return self.listing(node, frame.yielded, exact=False)
        if not frame.returned:
            return self.constant(node, None)
        output = self._joined(node, frame.returned)
        if not template or any(one.op == "apply_chat_template" for one in ancestors(output)):
            return output
        arguments = {**template, "output": output}
        made = self.new("apply_chat_template", node, arguments, name=function.name, constant=output.constant)
        made.thing = output.thing
        return made

    def _asked_of_template(self, function: Function) -> dict[str, Value]:
        """What a chat template of the program is given, if the function is one in the manner of transformers."""
        arguments = function.node.args
        names = [one.arg for one in (*arguments.args, *arguments.kwonlyargs) if one.arg != "self"]
        if "add_generation_prompt" not in names:
            return {}
        asked = self.frame.variables
        return {"1": asked[names[0]], "add_generation_prompt": asked["add_generation_prompt"]}

    def _joined(self, node: ast.AST, returned: list[Value]) -> Value:
        """What a function with several returns gives back: tuples of one length meet part by part."""
        things = [value.thing for value in returned]
        if len(returned) > 1 and all(isinstance(thing, Listing) and thing.exact for thing in things):
            lengths = {len(thing.elements) for thing in things}
            if len(lengths) == 1:
                parts = zip(*(thing.elements for thing in things), strict=True)
                return self.listing(node, [self.phi(node, list(part)) for part in parts])
        return self.phi(node, returned)

    def _bind(self, function: Function, positional: list[Value], keywords: dict[str, Value], node: ast.AST) -> None:
        arguments = function.node.args
        names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
        variables: dict[str, Value] = {}
        spread = any(value.op == "starred" for value in positional)
        plain = function.owner is None and not getattr(function.node, "decorator_list", None)
        if plain and not spread and arguments.vararg is None and len(positional) > len(names):
            self.new("misfit", node, name=function.name)  # this call raises
        for name, value in zip(names, positional, strict=False):
            if value.op == "starred":
                break
            variables[name] = value
        if arguments.vararg is not None:
            variables[arguments.vararg.arg] = self.listing(node, positional[len(names) :], exact=not spread)
        known = {*names, *(one.arg for one in arguments.kwonlyargs)}
        rest = {name: value for name, value in keywords.items() if name not in known and name != "**"}
        variables |= {name: value for name, value in keywords.items() if name in known}
        if arguments.kwarg is not None:
            table = Table(dict(rest))
            if "**" in keywords:
                table.rest.append(keywords["**"])
            variables[arguments.kwarg.arg] = self.new("table", node, thing=table)
        for name in [*names, *(one.arg for one in arguments.kwonlyargs)]:
            if name in variables:
                continue
            if name in function.defaults and not spread and "**" not in keywords:
                variables[name] = function.defaults[name]
            else:
                variables[name] = self.new("parameter", function.node, name=name)
                default = function.defaults.get(name)
                if default is not None and default.constant is not UNKNOWN:
                    variables[name].arguments["default"] = default
        for name, value in variables.items():
            self.store(name, value)

    def instantiate(
        self, callee: Value, of: Class, positional: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        instance = Instance(of)
        self.keep(instance)
        value = self.new("instance", node, name=of.name, thing=instance)
        start = of.member("__init__")
        if of.is_record and (start is None or not isinstance(start.thing, Function)):
            for name, given in zip(of.all_fields(), positional, strict=False):
                self.heap[id(instance), name] = given
            for name in of.all_fields():
                if name in keywords:
                    self.heap[id(instance), name] = keywords[name]
                elif (id(instance), name) not in self.heap and (default := of.member(name)) is not None:
                    self.heap[id(instance), name] = library.field_default(self, default, node)
            after = of.member("__post_init__")
            if after is not None and isinstance(after.thing, Function):
                self.enter(after.thing, [value], {}, node, owner=value)
        elif start is not None and isinstance(start.thing, Function):
            self.enter(start.thing, [value, *positional], keywords, node, owner=value)
        return value

    def _call_instance(
        self, callee: Value, instance: Instance, positional: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        member = instance.of.member("__call__") or instance.of.member("forward")
        if member is None or not isinstance(member.thing, Function):
            return library.unknown_call(self, callee, positional, keywords, node)
        output = self.enter(member.thing, [callee, *positional], keywords, node, owner=callee)
        if not instance.of.is_module:
            return output
        names = [one.arg for one in member.thing.node.args.args[1:]]
        arguments = {**dict(zip(names, positional, strict=False)), **keywords}
        return self._forward(callee, output, arguments, node)

    def _forward(self, model: Value, output: Value, arguments: dict[str, Value], node: ast.AST) -> Value:
        """The output of a network of the program: what its forward computed, and which network it was."""
        if isinstance(output.thing, Listing) and output.thing.exact:
            parts = [self._forward(model, part, arguments, node) for part in output.thing.elements]
            return self.listing(node, parts)
        if isinstance(output.thing, Table | Instance):
            return output
        given = {f"given_{name}": value for name, value in arguments.items()}
        return self.new("forward", node, {"model": model, "output": output, **given})

    def _super(self, name: str, node: ast.Call) -> Value:
        positional, keywords = self._arguments(node)
        owner, within = self.frame.owner, self.frame.defined_in
        if owner is not None and isinstance(owner.thing, Instance) and within is not None:
            line = owner.thing.of.ancestry()
            later = line[line.index(within) + 1 :] if within in line else []
            for one in later:
                member = one.members.get(name)
                if member is not None and isinstance(member.thing, Function):
                    return self.enter(member.thing, [owner, *positional], keywords, node, owner=owner)
        arguments = {str(number): one for number, one in enumerate([*positional, *keywords.values()])}
        return self.new("super", node, arguments, name=name)
