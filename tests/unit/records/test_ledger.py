"""The ledger of a mesh rank: a ring of numbered lines that others of the host have mapped."""

from __future__ import annotations

import pytest

from ppwork.records import ledger as module
from ppwork.records.difference import first_difference
from ppwork.records.ledger import (
    LINES,
    CollectiveCall,
    Ledger,
    ledger_file,
    line_of,
    read_ledger,
)


def call(chunk_index, count, rows=4, site="loop.py:7: all_reduce(x)"):
    return CollectiveCall(chunk_index, count, f"all_reduce float32[{rows}]", site)


def write(ledger, number, written):
    line = line_of(number, written.to_bytes())
    ledger.write(number, line)
    return line


@pytest.fixture
def both(tmp_path):
    """Rank 1's ledger as it writes it, and as rank 2 has it mapped."""
    own = Ledger(tmp_path, 1)
    other = Ledger.of(tmp_path, 1)
    yield own, other
    own.close()
    other.close()


def test_the_later_of_two_sees_what_the_earlier_wrote_under_the_same_number(both):
    own, other = both
    mine = line_of(1, call(0, 1).to_bytes())
    assert other.differs(1, mine) is None  # nothing is there yet: it comes after us, and sees ours
    write(own, 1, call(0, 1))
    assert other.differs(1, mine) is None
    assert other.differs(1, line_of(1, call(0, 1, site="loop.py:9: all_reduce(y)").to_bytes())) is None
    write(own, 2, CollectiveCall(0, 1))
    assert other.differs(2, line_of(2, call(0, 2).to_bytes())) == CollectiveCall(0, 1)
    theirs = write(own, 3, CollectiveCall(0, 2, digest=7))
    assert other.differs(3, theirs) is None
    assert other.differs(3, line_of(3, CollectiveCall(0, 2, digest=8).to_bytes())).digest == 7


def test_a_line_that_is_overwritten_or_half_written_is_not_compared(both, tmp_path):
    own, other = both
    mine = line_of(1, call(0, 1).to_bytes())
    write(own, 1 + LINES, call(9, 1))
    assert other.differs(1, mine) is None
    half = bytearray(line_of(1, call(0, 1, rows=5).to_bytes()))
    half[20] ^= 1
    own.write(1, bytes(half))
    assert other.differs(1, mine) is None
    assert read_ledger(tmp_path, 1) == {}


def test_a_link_that_somebody_put_beside_it_is_not_written_through(tmp_path):
    """A run folder may be one that others can write."""
    (private := tmp_path / "private").write_bytes(b"of mine")
    (tmp_path / f".{ledger_file(tmp_path, 1).name}").symlink_to(private)
    Ledger(tmp_path, 1).close()
    assert private.read_bytes() == b"of mine"
    assert not ledger_file(tmp_path, 1).is_symlink()


def test_a_ledger_of_another_host_is_not_compared(both, monkeypatch):
    _, other = both
    assert other.here
    monkeypatch.setattr(module, "pid_space", lambda: "another kernel")
    assert not other.here


def test_what_is_kept_is_read_back_and_anything_else_is_nothing(both, tmp_path):
    own, _ = both
    for number in range(1, LINES + 6):
        write(own, number, call(number, 1))
    kept = read_ledger(tmp_path, 1)
    assert [*kept] == [*range(6, LINES + 6)]
    assert kept[6] == call(6, 1)
    assert Ledger.of(tmp_path, 2) is None
    for damage in (b"", b"led1", ledger_file(tmp_path, 1).read_bytes()[:-1], b"x" * 10_000):
        ledger_file(tmp_path, 2).write_bytes(damage)
        assert Ledger.of(tmp_path, 2) is None
        assert read_ledger(tmp_path, 2) == {}


def test_the_first_difference_is_told_and_ranks_that_are_only_apart_have_none():
    one = {number: call(0, number) for number in range(1, 5)}
    assert first_difference({1: one, 2: {1: one[1]}}) is None
    assert first_difference({1: one}) is None
    odd = call(0, 3, rows=5, site="loop.py:9: all_reduce(y)")
    what, _, ranks = first_difference({1: one, 2: {**one, 3: odd, 4: call(0, 4, rows=6)}, 3: {1: one[1]}})
    assert what.splitlines() == [
        "Ranks 1 and 2 differ at collective 3 of chunk 0: rank 1 called all_reduce float32[4] (loop.py:7), "
        "rank 2 called all_reduce float32[5] (loop.py:9).",
        "  rank 1 at loop.py:7: all_reduce(x)",
        "  rank 2 at loop.py:9: all_reduce(y)",
    ]
    assert ranks == (1, 2)  # rank 3 had not come so far


def test_ranks_with_another_root_are_asked_which_it_is():
    one, other = (
        CollectiveCall(0, 1, f"broadcast(from rank {root}) float32[4]", "a.py:7") for root in (1, 2)
    )
    _, check_first, _ = first_difference({1: {1: one}, 2: {1: other}})
    assert check_first.startswith("which rank gives, or takes? `src` and `dst` count in the job")
