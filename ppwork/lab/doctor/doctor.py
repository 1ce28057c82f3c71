"""The doctor: what this machine has, what will run here, and what to do about the rest.

Every row is made of the facts of a ``Machine`` and of what the catalogues ask for; the same facts make the
same sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ppwork.lab.doctor.machine import PORTS_TRIED, PROBE_LIMIT_S, SHM, MachineFacts, Package, inspect_machine
from ppwork.pictures.tables import Table
from ppwork.records.folder import MIN_FREE_MB

HEAD = ("what", "found", "verdict", "what to do")
MAIN_RANKS = 3
"""Of the main job: rank 0 and a mesh of two."""
FILES_USUAL, FILES_BARE = 1024, 40
"""Open files: the usual limit of a shell, and what a rank of the main job needs (tried: it fails with 32)."""
SHM_NCCL_MB = 1000.0
"""NCCL's advice for containers is ``--shm-size=1g``."""
NEEDED = ("packages", "torch", "gloo", "memory", "disk", "temporary files", "open files", "loopback", "video")
"""Names of the rows that the main job needs."""


class DoctorVerdict(StrEnum):
    """Meaning of a finding for the runs."""

    FINE = "fine"
    LIMITED = "limited"
    """Some of it will not run, or not as it should; the rest will."""
    MISSING = "missing"


FINE, LIMITED, MISSING = DoctorVerdict.FINE, DoctorVerdict.LIMITED, DoctorVerdict.MISSING


