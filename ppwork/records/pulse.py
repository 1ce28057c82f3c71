"""The pulse of a rank: a small file in the run folder that says, a few times a second, that it still runs.

The rank's watchdog writes it; its peers, the launcher and the diagnosis read it. It has a fixed layout, is
allocated whole when it is made, and is mapped into memory. So a beat costs no system call and works when the
disk is full. A checksum tells a beat that was read half from a whole one.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil

from ppwork.records.files import read_within
from ppwork.records.identity import Identity

_DOING_BYTES = 96
_LAYOUT = struct.Struct(f"<4sIQ64sQB{_DOING_BYTES}sqqqqiq")
_MAGIC = b"pls5"
_CHECKSUM = struct.Struct("<I")
_BEAT = _LAYOUT.size + _CHECKSUM.size
_STEP = struct.Struct("<q16sqqqq")
"""After the beat, the step that the main thread has begun: since when, name, ids, since when again."""
_SIZE = _BEAT + _STEP.size
_NONE = -1
"""An id that is not known, and the exit code of a rank that has not left."""
_OWN_CALL = re.compile(r"\w+ \(.+:\d+\)")
PULSE = re.compile(r"pulse-rank\d+")
"""Name of the file of a rank."""
LONG_PAUSE_S = 1.0
"""Least seconds of a pause of the source that are shown: shorter ones are a live source's rhythm."""
_IDS = ("call_id", "chunk_index", "cache_epoch")
_NO_IDS: dict[str, int] = {}


class PulseState(StrEnum):
    """State of a rank's main thread."""

    STARTING = "starting"
    """Between its start and its first chunk: torch is imported, groups are made, the stage is built."""
    IDLE = "idle"
    """It waits for a peer, or is in the runtime's own code."""
    BUSY = "busy"
    """It is in code of the stage."""
    SLOW = "slow"
    """It has been in one step of the stage for more than half the bound."""
    STUCK = "stuck"
    """It is past the bound: the watchdog is ending the process."""
    LEFT = "left"
    """It has left, or is about to and will do nothing else."""


_STATES = list(PulseState)


