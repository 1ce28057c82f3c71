"""Records the calls of torch.distributed that a program makes, without a change to the program.

Wrappers replace the public functions of torch.distributed, wherever their names were imported to, and
``Work.wait`` on its class. A call that torch makes inside a recorded call is not recorded. Calls that C++
makes without Python (the buckets of DDP) appear as the Python call around them. Methods of ``ProcessGroup``
that a program calls itself are not seen.
"""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import itertools
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from textwrap import shorten
from types import FrameType, ModuleType, TracebackType
from typing import Any

from ppwork.records.calls import (
    ABORT,
    ANY,
    AWAIT,
    LOCAL,
    WAIT,
    WAIT_TENSOR,
    Begun,
    CallEnded,
    CallPart,
    CallWriter,
    Dropped,
    Group,
    Head,
    OnDevice,
    ProgramEnded,
    awaited_by,
)
from ppwork.records.clocks import Clock
from ppwork.records.failure import is_users
from ppwork.worker.arguments import BATCH, ENDS, UNKNOWN, Arguments, Parameters
from ppwork.worker.device_calls import DeviceCalls
from ppwork.worker.inner_ranks import InnerRanks, free_folder, place_of
from ppwork.worker.user_lines import outwards, users_frame

VARIABLE = "PPWORK_TRACE"
"""A folder for the calls (``worker.traced``); ``0``: record nowhere, even under our launcher."""
OPS_VARIABLE = "PPWORK_TRACE_OPS"
"""``1``: also record operators, of the thread that makes the default group."""
START = "init_process_group"
PUBLIC = (
    *ENDS, BATCH,
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_gather_single",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list",
    "destroy_process_group", "init_process_group", "new_group", "new_subgroups",
    "new_subgroups_by_enumeration", "shrink_group", "split_group",
)  # fmt: skip
FUNCTIONAL = (
    "all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_tensor", "all_reduce",
    "all_reduce_coalesced", "all_to_all_single", "broadcast", "reduce_scatter_single",
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", WAIT_TENSOR,
)  # fmt: skip
"""Functions of ``_functional_collectives``, which DTensor calls."""
TEXT = 300
"""Most characters of an exception's text."""

STARTED = "_ppwork_started_at"
"""Attribute of a thread: file and line of the program that started it."""


class _Inside(threading.local):
    """Whether this thread is in a call of torch, or of a plane, that is being recorded."""

    call = False
    plane = False


