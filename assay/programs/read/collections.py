"""Lists, tuples, dictionaries and comprehensions --> Values; and what one of their elements is."""

from __future__ import annotations

import ast
from collections.abc import Callable

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.machine import Machine
from assay.programs.read.things import Listing, Table

MOST_EACH = 16  # entries that are followed one by one


class Collections(Machine):
    def evaluate(self, node: ast.expr | None) -> Value:
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value, node: ast.AST) -> None:
        raise NotImplementedError

    def _tuple(self, node: ast.Tuple) -> Value:
        return self._listing(node, node.elts)

    def _list(self, node: ast.List) -> Value:
        return self._listing(node, node.elts)

    def _set(self, node: ast.Set) -> Value:
        return self._listing(node, node.elts)

    def _listing(self, node: ast.expr, parts: list[ast.expr]) -> Value:
        elements: list[Value] = []
        exact = True
        for part in parts:
            if isinstance(part, ast.Starred) and is_cut_short(part.value):
                exact = False
                continue
            value = self.evaluate(part)
            if isinstance(part, ast.Starred):
                if isinstance(value.thing, Listing) and value.thing.exact:
                    elements += value.thing.elements
                else:
                    elements.append(self.element(value, part))
                    exact = False
            else:
                elements.append(value)
        return self.listing(node, elements, exact)

    def listing(self, node: ast.AST, elements: list[Value], exact: bool = True) -> Value:
        arguments = {str(number): one for number, one in enumerate(elements[:64])}
        return self.new("listing", node, arguments, thing=Listing(list(elements), exact))

    def extend(self, base: Value, listing: Listing, other: Value, added: list[Value]) -> None:
        """base += other: the elements that are `added` stand in the list from now on."""
        listing.elements += added
        listing.exact = False
        listing.parts = (*listing.parts, other)
        for one in added:
            base.arguments[f"+{len(base.arguments)}"] = one
            one.users.append(base)

    def _dict(self, node: ast.Dict) -> Value:
        table = Table()
        for key, part in zip(node.keys, node.values, strict=True):
            if key is None and is_cut_short(part):
                continue
            value = self.evaluate(part)
            if key is None:
                if isinstance(value.thing, Table):
                    table.entries |= value.thing.entries
                    table.rest += value.thing.rest
                else:
                    table.rest.append(value)
                continue
            self.put(table, self.evaluate(key), value)
        return self.new("table", node, dict(numbered([*table.entries.values(), *table.rest])), thing=table)

    def put(self, table: Table, key: Value, value: Value) -> None:
        if key.constant is UNKNOWN or isinstance(key.constant, float):
            table.rest.append(value)
        else:
            table.entries[key.constant] = value

    def _listcomp(self, node: ast.ListComp) -> Value:
        return self._comprehension(node, node.generators, lambda: self.evaluate(node.elt))

    def _setcomp(self, node: ast.SetComp) -> Value:
        return self._comprehension(node, node.generators, lambda: self.evaluate(node.elt))

    def _generatorexp(self, node: ast.GeneratorExp) -> Value:
        return self._comprehension(node, node.generators, lambda: self.evaluate(node.elt))

    def _dictcomp(self, node: ast.DictComp) -> Value:
        table = Table()

        def entry() -> Value:
            value = self.evaluate(node.value)
            self.put(table, self.evaluate(node.key), value)
            return value

        generator = node.generators[0]
        listed = self.each(self.evaluate(generator.iter), node) if len(node.generators) == 1 else None
        if listed is None or generator.ifs:
            made = self._comprehension(node, node.generators, entry).arguments
        else:
            self.frame.variables.mark()
            for one in listed:
                self.assign(generator.target, one, generator.iter)
                entry()
            self.frame.variables.take_back()  # its names are its own
            made = dict(numbered([*table.entries.values(), *table.rest]))
        return self.new("table", node, made, thing=table)

    def each(self, source: Value, node: ast.AST) -> list[Value] | None:
        """The elements one by one, where the text lists them: the entries of a dictionary, a tuple of names."""
        if source.op == "items" and isinstance(source.arguments["input"].thing, Table):
            table = source.arguments["input"].thing
            if table.rest or not 0 < len(table.entries) <= MOST_EACH:
                return None
            return [self.listing(node, [self.constant(node, key), one]) for key, one in table.entries.items()]
        thing = source.thing
        if isinstance(thing, Listing) and thing.exact and 0 < len(thing.elements) <= MOST_EACH:
            return thing.elements if all(isinstance(one.constant, str) for one in thing.elements) else None
        return None

    def _comprehension(self, node: ast.expr, generators: list[ast.comprehension], make: Callable[[], Value]) -> Value:
        self.frame.variables.mark()
        made: list[Value] = []
        sources: list[Value] = []

        def turn(number: int) -> bool:
            if number == len(generators):
                made.append(make())
                return False
            generator = generators[number]
            source = self.evaluate(generator.iter)
            sources.append(source)

            def inner() -> bool:
                self.assign(generator.target, self.element(source, generator.iter), generator.iter)
                for condition in generator.ifs:
                    self.evaluate(condition)
                return turn(number + 1)

            self.repeated(generator.iter, source, [], inner)
            return False

        turn(0)
        self.frame.variables.take_back()  # its names are its own
        listed = self.listing(node, made, exact=False)
        counted = [source.op == "range" for source in sources]
        if len(counted) == 2 and counted[0] != counted[1]:
            # [x for x in xs for _ in range(n)] repeats each in place; the other way round repeats the whole
            listed.name = "interleaved" if counted[1] else "tiled"
            stop = sources[counted.index(True)].arguments.get("stop")
            if stop is not None:
                listed.arguments["repeats"] = stop
        return listed

    def element(self, container: Value, node: ast.AST) -> Value:
        """One of the elements: which one, the text does not say."""
        thing = container.thing
        if container.op == "module" and container.name in ("ModuleList", "Sequential"):
            return self.new("submodule", node, {"input": container})
        if isinstance(thing, Listing) and thing.elements:
            if len(thing.elements) == 1:
                return thing.elements[0]
            return self.phi(node, thing.elements[:16])
        if isinstance(thing, Table) and container.op != "items":
            return self.new("element", node, {"input": container}, name="key")
        if container.op == "zip":
            return self.listing(node, [self.element(one, node) for one in container.arguments.values()])
        if container.op == "enumerate" and "input" in container.arguments:
            counter = self.new("element", node, {"input": container}, name="counter")
            return self.listing(node, [counter, self.element(container.arguments["input"], node)])
        if container.op == "items" and isinstance(container.arguments["input"].thing, Table):
            table = container.arguments["input"].thing
            values = [*table.entries.values(), *table.rest]
            key = self.new("element", node, {"input": container}, name="key")
            value = self.phi(node, values) if values else self.new("element", node, {"input": container})
            return self.listing(node, [key, value])
        if container.op in ("dataloader", "reversed", "sorted", "shuffled", "progress", "values"):
            inner = container.arguments.get("input")
            if inner is not None:
                return self.element(inner, node)
        if container.op == "tensor_dataset":
            parts = [
                self.new("index", node, {"input": one, "0": self.new("element", node, {"input": container})})
                for one in container.arguments.values()
            ]
            return self.listing(node, parts)
        return self.new("element", node, {"input": container})

    def first(self, container: Value, node: ast.AST) -> Value:
        """The first or last element: of a dictionary's values one of many, whatever its key."""
        inner = self.element(container, node)
        if table_of_values(container) is None:
            return inner
        return self.new("element", node, {"input": container}, name="first", thing=inner.thing)


def table_of_values(listing: Value) -> Value | None:
    """The dictionary whose values() a list is, or is a copy of."""
    for _ in range(4):
        if not isinstance(listing.thing, Listing) or not listing.thing.parts:
            return None
        if listing.name == "values":
            return listing.thing.parts[0]
        listing = listing.thing.parts[0]
    return None


def is_cut_short(node: ast.expr) -> bool:
    """The mark of literals.py: here stood more elements than are followed."""
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def numbered(values: list[Value]) -> list[tuple[str, Value]]:
    return [(str(number), value) for number, value in enumerate(values)]
