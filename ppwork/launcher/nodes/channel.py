"""A pipe to the nodes of one or more hosts: the process that was started for it, and a thread that reads."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from ppwork.errors import PPWorkError
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.wire import ALL, NodeWireError, Reader, lines_of
from ppwork.launcher.processes import KILL_S, end, family_of
from ppwork.launcher.torchrun import POLITE_S
from ppwork.records.clocks import Offset, Round

TAKE_S = 2.0
"""Seconds that a host gets to take a message; a beat does not wait."""
INBOX = 256
"""Most messages that wait to be read; then the pipe blocks."""
WORDS = 4096
"""Bytes of the end of the process's standard error that are read."""

Inbox = queue.Queue[tuple["Channel", int, wire.OfNode | str]]
"""Received: the pipe, the node, and its message. If a pipe ends: for ``ALL``, a text that says how."""


def put(pipe: int, lines: bytes, first_s: float, next_s: float) -> bool:
    """Write lines; return whether all were taken, the first within ``first_s``, each other within ``next_s``.

    Raises:
        OSError: Nothing reads the pipe any more.
    """
    for at in range(0, len(lines), wire.LINE):
        # A pipe that takes a line does not block.
        if not select.select([], [pipe], [], next_s if at else first_s)[1]:
            return False
        os.write(pipe, lines[at : at + wire.LINE])
    return True


class Channel:
    """One process that leads to nodes, such as an ``ssh``.

    Attributes:
        nodes: Numbers of the nodes to which the process leads.
        heard_s: When each node was heard last, on ``time.monotonic``.
        offsets: How far the clock of each node's host is ahead of ours, by the quickest answer.
    """

    def __init__(self, command: Sequence[str], nodes: tuple[int, ...], inbox: Inbox) -> None:
        self.nodes, self._inbox = nodes, inbox
        self.heard_s = dict.fromkeys(nodes, time.monotonic())
        self.offsets: dict[int, Offset] = {}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the channel
        self._reader, self._writing, self._over = Reader(), threading.Lock(), threading.Event()
        self._answered = False
        try:
            # Ctrl-C at the terminal is for us: we tell the hosts, and they send their last words.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                process_group=0,
            )
        except OSError:
            self._errors.close()
            raise
        assert self._process.stdin is not None  # noqa: S101  pipes
        assert self._process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._thread = threading.Thread(target=self._read, name="host", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Pid of its process."""
        return self._process.pid

    def words(self) -> str:
        """Return the last words of the process, or of its host's shell."""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), WORDS, max(0, size - WORDS)).decode(errors="replace")
        lines = [line.strip() for line in [*self._reader.noise, *text.splitlines()] if line.strip()]
        return " | ".join(lines[-3:])

    def say(self, message: wire.ToNode, node: int = ALL, within_s: float = TAKE_S) -> bool:
        """Send a message to a node, or to all of this pipe; return whether it was taken."""
        data = lines_of(message, node)
        if not self._writing.acquire(timeout=within_s):
            return False
        try:
            # A message must not stay incomplete: only its first line may be given up soon.
            return put(self._stdin.fileno(), data, within_s, TAKE_S)
        except (OSError, ValueError):  # the process has ended; or the pipe was closed
            return False
        finally:
            self._writing.release()

    def close(self, polite_s: float = 2 * POLITE_S) -> None:
        """End the process; the nodes are told nothing more.

        Args:
            polite_s: Seconds that it gets to leave by itself; 0 for a lost host, where it would not leave.

        Blocks:
            At most ``polite_s`` and a few seconds.
        """
        self._over.set()
        family = family_of(self.pid)
        with contextlib.suppress(OSError):
            self._stdin.close()
        if not self._answered:
            # In a queue it reads no input: srun withdraws its job if asked to leave, but not if killed.
            self._process.terminate()
            polite_s = max(polite_s, POLITE_S)
        end(family, polite_s)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self._process.wait(KILL_S)
        self._thread.join(POLITE_S)
        self._stdout.close()
        self._errors.close()

    def _read(self) -> None:
        why = ""
        with contextlib.suppress(OSError, ValueError):
            try:
                while data := os.read(self._stdout.fileno(), 1 << 16):
                    for node, message in self._reader.feed(data):
                        self._got(node, message)
            except PPWorkError as error:
                why = f"said what no node says: {error.what} "
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(POLITE_S)
            why += f"(exit code {code})"
        self._put(ALL, why)

    def _got(self, node: int, message: wire.Said) -> None:
        if node not in self.nodes or not isinstance(message, wire.OfNode):
            raise NodeWireError(f"{message.kind!r} of node {node} came by another's pipe.")
        self._answered = True
        now_ns = time.monotonic_ns()
        if isinstance(message, wire.Answer) and 0 < message.sent_ns <= now_ns:
            offset = Round(message.sent_ns, message.now_ns, now_ns).offset
            known = self.offsets.get(node, offset)
            self.offsets[node] = offset if offset.error_ns < known.error_ns else known
        else:
            self._put(node, message)
        self.heard_s[node] = time.monotonic()

    def _put(self, node: int, word: wire.OfNode | str) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._inbox.put((self, node, word), timeout=0.2)
                return
