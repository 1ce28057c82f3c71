"""A launch over hosts in miniature that is disturbed in mid-run: how it ends, when, and what it leaves."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import host_processes
import psutil
from waiting import wait_for

import ppwork as pp
from ppwork.faults.hosts import NAMES, MiniatureHost, hosts_on_a_switch, places_on
from ppwork.records.pulse import read_pulse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ppwork.records.pulse import PulseView
    from ppwork.records.spans import Entry

FREEZE_S = 2.0
LATE_S = 10.0
"""What a full machine may add to a promise of seconds."""
ENDLESS = pp.synthetic(
    pp.Plan(mesh_size=2, chunks=100_000, in_flight_depth=2, backend="gloo", freeze_s=FREEZE_S),
    encode_ms=5,
    decode_ms=5,
    stage1_ms=10,
    payload_mb=0.1,
)
log = logging.getLogger("N")
APART = """\
pipes=$(mktemp -d)
mkfifo "$pipes/in" "$pipes/out"
(setsid "$@" < "$pipes/in" > "$pipes/out" &)
exec 3> "$pipes/in" 4< "$pipes/out"
rm -r "$pipes"
cat <&4 3>&- &
exec cat >&3 4<&-
"""


class OnceRunning:
    """``progress`` of a launch: does something once, when a few chunks have been emitted.

    Attributes:
        acted_s: When it had done it, by ``time.monotonic``; 0: not yet.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        self.act, self.acted_s = act, 0.0

    def __call__(self, entry: Entry) -> None:
        if entry.name == "emit" and entry.chunk_index >= 3 and not self.acted_s:
            self.act()
            self.acted_s = time.monotonic()


@contextlib.contextmanager
def launcher_of_two_nodes(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[psutil.Process]]]:
    """Launch over two nodes of this machine from a process of its own; yield it and what it has started."""
    ENDLESS.save(folder)
    places = 'pp.Command("", ["here", "there"], same_host=True)'
    program = f"import ppwork as pp; pp.launch(pp.Plan.load({str(folder)!r}), on={places}, out='run')"
    launcher = subprocess.Popen([sys.executable, "-c", program], cwd=folder)

    def pulses() -> list[PulseView]:
        found = [read_pulse(folder / "run", rank) for rank in range(ENDLESS.world_size)]
        return found if all(pulse is not None and "chunk_index" in pulse.ids for pulse in found) else []

    try:
        ranks = [pulse.process() for pulse in wait_for(pulses, 90)]
        yield launcher, [*psutil.Process(launcher.pid).children(recursive=True), *ranks]
    finally:
        launcher.kill()
        launcher.wait()


@dataclass
class Ended:
    """How a disturbed launch ended.

    Attributes:
        run: As it was returned.
        after_s: Seconds from the disturbance until it was.
        said: The verdict from its folder.
    """

    run: pp.Run
    after_s: float
    said: Any


def disturbed_launch(
    tmp_path: Path,
    act: Callable[[tuple[MiniatureHost, ...], Path], object] | None,
    *,
    name: str,
    ranks: Sequence[int] = (1, 2),
    names: Sequence[str] = NAMES,
    plan: pp.Plan = ENDLESS,
    stays: Sequence[str] = (),
    before: Callable[[tuple[MiniatureHost, ...]], object] = lambda hosts: None,
    after: Callable[[tuple[MiniatureHost, ...]], object] = lambda hosts: None,
    apart: bool = False,
    **options: Any,
) -> Ended:
    """Launch a plan over hosts, disturb it once chunks come, and see that nothing is left on any of them.

    Args:
        tmp_path: For all of it.
        act: Does it; gets the hosts and the run's folder. ``None``: ``before`` has, and the launch is timed.
        name: Of the fault, for the log: `make hosts` shows the seconds.
        ranks: How many on each.
        names: Of the hosts.
        plan: What runs.
        stays: Hosts on which something may be left until ``after``.
        before: Called before the launch.
        after: Called when the launch has returned.
        apart: A node is no child of who enters its host, as of ssh: whoever is killed here lives on there.
        options: Of ``pp.Command``.
    """
    with hosts_on_a_switch(names) as hosts:
        before(hosts)
        once = OnceRunning(lambda: act and act(hosts, tmp_path / "run"))
        begun_s = time.monotonic()
        on = places_on(hosts, tmp_path, ranks=ranks, **options)
        if apart:
            enter = tmp_path / "enter"
            enter.write_text(enter.read_text().replace('exec "$@"', APART))
        run = pp.launch(plan, on=on, out=tmp_path / "run", progress=once, check=False)
        assert once.acted_s or act is None, run.failure
        after_s = time.monotonic() - (once.acted_s if act else begun_s)
        left = {host.name: host_processes.processes(host) for host in hosts if host.name not in stays}
        after(hosts)
        wait_for(lambda: not any(host_processes.processes(host) for host in hosts), 10)
    log.info("%s: %.1f s: %s", name, after_s, run.failure and run.failure.headline)
    assert not any(left.values()), left
    return Ended(run, after_s, pp.diagnose(run.run_dir))
