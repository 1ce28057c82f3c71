"""Calls of torch.distributed by any program: a file for each rank, written as the calls happen.

A call is a line when it begins and a line when it ends, so a rank that hangs or was killed leaves the call
that it was in. The first ``HEAD_BYTES`` of a rank stay; later lines go round in two files of ``TAIL_BYTES``,
so the end is kept as well, and a program that runs for days leaves a few megabytes.

Ranks that a program starts by itself (``torch.multiprocessing.spawn``, ``os.fork``) have a folder inside.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from ppwork.errors import UnreadableError
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.hosts import HostsRecord

HEAD_BYTES, TAIL_BYTES = 6 << 20, 2 << 20
"""Some 15,000 calls at the beginning, and at least 5,000 at the end."""
LANE = "lane-"
"""Prefix of the names of the threads that carry a plane's messages (``runtime.lanes``)."""
SEND, RECV = "send", "recv"
AWAIT = "await"
"""Kind of the part of a call of a plane: its rank waits for another, and itself sends and takes nothing."""
ANY = -1
"""The peer of a receive from any rank, and the root of a collective that has none."""
MOST_RANKS = 1 << 16
"""Most ranks that a record may claim: a folder may come from anybody."""
WAIT, WAIT_TENSOR = "wait", "wait_tensor"
WAITS = (WAIT, WAIT_TENSOR)
"""Waits for a handle, and for the result of a functional call."""
ABORT = "abort"
"""A group's own method: calls on the group by other threads of this process then raise."""
LOCAL = "only "
"""Prefix of the ``op`` of a ``new_group`` that only its members make."""
INSIDE = "inside-rank"
"""Prefix of a folder with the calls of ranks that a rank has started by itself."""


class CallPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a call, or this rank's share of a collective.

    Attributes:
        kind: ``SEND``, ``RECV``, ``AWAIT``, or empty for a collective.
        peer: The other rank, or the root; global.
        dtype: Such as ``float32``; empty if it is not a tensor, such as an object.
        shape: Shape of the tensor, or of the first tensor of a list.
        tensors: Number of tensors.
        size: Bytes of all tensors.
        at: Address of the tensor in its process; 0 for a list, an object, or a tensor without own memory.
    """

    kind: str = ""
    peer: int = ANY
    tag: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    tensors: int = 1
    size: int = 0
    at: int = 0

    @property
    def text(self) -> str:
        """The tensor in words, such as ``float32[4, 2]`` or ``2 x int64[8]``."""
        if not self.dtype:
            return ""
        times = f"{self.tensors} x " if self.tensors > 1 else ""
        return f"{times}{self.dtype}[{', '.join(map(str, self.shape))}]"


class Head(msgspec.Struct, frozen=True, tag="head", tag_field="type"):
    """The first line of a rank; ``clock`` is the name of the clock of its times."""

    rank: int
    world_size: int
    clock: str
    at_ns: int


class Group(msgspec.Struct, frozen=True, tag="group", tag_field="type"):
    """A process group, written when this rank first uses it; ``ranks`` are global."""

    name: str
    ranks: tuple[int, ...]
    backend: str = ""


class Begun(msgspec.Struct, frozen=True, omit_defaults=True, tag="begun", tag_field="type"):
    """A rank enters a call.

    Attributes:
        number: Counts this rank's calls.
        name: Name of the function, or one of ``WAITS``.
        site: File and line of the program: of the innermost frame that is not torch's.
        op: The reduction, or another word of the call.
        makes: For ``new_group``: the group's name on this rank, a count; empty if the name is a hash.
        of: For a wait: the number of the call that returned the handle.
        part: For a wait: which of that call's handles; ``ANY``: it has one for all.
        via: File and line of the program that called the function with that site; empty if there is none.
    """

    number: int
    at_ns: int
    name: str
    site: str
    group: str = ""
    parts: tuple[CallPart, ...] = ()
    thread: str = ""
    op: str = ""
    makes: str = ""
    of: int = -1
    part: int = ANY
    via: str = ""


class CallEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended", tag_field="type"):
    """A rank leaves a call: with an exception, or with a handle (the buffer stays lent until its wait)."""

    number: int
    at_ns: int
    error: str = ""
    lent: bool = False
    peer: int = ANY


class Dropped(msgspec.Struct, frozen=True, omit_defaults=True, tag="dropped", tag_field="type"):
    """The program dropped a handle that it had not waited for.

    Attributes:
        number: Number of the call that returned the handle.
        at_ns: When Python freed the handle.
        part: Which of that call's handles; ``ANY``: its only one.
    """

    number: int
    at_ns: int
    part: int = ANY


class OnDevice(msgspec.Struct, frozen=True, tag="device", tag_field="type"):
    """The work that a call launched on a CUDA stream has passed; written some time after that.

    Attributes:
        number: Number of the call.
        stream: Stream that was current at the call; ``cuda`` is the default stream.
        start_ns: When the stream reached the call, on the rank's clock.
        end_ns: When the stream had the result; for a call with a handle, the stream current at the wait.
    """

    number: int
    stream: str
    start_ns: int
    end_ns: int


class ProgramEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="left", tag_field="type"):
    """The program of a rank ended; missing after a kill.

    Attributes:
        error: The error that ended it, if it did not end well.
        site: File and line of the program that raised the error.
        replaced: Functions of torch.distributed that the program has replaced.
    """

    at_ns: int
    error: str = ""
    site: str = ""
    replaced: tuple[str, ...] = ()


Line = Head | Group | Begun | CallEnded | Dropped | OnDevice | ProgramEnded
_decoder = msgspec.json.Decoder(Line)


def calls_file(folder: Path, rank: int, tail: int | None = None) -> Path:
    """Return the path of a rank's calls, or of one of the two files in which its end goes round."""
    return Path(folder) / f"calls-rank{rank}{'' if tail is None else f'.tail{tail}'}.jsonl"


