"""Calls of torch.distributed that anybody's program made: who stood in which, and what met what.

A row for each rank shows the calls it is in, on grey for the program's own code; where a rank has handles, a
row below shows the buffers that torch has meanwhile. An arrow is a message, from the call that sends it to
the moment at which its receiver has it. A tinted band joins the ranks of a collective.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.diagnosis.standing import Standing, standing, stood_in
from ppwork.errors import PlanError, duration, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.records.calls import WAIT, Call, RankCalls, read_calls
from ppwork.records.run import FinishedProgram
from ppwork.timeline.call_trace import call_trace
from ppwork.timeline.meetings import MAKES_GROUPS, START, Loan, Meeting, Meetings, Message, Stall

if TYPE_CHECKING:
    from matplotlib.artist import Artist

WIDTH, LEFT, RIGHT, ABOVE, BELOW, ROW = 12.0, 1.75, 0.35, 0.5, 0.75, 0.5
"""Of the figure, of its margins (below without the legend), and of a row, in inches."""
KEYS, KEYS_HIGH = 6, 0.24
"""Entries of the legend beside each other, and the height of one, in inches."""
AXIS = WIDTH - LEFT - RIGHT
"""Length of the time axis, in inches."""
COMMON = (
    "send", "recv", "all_reduce", "broadcast", "isend", "irecv", "barrier", "batch_isend_irecv", "all_gather",
    "backward of DDP", "DistributedDataParallel", "init_process_group", "destroy_process_group", "new_group",
    "reduce_scatter", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "gather",
    "scatter", "reduce", "wait_tensor",
)  # fmt: skip
"""Calls that look the same in all pictures."""
SHOWN = 30
"""Calls of one rank that the figure shows at most, where nobody says what to show."""
LISTED = 60
"""Calls that the table has a line for; of more it has a line for each line of the program."""
STALL = 0.03
"""Part of the shown time from which on a stall is said."""
STOOD_MS = 1.0
"""Milliseconds below which nobody is said to have waited."""


def program(
    run: FinishedProgram | Path | str,
    *,
    title: str = "",
    from_ms: float | None = None,
    until_ms: float | None = None,
) -> Picture:
    """Return what every rank of a program did with torch.distributed, in milliseconds from its first work.

    Args:
        run: What ``pp.launch_script`` returns, or a folder that ``PPWORK_TRACE`` named.
        title: Name of the program.
        from_ms: Begin of the time to show; default: all of a short program. Of a long one it is a stretch
            about its end if that went badly, else about the longest time for which a rank stood.
        until_ms: End of the time to show.

    Raises:
        PlanError: No rank left a call, the calls do not read, or there is none in the time to show.
    """
    folder = run.run_dir if isinstance(run, FinishedProgram) else Path(run)
    met = Meetings(read_calls(folder))
    if not any(of_rank.calls for of_rank in met.ranks.values()):
        raise PlanError(
            "There is no call of torch.distributed to draw.",
            check_first=f"did a rank of the program make one? {folder} has no calls",
        )
    end = standing(met)
    window = _window(met, end, from_ms, until_ms)
    return Picture(_finding(met, end), lambda: _Drawing(met, end, window, title).paper, _table(met))


def program_files(folder: Path) -> dict[str, bytes]:
    """Return what people look at of a program's calls, by file name: picture, text table, Perfetto trace.

    Raises:
        PlanError: As ``program``.
    """
    picture = program(folder, title=folder.resolve().name)
    return {
        "calls.png": picture.png(),
        "calls.txt": f"{picture.table}\n\n{picture.finding}\n".encode(),
        "calls-trace.json": call_trace(Meetings(read_calls(folder))),
    }


@dataclass(frozen=True)
class Window:
    """The shown time; ``zero_ns`` is where milliseconds count from."""

    zero_ns: int
    start_ns: int
    end_ns: int

    def ms(self, at_ns: int) -> float:
        """Return a moment in milliseconds."""
        return (at_ns - self.zero_ns) / 1e6

    def shows(self, call: Call) -> bool:
        """Say whether a call is in it, or a part of one."""
        return call.start_ns <= self.end_ns and (call.end_ns is None or call.end_ns >= self.start_ns)


def zero_of(met: Meetings) -> int:
    """Return the first moment of work: ranks come to the start-up as their processes start."""
    every = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    work = [call.start_ns for call in every if call.name not in (START, *MAKES_GROUPS)]
    return min(work or [call.start_ns for call in every])


def _window(met: Meetings, end: Standing | None, from_ms: float | None, until_ms: float | None) -> Window:
    zero = zero_of(met)
    every = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    moments = [moment for call in every for moment in (call.start_ns, call.end_ns) if moment is not None]
    if from_ms is None and until_ms is None:
        last_ns = _before_the_stand(met) if end is not None else max(moments)
        start_ns, end_ns = _stretch(met, end, min(zero, last_ns), last_ns)
    else:
        start_ns = zero if from_ms is None else zero + round(from_ms * 1e6)
        end_ns = max(moments) if until_ms is None else zero + round(until_ms * 1e6)
    window = Window(zero, start_ns, max(end_ns, start_ns + 1000))
    if not any(window.shows(call) for call in every):
        raise PlanError(
            f"There is no call between {window.ms(start_ns):.1f} and {window.ms(end_ns):.1f} ms.",
            check_first=f"the program's last moment is {window.ms(max(moments)):.1f} ms",
        )
    return window


def _before_the_stand(met: Meetings) -> int:
    """Return the last moment but those at which ranks gave up: a long stand would hide all before it."""
    stood = {id(stood_in(of_rank)) for of_rank in met.ranks.values()}
    return max(
        call.start_ns if id(call) in stood or call.end_ns is None else call.end_ns
        for of_rank in met.ranks.values()
        for call in of_rank.calls
    )


def _stretch(met: Meetings, end: Standing | None, first_ns: int, last_ns: int) -> tuple[int, int]:
    """Return an ordinary stretch: all, or ``SHOWN`` calls about what is worth a look."""
    busiest = max(met.ranks.values(), key=lambda of_rank: len(of_rank.calls))
    calls = [call for call in busiest.calls if call.start_ns >= first_ns]
    if len(calls) <= SHOWN:
        return first_ns, last_ns
    if end is not None and end.waits:
        return calls[-SHOWN].start_ns, last_ns
    about_ns = met.stalls[0].call.start_ns if met.stalls else first_ns
    at = next((n for n, call in enumerate(calls) if call.start_ns >= about_ns), 0)
    at = max(0, min(at - SHOWN // 3, len(calls) - SHOWN))
    until = calls[at + SHOWN - 1]
    return calls[at].start_ns, until.end_ns or last_ns


def _finding(met: Meetings, end: Standing | None) -> str:
    calls = sum(len(of_rank.calls) for of_rank in met.ranks.values())
    parts = [f"{len(met.ranks)} rank{'s' if len(met.ranks) > 1 else ''}, {calls} calls."]
    if end is not None:
        parts.append(end.sentence)
    # Beside an end that ranks did not reach, some milliseconds of an earlier call tell nothing.
    stands = end is not None and any(wait.waits_for for wait in end.waits)
    stalls = [stall for stall in met.stalls if stall.ns >= STOOD_MS * 1e6 and not stands]
    raised = _raised(met) if end is None else ""
    parts += [raised] if raised else [f"{_stood(met, stall)}." for stall in stalls[:1]]
    if not stalls and not raised and end is None:
        parts.append(f"Nobody stood longer than {STOOD_MS:g} ms for another.")
    parts += [] if stands else _last_comer(met)
    for rank, of_rank in met.ranks.items():
        if of_rank.lost:
            parts.append(f"Of rank {rank}, {of_rank.lost} calls in the middle were not kept.")
    if len({of_rank.head.clock for of_rank in met.ranks.values()}) > 1:
        parts.append("The ranks are on clocks of several hosts: only the times of one rank can be compared.")
    return " ".join(parts)


def _stood(met: Meetings, stall: Stall) -> str:
    what = _name(met, stall.call)
    return (
        f"Rank {stall.call.rank} stood {duration(stall.ns / 1e9)} in {what} ({stall.call.line}), until rank "
        f"{stall.awaited.rank} called {stall.awaited.name} ({stall.awaited.line})"
    )


def _raised(met: Meetings) -> str:
    """Say in which call a rank stood longest that then raised, though the program went on; or nothing."""
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls if call.error and call.end_ns]
    longest = max(calls, key=lambda call: (call.end_ns or 0) - call.start_ns, default=None)
    if longest is None or (ns := (longest.end_ns or 0) - longest.start_ns) < STOOD_MS * 1e6:
        return ""
    stood = f"stood {duration(ns / 1e9)} in {_name(met, longest)} ({longest.line})"
    return f"Rank {longest.rank} {stood}, and got {longest.error.partition(':')[0]}."


def _name(met: Meetings, call: Call) -> str:
    """Return the call's name; of a wait also whose handle it is for."""
    origin = met.ranks[call.rank].origin(call)
    return call.name if origin is call else f"the wait of its {origin.name}"


