"""The summary of a run, written at its end."""

from __future__ import annotations

import pytest

from ppwork.errors import RecordError
from ppwork.plan import Plan
from ppwork.worker.summary import write_summary


def test_a_folder_that_is_gone_at_the_end_is_told_with_what_is_known_of_the_chunks(tmp_path):
    """A program whose folder was removed had all its results, and ended in a bare FileNotFoundError."""
    said = r"All chunks have come back, and .*summary\.json could not be written"
    with pytest.raises(RecordError, match=said) as told:
        write_summary(Plan(), tmp_path / "removed", "cpu")
    assert told.value.where == {"rank": 0}
    assert "removed meanwhile" in told.value.check_first
