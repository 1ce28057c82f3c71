"""What each rank did and when: spans and instants, as JSON lines, and the measures made of them.

Each rank writes its own file with its own monotonic clock; no measure here needs two clocks to agree.
Formulas live once, in the functions at the end (DESIGN section 6).
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class Span(msgspec.Struct, frozen=True, omit_defaults=True, tag="span", tag_field="type"):
    """Something that took time on one rank; times are ``time.monotonic_ns`` of that rank's host."""

    name: str
    lane: str
    """Which of the rank's rows it belongs to: ``main``, or the helper thread's name."""
    start_ns: int
    end_ns: int
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
    at_ns: int
    call_id: int = -1
    chunk_index: int = -1
    cache_epoch: int = -1
    figures: dict[str, float] = {}


Entry = Span | Instant
DEVICE_LANE = "cuda:compute"
"""The lane of what stages do on a CUDA device; those of its transport streams are ``cuda:<group>``."""
WhichChunk = dict[str, int]
"""Any of ``call_id``, ``chunk_index``, ``cache_epoch``."""
_decoder = msgspec.json.Decoder(Entry)


def span_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's span file."""
    return Path(run_dir) / f"spans-rank{rank}.jsonl"


class Recorder:
    """Writes one rank's entries as they end, one JSON line each; safe from any thread.

    Whoever opens closes: use as a context manager. Line buffered, so that a killed rank leaves
    all but its last line.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = path.open("wb", buffering=0) if path is not None else None
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._last: dict[str, Instant] = {}
        self.entries = 0
        """How many were handed in, written or not: whoever watches sees by it that this rank gets on."""

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; later entries are dropped."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    @contextmanager
    def span(self, name: str, *, lane: str = "main", ids: WhichChunk | None = None) -> Iterator[None]:
        """Record the time that the body takes, also when it raises."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.add_span(name, start_ns, lane=lane, ids=ids)

    def add_span(
        self, name: str, start_ns: int, *, end_ns: int = 0, lane: str = "main", ids: WhichChunk | None = None
    ) -> None:
        """Record a span that ends now, or ended at ``end_ns``, when its ids are known at the end only."""
        self.write(Span(name, lane, start_ns, end_ns or time.monotonic_ns(), **(ids or {})))

    def instant(
        self,
        name: str,
        *,
        lane: str = "main",
        figures: Mapping[str, float] | None = None,
        ids: WhichChunk | None = None,
    ) -> None:
        """Record a moment; the last one of each lane is kept for failure records.

        Figures that are not finite are left out: JSON has no word for them (a PSNR of equal pictures is
        infinite).
        """
        finite = {key: float(value) for key, value in (figures or {}).items() if math.isfinite(value)}
        entry = Instant(name, lane, time.monotonic_ns(), figures=finite, **(ids or {}))
        self._last[lane] = entry
        self.write(entry)

    def last_instants(self) -> dict[str, dict[str, Any]]:
        """Return the newest instant of each lane as JSON types."""
        return {lane: msgspec.to_builtins(entry) for lane, entry in dict(self._last).items()}

    def write(self, entry: Entry) -> None:
        """Record what is over; its times are this host's ``time.monotonic_ns``.

        Raises:
            RecordError: The line could not be written whole: the disk is full, or a limit on file sizes was
                reached. Raised once, on the thread that wrote; later entries are dropped, so that the torn
                line stays the last one and readers cut it off.
        """
        line = self._encoder.encode(entry) + b"\n"
        with self._lock:
            self.entries += 1
            if self._file is None:
                return
            try:
                # A disk that fills up takes the part that fits; only the write after it says why.
                while line:
                    line = line[self._file.write(line) :]
            except OSError as error:
                self._file.close()
                self._file = None
                raise RecordError(
                    f"The span file {self._path} could not be written: {error.strerror}.",
                    check_first=f"free space on {self._path and self._path.parent}, quotas and `ulimit -f`",
                ) from error


def parse_entries(data: bytes) -> tuple[list[Entry], int]:
    """Parse the whole lines of ``data``; return the entries and the bytes consumed.

    A last line without its end was cut by a kill and is left for the next call.

    Raises:
        ValueError: A whole line is not an entry (the file was not written by a ``Recorder``).
    """
    end = data.rfind(b"\n") + 1
    try:
        return [_decoder.decode(line) for line in data[:end].splitlines()], end
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a span file: {error}") from error


def read_entries(run_dir: Path, rank: int) -> list[Entry]:
    """Read one rank's entries; a rank that never wrote has none."""
    path = span_file(run_dir, rank)
    return parse_entries(path.read_bytes())[0] if path.exists() else []


