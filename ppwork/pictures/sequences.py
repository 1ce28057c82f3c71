"""A message sequence chart of one call: a line per rank, time downward, boxes for work, arrows for messages.

What is missing is drawn, too: a message that left and never came ends in a cross, one that was refused at a
bar, and what a rank has not done stands under its line. Texts come last, each as near to its place as it is
clear of all that is drawn.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppwork.errors import duration, listed, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.pictures.timelines import MARKERS
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.run import Run, as_run
from ppwork.timeline.call import CallStory, LastWord, RankStep, SentMessage, call_story
from ppwork.timeline.chunks import TRANSFER_AT

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

POINTS = {point: style.mark(MARKERS[point], 9) for point in TRANSFER_AT}
FAULT, GIVES_UP, LOST = style.FAULT, style.RAISED, style.NEVER_RECEIVED
REFUSED: style.Style = {
    "linestyle": "none",
    "marker": "|",
    "markersize": 20,
    "markeredgewidth": 4,
    "color": style.BAD,
}
"""The bar at which a message stops that its receiver has read, and does not accept."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 12.0, 3.2, 2.2, 1.0, 0.6
"""Of the figure and its margins, in inches; a lifeline stands at each margin."""
TALL, MOST_APART = 5.0, 3.6
"""Height of the time axis, and distance of two lifelines at most, in inches."""
BOX, NARROW, LINE = 1.3, 0.95, 0.23
"""Width of a box of work (the second where lifelines are close), and height of a line of text, in inches."""
SHIFTS = tuple(sorted((n / 25 for n in range(-40, 41)), key=abs))
"""Inches that a text may move up or down to be clear of what is there, the least first."""
CLEAR = 0.03
"""Room around a text, in inches."""
TEXT = 12
"""Size of most texts, in points: the chart is shown on slides at about half its size."""
ENDS = {"emit": "emit: rank 0 hands it out"}
"""The end of a chunk in the legend."""
KEYS, FEW = 3, 2
"""Columns of the legend, and the number of lifelines beside which there is room for one less."""
CLOSE, CROWDED = 2.6, 1.9
"""Lifelines nearer than this leave less room for texts, or none for rank and role in one line, in inches."""
HEAD = ("ms", "rank", "role", "what", "to rank", "took")

Place = tuple[float, float]
"""In inches from the upper left."""


@dataclass(frozen=True, repr=False, kw_only=True)
class SequenceChart(Picture):
    """The chart of one call."""

    story: CallStory
    """Steps, messages, commitment points and last words of the call."""


def sequence(run: Run | os.PathLike[str] | str, *, chunk_index: int) -> SequenceChart:
    """Return the messages between ranks for one chunk of a run, from its encode to its emission.

    Args:
        run: A finished run, failed or not, or its folder.
        chunk_index: The chunk.

    Raises:
        PlanError: The run has not begun that chunk.
    """
    story = call_story(as_run(run), chunk_index)
    return SequenceChart(_finding(story), lambda: _Chart(story).draw(), _table(story), story=story)


