"""Exercises of the lesson on the simulator (12): mesh and depth, a loop to mend, a period to predict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, ends_well, first_of, lent_twice, program
from ppwork.timeline.scenario import Played, Scenario

MESHES, DEPTHS = range(1, 9), range(1, 5)
COSTS_MS = (
    (5.0, 5.0, 60.0, 1.0, 1.0, 25.0),
    (20.0, 15.0, 40.0, 1.0, 1.0, 30.0),
    (5.0, 5.0, 40.0, 4.0, 1.0, 18.5),
    (5.0, 5.0, 40.0, 4.0, 1.0, 16.0),
    (10.0, 10.0, 20.0, 0.5, 10.0, 21.0),
    (8.0, 8.0, 64.0, 0.5, 3.0, 20.0),
    (5.0, 5.0, 20.0, 1.0, 1.0, 40.0),
)
"""Encode, decode, generate on one rank, one round of sums, one hop, and the period that is wanted."""


def played(costs: tuple[float, ...], mesh_size: int, depth: int) -> Played:
    """Play the costs of a case on a mesh of this size."""
    encode, decode, generate, round_of_sums, hop, _ = costs
    rounds = (mesh_size - 1).bit_length()
    return Scenario(
        encode_ms=encode,
        decode_ms=decode,
        stage1_ms=generate / mesh_size + round_of_sums * rounds,
        hop_ms=hop,
        mesh_size=mesh_size,
        depth=depth,
    ).play()


def smallest(costs: tuple[float, ...]) -> tuple[int, int] | None:
    """Return the smallest mesh, then the smallest depth, that reaches the period which is wanted."""
    for mesh_size in MESHES:
        for depth in DEPTHS:
            if played(costs, mesh_size, depth).period_ms <= costs[-1]:
                return mesh_size, depth
    return None


@exercise
def _mesh_and_depth() -> Iterator[TriedCall]:
    for costs in COSTS_MS:
        right = smallest(costs)

        def thought(given: Any, costs: tuple[float, ...] = costs, right: Any = right) -> str:  # noqa: ANN401
            return _thought(given, costs, right)

        yield TriedCall(f"For {costs}", costs, right, thought)


def _thought(given: Any, costs: tuple[float, ...], right: tuple[int, int] | None) -> str:  # noqa: ANN401
    if given is None:
        return "A mesh of some size reaches it: more ranks make stage 1 shorter, until the sums take more."
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    if not is_pair or given[0] not in MESHES or given[1] not in DEPTHS:
        return "Return a pair (mesh size, depth), 1 to 8 and 1 to 4; or None."
    outcome, target = played(costs, *given), costs[-1]
    period = f"The simulator gives your choice a period of {outcome.period_ms:.1f} ms"
    if outcome.period_ms <= target:
        assert right is not None  # noqa: S101  this choice reaches it
        less = "smaller mesh" if given[0] > right[0] else "smaller depth on that mesh"
        return f"{period}, which is enough. A {less} is enough, too."
    return f"{period}, not {target:g}. {_cause(outcome, target)}"


def _cause(outcome: Played, target: float) -> str:
    asked = outcome.scenario
    if asked.stage0_ms > target:
        return f"Encode and decode are {asked.stage0_ms:g} ms on rank 0, and no mesh makes them shorter."
    if asked.stage1_ms > target:
        return f"Stage 1 alone takes {asked.stage1_ms:.1f} ms on this mesh, its sums included."
    return (
        f"A chunk needs {asked.stage0_ms:g} ms on rank 0, {asked.stage1_ms:.1f} on the mesh and "
        f"{asked.transport_ms:g} under way, and {asked.depth} chunks share that time."
    )


REPORTED = [f"chunk {k}: result {k + 100}, report {k + 200}" for k in range(4)]


def _forgotten(attempt: Attempt) -> Iterator[str]:
    for rank in range(attempt.nproc):
        for call in attempt.forgotten(rank):
            yield f"Rank {rank} never waits for the handle of {call.name} ({call.line}). Keep it, and wait."
        yield from lent_twice(attempt, rank)


@program(ranks=3)
def _reports(attempt: Attempt) -> Iterator[str]:
    if attempt.lines(0) != REPORTED:
        yield f"Rank 0 printed {attempt.lines(0)}; expected {REPORTED}."
    yield from _forgotten(attempt)
    for sender, receiver in ((0, 1), (1, 2), (1, 0), (2, 0)):
        count = len(attempt.messages(sender, receiver))
        if count != len(REPORTED):
            yield (
                f"{count} messages went from rank {sender} to rank {receiver}, not {len(REPORTED)}: move "
                "lines, and leave none out."
            )
            return
    results = attempt.messages(1, 0)
    for k, envelope in enumerate(attempt.messages(0, 1)[1:]):
        if envelope.left_ns >= results[k].back_ns:
            yield (
                f"Chunk {k + 1} left rank 0 only after result {k} was back: so nothing overlaps any more. "
                "The depth is to stay 2."
            )
            return


OWN = re.compile(r"period ([\d.]+) ms; depth and costs 2 ([\d.]+) ([\d.]+) ([\d.]+) predicted ([\d.]+)")
GIVEN_MS = (20.0, 40.0, 20.0), (15.0, 30.0, 15.0), (30.0, 60.0, 30.0)
"""Costs that stand in the lesson."""
LEAST, MOST = 0.9, 1.1
"""Of the measured period, for a prediction."""
LAW_MOST = 0.95
"""Of the measured period, for the law without jitter: it comes to 0.87 to 0.90 of it with stages of equal
length, and to 0.93 where one is a fifth longer. Beyond that it is as good as a simulator."""


def hints_of_own(printed: str) -> Iterator[str]:
    """Look at what ``my_rough.py`` printed: the period, its depth and costs, and the prediction."""
    found = OWN.fullmatch(printed)
    if found is None:
        yield f"Rank 0 printed {printed!r}; expected one line: period, costs at depth 2, prediction."
        return
    measured, encode, generate, decode, predicted = map(float, found.groups())
    told = f"You predicted {predicted:g} ms, and the run had {measured:g}."
    if predicted > MOST * measured:
        yield f"{told} At depth 2 both ranks work at once: what does a chunk not wait for?"
    elif predicted < LEAST * measured:
        yield f"{told} Play it: `period_of(simulate(rough(40, 0.5, **mine), 2), 2)`. Does that come nearer?"
    law = max(encode + decode, generate)
    if law >= LAW_MOST * measured:
        yield (
            f"The law without jitter says {law:g} ms, and the run had {measured:g}: that cannot tell the two "
            "apart. Take two stages that are about equally long: then they wait for each other."
        )
    if abs(predicted - measured) >= abs(law - measured):
        yield (
            f"{told} The law, which knows no jitter, says {law:g}, and that is as near. Play it: "
            "`period_of(simulate(rough(40, 0.5, **mine), 2), 2)`."
        )
    if (encode, generate, decode) in GIVEN_MS:
        yield "These costs stand in the lesson: take some of your own."


@program(ranks=2)
def _own_costs(attempt: Attempt) -> Iterator[str]:
    yield from hints_of_own("".join(attempt.lines(0)))


FUNCTIONS = {"12.1": _mesh_and_depth}
PROGRAMS: Programs = {
    "12.3": first_of(
        ends_well("Write down the three lists of calls, and give them to `standing`: who waits for whom?"),
        _reports,
    ),
    "12.2": first_of(ends_well("Are the costs numbers of milliseconds, in the order of `mine`?"), _own_costs),
}
