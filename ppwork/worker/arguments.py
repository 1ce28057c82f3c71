"""Reads the arguments of a call of torch.distributed, in the words of the records: group, parts, operation.

Parameters are found by name, so their order may differ between versions of torch. If torch is about to refuse
an argument, it may be anything: then nothing is recorded of it, and torch's own error says what is wrong.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ppwork.records.calls import ANY, LOCAL, RECV, SEND, CallPart, Group

ENDS = {"send": SEND, "isend": SEND, "send_object_list": SEND, "recv": RECV, "irecv": RECV,
        "recv_object_list": RECV}  # fmt: skip
"""Functions that transfer one message, and the end of it that each one is."""
OPERATOR_ENDS = {"send": SEND, "isend": SEND, "recv": RECV, "irecv": RECV, "recv_any_source": RECV}
"""The same for operators; their names here lack the trailing ``_`` of operators that write to arguments."""
BATCH = "batch_isend_irecv"
TENSORS = ("tensor", "input_tensor", "input", "self", "output", "tensors", "input_tensor_list", "inputs")
"""Parameters for what a rank brings, or gets if it brings nothing; the first that a function has counts."""
OPERANDS = ("tensor", "input", "inputs", "input_tensor", "input_tensors", "input_list", "tensors")
"""The same for operators."""

NOTHING = CallPart()

Place = tuple[int, str, Any]
"""Position, name and default of a parameter."""


class Parameters(NamedTuple):
    """The parameters of a function that are recorded; ``None`` if the function lacks one."""

    tensor: Place | None
    peer: Place | None
    group_peer: Place | None
    tag: Place | None
    op: Place | None
    group: Place | None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Find the parameters by their names."""
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


