"""The stages of a GPU run in their order: the hard limit of each, its steps, and who reads what they left."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import findings

from ppwork.cli.main import run as run_command
from ppwork.faults.catalogue import FAULTS
from ppwork.faults.fault import GPU
from ppwork.lab.parameters import parameters_of
from ppwork.launcher.view import QUIET_VARIABLE
from ppwork.plan import SYNTHETIC_STAGE0, Plan

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUN, FOLDER = "{run}", "{folder}"
"""In a command: the step's run folder, and its folder."""
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""What else the machine has may warn, and a warning is an error in our tests."""
PLANNED = """\
import sys
from ppwork.launcher.launch import launch
from ppwork.plan import Plan
launch(Plan.from_json(sys.argv[1].encode()), out=sys.argv[2])
"""
"""For plans that `ppwork run` has no options for."""
TWO_SUMS = {"encode_ms": 10.0, "decode_ms": 10.0, "stage1_ms": 40.0, "payload_mb": 4.0}
"""The generator takes longest, and a chunk is large enough for its transfer to be seen."""
STEADY = ("--workload", "synthetic", "--stage0-ms", "20,20", "--stage1-ms", "40", "--payload-mb", "4")
ON_A_CARD = tuple(f"{fault.id}/{case.name}" for fault in FAULTS for case in fault.cases if case.needs == GPU)
BROKEN = (
    *("F13/leader-mid-compute", "F13/follower-mid-broadcast", "F13/stage0-mid-send"),
    *("F14/leader-stopped", "F14/follower-loop", *ON_A_CARD, "F15/leader", "F16/skipped"),
)
"""Cases of the fault catalogue."""


@dataclass(frozen=True)
class Step:
    """One row of the table: commands, run one after another up to the first that fails."""

    name: str
    commands: Sequence[Sequence[str]]
    read: Callable[[Path], findings.Finding]
    """Gets the step's folder, with ``out.txt``, ``log.txt`` and perhaps ``run``."""
    lacks: str = ""
    """What the step needs and this machine has not: it is not run."""
    variables: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (0,)
    """Exit codes of a good end."""
    limit_s: float = 60.0
    """A step that hangs leaves the rest of its stage's time to the others."""

    @property
    def environment(self) -> dict[str, str]:
        """All of it; ranks find ``two_sums`` here."""
        paths = filter(None, (str(HERE), os.environ.get("PYTHONPATH")))
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self.variables}


@dataclass(frozen=True)
class Stage:
    """Steps under one hard limit."""

    limit_s: float
    steps: list[Step]


def module(name: str, *arguments: str) -> Sequence[str]:
    """Return the command of a Python module."""
    return (sys.executable, "-m", name, *arguments)


