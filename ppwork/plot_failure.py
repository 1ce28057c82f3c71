"""Who noticed when, as a picture, a table and a sentence: one row per rank, from the moment something broke.

A bar says that the stage works; the hatched stretch is the time in which a peer does not know yet; the mark
at its end is the moment it wrote down what it took for the reason. The rank in which it broke has no such
stretch, and a mark only if it could still speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.failure_story import FailureStory, RankStory

WORK, UNAWARE, STRUCK = "#0072B2", "#E69F00", "#D55E00"
"""Of Okabe and Ito; each has a shape or a hatch of its own besides."""
WIDTH, LEFT, RIGHT, ROW, TOP, BOTTOM = 12.0, 2.6, 3.1, 0.72, 0.55, 1.1
"""Of the figure, its margins and a row, in inches."""
BEFORE, AFTER = 0.25, 1.12
"""The axis begins so long before, and ends so long after, in units of the last notice."""
SILENT_S = 0.01
"""Length of the axis when no rank ever spoke, in seconds."""


def plot_failure(stories: Mapping[str, FailureStory]) -> Figure:
    """Draw one or more failures below each other, on one time axis.

    Args:
        stories: What happened, by title.

    Raises:
        PlanError: There is nothing to draw.
    """
    from matplotlib.figure import Figure

    if not stories:
        raise PlanError("There is no failure to draw.", check_first="did the run fail?")
    rows = [len(story.ranks) * ROW for story in stories.values()]
    height = sum(rows) + TOP * len(rows) + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    last_s = max((at for story in stories.values() for at in story.noticed.values()), default=0.0) or SILENT_S
    unit, word = (1.0, "seconds") if last_s >= 1.0 else (1e3, "milliseconds")
    below = height
    for (title, story), tall in zip(stories.items(), rows, strict=True):
        below -= TOP + tall
        box = (LEFT / WIDTH, below / height, (WIDTH - LEFT - RIGHT) / WIDTH, tall / height)
        axes = figure.add_axes(box)
        axes.set_xlim(-BEFORE * last_s * unit, AFTER * last_s * unit)
        axes.set_title(
            title, loc="left", x=-LEFT / (WIDTH - LEFT - RIGHT) * 0.97, fontsize=13, fontweight="bold"
        )
        _draw(axes, story, unit)
        axes.tick_params(axis="x", labelsize=11, labelbottom=story is list(stories.values())[-1])
    axes.set_xlabel(f"{word} from the moment it broke", fontsize=11)
    _legend(figure, height)
    return figure


def _draw(axes: Axes, story: FailureStory, unit: float) -> None:
    low, high = axes.get_xlim()
    axes.axvline(0, color=STRUCK, linewidth=1.8, linestyle="--", zorder=1)
    for row, rank in enumerate(story.ranks):
        known = rank.noticed_s is not None
        until = (rank.noticed_s or 0.0) * unit if known else high
        if not rank.struck:
            _bar(axes, row, 0.0, until, 0.56, facecolor="none", edgecolor=UNAWARE, hatch="////", zorder=2)
        for start, end in rank.work:
            _bar(axes, row, max(low, start * unit), min(high, end * unit), 0.26, facecolor=WORK, zorder=3)
        if rank.struck:
            axes.plot([0], [row - 0.36], color="black", zorder=6, clip_on=False, **_mark("X"))
        if known:
            axes.plot([until], [row], color=STRUCK, zorder=5, clip_on=False, **_mark("D"))
        _words(axes, row, rank)
    axes.set_ylim(len(story.ranks) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bar(axes: Axes, row: int, start: float, end: float, tall: float, **style: Any) -> None:  # noqa: ANN401
    from matplotlib.patches import Rectangle

    if end > start:
        axes.add_patch(Rectangle((start, row - tall / 2), end - start, tall, linewidth=0.8, **style))


def _words(axes: Axes, row: int, rank: RankStory) -> None:
    """Beside the axis, clear of everything: who and doing what on the left, what and when on the right."""
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "clip_on": False}
    left = -LEFT / (WIDTH - LEFT - RIGHT) * 0.97
    axes.text(
        left,
        row - 0.04,
        f"rank {rank.rank}, {rank.role}",
        va="bottom",
        fontsize=12,
        fontweight="bold",
        **place,
    )
    axes.text(left, row + 0.04, rank.doing, va="top", fontsize=11, **place)
    axes.text(
        1.03,
        row - 0.04,
        rank.error_type or "never spoke",
        va="bottom",
        fontsize=12,
        fontweight="bold",
        **place,
    )
    axes.text(1.03, row + 0.04, _when(rank), va="top", fontsize=11, **place)


def _when(rank: RankStory) -> str:
    said = [f"after {duration(rank.noticed_s)}"] if rank.noticed_s is not None else []
    return ", ".join([*said, *([rank.ended] if rank.ended else [])])


def _mark(shape: str) -> dict[str, Any]:
    return {
        "marker": shape,
        "markersize": 12,
        "linestyle": "none",
        "markeredgecolor": "white",
        "markeredgewidth": 1,
    }


def _legend(figure: Figure, height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Line2D([], [], color=STRUCK, linewidth=1.8, linestyle="--", label="it breaks"),
            Line2D([], [], color="black", label="in this rank", **_mark("X")),
            Patch(facecolor=WORK, label="stage works"),
            Patch(facecolor="none", edgecolor=UNAWARE, hatch="////", label="does not know yet"),
            Line2D([], [], color=STRUCK, label="notices", **_mark("D")),
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 0.06 / height),
        ncols=5,
        frameon=False,
        fontsize=11,
    )


def failure_table(story: FailureStory) -> str:
    """Return the picture as a fixed-width table, a line per rank, first to notice first.

    What a rank was in when it died is on no record: its line then says after which step.
    """
    order = [*story.noticed, *(rank.rank for rank in story.ranks if rank.noticed_s is None)]
    ranks = {rank.rank: rank for rank in story.ranks}
    lines = [
        f"{'rank':>4}  {'role':<9} {'at that moment':<26} {'noticed after':>13}  {'took it for':<19} "
        "how it ended"
    ]
    for number in order:
        rank = ranks[number]
        after = duration(rank.noticed_s) if rank.noticed_s is not None else "never"
        mark = "*" if rank.struck else " "
        said = f"{after:>13}  {rank.error_type or '-':<19} {rank.ended}"
        lines.append(f"{number:>3}{mark}  {rank.role:<9} {rank.doing:<26} {said}".rstrip())
    return "\n".join([*lines, "* here it broke; after: the last step that is on record"])


def failure_finding(story: FailureStory) -> str:
    """State in one sentence who was struck, who noticed first, and when the last one knew."""
    struck, peers = story.struck, story.peers_noticed
    fault = story.fault or "A failure"
    said = f"{fault} struck rank {struck.rank} ({struck.role}: {struck.doing})"
    if not peers:
        return f"{said}; no other rank noticed."
    errors = {rank.rank: rank.error_type for rank in story.ranks}
    (first, first_s), *rest = peers.items()
    if struck.noticed_s:
        said += f"; it wrote its record after {duration(struck.noticed_s)}; of the others"
    else:
        said += ";"
    told = f" rank {first} noticed first, after {duration(first_s)} ({errors[first]})"
    if rest:
        last, last_s = rest[-1]
        told += f", and the last was rank {last}, after {duration(last_s)} ({errors[last]})"
    return f"{said}{told}."


def duration(seconds: float) -> str:
    """Return a time as people say it: ``8.1 ms``, ``250 ms``, ``1.2 s``."""
    if seconds >= 1.0:
        return f"{seconds:.1f} s"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"