def given(place: Place | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the argument for a parameter, or its default; ``None`` if the function lacks the parameter."""
    if place is None:
        return None
    number, name, default = place
    return args[number] if number < len(args) else kwargs.get(name, default)


About = tuple[str, tuple[CallPart, ...], str, Any]
"""What a call is about: the name of its group, its messages or this rank's share, the reduction or another
word, and one of its tensors; a part that does not exist or is not known is empty. A bare tuple, for speed.
"""
UNKNOWN: About = "", (), "", None


class Arguments:
    """Reads the arguments of this process's calls.

    Args:
        c10d: ``torch.distributed.distributed_c10d``.
        introduce: Gets each group when it is first used.
    """

    def __init__(self, c10d: Any, introduce: Callable[[Group], None]) -> None:  # noqa: ANN401  torch's own
        self._c10d, self._introduce = c10d, introduce
        self._groups: dict[Any, Group | None] = {}
        """Groups by address and name, as an address may be used again; the default group by ``None``."""
        self._texts: dict[Any, str] = {}
        """Texts of dtypes and reductions."""

    def forget(self) -> None:
        """Forget all groups: some were made or destroyed."""
        self._groups.clear()

    def of_function(
        self, name: str, places: Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> About:
        """Return what a call of a public function is about."""
        try:
            if name == BATCH:
                ops = args[0] if args else kwargs["p2p_op_list"]
                group, op, tensor = self.group(ops[0].group), None, ops[0].tensor
                parts = tuple(self._part(ENDS[o.op.__name__], o.tensor, o.peer, o.tag) for o in ops)
            else:
                group, op = self.group(given(places.group, args, kwargs)), given(places.op, args, kwargs)
                peer, tensor = given(places.peer, args, kwargs), given(places.tensor, args, kwargs)
                tag = given(places.tag, args, kwargs) if name in ENDS else 0  # DTensor's are texts
                if peer is None:
                    of_group = given(places.group_peer, args, kwargs)
                    peer = ANY if group is None or of_group is None else group.ranks[of_group]
                part = self._part(ENDS.get(name, ""), tensor, int(peer), int(tag or 0))
                parts = (part,) if part != NOTHING else ()
            local = LOCAL if kwargs.get("use_local_synchronization") else ""
            return group.name if group else "", parts, f"{local}{self._text_of(op)}", tensor
        except Exception:  # noqa: BLE001  torch's own error says what is wrong
            return UNKNOWN

    def of_operator(self, name: str, named: dict[str, Any]) -> About:
        """Return what a call of an operator is about; unknown if another version of torch has changed it."""
        try:
            return self._of_operator(name, named)
        except Exception:  # noqa: BLE001  the operator's name is known
            return UNKNOWN

    def _of_operator(self, name: str, named: dict[str, Any]) -> About:
        boxed, stated = named.get("process_group"), named.get("group_name")
        if boxed is not None:
            stated = self._c10d.ProcessGroup.unbox(boxed)
        group = self.group(stated)
        ranks = group.ranks if group is not None else ()
        op = named.get("reduce_op")
        text = op if isinstance(op, str) else ""
        if "op_list" in named:
            each = zip(*(named[n] for n in ("op_list", "tensors", "peer_list", "tag_list")), strict=True)
            parts = tuple(self._part(OPERATOR_ENDS[kind], *about) for kind, *about in each)
            return group.name if group else "", parts, text, None
        kind = OPERATOR_ENDS.get(name.partition("::")[2].rstrip("_"), "")
        peer = next((named[n] for n in ("dst", "src", "root_rank") if n in named), ANY)
        if peer != ANY and not (kind and boxed is None):  # functional messages use global ranks
            peer = ranks[peer]
        tensor = next((named[n] for n in OPERANDS if n in named and "barrier" not in name), None)
        part = self._part(kind, tensor, peer, named.get("tag", 0))
        return group.name if group else "", (part,) if part != NOTHING else (), text, tensor

    def _part(self, kind: str, tensor: Any, peer: int, tag: int) -> CallPart:  # noqa: ANN401  whatever was given
        tensors, size = 1, 0
        if isinstance(tensor, list | tuple) and len(tensor) == 1:
            (tensor,) = tensor
        if isinstance(tensor, list | tuple):
            tensors, size = len(tensor), sum(getattr(each, "nbytes", 0) for each in tensor)
            tensor = tensor[0] if tensor else None
        dtype = getattr(tensor, "dtype", None)
        if dtype is None:
            return CallPart(kind, peer, tag)
        at = _address(tensor) if tensors == 1 else 0
        return CallPart(
            kind, peer, tag, self._text_of(dtype), tuple(tensor.shape), tensors, size or tensor.nbytes, at
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

    def group(self, stated: Any) -> Group | None:  # noqa: ANN401  a group, or what DTensor has for one
        """Return the group that a call names; ``None`` before the start, or if other ranks have it."""
        default = self._c10d.GroupMember.WORLD
        if stated is None or stated is inspect.Parameter.empty or stated is default:
            if default is None:
                return None
            if None not in self._groups:
                self._groups[None] = self._known(default, is_default=True)
            return self._groups[None]
        group = stated
        if isinstance(group, int):
            return None
        if not isinstance(group, self._c10d.ProcessGroup):
            if not isinstance(group, str):  # a mesh, or one dimension of it
                group = sys.modules["torch.distributed._functional_collectives"]._resolve_group(group)
            group = self._c10d._resolve_process_group(group) if isinstance(group, str) else group
        key = id(group), group.group_name
        if key not in self._groups:
            self._groups[key] = self._known(group, is_default=group is default)
        return self._groups[key]

    def _known(self, group: Any, *, is_default: bool) -> Group:  # noqa: ANN401
        about = "group" if group.group_desc in ("", "undefined") else group.group_desc
        name = "default_pg" if is_default or about == "default_pg" else f"{about} {group.group_name}"
        known = Group(name, tuple(self._c10d.get_process_group_ranks(group)), self._c10d.get_backend(group))
        self._introduce(known)
        return known


def _address(tensor: Any) -> int:  # noqa: ANN401  of torch
    """Return the address of a tensor's memory; 0 if it has no memory of its own."""
    try:
        return int(tensor.data_ptr())
    except Exception:  # noqa: BLE001  a wrapper, or a compiler's stand-in
        return 0
