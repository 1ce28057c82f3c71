"""The pipes to all nodes of a run: their messages, the state of each host, and which hosts are lost.

One table (``host``) says what a node may send in which state; a host whose node sends anything else is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from ppwork.errors import UnavailableError
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.channel import INBOX, Channel, Inbox
from ppwork.launcher.nodes.host import TRANSITIONS, Host, HostState
from ppwork.launcher.nodes.meet import BEAT_S
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.nodes.verdict import Edge
from ppwork.launcher.nodes.wire import ALL, NodeWireError
from ppwork.launcher.processes import POLL_S

SAME_AS_HERE = "is its ppwork the same as here?"


class Pipes:
    """The hosts of a run, by the messages of their nodes; ``HostSession`` builds on it.

    Args:
        places: Where the hosts are.
        world_size: Number of ranks of the run.

    Attributes:
        hosts: The hosts, in the order of their ranks.

    Raises:
        PlanError: The ranks do not fit the hosts.
        UnavailableError: A command cannot be started.
    """

    def __init__(self, places: Places, world_size: int) -> None:
        self._places = places
        counts = places.placed(world_size)
        self._inbox: Inbox = queue.Queue(INBOX)
        self._channels: list[Channel] = []
        self._over = threading.Event()
        self._ended_s: float | None = None
        self._edges: list[Edge] = []
        self._unwritable = False
        self.hosts: list[Host] = []
        try:
            for command, nodes in places.commands():
                try:
                    self._channels.append(channel := Channel(command, nodes, self._inbox))
                except OSError as error:
                    raise UnavailableError(
                        f"{command[0]} cannot be started: {error.strerror}.", check_first="is it installed?"
                    ) from error
                for node in nodes:
                    first = sum(counts[:node])
                    ranks = range(first, first + counts[node])
                    self.hosts.append(Host(node, places.hosts[node], ranks, channel))
        except BaseException:
            self._close()
            raise
        self._beats = threading.Thread(target=self._beat, name="beats", daemon=True)
        self._beats.start()

    @property
    def pid(self) -> int:
        """Pid of a process on this machine; the run ends when it does."""
        return self._channels[0].pid

    def end(self, why: str) -> None:
        """Tell all hosts that the run ends, once."""
        if self._ended_s is None:
            self._ended_s = time.monotonic()
            for channel in self._channels:
                channel.say(wire.EndRun(why), ALL, 0.5)

    def _wait(
        self,
        state: HostState,
        within_s: float,
        what: str,
        hosts: Sequence[Host] | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until hosts are in a state.

        Raises:
            UnavailableError: A host is not in time, or is lost.
        """
        waited = self.hosts if hosts is None else hosts
        until_s = time.monotonic() + within_s
        while not all(host.state is state for host in waited):
            lost = next((host for host in self.hosts if host.state is HostState.LOST), None)
            if lost is None and time.monotonic() > until_s:
                lost = next(host for host in waited if host.state is not state)
                self._lose(lost, f"did not {what} within {within_s:g} s", "")
            if lost is not None:
                words = lost.channel.words()
                raise UnavailableError(
                    f"Host {lost.name} {lost.lost}{f': {words}' if words else ''}. Nothing was started.",
                    check_first=lost.check_first or self._places.no_answer,
                )
            self._drain()
            look()

    def _drain(self) -> None:
        """Take the messages that have come; wait a moment for the first."""
        wait_s = POLL_S
        for _ in range(INBOX):
            try:
                channel, node, word = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            hosts = [host for host in self.hosts if host.channel is channel and node in (ALL, host.number)]
            for host in hosts:
                if isinstance(word, str):
                    words = channel.words()
                    check = f"what it said last: {words}" if words else f"who ended it on {host.name}?"
                    is_called = host.state is HostState.CALLED  # then ``_wait`` reports the words
                    how = "started no node" if is_called else "lost its node"
                    self._lose(host, f"{how} {word}".rstrip(), "" if is_called else check)
                else:
                    self._take(host, word)

    def _take(self, host: Host, word: wire.OfNode) -> None:
        if (state := TRANSITIONS.get((host.state, type(word)))) is None:
            self._lose(host, f"said {word.kind!r} while it was {host.state}", SAME_AS_HERE)
            return
        host.state = state
        match word:
            case wire.Hello():
                host.hello = word
            case wire.Looked():
                host.looked = word
            case wire.Listening():
                host.ways, host.public = tuple(wire.Way(at, at) for at in word.at), word.refused
            case wire.Reached():
                host.ways = word.ways
            case wire.Piece():
                self._write(host, word)
            case wire.Stays():
                host.stayed[word.path] = word.size
            case wire.Quiet():
                peer = next((each for each in self.hosts if each.number == word.peer), None)
                if peer is not None and self._ended_s is None:
                    self._edges.append((host, peer, word))
            case wire.NodeDone():
                # A host that was told to end has no exit code of its own.
                host.code = word.code if self._ended_s is None else None
                host.free_mb = word.free_mb
                if not self._unwritable:  # else its folder may have the only copy of its files
                    self._tell(host, wire.Taken())
            case wire.Refused() if self._ended_s is None:
                host.lost, host.check_first = f"could not go on: {word.what}", word.check_first

    def _write(self, host: Host, piece: wire.Piece) -> None:
        if host.home is None:
            self._lose(host, "sent a file, and shares the run's folder", SAME_AS_HERE)
            return
        if self._unwritable:
            return  # later pieces do not continue the one that could not be written
        try:
            host.home.write(piece)
        except NodeWireError as error:
            self._lose(host, f"said what no node says: {error.what}", SAME_AS_HERE)
        except OSError:
            self._unwritable = True

    def _tell(self, host: Host, message: wire.ToNode) -> None:
        if not host.channel.say(message, host.number):
            self._lose(host, f"took no {message.kind!r}", f"what ended the way to {host.name}?")

    def _lose(self, host: Host, why: str, check_first: str) -> None:
        if not host.is_over:
            host.state = HostState.LOST
            if self._ended_s is None:  # else the node left because it was told to
                host.lost, host.check_first = why, check_first

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            for channel in self._channels:
                channel.say(wire.Beat(time.monotonic_ns()), ALL, 0.0)

    def _close(self) -> None:
        self._over.set()
        for channel in self._channels:
            lost = all(host.state is HostState.LOST for host in self.hosts if host.channel is channel)
            channel.close(0.0) if lost else channel.close()
