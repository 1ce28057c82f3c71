"""The launcher's side of a run over several hosts: who has answered, where ranks meet, who is still there.

No rank starts before all hosts have the same versions, what the run needs, and a network. After that a host
that is not heard, a silent network between two hosts, or a node that goes away ends the run on all other
hosts.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self

from ppwork.errors import PlanError, RunFailed, UnavailableError, duration, listed
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.gather import Home, Names
from ppwork.launcher.nodes.host import HostState
from ppwork.launcher.nodes.node import MARKER
from ppwork.launcher.nodes.pipes import Pipes
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.nodes.verdict import why_it_ended
from ppwork.launcher.registry import registered
from ppwork.launcher.slurm import ASK_S
from ppwork.launcher.torchrun_watch import GRACE_S, PAUSED_S
from ppwork.launcher.view import Queued, StopAsked
from ppwork.plan import Plan
from ppwork.process import HOST_LOST, PAST_LIMIT, UNWRITABLE
from ppwork.protocol.bounds import Bounds
from ppwork.records.folder import MIN_FREE_MB
from ppwork.records.hosts import HostEnd, HostsRecord
from ppwork.records.pulse import PulseState, read_pulse
from ppwork.version import __version__

STEP_S = 20.0
"""Seconds for each step of the handshake after a host has answered."""
CLOCKS_S = 1.0
"""Seconds to compare clocks: about four beats."""
LAST_S = 4.0
"""Seconds after the end in which hosts send their last words; later words are lost."""
PROGRAM_START_S = 60.0
"""Seconds in which the torchruns of a user's own program have to meet."""
LATE_S = 15.0
"""Seconds after the run's limit in which hosts end by themselves."""


