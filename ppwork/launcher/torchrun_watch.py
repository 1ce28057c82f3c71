"""Watches torchrun and its ranks while they run, and does what torchrun fails to do.

When a rank has died badly, torchrun sends SIGTERM to the others, and then waits 30 s for any that stays: one
that is stopped, or whose program handles the signal. It says so in its log, and only then: a rank that left
well before the others is no death. torchrun does not notice a stopped rank at all: if no peer reports it, the
run would wait for ever. No torch here.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from ppwork.launcher.processes import POLL_S, end, environment_of, is_alive, state_of, with_children
from ppwork.process import TORCHRUN_HUNG, TORCHRUN_STOPPED

GRACE_S = 1.0
"""Seconds that the other ranks get to write their records, after the first death."""
PAUSED_S = 1.0
"""We look every 50 ms; a gap like this means that we were stopped (Ctrl-Z), and observation starts anew."""
RANKS_S = 0.25
"""Seconds between two looks at the ranks: each look reads every process of the machine."""
LEAVE_S = 15.0
"""Seconds that torchrun gets to leave after its ranks. It waits for ever for a store that was removed."""
REACHED_S = 5.0
"""Seconds until a signal has reached the ranks; on a busy machine a rank may wait for a core."""
STACKS_S = 0.5
"""Seconds that ranks get to write their stacks: the handler is C code and takes milliseconds."""
_CLOSING = re.compile(rb"Sending process \d+ closing signal")


class TorchrunWatch:
    """Observes one torchrun.

    Args:
        agent: torchrun.
        log: The file that gets torchrun's output.
        freeze_s: Seconds that torchrun may be stopped (SIGSTOP) while we run; a rank may be ``GRACE_S``
            longer, because its peers report more.
        say: Gets a line for each rank that was killed, or could not be.
        leave_s: Seconds that torchrun gets to leave after its ranks.

    Attributes:
        family: Processes that were seen below torchrun. If one leaves its session, its parent and its
            environment behind, nothing else knows it.
    """

    def __init__(
        self,
        agent: psutil.Process,
        log: Path,
        freeze_s: float,
        say: Callable[[str], None],
        leave_s: float = LEAVE_S,
    ) -> None:
        self._agent, self._log, self._freeze_s, self._say = agent, log, freeze_s, say
        self._leave_s = leave_s
        self.family: set[psutil.Process] = set()
        self._read = 0
        self._looked = time.monotonic()
        self._closing_since: float | None = None
        self._stopped_since: float | None = None
        self._had_ranks = False
        self._alone_since: float | None = None
        self._ranks_looked = 0.0
        self._stopped_ranks: dict[psutil.Process, float] = {}

    def look(self) -> int | None:
        """Look once, and kill ranks that outstay the grace.

        Returns:
            ``TORCHRUN_STOPPED`` or ``TORCHRUN_HUNG`` if it is time to end the run; else ``None``.
        """
        now = time.monotonic()
        if now - self._looked > PAUSED_S:
            self._stopped_since = self._alone_since = None
            self._stopped_ranks.clear()
            self._say(f"ppwork: the launcher did not run for {now - self._looked:.1f} s")
        self._looked = now
        self._had_ranks |= _has_children(self._agent)
        if self._closing_since is None and self._says_closing():
            self._closing_since = now
        if self._closing_since is not None and now - self._closing_since > GRACE_S:
            why = f"was there {GRACE_S:g} s after the first death"
            self._kill(dict.fromkeys(ranks_of(self._agent), why))
        elif now - self._ranks_looked > RANKS_S:
            self._ranks_looked = now
            ranks = self._see_family()
            self._kill_stopped_ranks(now, ranks)
            self._see_ranks(now, ranks)
        if state_of(self._agent) != psutil.STATUS_STOPPED:
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        if self._stopped_since is not None and now - self._stopped_since > self._freeze_s:
            return TORCHRUN_STOPPED
        if self._alone_since is not None and now - self._alone_since > self._leave_s:
            return TORCHRUN_HUNG
        return None

    def _see_family(self) -> list[psutil.Process]:
        """Record the processes below torchrun, by one look at all processes, and return the ranks."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = self._agent.children(recursive=True)
        self.family.update(family)
        return [process for process in family if _parent(process) == self._agent.pid]

    def _see_ranks(self, now: float, ranks: Sequence[psutil.Process]) -> None:
        alive = any(map(is_alive, ranks))
        self._had_ranks |= alive
        if alive or not self._had_ranks:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    def _says_closing(self) -> bool:
        try:
            with self._log.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:  # the run folder was moved or removed: the ranks' own errors will end the run
            return False
        # The last line may be incomplete: it is read again.
        self._read += text.rfind(b"\n") + 1
        return _CLOSING.search(text) is not None

    def _kill_stopped_ranks(self, now: float, ranks: Sequence[psutil.Process]) -> None:
        stopped = [rank for rank in ranks if state_of(rank) == psutil.STATUS_STOPPED]
        self._stopped_ranks = {rank: self._stopped_ranks.get(rank, now) for rank in stopped}
        stood_s = {rank: now - since for rank, since in self._stopped_ranks.items()}
        bound_s = self._freeze_s + GRACE_S
        self._kill({rank: f"did not go on for {s:.1f} s" for rank, s in stood_s.items() if s > bound_s})

    def _kill(self, why: Mapping[psutil.Process, str]) -> None:
        """Kill ranks, all at once: a rank that hangs in a driver takes time, and must delay no other."""
        states = {rank: state for rank in why if (state := state_of(rank)) not in ("", psutil.STATUS_ZOMBIE)}
        numbers = {rank: environment_of(rank).get("RANK", "?") for rank in states}
        if states:
            end([process for rank in states for process in with_children(rank)], 0.0)
            self._looked = time.monotonic()  # the kill may have taken seconds, and was no pause
        for rank, state in states.items():
            outcome = "could not be killed" if is_alive(rank) else "was killed"
            self._say(f"ppwork: rank {numbers[rank]} (pid {rank.pid}, {state}) {why[rank]} and {outcome}")


