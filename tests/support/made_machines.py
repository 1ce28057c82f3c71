"""Findings of a machine that the doctor could have made: a laptop without a GPU, and parts of others."""

from __future__ import annotations

from ppwork.lab.doctor.doctor import Wants
from ppwork.lab.doctor.machine import PORTS_TRIED, Gpu, MachineFacts, Package, Probed

WANTS = Wants(claim_gpus=[0, 0, 1], fault_needs={"cpu": 5, "GPU": 1, "two hosts": 2})
LAB = [
    Package(name="jupyterlab", floor="4.4", found="4.6.6", extra="lab", pinned="4.6.6"),
    Package(name="papermill", floor="2.6", found="2.7.0", extra="lab", pinned="2.7.0"),
]
TORCH = Package(name="torch", floor="2.11", found="2.13.0+cpu", pinned="2.13.0")
LAPTOP = MachineFacts(
    system="Linux 6.1 x86_64",
    python="3.12.1",
    cores=4,
    memory_mb=16_000.0,
    memory_free_mb=8_000.0,
    shm_free_mb=64.0,
    disk="/srv/me",
    disk_free_mb=50_000.0,
    files_soft=1024,
    files_hard=4096,
    loopback=PORTS_TRIED,
    packages=[TORCH, *LAB],
    probed=Probed(
        torch="2.13.0+cpu", import_s=1.1, gloo_built=True, gloo_ms=60.0, rank_mb=250.0, av="18.1.0", x264=True
    ),
    lessons=["00-start-here.ipynb", "04-what.ipynb"],
)
H200 = Gpu(name="NVIDIA H200", gib=139.8, capability="9.0")
