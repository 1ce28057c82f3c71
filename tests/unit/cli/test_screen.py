"""The table that a run ends with."""

import msgspec
import pytest
from rich.console import Console

from ppwork.cli.screen import table
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, Run


def shown(tmp_path, plan, **summary):
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 4, **summary}))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table(Run(tmp_path, 0)))
    return {line.split()[0]: " ".join(line.split()[1:]) for line in captured.get().splitlines()}


@pytest.mark.parametrize(
    ("dropped", "said"),
    [([3, 4], "at chunk 5, 7: dropped 3, 4"), ([], "at chunk 5, 7: nothing was in flight, nothing dropped")],
)
def test_a_flush_says_what_it_dropped_also_when_that_is_nothing(tmp_path, dropped, said):
    """R3."""
    assert shown(tmp_path, Plan(flushes=(7, 5)), dropped_chunks=dropped)["flushed"] == said


def test_a_run_without_a_flush_says_nothing_of_it(tmp_path):
    rows = shown(tmp_path, Plan(hard_cuts=(2,)), dropped_chunks=[])
    assert "flushed" not in rows
    assert rows["chunks"] == "4, depth 1"


def test_a_split_depth_and_the_classic_mistake_are_named(tmp_path):
    plan = Plan(d_in=2, d_out=1, schedule="send-after-decode")
    assert shown(tmp_path, plan)["chunks"] == "4, depth 3 (d_in 2, d_out 1), send-after-decode"
