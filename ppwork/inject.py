"""How a fault of the catalogue gets into a rank: the worker installs the injector that the plan names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.injector import CaseInjector, Injector

if TYPE_CHECKING:
    from ppwork.plan import Plan
    from ppwork.timeline import Recorder

__all__ = ["Injector", "injector_of"]


def injector_of(plan: Plan, rank: int, recorder: Recorder) -> Injector:
    """Return the injector of the plan's fault for this rank; one that injects nothing on every other rank.

    Raises:
        PlanError: The plan names a fault that does not exist (every rank).
    """
    if not plan.fault:
        return Injector(plan, rank, recorder)
    from ppwork.faults import fault_of, ranks_of
    from ppwork.inject_processes import IdleKill

    fault, case = fault_of(plan.fault)
    here = rank in ranks_of((case.on,), plan.topology)
    kind = _kind(fault.id, case.name)
    if not here and kind is not IdleKill:
        return Injector(plan, rank, recorder)
    injector = kind(plan, rank, recorder)
    injector.here = here
    return injector


def _kind(fault_id: str, case: str) -> type[CaseInjector]:
    from ppwork import inject_messages as messages
    from ppwork import inject_processes as processes
    from ppwork import inject_stages as stages

    if case == "flag-of-the-plan":
        return messages.DifferentStart
    if case.endswith("-idle"):
        return processes.IdleKill
    return {
        "F01": messages.BadMetadata,
        "F02": messages.BadTensor,
        "F03": messages.BadChunkPlan,
        "F04": messages.DifferentStart,
        "F05": stages.ExtraSum,
        "F06": messages.BadFrame,
        "F07": messages.LeaderRaises,
        "F08": stages.WrongGroup,
        "F09": messages.InThePlan,
        "F10": messages.NoContextFrames,
        "F11": stages.PerturbedWeights if case == "weights" else stages.PerturbedInput,
        "F12": stages.OtherCalls,
        "F13": processes.Kill,
        "F14": processes.Stop,
        "F15": stages.StageRaises,
        "F16": messages.BadFrame,
        "F17": messages.InThePlan,
        "F20": processes.DiskFull,
        "F22": stages.SecondCaller,
    }[fault_id]
