"""Exercises of the lesson on failures (08)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import product

from ppwork.errors import PeerLostError, TerminalNotice
from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Programs
from ppwork.protocol.envelope import Ids
from ppwork.protocol.notices import notices
from ppwork.protocol.topology import Role

BOUNDS_S = ((60.0, 5.0), (10.0, 2.0), (3.0, 5.0))
"""Of a transfer, and of a stopped process."""


@exercise
def _known_within() -> Iterator[Case]:
    closed = "The system closes the connections of a process that died; nobody waits for a bound."
    for (timeout_s, freeze_s), watchdog in product(BOUNDS_S, (True, False)):
        killed = ("killed", timeout_s, freeze_s, watchdog)
        yield number_case(killed, 0.0, {timeout_s: closed, freeze_s: closed})
        frozen = ("frozen", timeout_s, freeze_s, watchdog)
        habits = {
            0.0: "The system keeps the connections of a stopped process open.",
            timeout_s: "The watchdog is there, and its bound is the shorter one.",
            freeze_s: "A transfer has its own bound, and here it passes first."
            if watchdog
            else "Nobody keeps that bound without a watchdog.",
        }
        yield number_case(frozen, min(freeze_s, timeout_s) if watchdog else timeout_s, habits)


KILL, TERM = -int(signal.SIGKILL), -int(signal.SIGTERM)
LEFT_BEHIND: dict[str, tuple[dict[int, tuple[float, str]], dict[int, int], int]] = {
    "Who speaks first is who noticed first; a closed connection says that somebody else is in trouble.": (
        {0: (5.001, "TerminalNotice"), 1: (5.0, "StageError"), 2: (4.998, "PeerLostError")},
        {0: 3, 1: 1, 2: 3},
        1,
    ),
    "All who spoke report symptoms. Is there a rank that could not speak?": (
        {0: (7.02, "TerminalNotice"), 1: (7.0, "PeerLostError")},
        {0: 3, 1: 3, 2: KILL},
        2,
    ),
    "SIGTERM is torchrun's, for the survivors of the first failure: those ranks are in order.": (
        {0: (9.0, "StageError")},
        {0: 1, 1: TERM, 2: TERM},
        0,
    ),
    "PeerFrozenError says that another rank stands still: one more symptom.": (
        {0: (4.01, "PeerFrozenError"), 1: (4.0, "PeerFrozenError")},
        {0: 3, 1: 3, 2: KILL},
        2,
    ),
    "Two ranks are silent, and one of them got torchrun's SIGTERM: it was in order.": (
        {0: (6.0, "PeerLostError")},
        {0: 3, 1: TERM, 2: KILL},
        2,
    ),
    "A rank that left with code 0 is suspect only where no silent one ended badly.": (
        {1: (8.0, "PeerLostError")},
        {0: 0, 1: 3, 2: KILL},
        2,
    ),
}
"""Records by rank (when, error), exit codes by rank, and the cause, by what to think of."""


@exercise
def _cause() -> Iterator[Case]:
    for thought, (records, codes, right) in LEFT_BEHIND.items():
        yield Case(f"For records {records} and exit codes {codes}", (records, codes), right, thought)


ANSWERED = "It was told; the leader has passed it on as it came. An answer is one message too many."


@exercise
def _whom_to_tell() -> Iterator[Case]:
    errors = (ValueError("its own"), PeerLostError("lost"), TerminalNotice("told"))
    thoughts = {
        Role.LEADER: "Two sides wait for the leader: rank 0 for a result, the followers for a broadcast.",
        Role.STAGE0: "Rank 0 has one link that leads away from it, and is in no group of the mesh.",
        Role.FOLLOWER: "A follower has no link of its own; its closed connections are its notice.",
    }
    for role, error in product(Role, errors):
        name = type(error).__name__
        right = sorted(group for group, _ in notices(role, Ids(3, 3, 0), error))
        thought = ANSWERED if name == "TerminalNotice" else thoughts[role]
        yield Case(f"For the {role} with {name}", (str(role), name), right, thought)


@exercise
def _ranks_survive() -> Iterator[Case]:
    thought = (
        "The launcher holds the pipe's other end; the death signal comes when the parent dies: torchrun."
    )
    for case in product(("launcher", "torchrun"), (True, False), (True, False)):
        killed, pipe, death_signal = case
        text = f"With the {killed} killed, pipe={pipe} and death_signal={death_signal}"
        yield Case(text, case, not (pipe if killed == "launcher" else death_signal), thought)


FUNCTIONS = {"08.1": _known_within, "08.2": _cause, "08.3": _whom_to_tell, "08.4": _ranks_survive}
PROGRAMS: Programs = {}
