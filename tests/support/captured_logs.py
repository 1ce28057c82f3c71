"""Consoles of real torchrun jobs (``--redirects 3 --tee 3``), as they were; only paths were shortened."""

from __future__ import annotations

import re
from pathlib import Path

from checkout import SUPPORT

CAPTURED = SUPPORT / "captured"
TEED = re.compile(r"^\[default(\d+)\]:(.*)$", re.MULTILINE)


def console(name: str) -> Path:
    """The log of a job's console."""
    return CAPTURED / f"{name}.txt"


def log_dir(name: str | Path, folder: Path, *, ranks: int = 3, report: bool = True) -> Path:
    """The same job's ``--log-dir``: torchrun writes there what it shows with the prefix ``[default0]:``."""
    text = (name if isinstance(name, Path) else console(name)).read_text()
    for rank in range(ranks):
        of_rank = folder / "run_x1" / "attempt_0" / str(rank)
        of_rank.mkdir(parents=True)
        lines = [line for number, line in TEED.findall(text) if int(number) == rank]
        (of_rank / "stderr.log").write_text("".join(f"{line}\n" for line in lines))
        (of_rank / "stdout.log").touch()
    if report:
        (folder / "console.log").write_text(TEED.sub("", text))
    return folder


_IN = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3763, "
_REMOTE = (
    f"{_IN}remote process exited or there was a network error, NCCL version 2.28.8\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
)
_SYSTEM = (
    f"{_IN}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
)
NCCL_ERRORS = {
    "remote exited": f"{_REMOTE}\nLast error:\n"
    "socketProgressOpt: Call to recv from 10.119.24.53<49901> failed : Connection reset by peer",
    "remote exited, no details": _REMOTE,
    "nobody listens": f"{_SYSTEM}\nLast error:\n"
    "socketStartConnect: Connect to 10.119.24.53<49901> failed : Connection refused",
    "communicator aborted": "NCCL communicator was aborted on rank 1. ",
    "bound passed": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before "
    "timing out.",
    "key of a store": "Timeout waiting for key: default_pg/0//cuda//0 after 60000 ms",
    "key of torchrun's store": "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] "
    "via c10d key-value store by key '0', but store->get('0') got error: wait timeout after 60000ms, keys: "
    "/default_pg/0//cuda//0",
    "illegal access": "CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "out of memory": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 "
    "GiB of which 1.12 GiB is free.",
    "no shared memory": f"{_SYSTEM}\nLast error:\n"
    "Error while creating shared memory segment /dev/shm/nccl-pY5kQx (size 9637888), error: No space left on "
    "device (28)",
    "duplicate GPU": f"{_IN}invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
}
"""What NCCL, CUDA and torch's stores say in a ``RuntimeError``, as people posted it in bug reports."""
