"""A rank's part in a run, after torch's import: join, stage, control plane, loop, and rank 0's figures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ppwork.plan import Plan
from ppwork.protocol.topology import Role
from ppwork.records.notes import note_asked_options, told_of_misspelt
from ppwork.records.run import OPTIONS_UNASKED
from ppwork.records.spans import JOIN, LOAD, Recorder
from ppwork.runtime import Groups, MeshPlane, Stage0Plane
from ppwork.runtime.groups import join
from ppwork.runtime.membership import Membership
from ppwork.stage import NoTensorParallel, StageContext, StageKind, load_stage
from ppwork.version import __version__
from ppwork.worker import progress
from ppwork.worker.asked_options import AskedOptions
from ppwork.worker.clock_exchange import settle_clocks
from ppwork.worker.collectives import StageTPGroup
from ppwork.worker.digests import compare_loaded
from ppwork.worker.injectors.choose import injector_of
from ppwork.worker.last_words import FailureWriter
from ppwork.worker.loops import settle_numbers
from ppwork.worker.stage_code import CONSTRUCTOR, StageCode
from ppwork.worker.tally import Tally, counted
from ppwork.worker.user_job import recorded, run_mesh, run_stage0
from ppwork.worker.watchdog import Watchdog

log = logging.getLogger(__name__)


def bring_up(plan: Plan, rank: int) -> Groups:  # noqa: ARG001  one_process needs it
    """Join the groups as torchrun's environment says; see ``groups.join``."""
    return join(plan, Membership.here(), keep_failed=True)


def play(
    plan: Plan,
    run_dir: Path,
    rank: int,
    recorder: Recorder,
    failure: FailureWriter,
    watchdog: Watchdog,
    bring_up: Callable[[Plan, int], Groups],
) -> None:
    """Bring this rank up, load its stage, run its loop, and leave in order.

    Raises:
        PPWorkError: Any error that ends the run on this rank; if there is a plane, it has written its record.

    Collective:
        All ranks of the plan.
    """
    settle_numbers(plan)
    log.info("ppwork %s torch %s plan %s", __version__, torch.__version__, plan.digest)
    injector = injector_of(plan, rank, recorder)
    plan = injector.before_join(plan)
    with recorder.span(JOIN), progress.during(JOIN):
        groups = bring_up(plan, rank)
    watchdog.joined(on_cuda=groups.uses_gpu)
    log.info("joined as %s on %s", groups.role, groups.device)
    settle_clocks(groups, recorder)
    tally = Tally(rank, str(groups.role), plan.compare_collectives)
    options = AskedOptions(plan.options)
    with recorder.span(LOAD):
        stage = injector.stage(load(options.put_into(plan), groups, tally, run_dir))
    # No rank waits in a collective for a rank that is still loading, or has failed to load.
    asked = compare_loaded(groups, plan, stage, options.asked)
    if groups.role is Role.STAGE0 and (misspelt := told_of_misspelt(plan.options, asked)):
        recorder.instant(OPTIONS_UNASKED, text=misspelt)
    with recorded(plan, groups, recorder, failure, injector.hook) as plane:
        injector.plane(plane)
        if isinstance(plane, Stage0Plane):
            run_stage0(plane, stage)
        elif isinstance(plane, MeshPlane):
            run_mesh(plane, stage, tally)
    note_asked_options(recorder, options, options.asked)
    log.info("left")


def load(plan: Plan, groups: Groups, tally: Tally, run_dir: Path) -> Any:  # noqa: ANN401  user code
    """Return this rank's stage; on the mesh its generator calls are counted.

    Raises:
        PlanError: The plan's path does not lead to a stage (this rank).
        StageError: The stage's constructor raised (this rank).
    """
    on_stage0 = groups.role is Role.STAGE0
    path, kind = (plan.stage0, StageKind.STAGE0) if on_stage0 else (plan.stage1, StageKind.GENERATOR)
    tp = NoTensorParallel() if on_stage0 else StageTPGroup(groups)
    stage = load_stage(path, kind, search=Path.cwd())
    with StageCode(CONSTRUCTOR, stage, groups):
        return (stage if on_stage0 else counted(stage, tally))(
            StageContext(plan, groups.device, tp, run_dir if on_stage0 else None)
        )