class DoctorRow(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    found: str
    verdict: DoctorVerdict
    todo: str = ""


class Wants(msgspec.Struct, frozen=True, kw_only=True):
    """Demands of the catalogues on a machine."""

    claim_gpus: list[int]
    """GPUs that each claim needs."""
    fault_needs: dict[str, int]
    """Number of fault cases by what they need: ``cpu``, ``GPU``, ``two hosts``."""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; shows itself at the end of a cell."""

    here: list[DoctorRow]
    """Each thing that was looked at."""
    runs: list[DoctorRow]
    """Each thing that will run here or not; the first row is the main job on gloo."""
    machine: MachineFacts
    """The findings behind the sentences."""

    @property
    def ready(self) -> bool:
        """Whether the main job can run on gloo."""
        return self.runs[0].verdict is not DoctorVerdict.MISSING

    def __repr__(self) -> str:
        lines = str(Table((), [*map(_cells, self.here), *map(_cells, self.runs)])).splitlines()
        number = len(self.here)
        return "\n".join(["This machine", *lines[:number], "", "What will run here", *lines[number:]])

    def _repr_html_(self) -> str:
        parts = {"This machine": self.here, "What will run here": self.runs}
        tables = {title: Table(HEAD, list(map(_cells, rows))).html() for title, rows in parts.items()}
        return "".join(f"<h4>{title}</h4>{table}" for title, table in tables.items())


def doctor(*, limit_s: float = PROBE_LIMIT_S) -> DoctorReport:
    """Look this machine over; nothing is installed or changed, and torch is not imported here.

    Args:
        limit_s: Bound on the subprocess with torch, in seconds.

    Returns:
        A row for each thing looked at, and for each thing that will or will not run.

    Blocks:
        For a few seconds, most of them torch's import; at most ``limit_s`` and a moment.
    """
    # Not before it is asked: `import ppwork` stays quick.
    from ppwork.claims.catalogue import CLAIMS
    from ppwork.faults.catalogue import FAULTS
    from ppwork.faults.hosts import why_no_hosts

    machine = inspect_machine(two_hosts=not why_no_hosts(), limit_s=limit_s)
    wants = Wants(
        claim_gpus=[claim.gpus for claim in CLAIMS.values()],
        fault_needs=dict(Counter(case.needs for fault in FAULTS for case in fault.cases)),
    )
    return DoctorReport(here=machine_rows(machine), runs=will_run(machine, wants), machine=machine)


def machine_rows(machine: MachineFacts) -> list[DoctorRow]:
    """Return what this machine has."""
    looks = (_system, _packages, _torch, _gloo, _gpus, _nccl, _cores, _memory, _shm, _disk, _scratch)
    return [row_of(machine) for row_of in (*looks, _files, _ports, _video, _jupyter, _browser)]


def _row(what: str, found: str, fine: bool, verdict: DoctorVerdict, todo: str) -> DoctorRow:
    """Return a row that is fine, or else has this verdict and something to do."""
    return DoctorRow(what, found, FINE) if fine else DoctorRow(what, found, verdict, todo)


def _system(machine: MachineFacts) -> DoctorRow:
    text = f"{machine.system}, Python {machine.python}"
    todo = "tried on Linux only: its death signal ties ranks to torchrun"
    return _row("system", text, machine.system.startswith("Linux"), LIMITED, todo)


def _packages(machine: MachineFacts) -> DoctorRow:
    poor = [package for package in machine.packages if not package.is_enough]
    other = [p for p in machine.packages if p.is_enough and not p.is_pinned]
    if not machine.packages:
        return DoctorRow("packages", "ppwork is not installed", MISSING, machine.install("run"))
    if poor:
        bare = any(not package.extra for package in poor)
        verdict, extra = (MISSING, "run") if bare else (LIMITED, "lab")
        return DoctorRow("packages", _listed(poor), verdict, machine.install(extra))
    if other:
        text = "; ".join(f"{p.name} {p.found}, CI has {p.pinned}" for p in other)
        return DoctorRow("packages", text, FINE, f"for what CI has: {machine.install('run')}")
    pinned = sum(bool(package.pinned) for package in machine.packages)
    as_ci = ", as in constraints.txt" if pinned == len(machine.packages) else ""
    return DoctorRow(
        "packages", f"all {len(machine.packages)} that the runs and the lessons need{as_ci}", FINE
    )


def _listed(packages: list[Package]) -> str:
    return "; ".join(
        f"{p.name} {p.found}, {p.floor} is needed" if p.found else f"no {p.name}" for p in packages
    )


def _torch(machine: MachineFacts) -> DoctorRow:
    probed = machine.probed
    if not probed.torch:
        text = probed.errors.get("torch", "nothing was said")
        return DoctorRow("torch", text, MISSING, machine.install("run"))
    built = f"for CUDA {probed.cuda_built}" if probed.cuda_built else "for CPUs"
    return DoctorRow("torch", f"{probed.torch}, built {built}; its import took {probed.import_s:g} s", FINE)


def _gloo(machine: MachineFacts) -> DoctorRow:
    probed = machine.probed
    if probed.gloo_ms is not None:
        text = f"two ranks met over loopback and exchanged a message: {probed.gloo_ms:g} ms"
        return DoctorRow("gloo", text, FINE)
    if probed.torch and not probed.gloo_built:
        return DoctorRow("gloo", "torch was built without it", MISSING, "another build of torch")
    text = probed.errors.get("gloo", "not tried: no torch")
    return DoctorRow("gloo", text, MISSING, "is the interface lo up? `ip addr show lo`")


def _gpus(machine: MachineFacts) -> DoctorRow:
    probed, driver = machine.probed, f"driver {machine.driver}" if machine.driver else "no NVIDIA driver"
    if probed.gpus:
        names = ", ".join(f"{gpu.name} ({gpu.gib:g} GiB, {gpu.capability})" for gpu in probed.gpus)
        return DoctorRow("GPUs", f"{len(probed.gpus)}: {names}; {driver}", FINE)
    if error := probed.errors.get("gpu"):
        return DoctorRow("GPUs", f"{driver}; {error}", LIMITED, "`nvidia-smi`: does the driver answer?")
    if machine.driver and not probed.cuda_built:
        return DoctorRow("GPUs", f"{driver}, but torch is built for CPUs", LIMITED, "a CUDA build of torch")
    if machine.driver:
        return DoctorRow("GPUs", f"{driver}, but torch sees no GPU", LIMITED, "`echo $CUDA_VISIBLE_DEVICES`")
    return DoctorRow("GPUs", f"none, {driver}", LIMITED, "nothing: all lessons run on gloo")


def _nccl(machine: MachineFacts) -> DoctorRow:
    probed = machine.probed
    if probed.nccl and probed.gpus:
        text, todo = f"{probed.nccl}; {probed.sequential}", "--depth 1 only; unset it, or a newer driver"
        return (
            DoctorRow("NCCL", text, LIMITED, todo)
            if probed.sequential
            else DoctorRow("NCCL", probed.nccl, FINE)
        )
    if probed.nccl_built:
        version = f"{probed.nccl} is" if probed.nccl else "it is"
        return DoctorRow("NCCL", f"{version} built in; no GPU to use it on", LIMITED, "see GPUs")
    text = "torch was built without it" if probed.torch else "unknown: no torch"
    return DoctorRow("NCCL", text, LIMITED, "a CUDA build of torch" if machine.driver else "see GPUs")


def _cores(machine: MachineFacts) -> DoctorRow:
    text, todo = f"{machine.cores} that this process may use", "results hold; what overlaps cannot be timed"
    return _row("cores", text, machine.cores >= 2, LIMITED, todo)


def _memory(machine: MachineFacts) -> DoctorRow:
    text = f"{machine.memory_mb / 1e3:.1f} GB, {machine.memory_free_mb / 1e3:.1f} GB of it free"
    fits = _ranks_that_fit(machine)
    todo = f"room for {MAIN_RANKS} ranks of {machine.probed.rank_mb or 0:g} MB each"
    return _row("memory", text, fits is None or fits >= MAIN_RANKS, MISSING, todo)


def _ranks_that_fit(machine: MachineFacts) -> int | None:
    """Return how many ranks fit into the free memory, by what one took; ``None`` if none was tried."""
    each = machine.probed.rank_mb
    return None if not each else int(machine.memory_free_mb / each)


def _shm(machine: MachineFacts) -> DoctorRow:
    free = machine.shm_free_mb
    text = "there is none" if free is None else f"{free / 1e3:.1f} GB free"
    if len(machine.probed.gpus) > 1 and (free or 0.0) < SHM_NCCL_MB:
        return DoctorRow(SHM, text, LIMITED, "NCCL shares memory there: docker run --shm-size=1g")
    return DoctorRow(SHM, f"{text}; NCCL uses it, gloo does not", FINE)


def _disk(machine: MachineFacts) -> DoctorRow:
    text = f"{machine.disk_free_mb / 1e3:.1f} GB free in the current folder"
    todo = f"a run needs {MIN_FREE_MB:g} MB: remove old runs, or --out elsewhere"
    return _row("disk", text, machine.disk_free_mb >= MIN_FREE_MB, MISSING, todo)


def _scratch(machine: MachineFacts) -> DoctorRow:
    error, todo = machine.scratch_error, "TMPDIR: ranks find each other there"
    return _row("temporary files", error or "can be written", not error, MISSING, todo)


def _files(machine: MachineFacts) -> DoctorRow:
    text = f"soft limit {machine.files_soft} for each process, hard limit {machine.files_hard}"
    verdict = LIMITED if machine.files_soft >= FILES_BARE else MISSING
    todo = f"ulimit -n {FILES_USUAL}"
    return _row("open files", text, machine.files_soft >= FILES_USUAL, verdict, todo)


def _ports(machine: MachineFacts) -> DoctorRow:
    if machine.loopback == PORTS_TRIED and not machine.loopback_error:
        return DoctorRow("loopback", f"{PORTS_TRIED} ports bound at once, and one connected to", FINE)
    text = f"{machine.loopback} of {PORTS_TRIED} ports bound; {machine.loopback_error}"
    return DoctorRow("loopback", text, MISSING, "is lo up, and may this user bind? a sandbox may forbid it")


def _video(machine: MachineFacts) -> DoctorRow:
    probed = machine.probed
    if probed.x264:
        return DoctorRow(
            "video", f"PyAV {probed.av}, which reads and writes H.264; no ffmpeg is needed", FINE
        )
    error = probed.errors.get("video", "unknown: no answer")
    text = f"PyAV {probed.av} without libx264" if probed.av else error
    return DoctorRow(
        "video", text, MISSING, "PyAV's own wheel: pip install --force-reinstall --only-binary av av"
    )


def _jupyter(machine: MachineFacts) -> DoctorRow:
    packages = {package.name: package for package in machine.packages if package.extra == "lab"}
    poor = [package for package in packages.values() if not package.is_enough]
    if packages and not poor:
        text = f"{packages['jupyterlab'].found}, papermill {packages['papermill'].found}"
        return DoctorRow("JupyterLab", text, FINE)
    text = _listed(poor) or "ppwork is not installed"
    return DoctorRow("JupyterLab", text, LIMITED, machine.install("lab"))


def _browser(machine: MachineFacts) -> DoctorRow:
    text = f"{machine.browser or 'no Chromium'}; {'' if machine.playwright else 'no '}Playwright"
    todo = [] if machine.browser else ["apt install chromium"]
    todo += [] if machine.playwright else [machine.install("dev")]
    return _row("browser", text, not todo, LIMITED, f"only for the browser tests: {', '.join(todo)}")


def will_run(machine: MachineFacts, wants: Wants) -> list[DoctorRow]:
    """Return what runs here; the first row is the main job on gloo."""
    main = _main_job(machine)
    rows = [main, _mesh(machine, main), _on_nccl(machine), _lessons(machine, main)]
    return [*rows, _claims(machine, wants, main), _faults(machine, wants, main), _browser_test(machine)]


def _main_job(machine: MachineFacts) -> DoctorRow:
    bad = [row.what for row in machine_rows(machine) if row.what in NEEDED and row.verdict is MISSING]
    slow = "" if machine.cores >= MAIN_RANKS else f", which take turns on {machine.cores} cores"
    text = f"not here: {', '.join(bad)}" if bad else f"{MAIN_RANKS} ranks{slow}: `ppwork run --verify`"
    return _row("main job on gloo", text, not bad, MISSING, "see above")


def _mesh(machine: MachineFacts, main: DoctorRow) -> DoctorRow:
    fits = _ranks_that_fit(machine)
    if main.verdict is MISSING or fits is None:
        return DoctorRow("more ranks on gloo", "not here", MISSING, "see above")
    text = f"{fits} fit into the free memory at {machine.probed.rank_mb:g} MB each, before a model"
    todo = f"beyond {machine.cores} they share the cores: results hold, times do not"
    return DoctorRow("more ranks on gloo", text, FINE, todo if fits > machine.cores else "")


def _on_nccl(machine: MachineFacts) -> DoctorRow:
    gpus = len(machine.probed.gpus)
    if not gpus or not machine.probed.nccl:
        return DoctorRow("NCCL", "not here", LIMITED, "--backend gloo, or leave it at auto")
    if gpus == 1:
        todo = "--share-gpu: to see it work, never to time it"
        return DoctorRow("NCCL", "1 GPU: ranks must share it", LIMITED, todo)
    text = f"up to {gpus} ranks: rank 0 and a mesh of {gpus - 1}"
    verdict = FINE if gpus >= MAIN_RANKS else LIMITED
    return DoctorRow("NCCL", text, verdict, f"more ranks than {gpus} take gloo by themselves")


def _lessons(machine: MachineFacts, main: DoctorRow) -> DoctorRow:
    numbers = ", ".join(name[:2] for name in machine.lessons)
    if not machine.lessons:
        return DoctorRow("lessons", "none beside this installation", LIMITED, "`ppwork lessons` copies them")
    jupyter = _jupyter(machine)
    if main.verdict is MISSING:
        return DoctorRow("lessons", f"{numbers}: not here", MISSING, "see the main job")
    if jupyter.verdict is not FINE:
        return DoctorRow("lessons", f"{numbers}: to be read only", LIMITED, jupyter.todo)
    return DoctorRow("lessons", f"{numbers}, all on gloo: `make lab`", FINE)


def _claims(machine: MachineFacts, wants: Wants, main: DoctorRow) -> DoctorRow:
    gpus, number = len(machine.probed.gpus), len(wants.claim_gpus)
    can = 0 if main.verdict is MISSING else sum(need <= gpus for need in wants.claim_gpus)
    return _share("claims", "claims", can, number, f"the rest: {number - can} for GPUs")


def _faults(machine: MachineFacts, wants: Wants, main: DoctorRow) -> DoctorRow:
    has: Mapping[str, bool] = {"GPU": bool(machine.probed.gpus), "two hosts": machine.two_hosts}
    number = sum(wants.fault_needs.values())
    can = sum(n for need, n in wants.fault_needs.items() if has.get(need, True))
    names = {"GPU": "a GPU", "two hosts": "two hosts (root makes them with `ip netns`)"}
    lacking = [f"{n} for {names[need]}" for need, n in wants.fault_needs.items() if not has.get(need, True)]
    can = 0 if main.verdict is MISSING else can
    return _share("fault catalogue", "cases", can, number, f"the rest: {', '.join(lacking)}")


def _share(what: str, of_what: str, can: int, number: int, rest: str) -> DoctorRow:
    if can == 0:
        return DoctorRow(what, "not here", MISSING, "see the main job")
    return _row(what, f"{can} of {number} {of_what}", can == number, LIMITED, rest)


def _browser_test(machine: MachineFacts) -> DoctorRow:
    fine = _browser(machine).verdict is FINE and _jupyter(machine).verdict is FINE
    return _row("browser tests", "yes" if fine else "not here", fine, LIMITED, "see browser")


def _cells(row: DoctorRow) -> tuple[str, str, str, str]:
    return (row.what, row.found, row.verdict.value, row.todo)
