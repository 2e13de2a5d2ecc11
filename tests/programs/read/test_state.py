"""A dictionary that takes back its changes."""

from assay.programs.graph import Context, Graph, Value
from assay.programs.read.state import Heap, UndoableDict
from assay.verdict import Place


def made(number: int) -> Value:
    return Graph().new("constant", {}, Place("script.py", number), Context(), constant=number)


ONE, TWO, THREE = made(1), made(2), made(3)


def test_what_changed_since_a_mark_is_taken_back():
    state: UndoableDict[str] = UndoableDict()
    state["a"] = ONE
    state.mark()
    state["a"] = TWO
    state["b"] = THREE
    assert state.take_back() == {"a": TWO, "b": THREE}
    assert dict(state) == {"a": ONE}


def test_a_key_that_was_forgotten_comes_back():
    state: UndoableDict[str] = UndoableDict()
    state["a"] = ONE
    state.mark()
    state.forget("a")
    state.forget("never there")
    assert "a" not in state
    assert state.take_back() == {"a": None}
    assert dict(state) == {"a": ONE}


def test_a_key_that_was_made_and_forgotten_is_gone():
    state: UndoableDict[str] = UndoableDict()
    state.mark()
    state["a"] = ONE
    state.forget("a")
    assert state.take_back() == {"a": None}
    assert dict(state) == {}


def test_marks_within_marks_are_taken_back_one_by_one():
    state: UndoableDict[str] = UndoableDict()
    state.mark()
    state["a"] = ONE
    state.mark()
    state["a"] = TWO
    assert state.depth == 2
    assert state.since(0) == {"a": TWO}
    assert state.since(2) == {}
    assert state.take_back() == {"a": TWO}
    assert state["a"] is ONE
    assert state.take_back() == {"a": ONE}
    assert dict(state) == {}


def test_the_first_value_of_a_key_is_the_one_that_comes_back():
    state: UndoableDict[str] = UndoableDict()
    state["a"] = ONE
    state.mark()
    state["a"] = TWO
    state["a"] = THREE
    state.take_back()
    assert state["a"] is ONE


def test_a_heap_finds_all_objects_with_an_attribute():
    heap = Heap()
    heap[1, "a"] = ONE
    heap[2, "a"] = TWO
    heap[1, "b"] = THREE
    assert heap.named("a") == [(1, "a"), (2, "a")]
    heap.forget((1, "a"))
    assert heap.named("a") == [(2, "a")]
    assert heap.named("c") == []
