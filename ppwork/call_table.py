"""One call between ranks in words: a table in order of time, and the sentence that says what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.errors import listed, named_ranks
from ppwork.lives import WAYS
from ppwork.plot_failure import duration

if TYPE_CHECKING:
    from ppwork.call_story import CallStory, Message

HEAD = f"{'ms':>8}  {'rank':>4}  {'role':<9} {'what':<16} {'to rank':>7}  took"


def call_table(story: CallStory) -> str:
    """Return the call as a fixed-width table: a line for each thing done or sent, then the undone."""
    lines: list[tuple[float, str]] = []
    for step in story.steps:
        took = f"{step.end_ms - step.start_ms:.2f} ms"
        lines.append((step.start_ms, _line(story, step.start_ms, step.rank, step.name, "", took)))
    for point, at in story.points.items():
        sender, *_ = WAYS[point]
        sent = [message for message in story.messages if message.point == point]
        if not sent:  # a mesh of one: the point is passed, and nothing moves
            lines.append((at, _line(story, at, sender, point, "-", "-")))
        for message in sent:
            took = "not taken" if message.arrived_ms is None else f"{message.arrived_ms - at:.2f} ms"
            lines.append((at, _line(story, at, sender, point, str(message.receiver), took)))
    if story.end is not None:
        lines.append((story.end[1], _line(story, story.end[1], 0, story.end[0], "", "")))
    if story.injected is not None:
        rank, at = story.injected
        lines.append((at, _line(story, at, rank, "the fault", "", "")))
    for word in story.last_words:
        said = f"gave up: {word.error_type}"
        lines.append((word.at_ms, _line(story, word.at_ms, word.rank, said, "", "")))
    never = [
        _line(story, None, rank, name, "", "not done")
        for rank, names in story.undone.items()
        for name in names
    ]
    return "\n".join([HEAD, *(text for _, text in sorted(lines, key=lambda line: line[0])), *never])


def _line(story: CallStory, at_ms: float | None, rank: int, what: str, to: str, took: str) -> str:
    at = "-" if at_ms is None else f"{at_ms:.2f}"
    return f"{at:>8}  {rank:>4}  {story.topology.role(rank):<9} {what:<16} {to:>7}  {took}".rstrip()


def call_finding(story: CallStory) -> str:
    """State in one or two sentences what passed between the ranks, and how the call ended."""
    head = f"Call {story.call_id}, chunk {story.chunk_index}"
    parts = [_way(point, [m for m in story.messages if m.point == point]) for point in story.points]
    said = (
        f"{head}: {listed(part for part in parts if part)}" if any(parts) else f"{head}: nothing left rank 0"
    )
    if story.end is not None:
        name, at = story.end
        ended = "was emitted" if name == "emit" else "came back stale and was dropped"
        return f"{said}. The chunk {ended} {duration(at / 1e3)} after its encode began."
    said += f". Not done: {listed(f'{listed(names)} on rank {rank}' for rank, names in story.undone.items())}"
    if not story.last_words:
        return f"{said}."
    first = story.last_words[0]
    said += f". Rank {first.rank} spoke first ({first.error_type})"
    told = sorted(word.rank for word in story.last_words if word.told_by is not None)
    return f"{said}; told by notice: {named_ranks(told)}." if told else f"{said}."


def _way(point: str, messages: list[Message]) -> str:
    came = [(m.receiver, m.arrived_ms - m.left_ms) for m in messages if m.arrived_ms is not None]
    lost = [m.receiver for m in messages if m.arrived_ms is None]
    reached = listed(f"rank {rank} in {duration(max(ms, 0.0) / 1e3)}" for rank, ms in came)
    parts = [f"reached {reached}"] if came else []
    parts += [f"was never taken by {named_ranks(lost)}"] if lost else []
    return f"{point} {listed(parts)}" if parts else ""
