"""Spans and instants: what each rank did and when, as JSON lines in a file, on the rank's own clock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ppwork.errors import RecordError

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""A time or a duration; more than 146 years cannot be a time of a run."""


class Span(msgspec.Struct, frozen=True, omit_defaults=True, tag="span", tag_field="type"):
    """Something that took time on one rank; times are ``time.monotonic_ns`` of that rank's host."""

    name: str
    lane: str
    """The rank's row to which it belongs: ``main``, or the helper thread's name."""
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    call_id: int = -1
    chunk_index: int = -1
    cache_epoch: int = -1

    @property
    def ms(self) -> float:
        """Duration in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


class Instant(msgspec.Struct, frozen=True, omit_defaults=True, tag="instant", tag_field="type"):
    """A moment on one rank, such as a commitment point or an emission with its figures."""

    name: str
    lane: str
    at_ns: Nanoseconds
    call_id: int = -1
    chunk_index: int = -1
    cache_epoch: int = -1
    figures: dict[str, float] = {}
    text: str = ""

    @property
    def end_ns(self) -> int:
        """The moment itself; entries of both kinds are sorted by it."""
        return self.at_ns


Entry = Span | Instant
STREAM = "cuda:"
"""Prefix of a CUDA stream's lane; the lanes of the transport are ``cuda:<group>``."""
DEVICE_LANE = f"{STREAM}compute"
"""The lane of the stages' work on a CUDA device."""
RESULTS_DIFFER = "results.differ"
"""On a mesh rank: mesh ranks returned different tensors for a chunk, which the leader's result would hide."""
HANDLE_LET_GO = "handle.let_go"
"""On a mesh rank: nobody waited for a collective that was begun at the line in the text."""
INJECTED = "fault.injected"
"""The instant that an injector writes at the moment of the injection."""
START, IMPORT, JOIN, LOAD = "start Python", "import torch", "join", "load"
"""Spans of a rank's start, in order; the last one is its stage's."""
CHECK, TORCHRUN, READ = "check", "torchrun", "read"
"""Spans of the launcher: checking plan and stages, torchrun with all ranks, reading what they left."""
STAGE1_MS, SOURCE_MS = "stage1_ms", "source_ms"
FIGURES = (STAGE1_MS, SOURCE_MS)
"""ppwork's own figures of an emission: the generator's time, and how long the source had no chunk. All other
figures are the stage's metrics."""
WhichChunk = dict[str, int]
"""Any of ``call_id``, ``chunk_index``, ``cache_epoch``."""
_decoder = msgspec.json.Decoder(Entry)


def span_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's span file."""
    return Path(run_dir) / f"spans-rank{rank}.jsonl"


class Recorder:
    """Writes one rank's entries as they end, one JSON line each; safe from any thread.

    A context manager, closed by the code that opened it. The file is unbuffered, so a killed rank loses only
    its last line and the entries held back for it (``more``). Some are held back because at each write Python
    lets other threads run, and rank 0 has just woken two.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0) if path is not None else None
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._held: list[Entry] = []
        self._last: dict[str, Instant] = {}
        self.entries = 0
        """Number of entries, written or not: a watcher sees by it that this rank advances."""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; later entries are dropped."""
        with self._lock:
            with suppress(RecordError):  # no caller is left to hear of it
                self._flush()
            if self._file is not None:
                self._file.close()
                self._file = None

    @contextmanager
    def span(self, name: str, *, lane: str = "main", ids: WhichChunk | None = None) -> Iterator[None]:
        """Record the time that the body takes, even if it raises."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.add_span(name, start_ns, lane=lane, ids=ids)

    def add_span(
        self,
        name: str,
        start_ns: int,
        *,
        end_ns: int = 0,
        lane: str = "main",
        ids: WhichChunk | None = None,
        more: bool = False,
    ) -> None:
        """Record a span that ends now, or ended at ``end_ns``; ``more`` as for ``write``."""
        self.write(Span(name, lane, start_ns, end_ns or time.monotonic_ns(), **(ids or {})), more=more)

    def instant(
        self,
        name: str,
        *,
        lane: str = "main",
        figures: Mapping[str, float] | None = None,
        ids: WhichChunk | None = None,
        at_ns: int = 0,
        text: str = "",
    ) -> None:
        """Record this moment, or ``at_ns``; each lane's last instant is kept for failure records.

        Figures that are not finite are left out, because JSON cannot express them (the PSNR of equal pictures
        is infinite).
        """
        finite = {key: float(value) for key, value in (figures or {}).items() if math.isfinite(value)}
        entry = Instant(name, lane, at_ns or time.monotonic_ns(), figures=finite, text=text, **(ids or {}))
        self._last[lane] = entry
        self.write(entry)

    def last_instants(self) -> dict[str, dict[str, Any]]:
        """Return the newest instant of each lane as JSON types."""
        return {lane: msgspec.to_builtins(entry) for lane, entry in dict(self._last).items()}

    def write(self, entry: Entry, *, more: bool = False) -> None:
        """Record an entry that is over; its times are this host's ``time.monotonic_ns``.

        Args:
            entry: The entry.
            more: This thread writes another entry at once; both are then written together.

        Raises:
            RecordError: The line could not be written whole: the disk is full, or a limit on file sizes was
                reached. Raised once, on the thread that wrote; later entries are dropped, so that the torn
                line stays the last line, and readers cut it off.
        """
        with self._lock:
            self.entries += 1
            if self._file is not None:
                self._held.append(entry)
            if not more:
                self._flush()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if self._file is None:
            return
        lines = self._encoder.encode_lines(held)
        try:
            # A disk that fills up takes the part that fits; only the next write says why.
            while lines:
                lines = lines[self._file.write(lines) :]
        except OSError as error:
            self._file.close()
            self._file = None
            raise RecordError(
                f"The span file {self._path} could not be written: {error.strerror}.",
                check_first=f"free space on {self._path and self._path.parent}, quotas and `ulimit -f`",
            ) from error


def parse_entries(data: bytes) -> tuple[list[Entry], int]:
    """Parse the whole lines of ``data``; return the entries and the bytes consumed.

    A last line without a newline was cut by a kill; it is left for the next call.

    Raises:
        ValueError: A whole line is not an entry (the file was not written by a ``Recorder``).
    """
    end = data.rfind(b"\n") + 1
    try:
        return [_decoder.decode(line) for line in data[:end].splitlines()], end
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a span file: {error}") from error


def read_entries(run_dir: Path, rank: int) -> list[Entry]:
    """Read one rank's entries; a rank that never wrote has none.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file was not written by a ``Recorder``.
    """
    path = span_file(run_dir, rank)
    # A pipe of that name, in a folder from elsewhere, would block the read.
    return parse_entries(path.read_bytes())[0] if path.is_file() else []
