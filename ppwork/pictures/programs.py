"""Calls of torch.distributed that anybody's program made: who stood in which, and what met what.

A row for each rank shows the calls it is in, on grey for the program's own code; where a rank has handles, a
row below shows the buffers that torch has meanwhile. An arrow is a message, from the call that sends it to
the moment at which its receiver has it. A tinted band joins the ranks of a collective; it is hatched where
the ranks called different things under one number.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.program_waits import OWN_CODE, ProgramWaits, parted, program_waits
from ppwork.diagnosis.report import ENDED_BY_AGENT
from ppwork.errors import PlanError, duration, named_ranks, ranks_by_value
from ppwork.pictures.call_bands import came_late
from ppwork.pictures.call_positions import missed_group, struck_by
from ppwork.pictures.call_rows import CallRows
from ppwork.pictures.call_work import Marks, Said, Spans, Work, marks_of, own_code, spans_of
from ppwork.pictures.picture import Picture
from ppwork.pictures.shown_time import END, ShownTime
from ppwork.pictures.tables import Table
from ppwork.records.calls import Call, ProgramEnded, RankCalls, read_calls, worlds_inside
from ppwork.records.run import TORCHRUN_LOG, FinishedProgram
from ppwork.timeline.call_trace import call_trace
from ppwork.timeline.meetings import START, Meetings, Stall

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LISTED = 60
"""Calls that the table has a line for; of more it has a line for each line of the program."""
_SHAPE = re.compile(r"(?<=\w)\[[\d, ]*\]")
"""A tensor's shape behind its dtype; the members of a group stand behind a space."""
STOOD_MS = 1.0
"""Milliseconds below which nobody is said to have waited."""
AS_LONG = 0.95
"""Part of the longest stand from which on another one is named with it."""


KILLED = re.compile(
    r"^ppwork: rank (?P<rank>\d+) \(pid \d+, (?P<state>[\w-]+)\) .* and was killed$", re.MULTILINE
)
"""What our launcher says of a rank that it ended."""


def program(
    run: FinishedProgram | Path | str,
    *,
    title: str = "",
    from_ms: float | None = None,
    until_ms: float | None = None,
    after: str = "",
    names: Mapping[int, str] | None = None,
    lent: bool = True,
    bands: bool = True,
    work: Work | None = None,
    spans: Spans | None = None,
    marks: Marks | None = None,
) -> Picture:
    """Return what every rank of a program did with torch.distributed, in milliseconds from its first work.

    Args:
        run: What ``pp.launch_script`` returns, or a folder that ``PPWORK_TRACE`` named.
        title: Name of the program.
        from_ms: Begin of the time to show; default: all of a short program. Of a long one it is a stretch
            about its end if that went badly, else about the longest time for which a rank stood.
        until_ms: End of the time to show.
        after: A function, such as ``new_group``: what comes before a rank has left its last call of it is not
            shown, and milliseconds count from there.
        names: What ranks are, such as ``{2: "link down"}``: it stands below their numbers.
        lent: Whether rows show the buffers that torch has.
        bands: Whether bands join the ranks of a collective: to some readers they look like its messages.
        work: What a rank does in its own code, in front of its n-th call of a function, such as
            ``{(1, "send"): "generate {}".format}``: it stands in the grey where there is room.
        spans: Times to name, each from the begin of one call to the begin of another, such as
            ``{"one period": ((0, "send", 2), (0, "send", 3))}``: a bracket says how long it took.
        marks: Moments to name, each the begin of a call, such as ``{"fill_(2)": (0, "wait", 0)}``: a dashed
            line goes through the rows of its rank, also through the buffers that are lent then.

    The sentence names the longest stand; where somebody asks for a time, the longest in that.

    Raises:
        PlanError: No rank left a call, or there is none in the time to show, of this function, at the end of
            a span, or at a mark.
        UnreadableError: The calls do not read.
    """
    folder = run.run_dir if isinstance(run, FinishedProgram) else Path(run)
    ranks = read_calls(folder)
    unkept = _ended_unseen(ranks) if isinstance(run, FinishedProgram) and run.exit_code == 0 else {}
    met = Meetings(ranks | unkept)
    if not any(of_rank.calls for of_rank in met.ranks.values()):
        raise PlanError(
            "There is no call of torch.distributed to draw.",
            check_first=f"did a rank of the program make one? {folder} has no calls",
        )
    killed = _killed(folder, met)
    end = _with_signals(program_waits(met), killed)
    shown = ShownTime.of(met, end, from_ms, until_ms, after)
    is_cut = from_ms is not None or until_ms is not None or bool(after)
    finding = " ".join(
        [_finding(met, end, shown, is_cut=is_cut), *map(_unkept, unkept.values()), *_worlds(met, folder)]
    )
    said = Said([*own_code(met, work or {})], spans_of(met, spans or {}), marks_of(met, marks or {}))

    def draw() -> Figure:
        rows = CallRows(met, end, shown, title, killed, names, lent=lent, bands=bands, said=said)
        return rows.draw()

    return Picture(finding, draw, _table(met, shown.zero_ns))