def _last_comer(met: Meetings) -> list[str]:
    """Say which rank was waited for in most of the collectives, if one was."""
    full = [m for m in met.meetings if not m.missing and not m.is_start and len(m.members) > 1]
    waited = {id(stall.awaited) for stall in met.stalls if stall.ns >= STOOD_MS * 1e6}
    late: dict[int, int] = defaultdict(int)
    for meeting in full:
        if id(meeting.ends[meeting.last].call) in waited:
            late[meeting.last] += 1
    rank = max(late, key=lambda rank: late[rank], default=None)
    if rank is None or late[rank] < 2 or 2 * late[rank] <= len(full):
        return []
    return [
        f"Rank {rank} came last to {late[rank]} of {len(full)} collectives, and others stood there for it."
    ]


def _table(met: Meetings) -> Table:
    """Return the calls as a table: a line for each, or of many a line for each line of the program."""
    zero = zero_of(met)
    calls = sorted(
        (call for of_rank in met.ranks.values() for call in of_rank.calls), key=lambda call: call.start_ns
    )
    stood: dict[int, int] = defaultdict(int)
    for stall in met.stalls:
        stood[id(stall.call)] += stall.ns
    if len(calls) <= LISTED:
        return Table(
            ["rank", "call", "line", "at ms", "took ms", "stood ms", ""],
            [
                [
                    str(call.rank), _shown(met, call), call.line, _ms(call.start_ns - zero),
                    "-" if call.end_ns is None else _ms(call.end_ns - call.start_ns),
                    _ms(stood[id(call)]) if stood[id(call)] else "-", _end_of(met, call),
                ]
                for call in calls
            ],
        )  # fmt: skip
    folded: dict[tuple[int, str, str], list[Call]] = defaultdict(list)
    for call in calls:
        folded[call.rank, call.begun.site, _shown(met, call)].append(call)
    rows = []
    for (rank, _, what), each in folded.items():
        took = [call.end_ns - call.start_ns for call in each if call.end_ns is not None]
        waited = sum(stood[id(call)] for call in each)
        ends = " ".join(dict.fromkeys(filter(None, (_end_of(met, call) for call in each))))
        rows.append([
            str(rank), what, each[0].line, str(len(each)), _ms(each[0].start_ns - zero), _ms(sum(took)),
            _ms(max(took, default=0)), _ms(waited) if waited else "-", ends,
        ])  # fmt: skip
    head = ["rank", "call", "line", "times", "first ms", "took ms", "longest ms", "stood ms", ""]
    return Table(head, rows, above="a row for each line of the program that makes calls")


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f}"


