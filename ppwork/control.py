"""The role loops, side by side: what stage 0, the leader and a follower do with one chunk after another.

Stage 0 has three orders: the sequential one, the one that overlaps, and the classic mistake. They differ in
when the next envelope leaves and in nothing else; the mesh runs the same loop under all of them. The loops
know stages and the control plane, and nothing of groups or bytes; ``chunk_steps`` has what they put in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.chunk_steps import Outputs, Stage0Steps, generate
from ppwork.envelope import PPAction

if TYPE_CHECKING:
    from ppwork.control_plane import PPControlPlane
    from ppwork.stage import Generator, Stage0


def stage0_loop(plane: PPControlPlane, stage0: Stage0) -> Outputs:
    """Rank 0: run the plan's order, then shut down.

    Returns:
        What was emitted, by chunk index, if the plan says ``verify``; else nothing is kept.
    """
    steps = Stage0Steps(plane, stage0)
    if plane.plan.in_flight_depth == 1:
        sequential_loop(steps)
    elif plane.plan.order == "overlap":
        overlap_loop(steps)
    else:
        mistaken_loop(steps)
    plane.shutdown()
    return steps.kept


def sequential_loop(steps: Stage0Steps) -> None:
    """Rank 0, "PP0": one chunk at a time, in the order in which things happen."""
    while steps.more:
        if steps.encode():
            steps.send()
            steps.decode()


def overlap_loop(steps: Stage0Steps) -> None:
    """Rank 0: envelope k+1 leaves *before* result k is decoded.

    Never more than ``in_flight_depth`` chunks are unfinished, and of those that have left never more than
    ``d_in`` are without a result here. ``d_out`` is kept by the plane: a result that finds no room waits at
    the leader, and counts as in flight.
    """
    d_in, _ = steps.plan.bounds
    while steps.more or steps.unfinished:
        here = steps.plane.results_here  # asked once: results arrive while we look
        if steps.encoded and steps.left - here < d_in:
            steps.send()
        elif steps.more and steps.unfinished < steps.plan.in_flight_depth:
            steps.encode()
        elif steps.encoded and not here:
            steps.plane.await_result()  # makes room to send, which comes before its decode
        else:
            steps.decode()


def mistaken_loop(steps: Stage0Steps) -> None:
    """Rank 0, the classic mistake: encoding goes on, but envelope k+1 leaves *after* chunk k is decoded."""
    while steps.more or steps.unfinished:
        if steps.encoded and not steps.left:
            steps.send()
        elif steps.more and steps.unfinished < steps.plan.in_flight_depth:
            steps.encode()
        else:
            steps.decode()


def leader_loop(plane: PPControlPlane, generator: Generator) -> None:
    """Rank 1: receive, pass on to the mesh, compute with it, return exactly one result per chunk."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            plane.send_result(*generate(plane, generator, envelope))
    plane.acknowledge()


def follower_loop(plane: PPControlPlane, generator: Generator) -> None:
    """The other mesh ranks: receive from the leader, compute with it."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            generate(plane, generator, envelope)
    plane.acknowledge()
