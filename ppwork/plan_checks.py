"""What no plan may hold, whatever the workload and the machine: the checks of ``Plan`` on construction.

What depends on the machine, the clip or the stages is refused by ``checks``, just before the ranks start.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from ppwork.plan import Plan

BACKENDS = ("auto", "gloo", "nccl")
ORDERS = ("overlap", "send-after-decode")
MAX_RANKS = 64
MAX_DEPTH = 64


def check_plan_fields(plan: Plan) -> None:
    """Check every field of a plan under construction; a split depth is summed up here.

    Raises:
        PlanError: A field cannot work whatever the workload and the machine; names it and its value.
    """
    _check_types(plan)
    _check_counts(plan)
    _check_bounds(plan)
    _check_depth(plan)
    _check_choices(plan)
    _check_cuts(plan)


def _check_types(plan: Plan) -> None:
    # A plan made in Python passes no decoder, but every rank reads it from JSON: what is kept here is what
    # they will read (25 becomes 25.0, a list a tuple), so that plan and digest are the same on both sides.
    for field in msgspec.structs.fields(plan):
        value = getattr(plan, field.name)
        try:
            msgspec.structs.force_setattr(plan, field.name, msgspec.convert(value, field.type))
        except msgspec.ValidationError as error:
            _refuse(field.name, value, f"of another type: {error}", f"the option that sets {field.name}")


def _check_counts(plan: Plan) -> None:
    at_least_one = {
        "mesh_size": plan.mesh_size,
        "frames_per_chunk": plan.frames_per_chunk,
        "width": plan.width,
        "height": plan.height,
        "denoise_steps": plan.denoise_steps,
        "in_flight_depth": plan.in_flight_depth,
        "threads_per_rank": plan.threads_per_rank,
        "max_message_bytes": plan.max_message_bytes,
    }
    if plan.chunks is not None:
        at_least_one["chunks"] = plan.chunks
    for field, value in at_least_one.items():
        if value < 1:
            _refuse(field, value, "1 or more", f"the option that sets {field}")
    if plan.mesh_size >= MAX_RANKS:
        _refuse("mesh_size", plan.mesh_size, f"below {MAX_RANKS}", "did you mean --chunks?")
    for name, option in plan.options.items():
        if isinstance(option, float) and not math.isfinite(option):
            _refuse("options", {name: option}, "finite: JSON has no word for it", f"the option {name}")
    if plan.recompute_every < 0 or plan.seed < 0:
        field = "seed" if plan.seed < 0 else "recompute_every"
        _refuse(field, getattr(plan, field), "0 or more", f"the option that sets {field}")
    if plan.frame_bytes % 64 or not 512 <= plan.frame_bytes <= 1 << 20:
        _refuse("frame_bytes", plan.frame_bytes, "a multiple of 64 in 512..1048576", "leave it out")


def _check_bounds(plan: Plan) -> None:
    for field, number in {
        "noise": plan.noise,
        "timeout_s": plan.timeout_s,
        "tolerance": plan.tolerance,
        "freeze_s": plan.freeze_s,
    }.items():
        least = 1 if field in ("timeout_s", "freeze_s") else 0
        if not math.isfinite(number) or number < least:
            _refuse(field, number, f"a finite number from {least} up", f"the option that sets {field}")
    if plan.heartbeat_s is not None and not 0 < plan.heartbeat_s < plan.timeout_s / 2:
        need = f"above 0 and under half of timeout_s, {plan.timeout_s / 2:g}"
        _refuse("heartbeat_s", plan.heartbeat_s, need, "a peer must hear from rank 0 before its bound passes")
    if plan.stall_s is not None and not 0 < plan.stall_s < plan.timeout_s:
        need = f"above 0 and under timeout_s, {plan.timeout_s:g}"
        _refuse("stall_s", plan.stall_s, need, "a stuck rank must speak before its peers' bounds pass")
    if plan.compare_collectives < -1:
        _refuse("compare_collectives", plan.compare_collectives, "-1 or more", "-1 is always")


def _check_depth(plan: Plan) -> None:
    if plan.d_in is not None or plan.d_out is not None:
        for field, bound in {"d_in": plan.d_in, "d_out": plan.d_out}.items():
            if bound is None or bound < 1:
                _refuse(field, bound, "1 or more, and set together with the other", "--d-in and --d-out")
        depth = (plan.d_in or 0) + (plan.d_out or 0)
        # 1 is also what a plan has that does not name the depth.
        if plan.in_flight_depth not in (1, depth):
            _refuse("in_flight_depth", plan.in_flight_depth, f"d_in + d_out, {depth}", "leave --depth out")
        msgspec.structs.force_setattr(plan, "in_flight_depth", depth)
    if plan.in_flight_depth > MAX_DEPTH:
        _refuse("in_flight_depth", plan.in_flight_depth, f"at most {MAX_DEPTH}", "--depth: 2 or 3 overlap")


def _check_choices(plan: Plan) -> None:
    if plan.backend not in BACKENDS:
        _refuse("backend", plan.backend, f"one of {', '.join(BACKENDS)}", "--backend")
    if plan.order not in ORDERS:
        _refuse("order", plan.order, f"one of {', '.join(ORDERS)}", "--order")
    if plan.share_gpu and plan.backend == "gloo":
        _refuse("share_gpu", True, "False with backend gloo", "--backend nccl, or no --share-gpu")


def _check_cuts(plan: Plan) -> None:
    for field, option in {"hard_cuts": "--hard-cut-at", "flushes": "--flush-at"}.items():
        cuts: tuple[int, ...] = getattr(plan, field)
        for cut in cuts:
            if cut < 1 or (plan.chunks is not None and cut >= plan.chunks):
                last = "the last chunk" if plan.chunks is None else plan.chunks - 1
                _refuse(field, cut, f"chunk indexes in 1..{last}", f"{option} counts from 0")
        if len(set(cuts)) != len(cuts):
            _refuse(field, cuts, "without repeats", option)
    both = set(plan.hard_cuts) & set(plan.flushes)
    if both:
        _refuse(
            "flushes", plan.flushes, f"apart from hard_cuts, not {min(both)} in both", "a flush is a cut, too"
        )


def _refuse(field: str, value: object, need: str, check_first: str) -> None:
    raise PlanError(f"The plan's {field} was {value!r}; it must be {need}.", check_first=check_first)