def _ended_unseen(ranks: Mapping[int, RankCalls]) -> dict[int, RankCalls]:
    """Return the ranks of a program that ended well whose own end was not recorded, with one."""
    unseen = {rank: of_rank for rank, of_rank in ranks.items() if of_rank.left is None and of_rank.calls}
    return {
        rank: replace(of_rank, left=ProgramEnded(last.end_ns or last.start_ns))
        for rank, of_rank in unseen.items()
        for last in of_rank.calls[-1:]
    }


def _unkept(of_rank: RankCalls) -> str:
    last = of_rank.calls[-1]
    return (
        f"What rank {of_rank.head.rank} called after {last.name} ({last.line}) was not recorded: its program "
        f"closed the recorder's file, or became another."
    )


def _worlds(met: Meetings, folder: Path) -> list[str]:
    """Say what is not seen by itself: functions that were replaced, and other worlds of the same program."""
    said = []
    replaced = {rank: ", ".join(of.left.replaced) for rank, of in met.ranks.items() if of.left is not None}
    for names, ranks in ranks_by_value({rank: names for rank, names in replaced.items() if names}).items():
        said.append(
            f"The program of {named_ranks(ranks)} puts functions of its own in place of {names}: their calls "
            f"are seen where they come to torch's own."
        )
    inside = worlds_inside(folder)
    if inside and inside[1:]:
        said.append(
            f"The program started {len(inside)} worlds of ranks, one after another; this is the last, "
            f"the first is in {inside[0].name}."
        )
    return said


def _killed(folder: Path, met: Meetings) -> dict[int, int]:
    """Return the signal that ended each rank which could not say so itself, as torchrun's report has it.

    Those that torchrun or our launcher ended are not in it: they stood where they stood. One that the
    launcher found stopped has SIGSTOP: so it was before.
    """
    silent = [rank for rank, of_rank in met.ranks.items() if of_rank.left is None]
    if silent:
        with contextlib.suppress(PlanError):  # a folder of calls alone
            codes = read_job(folder).report.codes
            ended = {rank: code for rank, code in codes.items() if code < 0 and code not in ENDED_BY_AGENT}
            ended = {rank: -code for rank, code in ended.items() if rank in silent}
            log = folder / TORCHRUN_LOG
            for by_us in KILLED.finditer(log.read_text(errors="replace") if log.is_file() else ""):
                ended.pop(int(by_us["rank"]), None)
                if by_us["state"] == "stopped":
                    ended[int(by_us["rank"])] = signal.SIGSTOP
            return ended
    return {}


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


def _with_signals(end: ProgramWaits | None, killed: Mapping[int, int]) -> ProgramWaits | None:
    """Say of ranks that were killed between two calls that they were: their calls do not tell."""
    if end is None:
        return None
    waits = tuple(
        wait._replace(call=wait.call.replace(OWN_CODE, struck_by(killed[wait.rank])))
        if wait.rank in killed
        else wait
        for wait in end.waits
    )
    return replace(end, waits=waits)


