"""What the texts and numbers of the command line mean for a plan; everything here raises ``PlanError``."""

from __future__ import annotations

from ppwork.errors import PlanError
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, Plan

SYNTHETIC_CHUNKS = 32


def size_of(text: str) -> tuple[int, int]:
    """Return width and height of ``WxH``.

    Raises:
        PlanError: It is not of that form.
    """
    width, separator, height = text.lower().partition("x")
    if not separator or not width.isdecimal() or not height.isdecimal():  # a sign is refused here too
        raise PlanError(f"The size was {text!r}; it must be WxH in pixels.", check_first="--size 160x96")
    return int(width), int(height)


def depth_of(depth: int | None, d_in: int | None, d_out: int | None) -> int:
    """Return the depth that was asked for; 1 is what a plan takes for not asked.

    Raises:
        PlanError: A depth and another split were asked for.
    """
    if depth is not None and d_in is not None and d_out is not None and depth != d_in + d_out:
        raise PlanError(
            f"The depth was {depth}, but --d-in {d_in} and --d-out {d_out} make {d_in + d_out}.",
            check_first="leave --depth out: it is the sum of the two",
        )
    return 1 if depth is None else depth


def chunk_range(text: str) -> tuple[int | None, int | None]:
    """Return the first and the last chunk of ``FIRST:LAST``; empty leaves both open.

    Raises:
        PlanError: It is not of that form.
    """
    first, separator, last = text.partition(":")
    if not text:
        return None, None
    if not separator or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        raise PlanError(f"The chunks were {text!r}; they must be FIRST:LAST.", check_first="--chunks 10:14")
    return int(first), int(last)


def synthetic(plan: Plan, stage0_ms: str, stage1_ms: float, payload_mb: float, jitter: float) -> Plan:
    """Return the plan with stages that take these times; one number is split evenly over both halves.

    Raises:
        PlanError: A time, the size or the spread is no number or negative.
    """
    try:
        halves = [float(part) for part in stage0_ms.split(",")]
    except ValueError:
        halves = []
    if len(halves) == 1:
        halves = [halves[0] / 2] * 2
    if len(halves) != 2 or min(*halves, stage1_ms, payload_mb, jitter) < 0:
        raise PlanError(
            f"The synthetic stages were {stage0_ms!r}, {stage1_ms}, {payload_mb} and {jitter}; they must be "
            "times in ms, a size in MB and a spread, none of them negative.",
            check_first="--stage0-ms 20,20 --stage1-ms 60 --payload-mb 4 --jitter 0.1",
        )
    return plan.replace(
        chunks=plan.chunks or SYNTHETIC_CHUNKS,
        stage0=SYNTHETIC_STAGE0,
        stage1=SYNTHETIC_STAGE1,
        options={
            "encode_ms": halves[0],
            "decode_ms": halves[1],
            "stage1_ms": stage1_ms,
            "payload_mb": payload_mb,
            "jitter": jitter,
        },
    )