class CallWriter:
    """Writes the lines of one rank, each whole and at once; safe from any thread.

    Nothing here raises after the first line: a program must not end because it is recorded.

    Args:
        folder: Made if it does not exist.
        rank: This process's rank.
        head_bytes: Size of the beginning that is kept.
        tail_bytes: Size of each of the two files of the end.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(
        self, folder: Path, rank: int, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for tail in (0, 1):
            calls_file(folder, rank, tail).unlink(missing_ok=True)
        self._folder, self._rank, self._tail_bytes = folder, rank, tail_bytes
        self._head = self._file = _opened(calls_file(folder, rank))
        self._room, self._tail = head_bytes, 0
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._closed = False

    def write(self, line: Begun | CallEnded | Dropped | OnDevice | ProgramEnded) -> None:
        """Write a line to the beginning, or to the end if the beginning is full."""
        data = self._encode(line) + b"\n"
        with self._lock:
            if self._closed:
                return
            try:
                self._room -= len(data)
                if self._room < 0:
                    self._turn()
                    self._room -= len(data)
                _write_whole(self._file, data)
            except OSError as error:
                self._give_up(error)

    def introduce(self, line: Head | Group) -> None:
        """Write a line to which other lines refer; it always goes to the beginning."""
        with self._lock:
            if self._closed:
                return
            try:
                _write_whole(self._head, self._encode(line) + b"\n")
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._close_files()
        with contextlib.suppress(Exception):  # the program may have closed it, or put anything in its place
            sys.stderr.write(f"ppwork: this rank's calls are no longer recorded: {error.strerror}\n")

    def close_in_child(self) -> None:
        """Close the files in a forked child: a thread that the child lacks may have held the lock."""
        self._close_files()

    def _close_files(self) -> None:
        if not self._closed:
            self._closed = True
            for file in {self._head, self._file}:
                with contextlib.suppress(OSError):  # the program may have closed it
                    os.close(file)

    def _turn(self) -> None:
        if self._file != self._head:
            os.close(self._file)
            self._file = self._head  # closed at the end if the next file does not open
        self._file = _opened(calls_file(self._folder, self._rank, self._tail))
        self._room, self._tail = self._tail_bytes, 1 - self._tail


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def _write_whole(file: int, data: bytes) -> None:
    # A disk that fills up takes the part that fits, and only the next write says why. That part then ends the
    # file, as after a kill: a further line would be joined to it, and neither would read.
    while data:
        data = data[os.write(file, data) :]


@dataclass(frozen=True)
class Call:
    """One call of one rank; times are on that rank's clock.

    Attributes:
        end_ns: ``None`` if the rank did not leave the call.
        lent: Whether the call returned a handle.
        device: When the call ran on a CUDA stream, if that is known.
        dropped: Handles that the program dropped before a wait.
    """

    rank: int
    begun: Begun
    end_ns: int | None = None
    error: str = ""
    lent: bool = False
    device: OnDevice | None = None
    dropped: tuple[Dropped, ...] = ()

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.begun.name

    @property
    def start_ns(self) -> int:
        """When the rank entered the call."""
        return self.begun.at_ns

    @property
    def awaits(self) -> bool:
        """Whether it is a call of a plane of ours."""
        return any(part.kind == AWAIT for part in self.begun.parts)

    @property
    def on_lane(self) -> bool:
        """Whether a lane of a plane made it: lanes receive ahead, so such a call holds nobody up."""
        return self.begun.thread.startswith(LANE)

    @property
    def line(self) -> str:
        """File name without its folder, and line."""
        return self.begun.site.rpartition("/")[2]

    @property
    def place(self) -> str:
        """The line, and who called there, if this rank came to that line from several."""
        via = self.begun.via.rpartition("/")[2]
        return f"{self.line}, called at {via}" if via else self.line

    @property
    def text(self) -> str:
        """The call and its message, such as ``send float32[4] to 1``."""
        parts = self.begun.parts
        if self.awaits and len(parts) > 1:
            about = f"with {', '.join(str(part.peer) for part in parts)}"
        elif len(parts) == 1:
            about = said_of(parts[0]).removeprefix(parts[0].kind).strip()
        else:
            about = ", ".join(map(said_of, parts[:3])) + (f", and {len(parts) - 3} more" if parts[3:] else "")
        return " ".join(filter(None, (self.name, self.begun.op, about)))


def said_of(part: CallPart) -> str:
    """Return a part in words.

    >>> said_of(CallPart("send", 1, 3, "float32", (4,)))
    'send float32[4] to 1 tag 3'
    """
    way = {SEND: "to", RECV: "from", AWAIT: "from", "": "root"}.get(part.kind, "with")
    whom = f"{way} {part.peer}" if part.peer != ANY else "from any" * (part.kind == RECV)
    return " ".join(filter(None, (part.kind, part.text, whom, f"tag {part.tag}" if part.tag else "")))


@dataclass(frozen=True)
class RankCalls:
    """The record of one rank.

    Attributes:
        groups: The groups that it used, by name.
        calls: Its calls, in the order in which it entered them.
        left: How its program ended; ``None`` if it was killed, or still runs.
        lost: Number of calls in the middle that were not kept.
    """

    head: Head
    groups: Mapping[str, Group]
    calls: tuple[Call, ...]
    left: ProgramEnded | None
    lost: int = 0

    @cached_property
    def by_number(self) -> dict[int, Call]:
        """The calls by their numbers."""
        return {call.begun.number: call for call in self.calls}

    def origin(self, call: Call) -> Call:
        """Return the call itself; for a wait the call that returned the handle, if that is known."""
        return self.by_number.get(call.begun.of, call)

    def text(self, call: Call) -> str:
        """Return ``call.text``; for a wait also what it waits for."""
        origin = self.origin(call)
        if origin is call:
            return call.text
        if call.begun.part not in range(len(origin.begun.parts)):
            return f"{WAIT} for {origin.text}"
        return f"{WAIT} for {said_of(origin.begun.parts[call.begun.part])}"

    @cached_property
    def programs(self) -> tuple[Call, ...]:
        """The calls without those that lanes of a plane made."""
        return tuple(call for call in self.calls if not call.on_lane)

    @property
    def stands_in(self) -> Call | None:
        """The call that this rank's program has not left; the plane's rather than one inside it."""
        open_calls = [call for call in reversed(self.programs) if call.end_ns is None]
        of_plane = (call for call in open_calls if call.awaits and len(call.begun.parts) == 1)
        return next(of_plane, next(iter(open_calls), None))


def awaited_by(rank: int) -> int:
    """Return the rank of a pipeline for which a rank waits in a call of its plane.

    >>> [awaited_by(rank) for rank in range(4)]
    [1, 0, 1, 1]
    """
    return STAGE0_RANK if rank == LEADER_RANK else LEADER_RANK


def read_calls(folder: Path | str) -> dict[int, RankCalls]:
    """Read the calls of all ranks that left any, by rank; even while they still run.

    If torchrun's ranks made no call, and one of them started ranks of its own, read those instead: the last
    ones, if that happened several times (``worlds_inside``).

    Raises:
        UnreadableError: A file does not read.
    """
    ranks = calls_of(folder)
    inside = [] if any(of_rank.calls for of_rank in ranks.values()) else worlds_inside(folder)
    return calls_of(inside[-1]) if inside else ranks


def worlds_inside(folder: Path | str) -> list[Path]:
    """Return the folders with the calls of ranks that ranks have started by themselves, in order."""
    return sorted(path for path in Path(folder).glob(f"{INSIDE}*") if any(path.glob("calls-rank*.jsonl")))


def calls_of(folder: Path | str) -> dict[int, RankCalls]:
    """Read the calls of the ranks whose files are in this folder itself, by rank.

    Raises:
        UnreadableError: A file does not read.
    """
    ranks: dict[int, RankCalls] = {}
    hosts = HostsRecord.load(Path(folder))
    ahead_ns = {} if hosts is None else hosts.ahead_of_rank0()
    for path in Path(folder).glob("calls-rank*[0-9].jsonl"):
        if ".tail" in path.name:
            continue
        try:
            of_rank = _read(path, ahead_ns)
        except (OSError, ValueError, RecursionError) as error:
            raise UnreadableError(
                f"The calls in {path} do not read: {error}.", check_first="was the file changed by hand?"
            ) from error
        if of_rank is not None:
            ranks[of_rank.head.rank] = of_rank
    return dict(sorted(ranks.items()))


def parse_lines(data: bytes) -> list[Line]:
    """Return the lines of a file of calls, or of a part of one.

    Raises:
        msgspec.MsgspecError: A line does not read.
    """
    return [_decoder.decode(line) for line in data.splitlines()]


def _lines(path: Path) -> list[Line]:
    data = path.read_bytes() if path.exists() else b""
    # A last line without a newline was cut by a kill.
    return parse_lines(data[: data.rfind(b"\n") + 1])


def _earlier(line: Line, by_ns: int) -> Line:
    """Return a line with its times moved from a clock that is ahead to the other clock."""
    moments = {name: getattr(line, name) for name in line.__struct_fields__ if name.endswith("_ns")}
    return msgspec.structs.replace(line, **{name: moment - by_ns for name, moment in moments.items()})


def _read(path: Path, ahead_ns: Mapping[int, int]) -> RankCalls | None:
    lines = _lines(path)
    if not lines or not isinstance(lines[0], Head):
        return None
    head = lines[0]
    if not 0 <= head.rank < head.world_size <= MOST_RANKS:
        raise ValueError(f"rank {head.rank} of {head.world_size}")
    tails = [_lines(calls_file(path.parent, head.rank, tail)) for tail in (0, 1)]
    lines += [line for tail in sorted(tails, key=_first) for line in tail]
    if by_ns := ahead_ns.get(head.rank, 0):
        lines = [_earlier(line, by_ns) for line in lines]
        head = msgspec.structs.replace(head, at_ns=head.at_ns - by_ns)
    calls: dict[int, Call] = {}
    groups: dict[str, Group] = {}
    left: ProgramEnded | None = None
    for line in lines:
        match line:
            case Begun():
                calls[line.number] = Call(head.rank, line)
            case CallEnded(number, at_ns, error, lent, peer) if number in calls:
                call = calls[number]
                begun = call.begun
                if peer != ANY and begun.parts:  # a receive from any rank learns its sender at its end
                    begun = msgspec.structs.replace(
                        begun, parts=(msgspec.structs.replace(begun.parts[0], peer=peer),)
                    )
                calls[number] = replace(call, begun=begun, end_ns=at_ns, error=error, lent=lent)
            case Dropped(number) if number in calls:
                calls[number] = replace(calls[number], dropped=(*calls[number].dropped, line))
            case OnDevice(number) if number in calls:
                calls[number] = replace(calls[number], device=line)
            case Group():
                groups[line.name] = line
            case ProgramEnded():
                left = line
    lost = max(calls, default=-1) + 1 - len(calls)
    if lost:
        # The end of a call may be among the lines that were not kept. It has ended if its thread went on.
        last = {call.begun.thread: number for number, call in calls.items()}
        calls = {n: c for n, c in calls.items() if c.end_ns is not None or last[c.begun.thread] == n}
    return RankCalls(head, groups, tuple(_told_apart([*calls.values()])), left, lost)


def _told_apart(calls: Sequence[Call]) -> Iterator[Call]:
    """Yield calls without who called their line, if it was the same for all calls of that line."""
    callers: dict[str, set[str]] = {}
    for call in calls:
        callers.setdefault(call.begun.site, set()).add(call.begun.via)
    for call in calls:
        if call.begun.via and len(callers[call.begun.site]) == 1:
            call = replace(call, begun=msgspec.structs.replace(call.begun, via=""))  # noqa: PLW2901
        yield call


def _first(lines: list[Line]) -> int:
    return next((line.number for line in lines if isinstance(line, Begun | CallEnded)), 0)
