"""Facts about this machine that only torch and PyAV can tell, as one JSON line.

It is run as a process of its own, so that its caller stays free of torch. Every fact is tried and not looked
up where that is possible: two ranks really exchange a message over gloo. What cannot be found out is a
sentence under ``errors``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

GLOO_LIMIT_S, ALARM_S = 5.0, 15


def main() -> None:
    """Print the facts."""
    facts: dict[str, Any] = {"errors": {}}
    for name, look in (("torch", _torch), ("gloo", _gloo), ("gpu", _gpus), ("video", _video)):
        with _noted(facts["errors"], name):
            facts |= look()
    sys.stdout.write(json.dumps(facts) + "\n")


@contextlib.contextmanager
def _noted(errors: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever it is, it is a finding about this machine
        errors[name] = f"{type(error).__name__}: {error}".splitlines()[0]


def _torch() -> dict[str, Any]:
    start = time.monotonic()
    import torch

    distributed = torch.distributed.is_available()
    return {
        "torch": torch.__version__,
        "import_s": round(time.monotonic() - start, 2),
        "cuda_built": torch.version.cuda or "",
        "gloo_built": distributed and torch.distributed.is_gloo_available(),
        "nccl_built": distributed and torch.distributed.is_nccl_available(),
    }


def _gloo() -> dict[str, Any]:
    """Let two ranks meet over loopback and pass a number; forked, and before anything of CUDA is touched."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory(prefix="ppwork-doctor-") as folder:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            signal.alarm(ALARM_S)  # whatever becomes of our parent, this process ends
            try:
                _meet(1, Path(folder))
                code = 0
            finally:
                os._exit(code)
        try:
            _meet(0, Path(folder))
        finally:
            _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError("the second rank failed")
        return {"gloo_ms": round((time.monotonic() - start) * 1e3, 1), "rank_mb": _resident_mb()}


def _meet(rank: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]
    bound = timedelta(seconds=GLOO_LIMIT_S)
    store.set_timeout(bound)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=bound)
    number = torch.full((1,), 7 * (1 - rank))
    if rank == 0:
        dist.send(number, 1)
    else:
        dist.recv(number, 0)
    dist.all_reduce(number)
    dist.destroy_process_group()
    if number.item() != 14:
        raise RuntimeError(f"two ranks exchanged 7 and their sum came out as {number.item()}")


def _resident_mb() -> float:
    import psutil

    return round(float(psutil.Process().memory_info().rss) / 1e6, 1)


def _gpus() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"gpus": []}
    if not torch.version.cuda:
        return facts
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        gib = round(device.total_memory / (1 << 30), 1)
        facts["gpus"].append(
            {"name": device.name, "gib": gib, "capability": f"{device.major}.{device.minor}"}
        )
    if torch.distributed.is_nccl_available():
        from ppwork.runtime.nccl import sequential

        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        facts["sequential"] = sequential(os.environ) or ""
    return facts


def _video() -> dict[str, Any]:
    import av

    return {"av": av.__version__, "x264": "libx264" in av.codecs_available}
