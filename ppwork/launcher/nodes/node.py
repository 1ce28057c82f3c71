"""The process of one host: ``ppwork node``; a command such as ``ssh`` starts it there, with a pipe to us.

Its standard input brings the program to run, beats, and the end; end-of-file also means the end. Its standard
output carries its messages to the launcher. It starts torchrun as a launcher of one machine does
(``launcher.torchrun``), and leaves nothing behind when it ends. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import queue
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from ppwork.errors import PPWorkError
from ppwork.launcher import share
from ppwork.launcher.checks import count_gpus
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.channel import put
from ppwork.launcher.nodes.gather import Names, Sender, torchrun_log
from ppwork.launcher.nodes.meet import Edges, Listener, own_addresses, reach
from ppwork.launcher.nodes.wire import ALL, NodeWireError, Reader, lines_of
from ppwork.launcher.torchrun import Rendezvous, torchrun
from ppwork.plan import Plan
from ppwork.process import ORPHANED, STOPPED
from ppwork.records.clocks import Clock
from ppwork.records.files import read_within
from ppwork.records.folder import free_mb
from ppwork.records.hosts import host_logs
from ppwork.version import __version__

MARKER = ".ppwork-hosts"
"""Name of the file by which a host finds out that it shares the run's folder."""
UNTOLD_FREEZE_S = 30.0
"""Seconds that the launcher may be silent until it has sent its own bound."""
SEND_S = 0.1
"""Seconds between two looks for files to send."""
TAKEN_S = 2.0
"""Longest wait for the message that all files have come; without it the folder stays."""
LEAVE_S = 10.0
"""Seconds in which the launcher takes the last word."""

FOLDER, LOGS = "{folder}", "{logs}"
"""Placeholders in a program's words: the run's folder on a host, and the folder of its ranks' output."""

T = TypeVar("T", bound=wire.NodeMessage)


class LauncherGone(PPWorkError):
    """The launcher is gone from the other end of the pipe, or silent."""


class LauncherEnded(Exception):
    """The launcher has said that this is the end."""


class Pipe:
    """The launcher, seen from a node; a thread reads its messages, and answers beats.

    Attributes:
        freeze_s: Seconds of silence after which the launcher counts as gone.
        taken: Set when the launcher has all that this node sent.
    """

    def __init__(self, node: int, incoming: int, outgoing: int) -> None:
        self._node, self._incoming, self._outgoing = node, incoming, outgoing
        self.freeze_s = UNTOLD_FREEZE_S
        self._heard_s = time.monotonic()
        self._closed = ""
        self._ended = False
        self.taken = threading.Event()
        self._came: queue.SimpleQueue[wire.ToNode] = queue.SimpleQueue()
        self._saying = threading.Lock()
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def say(self, message: wire.OfNode) -> None:
        """Send a message.

        Raises:
            LauncherGone: The launcher does not take it.
        """
        data = lines_of(message, self._node)
        with self._saying:
            try:
                taken = put(self._outgoing, data, self.freeze_s, self.freeze_s)
            except OSError as error:
                raise LauncherGone("The launcher closed its pipe.") from error
            if not taken:  # the launcher may be stopped
                raise LauncherGone(f"The launcher took nothing for {self.freeze_s:g} s.")

    def wait_for_end(self, within_s: float) -> None:
        """Wait until the launcher ends the run, or has ended it.

        Raises:
            LauncherGone: The launcher left without saying so.
        """
        until_s = time.monotonic() + within_s
        with contextlib.suppress(LauncherEnded):
            while time.monotonic() < until_s:
                self.check()
                time.sleep(0.02)

    def take(self, *kinds: type[T]) -> T:
        """Wait for a message of one of these kinds, and return it.

        Raises:
            LauncherEnded: The launcher ended the run.
            LauncherGone: As ``check``.
            NodeWireError: The launcher sent another message.
        """
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                message = self._came.get(timeout=0.05)
                if not isinstance(message, kinds):
                    raise NodeWireError(f"The launcher said {message.kind!r} out of turn.")
                return message

    def check(self) -> None:
        """Check that the launcher is there and the run goes on.

        Raises:
            LauncherEnded: The launcher ended the run.
            LauncherGone: The launcher was not heard for ``freeze_s``, or the pipe is at its end.
        """
        if self._ended:
            raise LauncherEnded
        if self._closed:
            raise LauncherGone(self._closed)
        if (quiet_s := time.monotonic() - self._heard_s) > self.freeze_s:
            raise LauncherGone(f"The launcher was not heard for {quiet_s:.1f} s.")

    def _read(self) -> None:
        reader = Reader()
        try:
            while data := os.read(self._incoming, 1 << 16):
                for node, message in reader.feed(data):
                    if node in (ALL, self._node):
                        self._heard_s = time.monotonic()
                        self._got(message)
            self._closed = "The launcher closed its pipe."
        except (OSError, PPWorkError) as error:
            self._closed = str(error)

    def _got(self, message: wire.Said) -> None:
        if isinstance(message, wire.Beat):
            self.say(wire.Answer(message.sent_ns, time.monotonic_ns()))
        elif isinstance(message, wire.Taken):
            self.taken.set()
        elif isinstance(message, wire.EndRun):
            self._ended = True
        elif isinstance(message, wire.ToNode):
            self._came.put(message)
        else:
            raise NodeWireError(f"The launcher said {message.kind!r}, which only nodes say.")


