"""A live source that pauses: the link lives by NOOPs, and results do not wait for the source."""

from __future__ import annotations

import pytest
from toy_runs import expected, toy

import ppwork as pp
from ppwork.records.spans import Span

pytestmark = pytest.mark.multiproc
TIMEOUT_S, PAUSE_S = 3.0, 7.5


def pausing(**options) -> pp.Plan:
    return toy(
        stage0="toy_stages:Pauses",
        in_flight_depth=3,
        timeout_s=TIMEOUT_S,
        verify=False,
        options={"pause_at": 4, "pause_s": PAUSE_S, **options},
    )


def test_a_source_that_pauses_longer_than_the_timeout_is_carried_by_noops(tmp_path):
    """R12: no wait of the mesh reaches its bound while the source pauses."""
    run = pp.launch(pausing(patience_s=0.02), out=tmp_path / "run")
    assert run.summary["figures"]["outputs"] == expected(6)
    leader, stage0 = run.entries(1), run.entries(0)
    received = {
        e.call_id for e in leader if isinstance(e, Span) and (e.name, e.lane) == ("receive", "down_pg")
    }
    computed = {e.call_id for e in leader if e.name == "generate"}
    noops = received - computed - {max(received)}  # the last one is SHUTDOWN
    assert noops == set(range(4, 4 + len(noops)))  # R2: they count as calls, between chunk 3 and chunk 4
    assert PAUSE_S / TIMEOUT_S < len(noops) <= PAUSE_S / (TIMEOUT_S / 4)
    emitted = {e.chunk_index: e.at_ns for e in stage0 if e.name == "emit"}
    encodes = {e.chunk_index: e for e in stage0 if e.name == "encode"}
    assert (encodes[4].start_ns - emitted[3]) / 1e9 > TIMEOUT_S  # the last result did not wait for the source
    assert {e.call_id for e in encodes.values()} == computed  # ids as they left, not as they were expected
    assert encodes[4].ms < 1000  # the pause is no work of stage 0


def test_a_source_that_sleeps_instead_of_saying_so_counts_as_stuck(tmp_path):
    """The other side of the test above: a pause in encode cannot be told from a loop without an end."""
    run = pp.launch(pausing(patience_s=PAUSE_S), out=tmp_path / "run", check=False)
    assert "StuckError: The stage's encode did not return within 2.4 s" in str(run.failure)
    assert run.failure.where["rank"] == 0