@dataclass(frozen=True)
class PulseView:
    """One rank's pulse as it was read.

    Attributes:
        started: As ``Identity.started``.
        space: As ``Identity.space``.
        beat: Counter that grows about four times a second while the rank's interpreter runs.
        doing: Step that the main thread is in, such as ``generate``; empty if it is in none of the stage's.
            It may be newer than the beat: the rank writes a step down when it begins it. In a user's own
            loop, outside of chunks, the collective in which its code waits: ``barrier (my_loop.py:41)``.
        ids: Ids of the chunk that the rank is at: ``call_id``, ``chunk_index``, ``cache_epoch``; may be
            empty.
        since_ns: ``time.monotonic_ns`` of its host when that step began.
        exit_code: The exit code that it chose when it left, or ``None``.
        paused_s: On rank 0: for how long its source had said ``NOT_YET`` at that beat, in seconds; else 0.
    """

    rank: int
    pid: int
    started: int
    space: str
    beat: int
    state: PulseState
    doing: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)
    since_ns: int = 0
    exit_code: int | None = None
    paused_s: float = 0.0

    @property
    def own_call(self) -> str:
        """The collective in which a loop's own code waits outside of chunks, with its line; or empty."""
        return self.doing if _OWN_CALL.fullmatch(self.doing) else ""

    @property
    def here(self) -> bool:
        """Whether this process can examine the rank's process; else the pulse is all that is known."""
        return self._identity.here

    def process(self) -> psutil.Process | None:
        """Return the rank's process if it exists; see ``Identity.process``."""
        return self._identity.process()

    @property
    def is_stopped(self) -> bool | None:
        """Whether the rank's process is stopped (SIGSTOP); ``None`` if it is gone, or cannot be examined."""
        process = self.process()
        try:
            return None if process is None else bool(process.status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return None

    @property
    def _identity(self) -> Identity:
        return Identity(self.pid, self.started, self.space)


class Pulse:
    """This rank's own pulse; its methods may be called from any thread.

    Args:
        run_dir: The run's folder.
        rank: This rank.

    Raises:
        OSError: The file cannot be made; later beats cannot fail (this rank).
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        with pulse_file(run_dir, rank).open("w+b", buffering=0) as file:
            # Zeros, not a hole: a full disk shows here, and not as a SIGBUS at some later beat.
            file.write(bytes(_SIZE))
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._lock = threading.Lock()
        self._identity = Identity.of(os.getpid())
        self._space = self._identity.space.encode()[:64]
        self._beat, self._has_left = 0, False
        self._doing: tuple[str, Mapping[str, int], int] = "", {}, 0
        self._paused_s = 0.0
        self.beat(PulseState.STARTING)

    def beat(
        self,
        state: PulseState,
        doing: str = "",
        ids: Mapping[str, int] | None = None,
        since_ns: int = 0,
        paused_s: float = 0.0,
    ) -> None:
        """Record that this rank runs and what its main thread does; no effect after ``leave``."""
        with self._lock:
            if not self._has_left:
                self._doing, self._paused_s = (doing, ids or {}, since_ns), paused_s
                self._write(state, _NONE)

    def begin(self, doing: str, ids: Mapping[str, int] | None, since_ns: int) -> None:
        """Record at once which step the main thread begins, or none: the rank may be killed in the step.

        It takes a microsecond, because it is in the hot path: one thread, no lock, no checksum.
        """
        of = (ids or _NO_IDS).get
        call, chunk, epoch = of("call_id", _NONE), of("chunk_index", _NONE), of("cache_epoch", _NONE)
        text = doing.encode(errors="replace")
        _STEP.pack_into(self._map, _BEAT, since_ns, text, call, chunk, epoch, since_ns)

    def leave(self, exit_code: int) -> None:
        """Record that this rank leaves on purpose, and with which code; only the first call counts.

        Its last step stays readable.
        """
        with self._lock:
            if not self._has_left:
                self._has_left = True
                self._write(PulseState.LEFT, exit_code)

    def _write(self, state: PulseState, exit_code: int) -> None:
        self._beat += 1
        doing, ids, since_ns = self._doing
        body = _LAYOUT.pack(
            _MAGIC,
            self._identity.pid,
            self._identity.started,
            self._space,
            self._beat,
            _STATES.index(state),
            doing.encode(errors="replace")[:_DOING_BYTES],
            *(ids.get(name, _NONE) for name in _IDS),
            since_ns,
            exit_code,
            round(self._paused_s * 1e3),
        )
        self._map[:_BEAT] = body + _CHECKSUM.pack(zlib.crc32(body))


def nothing_to_encode(paused_s: float) -> str:
    """Say for how long the source has had no chunk.

    >>> nothing_to_encode(83.2)
    'nothing to encode for 83 s'
    """
    return f"nothing to encode for {paused_s:.0f} s"


def pulse_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's pulse."""
    return Path(run_dir) / f"pulse-rank{rank}"


def read_pulse(run_dir: Path, rank: int) -> PulseView | None:
    """Read a rank's pulse; ``None`` while there is no complete one."""
    for _ in range(3):  # a beat that is being written is complete a microsecond later
        try:
            data = read_within(pulse_file(run_dir, rank), 2 * _SIZE)
        except OSError:
            return None
        body = data[: _LAYOUT.size]
        whole = len(data) == _SIZE and _CHECKSUM.unpack_from(data, _LAYOUT.size) == (zlib.crc32(body),)
        if whole and body.startswith(_MAGIC):
            beaten = _LAYOUT.unpack(body)
            _, pid, started, space, beat, state, doing, *ids, since_ns, exit_code, paused_ms = beaten
            if state >= len(_STATES):
                return None  # no rank of this version wrote it
            begun_ns, step, *of_step, again_ns = _STEP.unpack_from(data, _BEAT)
            if begun_ns == again_ns and begun_ns > since_ns:
                doing, ids, since_ns = step, of_step, begun_ns
            return PulseView(
                rank=rank,
                pid=pid,
                started=started,
                space=_text(space),
                beat=beat,
                state=_STATES[state],
                doing=_text(doing),
                ids={name: value for name, value in zip(_IDS, ids, strict=True) if value != _NONE},
                since_ns=since_ns,
                exit_code=None if exit_code == _NONE else exit_code,
                paused_s=paused_ms / 1e3,
            )
    return None


def gone_ranks(run_dir: Path) -> list[int]:
    """Return the ranks whose processes ran here, are gone, and did not say that they leave."""
    names = (path.name.removeprefix("pulse-rank") for path in run_dir.glob("pulse-rank*"))
    views = filter(None, (read_pulse(run_dir, int(name)) for name in names if name.isdecimal()))
    there = (view for view in views if view.here and view.state is not PulseState.LEFT)
    return sorted(view.rank for view in there if view.process() is None)


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")