def main(which: str) -> int:
    """Be the node with this number, or with the number that ``srun`` gives; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    node = int(os.environ["SLURM_PROCID"]) if which == wire.SLURM else int(which)
    outgoing = os.dup(1)
    os.dup2(2, 1)  # only messages go up the pipe
    pipe = Pipe(node, 0, outgoing)
    try:
        _play(pipe, node)
    except LauncherEnded:
        return 0
    except LauncherGone as gone:
        sys.stderr.write(f"ppwork node: {gone.what}\n")
        return ORPHANED
    except (PPWorkError, OSError) as error:
        what, check_first = (error.what, error.check_first) if isinstance(error, PPWorkError) else (error, "")
        with contextlib.suppress(LauncherGone):
            pipe.say(wire.Refused(str(what)[:4000], str(check_first)[:4000]))
        return 1
    return 0


def _play(pipe: Pipe, node: int) -> None:
    """Play the part of a node, from its first message to its last."""
    pipe.say(_hello())
    look = pipe.take(wire.Look)
    pipe.freeze_s = look.freeze_s
    with _folder(look) as (folder, found):
        pipe.say(found)
        start, meeting, edges = _meet(pipe, node, look.secret)
        names = Names(node, range(start.first, start.first + start.ranks))
        sender = None if found.shared else Sender(folder, names)
        with contextlib.closing(edges):  # open to the last: peers take a closed edge for a dead node
            code = _run(pipe, start, meeting, edges, folder, sender)
            for piece in sender.last() if sender is not None else ():
                pipe.say(piece)
            pipe.say(wire.NodeDone(code, free_mb(folder)))
            pipe.wait_for_end(LEAVE_S)
        # The launcher may have given this host up: then only this folder has its ranks' files.
        if sender is not None and not sender.stays and pipe.taken.wait(TAKEN_S):
            shutil.rmtree(folder, ignore_errors=True)


def _run(
    pipe: Pipe, start: wire.StartRun, meeting: Rendezvous, edges: Edges, folder: Path, sender: Sender | None
) -> int:
    """Run this host's ranks until they end or the launcher ends them; return torchrun's exit code."""
    if sender is not None:
        (folder / Plan.FILE_NAME).write_text(start.plan)
    places = {FOLDER: str(folder), LOGS: str(host_logs(folder, meeting.host))}
    log = folder / torchrun_log(meeting.host)
    sent_s = 0.0

    def look() -> None:
        nonlocal sent_s
        pipe.check()
        for peer, quiet_s, closed in edges.silent():
            pipe.say(wire.Quiet(peer, quiet_s, closed))
        if sender is not None and time.monotonic() - sent_s > SEND_S:
            sent_s = time.monotonic()
            for piece in sender.look():
                pipe.say(piece)

    try:
        return torchrun(
            [*(places.get(word, word) for word in start.program), *start.arguments],
            ranks=start.ranks,
            log=log,
            limit_s=start.limit_s,
            threads=start.threads,
            freeze_s=pipe.freeze_s,
            watch=look,
            warm=start.warm,
            meeting=meeting,
        )
    except LauncherEnded:
        return STOPPED
    except LauncherGone as gone:
        with contextlib.suppress(OSError), log.open("a") as file:
            file.write(f"ppwork: {gone.what} This host's ranks were ended.\n")
        raise


def _hello() -> wire.Hello:
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = ""
    return wire.Hello(
        wire=wire.VERSION,
        ppwork=__version__,
        torch=torch,
        python=".".join(platform.python_version_tuple()[:2]),
        host=platform.node(),
        clock=Clock.of_this_host().name,
        cores=min(share.cores(), wire.HOSTS),
        gpus=count_gpus() if torch else 0,
    )


@contextlib.contextmanager
def _folder(look: wire.Look) -> Iterator[tuple[Path, wire.Looked]]:
    """Choose where the ranks write: the run's own folder if this host sees it, else a new one here."""
    cwd, theirs = Path(look.cwd), Path(look.folder)
    if cwd.is_dir():
        os.chdir(cwd)
    shared = False
    if look.marker:
        with contextlib.suppress(OSError):
            shared = read_within(theirs / MARKER, 256).decode(errors="replace") == look.marker
    name = re.sub(r"[^A-Za-z0-9._-]", "-", look.run)[:40]
    folder = theirs if shared else Path(tempfile.mkdtemp(prefix=f"ppwork-{name}-"))
    missing = tuple(path for path in look.needs if not Path(path).is_file())
    try:
        yield folder, wire.Looked(folder=str(folder), shared=shared, free_mb=free_mb(folder), missing=missing)
    finally:
        if not shared:
            with contextlib.suppress(OSError):  # succeeds only if nothing was started there
                folder.rmdir()


