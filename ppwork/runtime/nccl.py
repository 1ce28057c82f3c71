"""The variables that make NCCL fail soon and say why, in one place, each with its reason. No torch here.

torch and NCCL read them when a group is made, so they are set before the first use of CUDA. A variable that
the user has set stays as it is. The defaults quoted here are those of torch 2.11 to 2.13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, MutableMapping

KNOBS: dict[str, tuple[str, str]] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (
        "3",
        "a broken or timed-out operation ends the process, without a clean-up that may hang itself; torch's "
        "default, written down because everything here relies on it",
    ),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ("1", "the flight record is written when an operation times out"),
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": (
        "1000",
        "after a timeout the process sleeps four times this for the dump: 4 s, not a minute",
    ),
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": (
        "120",
        "NCCL's own watchdog thread may be stuck (GIL, a CUDA lock) for two default timeouts of a plan, not "
        "for 8 minutes, before the process is ended",
    ),
    "TORCH_FR_BUFFER_SIZE": ("2000", "the flight recorder is on: the last collectives of each rank"),
    "NCCL_LAUNCH_ORDER_IMPLICIT": (
        "1",
        "one order of launches on the host for all communicators of a device (rule R7)",
    ),
    "NCCL_RUNTIME_CONNECT": (
        "0",
        "every algorithm connects when its group is made, none at the first large sum, where it blocks the "
        "host",
    ),
    "TORCH_NCCL_HIGH_PRIORITY": (
        "1",
        "transfers run on torch's own stream of a group: its blocks go before those of compute kernels",
    ),
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        "32",
        "one hardware queue for each stream: a rank has nine; in the usual eight a transfer that waits "
        "for its peer could hold up a stream beside it",
    ),
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": (
        "0",
        "each link has a group of its own, so that a message waits for none but those before it",
    ),
}
"""Variable to value and reason."""

SHARED_GPU = {
    "NCCL_SOCKET_IFNAME": "=lo",  # without the sign it is a prefix
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
    "CUDA_MODULE_LOADING": "EAGER",
}
"""With a distinct NCCL_HOSTID per rank these let several ranks share one GPU: functional only, never fast."""

READ_ONCE = ("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_LAUNCH_ORDER_IMPLICIT", "NCCL_RUNTIME_CONNECT")
"""Knobs on which the order of chunks rests; a process reads them once, when it first uses CUDA or NCCL."""

LAUNCH_ORDER_DRIVER = 12030
"""From this CUDA version of the driver on, NCCL keeps the order of launches without waiting.

NCCL must also be built for this version, and be 2.26 or newer: the NCCL of torch 2.11 and up is both.
"""
BLOCKING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its end",
    "TORCH_NCCL_BLOCKING_WAIT": "every wait blocks the host",
}
"""Variables that make the host wait where only a stream should wait, and how."""


def turn(environment: MutableMapping[str, str]) -> None:
    """Set every knob that the environment does not have."""
    for name, (value, _) in KNOBS.items():
        environment.setdefault(name, value)


def too_late(environment: Mapping[str, str], *, cuda: bool, nccl: bool) -> list[str]:
    """Return the knobs that ``turn`` would set without an effect.

    Args:
        environment: As it is before ``turn``.
        cuda: This process has used CUDA.
        nccl: It has a group on NCCL.
    """
    used = {"CUDA": cuda, "NCCL": nccl}
    return [name for name in READ_ONCE if used[name.partition("_")[0]] and name not in environment]


def sharing_a_gpu(rank: int) -> dict[str, str]:
    """Return the variables of a rank that shares its GPU with other ranks."""
    return {**SHARED_GPU, "NCCL_HOSTID": f"ppwork-{rank}"}


def sequential(environment: Mapping[str, str]) -> str | None:
    """Say why chunks cannot overlap on NCCL here: ranks would wait for each other; ``None`` if they can."""
    for name, how in BLOCKING.items():
        if environment.get(name, "").lower() not in ("", "0", "n", "no", "f", "false"):
            return f"{name}={environment[name]}: {how}"
    if environment.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        return "TORCH_DISTRIBUTED_DEBUG=DETAIL: every collective waits for the hosts of its peers first"
    return old_driver()


def old_driver() -> str | None:
    """Say how an old driver keeps NCCL's order of launches; ``None`` if it is not old, or there is none.

    This asks the driver's library, which touches no device.
    """
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    if failed or version.value >= LAUNCH_ORDER_DRIVER:
        return None
    major, minor = version.value // 1000, version.value % 1000 // 10
    return (
        f"this driver is for CUDA {major}.{minor}; before 12.3 NCCL keeps its order of launches by waiting "
        "for each to end"
    )
