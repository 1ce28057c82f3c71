"""A right answer to every exercise of the lessons, for tests of their checks."""

from __future__ import annotations

import math
import statistics
from itertools import zip_longest

from ppwork.lab.exercises.lesson01 import touch_in_flight
from ppwork.timeline.costs import law_period_ms


def group_rank(ranks, rank, sort_ranks):
    order = sorted(ranks) if sort_ranks else ranks
    return order.index(rank) if rank in order else -1


def first_difference(created):
    for position, names in enumerate(zip_longest(*created.values())):
        usual = max(names, key=names.count)
        others = [rank for rank, name in zip(created, names, strict=True) if name != usual]
        if others:
            return position, others
    return None


def ordered(edges, earlier, later):
    return any(a == earlier and (b == later or ordered(edges, b, later)) for a, b in edges)


SYMPTOMS = ("PeerLostError", "PeerFrozenError", "TerminalNotice")


def cause(records, codes, symptoms=SYMPTOMS, innocent=(0, -15)):
    own = [rank for rank, (_, error) in records.items() if error not in symptoms]
    return (own or [r for r, code in codes.items() if r not in records and code not in innocent])[0]


def three_times(times, normal):
    if any(time <= seen for time, seen in zip(times, normal, strict=True)):
        return "ends a healthy run"
    return "good" if max(times[:2]) < times[2] else "names the wrong rank"


def sender(rank):
    return rank - 2 ** (rank.bit_length() - 1) if rank else 0


def late_ranks(size, sleeper):
    behind = {sleeper}
    for rank in range(sleeper + 1, size):
        if sender(rank) in behind:
            behind.add(rank)
    return behind | {sender(sleeper)}


def judge(sender, receiver):
    if not {"called", "returned"} <= sender.keys() or "came" not in receiver:
        return "error"
    if sender["called"] >= receiver["came"]:
        return "shows nothing"
    return "holds" if sender["returned"] < receiver["came"] else "does not hold here"


def two_verdicts(notes, exit_code):
    if "called" not in notes:
        return "error", "error"
    ends = exit_code is not None and "went_on" not in notes
    return tuple("holds" if seen else "does not hold here" for seen in ("raised" in notes, ends))


def is_right(summary, mesh_size):
    if summary["max_abs_diff"] is None or summary["verified_chunks"] != summary["chunks"]:
        return False
    return summary["max_abs_diff"] <= (0.0 if mesh_size == 1 else 1e-4)


def interface_to(addresses, peer):
    network = peer.rpartition(".")[0]
    return next((name for name, its in addresses.items() if its.rpartition(".")[0] == network), None)


def ahead_ms(rounds):
    asked, told, answered = min(rounds, key=lambda one: one[2] - one[0])
    return told - (asked + answered) / 2


def to_blame(waits, start):
    todo, met = [start], set()
    while todo:
        rank = todo.pop()
        if rank not in met:
            met.add(rank)
            todo += waits[rank]
    return min((rank for rank in met if not waits[rank]), default=None)


def dropped(depth, cuts, flushes):
    return sorted({chunk for at in flushes for chunk in range(max(0, at - depth + 1), at)})


def left_waiting(steps):
    sends = [number for number, step in enumerate(steps) if step.startswith("send")]
    return steps[sends[0] + 1 : sends[-1] + 1] if sends else []


def look_first(end_a, end_b):
    if "refused" in end_a + end_b:
        return "interface"
    if "timed out" in end_a and "timed out" in end_b:
        return "cable"
    return "host a" if end_a == "" or "SIGKILL" in end_a else "host b"


def mesh_and_depth(encode, decode, generate, round_of_sums, hop, target):
    for mesh_size in range(1, 9):
        rounds = math.ceil(math.log2(mesh_size))
        stage1 = generate / mesh_size + round_of_sums * rounds
        for depth in range(1, 5):
            if law_period_ms(encode + decode, stage1, hop * (2 + rounds), depth) <= target:
                return mesh_size, depth
    return None


def fault_named(number):
    found = {
        5: (1, "leaves a sum out", 1),
        6: (2, "is killed", 1),
        7: (2, "raises", 1),
        9: (1, "loops", None),
    }
    return found[number]


RIGHT = {
    "00.3": is_right,
    "03.3": left_waiting,
    "01.1": touch_in_flight,
    "02.1": group_rank,
    "02.4": first_difference,
    "04.3": lambda times: [k for k, ms in times.items() if ms > 3 * statistics.median(times.values())],
    "04.2": lambda period, *stages: (period + sum(stages)) / 2,
    "05.2": lambda a, b, t: next(
        d for d in range(1, 99) if law_period_ms(a, b, t, d) == law_period_ms(a, b, t, 99)
    ),
    "05.3": lambda stage0, mesh: sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in stage0 for b in mesh),
    "06.1": lambda first, second: (
        first[0] != second[0] and first[1] == second[1] and "write" in (first[2], second[2])
    ),
    "06.5": ordered,
    "06.4": lambda calls: (calls[1] == ("isend", "compute"), calls[2] == ("wait", "compute")),
    "07.1": late_ranks,
    "08.2": three_times,
    "08.3": cause,
    "13.2": interface_to,
    "13.3": look_first,
    "13.4": ahead_ms,
    "09.4": to_blame,
    "12.1": mesh_and_depth,
    "11.1": lambda n, size, rested, latency, speed: rested + (n - 1) * latency + n * size / speed,
    "10.2": dropped,
    "14.3": fault_named,
    "15.1": judge,
    "15.2": two_verdicts,
    "16.2": lambda: ["2.14.0+cpu", "2.15.0a0+gitff"],
}
