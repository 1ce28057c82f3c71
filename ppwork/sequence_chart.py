"""A message sequence chart of one call: a line per rank, time downward, boxes for work, arrows for messages.

What is missing is drawn, too: a message that left and never came ends in a cross, and what a rank has not
done stands under its line. The same in words: ``call_table``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ppwork.call_story import CallStory, call_story
from ppwork.call_table import call_finding, call_table
from ppwork.chart_page import LINE, TEXT, TOP, Page, Place
from ppwork.lives import WAYS
from ppwork.plot import MARKERS
from ppwork.show import show
from ppwork.topology import STAGE0_RANK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.call_story import LastWord, Message, Step
    from ppwork.run import Run

STYLES = {
    "encode": ("#0072B2", ""),
    "preflight": ("#F0E442", ""),
    "generate": ("#E69F00", "///"),
    "decode": ("#009E73", "..."),
}
"""Colour and hatch of work; Okabe and Ito's."""
BROKEN, POINT = "#D55E00", "v"


@dataclass(frozen=True)
class SequenceChart:
    """The chart of one call; the bare value at the end of a cell shows it."""

    story: CallStory

    @cached_property
    def figure(self) -> Figure:
        """The picture."""
        return _figure(self.story)

    @property
    def table(self) -> str:
        """The picture as text."""
        return call_table(self.story)

    @property
    def finding(self) -> str:
        """What the picture shows, in one or two sentences."""
        return call_finding(self.story)

    def _repr_html_(self) -> str:
        return show(self.figure, alt=self.finding)._repr_html_()

    def __repr__(self) -> str:
        return f"{self.table}\n{self.finding}"


def sequence_chart(run: Run, *, chunk_index: int) -> SequenceChart:
    """Chart the messages between ranks for one chunk of a run, from its encode to its emission.

    Args:
        run: A finished run, failed or not.
        chunk_index: The chunk.

    Raises:
        PlanError: The run has not begun that chunk.
    """
    return SequenceChart(call_story(run, chunk_index))


def _figure(story: CallStory) -> Figure:
    from matplotlib.figure import Figure

    page = Page(story)
    figure = Figure(figsize=(page.width, page.height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, page.width)
    axes.set_ylim(page.height, 0)
    axes.set_axis_off()
    title = f"call {story.call_id}, chunk {story.chunk_index}, epoch {story.cache_epoch}"
    axes.text(0.15, 0.28, title, fontsize=TEXT + 2, fontweight="bold", va="center")
    _time_axis(axes, page, story)
    _lifelines(axes, page, story)
    for step in story.steps:
        _box(axes, page, step)
    for message in story.messages:
        _message(axes, page, message)
    for word in story.last_words:
        _last_word(axes, page, word)
    _marks(axes, page, story)
    page.write(axes)
    _legend(figure, page, story)
    return figure


def _time_axis(axes: Axes, page: Page, story: CallStory) -> None:
    from matplotlib.ticker import MaxNLocator

    style: dict[str, Any] = {"color": "#777777", "linewidth": 0.8}
    axes.plot([0.6, 0.6], [page.y(0), page.y(story.length_ms)], **style)
    axes.text(0.48, TOP - 0.25, "ms", fontsize=TEXT, ha="right", va="center")
    for ms in MaxNLocator(8).tick_values(0, story.length_ms):
        if 0 <= ms <= story.length_ms:
            axes.plot([0.53, 0.6], [page.y(ms)] * 2, **style)
            axes.text(0.48, page.y(ms), f"{ms:g}", fontsize=TEXT, ha="right", va="center")


def _lifelines(axes: Axes, page: Page, story: CallStory) -> None:
    frame = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": BROKEN, "linestyle": "--"}
    for rank in range(story.topology.world_size):
        x, gap = page.x(rank), "\n" if page.crowded else ", "
        bold: dict[str, Any] = {"fontsize": TEXT + 1, "fontweight": "bold", "ha": "center", "va": "bottom"}
        axes.text(x, TOP - 0.14, f"rank {rank}{gap}{story.topology.role(rank)}", **bold)
        axes.plot([x, x], [TOP - 0.1, page.foot], color="#999999", linewidth=1.2, zorder=1)
        if owed := story.undone.get(rank):
            text = "\n".join(["not done:", *owed])
            place: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": TEXT, "color": BROKEN}
            axes.text(x, page.foot + 0.08, text, bbox=frame, **place)


def _box(axes: Axes, page: Page, step: Step) -> None:
    from matplotlib.patches import Rectangle

    colour, hatch = STYLES[step.name]
    left, top = page.x(step.rank) - page.box / 2, page.y(step.start_ms)
    tall = max(page.y(step.end_ms) - top, 0.02)
    style: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.8}
    gid = f"rank{step.rank}.{step.name}"
    axes.add_patch(Rectangle((left, top), page.box, tall, zorder=3, gid=gid, **style))
    right, foot = left + page.box, top + tall
    page.keep_clear((left, top), (right, top), (right, foot), (left, foot), (left, top))
    took = f"{step.end_ms - step.start_ms:.1f} ms"
    if tall < LINE:
        page.beside(step.rank, top + tall / 2, f"{step.name} {took}")
        return
    text = f"{step.name}\n{took}" if tall > 2.2 * LINE else step.name if page.close else f"{step.name} {took}"
    white = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
    axes.text(
        left + page.box / 2,
        top + tall / 2,
        text,
        fontsize=TEXT,
        ha="center",
        va="center",
        zorder=5,
        bbox=white,
    )


