"""What lessons are made of: a question before a run, the source that ran, and what can be read off a run.

Everything returns a value that shows itself at the end of a cell, the same in every run where it can be: no
absolute times, no folders. ``exercises`` has the checks of the learner's own answers.
"""

from __future__ import annotations

import ast
import html
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.job_evidence import Evidence, said_of
from ppwork.lives import EntriesByRank, emissions
from ppwork.timeline import Entry, Instant, Span
from ppwork.topology import STAGE0_RANK
from ppwork.torchrun_logs import read_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ppwork.run import Run
    from ppwork.script import ScriptRun

__all__ = [
    "End",
    "Prediction",
    "ends_of",
    "entries_of",
    "left_early",
    "lines_of",
    "predict",
    "side_by_side",
    "source_of",
    "stopwatch_ms",
]

LETTERS = "abcdefgh"
_ADDRESS = re.compile(r" ?<[\w.]+ object at 0x[0-9a-f]+>")  # another one in every run


@dataclass(frozen=True)
class Prediction:
    """A question with numbers to choose from, asked before the run that answers it."""

    question: str
    choices: Mapping[str, float]
    """What each choice says, and the number that it stands for."""
    answer: str = ""
    """The letter that was chosen; empty as long as none is."""

    def __repr__(self) -> str:
        lines = [f"  {letter}  {text}" for letter, text in zip(LETTERS, self.choices, strict=False)]
        said = f"you say {self.answer}" if self.answer else "write your letter into answer= before you run on"
        return "\n".join([self.question, *lines, said])

    def compare(self, measured: float) -> str:
        """Return which choice is nearest to the measured number, and whether it was the one chosen."""
        values = list(self.choices.values())
        nearest = min(range(len(values)), key=lambda place: abs(values[place] - measured))
        letter = LETTERS[nearest]
        said = f"the run says {letter}: {list(self.choices)[nearest]}"
        if not self.answer:
            return f"{said}. You had not answered"
        return f"{said}. {'So did you' if self.answer == letter else f'You said {self.answer}'}"


def predict(question: str, choices: Mapping[str, float], answer: str = "") -> Prediction:
    """Ask for a prediction; its ``compare`` takes the measured number after the run.

    Args:
        question: What will be measured.
        choices: Text of each choice, and the number it stands for in the unit of the measurement.
        answer: The learner's letter, ``a`` for the first choice.

    Raises:
        PlanError: There are fewer than two choices or more than eight, or the letter is none of them.
    """
    letters = LETTERS[: len(choices)]
    if not 2 <= len(choices) <= len(LETTERS):
        raise PlanError(f"A prediction had {len(choices)} choices.", check_first="2 to 8 of them")
    if answer and (len(answer) != 1 or answer not in letters):
        raise PlanError(f"The answer was {answer!r}.", check_first=f"one letter of {', '.join(letters)}")
    return Prediction(question, choices, answer)


def source_of(path: str) -> str:
    """Return the text of a function or class, read from its file: nothing is imported.

    Args:
        path: ``module:name`` or ``module:Class.method``, such as ``ppwork.control:overlap_loop``.

    Raises:
        PlanError: The path is not of that form, or there is no such module or name in it.
    """
    module_name, _, name = path.partition(":")
    text = _text_of(module_name) if name else ""
    if not text:
        raise PlanError(
            f"There is no source {path!r}.", check_first="module:name, as ppwork.control:overlap_loop"
        )
    nodes: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        node = next(
            (
                n
                for n in nodes
                if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == part
            ),
            None,
        )
        if node is None:
            raise PlanError(
                f"The module {module_name} has no {name}.", check_first=f"the names in {module_name}"
            )
        nodes = node.body
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        last = node.end_lineno
    return _to_the_left(text.splitlines()[first - 1 : last])


def lines_of(module_name: str, first: str, count: int) -> str:
    """Return a few lines of a module, where a whole function would hide what they say.

    Args:
        module_name: Such as ``ppwork.groups``; it is not imported.
        first: What the first of them, and no other line of the module, begins with.
        count: How many.

    Raises:
        PlanError: There is no such module, or not exactly one line that begins so.
    """
    lines = _text_of(module_name).splitlines()
    begin = [number for number, line in enumerate(lines) if line.lstrip().startswith(first)]
    if len(begin) != 1:
        raise PlanError(
            f"{len(begin)} lines of {module_name} begin with {first!r}.", check_first="a longer beginning"
        )
    return _to_the_left(lines[begin[0] : begin[0] + count])


