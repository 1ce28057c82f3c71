"""A run as the notebook side sees it: its folder, read back.

No torch, no processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Self

import msgspec

from ppwork.errors import PlanError, RecordError, RunFailed, UnreadableError
from ppwork.plan import Plan
from ppwork.records.files import read_json, write_whole
from ppwork.records.spans import RESULTS_DIFFER, Entry, Instant, Span, read_entries

TORCHRUN_LOG = "torchrun.log"
REFERENCE_LOG = "reference.log"
"""Log of the single process that computes a run again to verify it; it is there from its start on."""
SUMMARY_FILE = "summary.json"
OUTPUTS_FILE = "outputs.safetensors"
"""Outputs of rank 0, by chunk: kept by ``keep_outputs``, and by ``verify`` until they are found equal."""
RETURNED_FILE = "returned.safetensors"
"""Tensors that the mesh returned, by chunk and name: kept by ``verify`` until they are found equal."""
RETURNED_DIFFERS = "returned_differs"
"""Key of a summary: a sentence about the first returned tensor that differs from its reference."""
ODD_RESULTS = "results_differ"
"""Key of a summary: the chunks for which mesh ranks returned different results."""
NOTHING_RESET = "cuts_without_reset"
"""Key of a summary: the chunks whose cut came to a generator without ``reset_cache``, or to a loop that did
not ask for it. A mesh rank has an instant of this name at each."""
WRONG = {
    ODD_RESULTS: "which rank is right is not known: what does each of them return there? A rank whose "
    "tensors are its own returns none, `{}`",
    NOTHING_RESET: "what does a cut reset? Where there is nothing to reset, write an empty `reset_cache`; a "
    "loop reads `chunk.plan.reset_cache`",
}
"""Keys of a summary that fail a run which otherwise ended well, and what to check first."""
FAILED_AT_END = "The run came to its end, and failed there"
"""Beginning of what rank 0 says of a run that only then turned out to be odd: no rank has failed first."""
EARLY_LOOP = "does the loop end early? one that does not know its number has no `chunks` in its plan"
EARLY_SOURCE = "what ended the stream? a source that may end earlier has no `chunks` in its plan"
"""What to check first if fewer chunks came than the plan has."""
WROTE = "wrote_into"
"""An instant of a mesh rank that wrote into tensors of a chunk that it had received; its text names them."""
WRITES_DIFFER = "writes_differ"
"""Key of a summary: the chunks in which only some mesh ranks wrote into a tensor that all had received."""
SAID = "returned_metadata"
"""An instant of a mesh rank that gave metadata with its result; its figures are a digest of each value."""
METADATA_DIFFERS = "metadata_differs"
"""Key of a summary: the chunks in which mesh ranks gave different metadata; the leader's is sent."""
UNRELEASED = "release.missing"
"""An instant of rank 0 at the first result that its loop did not release before it waited again."""
OPTIONS_ASKED = "options.asked"
"""An instant at the end of a rank whose plan has options: the names that its stage asked for, one a line."""
OPTIONS_UNASKED = "options.unasked"
"""An instant of rank 0 before the first chunk: which options look misspelt."""
NO_EMISSION = "decode returned None"
"""Text of an ``emit`` whose chunk gave nothing: no output, and no metrics."""
STREAM_ENDED = "stream_ended"
"""Key of a summary: the line about a stream that ``encode`` has ended, maybe by a forgotten ``return``. Rank
0 records an instant of this name, with this text."""
VERIFY_FILE = "verify.json"
END_FILE = "launch.json"
NO_CHUNKS = (
    "did it get past its first chunk? A loop of one's own records its chunks if it joins by "
    "`ppwork.ranks.join(plan, run_dir=...)`"
)
"""``check_first`` if no rank recorded a chunk."""
QUEUE = "queue."
"""Prefix of an instant that a rank records at its end for each queue, with how full the queue was."""


def log_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's log."""
    return run_dir / f"rank{rank}.log"


class LaunchEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's last word on a run, for later readers of the folder."""

    exit_code: int
    """torchrun's exit code, negative for a signal, or the launcher's own (``process``)."""
    what: str = ""
    """What went wrong; empty if nothing did."""
    check_first: str = ""
    steps: tuple[Span, ...] = ()
    """The launcher's steps: its checks, torchrun, and reading what the ranks left."""

    def save(self, run_dir: Path) -> None:
        """Write ``launch.json``.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(run_dir / END_FILE, msgspec.json.encode(self))

    @classmethod
    def load(cls, run_dir: Path) -> LaunchEnd | None:
        """Read the file; ``None`` if the run goes on, its launcher was killed, or the file does not read."""
        return read_json(run_dir / END_FILE, cls)


@dataclass(frozen=True)
class FinishedProgram:
    """A program that ran on ranks of this machine and has ended.

    Attributes:
        run_dir: The program's folder.
        exit_code: torchrun's: 0 if the program ended well, ``None`` if it was read back from its folder.
        failure: The first failure, or ``None``.
    """

    run_dir: Path
    exit_code: int | None
    failure: RunFailed | None = None

    def __post_init__(self) -> None:
        """Accept the folder as text, too."""
        object.__setattr__(self, "run_dir", Path(self.run_dir))


@dataclass(frozen=True, repr=False)
class Run(FinishedProgram):
    """One finished run of a plan."""

    @classmethod
    def load(cls, run_dir: Path | str) -> Self:
        """Read back a run that has recorded at least a chunk.

        Raises:
            PlanError: The folder is not a run's, or has no span of any chunk.
            UnreadableError: The run's spans do not read.
        """
        run = cls(Path(run_dir), None)
        try:
            entries = run.entries_by_rank
        except PlanError:
            raise
        except (OSError, ValueError) as error:
            raise UnreadableError(
                f"The spans of {run_dir} do not read: {error}.", check_first="were they written by ppwork?"
            ) from error
        if not any(
            isinstance(entry, Span) and entry.chunk_index >= 0
            for entry in chain.from_iterable(entries.values())
        ):
            raise PlanError(f"The run {run_dir} has no spans of any chunk.", check_first=NO_CHUNKS)
        return run

    @cached_property
    def plan(self) -> Plan:
        """The plan that all ranks read."""
        return Plan.load(self.run_dir)

    @property
    def summary(self) -> dict[str, Any]:
        """The content of ``summary.json``; empty if the run failed before it was written."""
        return read_json(self.run_dir / SUMMARY_FILE, dict[str, Any]) or {}

    @cached_property
    def entries_by_rank(self) -> dict[int, list[Entry]]:
        """Spans and instants of every rank of the plan."""
        return {rank: self.entries(rank) for rank in range(self.plan.world_size)}

    def entries(self, rank: int) -> list[Entry]:
        """Spans and instants of one rank."""
        return read_entries(self.run_dir, rank)

    def complete(self, figures: dict[str, Any]) -> None:
        """Add figures that are known only after the ranks' last chunk to the summary that rank 0 wrote.

        Raises:
            RecordError: The summary cannot be read or written; the old one stays.
        """
        path = self.run_dir / SUMMARY_FILE
        try:
            summary = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            write_whole(path, msgspec.json.format(msgspec.json.encode({**summary, **figures}), indent=2))
        except ValueError as error:
            raise RecordError(
                f"The run ended well, but its summary {path} does not read: {error}.",
                check_first=f"`df -h {self.run_dir}`: was the disk full? did anything else write there?",
            ) from error
        except OSError as error:
            raise RecordError(
                f"The run ended well, but its summary {path} could not be completed: {error.strerror}.",
                check_first=f"`df -h {self.run_dir}`",
            ) from error

    def __repr__(self) -> str:
        state = "failed" if self.failure else "ok" if self.exit_code is not None else "read back"
        return f"Run({str(self.run_dir)!r}, {state}, chunks={self.summary.get('chunks')})"


def as_run(run: Run | os.PathLike[str] | str) -> Run:
    """Return a run, given the run itself or its folder."""
    return run if isinstance(run, Run) else Run(Path(run), None)


def by_how_much(worst: float | None, endless: str = "in number, in shape or by a NaN") -> str:
    """Say how far an output is from its reference; ``endless`` if by infinity: ``None``, as JSON lacks it."""
    return endless if worst is None else f"by {worst}"


def chunks_noted(entries_by_rank: Mapping[int, Sequence[Entry]], name: str) -> list[int]:
    """Return the chunks for which some rank has an entry of this name, such as ``RESULTS_DIFFER``."""
    every = (entry for entries in entries_by_rank.values() for entry in entries)
    return sorted({entry.chunk_index for entry in every if entry.name == name})


def stream_ended(entries: Iterable[Entry]) -> str:
    """Return rank 0's line about the end of its stream, from its entries; empty if there is none."""
    return next((e.text for e in entries if isinstance(e, Instant) and e.name == STREAM_ENDED), "")


def mesh_notes(entries_by_rank: Mapping[int, Sequence[Entry]]) -> dict[str, list[int]]:
    """Return the mesh ranks' notes, as keys of a summary with their chunks; no key is without chunks."""
    names = {ODD_RESULTS: RESULTS_DIFFER, NOTHING_RESET: NOTHING_RESET}
    noted = {key: chunks_noted(entries_by_rank, name) for key, name in names.items()}
    noted[WRITES_DIFFER] = sorted(writes_apart(entries_by_rank))
    noted[METADATA_DIFFERS] = sorted(metadata_apart(entries_by_rank))
    return {key: chunks for key, chunks in noted.items() if chunks}


def metadata_apart(entries_by_rank: Mapping[int, Sequence[Entry]]) -> dict[int, dict[str, dict[int, float]]]:
    """Return the chunks in which mesh ranks gave different metadata: each such key, its digest by rank.

    A rank that gave none is not compared; one that lacks a key has 0.
    """
    said: dict[int, dict[int, Mapping[str, float]]] = {}
    for rank, entries in entries_by_rank.items():
        for entry in entries:
            if isinstance(entry, Instant) and entry.name == SAID:
                said.setdefault(entry.chunk_index, {})[rank] = entry.figures
    apart = {}
    for chunk, by_rank in said.items():
        keys = dict.fromkeys(key for figures in by_rank.values() for key in figures)
        each = {key: {rank: figures.get(key, 0) for rank, figures in by_rank.items()} for key in keys}
        apart[chunk] = {key: ranks for key, ranks in each.items() if len(set(ranks.values())) > 1}
    return {chunk: each for chunk, each in apart.items() if each}


def writes_apart(entries_by_rank: Mapping[int, Sequence[Entry]]) -> dict[int, dict[int, str]]:
    """Return the chunks in which mesh ranks wrote into other tensors: by rank the names of each."""
    wrote: dict[int, dict[int, str]] = {}
    for rank, entries in entries_by_rank.items():
        for entry in entries:
            if isinstance(entry, Instant) and entry.name == WROTE:
                wrote.setdefault(entry.chunk_index, {})[rank] = entry.text
            elif entry.name == "generate" and not isinstance(entry, Instant):
                wrote.setdefault(entry.chunk_index, {}).setdefault(rank, "")
    return {chunk: ranks for chunk, ranks in wrote.items() if len(set(ranks.values())) > 1}