def chunk_durations(entries: Iterable[Entry], *names: str) -> dict[int, float]:
    """Sum, per chunk, the milliseconds of the spans with these names."""
    sums: dict[int, float] = {}
    for span in _steps(entries, *names):
        sums[span.chunk_index] = sums.get(span.chunk_index, 0.0) + span.ms
    return sums


def _steps(entries: Iterable[Entry], *names: str) -> list[Span]:
    """Return the spans of these steps; where one ran on a device, its span there and not its launch."""
    spans = [e for e in entries if isinstance(e, Span) and e.name in names and e.chunk_index >= 0]
    on_device = {span.name for span in spans if span.lane == DEVICE_LANE}
    return [span for span in spans if span.lane == DEVICE_LANE or span.name not in on_device]


def stage1_ms_of(stage0_entries: Iterable[Entry]) -> dict[int, float]:
    """Return the generator time per chunk that the results brought back to rank 0, in milliseconds."""
    return {
        entry.chunk_index: entry.figures["stage1_ms"]
        for entry in stage0_entries
        if isinstance(entry, Instant) and entry.name == "emit" and "stage1_ms" in entry.figures
    }


def dropped_chunks(stage0_entries: Iterable[Entry]) -> list[int]:
    """Return the chunks whose results a flush made stale: received at rank 0 and dropped (rule R3)."""
    return sorted(e.chunk_index for e in stage0_entries if isinstance(e, Instant) and e.name == "drop")


def mesh_idle_ms(leader_entries: Iterable[Entry]) -> tuple[float, ...]:
    """Return start of each ``generate`` of the leader minus end of the one before, in milliseconds."""
    spans = sorted(_steps(leader_entries, "generate"), key=lambda span: span.start_ns)
    return tuple((b.start_ns - a.end_ns) / 1e6 for a, b in pairwise(spans))


class Measures(msgspec.Struct, frozen=True):
    """The measures of one run, medians in milliseconds after warm-up; see DESIGN's words.

    ``stage0 = A + C`` (encode, preflight; decode and emit), ``stage1 = B`` (generator),
    ``period = (emit_k - emit_(k-depth)) / depth``, ``hidden = max(0, stage0 + stage1 - period)``,
    ``overlap_score = median(hidden / min(stage0, stage1))``,
    ``efficiency = max(median stage0, median stage1) / median period``.
    """

    chunks: int
    period_ms: float | None = None
    stage0_ms: float | None = None
    stage1_ms: float | None = None
    overlap_score: float | None = None
    efficiency: float | None = None


STAGE0_SPANS = ("encode", "preflight", "decode")


def measure(
    stage0_entries: Sequence[Entry], stage1_ms: Mapping[int, float], *, depth: int = 1, warm_up: int = 1
) -> Measures:
    """Compute the measures from rank 0's entries and the stage-1 times that the results brought.

    A period is a mean over one round of ``depth`` chunks, because at depth 2 and more the single ones of a
    steady pipeline need not be equal: two chunks may come close together and the next two again (20, 25,
    20, 25 ms), and only their sum repeats. A median of single ones would be either of the two and not 22.5.

    Args:
        stage0_entries: Entries of rank 0, any order.
        stage1_ms: Generator time per chunk index, in milliseconds.
        depth: The run's ``in_flight_depth``; fewer when the run is shorter than a round.
        warm_up: Chunks left out at the start, as long as a round remains after them.
    """
    emits = {
        entry.chunk_index: entry.at_ns
        for entry in stage0_entries
        if isinstance(entry, Instant) and entry.name == "emit"
    }
    stage0_ms = chunk_durations(stage0_entries, *STAGE0_SPANS)
    known = sorted(k for k in emits if k in stage0_ms and k in stage1_ms)
    lag = max(1, min(depth, len(known) - 1))
    # Whole rounds only: where a flush dropped a chunk, the time between its neighbours is no period.
    rounds = [k for k in known if all(k - back in emits for back in range(1, lag + 1))]
    steady = [k for k in rounds if k - lag >= known[0] + warm_up - 1] or rounds
    if not steady:
        return Measures(chunks=len(emits))
    periods = {k: (emits[k] - emits[k - lag]) / lag / 1e6 for k in steady}
    period = statistics.median(periods.values())
    stage0 = statistics.median(stage0_ms[k] for k in steady)
    stage1 = statistics.median(stage1_ms[k] for k in steady)
    shares = [
        max(0.0, stage0_ms[k] + stage1_ms[k] - periods[k]) / max(min(stage0_ms[k], stage1_ms[k]), 1e-9)
        for k in steady
    ]
    return Measures(
        chunks=len(emits),
        period_ms=round(period, 3),
        stage0_ms=round(stage0, 3),
        stage1_ms=round(stage1, 3),
        overlap_score=round(statistics.median(shares), 4),
        efficiency=round(max(stage0, stage1) / max(period, 1e-9), 4),
    )
