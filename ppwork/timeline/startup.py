"""The start of a run: what its launcher, torchrun and each rank did until the first chunk came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ppwork.errors import PlanError
from ppwork.records.run import LaunchEnd, Run
from ppwork.records.spans import CHECK, IMPORT, JOIN, LOAD, READ, START, TORCHRUN, Span

LAUNCHER = "launcher"
RENDEZVOUS, CHUNKS, LEAVE = "torchrun starts", "chunks", "torchrun ends"
STEPS = (CHECK, RENDEZVOUS, START, IMPORT, JOIN, LOAD, CHUNKS, LEAVE, READ)
"""All steps, in order."""


@dataclass(frozen=True)
class StartupStep:
    """A step of one process.

    Attributes:
        row: ``launcher``, ``torchrun``, or the rank, such as ``rank 0``.
        name: One of ``STEPS``.
        start_ms: Milliseconds from the call of ``launch``.
        end_ms: Milliseconds from the call of ``launch``.
    """

    row: str
    name: str
    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """Duration in milliseconds."""
        return self.end_ms - self.start_ms


def startup(run: Run) -> list[StartupStep]:
    """Return the steps of a run on one host: the launcher's first, then torchrun's, then rank by rank.

    torchrun's own time is measured from outside: from its start until the first rank has begun, and from the
    last entry of the ranks until torchrun has ended.

    Raises:
        PlanError: The run's launcher has left no times, as for a job of another torchrun.
    """
    end = LaunchEnd.load(run.run_dir)
    by_launcher = {step.name: step for step in end.steps} if end is not None else {}
    if TORCHRUN not in by_launcher:
        raise PlanError(
            f"The launcher of {run.run_dir} left no times of its start.",
            check_first="only `ppwork run` and `pp.launch` do, when the run has ended",
        )
    zero_ns = by_launcher[CHECK].start_ns
    torchrun = by_launcher[TORCHRUN]
    entries = [entry for of_rank in run.entries_by_rank.values() for entry in of_rank]
    first_ns = min((entry.start_ns for entry in entries if isinstance(entry, Span)), default=torchrun.end_ns)
    last_ns = max((entry.end_ns for entry in entries), default=torchrun.end_ns)

    def step(row: str, name: str, start_ns: int, end_ns: int) -> StartupStep:
        return StartupStep(row, name, (start_ns - zero_ns) / 1e6, (end_ns - zero_ns) / 1e6)

    spans = [by_launcher[name] for name in (CHECK, READ) if name in by_launcher]
    steps = [step(LAUNCHER, span.name, span.start_ns, span.end_ns) for span in spans]
    steps.append(step(TORCHRUN, RENDEZVOUS, torchrun.start_ns, first_ns))
    steps.append(step(TORCHRUN, LEAVE, last_ns, torchrun.end_ns))
    for rank in run.entries_by_rank:
        steps += [step(f"rank {rank}", s.name, s.start_ns, s.end_ns) for s in _of_rank(run, rank)]
    return steps


def _of_rank(run: Run, rank: int) -> Iterator[Span]:
    spans = [entry for entry in run.entries_by_rank[rank] if isinstance(entry, Span)]
    yield from (span for span in spans if span.name in STEPS)
    if of_chunks := [span for span in spans if span.chunk_index >= 0]:
        begun, ended = min(s.start_ns for s in of_chunks), max(s.end_ns for s in of_chunks)
        yield Span(CHUNKS, "main", begun, ended)
