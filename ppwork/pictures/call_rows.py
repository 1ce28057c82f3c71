"""The figure of a program's calls: rows of bars for each rank, messages between them, words beside them.

A word stands in its bar, or above it at the end of a short line; where there is no room for either, colour
and hatch say it, which are the same in every figure. Above the bars of a rank that stood is room for where.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ppwork.diagnosis.program_waits import ProgramWaits, parted
from ppwork.pictures import style
from ppwork.pictures.call_bands import CallBands
from ppwork.pictures.call_legend import (
    CLOSES,
    CUT,
    FRAME,
    MESSAGES,
    OUTSIDE,
    OWN,
    height_of,
    keys_of,
    mark_of,
    put_legend,
)
from ppwork.pictures.call_positions import STOOD_NS, CallPosition, closed, died_ns, positions
from ppwork.pictures.call_words import handle, lengths_of, words_of_calls
from ppwork.pictures.call_work import NamedTime, Said, bracket, in_the_grey, mark
from ppwork.pictures.lent_row import SMALL, WORD, lent_as, lent_row, word_ms
from ppwork.pictures.shown_time import END, ShownTime
from ppwork.records.calls import LANE, Call
from ppwork.timeline.meetings import BufferLoan, Meetings, Message

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, LEFT, RIGHT, ABOVE, BELOW, ROW, HEAD = 12.0, 1.75, 0.35, 0.45, 0.75, 0.5, 0.56
"""Of the figure, of its margins (below without the legend), and of a row, in inches; of a head, in rows."""
AXIS = WIDTH - LEFT - RIGHT
"""Length of the time axis, in inches."""
NAME = 10
"""Characters of a thread's name."""
AWAY = 0.06
"""Room between a word and what it stands beside, in inches."""


@dataclass(frozen=True)
class Word:
    """A word above a bar, and the moment or the time that it belongs to; all in milliseconds of the axis."""

    at: float
    start: float
    end: float
    text: str
    span: tuple[float, float] | None = None


@dataclass
class ThreadRow:
    """The calls of one thread of a rank, and where they are drawn.

    Attributes:
        row: Middle of its bars.
        words: What is said above them.
        stands: What is said of its rank at the end; nothing if all came to it.
    """

    rank: int
    thread: str
    calls: list[Call]
    row: float = 0.0
    words: list[Word] = field(default_factory=list)
    stands: str = ""


