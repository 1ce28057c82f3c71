"""What a run recorded, or a simulation: read back, and written as the files that people look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.text_timeline import alt_text, timeline_table
from ppwork.timeline import Entry, Span, read_entries

if TYPE_CHECKING:
    from pathlib import Path

    from ppwork.lives import EntriesByRank


def recorded(run_dir: Path) -> tuple[Plan, dict[int, list[Entry]]]:
    """Return the plan of a run and the entries of every rank.

    Raises:
        PlanError: The folder is not one of a run, its spans do not read, or none is of any chunk.
    """
    plan = Plan.load(run_dir)
    try:
        entries = {rank: read_entries(run_dir, rank) for rank in range(plan.world_size)}
    except ValueError as error:
        raise PlanError(
            f"The spans of {run_dir} do not read: {error}.", check_first="were they written by ppwork?"
        ) from error
    spans = (entry for found in entries.values() for entry in found if isinstance(entry, Span))
    if not any(span.chunk_index >= 0 for span in spans):
        raise PlanError(
            f"The run {run_dir} has no spans of any chunk.", check_first="did it get past its first chunk?"
        )
    return plan, entries


def timeline_files(
    plan: Plan,
    entries: EntriesByRank,
    label: str,
    *,
    beside: tuple[EntriesByRank, str] | None = None,
    chunks: tuple[int | None, int | None] = (None, None),
) -> dict[str, bytes]:
    """Return picture, text table and Perfetto trace by file name.

    Args:
        plan: Of the run or simulation.
        entries: Of every rank.
        label: The picture's title.
        beside: Entries and label of a second run, for a picture of both on one axis.
        chunks: First and last chunk of the picture, both included; default: a window that is worth it.
    """
    from ppwork.plot import as_png, compare_timelines, plot_timeline  # matplotlib: not for every command
    from ppwork.trace import chrome_trace

    first, last = chunks
    said = f"{label}: {alt_text(entries)}"
    if beside is None:
        name = "timeline.png"
        figure = plot_timeline(entries, title=label, first_chunk=first, last_chunk=last)
    else:
        others, other_label = beside
        name, labels = "timeline-compare.png", (label, other_label)
        figure = compare_timelines(entries, others, labels, first_chunk=first, last_chunk=last)
        said += f"\n{other_label}: {alt_text(others)}"
    return {
        name: as_png(figure, alt=said),
        "timeline.txt": f"{timeline_table(entries)}\n\n{said}\n".encode(),
        "trace.json": chrome_trace(entries, plan),
    }
