"""A rank's device: chosen, checked against what the host has, and what is compared of its libraries."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ppwork.errors import PlanError, listed
from ppwork.protocol.plan import PipelinePlan
from ppwork.runtime import nccl

log = logging.getLogger(__name__)

UNTRIED = (
    "NCCL was chosen, because each rank has a GPU. This version has never run on NCCL (docs/gpu.md); what is "
    "tested is backend 'gloo'"
)


def pick_device(plan: PipelinePlan, rank: int, local_rank: int, ranks_here: int) -> torch.device:
    """Choose and set this rank's device; call this before anything else touches CUDA.

    Raises:
        PlanError: The plan asks for NCCL, and this host has fewer CUDA devices than the plan needs for its
            ``ranks_here``, or none of index ``local_rank``; or chunks are to overlap on NCCL, and it is too
            late for the variables that order its launches.
    """
    if plan.backend == "gloo":
        return torch.device("cpu")
    late = nccl.too_late(os.environ, cuda=_has_used_cuda(), nccl=_has_nccl())
    if plan.share_gpu:
        os.environ.update(nccl.sharing_a_gpu(rank))
    nccl.turn(os.environ)
    gpus = torch.cuda.device_count()
    try:
        backend = plan.backend_with(gpus, ranks_here)
    except PlanError as error:
        if (seen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            error.check_first = f"CUDA_VISIBLE_DEVICES={seen}: each rank of a host has to see all its GPUs"
        raise error.at(rank=rank)  # noqa: B904  the same error
    if backend == "gloo":
        if gpus:
            log.warning("gloo on CPUs: %d GPUs are seen here, and %d ranks need one each", gpus, ranks_here)
        return torch.device("cpu")
    index = 0 if plan.share_gpu else local_rank
    if index >= gpus:
        raise PlanError(
            f"The local rank was {index}, and this process sees {gpus} GPUs.",
            where={"rank": rank},
            check_first="LOCAL_RANK, CUDA_VISIBLE_DEVICES",
        )
    if late:
        _refuse_late(late, plan, rank)
    if plan.backend == "auto" and rank == 0:
        log.warning(UNTRIED)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _has_used_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _has_nccl() -> bool:
    """Say whether a group of this process is on NCCL; the default group is the first that is made."""
    return dist.is_initialized() and "nccl" in str(dist.get_backend_config())


def _refuse_late(late: Sequence[str], plan: PipelinePlan, rank: int) -> None:
    """Refuse to overlap chunks where two communicators may wait for each other; else warn."""
    what = f"This process used its GPU before it joined: too late to set {listed(late)}."
    wanted = " ".join(f"{name}={nccl.KNOBS[name][0]}" for name in late)
    check_first = f"export {wanted} before the program starts, or join first"
    if plan.in_flight_depth > 1 and "NCCL_LAUNCH_ORDER_IMPLICIT" in late:
        raise PlanError(what, where={"rank": rank}, check_first=check_first)
    log.warning("%s %s", what, check_first)


def versions_of(device: torch.device) -> dict[str, str]:
    """Return the versions of a GPU's libraries: one torch may load another NCCL, by ``LD_LIBRARY_PATH``."""
    if device.type == "cpu":
        return {}
    return {
        "version.nccl": str(torch.cuda.nccl.version()),  # type: ignore[no-untyped-call]
        "version.cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }
