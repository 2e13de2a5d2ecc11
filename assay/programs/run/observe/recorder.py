"""A mode in which every call of torch that the script makes becomes a Value; what runs below such a call does not.

The script's numbers are not touched: tensors are known by identity and kept as copies. Inside of a model's pass, of
generate() and of an optimizer's step the recorder is off: those are one Value each.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from assay.programs.graph import UNKNOWN, Context, Value, bound, canonical
from assay.programs.run.observe.guard import sentence, shielded
from assay.programs.run.observe.models import random_state
from assay.programs.run.observe.places import Places
from assay.programs.run.sight import Sight, shape_of
from assay.programs.run.watched import WatchedRun
from assay.verdict import Place

LARGEST_COPIED = 2_000_000  # numbers of a tensor that is kept
MOST_COPIED_BYTES = 256 * 2**20  # kept in all
WIDE_VOCABULARY = 64  # tensors of logits narrower than this are kept whole if they are small
SMALL_LOGITS = 65_536
MOST_COPIES = 32  # of one expression's results between two updates; later results are copied when they are used
ALWAYS_COPIED = 4096  # tensors with at most this many numbers
ROWS_LOOKED_AT = 4  # of a tensor as wide as the vocabulary
ROWS_KEPT, WIDEST_ROW_KEPT = 2, 300_000  # of such a tensor, of the first few between two updates
MOST_VALUES = 100_000  # some 150 MB

# what describes a tensor and makes none
_DESCRIBES = frozenset(
    "__get__ __set__ __delete__ size dim ndimension numel nelement stride __len__ __repr__ "
    "__format__ __str__ _set_grad_enabled "
    "is_floating_point is_complex is_contiguous element_size data_ptr storage_offset untyped_storage get_device "
    "register_hook retain_grad __hash__ __reduce_ex__ __deepcopy__ is_same_size __dir__ has_names is_pinned "
    "register_post_accumulate_grad_hook is_shared share_memory_ requires_grad_ _is_view __array__ is_nonzero".split()
)
_OPS = {
    "__getitem__": "index", "__setitem__": "setitem", "__rsub__": "sub", "rsub": "sub", "__rdiv__": "div",
    "__rtruediv__": "div",
    "__rpow__": "pow", "__invert__": "logical_not", "__eq__": "eq", "__ne__": "ne", "__iadd__": "add",
    "__radd__": "add", "__rmul__": "mul", "__or__": "logical_or", "__float__": "leave", "__int__": "leave",
    "__bool__": "leave",
    "__index__": "leave", "__contains__": "leave", "__rmatmul__": "matmul", "__rfloordiv__": "floordiv",
    "__rmod__": "mod",
    "floor_divide": "floordiv", "remainder": "mod", "fmod": "mod",
}  # fmt: skip
_TURNS = {"T": "t", "mT": "t", "data": "detach"}
_REVERSED = frozenset(("__rsub__", "rsub", "__rdiv__", "__rtruediv__", "__rpow__", "__rfloordiv__", "__rmod__"))
_WIDTH_KEPT = frozenset(
    "softmax log_softmax div mul add sub cast clamp exp log masked_fill where nan_to_num scatter "
    "setitem index view reshape "
    "squeeze unsqueeze clone detach element stack cat neg changed sort topk tanh".split()
)
_DRAWS = frozenset("multinomial bernoulli exponential_ gumbel_softmax".split())
_INTEGERS = (torch.int64, torch.int32)
_PLACES = frozenset("argmax searchsorted bucketize sum argmin".split())
_RANDOM_OR_EMPTY = frozenset("empty empty_like new_empty empty_strided".split())


class _Ref(weakref.ref[Tensor]):
    """Knows under which id the tensor was known."""

    __slots__ = ("key",)
    key: int


class CallRecorder(TorchFunctionMode):
    """`before` holds what is called before a call is made: backward is where gradients are caught."""

    def __init__(self, run: WatchedRun, places: Places) -> None:
        super().__init__()
        self.run, self.places = run, places
        self._thread = threading.get_ident()
        self.off = 0  # how many passes, steps and so on are under way
        self.stopped = False
        self.is_asleep = self.just_woke = self.missed_a_pass = False
        self.state: int | None = None  # of the random numbers before the last draw
        self.before: dict[str, Callable[[Value, Tensor], Callable[[], None] | None]] = {}
        self.made: Callable[[Value, Tensor], None] | None = None  # called with every tensor that requires a gradient
        self.drawn: Callable[[Value], None] | None = None
        self.chosen: Callable[[Value], None] | None = None  # called with places that may be draws
        self.left: Callable[[Value], None] | None = None  # called with whatever left torch as numbers
        self.parameter: Callable[[Value, Tensor], None] | None = None  # called with parameters that the script uses
        self.given: Callable[[Value, Tensor], None] | None = None  # called with other tensors that nobody made here
        self._known: dict[int, tuple[_Ref, Value, int]] = {}
        self._parameters: dict[int, weakref.ref[Tensor]] = {}  # by where their numbers are
        self._wide: set[int] = set()  # ids of Values whose last dimension is the vocabulary
        self._visits: dict[tuple[int, str], int] = {}  # by id of a Place, which Places keeps
        self._names: dict[str, str] = {}
        self._dtypes: dict[torch.dtype, str] = {}
        self._bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.is_asleep and (name in _DRAWS or (name == "_set_grad_enabled" and args == (False,) and _is_by(self))):
            self.missed_a_pass = name in _DRAWS  # what it draws from was made before
            self.wake()
        if self.off:
            return func(*args, **kwargs)
        if name == "__get__":  # x.T is read as an attribute
            name = _TURNS.get(getattr(getattr(func, "__self__", None), "__name__", ""), name)
        if name in _DESCRIBES or len(self.run.graph.values) > MOST_VALUES:
            return func(*args, **kwargs)
        if name == "backward" or (func is torch.autograd.grad and _is_of_leaves(args, kwargs)):
            return self._backward(func, args, kwargs)
        known = shielded(self.broke, self._given, name, args, kwargs, sys._getframe(1))
        if known is None:
            return func(*args, **kwargs)
        op, given, where = known
        try:
            result = func(*args, **kwargs)
        except RuntimeError:
            self.run.raised = Value(op, given, where[0], where[2], len(self.run.graph.values), name)
            raise
        shielded(self.broke, self._result, op, name, given, where, result, args)
        return result

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the one that is recorded: a server, or a worker that samples."""
        return threading.get_ident() != self._thread

    def sleep(self) -> None:
        """Nothing is recorded until something is drawn, or gradients are switched off as for a rollout: a script may
        imitate answers for thousands of steps first."""
        if not self.is_asleep:
            self.is_asleep = True
            self.off += 1

    def wake(self) -> None:
        self.is_asleep, self.just_woke = False, True
        self.off -= 1

    def broke(self, error: Exception) -> None:
        """A fault of ours must not end somebody's script: it is reported, and nothing more is looked at."""
        self.off += 1
        self.run.notes.append(sentence(error))

    def _given(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], frame: Any
    ) -> tuple[str, dict[str, Value], tuple[Place, str, Context]]:
        """The operation and its arguments, as they are before it: it may change them in place."""
        if name == "multinomial":
            self.state = random_state(args[0] if args else kwargs.get("input"), kwargs.get("generator"))
        where = self.here(frame)
        op = self._names.get(name)
        if op is None:
            op = self._names[name] = _OPS.get(name) or canonical(name) or name
        if name in _REVERSED:
            args = (args[1], args[0], *args[2:])
        positional = [self.value_of(argument, where) for argument in args]
        if op == "index":
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            return op, {"input": positional[0], **self._numbered(keys, where)}, where
        if op == "setitem":
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            return op, {"input": positional[0], **self._numbered(keys, where), "value": positional[2]}, where
        keywords = {
            key: self.value_of(argument, where)
            for key, argument in kwargs.items()
            if argument is not None and key != "_stacklevel"
        }
        return op, bound(op, name, positional, keywords), where

    def _numbered(self, parts: Iterable[Any], where: tuple[Place, str, Context]) -> dict[str, Value]:
        return {str(number): self.value_of(part, where) for number, part in enumerate(parts)}

    def here(self, frame: Any) -> tuple[Place, str, Context]:
        with torch._C.DisableTorchFunction():
            autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            return self.places.here(frame, no_grad=not torch.is_grad_enabled(), autocast=autocast)

    def value_of(self, given: Any, where: tuple[Place, str, Context]) -> Value:
        """The Value of whatever the script handed over. A tensor that was changed behind our back is a new one."""
        if isinstance(given, Tensor):
            return self.tensor(given, where)
        order = len(self.run.graph.values)
        if isinstance(given, slice):
            parts = {
                name: getattr(given, name) for name in ("start", "stop", "step") if getattr(given, name) is not None
            }
            inner = {name: self.value_of(part, where) for name, part in parts.items()}
            return Value("slice", inner, where[0], where[2], order)
        if isinstance(given, (list, tuple)) and any(isinstance(part, (Tensor, list, tuple)) for part in given[:4096]):
            if not any(_holds_tensor(part) for part in given[:4096]):
                return Value("constant", {}, where[0], where[2], order, constant=given)
            listing = Value("listing", self._numbered(given, where), where[0], where[2], order)
            for part in listing.arguments.values():
                part.users.append(listing)
            return listing
        if isinstance(given, np.ndarray) and given.dtype.kind in "biu" and given.size <= LARGEST_COPIED:
            seen = Sight(given.shape, "bool" if given.dtype.kind == "b" else "int64", data=given.copy())
            return Value("constant", {}, where[0], where[2], order, constant=UNKNOWN, name="ndarray", thing=seen)
        constant = (
            given if isinstance(given, (int, float, str, bool, type(None), list, tuple, torch.dtype)) else UNKNOWN
        )
        return Value("constant", {}, where[0], where[2], order, constant=constant, name=type(given).__name__)

    def tensor(self, tensor: Tensor, where: tuple[Place, str, Context]) -> Value:
        value = self._as_it_is(tensor, where)
        if self.parameter is not None and _is_parameter(tensor):
            self._parameters[_address(tensor)] = weakref.ref(tensor)
            self.parameter(value, tensor)
        elif value.op in ("given", "changed"):
            owner = self._owner(tensor) if self.parameter is not None else None
            if owner is not None and self.parameter is not None:
                self.parameter(value, owner)
            elif self.given is not None and not tensor.requires_grad:
                self.given(value, tensor)
        return value

    def _owner(self, tensor: Tensor) -> Tensor | None:
        """The parameter whose memory it is: state_dict() and .data copy nothing."""
        known = self._parameters.get(_address(tensor) or -1)
        owner = None if known is None else known()
        if owner is None or owner.shape != tensor.shape or _address(owner) != _address(tensor):
            return None
        return owner

    def _as_it_is(self, tensor: Tensor, where: tuple[Place, str, Context]) -> Value:
        known = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return self.remember(tensor, "given", {}, where)
        value = known[1]
        if not tensor.is_inference() and known[2] != tensor._version:
            return self.remember(tensor, "changed", {"input": value}, where)
        seen = value.thing
        is_new_use = isinstance(seen, Sight) and seen.data is None and where[0] is not value.place
        if is_new_use and seen.is_finite is None and id(value) not in self._wide:
            seen.data = self._copy(tensor, seen)
        return value

    def remember(
        self, tensor: Tensor, op: str, arguments: Mapping[str, Value], where: tuple[Place, str, Context], **how: Any
    ) -> Value:
        place, name, context = where
        value = self.run.graph.new(op, arguments, place, context, **how)
        if name and op != "given":
            value.names.append(name)
        self.adopt(tensor, value)
        return value

    def adopt(self, tensor: Tensor, value: Value) -> None:
        """From now on the tensor is this value."""
        op = value.op
        with torch._C.DisableTorchFunction():
            seen = value.thing = self._sight(tensor)
            key = (id(value.place), op)
            visits = self._visits[key] = self._visits.get(key, 0) + 1
            if self._wide and op in _WIDTH_KEPT:
                wide = [shape_of(argument) for argument in value.arguments.values() if id(argument) in self._wide]
                if any(shape and shape[-1:] == seen.shape[-1:] for shape in wide):
                    self._wide.add(id(value))
            if op not in _RANDOM_OR_EMPTY:
                self._look(value, seen, tensor, visits)
            ref = _Ref(tensor, self._forget)
            ref.key = id(tensor)
            self._known[ref.key] = (ref, value, 0 if tensor.is_inference() else tensor._version)

    def _sight(self, tensor: Tensor) -> Sight:
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        seen = Sight(tuple(tensor.shape), dtype, tensor.requires_grad)
        if tensor.layout is torch.strided and not tensor.is_contiguous():
            seen.overlaps = any(size > 1 and not step for size, step in zip(seen.shape, tensor.stride(), strict=True))
        return seen

    def _look(self, value: Value, seen: Sight, tensor: Tensor, visits: int) -> None:
        if id(value) in self._wide and (seen.shape[-1] >= WIDE_VOCABULARY or seen.size > SMALL_LOGITS):
            if visits <= MOST_COPIES and seen.is_floating and seen.size:
                seen.is_finite = _is_finite(tensor)
                if visits <= ROWS_KEPT and seen.shape[-1] <= WIDEST_ROW_KEPT:
                    seen.rows = tensor.detach().reshape(-1, seen.shape[-1])[:ROWS_KEPT].double().cpu().numpy()
        elif visits <= MOST_COPIES or seen.size <= ALWAYS_COPIED:
            seen.data = self._copy(tensor, seen)

    def _copy(self, tensor: Tensor, seen: Sight) -> Tensor | None:
        if seen.size > LARGEST_COPIED or self._bytes > MOST_COPIED_BYTES or tensor.is_sparse or tensor.is_meta:
            return None
        with torch._C.DisableTorchFunction():
            copy = tensor.detach().clone()
        self._bytes += copy.nbytes
        return copy

    def _forget(self, ref: _Ref) -> None:
        known = self._known.get(ref.key)
        if known is not None and known[0] is ref:  # its address may be another tensor's by now
            del self._known[ref.key]

    def _result(
        self,
        op: str,
        name: str,
        given: Mapping[str, Value],
        where: tuple[Place, str, Context],
        result: Any,
        args: tuple[Any, ...],
    ) -> None:
        if isinstance(result, Tensor):
            value = self.remember(result, op, given, where, name=name)
            if self.made is not None and result.requires_grad:
                self.made(value, result)
        elif op == "setitem":
            value = self.remember(args[0], op, given, where, name=name)
        elif isinstance(result, (tuple, list)) and any(isinstance(part, Tensor) for part in result):
            place, _, context = where
            value = self.run.graph.new(op, given, place, context, name=name)
            fields = getattr(result, "_fields", ()) or getattr(type(result), "__match_args__", ())
            for number, part in enumerate(result):
                if isinstance(part, Tensor):
                    field_name = str(fields[number]) if number < len(fields) else ""
                    self.remember(part, "element", {"input": value}, where, name=field_name, constant=number)
        elif op == "leave":
            value = self.run.graph.new(op, given, where[0], where[2], name=name)
            if self.left is not None:
                self.left(value)
        else:
            return
        if op == "multinomial" and self.drawn is not None:
            self.drawn(value)
        elif name in _PLACES and self.chosen is not None and getattr(result, "dtype", None) in _INTEGERS:
            self.chosen(value)

    def _backward(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        loss = args[0] if args else kwargs.get("outputs")
        loss = loss[0] if isinstance(loss, (tuple, list)) and len(loss) == 1 else loss
        after = shielded(self.broke, self._before_backward, loss, sys._getframe(2))
        try:
            with self.suspended():
                return func(*args, **kwargs)
        finally:
            if after is not None:
                shielded(self.broke, after)

    def _before_backward(self, loss: Any, frame: Any) -> Callable[[], None] | None:
        if not isinstance(loss, Tensor):
            return None
        where = self.here(frame)
        value = self.run.graph.new("backward", {"input": self.tensor(loss, where)}, where[0], where[2])
        return self.before["backward"](value, loss)

    def widen(self, value: Value) -> None:
        """Its last dimension is the vocabulary. What was kept of it is let go where it is large."""
        self._wide.add(id(value))

    def next_update(self) -> None:
        self._visits.clear()

    def remove(self) -> None:
        """From the stack, wherever it stands: others may have been put on top."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = torch._C._pop_torch_function_stack()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Off the stack where it stands on top, so that what runs meanwhile runs at full speed."""
        popped = self.off == 0 and _is_on_top(self)
        self.off += 1
        if popped:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.off -= 1
            if popped and not self.stopped:
                self.__enter__()  # type: ignore[no-untyped-call]

    def event(self, op: str, arguments: Mapping[str, Value], frame: Any, **how: Any) -> Value:
        place, name, context = self.here(frame)
        value = self.run.graph.new(op, arguments, place, context, **how)
        if name:
            value.names.append(name)
        return value


def _is_on_top(mode: CallRecorder) -> bool:
    count = torch._C._len_torch_function_stack()
    return bool(count) and torch._C._get_function_stack_at(count - 1) is mode


def _is_parameter(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        if isinstance(tensor, torch.nn.Parameter):
            return True
        return (
            tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        )  # theta[0] without a gradient is a leaf


def _is_of_leaves(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch.autograd.grad() is asked for gradients of parameters, as backward() would leave them."""
    given = kwargs.get("inputs", args[1] if len(args) > 1 else ())
    inputs = given if isinstance(given, (tuple, list)) else [given]
    with torch._C.DisableTorchFunction():
        are_leaves = all(isinstance(part, Tensor) and part.is_leaf and part.requires_grad for part in inputs)
    return are_leaves and bool(inputs) and not kwargs.get("create_graph") and True not in args[4:5]


def _is_by(recorder: CallRecorder) -> bool:
    """Whether the script itself switches gradients off: an optimizer does so in each of its steps."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(5):  # the context manager in two layers, and a decorator around the function
        if frame is None or "/optim/" in frame.f_code.co_filename.replace("\\", "/"):
            return False
        if recorder.places.is_own(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _address(tensor: Tensor) -> int:
    """Where its numbers are; 0: it has none of its own."""
    try:
        return tensor.data_ptr()
    except RuntimeError:  # inside vmap and its kin
        return 0


def _holds_tensor(part: Any) -> bool:
    return isinstance(part, Tensor) or (
        isinstance(part, (list, tuple)) and any(isinstance(inner, Tensor) for inner in part)
    )


def _is_finite(tensor: Tensor) -> bool:
    """Of the first ROWS_LOOKED_AT rows and the last. Logits of -inf are how tokens are taken out."""
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    rows = rows if len(rows) <= ROWS_LOOKED_AT else torch.cat([rows[: ROWS_LOOKED_AT - 1], rows[-1:]])
    return not bool((rows.isnan() | rows.isposinf()).any())
