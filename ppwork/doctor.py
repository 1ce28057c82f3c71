"""What this machine has, what will run here, and what to do about the rest."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ppwork.doctor_rows import Row, Verdict, here
from ppwork.doctor_runs import Wants, will_run
from ppwork.html_table import TOP_LEFT, html_table
from ppwork.machine import PROBE_LIMIT_S, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = ("what", "found", "verdict", "what to do")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; shows itself at the end of a cell."""

    here: list[Row]
    """What was looked at, one by one."""
    runs: list[Row]
    """What will run here."""
    machine: Machine
    """The findings behind the sentences."""

    @property
    def ready(self) -> bool:
        """Whether the main job can run on gloo."""
        return self.runs[0].verdict is not Verdict.MISSING

    def __repr__(self) -> str:
        widths = [
            max(map(len, column)) for column in zip(*map(_cells, [*self.here, *self.runs]), strict=True)
        ]
        lines = []
        for title, rows in (("This machine", self.here), ("What will run here", self.runs)):
            lines += ["", title]
            for row in map(_cells, rows):
                padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
                lines.append("  ".join(padded).rstrip())
        return "\n".join(lines[1:])

    def _repr_html_(self) -> str:
        parts = (("This machine", self.here), ("What will run here", self.runs))
        return "".join(f"<h4>{title}</h4>{_table(rows)}" for title, rows in parts)


def doctor(*, limit_s: float = PROBE_LIMIT_S) -> Report:
    """Look this machine over; nothing is installed or changed, and torch is not imported here.

    Args:
        limit_s: How long the subprocess with torch may take, in seconds.

    Returns:
        A row for each thing looked at, and for each thing that will or will not run.

    Blocks:
        For a few seconds, most of them torch's import; at most ``limit_s`` and a moment.
    """
    # Not before it is asked: `import ppwork` stays quick.
    from ppwork.claims.catalogue import CLAIMS
    from ppwork.fault_hosts import can_have_two_hosts
    from ppwork.faults import FAULTS
    from ppwork.survey import look

    machine = look(two_hosts=can_have_two_hosts(), limit_s=limit_s)
    wants = Wants(
        claim_gpus=[claim.gpus for claim in CLAIMS.values()],
        fault_needs=dict(Counter(case.needs for fault in FAULTS for case in fault.cases)),
    )
    return Report(here=here(machine), runs=will_run(machine, wants), machine=machine)


def _cells(row: Row) -> tuple[str, str, str, str]:
    return (row.what, row.found, row.verdict.value, row.todo)


def _table(rows: Sequence[Row]) -> str:
    return html_table(HEAD, (_cells(row) for row in rows), TOP_LEFT)
