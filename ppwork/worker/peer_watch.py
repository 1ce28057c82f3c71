"""Finds peers of this host that no longer run, by their pulses. It has no thread: the watchdog calls it.

It counts beats and never compares their times, because each rank has its own clock. It does not judge peers
on other hosts: the file system may delay a beat in a shared folder by any time, and the transport's bound
reports a host that is gone.
"""

from __future__ import annotations

from collections.abc import Callable

import psutil

from ppwork.errors import PeerFrozenError
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.topology import Topology
from ppwork.records.pulse import PulseState, PulseView

QUIET_S = 1.0
"""A peer whose last beat is younger is not examined further; it beats four times a second."""
MARGIN_S = 3.0
"""Seconds that a beat may be missing after ``stall_s``: a rank that can has reported itself before that."""


class PeerWatch:
    """Observes the other ranks' pulses; ``read`` returns a rank's pulse, or ``None``."""

    def __init__(
        self, rank: int, topology: Topology, bounds: Bounds, read: Callable[[int], PulseView | None]
    ) -> None:
        self._rank, self._topology, self._bounds, self._read = rank, topology, bounds, read
        self._seen: dict[int, tuple[int, float]] = {}

    def start_anew(self) -> None:
        """Forget all observations: this process itself did not run, so no peer's silence can be judged."""
        self._seen.clear()

    def look(self, now_s: float) -> PeerFrozenError | None:
        """Look at all peers once, at ``now_s`` of ``time.monotonic``.

        Returns:
            Error for the first peer that exists but does not run; ``None`` if there is none. A peer that has
            left or whose process is gone is not judged: its closed connections tell.
        """
        peers = (peer for peer in range(self._topology.world_size) if peer != self._rank)
        return next(filter(None, (self._judge(peer, now_s) for peer in peers)), None)

    def end_stopped(self, peer: int, stood_s: float) -> str:
        """Kill a peer that is stopped, by the pid in its pulse; SIGTERM does not reach it.

        Args:
            peer: The peer.
            stood_s: Seconds for which it may stand, for the line.

        Returns:
            The launcher's line about such a rank, for the log; empty if the peer is not stopped any more.
        """
        view = self._read(peer)
        process = None if view is None else view.process()
        if view is None or process is None or not view.is_stopped:
            return ""
        try:
            rank = process.environ().get("RANK", "?")  # of the job; a pipeline may be a part of it
            process.kill()
        except psutil.Error:
            return ""
        return f"ppwork: rank {rank} (pid {view.pid}, stopped) did not go on for {stood_s:g} s and was killed"

    def _judge(self, peer: int, now_s: float) -> PeerFrozenError | None:
        view = self._read(peer)
        if view is None or view.state is PulseState.LEFT or not view.here:
            self._seen.pop(peer, None)
            return None
        beat, since_s = self._seen.get(peer, (-1, now_s))
        if beat != view.beat:
            self._seen[peer] = view.beat, now_s
            return None
        quiet_s = now_s - since_s
        if quiet_s < QUIET_S:
            return None
        stopped = view.is_stopped
        if stopped and quiet_s >= self._bounds.freeze_s:
            how = f"was stopped (SIGSTOP) and did not go on for {quiet_s:.1f} s"
            check = f"who stopped process {view.pid}: Ctrl-Z, a debugger, a batch system? "
            check += "`freeze_s` is how long it may stand"
        elif stopped is False and quiet_s >= self._patience(view):
            how = f"was there, and its interpreter did not run for {quiet_s:.1f} s"
            check = "a call of its stage that keeps Python's lock (GIL); its log may have the stacks"
        else:
            return None
        return PeerFrozenError(
            f"Rank {peer} ({self._topology.role(peer)}), process {view.pid}, {how}{_last(view, now_s)}.",
            where={"rank": self._rank, "peer": peer, **view.ids},
            check_first=check,
        )

    def _patience(self, view: PulseView) -> float:
        # Loading a library holds the GIL, for as long as a slow disk takes.
        starting = view.state is PulseState.STARTING
        return (self._bounds.start_s if starting else self._bounds.stall_s) + MARGIN_S


def _last(view: PulseView, now_s: float) -> str:
    if not view.doing:
        # It may have begun a step since; the sentences on who waits for whom know this from its calls.
        return ""
    # The step may be newer than the beat: a rank writes a step into its pulse when the step begins.
    return f"; it was last in {view.doing}, entered {now_s - view.since_ns / 1e9:.1f} s ago"
