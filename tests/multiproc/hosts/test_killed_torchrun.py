"""Plain torchrun over two hosts when one of the torchruns is killed: the cheapest of the N faults.

`make hosts` has the others.
"""

from __future__ import annotations

import pytest
from disturbed import disturbed
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
