"""Runs programs of this folder one after the other, and prints how many calls each of them made.

It counts what the recorder is to record by other means: Python's profiler sees torch's own functions entered,
the outermost of them counts, and there is a second layer on ``Work.wait``.
"""

import inspect
import json
import runpy
import sys
import threading
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

from ppwork.worker.trace import FUNCTIONAL, PUBLIC

functions = [(getattr(dist, name, None), name) for name in PUBLIC]
functions += [(getattr(funcol, name, None), name) for name in FUNCTIONAL]
functions += [(DistributedDataParallel.__init__, "DistributedDataParallel")]
codes = {inspect.unwrap(function).__code__: name for function, name in functions if function}
backward = inspect.unwrap(torch.autograd.backward).__code__
forward = inspect.unwrap(DistributedDataParallel.forward).__code__
steps: list[bool] = []
made: Counter[str] = Counter()
depth = threading.local()
wait = dist.Work.wait


def profile(frame, event, _):
    if event == "call" and frame.f_code is forward:
        steps[:] = [torch.is_grad_enabled() and frame.f_locals["self"].require_backward_grad_sync]
    if event == "call" and frame.f_code is backward and any(steps):
        steps.clear()
        made["backward of DDP"] += 1  # and what its hooks call counts, too
    if event in ("call", "return") and frame.f_code in codes:
        now = getattr(depth, "calls", 0)
        if event == "call" and now == 0:
            made[codes[frame.f_code]] += 1
        depth.calls = now + (1 if event == "call" else -1)


def counted_wait(work, *args):
    if getattr(depth, "calls", 0) == 0:
        made["wait"] += 1
    return wait(work, *args)


dist.Work.wait = counted_wait
threading.setprofile(profile)
dist.init_process_group("gloo")
counts = {}
for name in sys.argv[1:]:
    made.clear()
    sys.setprofile(profile)
    runpy.run_path(str(Path(__file__).parent / f"{name}.py"))
    sys.setprofile(None)
    counts[name] = dict(made)
    dist.barrier()
sys.stdout.write(f"@made {json.dumps(counts)}\n")
dist.destroy_process_group()
