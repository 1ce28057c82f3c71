"""A failure, and when each rank noticed it: one row per rank, from the moment something broke.

A bar says that the stage works, a dotted one that it waits inside for the rank in which it broke; the hatched
stretch is the time in which a peer does not know yet; the mark at its end is the moment it wrote down what it
took for the reason. The rank in which it broke has no such stretch, and a mark only if it could still speak.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ppwork.diagnosis.story import FailureStory, RankStory, failure_story
from ppwork.errors import PlanError, duration, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.records.run import Run, as_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORKS: style.Style = {"facecolor": style.PALE, "edgecolor": "black"}
WAITS: style.Style = {"facecolor": style.FAINT, "edgecolor": style.GREY, "hatch": ".."}
UNAWARE: style.Style = {"facecolor": "none", "edgecolor": style.GREY, "hatch": "////"}
IT_BREAKS: style.Style = {"color": style.BAD, "linewidth": 1.8, "linestyle": "--"}
BROKE, NOTICED = style.FAULT, style.RAISED
WIDTH, MARGINS, ROW = 12.0, (2.6, 3.1, 0.55, 1.1), 0.72
"""Of the figure, as ``style.stacked`` takes them, and of a row, in inches."""
BEFORE, AFTER = 0.25, 1.12
"""Start of the axis before the failure, and its end after it, in units of the last notice."""
SILENT_S = 0.01
"""Length of the axis when no rank ever spoke, in seconds."""
HEAD = ("rank", "role", "at that moment", "noticed after", "took it for", "how it ended")

Stories = Mapping[str, FailureStory]
Failed = Run | FailureStory | os.PathLike[str] | str


def failure(failed: Failed | Mapping[str, Failed], *, title: str = "") -> Picture:
    """Return who was doing what when a run failed, and who noticed when.

    Args:
        failed: A failed run, its folder or its story; or several by title, drawn below each other on one time
            axis.
        title: Name of the only one; default: its fault.

    Raises:
        PlanError: There is nothing to draw, the run did not fail, or no rank of it can be named.
    """
    if isinstance(failed, Mapping):
        stories = {name: _story(each) for name, each in failed.items()}
        finding = " ".join(f"{name}: {_finding(story)}" for name, story in stories.items())
    else:
        story = _story(failed)
        stories, finding = {title or story.fault or "a failure": story}, _finding(story)
    if not stories:
        raise PlanError("There is no failure to draw.", check_first="did the run fail?")
    return Picture(finding, lambda: _draw(stories), _table(stories))


def _story(failed: Failed) -> FailureStory:
    return failed if isinstance(failed, FailureStory) else failure_story(as_run(failed))


def _draw(stories: Stories) -> Figure:
    paper, every = style.stacked([len(story.ranks) * ROW for story in stories.values()], WIDTH, MARGINS)
    last_s = max((at for story in stories.values() for at in story.noticed.values()), default=0.0) or SILENT_S
    unit, word = (1.0, "seconds") if last_s >= 1.0 else (1e3, "milliseconds")
    for axes, (title, story) in zip(every, stories.items(), strict=True):
        axes.set_xlim(-BEFORE * last_s * unit, AFTER * last_s * unit)
        axes.set_title(title, loc="left", x=style.margin(axes), fontsize=13, fontweight="bold")
        _ranks(axes, story, unit)
        axes.tick_params(axis="x", labelsize=11, labelbottom=axes is every[-1])
    every[-1].set_xlabel(f"{word} from the moment it broke", fontsize=11)
    waits = any(_waits(rank) for story in stories.values() for rank in story.ranks)
    keys = [
        style.line_key("it breaks", **IT_BREAKS),
        style.line_key("in this rank", **BROKE),
        style.patch_key("stage works", **WORKS),
        *([style.patch_key("waits inside its stage for this rank", **WAITS)] if waits else []),
        style.patch_key("does not know yet", **UNAWARE),
        style.line_key("notices", **NOTICED),
    ]
    style.legend_below(paper, keys)
    return paper


def _ranks(axes: Axes, story: FailureStory, unit: float) -> None:
    low, high = axes.get_xlim()
    axes.axvline(0, zorder=1, **IT_BREAKS)
    for row, rank in enumerate(story.ranks):
        until = high if rank.noticed_s is None else rank.noticed_s * unit
        if not rank.struck:
            style.bar(axes, 0.0, until, row, 0.56, linewidth=0.8, zorder=2, **UNAWARE)
        waits = _waits(rank)
        for start, end in dict.fromkeys([*rank.work, *([rank.stood] if rank.stood else [])]):
            shown = max(low, start * unit), min(high, end * unit)
            look = WAITS if waits and (start, end) == rank.stood else WORKS
            style.bar(axes, *shown, row, 0.26, linewidth=0.8, zorder=3, **look)
        if rank.struck:
            axes.plot([0], [row - 0.36], zorder=6, clip_on=False, **BROKE)
        if rank.noticed_s is not None:
            axes.plot([until], [row], zorder=5, clip_on=False, **NOTICED)
        _words(axes, row, rank, story)
    axes.set_ylim(len(story.ranks) - 0.5, -0.5)
    axes.set_yticks([])
    style.open_frame(axes)


def _waits(rank: RankStory) -> bool:
    """Say whether a rank was in its stage until it lost a peer there: that was no work of its own."""
    return rank.stood is not None and not rank.struck and rank.error_type.startswith("Peer")


def _words(axes: Axes, row: int, rank: RankStory, story: FailureStory) -> None:
    """Write beside the axis: who and doing what on the left, what it noticed and when on the right.

    Of a rank that waited for another it is that: what it was in when something broke may have ended since.
    """
    after = "" if rank.noticed_s is None else f"after {_time(story, rank.noticed_s)}"
    when = ", ".join(filter(None, [after, rank.ended]))
    doing = f"waits for {rank.waited}" if rank.waited and not rank.struck else rank.doing
    left = (style.margin(axes), f"rank {rank.rank}, {rank.role}", doing)
    right = (1.03, rank.error_type or "never spoke", when)
    for x, head, text in (left, right):
        style.beside(axes, x, row - 0.04, head, va="bottom", fontsize=12, fontweight="bold")
        style.beside(axes, x, row + 0.04, text, va="top", fontsize=11)


def _time(story: FailureStory, seconds: float) -> str:
    """Return how long after the failure something was: all times of one failure have one unit."""
    return f"{seconds:.2f} s" if max(story.noticed.values(), default=0.0) >= 1.0 else duration(seconds)


def _table(stories: Stories) -> Table:
    """Return failures as a table, a line per rank, first to notice first.

    The moment at which a rank died is on no record: its line then says after which step. A column has the
    titles if there are several.
    """
    several = len(stories) > 1
    rows = [[*([title] if several else []), *row] for title, story in stories.items() for row in _rows(story)]
    below = "* here it broke; after: the last step that is on record"
    return Table([*(["run"] if several else []), *HEAD], rows, below=below)


def _rows(story: FailureStory) -> Iterator[list[str]]:
    ranks = {rank.rank: rank for rank in story.ranks}
    for number in [*story.noticed, *(rank.rank for rank in story.ranks if rank.noticed_s is None)]:
        rank = ranks[number]
        after = _time(story, rank.noticed_s) if rank.noticed_s is not None else "never"
        which = f"{number}{'*' if rank.struck else ' '}"
        yield [which, rank.role, rank.doing, after, rank.error_type or "-", rank.ended]


def _finding(story: FailureStory) -> str:
    """State in one sentence who was struck, who noticed first, and when the last one knew."""
    struck, peers = story.struck, story.peers_noticed
    text = f"{story.fault or 'A failure'} struck rank {struck.rank} ({struck.role}: {struck.doing})"
    if alike := [rank for rank in story.ranks if rank.struck][1:]:
        ranks = [struck.rank, *(rank.rank for rank in alike)]
        text = f"{named_ranks(ranks).capitalize()} differ, none more to blame ({struck.role}: {struck.doing})"
    if not peers:
        return f"{text}; no other rank noticed."
    errors = {rank.rank: rank.error_type for rank in story.ranks}
    (first, first_s), *later = peers.items()
    if struck.noticed_s:
        text += f"; it wrote its record after {_time(story, struck.noticed_s)}; of the others"
    else:
        text += ";"
    text += f" rank {first} noticed first, after {_time(story, first_s)} ({errors[first]})"
    if later:
        last, last_s = later[-1]
        text += f", and the last was rank {last}, after {_time(story, last_s)} ({errors[last]})"
    return f"{text}."