class _Chart:
    """The drawing of one call, in inches from the upper left; time runs downward."""

    def __init__(self, story: CallStory) -> None:
        self.story, world = story, story.topology.world_size
        self.apart = min(MOST_APART, (WIDTH - LEFT - RIGHT) / (world - 1))
        self.close, self.crowded = self.apart < CLOSE, self.apart < CROWDED
        self.box = NARROW if self.close else BOX
        self.foot = TOP + TALL
        owed = max((len(names) + 2 for names in story.undone.values()), default=0)
        height = self.foot + LINE * owed + BOTTOM + LINE * ((2 if story.last_words else 1) + (world == FEW))
        self.paper, self.axes = style.page(LEFT + self.apart * (world - 1) + RIGHT, height)
        self._texts: list[tuple[float, float, str, style.Style]] = []
        self._drawn: list[Path] = []

    def draw(self) -> Figure:
        story = self.story
        title = f"chunk {story.chunk_index}" + ("" if story.call_id >= 0 else ", which became no call")
        self.axes.text(0.15, 0.28, title, fontsize=TEXT + 2, fontweight="bold", va="center")
        self._time_axis()
        self._lifelines()
        for step in story.before:
            self._step(step, f"{step.name}, chunk {story.chunk_index - 1}")
        for step in story.steps:
            self._step(step)
        for message in story.messages:
            self._message(message)
        for word in story.last_words:
            self._last_word(word)
        self._marks()
        self._write()
        self._legend()
        return self.paper

    def x(self, rank: int) -> float:
        """Return where the lifeline of a rank stands."""
        return LEFT + self.apart * rank

    def y(self, ms: float) -> float:
        """Return where a moment stands, in milliseconds from the start of the call."""
        return TOP + ms * TALL / (self.story.length_ms * 1.03)

    def _time_axis(self) -> None:
        from matplotlib.ticker import MaxNLocator

        length = self.story.length_ms
        line: style.Style = {"color": style.GREY, "linewidth": 0.8}
        text: style.Style = {"fontsize": TEXT, "ha": "right", "va": "center"}
        self.axes.plot([0.6, 0.6], [self.y(0), self.y(length)], **line)
        self.axes.text(0.48, TOP - 0.25, "ms", **text)
        for ms in MaxNLocator(8).tick_values(0, length):
            if 0 <= ms <= length:
                self.axes.plot([0.53, 0.6], [self.y(ms)] * 2, **line)
                self.axes.text(0.48, self.y(ms), f"{ms:g}", **text)

    def _lifelines(self) -> None:
        frame = style.white_box(0.25) | {"edgecolor": style.BAD, "linestyle": "--"}
        bold: style.Style = {"fontsize": TEXT + 1, "fontweight": "bold", "ha": "center", "va": "bottom"}
        below: style.Style = {
            "fontsize": TEXT,
            "color": style.BAD,
            "ha": "center",
            "va": "top",
            "bbox": frame,
        }
        for rank in range(self.story.topology.world_size):
            x, gap = self.x(rank), "\n" if self.crowded else ", "
            self.axes.text(x, TOP - 0.14, f"rank {rank}{gap}{self.story.topology.role(rank)}", **bold)
            self.axes.plot([x, x], [TOP - 0.1, self.foot], color=style.LINE, linewidth=1.2, zorder=1)
            if owed := self.story.undone.get(rank):
                self.axes.text(x, self.foot + 0.08, "\n".join(["not done:", *owed]), **below)

    def _step(self, step: RankStep, before: str = "") -> None:
        """Draw work of a rank; pale, and under the name ``before``, if it is of the chunk before."""
        colour, hatch = style.WORK_STEPS[step.name]
        middle, top = self.x(step.rank), self.y(step.start_ms)
        tall = max(self.y(step.end_ms) - top, 0.02)
        look = {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.8}
        if before:
            look |= {"alpha": 0.35, "linestyle": "--", "hatch": ""}
        left, right, foot = middle - self.box / 2, middle + self.box / 2, top + tall
        gid = f"rank{step.rank}.{step.name}{'.before' if before else ''}"
        style.bar(self.axes, left, right, top + tall / 2, tall, zorder=3, gid=gid, **look)
        self._keep_clear((left, top), (right, top), (right, foot), (left, foot), (left, top))
        if before:
            text = before.replace(", ", ",\n") if tall > 2.2 * LINE else before if tall > LINE else ""
            at = foot - 1.1 * LINE if tall > 2.2 * LINE else top + tall / 2  # messages come in above
            self.axes.text(middle, at, text, fontsize=TEXT - 1, zorder=5, **style.CENTRED)
            return
        took = f"{step.end_ms - step.start_ms:.1f} ms"
        if tall < LINE:
            self._beside(step.rank, top + tall / 2, f"{step.name} {took}")
            return
        text = f"{step.name}\n{took}" if tall > 2.2 * LINE else f"{step.name} {took}"
        text = step.name if self.close and tall <= 2.2 * LINE else text
        box = style.white_box(0.12)
        self.axes.text(middle, top + tall / 2, text, fontsize=TEXT, zorder=5, bbox=box, **style.CENTRED)

    def _message(self, message: SentMessage) -> None:
        colour = style.BAD if message.arrived_ms is None else "black"
        start = self.y(message.left_ms)
        came = message.refused_ms if message.arrived_ms is None else message.arrived_ms
        end = start if came is None else self.y(came)
        x, to = self.x(message.sender), self.x(message.receiver)
        if message.arrived_ms is None:
            to -= math.copysign(self.apart * 0.2 if came is None else 0.16, to - x)
            self.axes.plot([to], [end], zorder=6, **(LOST if came is None else REFUSED))
            self._keep_clear((to, end - 0.14), (to, end + 0.14))
        self._arrow((x, start), (to, end), color=colour, gid=f"{message.point}.{message.receiver}")
        # Across a lifeline: the gap before it has the name.
        words = [message.point] if abs(message.sender - message.receiver) == 1 else []
        if message.arrived_ms is not None and not self.close:
            words.append(f"{message.arrived_ms - message.left_ms:.1f} ms")
        if (
            words
        ):  # no arrow rises: above its start, beyond the sender's box, a text is clear of all that leave
            side = 1 if to > x else -1
            look = {"ha": "left" if side > 0 else "right", "color": colour}
            self._texts.append((start - 0.14, x + side * (self.box / 2 + 0.12), ", ".join(words), look))

    def _last_word(self, word: LastWord) -> None:
        x, y = self.x(word.rank), self.y(word.at_ms)
        if word.told_by is not None and word.told_ms is not None:
            start = self.y(min(word.told_ms, word.at_ms))
            self._arrow((self.x(word.told_by), start), (x, y), color=style.BAD, linestyle="--")
        self.axes.plot([x], [y], zorder=6, gid=f"last.{word.rank}", **GIVES_UP)
        self._beside(word.rank, y, word.error_type, color=style.BAD, fontweight="bold")

    def _marks(self) -> None:
        for point, at in self.story.points.items():
            sender, *_ = TRANSFER_AT[point]
            self.axes.plot([self.x(sender)], [self.y(at)], zorder=6, gid=point, **POINTS[point])
        if self.story.end is not None:
            name, at = self.story.end
            look = style.mark(MARKERS[name], 13)
            self.axes.plot([self.x(STAGE0_RANK)], [self.y(at)], zorder=6, gid=name, **look)
            self._beside(STAGE0_RANK, self.y(at), name)
        if self.story.injected is not None:
            rank, at = self.story.injected
            self.axes.plot([self.x(rank) - 0.25], [self.y(at)], zorder=7, gid="fault", **FAULT)

    def _legend(self) -> None:
        message = {"color": "black", "linewidth": 1.6}
        bad = {**message, "color": style.BAD}
        keys = [style.line_key(f"commitment: {point}", **POINTS[point]) for point in self.story.points]
        keys.append(style.line_key("message (time runs down)", **message))
        missed = [message for message in self.story.messages if message.arrived_ms is None]
        if any(message.refused_ms is None for message in missed):
            keys.append(style.line_key("message: never received", **(LOST | {"linestyle": "-", **bad})))
        if any(message.refused_ms is not None for message in missed):
            keys.append(style.line_key("message: read, and refused", **(REFUSED | {"markersize": 13} | bad)))
        if self.story.end is not None:
            name = self.story.end[0]
            keys.append(style.line_key(ENDS.get(name, name), **style.mark(MARKERS[name], 11)))
        if self.story.injected is not None:
            keys.append(style.line_key("the fault is put in", **FAULT))
        if self.story.last_words:
            notice = {**message, "color": style.BAD, "linestyle": "--"}
            keys.append(style.line_key("the rank gives up", **GIVES_UP))
            keys.append(style.line_key("terminal notice", **notice))
        columns = KEYS - (self.story.topology.world_size == FEW)
        style.legend_below(self.paper, keys, ncols=columns, fontsize=TEXT, columnspacing=1.2)

    def _arrow(self, tail: Place, head: Place, **look: Any) -> None:  # noqa: ANN401
        style.arrow(self.axes, tail, head, linewidth=1.6, zorder=4, **look)
        self._keep_clear(tail, head)

    def _keep_clear(self, *points: Place) -> None:
        """Note a line or an area, which no text may touch."""
        from matplotlib.path import Path

        self._drawn.append(Path(points))

    def _beside(self, rank: int, y: float, text: str, **look: Any) -> None:  # noqa: ANN401
        """Note a text beside a lifeline: rank 0's on its left, clear of arrows, the others' on the right."""
        if rank == STAGE0_RANK:
            self._texts.append((y, self.x(rank) - self.box / 2 - 0.07, text, {"ha": "right", **look}))
        else:
            self._texts.append((y, self.x(rank) + 0.22, text, {"ha": "left", **look}))

    def _write(self) -> None:
        """Write the texts from the top down, each as near to its place as it is clear of everything."""
        from matplotlib.transforms import Bbox

        inches = self.axes.transData.inverted()
        white = style.white_box(0.06) | {"alpha": 0.85}
        written: list[Bbox] = []
        for wanted, x, text, look in sorted(self._texts, key=lambda item: item[0]):
            shown = self.axes.text(x, wanted, text, va="center", zorder=7, **{"fontsize": TEXT, **look})
            extent = inches.transform_bbox(shown.get_window_extent())
            box = Bbox.from_extents(extent.xmin, extent.ymin, extent.xmax, extent.ymax).padded(CLEAR)
            shift = next((s for s in SHIFTS if self._free(box.translated(0, s), written)), 0.0)
            shown.set(y=wanted + shift, bbox=white)
            written.append(box.translated(0, shift))

    def _free(self, box: Bbox, written: list[Bbox]) -> bool:
        inside = box.ymin >= TOP - 0.1 and box.ymax <= self.foot + 0.05
        apart = all(not box.overlaps(other) for other in written)
        return inside and apart and not any(path.intersects_bbox(box) for path in self._drawn)


