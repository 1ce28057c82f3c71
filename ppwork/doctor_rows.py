"""What the findings about a machine mean: a verdict on each, and what to do about it.

Pure: every sentence is made of what ``machine`` found, and the same findings make the same sentences.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from ppwork.checks import MIN_FREE_MB
from ppwork.machine import PORTS_TRIED, SHM

if TYPE_CHECKING:
    from ppwork.machine import Machine, Package

MAIN_RANKS = 3
"""Of the main job: rank 0 and a mesh of two."""
FILES_USUAL, FILES_BARE = 1024, 40
"""Open files: the usual limit of a shell, and what a rank of the main job needs (tried: it fails with 32)."""
SHM_NCCL_MB = 1000.0
"""NCCL's advice for containers is ``--shm-size=1g``."""


class Verdict(StrEnum):
    """What a finding means for what one wants to run."""

    FINE = "fine"
    LIMITED = "limited"
    """Some of it will not run, or not as it should; the rest will."""
    MISSING = "missing"


FINE, LIMITED, MISSING = Verdict.FINE, Verdict.LIMITED, Verdict.MISSING


class Row(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    found: str
    verdict: Verdict
    todo: str = ""


def here(machine: Machine) -> list[Row]:
    """Return what this machine has."""
    looks = (_system, _packages, _torch, _gloo, _gpus, _nccl, _cores, _memory, _shm, _disk, _scratch)
    return [look(machine) for look in (*looks, _files, _ports, _video, lab, browser)]


def _system(machine: Machine) -> Row:
    found = f"{machine.system}, Python {machine.python}"
    if machine.system.startswith("Linux"):
        return Row("system", found, FINE)
    return Row("system", found, LIMITED, "tried on Linux only: its death signal ties ranks to torchrun")


def _packages(machine: Machine) -> Row:
    poor = [package for package in machine.packages if not package.is_enough]
    other = [p for p in machine.packages if p.is_enough and not p.is_pinned]
    if not machine.packages:
        return Row("packages", "ppwork is not installed", MISSING, "pip install -c constraints.txt -e .")
    if poor:
        bare = any(not package.extra for package in poor)
        what = "-e ." if bare else '-e ".[lab]"'
        verdict = MISSING if bare else LIMITED
        return Row("packages", _listed(poor), verdict, f"pip install -c constraints.txt {what}")
    if other:
        said = "; ".join(f"{p.name} {p.found}, CI has {p.pinned}" for p in other)
        return Row("packages", said, FINE, "for what CI has: pip install -c constraints.txt -e .")
    pinned = sum(bool(package.pinned) for package in machine.packages)
    as_ci = ", as in constraints.txt" if pinned == len(machine.packages) else ""
    return Row("packages", f"all {len(machine.packages)} that the runs and the lessons need{as_ci}", FINE)


def _listed(packages: list[Package]) -> str:
    return "; ".join(
        f"{p.name} {p.found}, {p.floor} is needed" if p.found else f"no {p.name}" for p in packages
    )


def _torch(machine: Machine) -> Row:
    probed = machine.probed
    if not probed.torch:
        said = probed.errors.get("torch", "nothing was said")
        return Row("torch", said, MISSING, "pip install -c constraints.txt -e .")
    built = f"for CUDA {probed.cuda_built}" if probed.cuda_built else "for CPUs"
    return Row("torch", f"{probed.torch}, built {built}; its import took {probed.import_s:g} s", FINE)


def _gloo(machine: Machine) -> Row:
    probed = machine.probed
    if probed.gloo_ms is not None:
        return Row(
            "gloo", f"two ranks met over loopback and exchanged a message: {probed.gloo_ms:g} ms", FINE
        )
    if probed.torch and not probed.gloo_built:
        return Row("gloo", "torch was built without it", MISSING, "another build of torch")
    said = probed.errors.get("gloo", "not tried: no torch")
    return Row("gloo", said, MISSING, "is the interface lo up? `ip addr show lo`")


def _gpus(machine: Machine) -> Row:
    probed, driver = machine.probed, f"driver {machine.driver}" if machine.driver else "no NVIDIA driver"
    if probed.gpus:
        names = ", ".join(f"{gpu.name} ({gpu.gib:g} GiB, {gpu.capability})" for gpu in probed.gpus)
        return Row("GPUs", f"{len(probed.gpus)}: {names}; {driver}", FINE)
    if error := probed.errors.get("gpu"):
        return Row("GPUs", f"{driver}; {error}", LIMITED, "`nvidia-smi`: does the driver answer?")
    if machine.driver and not probed.cuda_built:
        return Row("GPUs", f"{driver}, but torch is built for CPUs", LIMITED, "a CUDA build of torch")
    if machine.driver:
        return Row("GPUs", f"{driver}, but torch sees no GPU", LIMITED, "`echo $CUDA_VISIBLE_DEVICES`")
    return Row("GPUs", f"none, {driver}", LIMITED, "nothing: everything but NCCL runs with gloo")


def _nccl(machine: Machine) -> Row:
    probed = machine.probed
    if probed.nccl and probed.gpus:
        return Row("NCCL", probed.nccl, FINE)
    if probed.nccl_built:
        version = f"{probed.nccl} is" if probed.nccl else "it is"
        return Row("NCCL", f"{version} built in; no GPU to use it on", LIMITED, "see GPUs")
    said = "torch was built without it" if probed.torch else "unknown: no torch"
    return Row("NCCL", said, LIMITED, "a CUDA build of torch" if machine.driver else "see GPUs")


def _cores(machine: Machine) -> Row:
    if machine.cores >= 2:
        return Row("cores", f"{machine.cores} that this process may use", FINE)
    return Row("cores", "1 that this process may use", LIMITED, "results hold; what overlaps cannot be timed")


def _memory(machine: Machine) -> Row:
    found = f"{machine.memory_mb / 1e3:.1f} GB, {machine.memory_free_mb / 1e3:.1f} GB of it free"
    fits = ranks_that_fit(machine)
    if fits is None or fits >= MAIN_RANKS:
        return Row("memory", found, FINE)
    return Row("memory", found, MISSING, f"room for {MAIN_RANKS} ranks of {machine.probed.rank_mb:g} MB each")


def ranks_that_fit(machine: Machine) -> int | None:
    """Return how many ranks fit into the free memory, by what one took; ``None`` if none was tried."""
    each = machine.probed.rank_mb
    return None if not each else int(machine.memory_free_mb / each)


def _shm(machine: Machine) -> Row:
    free = machine.shm_free_mb
    found = "there is none" if free is None else f"{free / 1e3:.1f} GB free"
    if len(machine.probed.gpus) > 1 and (free or 0.0) < SHM_NCCL_MB:
        return Row(SHM, found, LIMITED, "NCCL shares memory there: docker run --shm-size=1g")
    return Row(SHM, f"{found}; gloo does not use it", FINE)


def _disk(machine: Machine) -> Row:
    found = f"{machine.disk_free_mb / 1e3:.1f} GB free in the current folder"
    if machine.disk_free_mb >= MIN_FREE_MB:
        return Row("disk", found, FINE)
    return Row("disk", found, MISSING, f"a run needs {MIN_FREE_MB:g} MB: remove old runs, or --out elsewhere")


def _scratch(machine: Machine) -> Row:
    if not machine.scratch_error:
        return Row("temporary files", "can be written", FINE)
    return Row("temporary files", machine.scratch_error, MISSING, "TMPDIR: ranks find each other there")


def _files(machine: Machine) -> Row:
    found = f"{machine.files_soft} for each process, {machine.files_hard} may be had"
    if machine.files_soft >= FILES_USUAL:
        return Row("open files", found, FINE)
    verdict = LIMITED if machine.files_soft >= FILES_BARE else MISSING
    return Row("open files", found, verdict, f"ulimit -n {FILES_USUAL}")


def _ports(machine: Machine) -> Row:
    if machine.loopback == PORTS_TRIED and not machine.loopback_error:
        return Row("loopback", f"{PORTS_TRIED} ports bound at once, and one connected to", FINE)
    said = f"{machine.loopback} of {PORTS_TRIED} ports bound; {machine.loopback_error}"
    return Row("loopback", said, MISSING, "is lo up, and may this user bind? a sandbox may forbid it")


def _video(machine: Machine) -> Row:
    probed = machine.probed
    if probed.x264:
        return Row("video", f"PyAV {probed.av}, which reads and writes H.264; no ffmpeg is needed", FINE)
    said = (
        f"PyAV {probed.av} without libx264" if probed.av else probed.errors.get("video", "unknown: no answer")
    )
    return Row("video", said, MISSING, "PyAV's own wheel: pip install --force-reinstall --only-binary av av")


def lab(machine: Machine) -> Row:
    """Return whether notebooks can be opened and executed."""
    found = {package.name: package for package in machine.packages if package.extra == "lab"}
    poor = [package for package in found.values() if not package.is_enough]
    if found and not poor:
        return Row("JupyterLab", f"{found['jupyterlab'].found}, papermill {found['papermill'].found}", FINE)
    said = _listed(poor) or "ppwork is not installed"
    return Row("JupyterLab", said, LIMITED, 'pip install -c constraints.txt -e ".[lab]"')


def browser(machine: Machine) -> Row:
    """Return whether there is what the browser tests drive."""
    found = f"{machine.browser or 'no Chromium'}; {'' if machine.playwright else 'no '}Playwright"
    if machine.browser and machine.playwright:
        return Row("browser", found, FINE)
    todo = [] if machine.browser else ["apt install chromium"]
    todo += [] if machine.playwright else ['pip install -c constraints.txt -e ".[dev]"']
    return Row("browser", found, LIMITED, f"only for the browser tests: {', '.join(todo)}")