def _finding(met: Meetings, end: ProgramWaits | None, shown: ShownTime, *, is_cut: bool) -> str:
    asked = shown if is_cut else None
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    names = {call.name for call in calls}
    around = " and ".join(word for word, name in (("init", START), ("destroy", END)) if name in names)
    counted = f" with {around}" if around else ""
    parts = [f"{len(met.ranks)} rank{'s' if len(met.ranks) > 1 else ''}, {len(calls)} calls{counted}."]
    if end is not None:
        parts.append(end.sentence)
    parts += [said] if (said := _groups_not_made(met)) else []
    parts += _outside(met)
    # Beside an end that ranks did not reach, some milliseconds of an earlier call tell nothing.
    stands = said or (end is not None and any(wait.waits_for for wait in end.waits))
    stalls = [] if stands else _stalls(met, asked)
    raised = _raised(met) if end is None else ""
    if stalls and not raised:
        parts.append(_sentence_of(_stood(met, stalls), asked))
    elif raised or end is None:
        nobody = f"nobody waited longer than {STOOD_MS:g} ms for another rank"
        parts.append(raised or _sentence_of(nobody, asked))
    parts += [] if stands or asked is not None else _last_comer(met, shown)
    parts += _ahead(met)
    for rank, of_rank in met.ranks.items():
        if of_rank.lost:
            parts.append(f"Of rank {rank}, {of_rank.lost} calls in the middle were not kept.")
    if len({of_rank.head.clock for of_rank in met.ranks.values()}) > 1:
        parts.append("The ranks are on clocks of several hosts: only the times of one rank can be compared.")
    return " ".join(parts)


def _sentence_of(said: str, asked: ShownTime | None) -> str:
    """Return a sentence; if somebody asked for a time, it says which."""
    if asked is None:
        return f"{said[:1].upper()}{said[1:]}."
    until_ms = asked.ms(min(asked.end_ns, asked.last_ns))  # the axis has some room behind the last call
    return f"Between {asked.ms(asked.start_ns):.0f} and {until_ms:.0f} ms {said}."


def _stalls(met: Meetings, asked: ShownTime | None) -> list[Stall]:
    """Return the stalls worth a word, the longest first: of those in the time that was asked for, if any."""
    long = [stall for stall in met.stalls if stall.ns >= STOOD_MS * 1e6]
    if asked is None:
        return long
    inside = [
        stall
        for stall in long
        if stall.call.start_ns >= asked.start_ns and stall.awaited.start_ns <= asked.end_ns
    ]
    return inside or [stall for stall in long if asked.shows(stall.call)]


def _stood(met: Meetings, stalls: Sequence[Stall]) -> str:
    """Say who stood longest, with those who stood as long for the same call in the same line."""
    stall = stalls[0]
    ranks = [
        other.call.rank
        for other in stalls
        if (other.awaited, other.call.line) == (stall.awaited, stall.call.line)
        and other.ns >= AS_LONG * stall.ns
    ]
    return (
        f"{named_ranks(sorted(set(ranks)))} waited {duration(stall.ns / 1e9)} in {_name(met, stall.call)} "
        f"({stall.call.line}), until rank {stall.awaited.rank} called {stall.awaited.name} "
        f"({stall.awaited.line})"
    )


def _raised(met: Meetings) -> str:
    """Say in which call a rank stood longest that then raised, though the program went on; or nothing."""
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls if call.error and call.end_ns]
    longest = max(calls, key=lambda call: (call.end_ns or 0) - call.start_ns, default=None)
    if longest is None or (ns := (longest.end_ns or 0) - longest.start_ns) < STOOD_MS * 1e6:
        return ""
    waited = f"waited {duration(ns / 1e9)} in {_name(met, longest)} ({longest.line})"
    return f"Rank {longest.rank} {waited}, and got {longest.error.partition(':')[0]}."


def _groups_not_made(met: Meetings) -> str:
    """Say how long ranks stood where they made a group, and why nobody answered under its name."""
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    stood = [(call, missed) for call in calls if (missed := missed_group(met, call))]
    apart = any(meeting.makes_groups and parted(meeting) for meeting in met.meetings)
    if not apart or not stood:
        return ""
    each = (
        f"rank {call.rank} waited {duration(((call.end_ns or 0) - call.start_ns) / 1e9)} {missed}"
        for call, missed in stood
    )
    waited = "; ".join(each)
    return f"{waited[:1].upper()}{waited[1:]}."


def _outside(met: Meetings) -> list[str]:
    """Say of the first collective that a rank called on a group without it that torch did nothing there."""
    calls = (call for of_rank in met.ranks.values() for call in of_rank.calls if met.is_outside(call))
    first = min(calls, key=lambda call: call.start_ns, default=None)
    if first is None:
        return []
    return [
        f"Rank {first.rank} is not in the group of its {first.name} ({first.line}): the call did nothing."
    ]


def _name(met: Meetings, call: Call) -> str:
    """Return the call's name; of a wait also whose handle it is for."""
    origin = met.ranks[call.rank].origin(call)
    return call.name if origin is call else f"the wait of its {origin.name}"


