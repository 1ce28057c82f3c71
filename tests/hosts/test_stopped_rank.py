"""Plain torchrun over two hosts when a rank is stopped (N08)."""

from __future__ import annotations

import signal

import pytest
from disturbed import PLAN, disturbed
from hosts import needs_hosts

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(240), needs_hosts]
LATE_S = 6.0
"""What a busy machine may add."""


def test_n08_a_stopped_rank_is_named_by_its_own_host_and_ends_the_run_on_both(tmp_path):
    """Peers of the same host see that it does not run; the rank itself stays, as nobody may end it there."""

    def stop(job, processes):
        processes[2].send_signal(signal.SIGSTOP)

    ended = disturbed(tmp_path, stop, stays=(2,))
    assert PLAN.freeze_s < max(ended.after_s.values()) < PLAN.freeze_s + 2.0 + LATE_S, ended.after_s
    assert ended.after_s.keys() == {0, 1}
    assert (ended.said.cause.rank, ended.said.cause.error_type) == (2, "PeerFrozenError")
    assert "was stopped (SIGSTOP)" in ended.said.text