class CallRecorder:
    """Records the calls of this process; a process has at most one recorder.

    Args:
        folder: Gets this rank's file.
        rank: This process's rank in its world; ``None``: its program has started it, and
            ``init_process_group`` tells its rank. Until then nothing is recorded.
        world_size: Number of ranks.
        ops: Record operators, too.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, folder: Path, rank: int | None, world_size: int, *, ops: bool = False) -> None:
        self._writer: CallWriter | None = None
        self._inner, self._folder = InnerRanks(folder, rank), folder
        self._numbers = itertools.count()
        self._inside = _Inside()
        self._handles: dict[int, tuple[int, int, weakref.ref[Any] | None]] = {}
        """Number of the call and place of the handle, by the handle's address; a new handle there replaces
        it. Until the handle is waited for, a weak reference tells of its end."""
        self._dropped: deque[Dropped] = deque()
        """Written at the next call: Python may free an object at any time, even while a line is written."""
        self._results: dict[int, int] = {}
        """Number of the functional call, by address of a result that torch has not waited for."""
        self._sites: dict[tuple[str, int], str] = {}
        self._put: list[tuple[ModuleType, str, Callable[..., Any]]] = []
        """Places where our functions replaced torch's."""
        self._later: type | None = None
        """Type of a functional call's result that torch has not waited for."""
        self._devices: DeviceCalls | None = None
        self._main = threading.main_thread().ident
        self._asks_ops, self._ops = ops, ops
        self._left = ProgramEnded(0)
        self._is_open = False
        if rank is not None:
            self._open(folder, rank, world_size)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._leave)

    def _open(self, folder: Path, rank: int, world_size: int) -> None:
        self._writer = CallWriter(folder, rank)
        self._writer.introduce(Head(rank, world_size, Clock.of_this_host().name, time.monotonic_ns()))
        self._numbers, self._left, self._is_open = itertools.count(), ProgramEnded(0), True

    def _forked(self) -> None:
        """Stop being this rank; perhaps become one of the ranks that it starts."""
        if self._writer is not None:
            self._writer.close_in_child()
        self._writer, self._is_open, self._devices, self._ops = None, False, None, self._asks_ops
        self._folder, self._main = self._inner.folder, threading.main_thread().ident
        self._inside.call = self._inside.plane = False
        self._handles.clear()
        self._dropped.clear()
        self._results.clear()

    def _join(self, start: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Become the rank that this process, which a rank has started, is about to be."""
        with suppress(Exception):  # torch's own error is the one to see; without a file nothing is recorded
            rank, size = place_of(start, args, kwargs)
            if 0 <= rank < size:
                self._open(free_folder(self._folder, rank), rank, size)

    def _write(self, line: Begun | CallEnded | Dropped | OnDevice | ProgramEnded) -> None:
        if self._writer is not None:
            self._writer.write(line)

    def _introduce(self, group: Group) -> None:
        if self._writer is not None:
            self._writer.introduce(group)

    def failed(self, error: BaseException) -> None:
        """Note the exception that ends the program."""
        self._left = ProgramEnded(0, _text(error), self._site_of(error.__traceback__))

    def _leave(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._write_dropped()
        if self._devices is not None:
            self._devices.leave()
        others = {name for module, name, ours in self._put if getattr(module, name, ours) is not ours}
        left = self._left
        self._write(ProgramEnded(time.monotonic_ns(), left.error, left.site, tuple(sorted(others))))

    def install(self) -> None:
        """Replace the functions: at once, or when the program has imported them."""
        homes = {
            "torch.distributed": self._replace_public,
            "torch.distributed._functional_collectives": self._replace_functional,
            "torch.nn.parallel.distributed": self._replace_ddp,
            "ppwork.runtime.groups": self._replace_join,
            "ppwork.runtime.stage0": self._replace_stage0,
            "ppwork.runtime.mesh": self._replace_mesh,
        }
        begin, exit_now, bootstrap = threading.Thread.start, os._exit, BaseProcess._bootstrap  # type: ignore[attr-defined]

        def start(thread: threading.Thread) -> None:
            setattr(thread, STARTED, self._site()[0])
            begin(thread)

        def leave(status: int) -> None:
            if status and not self._left.error:
                self._left = ProgramEnded(0, f"os._exit({status})")
            self._leave()
            exit_now(status)

        def run(process: BaseProcess, *args: Any, **kwargs: Any) -> int:  # noqa: ANN401
            code: int = bootstrap(process, *args, **kwargs)
            if code and not self._left.error:
                self._left = ProgramEnded(0, f"exit code {code}")
            return code

        threading.Thread.start = functools.wraps(begin)(start)  # type: ignore[assignment,method-assign]
        os._exit = functools.wraps(exit_now)(leave)  # type: ignore[assignment]
        BaseProcess._bootstrap = functools.wraps(bootstrap)(run)  # type: ignore[attr-defined]
        self._inner.follow(follow, ops=self._asks_ops)
        sys.meta_path.insert(0, _AfterImport(homes))  # type: ignore[arg-type]
        for name in [name for name in homes if name in sys.modules]:
            homes.pop(name)(sys.modules[name])

    def _replace_public(self, module: ModuleType) -> None:
        self._c10d = module.distributed_c10d
        self._arguments = Arguments(self._c10d, self._introduce)
        self._replace(self._c10d, PUBLIC)
        for name in PUBLIC:
            if (ours := self._c10d.__dict__.get(name)) is not None:
                self._put += [(home, name, ours) for home in (self._c10d, module) if hasattr(home, name)]
        work = self._c10d.Work
        work.wait = self._wait(work.wait)
        group = self._c10d.ProcessGroup
        if (abort := getattr(group, "abort", None)) is not None:  # other versions of torch may lack it
            group.abort = self._aborting(abort)

    def _replace_functional(self, module: ModuleType) -> None:
        self._later = module.AsyncCollectiveTensor
        self._replace(module, FUNCTIONAL)

    def _replace_ddp(self, module: ModuleType) -> None:
        import torch

        ddp, backward = module.DistributedDataParallel, torch.autograd.backward
        forward = ddp.forward
        awaited: list[Any] = []

        def forward_noted(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if torch.is_grad_enabled() and model.require_backward_grad_sync:
                awaited[:] = [model.process_group]
            return forward(model, *args, **kwargs)

        def backward_recorded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if not awaited:
                return backward(*args, **kwargs)
            group = self._arguments.group(awaited.pop())
            # Not `inside`: the program's own hooks may call torch.distributed meanwhile.
            with self._ending(self._begin("backward of DDP", group.name if group else "")):
                return backward(*args, **kwargs)

        ddp.__init__ = self._wrapped(ddp.__init__, "DistributedDataParallel")
        ddp.forward = _compiled_as(functools.wraps(forward)(forward_noted), forward)
        torch.autograd.backward = _compiled_as(functools.wraps(backward)(backward_recorded), backward)

    def _replace_join(self, module: ModuleType) -> None:
        join = module.join

        @functools.wraps(join)
        def recorded(plan: Any, membership: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            others = [rank for rank in membership.ranks if rank != membership.job_rank]
            with self._ending(self._begin("join", "", tuple(CallPart(AWAIT, rank) for rank in others))):
                return join(plan, membership, *args, **kwargs)

        for other in [m for name, m in list(sys.modules.items()) if name.startswith("ppwork.")]:
            for name in [name for name, value in vars(other).items() if value is join]:
                setattr(other, name, recorded)  # a rank that is forked has imported them before

    def _replace_stage0(self, module: ModuleType) -> None:
        self._replace_waits(module.Stage0Plane, ("receive_result", "await_result", "shutdown"))

    def _replace_mesh(self, module: ModuleType) -> None:
        self._replace_waits(module.MeshPlane, ("receive", "acknowledge"))
        self._replace_waits(module.LeaderPlane, ("receive", "acknowledge", "send_result"))

    def _replace_waits(self, plane: type, names: Sequence[str]) -> None:
        """Record the calls in which a plane waits for another rank: what lanes call tells nothing of it."""
        for name in names:
            setattr(plane, name, self._awaiting(getattr(plane, name), name))

    def _awaiting(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        inside = self._inside

        @functools.wraps(method)
        def recorded(plane: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if inside.plane:
                return method(plane, *args, **kwargs)
            inside.plane = True
            peer = awaited_by(plane.rank)
            if plane.groups.membership is not None:
                peer = plane.groups.membership.ranks[peer]
            part = CallPart(AWAIT, peer)
            try:
                with self._ending(self._begin(f"plane.{name}", "", (part,))):
                    return method(plane, *args, **kwargs)
            finally:
                inside.plane = False

        return recorded

    def _replace(self, module: ModuleType, names: Sequence[str]) -> None:
        # Other versions of torch lack some of them.
        torchs = {name: function for name in names if (function := getattr(module, name, None)) is not None}
        ours = {
            name: self._waiting(function) if name == WAIT_TENSOR else self._wrapped(function, name)
            for name, function in torchs.items()
        }
        for other in list(sys.modules.values()):  # once: there are 1,500
            known = getattr(other, "__dict__", {})
            for name in ours.keys() & known.keys():
                if known[name] is torchs[name]:
                    known[name] = ours[name]

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        places, inside, starts = Parameters.of(function), self._inside, name == START

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if inside.call:
                return function(*args, **kwargs)
            inside.call = True
            try:
                if starts and self._writer is None:
                    self._join(function, args, kwargs)
                group, parts, op, tensor = self._arguments.of_function(name, places, args, kwargs)
                number = self._begin(name, group, parts, op)
                devices = self._devices
                if devices is not None and _on_cuda(tensor):
                    devices.begin(number, tensor[0] if isinstance(tensor, list | tuple) else tensor)
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    self._write(CallEnded(number, time.monotonic_ns(), _text(error)))
                    if devices is not None:
                        devices.dropped(number)
                    _without_this_frame(error)
                    raise
                self._end(name, number, result)
                if starts:
                    self._started()
                return result
            finally:
                inside.call = False

        return _compiled_as(recorded, function)

    def _wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        inside, handles = self._inside, self._handles

        def recorded(work: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if inside.call:
                return wait(work, *args, **kwargs)
            of, part, tells = handles.get(id(work), (-1, ANY, None))
            if tells is not None:
                handles[id(work)] = of, part, None
            return self._waited(WAIT, of, part, lambda: wait(work, *args, **kwargs))

        recorded.__name__, recorded.__doc__ = "wait", wait.__doc__
        return _compiled_as(recorded, wait)

    def _aborting(self, abort: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the abort of a group, which a thread of the program may call."""

        def recorded(group: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if self._inside.call:
                return abort(group, *args, **kwargs)
            known = self._arguments.group(group)
            with self._ending(self._begin(ABORT, known.name if known else "")):
                return abort(group, *args, **kwargs)

        recorded.__name__, recorded.__doc__ = ABORT, abort.__doc__
        return _compiled_as(recorded, abort)

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the wait for a functional call's result."""
        inside = self._inside

        @functools.wraps(wait)
        def recorded(tensor: Any) -> Any:  # noqa: ANN401
            if inside.call:
                return wait(tensor)
            inside.call = True
            try:
                of = self._results.pop(_memory_of(tensor), -1) if self._results else -1
                return self._waited(WAIT_TENSOR, of, ANY, lambda: wait(tensor))
            finally:
                inside.call = False

        return _compiled_as(recorded, wait)

    def _waited(self, name: str, of: int, part: int, wait: Callable[[], Any]) -> Any:  # noqa: ANN401
        number = self._begin(name, "", (), "", of, part)
        try:
            result = wait()
        except BaseException as error:
            self._write(CallEnded(number, time.monotonic_ns(), _text(error)))
            _without_this_frame(error, 2)
            raise
        self._write(CallEnded(number, time.monotonic_ns()))
        if self._devices is not None:
            self._devices.waited(of, part)
        return result

    def _started(self) -> None:
        """Start what needs the default group and a fully imported torch."""
        if self._devices is None and sys.modules["torch"].version.cuda is not None:
            with suppress(Exception):  # other versions of torch may have it elsewhere
                self._devices = DeviceCalls(self._write)
        if self._ops:
            self.see_operators()

    def see_operators(self) -> None:
        """Record this thread's operators from now on; call this once."""
        from ppwork.worker.operators import seeing

        self._ops = False
        seeing(self._operator).__enter__()  # type: ignore[no-untyped-call]

    def _operator(self, func: Any, named: dict[str, Any], call: Callable[[], Any]) -> Any:  # noqa: ANN401
        name = func._schema.name
        waits = name.endswith("::wait_tensor")
        if self._inside.call or not (waits or "process_group" in named or "group_name" in named):
            return call()
        group, parts, op, _ = UNKNOWN if waits else self._arguments.of_operator(name, named)
        with self._ending(self._begin(name, group, parts, op)):
            return call()

    @contextmanager
    def _ending(self, number: int) -> Iterator[None]:
        error = ""
        try:
            yield
        except BaseException as raised:
            error = _text(raised)
            raise
        finally:
            self._write(CallEnded(number, time.monotonic_ns(), error))

    def _begin(
        self,
        name: str,
        group: str,
        parts: tuple[CallPart, ...] = (),
        op: str = "",
        of: int = -1,
        part: int = ANY,
    ) -> int:
        if self._dropped:
            self._write_dropped()
        number, (site, via) = next(self._numbers), self._site()
        ident = threading.get_ident()
        thread = "" if ident == self._main else f"{threading.current_thread().name} {ident}"
        makes = self._next_group() if name == "new_group" and not op.startswith(LOCAL) else ""
        if (writer := self._writer) is not None:
            at_ns = time.monotonic_ns()
            writer.write(Begun(number, at_ns, name, site, group, parts, thread, op, makes, of, part, via))
        return number

    def _next_group(self) -> str:
        """Return the name that torch gives to the next group here: a count, which differs between ranks."""
        return str(getattr(getattr(self._c10d, "_world", None), "group_count", ""))

    def _end(self, name: str, number: int, result: Any) -> None:  # noqa: ANN401  of a function of torch
        at_ns = time.monotonic_ns()
        handles = result if name == BATCH else [result] if isinstance(result, self._c10d.Work) else []
        for place, handle in enumerate(handles):
            part = place if len(handles) > 1 else ANY
            tells = weakref.ref(handle, functools.partial(self._let_go, number, part))
            self._handles[id(handle)] = number, part, tells
        later = self._later is not None and isinstance(result, self._later)
        if later and (at := _memory_of(result)):
            self._results[at] = number
        peer = result if name == "recv" and isinstance(result, int) else ANY
        self._write(CallEnded(number, at_ns, "", bool(handles) or later, peer))
        if self._devices is not None:
            self._devices.end(number, len(handles) or later)
        if name in (START, "destroy_process_group"):
            self._arguments.forget()

    def _let_go(self, number: int, part: int, _: object) -> None:
        if self._is_open:
            self._dropped.append(Dropped(number, time.monotonic_ns(), part))

    def _write_dropped(self) -> None:
        while self._dropped:
            self._write(self._dropped.popleft())

    def _site(self) -> tuple[str, str]:
        """Return file and line of the program's innermost frame, and of the one that called it, if any.

        If a thread has none, because its target is a function of torch, return the line that started it.
        """
        caller = sys._getframe(2)
        if (frame := users_frame(caller)) is None:
            if started := getattr(threading.current_thread(), STARTED, ""):
                return str(started), ""
            *_, frame = outwards(caller)
        above = users_frame(frame.f_back)
        return self._at(frame), "" if above is None else self._at(above)

    def _at(self, frame: FrameType) -> str:
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in self._sites:
            self._sites[place] = f"{place[0]}:{place[1]}"
        return self._sites[place]

    def _site_of(self, trace: TracebackType | None) -> str:
        """Return file and line of the program's innermost frame in a traceback."""
        site = ""
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            site = f"{file}:{trace.tb_lineno}" if is_users(file) else site
            trace = trace.tb_next
        return site


class _AfterImport:
    """Calls a function on a module after its import: a program may set variables for torch before that."""

    def __init__(self, then: dict[str, Callable[[ModuleType], None]]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ANN401, ARG002
        if name not in self._then:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run, then = spec.loader.exec_module, self._then.pop(name)

            def exec_module(module: ModuleType) -> None:
                run(module)
                then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def start(folder: Path, *, ops: bool = False) -> CallRecorder | None:
    """Record this process's calls from now on; ``None`` if ``PPWORK_TRACE`` is ``0`` or no file can be made.

    Args:
        folder: Gets this rank's file.
        ops: Record operators, too, as ``PPWORK_TRACE_OPS`` asks.
    """
    if os.environ.get(VARIABLE) == "0":
        return None
    rank, size = (
        int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))
    )
    try:
        recorder = CallRecorder(folder, rank, size, ops=ops or os.environ.get(OPS_VARIABLE) == "1")
    except OSError as error:
        sys.stderr.write(f"ppwork: this rank's calls are not recorded: {folder}: {error.strerror}\n")
        return None
    recorder.install()
    return recorder


def _compiled_as(wrapper: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch's compiler use the function in place of the wrapper: it cannot compile a recorder."""
    wrapper._torchdynamo_inline = function  # type: ignore[attr-defined]
    return wrapper


def follow(folder: str, ops: bool) -> None:
    """Record the calls of this process, which a rank has just started, if it becomes a rank itself.

    Args:
        folder: Folder of the ranks that are started together.
        ops: Record operators, too.
    """
    with suppress(Exception):  # recording must not make the process fail
        CallRecorder(Path(folder), None, 0, ops=ops).install()


def _on_cuda(tensor: Any) -> bool:  # noqa: ANN401  of torch, a list of them, or anything
    if isinstance(tensor, list | tuple):
        tensor = tensor[0] if tensor else None
    return getattr(tensor, "is_cuda", False) is True


def _memory_of(tensor: Any) -> int:  # noqa: ANN401  of torch, or its wrapper of one that is not waited for
    """Return the address of a result's memory; 0 if it has no memory of its own."""
    try:
        return int(getattr(tensor, "elem", tensor).untyped_storage().data_ptr())
    except Exception:  # noqa: BLE001  a compiler's stand-in, or a sparse tensor
        return 0


def _text(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    text = shorten(f"{type(error).__name__}: {first}", TEXT, placeholder=" ...")
    return text.encode(errors="backslashreplace").decode()


def _without_this_frame(error: BaseException, frames: int = 1) -> None:
    """Remove the wrapper's frames from a traceback: it must look as it would without us."""
    for _ in range(frames):
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next
