"""Recorded calls: what a rank writes is read back, also of a rank that was killed or wrote too much."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_calls import MS, MadeCalls

from ppwork.errors import UnreadableError
from ppwork.records.calls import CallEnded, CallPart, CallWriter, calls_file, read_calls
from ppwork.records.hosts import HostRecord, HostsRecord


def test_a_rank_leaves_its_calls_and_the_one_that_it_stands_in(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.send(0, 1, 1.0, 1.5, line=3)
    made.recv(0, 1, 2.0, None, tag=4, line=5)
    made.left(1, 9.0)
    ranks = read_calls(tmp_path)
    first, last = ranks[0].calls
    assert (first.text, first.line, first.end_ns) == ("send float32[4] to 1", "prog.py:3", 1_500_000)
    assert ranks[0].stands_in is last
    assert last.text == "recv float32[4] from 1 tag 4"
    assert ranks[0].left is None
    assert ranks[1].left.at_ns == 9_000_000
    assert ranks[1].groups["default_pg"].ranks == (0, 1)


def test_a_line_that_a_kill_cut_is_left_out(tmp_path):
    made = MadeCalls(tmp_path, 1)
    made.call(0, "barrier", 1.0, 2.0)
    made.call(0, "all_reduce", 3.0, 4.0, CallPart(dtype="float32", shape=(2,), size=8))
    path = calls_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-5])
    assert read_calls(tmp_path)[0].stands_in.name == "all_reduce"


def test_a_rank_that_calls_for_days_leaves_its_beginning_and_its_end(tmp_path):
    made = MadeCalls(tmp_path, 1, head_bytes=4000, tail_bytes=2000)
    for number in range(500):
        made.send(0, 1, number, number + 0.5)
    made.recv(0, 1, 500.0, None)
    sizes = [calls_file(tmp_path, 0, tail).stat().st_size for tail in (None, 0, 1)]
    assert sizes[0] < 4500
    assert max(sizes[1:]) <= 2000
    (of_rank,) = read_calls(tmp_path).values()
    numbers = [call.begun.number for call in of_rank.calls]
    assert numbers[:10] == list(range(10))
    assert numbers[-5:] == list(range(496, 501))
    assert numbers == sorted(numbers)
    # Every call that was not kept is counted, and none is taken for one that hangs.
    assert [call.name for call in of_rank.calls if call.end_ns is None] == ["recv"]
    assert 501 - of_rank.lost - len(numbers) in (0, 1)
    assert of_rank.lost > 400


def test_a_full_disk_ends_the_record_and_not_the_program(tmp_path, monkeypatch, capsys):
    writer = CallWriter(tmp_path, 0)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for number in range(3):
        writer.write(CallEnded(number, 1))
    monkeypatch.undo()
    said = capsys.readouterr().err
    assert said == "ppwork: this rank's calls are no longer recorded: No space left on device\n"


def test_a_run_begins_its_record_anew(tmp_path):
    made = MadeCalls(tmp_path, 1, head_bytes=100, tail_bytes=1000)
    for number in range(20):
        made.call(0, "barrier", number, number)
    MadeCalls(tmp_path, 1)
    assert read_calls(tmp_path)[0].calls == ()


def test_calls_of_another_host_stand_on_the_clock_of_rank_0(tmp_path):
    """As far as the launcher has compared them."""
    made = MadeCalls(tmp_path, 2, clocks=("a 1", "b 2"))
    for rank, begun in ((0, 105.0), (1, 5000.0)):
        made.send(rank, 1 - rank, begun, begun + 1.0)
        made.left(rank, begun + 2.0)
    ahead = {"a": 100 * MS, "b": 4996 * MS}
    hosts = [HostRecord(name=name, ranks=(rank,), offset_ns=ahead[name]) for rank, name in enumerate(ahead)]
    HostsRecord(hosts=tuple(hosts)).save(tmp_path)
    for of_rank, begun in zip(read_calls(tmp_path).values(), (105, 104), strict=True):
        (call,) = of_rank.calls
        moments = (call.start_ns, call.end_ns, of_rank.left.at_ns)
        assert moments == (begun * MS, (begun + 1) * MS, (begun + 2) * MS)


def test_a_file_of_another_kind_is_refused(tmp_path):
    calls_file(tmp_path, 0).write_text("not calls\n")
    with pytest.raises(UnreadableError, match="do not read"):
        read_calls(tmp_path)


LIMITED = """
import resource, sys
from pathlib import Path
from ppwork.records.calls import CallEnded, CallWriter, Head, calls_file

folder = Path(sys.argv[1])
writer = CallWriter(folder, 0)
writer.introduce(Head(0, 1, "a clock", 0))
limit = calls_file(folder, 0).stat().st_size + 10
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
writer.write(CallEnded(1, 1))  # 10 bytes of it fit
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write(CallEnded(2, 2))
"""


@pytest.mark.processes
def test_a_line_of_which_a_part_was_written_is_the_last_one(tmp_path):
    """Room that is there again later must not join the next line to it: the whole folder would not read."""
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    assert "no longer recorded: File too large" in said
    assert read_calls(tmp_path)[0].calls == ()


def open_files_of(folder):
    links = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]


@pytest.mark.parametrize("lines", [1, 20], ids=["beginning", "end"])
def test_a_closed_record_holds_no_file(tmp_path, lines):
    writer = CallWriter(tmp_path, 0, head_bytes=100, tail_bytes=1000)
    for number in range(lines):
        writer.write(CallEnded(number, 1))
    assert open_files_of(tmp_path)
    writer.close_in_child()
    assert open_files_of(tmp_path) == []
    writer.write(CallEnded(0, 1))  # nobody reads it, and nothing raises


FORKS_WHILE_IT_WRITES = """
import os, sys, threading
from pathlib import Path
from ppwork.records.calls import calls_file
from ppwork.worker.trace import CallRecorder

folder = Path(sys.argv[1])
recorder = CallRecorder(folder, 0, 1)
held, forked = threading.Event(), threading.Event()

def write():  # another thread is within a write at the fork: its lock has no owner in the child
    with recorder._writer._lock:
        held.set()
        forked.wait()

threading.Thread(target=write, daemon=True).start()
held.wait()
if (child := os.fork()) == 0:
    open_here = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    print([path for path in open_here if path == str(calls_file(folder, 0))], flush=True)
    os._exit(0)
os.waitpid(child, 0)
forked.set()
"""


@pytest.mark.processes
def test_a_forked_child_holds_no_file_of_its_parents_calls(tmp_path):
    command = [sys.executable, "-c", FORKS_WHILE_IT_WRITES, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert printed == "[]\n"


def test_who_called_a_line_is_told_where_a_rank_came_to_it_from_several(tmp_path):
    """Of a helper around `all_reduce` the line alone does not say which sum it was."""
    made = MadeCalls(tmp_path, 1)
    made.call(0, "all_reduce", 1, 2, line=44, via="/mine/core.py:53")
    made.call(0, "all_reduce", 3, 4, line=44, via="/mine/core.py:57")
    made.call(0, "barrier", 5, 6, line=9, via="/mine/core.py:80")
    calls = read_calls(tmp_path)[0]
    places = [call.place for call in calls.calls]
    assert places == ["prog.py:44, called at core.py:53", "prog.py:44, called at core.py:57", "prog.py:9"]
    assert {call.line for call in calls.calls} == {"prog.py:44", "prog.py:9"}
