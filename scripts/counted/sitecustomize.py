"""Counts the calls of torch.distributed that every process of a program makes, beside the recorder.

Python imports this at the start of each process that has its folder in ``PYTHONPATH``. Python's profiler sees
torch's own functions entered, of which the outermost counts, and there is a second layer on ``Work.wait``;
at its end each process writes its counts into the folder that ``COUNTED`` names. It knows functions by their
file and name, so it needs nothing of the recorder, and counts in ranks that a rank starts as well.
"""

import atexit
import importlib.machinery
import json
import multiprocessing.util
import os
import sys
import threading
from collections import Counter
from pathlib import Path

FUNCTIONS = {
    "torch/distributed/distributed_c10d.py": {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
        "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
        "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "destroy_process_group",
        "gather", "gather_object", "init_process_group", "irecv", "isend", "monitored_barrier", "new_group",
        "new_subgroups", "new_subgroups_by_enumeration", "recv", "recv_object_list", "reduce",
        "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list",
        "send", "send_object_list", "shrink_group", "split_group",
    },
    "torch/distributed/_functional_collectives.py": {
        "all_gather_into_tensor_coalesced", "all_gather_single", "all_gather_tensor", "all_reduce",
        "all_reduce_coalesced", "all_to_all_single", "broadcast", "reduce_scatter_single",
        "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "wait_tensor",
    },
}  # fmt: skip
DDP, BACKWARD = "torch/nn/parallel/distributed.py", "torch/autograd/__init__.py"
made: Counter[str] = Counter()
depth = threading.local()
known: dict[object, str] = {}
steps: list[bool] = []


def name_of(code) -> str:
    """Return what a function counts as; nothing: it does not."""
    if code not in known:
        known[code], name = "", getattr(code, "co_qualname", code.co_name)
        for file, names in FUNCTIONS.items():
            if name in names and code.co_filename.endswith(file):
                known[code] = name
        if code.co_filename.endswith(DDP) and name.startswith("DistributedDataParallel."):
            known[code] = {"__init__": "DistributedDataParallel", "forward": "forward"}.get(code.co_name, "")
        if code.co_filename.endswith(BACKWARD) and name == "backward":
            known[code] = "backward"
    return known[code]


def profile(frame, event, _):
    if event not in ("call", "return") or not (name := name_of(frame.f_code)):
        return
    if name == "forward":
        if event == "call":
            enabled = sys.modules["torch"].is_grad_enabled()
            steps[:] = [enabled and frame.f_locals["self"].require_backward_grad_sync]
    elif name == "backward":
        if event == "call" and any(steps):
            steps.clear()
            made["backward of DDP"] += 1  # and what its hooks call counts, too
    else:
        now = getattr(depth, "calls", 0)
        if event == "call" and now == 0:
            made[name] += 1
        depth.calls = now + (1 if event == "call" else -1)


def write() -> None:
    """Write what was counted, once."""
    sys.setprofile(None)
    if made:
        Path(os.environ["COUNTED"], f"{os.getpid()}.json").write_text(json.dumps(made))
        made.clear()


def begin(c10d) -> None:
    """Count from now on."""
    wait = c10d.Work.wait

    def counted_wait(work, *args, **kwargs):
        if getattr(depth, "calls", 0) == 0:
            made["wait"] += 1
        return wait(work, *args, **kwargs)

    c10d.Work.wait = counted_wait
    threading.setprofile(profile)
    sys.setprofile(profile)


def begin_anew(_) -> None:
    """Count in a child that was forked, and write before it leaves."""
    made.clear()
    multiprocessing.util.Finalize(None, write, exitpriority=1000)


class AfterImport:
    """Begins when torch.distributed has its functions."""

    @staticmethod
    def find_spec(name, path, _=None):
        """Return where the module is, if it is the one."""
        if name != "torch.distributed.distributed_c10d":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module) -> None:
            run(module)
            begin(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("COUNTED") and "RANK" in os.environ:
    sys.meta_path.insert(0, AfterImport)
    atexit.register(write)
    multiprocessing.util.register_after_fork(begin_anew, begin_anew)
