"""Records the calls of torch.distributed that a program makes, without a change to the program.

The public functions of torch.distributed are replaced by wrappers, wherever their names were imported to, and
``Work.wait`` on its class. A call that torch makes inside another one of these is that one's matter and not
recorded. What C++ does without Python (the buckets of DDP) is seen as the call of Python that it happens in;
methods of ``ProcessGroup`` that a program calls itself are not seen.
"""

from __future__ import annotations

import atexit
import functools
import importlib.machinery
import inspect
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from ppwork.records.calls import (
    ANY,
    LOCAL,
    RECV,
    SEND,
    WAIT,
    Begun,
    CallWriter,
    Ended,
    Group,
    Head,
    Left,
    Part,
)
from ppwork.records.clocks import Clock
from ppwork.records.failure import is_users

VARIABLE = "PPWORK_TRACE"
"""A folder, which gets the calls (``worker.traced``); ``0``: record nowhere, also under our launcher."""
OPS_VARIABLE = "PPWORK_TRACE_OPS"
"""``1``: record operators, too, of the thread that makes the default group."""
ENDS = {"send": SEND, "isend": SEND, "send_object_list": SEND, "recv": RECV, "irecv": RECV,
        "recv_object_list": RECV}  # fmt: skip
"""Functions of one message, and which end of it they are."""
OPERATOR_ENDS = {"send": SEND, "isend": SEND, "recv": RECV, "irecv": RECV, "recv_any_source": RECV}
"""The same of operators, without the mark of those that write to their arguments."""
BATCH, START = "batch_isend_irecv", "init_process_group"
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
    "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "wait_tensor",
)  # fmt: skip
"""Functions of ``_functional_collectives``, which DTensor calls."""
TENSORS = ("tensor", "input_tensor", "input", "self", "output", "tensors", "input_tensor_list", "inputs")
"""Parameters that say what a rank brings, or gets where it brings nothing; the first that a function has."""
OPERANDS = ("tensor", "input", "inputs", "input_tensor", "input_tensors", "input_list", "tensors")
"""The same of operators."""
TEXT = 200
"""Characters that are kept of an exception."""

STARTED = "_ppwork_started_at"
"""Attribute of a thread: file and line of the program that started it."""
_COMPILED = re.compile(r"/torchinductor[_/]|/c[0-9a-z]{51}\.py$")
"""Files that torch's compiler wrote."""

NOTHING = Part()

Place = tuple[int, str, Any]
"""Position, name and default of a parameter."""