def ranks_of(agent: psutil.Process) -> list[psutil.Process]:
    """Return torchrun's ranks: its children; none if it is gone."""
    try:
        ranks: list[psutil.Process] = agent.children()
    except psutil.Error:
        return []
    return ranks


def _has_children(agent: psutil.Process) -> bool:
    """Say whether torchrun has ranks, even ended ones, which it collects ten times a second.

    A rank may live for less than ``RANKS_S``; this call is quick enough for every look.
    """
    try:
        return bool(Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_bytes())
    except OSError:  # torchrun is gone; or this is not Linux, or its kernel lacks the file
        return False


def ask_for_stacks(agent: psutil.Process) -> None:
    """Let hanging ranks write the stacks of all their threads into their logs.

    Only ranks that handle SIGUSR1 (``faulthandler.register``) get it: it would end the others.

    Blocks:
        If any rank was asked: until the signal has reached all of them, at most ``REACHED_S``, and
        ``STACKS_S`` more.
    """
    ranks = [rank for rank in ranks_of(agent) if _has(rank, "SigCgt", signal.SIGUSR1)]
    for rank in ranks:
        with contextlib.suppress(psutil.Error):
            rank.send_signal(signal.SIGUSR1)
    deadline_s = time.monotonic() + REACHED_S
    while any(_has(rank, "ShdPnd", signal.SIGUSR1) for rank in ranks) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)  # a rank that waits for a core has not reached its handler
    psutil.wait_procs(ranks, timeout=STACKS_S)


def _has(process: psutil.Process, mask: str, number: int) -> bool:
    """Say whether a signal is in one of a process's masks: ``SigCgt`` is caught, ``ShdPnd`` not delivered."""
    try:
        bits = re.search(rf"^{mask}:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    except OSError:  # the process is gone, or this is not Linux
        return False
    return bits is not None and bool(int(bits[1], 16) >> (number - 1) & 1)


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return -1