def _text_of(module_name: str) -> str:
    """Return the file of a module, or nothing if there is none."""
    try:
        found = importlib.util.find_spec(module_name) if module_name else None
    except (ImportError, ValueError):
        found = None
    path = Path(found.origin) if found is not None and found.origin is not None else None
    return path.read_text() if path is not None and path.is_file() else ""


def _to_the_left(lines: list[str]) -> str:
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


@dataclass(frozen=True)
class SideBySide:
    """Sources in columns, for the end of a cell."""

    sources: Mapping[str, str]

    def _repr_html_(self) -> str:
        place = 'style="text-align:left; vertical-align:top"'
        wrapped = 'style="white-space:pre-wrap"'
        heads = "".join(f"<th {place}><code>{html.escape(path)}</code></th>" for path in self.sources)
        cells = "".join(
            f"<td {place}><pre {wrapped}>{html.escape(text)}</pre></td>" for text in self.sources.values()
        )
        return f"<table><tr>{heads}</tr><tr>{cells}</tr></table>"

    def __repr__(self) -> str:
        return "\n\n".join(self.sources.values())


def side_by_side(*paths: str) -> SideBySide:
    """Return several sources beside each other; paths and errors are those of ``source_of``."""
    return SideBySide({path: source_of(path) for path in paths})


def entries_of(run: Run, first: int | None = None, last: int | None = None) -> dict[int, list[Entry]]:
    """Return the entries of every rank of a run, for pictures and tables.

    Args:
        run: A finished run.
        first: Leave out chunks before this one.
        last: Leave out chunks after this one.
    """
    every = {rank: run.entries(rank) for rank in range(run.plan.world_size)}
    if first is None and last is None:
        return every
    low, high = first or 0, sys.maxsize if last is None else last
    return {rank: [e for e in entries if low <= e.chunk_index <= high] for rank, entries in every.items()}


@dataclass(frozen=True)
class End:
    """How a rank of a program of one's own ended with an exception."""

    line: str
    """Of the program: where it was."""
    error: str
    """Type and text, the same in every run: without the addresses of objects."""


def ends_of(run: ScriptRun) -> dict[int, End]:
    """Return how each rank that raised has ended; one that was killed or went well is not in it."""
    seen = Evidence(read_job(run.run_dir))
    lines = {rank: place.users.text for rank, place in seen.place.items() if place.users is not None}
    said = {rank: _ADDRESS.sub("", said_of(error).splitlines()[0]) for rank, error in seen.error.items()}
    return {rank: End(lines.get(rank, ""), error) for rank, error in said.items()}


def stopwatch_ms(entries_by_rank: EntriesByRank) -> float:
    """Return what a stopwatch around the whole stream says of a chunk: a mean, the first chunk in it.

    From the start of the first encode to the last emission, in milliseconds per emitted chunk.
    """
    emits = emissions(entries_by_rank)
    starts = [e.start_ns for e in entries_by_rank[STAGE0_RANK] if isinstance(e, Span) and e.name == "encode"]
    return (max(emits.values()) - min(starts)) / 1e6 / len(emits)


def left_early(entries_by_rank: EntriesByRank) -> list[int]:
    """Return the chunks whose envelope left before the chunk in front of them began to be decoded.

    This is what overlap is. It compares moments of one clock, rank 0's, and no durations: it cannot be a
    matter of a slow or a quick machine.
    """
    entries = entries_by_rank[STAGE0_RANK]
    left: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, Instant) and entry.name == "envelope.send":
            left.setdefault(entry.chunk_index, entry.at_ns)  # a NOOP or SHUTDOWN later repeats the index
    decode = {e.chunk_index: e.start_ns for e in entries if isinstance(e, Span) and e.name == "decode"}
    return [k + 1 for k, at_ns in sorted(decode.items()) if left.get(k + 1, at_ns) < at_ns]