def stages(backend: str, gpus: int) -> dict[str, Stage]:
    """Return every stage by name, as it is on this backend and with so many GPUs."""
    nccl = backend == "nccl"
    no_card = "" if nccl and gpus else "only a GPU can show it"
    sanitizer = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    no_sanitizer = "" if sanitizer else "no compute-sanitizer here"
    known = "one_process" in inspect.signature(run_command).parameters
    no_one_process = "" if known else "`ppwork run` has no --one-process"
    ranks = ("--backend", backend, *(("--share-gpu",) if nccl else ()))
    drawn = module("ppwork", "timeline", RUN)

    def run(*options: str) -> Sequence[str]:
        return module("ppwork", "run", *options, "--out", RUN, "--json")

    def planned(depth: int) -> Sequence[str]:
        stage1 = {"stage0": SYNTHETIC_STAGE0, "stage1": "two_sums:TwoSums", "options": TWO_SUMS}
        plan = Plan(
            chunks=16, in_flight_depth=depth, backend=backend, share_gpu=nccl, timeout_s=20.0, **stage1
        )
        return (sys.executable, "-c", PLANNED, plan.to_json().decode(), RUN)

    def overlap(depth: int, order: str) -> Step:
        name = f"depth {depth}" + (f", NCCL_LAUNCH_ORDER_IMPLICIT={order}" if nccl else "")
        variables = {"NCCL_LAUNCH_ORDER_IMPLICIT": order}
        return Step(name, [planned(depth)], findings.overlapped, variables=variables, limit_s=40.0)

    def fault(name: str) -> Step:
        options = (name[:3], "--case", name[4:], "--backend", backend, "--keep", RUN, "--json")
        lacks = no_card if name in ON_A_CARD else ""
        return Step(name, [module("ppwork", "fault", "run", *options)], findings.caught, lacks, limit_s=40.0)

    def gpu_tests(*options: str) -> Sequence[str]:
        return module("pytest", "-p", "pytest_timeout", "-m", "gpu", "tests/gpu", *options)

    def tested(chosen: str) -> Step:
        command = gpu_tests("-k", chosen, "--junitxml", f"{FOLDER}/tests.xml")
        return Step(f"tests, {chosen}", [command], findings.tests, no_card, NO_PLUGINS, limit_s=120.0)

    def sanitized(tool: str) -> Step:
        watched = (str(sanitizer), "--tool", tool, *gpu_tests("-k", "many_rounds and 3 and compute"))
        # What the allocator keeps, the tool takes for ours.
        variables = {**NO_PLUGINS, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        return Step(tool, [watched], findings.sanitized, no_card or no_sanitizer, variables)

    def clip(mesh_size: str, *options: str) -> Step:
        command = run(*ranks, "--mesh-size", mesh_size, *options, "--verify")
        return Step(f"mesh of {mesh_size}", [command], findings.verified)

    def one_process(depth: str) -> Step:
        command = run("--one-process", *STEADY, *ranks[:2], "--mesh-size", "1", "--depth", depth)
        return Step(f"depth {depth}", [command, drawn], findings.steady, no_one_process)

    def recorded() -> Step:
        program = str(HERE / "own_streams.py")
        command = module("ppwork", "trace", "--nproc", "2", "--limit-s", "45", "--out", RUN, program)
        return Step("own streams", [command], findings.recorded, no_card)

    def blocking() -> Step:
        # Refused at the start; else two ranks wait for each other.
        command = run(*ranks, "--depth", "3", "--chunks", "6", "--timeout-s", "15")
        name, codes = "CUDA_LAUNCH_BLOCKING", (1, 2)
        return Step(f"{name}=1, depth 3", [command], findings.refused, no_card, {name: "1"}, codes)

    claims = module("ppwork", "claims", *ranks[:2], "--json")
    orders = ("1", "0") if nccl else ("1",)
    table = {
        "doctor": Stage(30, [Step("this machine", [module("ppwork", "doctor", "--json")], findings.machine)]),
        "first-light": Stage(60, [clip(size, "--chunks", "4") for size in ("1", "2")]),
        "streams": Stage(120, [tested("not depth and not shipped_clip")]),
        # The telling ones first.
        "overlap": Stage(
            120,
            [
                *(overlap(n, each) for n in (3, 1, 2, 4) for each in orders),
                tested("depth and not shipped_clip"),
            ],
        ),
        "pipeline": Stage(90, [clip(size, "--depth", "3") for size in ("1", "2")]),
        "one-process": Stage(60, [one_process(depth) for depth in ("1", "3")]),
        "timelines": Stage(60, [Step(f"depth {n}", [planned(n), drawn], findings.drawn) for n in (1, 3)]),
        "programs": Stage(60, [recorded()]),
        "claims": Stage(120, [Step("all", [claims], findings.claimed, limit_s=120.0)]),
        "faults": Stage(120, [*map(fault, BROKEN), blocking()]),
        "lessons": Stage(120, [lesson(number, nccl=nccl) for number in ("06", "01", "02", "05", "07", "08")]),
        "sanitizer": Stage(60, [sanitized(tool) for tool in ("memcheck", "racecheck")]),
    }
    if nccl and not gpus:
        for stage in list(table.values())[1:]:
            stage.steps[:] = [replace(step, lacks=step.lacks or "NCCL needs a GPU") for step in stage.steps]
    return table


def lesson(number: str, *, nccl: bool) -> Step:
    """Return the step that executes a lesson with its ranks on the card."""
    (notebook,) = (ROOT / "notebooks").glob(f"{number}-*.ipynb")
    wanted = {"backend": "nccl", "share_gpu": "True"} if nccl else {}
    unknown = [name for name in wanted if name not in parameters_of(notebook)]
    lacks = f"the lesson has no parameter {unknown[0]}" if unknown else ""
    if not (find_spec("papermill") and find_spec("ipykernel")):
        lacks = "no papermill or no ipykernel here"
    parameters = [word for name, value in wanted.items() for word in ("-p", name, value)]
    options = ("--cwd", FOLDER, "--no-progress-bar", *parameters)
    command = module("papermill", str(notebook), f"{FOLDER}/executed.ipynb", *options)
    variables = {QUIET_VARIABLE: "1", "PPWORK_WARM": "0" if nccl else "1"}
    return Step(number, [command], findings.executed, lacks, variables)