def _table(story: CallStory) -> Table:
    """Return the call as a table: a line for each thing done or sent, in order of time, then the undone."""
    done: list[tuple[float, int, str, str, str]] = [
        (step.start_ms, step.rank, step.name, "", f"{step.end_ms - step.start_ms:.2f} ms")
        for step in story.steps
    ]
    done += [
        (
            step.start_ms,
            step.rank,
            f"{step.name}, chunk {story.chunk_index - 1}",
            "",
            f"{step.end_ms - step.start_ms:.2f} ms",
        )
        for step in story.before
    ]
    for point, at in story.points.items():
        sender, *_ = TRANSFER_AT[point]
        messages = [message for message in story.messages if message.point == point]
        if not messages:  # a mesh of one: the point is passed, and nothing moves
            done.append((at, sender, point, "-", "-"))
        for message in messages:
            lost = "refused" if message.refused_ms is not None else "not taken"
            took = lost if message.arrived_ms is None else f"{message.arrived_ms - at:.2f} ms"
            done.append((at, sender, point, str(message.receiver), took))
    if story.end is not None:
        name, at = story.end
        done.append((at, STAGE0_RANK, name, "", ""))
    if story.injected is not None:
        rank, at = story.injected
        done.append((at, rank, "the fault", "", ""))
    done += [(word.at_ms, word.rank, f"gave up: {word.error_type}", "", "") for word in story.last_words]
    done.sort(key=lambda line: line[0])
    lines = [(f"{ms:.2f}", rank, (what, receiver, took)) for ms, rank, what, receiver, took in done]
    lines += [("-", rank, (name, "", "not done")) for rank, names in story.undone.items() for name in names]
    role = story.topology.role
    return Table(HEAD, [[ms, str(rank), str(role(rank)), *texts] for ms, rank, texts in lines])


