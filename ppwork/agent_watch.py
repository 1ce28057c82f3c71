"""What the launcher sees of torchrun and its ranks while they run, and what it ends in torchrun's place.

torchrun sends SIGTERM to the others when a rank has died badly, and then waits 30 s for one that does not
follow: a stopped one, or one whose program handles the signal. It says so in its log, and only then: a rank
that left well before the others is no death. It does not notice a stopped rank at all: where no peer is there
to tell, the run would wait for ever. All is ended by recorded process, never by name. No torch here.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GRACE_S = 1.0
"""So long after the first death the other ranks may write their records."""
PAUSED_S = 1.0
"""We look every 50 ms; after a gap like this we were stopped ourselves (Ctrl-Z) and begin to observe anew."""
RANKS_S = 0.25
"""Between two looks at the ranks: it takes a look at every process of the machine."""
STACKS_S = 0.5
"""How long ranks get to write their stacks: the handler is C code and takes milliseconds."""
_CLOSING = re.compile(rb"Sending process \d+ closing signal")
_KILLED = re.compile(r"^ppwork: rank (\d+) .* was killed$", re.MULTILINE)
_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)", re.MULTILINE)


def is_torchrun(command: Sequence[str]) -> bool:
    """Say whether a process with this command line is torchrun: a module by ``-m``, or our own few lines."""
    return any("torch.distributed.run" in part for part in command)


class AgentWatch:
    """Observes one torchrun.

    Args:
        agent: torchrun.
        log: What it prints goes here.
        freeze_s: So long, in seconds, may torchrun be stopped (SIGSTOP) while we run; a rank ``GRACE_S``
            longer, because its peers tell more of it.
        say: Gets a line for each rank that was killed.
    """

    def __init__(
        self, agent: psutil.Process, log: Path, *, freeze_s: float, say: Callable[[str], None]
    ) -> None:
        self._agent, self._log, self._freeze_s, self._say = agent, log, freeze_s, say
        self._read = 0
        self._looked = time.monotonic()
        self._closing_since: float | None = None
        self._stopped_since: float | None = None
        self._ranks_looked = 0.0
        self._stopped_ranks: dict[psutil.Process, float] = {}

    def look(self) -> bool:
        """Look once and kill ranks that outstayed the grace; return whether torchrun was stopped too long."""
        now = time.monotonic()
        if now - self._looked > PAUSED_S:
            self._stopped_since = None
            self._stopped_ranks.clear()
        self._looked = now
        if self._closing_since is None and self._says_closing():
            self._closing_since = now
        if self._closing_since is not None and now - self._closing_since > GRACE_S:
            self._kill_ranks()
        elif now - self._ranks_looked > RANKS_S:
            self._ranks_looked = now
            self._kill_stopped_ranks(now)
        if not _is_stopped(self._agent):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        return self._stopped_since is not None and now - self._stopped_since > self._freeze_s

    def _says_closing(self) -> bool:
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        # The last line may still be being written: it is read again.
        self._read += text.rfind(b"\n") + 1
        return _CLOSING.search(text) is not None

    def _kill_ranks(self) -> None:
        for rank in ranks_of(self._agent):
            self._kill(rank, f"was there {GRACE_S:g} s after the first death")

    def _kill_stopped_ranks(self, now: float) -> None:
        stopped = [rank for rank in ranks_of(self._agent) if _is_stopped(rank)]
        self._stopped_ranks = {rank: self._stopped_ranks.get(rank, now) for rank in stopped}
        for rank, since in self._stopped_ranks.items():
            if now - since > self._freeze_s + GRACE_S:
                self._kill(rank, f"did not go on for {now - since:.1f} s")

    def _kill(self, rank: psutil.Process, why: str) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            state = rank.status()
            if state == psutil.STATUS_ZOMBIE:
                return
            number = rank.environ().get("RANK", "?")
            family = [rank, *rank.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._say(f"ppwork: rank {number} (pid {rank.pid}, {state}) {why} and was killed")


def ranks_of(agent: psutil.Process) -> list[psutil.Process]:
    """Return torchrun's ranks: its children; none when it is gone."""
    try:
        found: list[psutil.Process] = agent.children()
    except psutil.NoSuchProcess:
        return []
    return found


def killed_by_us(torchrun_log: str) -> set[int]:
    """Return the ranks that the launcher killed: their SIGKILL in torchrun's report is nobody's fault."""
    return {int(rank) for rank in _KILLED.findall(torchrun_log)}


def ask_for_stacks(agent: psutil.Process) -> None:
    """Let ranks that hang write the stacks of all their threads into their logs.

    Only those that handle SIGUSR1 (``faulthandler.register``) get it: it would end the others.

    Blocks:
        Half a second if any rank was asked.
    """
    asked = [rank for rank in ranks_of(agent) if _catches(rank, signal.SIGUSR1)]
    for rank in asked:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.send_signal(signal.SIGUSR1)
    psutil.wait_procs(asked, timeout=STACKS_S)


def _catches(process: psutil.Process, number: int) -> bool:
    try:
        caught = _CAUGHT.search(Path(f"/proc/{process.pid}/status").read_text())
    except OSError:  # it is gone, or this is no Linux
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
