"""Chooses the injector that the plan's fault names; the worker installs it."""

from __future__ import annotations

from ppwork.plan import Plan
from ppwork.records.spans import Recorder
from ppwork.worker.injectors.injector import CaseInjector, Injector


def injector_of(plan: Plan, rank: int, recorder: Recorder) -> Injector:
    """Return the injector of the plan's fault for this rank; on other ranks one that injects nothing.

    Raises:
        PlanError: The plan names a fault that does not exist (every rank).
    """
    if not plan.fault:
        return Injector(plan, rank, recorder)
    from ppwork.faults.catalogue import fault_of, ranks_of
    from ppwork.worker.injectors.processes import IdleKill

    fault, case = fault_of(plan.fault)
    on_this_rank = rank in ranks_of((case.on,), plan.topology)
    kind = _kind(fault.id, case.name)
    if not on_this_rank and kind is not IdleKill:
        return Injector(plan, rank, recorder)
    injector = kind(plan, rank, recorder)
    injector.on_this_rank = on_this_rank
    return injector


def _kind(fault_id: str, case: str) -> type[CaseInjector]:
    from ppwork.worker.injectors import messages, processes, stages

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
