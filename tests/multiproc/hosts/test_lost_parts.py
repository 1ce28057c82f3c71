"""Plain torchrun over two hosts when part of one is lost: the two cheapest of the N faults.

`make hosts` has the others.
"""

from __future__ import annotations

import signal

import pytest
from disturbed import PLAN, disturbed
from hosts import needs_hosts

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(240), needs_hosts]
LATE_S = 6.0
"""What a busy machine may add; without the death signal the ranks go on for as long as one cares to look."""


def test_n16_a_killed_torchrun_takes_its_ranks_along_and_the_other_host_knows_at_once(tmp_path):
    """Its ranks ran on, unseen, before they asked for a death signal."""

    def kill(job, processes):
        processes[2].parent().kill()

    ended = disturbed(tmp_path, kill)
    assert max(ended.after_s.values()) < 2.0 + LATE_S, ended.after_s
    assert ended.records == [[0], []]
    assert "No rank of hostb left a word" in ended.said.text
    assert ended.alone.cause.rank == -1


def test_n08_a_stopped_rank_is_named_by_its_own_host_and_ends_the_run_on_both(tmp_path):
    """Peers of the same host see that it does not run; the rank itself stays, as nobody may end it there."""

    def stop(job, processes):
        processes[2].send_signal(signal.SIGSTOP)

    ended = disturbed(tmp_path, stop, stays=(2,))
    assert PLAN.freeze_s < max(ended.after_s.values()) < PLAN.freeze_s + 2.0 + LATE_S, ended.after_s
    assert ended.after_s.keys() == {0, 1}
    assert (ended.said.cause.rank, ended.said.cause.error_type) == (2, "PeerFrozenError")
    assert "was stopped (SIGSTOP)" in ended.said.text
