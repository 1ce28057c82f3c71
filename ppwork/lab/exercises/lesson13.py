"""Exercises of the lesson on several machines (13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppwork.lab.exercises.answers import TriedCall, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, program

HOST_A, HOST_B = "rank 0 of 3", ("rank 1 of 3", "rank 2 of 3")
ALONE = "1/2 clients joined"
"""What torchrun says last where its store is open and nobody else comes."""


@program(ranks=1)
def _they_meet(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(0)
    alone = [any(ALONE in line for line in lines if line.startswith(f"host {name}'s log")) for name in "ab"]
    if all(alone):
        yield (
            "Both logs end with one of two that joined: each host waited at a store of its own. Which option "
            "makes a torchrun open one, and how many may there be?"
        )
    if alone[0]:
        yield (
            "Host a waited at its store, and host b did not come. Where did it ask, by the end of its log?"
        )
    printed = [next((line for line in lines if line.startswith(f"host {name} printed")), "") for name in "ab"]
    if "of 3" not in "".join(printed):
        yield "No rank has met two others. Which options must be equal on both hosts, and which must not?"
    if HOST_A not in printed[0] or not all(rank in printed[1] for rank in HOST_B):
        yield f"Expected rank 0 on host a, and ranks 1 and 2 on host b; it printed {printed}."


LO = {"lo": "127.0.0.1"}
RACK = {**LO, "docker0": "172.17.0.1", "eth0": "192.168.5.20", "ib0": "10.1.0.20"}
NEAR = {**LO, "eth0": "10.1.20.4", "eth1": "10.1.2.4"}
OWN = "127.0.0.1 is every host's address for itself: it leads to no other one."
WAYS: tuple[tuple[dict[str, str], str, str | None, str], ...] = (
    ({**LO, "eth0": "10.77.77.1"}, "10.77.77.2", "eth0", "Which interface is in the network of the peer?"),
    (RACK, "10.1.0.21", "ib0", "The first interface that is not lo need not lead to the peer."),
    (RACK, "192.168.5.7", "eth0", "The first interface that is not lo need not lead to the peer."),
    (NEAR, "10.1.2.40", "eth1", "10.1.20 and 10.1.2 begin alike, and are two networks."),
    (RACK, "10.9.0.3", None, "No interface is in that network, so none leads there directly."),
)


@exercise
def _interface() -> Iterator[TriedCall]:
    for addresses, peer, right, thought in WAYS:
        yield TriedCall(f"For {addresses} and {peer!r}", (addresses, peer), right, _or_own(thought))


def _or_own(thought: str) -> Callable[[Any], str]:
    return lambda given: OWN if given == "lo" else thought


REFUSED, NOBODY = "rank {}, after 0 s: refused at 127.0.0.1", "rank {}, after 15 s: nobody came"
TIMED_OUT, CLOSED = "rank {}, in {}, after {} s: timed out", "rank {}, in recv, after 0 s: connection closed"
KILLED = "Signal 9 (SIGKILL) received by PID 19962"
ENDS = (
    (NOBODY.format(0), REFUSED.format(1), "interface"),
    (REFUSED.format(0), NOBODY.format(1), "interface"),
    (TIMED_OUT.format(0, "send", 4), TIMED_OUT.format(1, "recv", 4), "cable"),
    (TIMED_OUT.format(0, "send", 4), TIMED_OUT.format(1, "recv", 8), "cable"),
    (TIMED_OUT.format(0, "recv", 8), TIMED_OUT.format(1, "send", 4), "cable"),
    (TIMED_OUT.format(0, "send", 4), "", "host b"),
    ("", TIMED_OUT.format(1, "recv", 8), "host a"),
    (CLOSED.format(0), KILLED, "host b"),
    (KILLED, CLOSED.format(1), "host a"),
)
"""How the logs of two hosts end, and what to look at first."""
THOUGHTS = {
    "interface": "The log that ended first names the cause: an address that every host calls itself.",
    "cable": "Each says that the other one was silent, each after its own timeout. What is between them?",
    "killed": "One log names a killed process; the peer's connection was only closed by that.",
    "silent": "One log has a timeout, the other just stops: which host cannot say anything any more?",
}


@exercise
def _which_first() -> Iterator[TriedCall]:
    for end_a, end_b, right in ENDS:
        kind = "killed" if "SIGKILL" in end_a + end_b else "silent"
        yield TriedCall(
            f"For {end_a!r} and {end_b!r}", (end_a, end_b), right, THOUGHTS.get(right, THOUGHTS[kind])
        )


ROUNDS = (
    [(100.0, 160.0, 108.0)],
    [(100.0, 160.0, 140.0), (200.0, 246.0, 202.0), (300.0, 362.0, 312.0)],
    [(500.0, 104.0, 520.0), (600.0, 201.0, 610.0)],
)


@exercise
def _ahead() -> Iterator[TriedCall]:
    for rounds in ROUNDS:
        asked, told, answered = min(rounds, key=lambda one: one[2] - one[0])
        first = rounds[0]
        middles = [told - (asked + answered) / 2 for asked, told, answered in rounds]
        mean = sum(middles) / len(middles)
        quickest = "Which round was the quickest?"
        habits = {
            first[1] - first[0]: f"{quickest} And the question was on its way, too.",
            mean: f"{quickest} A slow round has a large error, and a mean keeps it.",
            middles[0]: f"{quickest} The first one pays for the connection.",
            told - asked: "The question was on its way, too, when the other clock was read.",
            told - answered: "The answer was on its way when rank 0 looked at its clock.",
        }
        right = told - (asked + answered) / 2
        habits.pop(right, None)
        yield number_case((rounds,), right, habits)


FUNCTIONS = {"13.2": _interface, "13.3": _which_first, "13.4": _ahead}
PROGRAMS: Programs = {"13.1": _they_meet}
