"""The library taken into somebody's own prototype, under plain torchrun."""

from __future__ import annotations

import pytest
from checkout import EXAMPLES
from plain_torchrun import torchrun

pytestmark = pytest.mark.multiproc


def test_the_example_prototype_runs_under_plain_torchrun():
    assert torchrun(3, EXAMPLES / "own_loop.py") == [
        "Ids(call_id=0, chunk_index=0, cache_epoch=0) [0.0, 0.0, 0.0] chunk 0, doubled, good",
        "Ids(call_id=1, chunk_index=1, cache_epoch=0) [2.0, 2.0, 2.0] chunk 1, doubled, good",
        "Ids(call_id=2, chunk_index=2, cache_epoch=1) [4.0, 4.0, 4.0] chunk 2, doubled, good",
        "Ids(call_id=4, chunk_index=3, cache_epoch=1) [6.0, 6.0, 6.0] chunk 3, doubled, good",
    ]
