"""Why a run over several hosts ended if no rank caused it, and where its ranks were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from ppwork.errors import duration, listed
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.host import Host
from ppwork.records.hosts import HostEnd
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import read_entries

Edge = tuple[Host, Host, wire.Quiet]
"""Two hosts, and the first host's report on the second."""


def why_it_ended(hosts: Sequence[Host], silent: Iterable[Edge], run_dir: Path) -> HostEnd | None:
    """Return why a run ended, if a host or a network caused it.

    Args:
        hosts: The run's hosts.
        silent: Edges over which a host no longer heard another, in the order of the reports.
        run_dir: The run's folder here.
    """
    for host in hosts:
        if host.lost:
            what = f"Host {host} {host.lost}{_last(run_dir, host.ranks)}."
            return HostEnd(error_type="HostLost", what=what, check_first=host.check_first)
    for host in hosts:
        if host.code is not None and host.code < 0:
            what = f"The torchrun of {host} was killed by signal {-host.code}{_last(run_dir, host.ranks)}."
            check = f"who killed it? the kernel's log of {host.name}, if it was out of memory"
            return HostEnd(error_type="TorchrunDied", what=what, check_first=check)
    for host, peer, quiet in silent:
        if not peer.code and not host.code:
            one, other = sorted((host, peer), key=lambda each: each.number)
            ends = [f"{each.name} ({each.own.address})" for each in (one, other)]
            how = "broke" if quiet.closed else f"passed nothing for {duration(quiet.quiet_s)}"
            return HostEnd(
                error_type="NetworkSilent",
                what=f"The network between {listed(ends)} {how}: the launcher hears both.",
                check_first="a cable, a firewall, packets larger than the MTU: `ping` from both sides",
            )
    return None


def _last(run_dir: Path, ranks: Iterable[int]) -> str:
    """Return where the ranks of a host were, by their records, as the third part of a sentence."""
    said = []
    for rank in ranks:
        pulse = read_pulse(run_dir, rank)
        if pulse is not None and pulse.doing and "chunk_index" in pulse.ids:
            said.append(f"rank {rank} in {pulse.doing}, chunk {pulse.ids['chunk_index']}")
            continue
        with contextlib.suppress(OSError, ValueError):
            # Lanes run ahead of the chunk that the rank is at, and commitment points are on lanes.
            of_chunks = [
                entry
                for entry in read_entries(run_dir, rank)
                if entry.chunk_index >= 0 and entry.lane == "main" and entry.name != "mesh.broadcast"
            ]
            if of_chunks:
                newest = max(of_chunks, key=lambda entry: entry.end_ns)
                said.append(f"rank {rank} after {newest.name}, chunk {newest.chunk_index}")
    return f"; last: {listed(said)}" if said else ""
