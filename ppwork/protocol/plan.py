"""The fields of a plan that the runtime reads: enough for a prototype to bring its ranks up.

``Plan`` adds what runs of stages need. A checked plan is frozen, and its digest is the same on all ranks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import cache
from typing import Any, NoReturn, Self

import msgspec

from ppwork.errors import PlanError, meant
from ppwork.protocol.envelope import MAX_STEPS
from ppwork.protocol.topology import Topology

BACKENDS = ("auto", "gloo", "nccl")
MAX_RANKS = 64
MAX_DEPTH = 64
DAY_S = 86_400
"""Every bound of a plan is shorter."""
STORE_VARIABLE = "PPWORK_STORE"
"""Path of our launcher's file store, with which nothing listens beyond loopback. Unset: torchrun's store."""
SECRET_VARIABLE = "PPWORK_SECRET_FILE"  # noqa: S105  a name
"""Path of the secret of a run over several hosts; the launcher gave it to each host by a pipe."""
TIMEOUT_VARIABLE = "SCOPE_DIST_TIMEOUT_S"
"""Seconds; overrides the plan's ``timeout_s`` on every rank."""


class _ByName(msgspec.StructMeta):
    """Checks field names before msgspec does: its error for an unknown name suggests no other."""

    def __call__(cls, *values: Any, **fields: Any) -> Any:  # noqa: ANN401, N805  any plan
        _refuse_unknown(cls, fields)
        return super().__call__(*values, **fields)


