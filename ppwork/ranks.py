"""Everything that a rank in your own program needs: ``from ppwork.ranks import Plan, join, run_stage0``.

This module only re-exports names. Under your own torchrun, ``join`` starts a rank and keeps its records. Then
``run_stage0`` and ``run_mesh`` run your stages, or your own loop calls the plane; docs/prototype.md shows
both. Before the import of torch, which takes seconds, this module ties the rank to its torchrun: if torchrun
is killed meanwhile, no rank is left behind. An uncaught exception is shown in one write from then on, and bad
input by its line and message alone. Notebooks use ``import ppwork`` instead.
"""
# ruff: noqa: E402

from ppwork.worker.orphan import die_with_torchrun

die_with_torchrun()

from ppwork.errors import PPWorkError
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role
from ppwork.records.spans import Recorder, span_file
from ppwork.runtime import FollowerPlane, LeaderPlane, MeshPlane, PPControlPlane, Stage0Plane
from ppwork.stage import (
    NOT_YET,
    Chunk,
    Emission,
    Generator,
    Result,
    Stage0,
    StageContext,
    TensorParallel,
    Tensors,
)
from ppwork.worker.user_errors import show_in_one_write
from ppwork.worker.user_job import join, run_mesh, run_stage0, stage_context

show_in_one_write()

__all__ = [
    "NOT_YET",
    "Chunk",
    "ChunkPlan",
    "Emission",
    "FollowerPlane",
    "Generator",
    "Ids",
    "LeaderPlane",
    "MeshPlane",
    "PPAction",
    "PPControlPlane",
    "PPEnvelope",
    "PPResult",
    "PPWorkError",
    "PipelinePlan",
    "Plan",
    "Recorder",
    "Result",
    "Role",
    "Stage0",
    "Stage0Plane",
    "StageContext",
    "TensorParallel",
    "Tensors",
    "join",
    "run_mesh",
    "run_stage0",
    "span_file",
    "stage_context",
]
