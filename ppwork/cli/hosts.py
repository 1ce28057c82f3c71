"""Several hosts on the command line: ``doctor --on``, ``torchrun PLAN --on``; ``main`` has ``run --on``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.output import err, out, write_json, write_text
from ppwork.errors import PlanError, duration
from ppwork.launcher.nodes.host import Host
from ppwork.launcher.nodes.host_session import HostSession
from ppwork.launcher.nodes.meet import LOOPBACK
from ppwork.launcher.nodes.places import Places, Slurm, places_of
from ppwork.launcher.torchrun import STATIC_PORT
from ppwork.pictures.tables import Table
from ppwork.plan import Plan

FREEZE_S = 5.0
HEAD = ["host", "ranks' network", "round trip", "its clock is ahead by", "free", "cores", "GPUs"]


def show_hosts(places: Places, *, as_json: bool) -> None:
    """Call hosts, find their network, and print what they said; nothing is started there but a node.

    Raises:
        UnavailableError: A host is not ready.
    """
    with HostSession(
        places, len(places.hosts) if places.ranks is None else sum(places.ranks), FREEZE_S
    ) as hosts:
        with err.status("calling the hosts") as status:
            hosts.greet(status.update)
        hosts.look("doctor")
        hosts.meet()
        hosts.settle_clocks()
        facts = [_facts(host) for host in hosts.hosts]
        hello = hosts.hosts[0].hello
    assert hello is not None  # noqa: S101  they have been greeted
    versions = {"ppwork": hello.ppwork, "torch": hello.torch, "python": hello.python}
    if as_json:
        write_json({"versions": versions, "hosts": facts})
        return
    below = f"All have {', '.join(f'{name} {version}' for name, version in versions.items())}."
    out.print(Table(HEAD, [list(map(str, each.values())) for each in facts], below=below))


def _facts(host: Host) -> dict[str, object]:
    hello, looked, offset = host.hello, host.looked, host.offset
    assert hello is not None  # noqa: S101  they have been greeted
    assert looked is not None  # noqa: S101
    return {
        "host": host.name,
        "network": f"{host.own.address} ({host.own.interface})",
        "round_trip": duration(2e-9 * offset.error_ns) if offset is not None else "not measured",
        "clock_ahead": f"{offset.offset_ns / 1e9:.6f} s" if offset is not None else "not measured",
        "free": f"{looked.free_mb / 1e3:.1f} GB",
        "cores": hello.cores,
        "gpus": hello.gpus,
    }


def torchrun_command(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan.json, or a folder that has one, such as a run's.")
    ],
    on: Annotated[str, typer.Option(help="ssh:gpu-a,gpu-b; local:2 for two torchruns here.")],
    ranks: Annotated[str, typer.Option(help="Number of ranks on each host, such as 1,2.")] = "",
    interface: Annotated[
        str,
        typer.Option(
            help="Network interface of the ranks, the same on all hosts; default: eth0; with local, lo."
        ),
    ] = "",
) -> None:
    """Print the plain commands that run a plan over hosts without a launcher: to type, or for a script."""
    folder = (plan_file.parent if plan_file.is_file() else plan_file).absolute()
    plan, places = Plan.load(folder), places_of(on, ranks)
    if isinstance(places, Slurm):
        raise PlanError(
            "The names of hosts that Slurm will choose are not known.",
            check_first="docs/torchruns.md has a script for sbatch",
        )
    counts = places.placed(plan.world_size)
    first = LOOPBACK if places.same_host else places.hosts[0].rpartition("@")[2]
    network = interface or ("lo" if places.same_host else "eth0")
    lines = [
        f"# plan.json of {folder} at the same path on every host, in a folder with nothing else",
        f"export GLOO_SOCKET_IFNAME={shlex.quote(network)} NCCL_SOCKET_IFNAME={shlex.quote(f'={network}')} "
        f"OMP_NUM_THREADS={plan.threads_per_rank}",
    ]
    for node, (host, count) in enumerate(zip(places.hosts, counts, strict=True)):
        command = [
            "torchrun", "--nnodes", str(len(counts)), "--node-rank", str(node),
            "--nproc-per-node", str(count), "--master-addr", first, "--master-port", str(STATIC_PORT),
            "--max-restarts", "0", "-m", "ppwork", "worker", str(folder),
        ]  # fmt: skip
        lines += [f"# on {host}", shlex.join(command)]
    write_text("\n".join(lines))
