"""Processes that the script starts: threads of this one, so that their queues, weights and optimizer steps are seen.

A process that trains is run by the main thread, which is the one that is observed, as soon as that thread waits for
something: `join`, `get`, `wait`. Pools work at once, in the thread that asks. Libraries keep real processes.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage

_TRAINS = re.compile(r"\.backward\(|optimi[sz]er\w*\.step\(|\.train_step\(|\.train\(\)|def train|\.fit\(")
_LONGEST_SLEEP = 0.02
_waiting: list[Process] = []  # those that train and have not begun


def install(stage: Stage) -> None:
    Process.stage = stage
    for name in ("multiprocessing", "torch.multiprocessing", "multiprocess"):
        stage.when_imported(name, functools.partial(_replace, stage))
    stage.when_imported("torch.utils.data.dataloader", functools.partial(_no_workers, stage))
    _signals_in_threads()
    _short_sleeps(stage)
    pool = concurrent.futures.ProcessPoolExecutor

    def make(*args: Any, **kwargs: Any) -> Any:
        return AtOnce(*args, **kwargs) if stage.is_asked_by_script() else pool(*args, **kwargs)

    concurrent.futures.ProcessPoolExecutor = make  # type: ignore[assignment,misc]


def _replace(stage: Stage, module: Any) -> None:
    def for_script(name: str, ours: Callable[..., Any]) -> None:
        real = getattr(module, name, None)

        def make(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs) if real is None or stage.is_asked_by_script() else real(*args, **kwargs)

        setattr(module, name, make)

    module.Process = Process
    for name in ("Queue", "SimpleQueue", "JoinableQueue"):
        for_script(name, Queue)
    for_script("Pipe", _pipe)
    for_script("Event", Event)
    for_script("Lock", threading.Lock)
    for_script("RLock", threading.RLock)
    for_script("Barrier", threading.Barrier)
    for_script("Semaphore", threading.Semaphore)
    for_script("Condition", threading.Condition)
    for_script("Value", lambda kind, *args, **kwargs: Shared(args[0] if args else 0))
    for_script("Array", lambda kind, given, **kwargs: [0] * given if isinstance(given, int) else list(given))
    for_script("Pool", AtOnce)
    for_script("Manager", _Manager)
    for_script("get_context", lambda *args: module)
    for_script("set_start_method", lambda *args, **kwargs: None)
    for_script("set_sharing_strategy", lambda *args: None)
    if module.__name__ == "torch.multiprocessing":
        for_script("spawn", functools.partial(_spawn, stage))
        for_script("start_processes", functools.partial(_spawn, stage))


def _spawn(stage: Stage, function: Callable[..., Any], args: Any = (), nprocs: int = 1, **kwargs: Any) -> None:
    stage.replaced("processes", "mp.spawn", "a call in this process")
    function(0, *args)


def settle() -> None:
    """Runs what waits for the main thread, if this is the main thread."""
    while _waiting and threading.current_thread() is threading.main_thread():
        _waiting.pop(0).run_here()


class Process:
    """The API of multiprocessing.Process over a thread."""

    stage: Stage

    def __init__(
        self,
        group: Any = None,
        target: Any = None,
        name: Any = None,
        args: Any = (),
        kwargs: Any = None,
        daemon: Any = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name, self.daemon = name or "Process-1", bool(daemon)
        self.exitcode: int | None = None
        self.pid = self.ident = None
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        self.stage.replaced("processes", "a process", "a thread of this one")
        if self._is_trainer():
            _waiting.append(self)
        else:
            self._thread = threading.Thread(target=self.run_here, daemon=True, name=self.name)
            self._thread.start()

    def _is_trainer(self) -> bool:
        work = self._target if self._target is not None else type(self).run
        work = getattr(work, "__func__", getattr(work, "func", work))
        if threading.current_thread() is not threading.main_thread():
            return False
        try:
            return bool(_TRAINS.search(inspect.getsource(work)))
        except (OSError, TypeError):
            return False

    def run_here(self) -> None:
        try:
            self.run()
            self.exitcode = 0
        except SystemExit as end:
            self.exitcode = end.code if isinstance(end.code, int) else 0
            if threading.current_thread() is threading.main_thread():
                raise
        except BaseException:
            self.exitcode = 1
            raise

    def join(self, timeout: float | None = None) -> None:
        settle()
        if self._thread is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        settle()
        return self._thread is not None and self._thread.is_alive()

    def terminate(self) -> None:
        pass

    kill = close = terminate


class Queue(queue.Queue[Any]):
    """Of this process: what is put is handed on as it is."""

    def __init__(self, maxsize: int = 0, **kwargs: Any) -> None:
        super().__init__(maxsize)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if self.empty():
            settle()
        return super().get(block, timeout)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self.full():
            settle()
        super().put(item, block, timeout)

    def close(self) -> None:
        pass

    join_thread = cancel_join_thread = close


class Event(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            settle()
        return super().wait(timeout)


class Shared:
    """multiprocessing.Value"""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._lock = threading.RLock()

    def get_lock(self) -> Any:
        return self._lock


class _Manager:
    def __enter__(self) -> _Manager:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        made: dict[str, Any] = {
            "dict": dict, "list": list, "Queue": Queue, "Event": Event, "Lock": threading.Lock,
            "RLock": threading.RLock, "Value": lambda kind, value=0: Shared(value),
            "Namespace": type("Namespace", (), {}), "shutdown": lambda: None,
        }  # fmt: skip
        if name not in made:
            raise AttributeError(name)
        return made[name]


class _End:
    """One end of a pipe."""

    def __init__(self, sent: Queue, received: Queue) -> None:
        self._sent, self._received = sent, received

    def send(self, item: Any) -> None:
        self._sent.put(item)

    def recv(self) -> Any:
        return self._received.get()

    def poll(self, timeout: float = 0.0) -> bool:
        end = time.monotonic() + (timeout or 0.0)
        while self._received.empty() and time.monotonic() < end:
            time.sleep(_LONGEST_SLEEP)
        return not self._received.empty()

    def close(self) -> None:
        pass


def _pipe(duplex: bool = True) -> tuple[_End, _End]:
    first, second = Queue(), Queue()
    return _End(first, second), _End(second, first)


class AtOnce(concurrent.futures.Executor):
    """A pool whose work is done when it is asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        begin = kwargs.get("initializer")
        if begin is not None:
            begin(*kwargs.get("initargs", ()))

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        error: BaseException | None = None
        try:
            done.set_result(function(*args, **kwargs))
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError, OSError, AttributeError) as raised:
            error = raised
        if error is not None:
            done.set_exception(error)
        return done

    def map(self, function: Callable[..., Any], *given: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        chunks = given[:-1] if len(given) > 1 and isinstance(given[-1], int) else given
        return list(map(function, *chunks))

    def imap(self, function: Callable[..., Any], given: Iterable[Any], chunksize: int = 1) -> Iterator[Any]:
        return map(function, given)

    imap_unordered = imap

    def starmap(self, function: Callable[..., Any], given: Iterable[Any], chunksize: int = 1) -> list[Any]:
        return [function(*args) for args in given]

    def apply(self, function: Callable[..., Any], args: Any = (), kwds: Any = None) -> Any:
        return function(*args, **(kwds or {}))

    def apply_async(self, function: Callable[..., Any], args: Any = (), kwds: Any = None, **kwargs: Any) -> Any:
        return _Result(self.submit(function, *args, **(kwds or {})))

    def map_async(self, function: Callable[..., Any], given: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        return _Result(self.submit(lambda: list(map(function, given))))

    def close(self) -> None:
        pass

    join = terminate = close


class _Result:
    """What apply_async returns."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def get(self, timeout: float | None = None) -> Any:
        return self._future.result(timeout)

    def wait(self, timeout: float | None = None) -> None:
        pass

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self._future.exception() is None


def _no_workers(stage: Stage, module: ModuleType) -> None:
    """A loader reads its rows itself."""
    begin = module.DataLoader.__init__

    @functools.wraps(begin)
    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 4:  # batch_size, shuffle, sampler, batch_sampler, num_workers
            args = (*args[:4], 0, *args[5:])
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context"):
            kwargs.pop(name, None)
        begin(self, dataset, *args, **kwargs)

    module.DataLoader.__init__ = init


def _signals_in_threads() -> None:
    """A process may set a handler or an alarm; the thread that stands for one cannot, and goes on without."""
    handle = signal.signal

    def signal_(number: Any, handler: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        return handle(number, handler) if is_main else signal.SIG_DFL

    signal.signal = signal_  # type: ignore[assignment]


def _short_sleeps(stage: Stage) -> None:
    sleep = time.sleep

    def short(seconds: Any) -> None:
        if stage.is_asked_by_script(sys._getframe(1)):
            settle()
            seconds = min(seconds, _LONGEST_SLEEP)
        sleep(seconds)

    time.sleep = short
