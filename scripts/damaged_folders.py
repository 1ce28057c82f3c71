"""Folders and logs as runs and jobs leave them, and the ways to damage them; for ``fuzz_runs``.

A blind mutation of JSON dies at the first bracket. So there are three depths: bytes as they are; numbers and
lines of a text, and values of JSON, so that what comes out still reads as JSON; and pulses with their
checksum made right again, so that only the checks behind it can refuse.
"""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ppwork.plan import Plan
from ppwork.records.calls import Begun, CallEnded, CallPart, CallWriter, Group, Head, ProgramEnded, calls_file
from ppwork.records.clocks import CLOCK
from ppwork.records.failure import FailureRecord, failure_file, write_record
from ppwork.records.flight import Collective, Flight, flight_file
from ppwork.records.pulse import Pulse, PulseState, pulse_file
from ppwork.records.run import END_FILE, SUMMARY_FILE, TORCHRUN_LOG, LaunchEnd, log_file
from ppwork.records.spans import Instant, Recorder, Span, span_file

CAPTURED = Path(__file__).resolve().parents[1] / "tests/support/captured"
LARGEST_CONSOLE = 5_000
"""Bytes of a captured console that is damaged: a longer one only takes longer."""
CHUNKS, MS = 3, 1_000_000
MOST_BYTES = 1 << 18
"""Of a damaged file."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -1, 7, 10_001, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63), 1 << 64, 10**30,
    0.5, -0.0, 1e308, -1e308, 5e-324, "", "x", "rank", "1", "x" * 300, "\0", "\x1b[2J", "é\u202e",
    "PeerFrozenError", "span", [], [0], [[]], [1, "2"], {}, {"rank": 1}, {"": []}, msgspec.Raw(b"[" * 3000),
    msgspec.Raw(b"[" * 2000 + b"]" * 2000), msgspec.Raw(b"1e999"), msgspec.Raw(b"NaN"),
)  # fmt: skip
"""What a value of JSON is replaced by."""
NUMBERS = ("", "-1", "0", "00", "1", "3", "99", "999999999999", "-9" * 9, "9" * 5000, "1.5", "1.2.3", "1e999",
           "٣", "²", "0x7", "-0")  # fmt: skip
"""What a number of a text is replaced by."""
WORDS = (
    "Traceback (most recent call last):\n", '  File "/t/a.py", line 3, in <module>\n', "    dist.recv(x)\n",
    "ValueError: \n", "RuntimeError: Timed out waiting 5000ms\n", "[rank1]: ", "[default2]:", "\r", "\n\n\n",
    "Root Cause (first observed failure):\n[0]:\n", "failed (exitcode: 1) local_rank: 2 (pid",
    "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 1)\n", "  traceback : Traceback \n",
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=X",
    "Rank 1] watchdog thread terminated with exception: NCCL error", "--local-rank=1' died with <Signals.X",
    "Exception Group Traceback (most recent call last):\n", "  | ", "During handling of the above exception,",
    "Timeout (0:00:05)!\nThread 0x0 (most recent call first):\n", "Fatal Python error: Aborted\n",
    "SignalException: Process 7 got signal: 99", "process 1 terminated with signal SIGFOO",
    "wait timeout after 5ms, keys: /default_pg/0//cpu//0/2", "ncclUniqueId from [0]", "\x1b]0;t\x07", "\0",
    "terminate called after throwing an instance of 'std::x'\n  what():  y\n", "╭", "❱ 3 x",
    "SyntaxError: x\n",
    "ppwork: rank 2 (pid 3, stopped) was there 1 s after the first death and was killed\n",
    "ppwork: the launcher did not run for 1.2.3 s\n", "Ranks 1, 2 failed to pass monitoredBarrier in 5 ms",
    "op.preamble.length <= op.nbytes. 5 vs 4", "\u2028", "\ud7ff",
    "-- Process 1 terminated with the following error",
)  # fmt: skip
"""What is put into a text."""
_PULSE_BODY = -4
"""The checksum of a pulse is its last four bytes."""


@dataclass(frozen=True)
class File:
    """A file that is damaged: its place below the folder, and what it holds undamaged."""

    kind: str
    """A key of ``DAMAGES``."""
    name: str
    data: bytes


def make_run(folder: Path) -> list[File]:
    """Write what a run leaves whose follower was killed; return its files."""
    plan = Plan(mesh_size=2, chunks=CHUNKS, backend="gloo", fault="F13")
    (folder / Plan.FILE_NAME).write_bytes(plan.to_json())
    for rank in range(3):
        with Recorder(span_file(folder, rank)) as recorder:
            recorder.instant(CLOCK, figures={"offset_ns": 1.0e6 * rank, "error_ns": 10.0})
            recorder.write(Span("load", "main", 0, MS))
            for chunk in range(CHUNKS):
                for entry in _entries(rank, chunk):
                    recorder.write(entry)
        pulse = Pulse(folder, rank)
        pulse.beat(PulseState.BUSY, "generate", {"call_id": 2, "chunk_index": 2}, 30 * MS)
        log_file(folder, rank).write_text(f"rank {rank} began\n{_TRACEBACK}")
        flight = Flight(rank, [Collective("tp_pg", n, "all_reduce", n < 3, [[4, rank]]) for n in (1, 2, 3)])
        flight_file(folder, rank).write_bytes(msgspec.json.encode(flight))
    for rank, error_type, peer in ((0, "TerminalNotice", 1), (1, "PeerLostError", 2)):
        where = {"rank": rank, "peer": peer, "role": "leader", "chunk_index": 2}
        write_record(
            folder,
            FailureRecord(
                rank=rank, error_type=error_type, what="It left.\nYes.", where=where, check_first="its log",
                symptom=True, at_ns=40 * MS, traceback=_TRACEBACK, source="/t/a.py:3",
                last_instants={"main": {"name": "emit", "at_ns": 3}},
            ),
        )  # fmt: skip
    summary = {"chunks": CHUNKS, "backend": "gloo", "period_ms": 40.0, "stage0_ms": 9.0, "stage1_ms": 30.0,
               "overlap_score": 0.9, "efficiency": 0.8, "psnr_noisy_db": 20.0, "psnr_denoised_db": 25.0,
               "versions": {"ppwork": "1", "torch": "2"}, "max_abs_diff": 0.0}  # fmt: skip
    (folder / SUMMARY_FILE).write_bytes(msgspec.json.encode(summary))
    LaunchEnd(exit_code=1).save(folder)
    (folder / TORCHRUN_LOG).write_text(_REPORT)
    kinds = {
        "plan": [folder / Plan.FILE_NAME], "summary": [folder / SUMMARY_FILE, folder / END_FILE],
        "record": [failure_file(folder, rank) for rank in (0, 1)],
        "pulse": [pulse_file(folder, 2)], "spans": [span_file(folder, rank) for rank in range(3)],
        "flight": [flight_file(folder, rank) for rank in range(3)],
        "log": [log_file(folder, 2)], "torchrun": [folder / TORCHRUN_LOG],
    }  # fmt: skip
    return [File(kind, path.name, path.read_bytes()) for kind, paths in kinds.items() for path in paths]


def _entries(rank: int, chunk: int) -> Iterator[Span | Instant]:
    """Yield what a rank writes of one chunk."""
    ids, at = {"call_id": chunk, "chunk_index": chunk, "cache_epoch": 0}, (chunk + 1) * 10 * MS
    steps = {
        0: ("encode", "send", "receive", "decode"),
        1: ("receive", "broadcast", "generate", "send_result"),
    }
    for number, name in enumerate(steps.get(rank, ("receive", "generate"))):
        yield Span(name, "main", at + number * MS, at + (number + 1) * MS, **ids)
    if rank == 0:
        yield Instant("envelope.send", "main", at + MS, **ids)
        yield Instant("arrive", "main", at + 3 * MS, **ids)
        yield Instant("emit", "main", at + 4 * MS, figures={"period_ms": 10.0}, **ids)
        yield Instant("queue.sends", "main", at, figures={"bound": 2.0, "most": 1.0, "done": 3.0})
    elif rank == 1:
        yield Instant("mesh.broadcast", "main", at + MS, **ids)
        yield Instant("result.send", "main", at + 3 * MS, **ids)


def make_calls(folder: Path) -> list[File]:
    """Write the calls of two ranks of which one waits for ever; return their files."""
    for rank in range(2):
        writer = CallWriter(folder, rank)
        writer.introduce(Head(rank, 2, "clock", 0))
        writer.introduce(Group("0", (0, 1), "gloo"))
        part = CallPart("send" if rank == 0 else "recv", 1 - rank, 3, "float32", (4,), 1, 16)
        writer.write(
            Begun(
                0,
                10,
                "all_reduce",
                "/t/a.py:3",
                "0",
                (CallPart(dtype="float32", shape=(2,), size=8),),
                op="SUM",
            )
        )
        writer.write(CallEnded(0, 20))
        writer.write(Begun(1, 30, "isend" if rank == 0 else "irecv", "/t/a.py:4", "0", (part,)))
        writer.write(CallEnded(1, 31, lent=True))
        writer.write(Begun(2, 40, "wait", "/t/a.py:5", of=1, part=0))
        if rank == 0:
            writer.write(CallEnded(2, 50, peer=1))
            writer.write(ProgramEnded(60, "ValueError"))
    paths = [calls_file(folder, rank) for rank in range(2)]
    return [File("calls", path.name, path.read_bytes()) for path in paths]


def consoles() -> list[File]:
    """Return the consoles of broken jobs that were captured, short ones."""
    paths = sorted(path for path in CAPTURED.rglob("*.txt") if path.stat().st_size < LARGEST_CONSOLE)
    return [File("console", path.stem, path.read_bytes()) for path in paths]


def make_log_dir(folder: Path) -> list[File]:
    """Write a ``--log-dir`` of two attempts with a console beside it; return its files."""
    names = [f"run_x/attempt_{attempt}/{rank}/stderr.log" for attempt in (0, 1) for rank in (0, 1)]
    texts = dict.fromkeys(names, f"[rank1]: {_TRACEBACK.replace(chr(10), chr(10) + '[rank1]: ')}\n")
    recorded = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": _TRACEBACK}}}
    texts["run_x/attempt_1/1/error.json"] = msgspec.json.encode(recorded).decode()
    texts["console.log"] = _REPORT
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kinds = {".json": "error", ".log": "stderr"}
    return [File(kinds[Path(name).suffix], name, text.encode()) for name, text in texts.items()]


_TRACEBACK = """Traceback (most recent call last):
  File "/t/a.py", line 3, in <module>
    dist.recv(x, 0)
  File "/site-packages/torch/distributed/distributed_c10d.py", line 1, in recv
    work.wait()