def _message(axes: Axes, page: Page, message: Message) -> None:
    lost = message.arrived_ms is None
    colour, start = BROKEN if lost else "black", page.y(message.left_ms)
    end = start if message.arrived_ms is None else page.y(message.arrived_ms)
    x, to = page.x(message.sender), page.x(message.receiver)
    if lost:
        to -= math.copysign(page.apart * 0.2, to - x)
        cross: dict[str, Any] = {"marker": "x", "markersize": 11, "markeredgewidth": 2.5, "color": colour}
        axes.plot([to], [end], zorder=6, linestyle="none", **cross)
        page.keep_clear((to, end - 0.1), (to, end + 0.1))
    _arrow(axes, page, (x, start), (to, end), color=colour, gid=f"{message.point}.{message.receiver}")
    first, last = sorted((message.sender, message.receiver))
    said = [message.point] if last - first == 1 else []  # across a lifeline: the gap before has the name
    if message.arrived_ms is not None and not page.close:
        said.append(f"{message.arrived_ms - message.left_ms:.1f} ms")
    if said:  # no arrow rises: above its start a text is clear of all that leave there
        page.along(message.sender, message.receiver, start - 0.14, ", ".join(said), colour)


def _last_word(axes: Axes, page: Page, word: LastWord) -> None:
    y = page.y(word.at_ms)
    if word.told_by is not None and word.told_ms is not None:
        start = page.y(min(word.told_ms, word.at_ms))
        tail, head = (page.x(word.told_by), start), (page.x(word.rank), y)
        _arrow(axes, page, tail, head, color=BROKEN, linestyle="--")
    mark: dict[str, Any] = {"marker": "D", "markersize": 9, "color": BROKEN, "markeredgecolor": "white"}
    axes.plot([page.x(word.rank)], [y], zorder=6, linestyle="none", gid=f"last.{word.rank}", **mark)
    page.beside(word.rank, y, word.error_type, color=BROKEN, fontweight="bold")


def _arrow(axes: Axes, page: Page, tail: Place, head: Place, **style: Any) -> None:  # noqa: ANN401
    from matplotlib.patches import FancyArrowPatch

    shape: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 15, "linewidth": 1.6, "shrinkA": 0}
    axes.add_patch(FancyArrowPatch(tail, head, shrinkB=0, zorder=4, **shape, **style))
    page.keep_clear(tail, head)


def _marks(axes: Axes, page: Page, story: CallStory) -> None:
    for point, at in story.points.items():
        sender, *_ = WAYS[point]
        axes.plot([page.x(sender)], [page.y(at)], zorder=6, gid=point, **_mark(POINT))
    if story.end is not None:
        name, at = story.end
        axes.plot([page.x(STAGE0_RANK)], [page.y(at)], zorder=6, gid=name, **_mark(MARKERS[name], 13))
        page.beside(STAGE0_RANK, page.y(at), name)
    if story.injected is not None:
        rank, at = story.injected
        axes.plot([page.x(rank) - 0.25], [page.y(at)], zorder=7, gid="fault", **_mark("X", 12))


def _mark(shape: str, size: float = 9) -> dict[str, Any]:
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.8}
    return {"marker": shape, "markersize": size, "color": "black", "linestyle": "none", **edge}


def _legend(figure: Figure, page: Page, story: CallStory) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label="commitment point", **_mark(POINT)),
        Line2D([], [], color="black", linewidth=1.6, label="message: falls by the time it takes"),
    ]
    if story.injected is not None:
        handles.append(Line2D([], [], label="the fault is put in", **_mark("X", 12)))
    if story.last_words:
        shape: dict[str, Any] = {"marker": "D", "markersize": 9, "linestyle": "none"}
        handles.append(Line2D([], [], color=BROKEN, label="the rank gives up", **shape))
        told = "terminal notice: ends where the rank gives up"
        handles.append(Line2D([], [], color=BROKEN, linestyle="--", linewidth=1.6, label=told))
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.06 / page.height), "ncols": 3}
    figure.legend(handles=handles, frameon=False, fontsize=TEXT, columnspacing=1.2, **place)