def _ahead(met: Meetings) -> list[str]:
    """Say how long before its stream had a call a rank's host went on, where it was long."""
    waits = {id(loan.call): loan.end_ns for loan in met.loans}
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    ahead = [
        (call.device.end_ns - end_ns, call)
        for call in calls
        if call.device is not None and (end_ns := waits.get(id(call), call.end_ns)) is not None
    ]
    ns, call = max(ahead, key=lambda one: one[0], default=(0, None))
    if call is None or call.device is None or ns < STOOD_MS * 1e6:
        return []
    went = f"Rank {call.rank} went on {duration(ns / 1e9)} before its device had {call.name} ({call.line})"
    return [f"{went}, on {call.device.stream}."]


def _last_comer(met: Meetings, shown: ShownTime) -> list[str]:
    """Say which rank was waited for in most of the collectives, if one was, as the picture marks it."""
    full = [m for m in met.meetings if not m.missing and not m.is_start and len(m.members) > 1]
    waited = {id(stall.awaited) for stall in met.stalls if stall.ns >= STOOD_MS * 1e6}
    late: dict[int, int] = defaultdict(int)
    for meeting in full:
        if id(meeting.ends[meeting.last].call) in waited and came_late(meeting, shown):
            late[meeting.last] += 1
    rank = max(late, key=lambda rank: late[rank], default=None)
    if rank is None or late[rank] < 2 or 2 * late[rank] <= len(full):
        return []
    return [
        f"Rank {rank} came last to {late[rank]} of {len(full)} collectives, and others waited there for it."
    ]


def _table(met: Meetings, zero_ns: int) -> Table:
    """Return the calls as a table: a line for each, or of many a line for each line of the program."""
    calls = sorted(
        (call for of_rank in met.ranks.values() for call in of_rank.calls), key=lambda call: call.start_ns
    )
    stood: dict[int, int] = defaultdict(int)
    for stall in met.stalls:
        stood[id(stall.call)] += stall.ns
    if len(calls) <= LISTED:
        return Table(
            ["rank", "call", "line", "at ms", "took ms", "waited ms", ""],
            [
                [
                    str(call.rank), _shown(met, call), call.line, _ms(call.start_ns - zero_ns),
                    "-" if call.end_ns is None else _ms(call.end_ns - call.start_ns),
                    _ms(stood[id(call)]) if stood[id(call)] else "-", _end_of(met, call),
                ]
                for call in calls
            ],
        )  # fmt: skip
    folded: dict[tuple[int, str, str], list[tuple[Call, str]]] = defaultdict(list)
    for call in calls:
        text = _shown(met, call)
        folded[call.rank, call.begun.site, _SHAPE.sub("", text)].append((call, text))
    rows = []
    for (rank, _, _), pairs in folded.items():
        each, what = [call for call, _ in pairs], _in_one(dict.fromkeys(text for _, text in pairs))
        took = [call.end_ns - call.start_ns for call in each if call.end_ns is not None]
        waited = sum(stood[id(call)] for call in each)
        ends = " ".join(dict.fromkeys(filter(None, (_end_of(met, call) for call in each))))
        rows.append([
            str(rank), what, each[0].line, str(len(each)), _ms(each[0].start_ns - zero_ns), _ms(sum(took)),
            _ms(max(took, default=0)), _ms(waited) if waited else "-", ends,
        ])  # fmt: skip
    head = ["rank", "call", "line", "times", "first ms", "took ms", "longest ms", "waited ms", ""]
    return Table(head, rows, above="a row for each line of the program that makes calls")


def _in_one(texts: Iterable[str]) -> str:
    """Return texts that differ in shapes alone as one, with the smallest and the largest of each size.

    >>> _in_one(["all_reduce SUM float32[5, 32]", "all_reduce SUM float32[15, 32]"])
    'all_reduce SUM float32[5..15, 32]'
    """
    first, *others = texts
    shapes = iter([*zip(*map(_SHAPE.findall, (first, *others)), strict=True)])
    return _SHAPE.sub(lambda _: _spanned(next(shapes)), first)


def _spanned(shapes: Sequence[str]) -> str:
    """Return shapes of one number of sizes as one, and others as dots."""
    if len({shape.count(",") for shape in shapes}) > 1:
        return "[...]"
    sizes = zip(*(map(int, re.findall(r"\d+", shape)) for shape in shapes), strict=True)
    return f"[{', '.join(str(min(s)) if len({*s}) == 1 else f'{min(s)}..{max(s)}' for s in sizes)}]"


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
