"""Both ranks of a mesh of one as threads of one process: ``torchrun -m ppwork one-process RUN_DIR``.

On one card, two NCCL ranks share the device in time slices, so their times mean nothing. Here each rank has a
compute stream and its links' streams in one process, and copies on these streams replace NCCL: kernels and
transfers of one card overlap, and period and timeline are true. Everything above the groups is the same as
under torchrun: loops, planes, lanes, session, records, watchdogs. Without a card the same code runs on the
CPU. Both ranks share one GIL, so stages that compute in Python delay each other.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from ppwork.plan import Plan
from ppwork.process import SECONDARY, STUCK, UNWRITABLE
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.topology import GROUP_ORDER, LEADER_RANK, STAGE0_RANK
from ppwork.records.run import log_file
from ppwork.records.threads import written_down
from ppwork.runtime.device import pick_device
from ppwork.runtime.groups import Groups
from ppwork.worker.copies import CopyGroup
from ppwork.worker.exit_barrier import STAY_S
from ppwork.worker.main import leave, log_to, run_rank


def main(run_dir: Path) -> int:
    """Run both ranks to their end and return the exit code; if one fails, end the process with it."""
    plan = Plan.load(run_dir).staged
    bounds, store = Bounds.of(plan), HashStore()
    store.set_timeout(timedelta(seconds=bounds.timeout_s))
    handles = {name: CopyGroup(bounds.timeout_s) for name in ("world_pg", *GROUP_ORDER)}
    codes: dict[int, int] = {}
    over = {rank: threading.Event() for rank in (STAGE0_RANK, LEADER_RANK)}

    def bring_up(plan: Plan, rank: int) -> Groups:
        device = pick_device(plan, rank, 0, 1)
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            torch.cuda.set_stream(stream)  # for this thread: its stage computes there
        return Groups(plan.topology, rank, device, bounds.timeout_s, store, dict(handles))

    def run(rank: int) -> None:
        codes[rank] = run_rank(run_dir, rank, bring_up).exit_code
        over[rank].set()
        if codes[rank]:
            # A notice may not reach the other rank, as before it has a plane: torchrun would end that rank.
            over[LEADER_RANK if rank == STAGE0_RANK else STAGE0_RANK].wait(STAY_S)
            leave(max(codes.values(), key=lambda code: (code != 0, code != SECONDARY)))

    try:
        log_to(log_file(run_dir, STAGE0_RANK), "%(threadName)s")
        with written_down(run_dir, STAGE0_RANK):  # threads belong to the process, which is both ranks'
            threading.Thread(target=run, args=(LEADER_RANK,), name="leader", daemon=True).start()
            run(STAGE0_RANK)
    except OSError as error:
        sys.stderr.write(f"the ranks cannot write into the run folder: {error}\n")
        return UNWRITABLE
    return leave(0 if over[LEADER_RANK].wait(bounds.idle_s) else STUCK)