RuntimeError: [/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/t/a.py", line 9, in <module>
    main()
ValueError: image 17 is truncated
"""
_REPORT = """W1122 1.0 torch/distributed/elastic/api.py:1] Sending process 7 closing signal SIGTERM
E1122 1.1 torch/distributed/elastic/api.py:2] failed (exitcode: -9) local_rank: 2 (pid: 5) of
ppwork: the launcher did not run for 1.5 s
ppwork: rank 0 (pid 3, stopped) was there 1 s after the first death and was killed
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 4)
Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 5)
"""


# Damages: bytes and a random number generator in, bytes out


def bits(data: bytes, draw: random.Random) -> bytes:
    """Turn a few bits."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    """Take something out, often the end."""
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + (b"" if draw.random() < 0.5 else data[stop:])


def doubled(data: bytes, draw: random.Random) -> bytes:
    """Repeat a part somewhere else, once or many times."""
    start, stop = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    at, times = draw.randrange(len(data) + 1), draw.choice((1, 1, 2, 50))
    return data[:at] + data[start : min(stop, start + MOST_BYTES // times)] * times + data[at:]


def word(data: bytes, draw: random.Random) -> bytes:
    """Put words in that the readers look for."""
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(WORDS).encode() * draw.choice((1, 1, 1, 30)) + data[at:]


def number(data: bytes, draw: random.Random) -> bytes:
    """Replace numbers of a text."""
    found = [*re.finditer(rb"\d+", data)]
    if not found:
        return word(data, draw)
    for match in sorted(
        draw.sample(found, min(len(found), draw.choice((1, 1, 3)))), key=lambda m: -m.start()
    ):
        data = data[: match.start()] + draw.choice(NUMBERS).encode() + data[match.end() :]
    return data


def lines(data: bytes, draw: random.Random) -> bytes:
    """Drop, swap or repeat lines."""
    rows = data.splitlines(keepends=True) or [b""]
    for _ in range(draw.choice((1, 2, 5))):
        one, other = draw.randrange(len(rows)), draw.randrange(len(rows))
        what = draw.randrange(3)
        if what == 0 and len(rows) > 1:
            rows.pop(one)
        elif what == 1:
            rows[one], rows[other] = rows[other], rows[one]
        else:
            rows.insert(other, rows[one])
    return b"".join(rows)


def value(data: bytes, draw: random.Random) -> bytes:
    """Change a value, a key, or the size of something in JSON, or in one line of it."""
    rows = data.splitlines() if data.count(b"\n{") else [data]
    chosen = draw.randrange(len(rows))
    try:
        tree = msgspec.json.decode(rows[chosen])
    except (ValueError, RecursionError):
        return bits(data, draw)
    places: list[tuple[Any, Any]] = []
    _places(tree, places)
    if not places:
        return bits(data, draw)
    for holder, key in draw.sample(places, min(len(places), draw.choice((1, 1, 1, 2, 4)))):
        _change(holder, key, draw)
    try:
        rows[chosen] = msgspec.json.encode(tree)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return bits(data, draw)
    return b"\n".join(rows) + (b"\n" if data.endswith(b"\n") else b"")


def _places(tree: Any, places: list[tuple[Any, Any]]) -> None:  # noqa: ANN401  any JSON
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            places.append((tree, key))
            _places(tree[key], places)


def _change(holder: Any, key: Any, draw: random.Random) -> None:  # noqa: ANN401  any JSON
    what = draw.random()
    try:
        if what < 0.15:
            del holder[key]
        elif what < 0.25 and isinstance(holder, dict):
            holder[draw.choice(("rank", "x", "", "peer", "type", "name"))] = holder.pop(key)
        elif what < 0.3 and isinstance(holder, list):
            holder *= 30
        else:
            holder[key] = draw.choice(VALUES)
    except (KeyError, IndexError):
        pass  # an earlier change has removed it


def whole_pulse(data: bytes, draw: random.Random) -> bytes:
    """Change a pulse and make its checksum right again."""
    body = bytearray(data[:_PULSE_BODY])
    for _ in range(draw.choice((1, 2, 6))):
        at = draw.randrange(4, len(body))
        body[at] = draw.choice((0, 1, 5, 6, 127, 128, 255, draw.randrange(256)))
    return bytes(body) + struct.pack("<I", zlib.crc32(bytes(body)))


Damage = Callable[[bytes, random.Random], bytes]
BLIND: tuple[Damage, ...] = (bits, cut, doubled)
TEXTS: tuple[Damage, ...] = (*BLIND, word, word, number, number, lines)
JSONS: tuple[Damage, ...] = (*BLIND, number, value, value, value, value)
DAMAGES: dict[str, tuple[Damage, ...]] = {
    "plan": JSONS, "summary": JSONS, "record": JSONS, "flight": JSONS, "error": JSONS,
    "spans": (*JSONS, lines), "calls": (*JSONS, lines),
    "pulse": (*BLIND, whole_pulse, whole_pulse, whole_pulse),
    "log": TEXTS, "torchrun": TEXTS, "console": TEXTS, "stderr": TEXTS,
}  # fmt: skip
"""The damages that each kind of file gets."""


def damaged(file: File, draw: random.Random) -> tuple[bytes, list[str]]:
    """Return a file after one to three damages, with their names."""
    data, done = file.data, []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        damage = draw.choice(DAMAGES[file.kind])
        if damage is whole_pulse and len(data) != len(file.data):
            continue
        data = damage(data, draw)[:MOST_BYTES]
        done.append(damage.__name__)
    return data, done