def _finding(story: CallStory) -> str:
    """State in one or two sentences what passed between the ranks, and how the call ended."""
    ways = [_way(point, [m for m in story.messages if m.point == point]) for point in story.points]
    passed = listed(way for way in ways if way) if any(ways) else "nothing left rank 0"
    call = f"Call {story.call_id}, chunk {story.chunk_index}"
    # Ids are made as a chunk is sent: one that was refused before has none.
    text = f"{call if story.call_id >= 0 else f'Chunk {story.chunk_index}, which became no call'}: {passed}"
    if story.end is not None:
        name, at = story.end
        ended = "was emitted" if name == "emit" else "came back stale and was dropped"
        return f"{text}. The chunk {ended} {duration(at / 1e3)} after its encode began."
    text += f". Not done: {listed(f'{listed(names)} on rank {rank}' for rank, names in story.undone.items())}"
    if not story.last_words:
        return f"{text}."
    first = story.last_words[0]
    text += f". Rank {first.rank} spoke first ({first.error_type})"
    notified = sorted(word.rank for word in story.last_words if word.told_by is not None)
    return f"{text}; told by notice: {named_ranks(notified)}." if notified else f"{text}."


def _way(point: str, messages: list[SentMessage]) -> str:
    came = [(m.receiver, m.arrived_ms - m.left_ms) for m in messages if m.arrived_ms is not None]
    lost = [m.receiver for m in messages if m.arrived_ms is None and m.refused_ms is None]
    refused = [m.receiver for m in messages if m.arrived_ms is None and m.refused_ms is not None]
    reached = listed(f"rank {rank} in {duration(max(ms, 0.0) / 1e3)}" for rank, ms in came)
    parts = [f"reached {reached}"] if came else []
    parts += [f"was read and refused by {named_ranks(refused)}"] if refused else []
    parts += [f"was never taken by {named_ranks(lost)}"] if lost else []
    return f"{point} {listed(parts)}" if parts else ""
