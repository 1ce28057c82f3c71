"""What will run on a machine: the main job, more ranks, NCCL, the lessons and the catalogues.

Pure, as ``doctor_rows``: made of what ``survey`` found and of what the catalogues ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ppwork.doctor_rows import FINE, LIMITED, MAIN_RANKS, MISSING, Row, browser, here, lab, ranks_that_fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ppwork.machine import Machine

NEEDED = ("packages", "torch", "gloo", "memory", "disk", "temporary files", "open files", "loopback", "video")
"""What the main job stands on."""


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """What the catalogues ask of a machine."""

    claim_gpus: list[int]
    """GPUs that each claim needs."""
    fault_needs: dict[str, int]
    """Number of fault cases by what they need: ``cpu``, ``GPU``, ``two hosts``."""


def will_run(machine: Machine, wants: Wants) -> list[Row]:
    """Return what runs here; the first row is the main job on gloo."""
    main = _main_job(machine)
    rows = [main, _mesh(machine, main), _on_nccl(machine), _lessons(machine, main)]
    return [*rows, _claims(machine, wants, main), _faults(machine, wants, main), _browser_test(machine)]


def _main_job(machine: Machine) -> Row:
    bad = [row.what for row in here(machine) if row.what in NEEDED and row.verdict is MISSING]
    if bad:
        return Row("main job on gloo", f"not here: {', '.join(bad)}", MISSING, "see above")
    slow = "" if machine.cores >= MAIN_RANKS else f", which take turns on {machine.cores} cores"
    return Row("main job on gloo", f"{MAIN_RANKS} ranks{slow}: `ppwork run --verify`", FINE)


def _mesh(machine: Machine, main: Row) -> Row:
    fits = ranks_that_fit(machine)
    if main.verdict is MISSING or fits is None:
        return Row("more ranks on gloo", "not here", MISSING, "see above")
    found = f"{fits} fit into the free memory at {machine.probed.rank_mb:g} MB each, before a model"
    if fits <= machine.cores:
        return Row("more ranks on gloo", found, FINE)
    return Row(
        "more ranks on gloo",
        found,
        FINE,
        f"beyond {machine.cores} they share the cores: results hold, times do not",
    )


def _on_nccl(machine: Machine) -> Row:
    gpus = len(machine.probed.gpus)
    if not gpus or not machine.probed.nccl:
        return Row("NCCL", "not here", LIMITED, "--backend gloo, or leave it at auto")
    if gpus == 1:
        return Row(
            "NCCL", "1 GPU: ranks must share it", LIMITED, "--share-gpu: to see it work, never to time it"
        )
    found = f"up to {gpus} ranks: rank 0 and a mesh of {gpus - 1}"
    verdict = FINE if gpus >= MAIN_RANKS else LIMITED
    return Row("NCCL", found, verdict, f"more ranks than {gpus} take gloo by themselves")


def _lessons(machine: Machine, main: Row) -> Row:
    numbers = ", ".join(name[:2] for name in machine.lessons)
    if not machine.lessons:
        return Row("lessons", "none beside this installation", LIMITED, "they are in the repository")
    jupyter = lab(machine)
    if main.verdict is MISSING:
        return Row("lessons", f"{numbers}: not here", MISSING, "see the main job")
    if jupyter.verdict is not FINE:
        return Row("lessons", f"{numbers}: to be read only", LIMITED, jupyter.todo)
    return Row("lessons", f"{numbers}, all on gloo: `make lab`", FINE)


def _claims(machine: Machine, wants: Wants, main: Row) -> Row:
    gpus, number = len(machine.probed.gpus), len(wants.claim_gpus)
    can = 0 if main.verdict is MISSING else sum(need <= gpus for need in wants.claim_gpus)
    return _share("claims", "claims", can, number, f"the rest: {number - can} for GPUs")


def _faults(machine: Machine, wants: Wants, main: Row) -> Row:
    has: Mapping[str, bool] = {"GPU": bool(machine.probed.gpus), "two hosts": machine.two_hosts}
    number = sum(wants.fault_needs.values())
    can = sum(n for need, n in wants.fault_needs.items() if has.get(need, True))
    names = {"GPU": "a GPU", "two hosts": "two hosts (root makes them with `ip netns`)"}
    lacking = [f"{n} for {names[need]}" for need, n in wants.fault_needs.items() if not has.get(need, True)]
    can = 0 if main.verdict is MISSING else can
    return _share("fault catalogue", "cases", can, number, f"the rest: {', '.join(lacking)}")


def _share(what: str, of_what: str, can: int, number: int, rest: str) -> Row:
    if can == 0:
        return Row(what, "not here", MISSING, "see the main job")
    verdict = FINE if can == number else LIMITED
    return Row(what, f"{can} of {number} {of_what}", verdict, "" if can == number else rest)


def _browser_test(machine: Machine) -> Row:
    ready = browser(machine).verdict is FINE and lab(machine).verdict is FINE
    return Row(
        "browser tests",
        "yes" if ready else "not here",
        FINE if ready else LIMITED,
        "" if ready else "see browser",
    )