class HostSession(Pipes):
    """The hosts of a run, from the first call to the last word; a context manager that leaves no node behind.

    Args:
        places: Where the hosts are.
        world_size: Number of ranks of the run.
        freeze_s: Seconds of silence that end the run.

    Raises:
        PlanError: The ranks do not fit the hosts.
        UnavailableError: A command cannot be started.
    """

    def __init__(self, places: Places, world_size: int, freeze_s: float) -> None:
        self._freeze_s = freeze_s
        self._secret = secrets.token_hex(32).encode()
        self._looped_s = time.monotonic()
        super().__init__(places, world_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.end("left")
            self._last_words()
        finally:
            self._close()

    def greet(self, queued: Queued | None = None, run_dir: Path | None = None) -> None:
        """Wait until every host has answered.

        Args:
            queued: Called meanwhile with the queue's report, about every 50 ms; ``StopAsked`` ends the run.
            run_dir: The run's folder here; meanwhile ``ppwork ps`` lists the run, and ``ppwork stop`` ends
                it.

        Raises:
            PlanError: Two hosts are the same; nothing was started.
            UnavailableError: A host does not answer, their versions differ, or the list of runs cannot be
                kept; nothing was started.
            RunFailed: The run was stopped in the queue; nothing was started.
        """
        with contextlib.ExitStack() as stack:
            if run_dir is not None:
                stack.enter_context(registered(run_dir, self.pid, self._places.waits))
            try:
                self._wait(
                    HostState.GREETED, self._places.greet_s, "answer", look=self._queue_told_to(queued)
                )
            except StopAsked:
                what = "The run was stopped while it waited in the queue. Nothing was started."
                raise RunFailed(what) from None
        hellos = [host.hello for host in self.hosts if host.hello is not None]
        ours = wire.Hello(wire.VERSION, __version__, hellos[0].torch, hellos[0].python, "", "", 0, 0)
        for what in ("wire", "ppwork", "torch", "python"):
            values = {str(getattr(hello, what)) for hello in (ours, *hellos)}
            if len(values) > 1:
                said = listed(f"{host.name} {getattr(host.hello, what) or 'none'}" for host in self.hosts)
                here = f", this one {getattr(ours, what)}" if what in ("wire", "ppwork") else ""
                raise UnavailableError(
                    f"The hosts have different versions of {what}: {said}{here}. Nothing was started.",
                    check_first="install the same on all, or name another Python: `python=` of pp.Hosts",
                )
        if not hellos[0].torch:
            raise UnavailableError("The hosts have no torch.", check_first="`python=` of pp.Hosts")
        names = [hello.host for hello in hellos]
        if len(set(names)) == len(names):
            for host, name in zip(self.hosts, names, strict=True):
                host.name = name
        elif not self._places.same_host:
            twice = next(name for name in names if names.count(name) > 1)
            raise PlanError(
                f"Two of the hosts are {twice}.", check_first="same_host=True, if that is meant (tests)"
            )

    def backend_of(self, plan: Plan) -> str:
        """Decide between gloo and NCCL for all hosts, which have answered: ``Plan.backend_with``.

        Raises:
            PlanError: The plan asks for NCCL, and a host has too few GPUs.
        """
        gpus = [host.hello.gpus if host.hello is not None else 0 for host in self.hosts]
        chosen = {plan.backend_with(n, len(host.ranks)) for n, host in zip(gpus, self.hosts, strict=True)}
        return "nccl" if chosen == {"nccl"} else "gloo"

    def look(
        self, run: str, folder: Path | None = None, needs: Iterable[str] = (), *, everywhere: bool = False
    ) -> None:
        """Tell the hosts what the run needs, and find out whether they share its folder.

        Args:
            run: Name of the run.
            folder: The run's folder here.
            needs: Files that the host of rank 0 must have.
            everywhere: All hosts must have these files, and see the folder.

        Raises:
            UnavailableError: A host lacks something; nothing was started.
        """
        word = secrets.token_hex(16) if folder is not None and self._places.use_shared else ""
        marker = Path(folder or "") / MARKER
        if word:
            marker.write_text(word)
        try:
            for host in self.hosts:
                look = wire.Look(
                    secret=self._secret,
                    run=run,
                    folder=str(folder or ""),
                    marker=word,
                    cwd=str(Path.cwd()),
                    needs=tuple(needs) if everywhere or 0 in host.ranks else (),
                    freeze_s=self._freeze_s,
                )
                self._tell(host, look)
            self._wait(HostState.LOOKED, STEP_S, "look at its disk")
        finally:
            if word:
                marker.unlink(missing_ok=True)
        for host in self.hosts:
            if host.looked is None:
                continue
            if host.looked.missing:
                raise UnavailableError(
                    f"{host} has no {listed(host.looked.missing)}.", check_first="copy it there, same path"
                )
            if everywhere and not host.looked.shared:
                raise UnavailableError(
                    f"{host} does not see {folder}, where what ranks of a program print has to be written.",
                    check_first="a folder of a network that all hosts have, at the same path",
                )
            if host.looked.free_mb < MIN_FREE_MB:
                raise UnavailableError(
                    f"{host} has {host.looked.free_mb:.1f} MB free in {host.looked.folder}; a run needs "
                    f"{MIN_FREE_MB:g} MB.",
                    check_first=f"`df -h` there; TMPDIR of {host.name} names another disk",
                )

    def meet(self) -> None:
        """Find an address of the first host that all others reach.

        Raises:
            UnavailableError: There is no such address; nothing was started.
        """
        first, *others = self.hosts
        alone = not others
        loopback = alone or self._places.same_host
        self._tell(first, wire.Listen(loopback, others=not alone, public=self._places.allow_public))
        self._wait(HostState.MET, STEP_S, "open a socket", [first])
        for host in others:
            self._tell(host, wire.Reach(tuple(way.to for way in first.ways)))
        self._wait(HostState.MET, STEP_S, "try the addresses of the first")
        for at in first.ways:
            ways = [next((way for way in host.ways if way.to == at.to), None) for host in self.hosts]
            if None not in ways:
                for host, way in zip(self.hosts, ways, strict=True):
                    host.way = way
                return
        stranded = next((host for host in others if not host.ways), None)
        tried = listed(f"{way.to.address} ({way.to.interface})" for way in first.ways) or "no address"
        public = f"; not tried, as of the Internet: {listed(at.address for at in first.public)}"
        who = f"Host {stranded.name} does not" if stranded is not None else "Not all hosts"
        raise UnavailableError(
            f"{who} reach {first.name} at {'any' if stranded is not None else 'the same'} of {tried}"
            f"{public if first.public else ''}. Nothing was started.",
            check_first="a firewall between them (all ports have to be open there); are they in one "
            f"network?{' allow_public=True, if that network is meant' if first.public else ''}",
        )

    def settle_clocks(self) -> None:
        """Wait until each host's clock was compared with ours a few times.

        Blocks:
            ``CLOCKS_S``.
        """
        until_s = time.monotonic() + CLOCKS_S
        while time.monotonic() < until_s:
            self._drain()

    def run(
        self,
        plan: Plan | None,
        program: Sequence[str],
        run_dir: Path,
        limit_s: float,
        look: Callable[[], None],
        *,
        arguments: Sequence[str] = (),
    ) -> int:
        """Run the program on all hosts to its end.

        Args:
            plan: The run's plan; ``None`` for a user's own program.
            program: What torchrun starts; ``FOLDER`` and ``LOGS`` of ``node`` stand for folders on that host.
            run_dir: The run's folder here.
            limit_s: Seconds that the run may take.
            look: Called about every 50 ms.
            arguments: The program's arguments, passed on unchanged.

        Returns:
            0, the code of the first host's torchrun that failed, ``PAST_LIMIT``, ``HOST_LOST``, or
            ``UNWRITABLE``.

        Raises:
            OSError: ``hosts.json`` cannot be written.
        """
        self._start(plan, program, arguments, limit_s)
        for host in self.hosts:
            if host.looked is not None and not host.looked.shared:
                host.home = Home(run_dir, Names(host.number, host.ranks))
        try:
            self._save(run_dir, None)
            in_time = self._follow(run_dir, time.monotonic() + limit_s + LATE_S, look)
        finally:
            self.end("over")
            self._last_words()
            end = why_it_ended(self.hosts, self._edges, run_dir)
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._save(run_dir, end)
        if self._unwritable:
            return UNWRITABLE
        if end is not None:
            return HOST_LOST
        codes = [host.code or 0 for host in self.hosts]
        return PAST_LIMIT if PAST_LIMIT in codes or not in_time else next(filter(None, codes), 0)

    def _start(
        self, plan: Plan | None, program: Sequence[str], arguments: Sequence[str], limit_s: float
    ) -> None:
        first = self.hosts[0].way
        assert first is not None  # noqa: S101  ``meet`` has found it
        run_id = uuid.uuid4().hex
        for host in self.hosts:
            start = wire.StartRun(
                program=tuple(program),
                arguments=tuple(arguments),
                plan="" if plan is None else plan.to_json().decode(),
                ranks=len(host.ranks),
                first=host.ranks.start,
                hosts=len(self.hosts),
                address=first.to.address,
                port=first.to.port,
                interface=host.own.interface,
                run_id=run_id,
                threads=1 if plan is None else plan.threads_per_rank,
                start_s=PROGRAM_START_S if plan is None else Bounds.of(plan).start_s,
                limit_s=limit_s,
                warm=plan is None or plan.backend == "gloo",
            )
            host.state = HostState.RUNNING
            self._tell(host, start)

    def _follow(self, run_dir: Path, deadline_s: float, look: Callable[[], None]) -> bool:
        """Wait until all hosts are done or something is wrong; return whether that was in time."""
        trouble_s: float | None = None
        while not all(host.is_over for host in self.hosts):
            self._drain()
            look()
            now = time.monotonic()
            silent = self._see_silence(now) or any(not quiet.closed for _, _, quiet in self._edges)
            if trouble_s is None and self._is_troubled():
                trouble_s = now
            # After a silence the others write no record before their own bound; after a failure some do.
            waits_s = GRACE_S if trouble_s is not None and self._ranks_are_left(run_dir) else 0.0
            if silent or now > deadline_s or (trouble_s is not None and now - trouble_s > waits_s):
                return now <= deadline_s
        return True

    def _ranks_are_left(self, run_dir: Path) -> bool:
        """Say whether a rank may still write a record: a rank that has left has written its own."""
        ranks = [rank for host in self.hosts if not host.is_over for rank in host.ranks]
        pulses = [read_pulse(run_dir, rank) for rank in ranks]
        return any(pulse is None or pulse.state is not PulseState.LEFT for pulse in pulses)

    def _is_troubled(self) -> bool:
        failed = any(host.code or host.state is HostState.LOST for host in self.hosts)
        return failed or bool(self._edges) or self._unwritable

    def _see_silence(self, now: float) -> bool:
        """Give up hosts that are not heard; but if we did not run ourselves, no host can be judged."""
        paused_s, self._looped_s = now - self._looped_s, now
        if paused_s > PAUSED_S:
            for channel in self._channels:
                channel.heard_s = dict.fromkeys(channel.heard_s, now)
        # The pipe to a host may use the cable that was cut: then it falls silent within a beat of the edge.
        edge = {end.number for *ends, quiet in self._edges if not quiet.closed for end in ends}
        limits = {host.number: self._freeze_s / (2 if host.number in edge else 1) for host in self.hosts}
        silent = [host for host in self.hosts if not host.is_over and host.quiet_s > limits[host.number]]
        for host in silent:
            check = f"is {host.name} up, and does the network to it work? then what its ranks wrote there"
            self._lose(host, f"was not heard for {duration(host.quiet_s)}", check)
        return bool(silent)

    def _last_words(self) -> None:
        until_s = (self._ended_s or time.monotonic()) + LAST_S
        while any(host.state is HostState.RUNNING and host.quiet_s < LAST_S for host in self.hosts):
            if time.monotonic() > until_s:
                break
            self._drain()
        for host in self.hosts:
            if host.home is not None:
                host.home.close()

    def _save(self, run_dir: Path, end: HostEnd | None) -> None:
        HostsRecord(hosts=tuple(host.record() for host in self.hosts), end=end).save(run_dir)

    def _queue_told_to(self, queued: Queued | None) -> Callable[[], None]:
        """Return a function that queries the queue now and then, and reports the answer."""
        said, asked_s = "", 0.0

        def look() -> None:
            nonlocal said, asked_s
            words = self._channels[0].words()
            if queued is not None and words and time.monotonic() - asked_s > ASK_S:
                with contextlib.suppress(UnavailableError):  # Slurm's controller is away, but the job is not
                    said = self._places.in_queue(words)
                asked_s = time.monotonic()
            if queued is not None and said:
                queued(said)

        return look
