"""Calls that ranks could have left, made up: the times are milliseconds, and nothing runs."""

from __future__ import annotations

from ppwork.records.calls import (
    RECV,
    SEND,
    WAIT,
    Begun,
    CallEnded,
    CallPart,
    CallWriter,
    Dropped,
    Group,
    Head,
    OnDevice,
    ProgramEnded,
)

MS = 1_000_000
FLOATS = {"dtype": "float32", "shape": (4,), "size": 16}


class MadeCalls:
    """Writes the files of a program of ``size`` ranks into a folder; groups have all of them."""

    def __init__(
        self, folder, size: int, *, backend: str = "gloo", clocks: tuple[str, ...] = (), **bounds: int
    ):
        self.folder, self._numbers = folder, [0] * size
        self._writers = [CallWriter(folder, rank, **bounds) for rank in range(size)]
        for rank, writer in enumerate(self._writers):
            writer.introduce(Head(rank, size, clocks[rank] if clocks else "one", 0))
            for name in ("default_pg", "group 1"):
                writer.introduce(Group(name, tuple(range(size)), backend))

    def call(
        self, rank: int, name: str, start: float, end: float | None, *parts: CallPart, line: int = 1,
        error: str = "", lent: bool = False, group: str = "default_pg", came_from: int = -1, **of,
    ) -> int:  # fmt: skip
        """One call; an ``end`` of ``None`` never comes. Returns its number."""
        number = self._numbers[rank]
        self._numbers[rank] += 1
        begun = Begun(number, round(start * MS), name, f"/mine/prog.py:{line}", group, parts, **of)
        self._writers[rank].write(begun)
        if end is not None:
            self._writers[rank].write(CallEnded(number, round(end * MS), error, lent, came_from))
        return number

    def send(
        self, rank: int, peer: int, start: float, end: float | None, name: str = SEND, tag: int = 0, **more
    ):
        return self.call(rank, name, start, end, CallPart(SEND, peer, tag, **FLOATS), **more)

    def recv(
        self, rank: int, peer: int, start: float, end: float | None, name: str = RECV, tag: int = 0, **more
    ):
        return self.call(rank, name, start, end, CallPart(RECV, peer, tag, **FLOATS), **more)

    def wait(self, rank: int, of: int, start: float, end: float | None, *, part: int = -1, **more):
        return self.call(rank, WAIT, start, end, of=of, part=part, group="", **more)

    def drop(self, rank: int, of: int, at: float, part: int = -1) -> None:
        """The program let go of a handle."""
        self._writers[rank].write(Dropped(of, round(at * MS), part))

    def on_device(self, rank: int, number: int, start: float, end: float, stream: str = "cuda") -> None:
        """When a call ran on its stream."""
        self._writers[rank].write(OnDevice(number, stream, round(start * MS), round(end * MS)))

    def left(self, rank: int, at: float, error: str = "", replaced: tuple[str, ...] = ()) -> None:
        self._writers[rank].write(ProgramEnded(round(at * MS), error, replaced=replaced))
