"""A workbench for pipeline-parallel inference on torch.distributed: see it, break it, measure it.

This module is the notebook side. It starts processes and reads the files that they leave, and imports neither
torch nor CUDA. A name that a plan does not need is imported on first use. Inside a rank, import
``ppwork.ranks`` instead.
"""

import typing as _typing
from importlib import import_module as _import_module

from ppwork.errors import NotOverError, PlanError, PPWorkError, RunFailed, UnavailableError, UnreadableError
from ppwork.plan import Plan
from ppwork.protocol.topology import Topology
from ppwork.version import __version__

if _typing.TYPE_CHECKING:
    from ppwork import claims, faults, pictures
    from ppwork.diagnosis.runs import diagnose
    from ppwork.lab import lesson
    from ppwork.lab.doctor.doctor import doctor
    from ppwork.lab.exercises.check import check
    from ppwork.lab.expectation import expect
    from ppwork.lab.job import attach
    from ppwork.lab.live import launch, launch_script
    from ppwork.lab.run import Run, open  # noqa: A004
    from ppwork.lab.what_if import what_if
    from ppwork.launcher.job import submit
    from ppwork.launcher.nodes.places import Command, Hosts, Slurm
    from ppwork.pictures.picture import Picture, show
    from ppwork.timeline.simulate import simulate
    from ppwork.workloads.times import synthetic
else:

    def __getattr__(name: str) -> object:
        """Import a name or a room on first use: a launch does not wait for the pictures."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _import_module(f"ppwork.{_HOMES[name]}")
        globals()[name] = value = home if name in _ROOMS else getattr(home, name)
        return value


__all__ = [
    "Command",
    "Hosts",
    "NotOverError",
    "PPWorkError",
    "Picture",
    "Plan",
    "PlanError",
    "Run",
    "RunFailed",
    "Slurm",
    "Topology",
    "UnavailableError",
    "UnreadableError",
    "__version__",
    "attach",
    "check",
    "claims",
    "diagnose",
    "doctor",
    "expect",
    "faults",
    "launch",
    "launch_script",
    "lesson",
    "open",
    "pictures",
    "show",
    "simulate",
    "submit",
    "synthetic",
    "what_if",
]

_ROOMS = {"claims": "claims", "faults": "faults", "lesson": "lab.lesson", "pictures": "pictures"}
_HOMES = {
    **_ROOMS,
    "Command": "launcher.nodes.places",
    "Hosts": "launcher.nodes.places",
    "Picture": "pictures.picture",
    "Run": "lab.run",
    "Slurm": "launcher.nodes.places",
    "attach": "lab.job",
    "check": "lab.exercises.check",
    "diagnose": "diagnosis.runs",
    "doctor": "lab.doctor.doctor",
    "expect": "lab.expectation",
    "launch": "lab.live",
    "launch_script": "lab.live",
    "open": "lab.run",
    "show": "pictures.picture",
    "simulate": "timeline.simulate",
    "submit": "launcher.job",
    "synthetic": "workloads.times",
    "what_if": "lab.what_if",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: _typing.Any) -> None:  # noqa: ANN401  IPython's shell, not imported for a type
    """Give a notebook ``%%ranks``, ``%%stages``, and its own ``!torchrun`` (at ``%load_ext ppwork``)."""
    from ppwork.lab.magic import own_programs_first, ranks
    from ppwork.lab.stages_cell import stages

    own_programs_first()

    shell.register_magic_function(ranks, "cell")
    shell.register_magic_function(stages, "cell")
