"""The fault catalogue, F01 to F22: which faults there are, and the plan that a case needs.

Tests, notebooks and the command line read the same data; ``runs``, ``outside`` and ``worker.injectors`` carry
it out.
"""

from __future__ import annotations

from ppwork.errors import PlanError
from ppwork.faults.fault import ANY, IN_PLAN, IN_RANK, NOBODY, Case, Fault
from ppwork.faults.messages import MESSAGES
from ppwork.faults.processes import PROCESSES
from ppwork.faults.stages import STAGES
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, Plan
from ppwork.protocol.topology import LEADER_RANK, Role, Topology

FAULTS: tuple[Fault, ...] = tuple(sorted((*MESSAGES, *STAGES, *PROCESSES), key=lambda fault: fault.id))
AT_CHUNK = 3
"""A fault comes with this chunk: connections are warm, schemas have repeated, and chunks are in flight."""


def fault_of(name: str) -> tuple[Fault, Case]:
    """Return the fault and the case of ``F13`` (its first case) or ``F13/follower-mid-compute``.

    Raises:
        PlanError: There is no such fault or case; names the known ones.
    """
    fault_id, _, case_name = name.partition("/")
    fault = next((fault for fault in FAULTS if fault.id == fault_id), None)
    if fault is None:
        raise PlanError(
            f"There is no fault {fault_id!r} in the catalogue.",
            check_first=f"known are {', '.join(fault.id for fault in FAULTS)}; see `ppwork fault list`",
        )
    case = next((case for case in fault.cases if case_name in ("", case.name)), None)
    if case is None:
        raise PlanError(
            f"The fault {fault_id} has no case {case_name!r}.",
            check_first=f"known are {', '.join(case.name for case in fault.cases)}",
        )
    return fault, case


def ranks_of(roles: tuple[str, ...], topology: Topology) -> tuple[int | None, ...]:
    """Return the ranks that a case means by roles; ``follower`` is the last one, ``any`` is all.

    ``nobody`` is ``None``: no rank is to be named.

    >>> from ppwork.protocol.topology import Topology
    >>> ranks_of(("stage0", "follower"), Topology(3))
    (0, 3)
    """
    if ANY in roles:
        return tuple(range(topology.world_size))
    if NOBODY in roles:
        return (None,)
    ranks = {Role.STAGE0: 0, Role.LEADER: LEADER_RANK, Role.FOLLOWER: topology.world_size - 1}
    return tuple(ranks[Role(role)] for role in roles)


def small_plan(mesh_size: int = 2, backend: str = "gloo") -> Plan:
    """Return the plan of ``ppwork fault run``: some chunks of a few milliseconds, with short bounds.

    On NCCL all ranks share one GPU, and take long to start.
    """
    nccl = backend == "nccl"
    return Plan(
        mesh_size=mesh_size,
        chunks=12,
        in_flight_depth=2,
        backend=backend,
        share_gpu=nccl,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={"encode_ms": 5.0, "decode_ms": 5.0, "stage1_ms": 10.0, "payload_mb": 0.05, "tp_sums": 1},
        timeout_s=60.0 if nccl else 10.0,
        freeze_s=2.0,
        stall_s=3.0,
    )


def with_fault(plan: Plan, name: str) -> Plan:
    """Return the plan of a run with this fault in it: its name, and what the case needs of a plan.

    Raises:
        PlanError: There is no such fault; it is not one that the plan can carry; or its rank or its chunk
            does not exist in this plan. Nothing has started.
    """
    fault, case = fault_of(name)
    full_name = f"{fault.id}/{case.name}"
    if case.place not in (IN_RANK, IN_PLAN):
        raise PlanError(
            f"The fault {full_name} comes from outside the ranks; a plan cannot carry it.",
            check_first=f"ppwork fault run {fault.id} --case {case.name}",
        )
    kept = {} if "stage0" in case.plan else plan.options  # other stages have options of their own
    fields = {**case.plan, "options": {**kept, **case.plan.get("options", {})}}
    planned = plan.replace(**fields, fault=full_name)
    if case.on == Role.FOLLOWER and planned.mesh_size == 1:
        raise PlanError(
            f"The fault {full_name} happens in a follower, and a mesh of 1 has none.",
            check_first="--mesh-size 2",
        )
    if planned.chunks is not None and planned.chunks <= AT_CHUNK:
        raise PlanError(
            f"The fault {full_name} comes with chunk {AT_CHUNK}; the plan has {planned.chunks} chunks.",
            check_first=f"--chunks {AT_CHUNK + 1} or more",
        )
    return planned