class PipelinePlan(msgspec.Struct, metaclass=_ByName, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One pipeline, agreed by all ranks: ``PPControlPlane.join(PipelinePlan(mesh_size=2))``.

    >>> PipelinePlan(mesh_size=2).world_size
    3

    Raises:
        PlanError: On construction, if a field has a value that cannot work, or if there is no field of that
            name; names the field and its value, or the field that was meant.
    """

    mesh_size: int = 2
    """Ranks of stage 1; the world is one larger."""
    in_flight_depth: int = 1
    """Most unfinished chunks; 1 is sequential ("PP0"). If the depth is split, it is ``d_in + d_out``."""
    d_in: int | None = None
    """Most chunks that have left and whose result has not arrived at rank 0; set it with ``d_out``."""
    d_out: int | None = None
    """Most results that have arrived at rank 0 and are not decoded; further results wait at the leader."""
    steps: int = 1
    """Generator calls per chunk, without recompute."""
    backend: str = "auto"
    share_gpu: bool = False
    """Several NCCL ranks on one GPU: for teaching, never for timing."""
    timeout_s: float = 60.0
    """Longest wait for a peer, bring-up included (rule R12)."""
    stall_s: float | None = None
    """Longest step of a stage, in seconds, before its rank counts as stuck; ``None``: 0.8 ``timeout_s``."""
    freeze_s: float = 5.0
    """Seconds that a process may be stopped (SIGSTOP) before its peers leave."""
    compare_collectives: int = 2
    """First chunks, and first cuts, at which mesh ranks compare each call beforehand; 0 never, -1 always."""
    check_buffers: int = 2
    """First chunks in which a rank checks all bytes of its lent buffers for writes; in later chunks it checks
    a sample. -1 checks all bytes of all chunks."""
    frame_bytes: int = 8192
    """Size of the control frame that every message starts with; same on all ranks."""
    max_message_bytes: int = 1 << 30
    """Largest sum of tensor bytes of one message that a receiver will allocate."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work with any stages on any machine."""
        _check_types(self)
        _check_counts(self)
        _check_bounds(self)
        _check_depth(self)
        for field in ("compare_collectives", "check_buffers"):
            if (chunks := getattr(self, field)) < -1:
                refuse(field, chunks, "-1 or more", "-1 is always")
        if self.backend not in BACKENDS:
            refuse("backend", self.backend, f"one of {', '.join(BACKENDS)}")
        if self.share_gpu and self.backend == "gloo":
            refuse("share_gpu", True, "False with backend gloo")

    @property
    def topology(self) -> Topology:
        """Roles and groups of this plan."""
        return Topology(self.mesh_size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.topology.world_size

    @property
    def bounds(self) -> tuple[int, int]:
        """``d_in`` and ``d_out`` as they apply; if the depth is not split, each is the whole depth.

        >>> PipelinePlan(in_flight_depth=3).bounds, PipelinePlan(d_in=2, d_out=1).bounds
        ((3, 3), (2, 1))
        """
        return self.d_in or self.in_flight_depth, self.d_out or self.in_flight_depth

    def backend_with(self, gpus: int, ranks: int) -> str:
        """Decide between gloo and NCCL; ``auto`` takes NCCL only if every rank gets its own GPU.

        With ``share_gpu`` one GPU is enough for all ranks.

        Args:
            gpus: Number of GPUs of a machine.
            ranks: Number of ranks of the plan on that machine.

        Raises:
            PlanError: The plan asks for NCCL, and the machine has too few GPUs.
        """
        need = 1 if self.share_gpu else ranks
        if self.backend != "gloo" and gpus >= need:
            return "nccl"
        if self.backend == "nccl":
            what = f"NCCL needs one GPU per rank: {need} for this mesh, and this machine has {gpus}."
            check = (
                "`backend` (--backend) gloo needs no GPUs; `share_gpu` (--share-gpu) puts all ranks on one"
            )
            raise PlanError(what, check_first=check)
        return "gloo"

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401  any field
        """Return a copy with some fields changed, checked again.

        A new split sets its own ``in_flight_depth``; a new ``in_flight_depth`` alone removes the split.

        Raises:
            PlanError: As on construction.
        """
        if "d_in" in changes or "d_out" in changes:
            changes = {"in_flight_depth": 1, **changes}
        elif "in_flight_depth" in changes:
            changes = {"d_in": None, "d_out": None, **changes}
        _refuse_unknown(type(self), changes)
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields

    def to_json(self) -> bytes:
        """Return the deterministic JSON from which the digest is computed."""
        return msgspec.json.encode(self, order="deterministic")

    @property
    def digest(self) -> str:
        """SHA-256 of ``to_json``, first 16 hex digits."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]


_fields = cache(msgspec.structs.fields)  # milliseconds: it evaluates every annotation


def _check_types(plan: PipelinePlan) -> None:
    # A plan made in Python passes no decoder, but every rank reads it from JSON. So keep the values that the
    # ranks will read (25 becomes 25.0, a list a tuple): plan and digest are then the same on both sides.
    for field in _fields(type(plan)):
        value = getattr(plan, field.name)
        try:
            msgspec.structs.force_setattr(plan, field.name, msgspec.convert(value, field.type))
            msgspec.json.encode(value)
        except UnicodeEncodeError:
            refuse(field.name, value, "text in UTF-8, as the plan is a JSON file", "the name of the file")
        except msgspec.ValidationError as error:
            refuse(field.name, value, f"of another type: {error}")


def _check_counts(plan: PipelinePlan) -> None:
    at_least(plan, 1, "mesh_size", "steps", "in_flight_depth", "max_message_bytes")
    if plan.steps > MAX_STEPS:
        refuse("steps", plan.steps, f"at most {MAX_STEPS}")
    if plan.mesh_size >= MAX_RANKS:
        refuse("mesh_size", plan.mesh_size, f"below {MAX_RANKS}: each is a process")
    if plan.frame_bytes % 64 or not 512 <= plan.frame_bytes <= 1 << 20:
        refuse("frame_bytes", plan.frame_bytes, "a multiple of 64 in 512..1048576", "leave it out")


def _check_bounds(plan: PipelinePlan) -> None:
    finite_from(plan, 1, "timeout_s", "freeze_s")
    if plan.timeout_s >= DAY_S:
        refuse("timeout_s", plan.timeout_s, f"below {DAY_S}, a day")
    if plan.stall_s is not None and not 0 < plan.stall_s < plan.timeout_s:
        refuse("stall_s", plan.stall_s, f"above 0 and under timeout_s, {plan.timeout_s:g}, when peers leave")


def _check_depth(plan: PipelinePlan) -> None:
    if plan.d_in is not None or plan.d_out is not None:
        for field, bound in {"d_in": plan.d_in, "d_out": plan.d_out}.items():
            if bound is None or bound < 1:
                refuse(field, bound, "1 or more, and set together with the other bound")
        depth = (plan.d_in or 0) + (plan.d_out or 0)
        # 1 is also the default, when the plan does not name the depth.
        if plan.in_flight_depth not in (1, depth):
            refuse("in_flight_depth", plan.in_flight_depth, f"d_in + d_out, {depth}, or left out")
        msgspec.structs.force_setattr(plan, "in_flight_depth", depth)
    if plan.in_flight_depth > MAX_DEPTH:
        refuse("in_flight_depth", plan.in_flight_depth, f"at most {MAX_DEPTH}; 2 or 3 overlap")


def at_least(plan: PipelinePlan, least: int, *fields: str) -> None:
    """Check whole numbers.

    Raises:
        PlanError: A field is below ``least``.
    """
    for field in fields:
        value = getattr(plan, field)
        if value < least:
            refuse(field, value, f"{least} or more")


def finite_from(plan: PipelinePlan, least: float, *fields: str) -> None:
    """Check floating-point numbers.

    Raises:
        PlanError: A field is not finite or is below ``least``.
    """
    for field in fields:
        value = getattr(plan, field)
        if not math.isfinite(value) or value < least:
            refuse(field, value, f"a finite number from {least} up")


OPTIONS = {"in_flight_depth": "--depth", "threads_per_rank": "--threads"}
OPTIONS |= {"hard_cuts": "--hard-cut-at", "flushes": "--flush-at", "options": "--option"}
OPTIONS |= {"max_message_bytes": "--max-message-mb"}
"""Options of ``ppwork run`` whose name differs from their field's."""


def option_of(field: str) -> str:
    """Return the option of ``ppwork run`` that sets a field of a plan.

    >>> option_of("in_flight_depth"), option_of("timeout_s")
    ('--depth', '--timeout-s')
    """
    return OPTIONS.get(field) or f"--{field.replace('_', '-')}"


def _refuse_unknown(plan: msgspec.StructMeta, names: Iterable[str]) -> None:
    fields = plan.__struct_fields__
    for name in [name for name in names if name not in fields]:
        by_option = {option_of(field)[2:].replace("-", "_"): field for field in fields}
        by_option["limit_s"] = "pp.launch(plan, limit_s=...)"
        hint = f"did you mean {by_option[name]!r}?" if name in by_option else meant(name, fields).strip()
        check = hint or f"its fields are {', '.join(fields)}"
        raise PlanError(f"A {plan.__name__} has no field {name!r}.", check_first=check)


def refuse(field: str, value: object, need: str, check_first: str = "") -> NoReturn:
    """Raise the error for a field whose value cannot work.

    Raises:
        PlanError: Always; by default, where the field is set is to be checked first.
    """
    check = check_first or f"`{field}` of the plan; for `ppwork run` {option_of(field)}"
    raise PlanError(f"The plan's {field} was {value!r}; it must be {need}.", check_first=check) from None