class CallRows:
    """What one figure shows, and where; ``draw`` makes it.

    Args:
        met: What met what in the program.
        end: Where its ranks stand; ``None``: all came to the end.
        shown: The time to draw.
        title: Name of the program.
        killed: Signals that ended ranks, which could not say so themselves.
        names: What ranks are: it stands below their numbers.
        lent: Whether rows show the buffers that torch has.
        bands: Whether the ranks of a collective are joined.
        said: What is said of the ranks' own code, and of times and moments that have a name.
    """

    def __init__(
        self,
        met: Meetings,
        end: ProgramWaits | None,
        shown: ShownTime,
        title: str,
        killed: Mapping[int, int],
        names: Mapping[int, str] | None = None,
        *,
        lent: bool = True,
        bands: bool = True,
        said: Said,
    ) -> None:
        self._title, self._bands = title, bands
        self._roles, self._said = names or {}, said
        gone = [rank for rank, number in killed.items() if number != signal.SIGSTOP]
        self._died = {rank: died_ns(met, rank) for rank in gone}
        self._met, self._shown = met, shown
        self._low, self._high = shown.limits
        self._inch = (self._high - self._low) / AXIS
        self._stands = positions(met, end, shown.end_ns, killed)
        self._closed = closed(met, end)
        self._calls = [c for of in met.ranks.values() for c in of.calls if shown.shows(c)]
        apart = {m.group for m in met.meetings if parted(m) and not m.makes_groups}
        lengths = lengths_of(met.meetings)
        self._names = words_of_calls(met, self._calls, apart, lengths)
        self._unequal = lengths.keys()
        # Also what was lent before the first moment: it is lent still.
        self._loans = [loan for loan in met.loans if lent and self._span(loan) is not None]
        self._lanes = self._threads()
        self._lent: dict[int, float] = {}
        self._streams: dict[tuple[int, str], float] = {}
        """Rows of CUDA streams, by rank and name."""
        self._height = self._places()

    def draw(self) -> Figure:
        """Return the figure, made anew."""
        keys = keys_of([*(call.name for call in self._calls), *map(lent_as, self._loans)])
        margins = (LEFT, RIGHT, ABOVE, BELOW + height_of(keys))
        paper, (self._axes,) = style.stacked([self._height * ROW], WIDTH, margins)
        self._limits()
        joined = CallBands(
            self._axes, self._shown, self._x, lambda call: self._lane_of(call).row, joined=self._bands
        )
        for meeting in self._met.meetings:
            joined.draw(meeting)
        for lane in self._lanes:
            self._bars(lane)
        counted = [self._rank(rank) for rank in self._met.ranks]
        for call, closes in self._closed:
            self._closes(call, closes)
        messages = {self._message(message) for message in self._met.messages}
        if self._shown.gap is not None:
            self._broken()
        ends = {call.name for call in self._calls} & {*CUT}
        places = [stand for stand in self._stands.values() if stand.own]
        seen = any(of.framed for of in places)
        stood = "was here" if seen else "waited here" if any(map(self._framed, self._calls)) else ""
        own = not all(of.framed for of in places)
        put_legend(
            paper, keys, ends=ends, cut_end=self._cuts_end(), bands=joined.keys, messages=messages,
            stood=stood, own=own, counted=any(counted), closed=bool(self._closed), notes=joined.notes,
        )  # fmt: skip
        return paper

    def _cuts_end(self) -> bool:
        """Say whether the shut-down of a rank goes on where the axis ends."""
        ends = [call.end_ns for call in self._calls if call.name == END]
        return self._shown.cut_end and any(end is None or end > self._shown.end_ns for end in ends)

    def _x(self, at_ns: int | None) -> float:
        """Return where a moment is on the axis; what never came is at its end, as is what comes later."""
        return self._high if at_ns is None else min(self._high, max(self._low, self._shown.x(at_ns)))

    def _sides(self, call: Call) -> tuple[float, float]:
        left = self._x(call.start_ns)
        end_ns = self._gone_ns(call.rank) if call.end_ns is None else call.end_ns
        return left, max(self._x(end_ns), left + style.NARROWEST * (self._high - self._low))

    def _seen_from(self, call: Call) -> float:
        """Return where a call begins to be seen: behind short calls of its thread that are drawn wider."""
        left, right = self._sides(call)
        before = [c for c in self._lane_of(call).calls if c.start_ns < call.start_ns]
        return min(right, max([left, *(self._sides(c)[1] for c in before)]))

    def _span(self, loan: BufferLoan) -> tuple[float, float] | None:
        start, end = self._shown.x(loan.call.start_ns), loan.end_ns
        if start > self._high or (end is not None and self._shown.x(end) < self._low):
            return None
        return max(self._low, start), self._x(end)

    def _threads(self) -> list[ThreadRow]:
        lanes = []
        for rank, of_rank in self._met.ranks.items():
            threads = sorted({call.begun.thread for call in self._calls if call.rank == rank}) or [""]
            for thread in threads:
                calls = [c for c in of_rank.calls if c.begun.thread == thread and self._shown.shows(c)]
                lanes.append(ThreadRow(rank, thread, calls))
            stood = self._stand(rank).call
            where = stood.begun.thread if stood is not None and stood.begun.thread in threads else threads[0]
            next(ln for ln in lanes if (ln.rank, ln.thread) == (rank, where)).stands = self._stand(rank).text
        return lanes

    def _stand(self, rank: int) -> CallPosition:
        return self._stands.get(rank, CallPosition())

    def _places(self) -> float:
        """Give every lane its words and its row, and return the height of all."""
        top = 0.0
        for rank in self._met.ranks:
            for lane in (lane for lane in self._lanes if lane.rank == rank):
                self._say(lane)
                lane.row = top + 0.5 + HEAD * bool(lane.words)
                top = lane.row + 0.5
            if any(loan.call.rank == rank for loan in self._loans):
                self._lent[rank] = top + 0.5
                top += 1
            for name in dict.fromkeys(
                call.device.stream for call in self._calls if call.rank == rank and call.device is not None
            ):
                self._streams[rank, name] = top + 0.5
                top += 1
        return top

    def _lane_of(self, call: Call) -> ThreadRow:
        return next(ln for ln in self._lanes if (ln.rank, ln.thread) == (call.rank, call.begun.thread))

    # The words.

    def _wide(self, word: str, size: float) -> float:
        """Return the length of a word, in milliseconds of the axis."""
        return word_ms(word, size, self._inch)

    def _say(self, lane: ThreadRow) -> None:
        """Find the places of the words above a lane."""
        stand = self._stand(lane.rank)
        if lane.stands:
            wide = self._wide(lane.stands, SMALL)
            left = self._leaves(lane.rank)
            if stand.call is not None:
                left = self._behind_word(lane, stand.call, wide)
            elif stand.own is not None:
                left = self._x(stand.own[0])
            if stand.call is not None or stand.own or left + wide + 0.1 * self._inch > self._high:
                start = max(self._low, min(left + AWAY * self._inch, self._high - wide))
                lane.words.append(Word(start, start, start + wide, lane.stands))
        lane.words += [self._spanned(span) for span in self._said.spans if span.call in lane.calls]
        lane.words += [self._marked(*one) for one in self._said.marks if one.call in lane.calls]
        said = {self._inside(call)[0] for call in lane.calls}
        away = AWAY * self._inch
        # First of the collectives that kept some ranks much longer than others: the picture is about them.
        # So it is about a call that did nothing, because its rank is not in the group.
        for call in sorted(
            lane.calls, key=lambda call: id(call) not in self._unequal and not self._met.is_outside(call)
        ):
            if self._inside(call)[0] or call.name in CUT:
                continue
            at = sum(self._sides(call)) / 2
            # To the right of its line; to the left only what has no room there.
            for text, left in [(text, left) for left in (False, True) for text in self._names[id(call)]]:
                wide = self._wide(text, SMALL)
                start = at - away - wide if left or at + away + wide > self._high else at + away
                sides = min(at, start), max(at, start + wide)
                taken = any(
                    sides[0] < word.end + away and word.start < sides[1] + away for word in lane.words
                )
                if text in said or taken or start < self._low:
                    continue
                lane.words.append(Word(at, start, start + wide, text))
                said |= set(self._names[id(call)])
                break

    def _behind_word(self, lane: ThreadRow, call: Call, wide: float) -> float:
        """Return where the word of the call in which a rank stood begins: behind that of the call before it.

        Only if the word then still begins above its call, and ends on the paper.
        """
        left, (_, right) = self._seen_from(call), self._sides(call)
        before = [c for c in lane.calls if c.start_ns < call.start_ns]
        if not before or before[-1].name in CUT or self._inside(before[-1])[0]:
            return left
        middle, away = sum(self._sides(before[-1])) / 2, AWAY * self._inch
        room = (middle + 2 * away + self._wide(word, SMALL) for word in self._names[id(before[-1])])
        behind = next((end for end in room if end < right and end + away + wide < self._high), left)
        return max(left, behind)

    def _spanned(self, span: NamedTime) -> Word:
        """Return the word of a span: in its middle, and on the paper."""
        left, right = self._x(span.call.start_ns), self._x(span.end_ns)
        middle, wide = (left + right) / 2, self._wide(span.word, SMALL)
        start = max(self._low, min(middle - wide / 2, self._high - wide))
        return Word(middle, min(left, start), max(right, start + wide), span.word, (left, right))

    def _marked(self, call: Call, word: str) -> Word:
        """Return the word of a mark: to the right of its line, or to the left where there is more room."""
        at, wide, away = self._x(call.start_ns), self._wide(word, SMALL), AWAY * self._inch
        start = at + away if at + away + wide < self._high else at - away - wide
        return Word(at, start, start + wide, word)

    def _inside(self, call: Call) -> tuple[str, float]:
        """Return the longest of a call's words for which its bar has room, and where: not on a break."""
        left, right = self._whole(*self._sides(call))
        room = right - left - 0.16 * self._inch
        fits = (word for word in self._names[id(call)] if self._wide(word, WORD) < room)
        return next(fits, ""), (left + right) / 2

    def _lent_name(self, loan: BufferLoan) -> str:
        """Return what a loan is called: of a collective that has a number its group and that."""
        first = self._names[id(loan.call)][0] if id(loan.call) in self._names else ""
        if "#" in first:
            return first
        return handle(self._met.ranks[loan.call.rank], loan.call, loan.part)[0]

    def _whole(self, left: float, right: float) -> tuple[float, float]:
        """Return the longer side of a bar beside the break, if that is in it."""
        if self._shown.gap is None:
            return left, right
        middle = sum(self._shown.x(at) for at in self._shown.gap) / 2
        sides = (left, min(right, middle)), (max(left, middle), right)
        return max(sides, key=lambda side: side[1] - side[0])

    def _gone_ns(self, rank: int) -> int | None:
        """Return when a rank's process ended, also with threads of it in calls; ``None``: not known."""
        left = self._met.ranks[rank].left
        return left.at_ns if left is not None else self._died.get(rank)

    def _leaves(self, rank: int) -> float:
        return self._x(self._gone_ns(rank))

    def _framed(self, call: Call) -> bool:
        """Say whether a call is where its rank stood: at the end, or before its program caught an error."""
        stand = self._stand(call.rank)
        if call is stand.call:
            return stand.framed
        return not stand.text and bool(call.error) and (call.end_ns or 0) - call.start_ns >= STOOD_NS

    # What is drawn.

    def _limits(self) -> None:
        axes, shown, title = self._axes, self._shown, self._title
        axes.set_xlim(self._low, self._high)
        axes.set_ylim(self._height, 0)
        title += f"{': ' * bool(title and shown.words)}{shown.words}"
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
        axes.set_xlabel(f"milliseconds {shown.since}", fontsize=11)
        axes.tick_params(axis="x", labelsize=11)
        if shown.gap is not None:
            axes.set_xticks(*self._ticks())
        several = {rank for rank, n in Counter(lane.rank for lane in self._lanes).items() if n > 1}
        labels = {
            lane.row: _thread(lane.thread) if lane.rank in several else "in a call" for lane in self._lanes
        }
        labels |= dict.fromkeys(self._lent.values(), "buffer lent")
        labels |= {row: f"on {name}" for (_, name), row in self._streams.items()}
        axes.set_yticks(list(labels), list(labels.values()), fontsize=10)
        style.open_frame(axes)

    def _ticks(self) -> tuple[list[float], list[str]]:
        """Return ticks on both sides of the break, and the true end of the time behind it.

        The end has as many decimals as it takes to be more than the tick in front of it.
        """
        assert self._shown.gap is not None  # noqa: S101  the caller has asked
        shown, (first, then), every = self._shown, self._shown.gap, self._axes.get_xticks()
        before = [float(tick) for tick in every if self._low <= tick < shown.x(first)]
        step, last = float(every[1] - every[0]), shown.ms(shown.last_ns)
        number = int(shown.ms(then) // step) + 1
        after = [n * step for n in range(number, int(last // step) + 1) if last - n * step > 0.6 * self._inch]
        behind = [shown.x(shown.zero_ns + round(ms * 1e6)) for ms in (*after, last)]
        round_ones = [*before, *after]
        digits = next(n for n in range(7) if n == 6 or round(last, n) > max(round_ones, default=-1.0))
        return [*before, *behind], [*(f"{ms:.10g}" for ms in round_ones), f"{last:.{digits}f}"]

    def _bars(self, lane: ThreadRow) -> None:
        axes, row = self._axes, lane.row
        here = self._x(self._met.ranks[lane.rank].head.at_ns)
        stand = self._stand(lane.rank)
        # Of a rank that was lost it is not known what it did then: that is white in all its rows.
        lost = stand.own if stand.framed else None
        leaves = self._leaves(lane.rank) if lost is None else self._x(lost[0])
        style.bar(axes, here, leaves, row, style.TALL, facecolor=style.PALE, zorder=1)
        if stand.own is not None and lane.stands:
            start, until = self._x(stand.own[0]), self._x(stand.own[1])
            style.bar(axes, start, until, row, style.TALL, zorder=4, **(FRAME if stand.framed else OWN))
        for call in lane.calls:
            left, right = self._sides(call)
            look = OUTSIDE if self._met.is_outside(call) else style.call(call.name)
            # The shut-down behind a short call that is drawn wider than it is.
            style.bar(axes, left, right, row, style.TALL, zorder=2.5 if call.name in CUT else 3, **look)
            if self._framed(call):
                style.bar(axes, left, right, row, style.TALL, zorder=4, **FRAME)
            text, at = self._inside(call)
            if text:
                look = {"fontsize": WORD, "zorder": 6.5, "bbox": style.white_box(0.12)}  # before a message
                axes.text(at, row, text, **style.CENTRED, **look)
            if call.error and call.end_ns is not None and self._shown.x(call.end_ns) <= self._high:
                axes.plot([right], [row + style.TALL / 2], zorder=7, clip_on=False, **mark_of("P"))
        for own in (own for own in self._said.work if own.call in lane.calls):
            sides = self._whole(self._x(own.start_ns), self._x(own.call.start_ns))
            in_the_grey(axes, sides, row, own.word, self._inch)
        for one in (one for one in self._said.marks if one.call in lane.calls):
            last = self._lent.get(lane.rank, row) + style.TALL / 2
            mark(axes, self._x(one.call.start_ns), (row - style.TALL / 2, last))
        if lane.rank in self._died and lane.stands and stand.call is not None:
            inside = self._leaves(lane.rank) - 0.09 * self._inch
            axes.plot([inside], [row], zorder=9, clip_on=False, **mark_of("8"))
        bold: style.Style = {
            "fontsize": SMALL,
            "va": "center",
            "color": style.DARK if stand.own is not None and not stand.framed else style.ALARM,
            "fontweight": "bold",
            "zorder": 8,
        }
        for word in lane.words:
            look = bold if word.text == lane.stands else {"fontsize": SMALL, "va": "center", "zorder": 8}
            top = row - style.TALL / 2
            if word.span is not None:
                bracket(axes, *word.span, top - 0.16)
                axes.text((word.start + word.end) / 2, top - 0.44, word.text, ha="center", **look)
                continue
            axes.text(word.start, top - 0.42, word.text, bbox=style.white_box(0.05), **look)
            if word.text != lane.stands:
                axes.plot([word.at, word.at], [top - 0.5, top], color=style.DARK, linewidth=0.8, zorder=5)
        if lane.stands and all(word.text != lane.stands for word in lane.words):
            axes.text(self._leaves(lane.rank) + 0.08 * self._inch, row, lane.stands, **bold)

    def _rank(self, rank: int) -> bool:
        """Draw what is of a whole rank, and return whether its lent buffers are counted."""
        known = [lane.row for lane in self._lanes if lane.rank == rank]
        known += [self._lent[rank]] if rank in self._lent else []
        known += [row for (of, _), row in self._streams.items() if of == rank]
        bold = {"va": "center", "fontsize": 12, "fontweight": "bold"}
        left, middle, role = style.margin(self._axes), (known[0] + known[-1]) / 2, self._roles.get(rank, "")
        style.beside(self._axes, left, middle - (0.2 if role else 0), f"rank {rank}", **bold)
        if role:
            style.beside(self._axes, left, middle + 0.25, role, va="center", fontsize=10)
        if rank != next(iter(self._met.ranks)):
            first = next(lane for lane in self._lanes if lane.rank == rank)
            edge = first.row - 0.5 - HEAD * bool(first.words)
            self._axes.axhline(edge, color=style.MEDIUM, linewidth=0.8, zorder=0)
        counted = False
        if rank in self._lent:
            loans = [
                (*span, loan)
                for loan in self._loans
                if loan.call.rank == rank and (span := self._span(loan)) is not None
            ]
            counted = lent_row(self._axes, loans, self._lent[rank], self._inch, self._whole, self._lent_name)
        for call in self._calls:
            if call.rank == rank and call.device is not None:
                self._on_device(call)
        return counted

    def _closes(self, call: Call, closes: Call) -> None:
        """Draw from where a rank closed its connections to the call of a peer that this broke.

        To its end, where the mark of its exception leaves the arrow's head free; to the begin of one that
        came only later.
        """
        tail, head = self._lane_of(closes).row, self._lane_of(call).row
        down = style.TALL / 2 if head > tail else -style.TALL / 2
        late = call.start_ns > closes.start_ns
        to = (self._x(call.start_ns), head) if late else (self._x(call.end_ns), head - down)
        ends = (self._seen_from(closes), tail + down), to
        style.arrow(self._axes, *ends, mutation_scale=11, zorder=6, **CLOSES)

    def _on_device(self, call: Call) -> None:
        """Draw when a call ran on its stream."""
        assert call.device is not None  # noqa: S101  the caller has asked
        row = self._streams[call.rank, call.device.stream]
        left, right = self._x(call.device.start_ns), self._x(call.device.end_ns)
        right = max(right, left + style.NARROWEST * (self._high - self._low))
        style.bar(self._axes, left, right, row, style.TALL, zorder=3, **style.call(call.name))
        if self._wide(call.name, WORD) < right - left - 0.16 * self._inch:
            look: style.Style = {"fontsize": WORD, "zorder": 5, "bbox": style.white_box(0.12)}
            self._axes.text((left + right) / 2, row, call.name, **style.CENTRED, **look)

    def _message(self, message: Message) -> str:
        """Draw a message, and return its words in the legend; nothing if no arrow is drawn."""
        sent, received = message.sent, message.received
        if sent is None or not self._shown.shows(sent.call):
            return ""
        tail = self._x(sent.call.start_ns), self._lane_of(sent.call).row
        if received is None or received.raised:
            if message.receiver not in self._died:  # else the mark of its death says it
                # Not where the mark of its exception is.
                edge = -style.TALL / 2 if sent.call.error else style.TALL / 2
                self._axes.plot([tail[0]], [tail[1] + edge], zorder=7, **mark_of("X"))
            return ""
        # Of a handle that nobody waited for, the end of its irecv is no moment of the message.
        done = received.done_ns
        rows = [ln.row for ln in self._lanes if ln.rank == message.receiver]
        known = [ln.row for ln in self._lanes if received.call in ln.calls]
        head = self._x(done or self._gone_ns(message.receiver)), (known or rows)[0]
        down = style.TALL / 2 if head[1] > tail[1] else -style.TALL / 2
        fits = (sent.part.dtype, sent.part.size) == (received.part.dtype, received.part.size)
        kind, look = MESSAGES[fits, bool(done)]
        ends = (tail[0], tail[1] + down), (head[0], head[1] - down)
        style.arrow(self._axes, *ends, mutation_scale=11, zorder=6, **look)
        return kind

    def _broken(self) -> None:
        """Draw the break: two slanted lines through every row and the axis."""
        assert self._shown.gap is not None  # noqa: S101  the caller has asked
        middle = sum(self._shown.x(at) for at in self._shown.gap) / 2
        lean, apart = 0.06 * self._inch, 0.07 * self._inch
        bottom, _ = self._axes.get_ylim()
        rows = [*(lane.row for lane in self._lanes), *self._lent.values(), *self._streams.values()]
        for top, foot in [(row - 0.42, row + 0.42) for row in rows] + [(bottom - 0.12, bottom + 0.12)]:
            sides = (middle - apart / 2, middle + apart / 2)
            self._axes.fill(
                [sides[0] + lean, sides[1] + lean, sides[1] - lean, sides[0] - lean], [top, top, foot, foot],
                color="white", zorder=6, clip_on=False,
            )  # fmt: skip
            for side in sides:
                ends = [side + lean, side - lean], [top, foot]
                self._axes.plot(*ends, color="black", linewidth=1.2, zorder=7, clip_on=False)


def _thread(thread: str) -> str:
    """Return a thread's own name, or what its program calls it by, as the margin has room for it."""
    name = thread.rpartition(" ")[0] or "main"
    if name.endswith(")"):  # its target
        return name.rpartition("(")[2][:-1][:NAME]
    name = name.removeprefix(LANE)  # the group's name is left
    return "helper" if name.startswith(("Thread-", "ThreadPoolExecutor-")) else name[:NAME]