class Parameters(NamedTuple):
    """The parameters of a function that are recorded, ``None`` where it has no such one."""

    tensor: Place | None
    peer: Place | None
    group_peer: Place | None
    tag: Place | None
    op: Place | None
    group: Place | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Find them by their names."""
        places = {
            p.name: (n, p.name, p.default)
            for n, p in enumerate(inspect.signature(function).parameters.values())
        }

        def first(*names: str) -> Place | None:
            return next((places[name] for name in names if name in places), None)

        return cls(
            first(*TENSORS), first("src", "dst"), first("group_src", "group_dst"), first("tag"),
            first("op", "reduceOp", "ranks", "backend"), first("group", "process_group", "parent_pg"),
        )  # fmt: skip


def _given(place: Place | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    if place is None:
        return None
    number, name, default = place
    return args[number] if number < len(args) else kwargs.get(name, default)


class _Inside(threading.local):
    """Whether this thread is in a call that is being recorded."""

    call = False


class CallRecorder:
    """Records the calls of this process, which has one of these at most.

    Args:
        folder: Gets a file of this rank.
        rank: Of this process in its world.
        world_size: Number of ranks.
        ops: Record operators, too.

    Raises:
        OSError: There can be no such file.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, *, ops: bool = False) -> None:
        self._writer = CallWriter(folder, rank)
        self._writer.introduce(Head(rank, world_size, Clock.of_this_host().name, time.monotonic_ns()))
        self._numbers = itertools.count()
        self._inside = _Inside()
        self._handles: dict[int, tuple[int, int]] = {}
        """Number of the call and place of the handle, by its address; a new handle there takes its place."""
        self._groups: dict[int, Group | None] = {}
        self._texts: dict[Any, str] = {}
        """Of dtypes and reductions."""
        self._sites: dict[tuple[CodeType, int], str] = {}
        self._is_users: dict[CodeType, bool] = {}
        self._main = threading.main_thread().ident
        self._ops = ops
        self._error = ""
        os.register_at_fork(after_in_child=self._writer.close)  # it is not this rank
        atexit.register(self._leave)

    def failed(self, error: BaseException) -> None:
        """Note the exception that the program ends with."""
        self._error = _text(error)

    def _leave(self) -> None:
        self._writer.write(Left(time.monotonic_ns(), self._error))

    def install(self) -> None:
        """Replace the functions: now, or once the program has imported them."""
        homes = {
            "torch.distributed": self._replace_public,
            "torch.distributed._functional_collectives": self._replace_functional,
            "torch.nn.parallel.distributed": self._replace_ddp,
        }
        begin = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            setattr(thread, STARTED, self._site())
            begin(thread)

        threading.Thread.start = functools.wraps(begin)(start)  # type: ignore[assignment,method-assign]
        sys.meta_path.insert(0, _AfterImport(homes))  # type: ignore[arg-type]
        for name in [name for name in homes if name in sys.modules]:
            homes.pop(name)(sys.modules[name])

    def _replace_public(self, module: ModuleType) -> None:
        self._c10d = module.distributed_c10d
        for name in PUBLIC:
            self._replace(self._c10d, name)
        work = self._c10d.Work
        work.wait = self._wait(work.wait)

    def _replace_functional(self, module: ModuleType) -> None:
        for name in FUNCTIONAL:
            self._replace(module, name)

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
            group = self._group(awaited.pop())
            # Not `inside`: hooks of the program's own may call torch.distributed meanwhile.
            with self._ending(self._begin("backward of DDP", group.name if group else "")):
                return backward(*args, **kwargs)

        ddp.__init__ = self._wrapped(ddp.__init__, "DistributedDataParallel")
        ddp.forward = _compiled_as(functools.wraps(forward)(forward_noted), forward)
        torch.autograd.backward = _compiled_as(functools.wraps(backward)(backward_recorded), backward)

    def _replace(self, module: ModuleType, name: str) -> None:
        function = getattr(module, name, None)
        if function is None:  # another version of torch
            return
        wrapper = self._wrapped(function, name)
        for other in list(sys.modules.values()):
            names = getattr(other, "__dict__", {})
            if names.get(name) is function:
                names[name] = wrapper

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        places, inside = Parameters.of(function), self._inside

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if inside.call:
                return function(*args, **kwargs)
            inside.call = True
            try:
                number = self._begin(name, *self._described(name, places, args, kwargs))
                try:
                    result = function(*args, **kwargs)
                except BaseException as error:
                    self._writer.write(Ended(number, time.monotonic_ns(), _text(error)))
                    _without_this_frame(error)
                    raise
                self._end(name, number, result)
                if name == START and self._ops:
                    self.see_operators()
                return result
            finally:
                inside.call = False

        return _compiled_as(recorded, function)

    def _wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        inside, handles = self._inside, self._handles

        def recorded(work: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if inside.call:
                return wait(work, *args, **kwargs)
            of, part = handles.get(id(work), (-1, ANY))
            number = self._begin(WAIT, of=of, part=part)
            try:
                result = wait(work, *args, **kwargs)
            except BaseException as error:
                self._writer.write(Ended(number, time.monotonic_ns(), _text(error)))
                _without_this_frame(error)
                raise
            self._writer.write(Ended(number, time.monotonic_ns()))
            return result

        recorded.__name__, recorded.__doc__ = "wait", wait.__doc__
        return _compiled_as(recorded, wait)

    def see_operators(self) -> None:
        """Record this thread's operators, once and from now on."""
        from ppwork.worker.operators import seeing

        self._ops = False
        seeing(self._operator).__enter__()  # type: ignore[no-untyped-call]

    def _operator(self, func: Any, named: dict[str, Any], call: Callable[[], Any]) -> Any:  # noqa: ANN401
        name = func._schema.name
        waits = name.endswith("::wait_tensor")
        if self._inside.call or not (waits or "process_group" in named or "group_name" in named):
            return call()
        described: tuple[str, tuple[Part, ...], str] = "", (), ""
        with suppress(Exception):  # another version of torch may say it otherwise: its name is known
            described = described if waits else self._operands(name, named)
        with self._ending(self._begin(name, *described)):
            return call()

    def _operands(self, name: str, named: dict[str, Any]) -> tuple[str, tuple[Part, ...], str]:
        """Return group, parts and operation of an operator."""
        boxed, given = named.get("process_group"), named.get("group_name")
        if boxed is not None:
            given = self._c10d.ProcessGroup.unbox(boxed)
        elif isinstance(given, str):
            given = self._c10d._resolve_process_group(given)
        group = self._group(given)
        ranks = group.ranks if group is not None else ()
        op = named.get("reduce_op")
        text = op if isinstance(op, str) else ""
        if "op_list" in named:
            each = zip(*(named[n] for n in ("op_list", "tensors", "peer_list", "tag_list")), strict=True)
            parts = tuple(self._part(OPERATOR_ENDS[kind], *about) for kind, *about in each)
            return group.name if group else "", parts, text
        kind = OPERATOR_ENDS.get(name.partition("::")[2].rstrip("_"), "")
        peer = next((named[n] for n in ("dst", "src", "root_rank") if n in named), ANY)
        if peer != ANY and not (kind and boxed is None):  # messages of functional ones go by global ranks
            peer = ranks[peer]
        tensor = next((named[n] for n in OPERANDS if n in named and "barrier" not in name), None)
        part = self._part(kind, tensor, peer, named.get("tag", 0))
        return group.name if group else "", (part,) if part != NOTHING else (), text

    @contextmanager
    def _ending(self, number: int) -> Iterator[None]:
        error = ""
        try:
            yield
        except BaseException as raised:
            error = _text(raised)
            raise
        finally:
            self._writer.write(Ended(number, time.monotonic_ns(), error))

    def _begin(
        self, name: str, group: str = "", parts: tuple[Part, ...] = (), op: str = "", **of: int
    ) -> int:
        number, site = next(self._numbers), self._site()
        ident = threading.get_ident()
        thread = "" if ident == self._main else f"{threading.current_thread().name} {ident}"
        makes = self._next_group() if name == "new_group" and not op.startswith(LOCAL) else ""
        self._writer.write(
            Begun(number, time.monotonic_ns(), name, site, group, parts, thread, op, makes, **of)
        )
        return number

    def _next_group(self) -> str:
        """Return the name that torch gives to the next group here: a count, which is this rank's own."""
        return str(getattr(getattr(self._c10d, "_world", None), "group_count", ""))

    def _end(self, name: str, number: int, result: Any) -> None:  # noqa: ANN401  of a function of torch
        at_ns = time.monotonic_ns()
        handles = result if name == BATCH else [result] if isinstance(result, self._c10d.Work) else []
        for place, handle in enumerate(handles):
            self._handles[id(handle)] = number, place if len(handles) > 1 else ANY
        peer = result if name == "recv" and isinstance(result, int) else ANY
        self._writer.write(Ended(number, at_ns, "", bool(handles), peer))
        if name in (START, "destroy_process_group"):
            self._groups.clear()

    def _described(
        self, name: str, places: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, tuple[Part, ...], str]:
        """Return group, parts and operation of a call; what torch is about to refuse may have none."""
        try:
            if name == BATCH:
                ops = args[0] if args else kwargs["p2p_op_list"]
                group, op = self._group(ops[0].group), None
                parts = tuple(self._part(ENDS[o.op.__name__], o.tensor, o.peer, o.tag) for o in ops)
            else:
                group, op = self._group(_given(places.group, args, kwargs)), _given(places.op, args, kwargs)
                peer = _given(places.peer, args, kwargs)
                tag = _given(places.tag, args, kwargs) if name in ENDS else 0  # DTensor's are texts
                if peer is None:
                    of_group = _given(places.group_peer, args, kwargs)
                    peer = ANY if group is None or of_group is None else group.ranks[of_group]
                part = self._part(
                    ENDS.get(name, ""), _given(places.tensor, args, kwargs), int(peer), int(tag or 0)
                )
                parts = (part,) if part != NOTHING else ()
            local = LOCAL if kwargs.get("use_local_synchronization") else ""
            return group.name if group else "", parts, f"{local}{self._text_of(op)}"
        except Exception:  # noqa: BLE001  its own error is the one to see
            return "", (), ""

    def _part(self, kind: str, tensor: Any, peer: int, tag: int) -> Part:  # noqa: ANN401  whatever was given
        tensors, size = 1, 0
        if isinstance(tensor, list | tuple) and len(tensor) == 1:
            (tensor,) = tensor
        if isinstance(tensor, list | tuple):
            tensors, size = len(tensor), sum(getattr(each, "nbytes", 0) for each in tensor)
            tensor = tensor[0] if tensor else None
        dtype = getattr(tensor, "dtype", None)
        if dtype is None:
            return Part(kind, peer, tag)
        return Part(
            kind,
            peer,
            tag,
            self._text_of(dtype),
            tuple(tensor.shape),
            tensors,
            size or tensor.nbytes,
            _address(tensor) if tensors == 1 else 0,
        )

    def _text_of(self, value: Any) -> str:  # noqa: ANN401  dtype, reduction, name, list of ranks
        if value is None or value is inspect.Parameter.empty:
            return ""
        if isinstance(value, str | list | tuple | range):
            return value if isinstance(value, str) else str(list(value))
        text = self._texts.get(value)
        if text is None:
            text = self._texts[value] = str(value).rpartition(".")[2]
        return text

    def _group(self, given: Any) -> Group | None:  # noqa: ANN401  a group, or what DTensor has for one
        default = self._c10d.GroupMember.WORLD
        group = default if given is None or given is inspect.Parameter.empty else given
        key = id(group)
        if key not in self._groups:
            self._groups[key] = self._known(group, is_default=group is default)
        return self._groups[key]

    def _known(self, group: Any, *, is_default: bool) -> Group | None:  # noqa: ANN401
        if group is None or isinstance(group, int):  # before the start, or of another rank
            return None
        if not isinstance(group, self._c10d.ProcessGroup):
            group = sys.modules["torch.distributed._functional_collectives"]._resolve_group(group)
        about = "group" if group.group_desc in ("", "undefined") else group.group_desc
        name = "default_pg" if is_default or about == "default_pg" else f"{about} {group.group_name}"
        known = Group(name, tuple(self._c10d.get_process_group_ranks(group)), self._c10d.get_backend(group))
        self._writer.introduce(known)
        return known

    def _site(self) -> str:
        """Return file and line of the innermost frame that is the program's own.

        A thread that has none, as its target is a function of torch, is that of the line that started it.
        """
        frame, known = sys._getframe(2), self._is_users
        while frame.f_back is not None:
            code = frame.f_code
            if code not in known:
                known[code] = is_users(code.co_filename) and not _COMPILED.search(code.co_filename)
            if known[code]:
                break
            frame = frame.f_back
        else:
            if started := getattr(threading.current_thread(), STARTED, ""):
                return str(started)
        place = frame.f_code, frame.f_lineno
        if place not in self._sites:
            self._sites[place] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return self._sites[place]


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
    """Record this process's calls from now on; ``None``: ``PPWORK_TRACE`` is ``0``, or no file can be.

    Args:
        folder: Gets a file of this rank.
        ops: Record operators, too, as ``PPWORK_TRACE_OPS`` asks for.
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
    """Let torch's compiler take the function where it meets the wrapper: it cannot compile a recorder."""
    wrapper._torchdynamo_inline = function  # type: ignore[attr-defined]
    return wrapper


def _address(tensor: Any) -> int:  # noqa: ANN401
    """Return where a tensor lies; 0: it has no memory of its own."""
    try:
        return int(tensor.data_ptr())
    except Exception:  # noqa: BLE001  of a wrapper, a compiler's stand-in
        return 0


def _text(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:TEXT].encode(errors="backslashreplace").decode()


def _without_this_frame(error: BaseException) -> None:
    """Take the wrapper's frame out of a traceback: it has to look as it would without us."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