def _meet(pipe: Pipe, node: int, secret: bytes) -> tuple[wire.StartRun, Rendezvous, Edges]:
    """Find the ranks' network, as the launcher asks; return the start message, rendezvous and edges."""
    asked = pipe.take(wire.Listen, wire.Reach)
    listener, reached = None, []
    if isinstance(asked, wire.Listen):
        mine, refused = own_addresses(loopback=asked.loopback, others=asked.others, public=asked.public)
        listener = Listener(mine, secret)
        pipe.say(wire.Listening(listener.at, tuple(refused[: wire.ADDRESSES])))
    elif isinstance(asked, wire.Reach):
        reached = reach(asked.at, secret, node)
        pipe.say(wire.Reached(tuple(way for way, _ in reached)))
    start = pipe.take(wire.StartRun)
    listening, own_address = None, start.address
    peers: dict[int, socket.socket] = {}
    if listener is not None:
        listening, peers = listener.choose(start.address, start.port)
    for way, connection in reached:
        if (way.to.address, way.to.port) == (start.address, start.port):
            peers[0], own_address = connection, way.own.address
        else:
            connection.close()
    meeting = Rendezvous(
        hosts=start.hosts,
        host=node,
        address=start.address,
        port=start.port,
        own=own_address,
        interface=start.interface,
        run_id=start.run_id,
        start_s=start.start_s,
        secret=secret,
        listening=listening,
    )
    return start, meeting, Edges(peers, pipe.freeze_s)
