"""Parts of lessons: a question before a run, the source that ran, and what can be read off a run.

Everything returns a value that shows itself at the end of a cell, the same in every run where it can be: no
absolute times, no folders. ``exercises`` has the checks of the learner's own answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import indent

from ppwork.diagnosis.job_errors import said_of
from ppwork.diagnosis.job_evidence import JobEvidence
from ppwork.diagnosis.logs import read_job
from ppwork.lab.parameters import only_known_parameters
from ppwork.lab.question import Question, predict
from ppwork.lab.two_hosts import on_two_hosts
from ppwork.launcher.script import ScriptRun
from ppwork.pictures.source import lines_of, source_of
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.failure import read_record
from ppwork.records.run import Run
from ppwork.records.spans import Instant
from ppwork.timeline.chunks import EntriesByRank, common_ns, emissions, steps_of

__all__ = [
    "Question",
    "RankException",
    "ends_of",
    "evidence",
    "in_common_ms",
    "lines_of",
    "on_two_hosts",
    "only_known_parameters",
    "predict",
    "records_of",
    "source_of",
]
_ADDRESS = re.compile(r" ?<[\w.]+ object at 0x[0-9a-f]+>")  # another one in every run


@dataclass(frozen=True)
class RankException:
    """How a rank of a program of one's own ended with an exception."""

    line: str
    """Of the program: where it was."""
    error: str
    """Type and text, the same in every run: without the addresses of objects."""


def ends_of(run: ScriptRun) -> dict[int, RankException]:
    """Return how each rank that raised has ended; one that was killed or went well is not in it."""
    evidence = JobEvidence(read_job(run.run_dir))
    lines = {rank: frames.users.text for rank, frames in evidence.place.items() if frames.users is not None}
    errors = {
        rank: _ADDRESS.sub("", said_of(error).splitlines()[0]) for rank, error in evidence.error.items()
    }
    return {rank: RankException(lines.get(rank, ""), error) for rank, error in errors.items()}


def records_of(run: Run) -> list[str]:
    """Return what each rank of a failed run wrote before it left, by rank; no verdict, and no stack."""
    said = []
    for rank in range(1 + run.plan.mesh_size):
        record = read_record(run.run_dir, rank)
        if record is None:
            said.append(f"rank {rank} wrote no record")
            continue
        at = f", at {Path(record.source).name}" if record.source else ""
        said += [f"rank {rank} wrote: {record.error_type}{at}", indent(record.what, "    ")]
    return said


def in_common_ms(entries_by_rank: EntriesByRank) -> float:
    """Return for how many milliseconds of each chunk stage 0 and the mesh's leader work at the same moment.

    Their times have to be on one clock.
    """
    work = {STAGE0_RANK: ("encode", "decode"), LEADER_RANK: ("generate",)}
    stage0, mesh = (
        sorted((span.start_ns, span.end_ns) for span in steps_of(entries_by_rank[rank], *names))
        for rank, names in work.items()
    )
    return common_ns(stage0, mesh) / 1e6 / len(mesh)


def evidence(run: Run) -> dict[str, float]:
    """Return what tells whether the stages of a run overlapped, and what it cost.

    Returns:
        ``period``, ``in common`` (``in_common_ms``), ``mean idle`` (of the mesh between two chunks) and
        ``delay`` (median from the begin of an encode to the emission), in milliseconds; ``left early``: the
        number of chunks whose envelope rank 0 handed over before it began the decode in front of it.
    """
    entries = run.entries_by_rank[STAGE0_RANK]
    encoded = {span.chunk_index: span.start_ns for span in steps_of(entries, "encode")}
    decoded = {span.chunk_index: span.start_ns for span in steps_of(entries, "decode")}
    sent: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, Instant) and entry.name == "envelope.send":
            sent.setdefault(entry.chunk_index, entry.at_ns)  # the order to end repeats the last number
    emitted = emissions(run.entries_by_rank)
    return {
        "period": run.summary["period_ms"],
        "in common": in_common_ms(run.entries_by_rank),
        "left early": sum(sent[k + 1] < decoded[k] for k in decoded if k + 1 in decoded),
        "mean idle": run.summary["mesh_idle_ms"],
        "delay": median((emitted[k] - encoded[k]) / 1e6 for k in emitted),
    }