def _shown(met: Meetings, call: Call) -> str:
    return met.ranks[call.rank].text(call)


def _end_of(met: Meetings, call: Call) -> str:
    if call.error:
        return f"raised {call.error.partition(':')[0]}"
    if call.end_ns is None:
        return "never came back"
    return "nobody waited for it" if id(call) in met.forgotten else ""


class _Drawing:
    """One figure, while it is made."""

    def __init__(self, met: Meetings, end: Standing | None, window: Window, title: str) -> None:
        self._met, self._end, self._window = met, end, window
        self._rows = self._places()
        self._height = max(lent or row for row, lent in self._rows.values()) + 1
        names = dict.fromkeys(call.name for call in self._shown() if call.name != WAIT)
        legend = -(-(len(names) + 5) // KEYS) * KEYS_HIGH
        margins = (LEFT, RIGHT, ABOVE, BELOW + legend)
        self.paper, (self._axes,) = style.stacked([self._height * ROW], WIDTH, margins)
        self._styles = _styles(names)
        self._styles[WAIT] = {
            "facecolor": "white",
            "hatch": "////",
            "edgecolor": style.LINE,
            "linewidth": 0.8,
        }
        self._limits(title)
        for meeting in self._met.meetings:
            self._band(meeting)
        for rank, of_rank in met.ranks.items():
            self._rank(rank, of_rank)
        for message in self._met.messages:
            self._message(message)
        self._legend()

    def _shown(self) -> list[Call]:
        return [c for r in self._met.ranks.values() for c in r.calls if self._window.shows(c)]

    def _places(self) -> dict[int, tuple[int, int | None]]:
        """Return the rows of each rank: its calls, and its loans if it has any."""
        lenders = {loan.call.rank for loan in self._met.loans if self._window.shows(loan.call)}
        places: dict[int, tuple[int, int | None]] = {}
        row = 0
        for rank in self._met.ranks:
            places[rank] = row, row + 1 if rank in lenders else None
            row += 1 + (rank in lenders)
        return places

    def _limits(self, title: str) -> None:
        axes, window = self._axes, self._window
        start, end = window.ms(window.start_ns), window.ms(window.end_ns)
        # Ranks that stand for ever stand to the right edge.
        axes.set_xlim(
            start - 0.01 * (end - start),
            end + (0.3 if self._end and self._end.waits else 0.03) * (end - start),
        )
        axes.set_ylim(self._height - 0.5, -0.5)
        moments = [m for r in self._met.ranks.values() for c in r.calls for m in (c.start_ns, c.end_ns or 0)]
        if window.start_ns > window.zero_ns or window.end_ns < max(moments):
            after = f"{_nice(start)} to {_nice(end)} ms of {_nice(window.ms(max(moments)))}"
            title += f"{', ' * bool(title)}{after}"
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
        axes.set_xlabel("milliseconds from the first call after start-up", fontsize=11)
        axes.tick_params(axis="x", labelsize=11)
        labels = {
            row: word
            for rows in self._rows.values()
            for row, word in zip(rows, ("in a call", "buffer lent"), strict=True)
            if row is not None
        }
        axes.set_yticks(list(labels), list(labels.values()), fontsize=10)
        style.open_frame(axes)

    def _rank(self, rank: int, of_rank: RankCalls) -> None:
        axes, (row, lent) = self._axes, self._rows[rank]
        low, high = axes.get_xlim()
        if row:
            axes.axhline(row - 0.5, color=style.LINE, linewidth=0.8)
        bold: style.Style = {"va": "center", "fontsize": 12, "fontweight": "bold"}
        style.beside(axes, style.margin(axes), row + (0.5 if lent else 0), f"rank {rank}", **bold)
        here = max(low, self._window.ms(of_rank.head.at_ns))
        left = min(high, self._window.ms(of_rank.left.at_ns)) if of_rank.left is not None else high
        style.bar(axes, here, left, row, style.TALL, facecolor=style.PALE, zorder=1)
        calls = [call for call in of_rank.calls if self._window.shows(call)]
        stood = stood_in(of_rank) if self._end is not None else None
        bars = []
        for call in calls:
            start = max(low, self._window.ms(call.start_ns))
            end = high if call.end_ns is None else min(high, self._window.ms(call.end_ns))
            edge = {"edgecolor": style.BAD, "linewidth": 2.2} if call is stood else {}
            look = self._styles[call.name] | edge
            bars.append((start, end, call.name, look))
        style.worded_bars(axes, AXIS, row, bars)
        for call in calls:
            if call.error and call.end_ns is not None and self._window.ms(call.end_ns) <= high:
                axes.plot([self._window.ms(call.end_ns)], [row], zorder=7, clip_on=False, **_mark("P"))
        if words := self._stands(rank, of_rank):
            look = {"va": "center", "fontsize": 9, "zorder": 8, "bbox": style.white_box(0.1)}
            style.beside(axes, 0.995, row - 0.44, words, ha="right", color=style.BAD, **look)
        if lent is not None:
            self._loans([loan for loan in self._met.loans if loan.call.rank == rank], lent)

    def _stands(self, rank: int, of_rank: RankCalls) -> str:
        """Return where a rank stood at the end, in a few words; nothing if all came to it."""
        wait = next((wait for wait in self._end.waits if wait.rank == rank), None) if self._end else None
        if wait is None:
            return ""
        stood = stood_in(of_rank)
        if stood is not None:
            whom = named_ranks(wait.waits_for) if wait.waits_for else "nobody"
            took = f", {duration((stood.end_ns - stood.start_ns) / 1e9)}" if stood.end_ns is not None else ""
            return f"waits for {whom} ({stood.line}{took})"
        return "in code of its own" if of_rank.left is None else "its program has ended"

    def _loans(self, loans: list[Loan], row: int) -> None:
        """Draw loans that overlap above each other, up to four."""
        low, high = self._axes.get_xlim()
        spans = []
        for loan in loans:
            start = self._window.ms(loan.call.start_ns)
            end = high if loan.end_ns is None else self._window.ms(loan.end_ns)
            if start <= high and end >= low:
                spans.append((max(low, start), min(high, end), loan))
        free: list[float] = []
        placed = []
        for start, end, loan in spans:
            slot = next((n for n, until in enumerate(free) if until <= start), len(free))
            free[slot : slot + 1] = [end]
            placed.append((slot, start, end, loan))
        slots = min(4, max(1, len(free)))
        height = style.TALL / slots
        for slot, start, end, loan in placed:
            middle = row - style.TALL / 2 + (slot % slots + 0.5) * height
            until = max(end, start + style.NARROWEST * (high - low))
            look = self._styles[loan.call.name] | {"linewidth": 0.6}
            style.bar(self._axes, start, until, middle, height * 0.86, zorder=3, **look)

    def _band(self, meeting: Meeting) -> None:
        from matplotlib.patches import Polygon

        if len(meeting.ends) < 2 or not any(self._window.shows(e.call) for e in meeting.ends.values()):
            return
        _, high = self._axes.get_xlim()
        left, right = [], []
        for rank, end in sorted(meeting.ends.items()):
            row = self._rows[rank][0]
            edges = (row - style.TALL / 2, row + style.TALL / 2)
            start_ms = self._window.ms(end.call.start_ns)
            end_ms = high if end.done_ns is None else self._window.ms(end.done_ns)
            left += [(start_ms, edge) for edge in edges]
            right += [(end_ms, edge) for edge in edges]
        colour = self._styles.get(meeting.name, {}).get("facecolor", style.GREY)
        self._axes.add_patch(
            Polygon([*left, *reversed(right)], facecolor=colour, alpha=0.22, edgecolor=colour, zorder=2)
        )
        came = self._window.ms(meeting.ends[meeting.last].call.start_ns)
        firsts = min(end.call.start_ns for end in meeting.ends.values())
        shown_ns = self._window.end_ns - self._window.start_ns
        if meeting.ends[meeting.last].call.start_ns - firsts > STALL * shown_ns and not meeting.is_start:
            row = self._rows[meeting.last][0]
            self._axes.plot([came], [row - style.TALL / 2], zorder=7, **style.mark("v", 9))

    def _message(self, message: Message) -> None:
        sent, received = message.sent, message.received
        if sent is None or not self._window.shows(sent.call):
            return
        tail = self._window.ms(sent.call.start_ns), self._rows[message.sender][0]
        if received is None or received.raised:
            self._axes.plot([tail[0]], [tail[1] + style.TALL / 2], zorder=7, **_mark("X"))
            return
        _, high = self._axes.get_xlim()
        done = received.done_ns or received.call.end_ns
        head = high if done is None else min(high, self._window.ms(done)), self._rows[message.receiver][0]
        down = style.TALL / 2 if head[1] > tail[1] else -style.TALL / 2
        fits = (sent.part.dtype, sent.part.size) == (received.part.dtype, received.part.size)
        style.arrow(
            self._axes, (tail[0], tail[1] + down), (head[0], head[1] - down), mutation_scale=11, zorder=6,
            color="black" if fits else style.BAD, linewidth=1.0, linestyle="-" if done else ":",
        )  # fmt: skip

    def _legend(self) -> None:
        names = {call.name for call in self._shown()}
        handles: list[Artist] = [
            style.patch_key(name, **look) for name, look in self._styles.items() if name in names
        ]
        handles.append(style.patch_key("the program's own code", facecolor=style.PALE))
        marks = [
            ("came last", any(line.get_marker() == "v" for line in self._axes.lines), style.mark("v", 9)),
            ("never received", any(line.get_marker() == "X" for line in self._axes.lines), _mark("X")),
            ("raised", any(line.get_marker() == "P" for line in self._axes.lines), _mark("P")),
        ]
        handles += [style.line_key(word, **look) for word, there, look in marks if there]
        style.legend_below(self.paper, handles, ncols=KEYS, fontsize=10, handleheight=1.2)


def _nice(ms: float) -> str:
    """Return milliseconds with as many digits as tell something.

    >>> _nice(2.345), _nice(3024.3)
    ('2.3', '3024')
    """
    return f"{ms:.1f}" if abs(ms) < 10 else f"{ms:.0f}"


def colour_of(name: str) -> str:
    """Return the colour of a call, where nothing but that fits; that of a wait is grey."""
    if name == WAIT or name not in COMMON:
        return style.MEDIUM
    return style.chunk_style(COMMON.index(name))[0]


def _styles(names: Iterable[str]) -> dict[str, style.Style]:
    """Return the look of each call by its name, for ``COMMON`` the same in every picture."""
    known = {name: number for number, name in enumerate(COMMON)}
    free = itertools.count(len(COMMON))
    return {name: style.solid(known[name] if name in known else next(free)) for name in names}


def _mark(shape: str) -> style.Style:
    return style.mark(shape, 12, style.BAD, edge=1.2)
