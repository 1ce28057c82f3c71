"""A small soak: nothing that passes through stays, and a slow end holds back the others within the bounds.

The benchmark's own code, on fewer chunks: ``benchmarks/soak.py`` does ten thousand.
"""

from __future__ import annotations

import importlib

import pytest
from checkout import BENCHMARKS
from hypothesis import given
from hypothesis import strategies as st

import ppwork as pp
from ppwork.records.clocks import CLOCK
from ppwork.records.spans import Instant

# A forked rank shares what torch takes with its launcher: its own memory would say nothing of a run.
pytestmark = [pytest.mark.multiproc, pytest.mark.cold]

CHUNKS = 400
GROWTH_MB = 8.0
"""Allowed over 140 chunks of 0.25 MB: one payload kept per chunk would be 35 MB."""
stays = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda stay: (stay[0], sum(stay))))


@pytest.fixture(scope="module")
def soak():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("soak")


def test_memory_is_flat_and_no_place_holds_more_than_its_bound(tmp_path, soak):
    """Whose consumer is slow, as that one fills every place."""
    # A reading of three ranks takes 13 ms and 20 chunks take 200: a busy machine still keeps up.
    memory = soak.Memory(every=20)
    plan = soak.plan_of("consumer", CHUNKS, times=6.0)
    run = pp.launch(plan, out=tmp_path / "run", started=memory.started, progress=memory.progress)
    assert run.summary["chunks"] == CHUNKS
    assert sorted(memory.rss) == sorted(memory.uss) == [0, 1, 2]
    for rank in range(3):
        for size in (memory.rss[rank], memory.uss[rank]):
            before, after = soak.middle(size, 100, 160), soak.middle(size, 240, 300)
            assert before > 20.0, "a rank with torch in it"
            assert after - before < GROWTH_MB, rank
    entries = {rank: run.entries(rank) for rank in range(3)}
    most = soak.fills(entries)
    allowed = soak.bounds(plan)
    assert most.keys() == allowed.keys()
    assert all(most[place] <= allowed[place] for place in allowed), most
    assert most["unfinished"] == allowed["unfinished"] == 3
    queues = run.summary["queues"]
    assert {queue["rank"] for queue in queues} == {0, 1, 2}
    assert all(0 < queue["most"] <= queue["bound"] for queue in queues if queue["done"]), queues
    for rank in range(3):  # one host: nothing was measured between its ranks
        (clock,) = [e for e in entries[rank] if isinstance(e, Instant) and e.name == CLOCK]
        assert clock.figures == {"offset_ns": 0.0, "error_ns": 0.0}


@given(stays)
def test_fullest_is_the_most_that_any_moment_sees(soak, stays):
    """A stay holds its begin and not its end."""
    seen = [sum(begin <= at < end for begin, end in stays) for at in range(41)]
    assert soak.fullest(stays) == max(seen)
