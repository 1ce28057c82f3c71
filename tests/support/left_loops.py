"""Loops that end in the wrong way, under two ranks: ``left_loops.py CASE RUN_DIR``."""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from ppwork.ranks import Plan, PPAction, PPResult, Stage0Plane, join


def drive(plane, case):
    for k in range(3):
        plane.send({"x": torch.full((3,), float(k))})
        plane.receive_result()  # TAKES
        if case == "rank 0 returns" and k == 1:
            return
        if case == "rank 0 exits" and k == 1:
            sys.exit()  # EXIT
        if case == "rank 0 is slow" and k == 1:
            time.sleep(60)  # SLOW
        if case == "rank 0 is stopped" and k == 1:
            Path(sys.argv[2], "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
    plane.shutdown()


def serve(plane, case):
    while plane.receive().action is PPAction.INFER:  # HEARS
        ids = plane.computed(1)
        if case == "no answer" and ids.chunk_index == 1:
            continue
        plane.send_result(PPResult(PPAction.INFER, ids, 1))  # GIVES
        if case == "leader returns" and ids.chunk_index == 1:
            return
    if case != "no acknowledgement":
        plane.acknowledge()


if __name__ == "__main__":
    torch.set_num_threads(1)
    plan = Plan(
        mesh_size=1, backend="gloo", timeout_s=30, stall_s=2 if "slow" in sys.argv[1] else None, freeze_s=1
    )
    with join(plan, run_dir=sys.argv[2]) as plane:  # WITH
        (drive if isinstance(plane, Stage0Plane) else serve)(plane, sys.argv[1])
