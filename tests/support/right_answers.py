"""A right answer to every exercise of the lessons, for tests of their checks."""

from __future__ import annotations

import math
import statistics

from ppwork.lab.exercises.lesson01 import touch_in_flight
from ppwork.timeline.costs import law_period_ms


def group_rank(members, rank):
    return sorted(members).index(rank) if rank in members else -1


def groups_of(rank, mesh_size):
    links, mesh = ["down_pg", "up_pg"], ["mesh_pg", "tp_pg"]
    return ["world_pg", *(links if rank <= 1 else []), *(mesh if rank >= 1 else [])]


def number_of_down(created):
    return created.index("down_pg") + 1


def behind(created):
    every = {name for names in created.values() for name in names}
    return [rank for rank, names in created.items() if every - set(names)]


def next_step(encoded, left, more, depth):
    if encoded:
        return "send"
    return "encode" if more and left < depth else "decode"


SYMPTOMS = ("PeerLostError", "PeerFrozenError", "TerminalNotice")


def cause(records, codes, symptoms=SYMPTOMS, innocent=(0, -15)):
    own = [rank for rank, (_, error) in records.items() if error not in symptoms]
    return (own or [r for r, code in codes.items() if r not in records and code not in innocent])[0]


def whom_to_tell(role, error):
    links = {"stage0": ["down_pg"], "leader": ["mesh_pg", "up_pg"], "follower": []}
    return [] if error == "TerminalNotice" else links[role]


def known_within(what, timeout_s, freeze_s, watchdog):
    return 0 if what == "killed" else min(freeze_s, timeout_s) if watchdog else timeout_s


def judge(sender, receiver):
    if "returned" not in sender or "came" not in receiver:
        return "error"
    return "holds" if sender["returned"] < receiver["came"] else "does not hold here"


def first_crossed(orders):
    longest = max(len(names) for names in orders.values())
    calls = [{tuple(names[n : n + 1]) for names in orders.values()} for n in range(longest)]
    return next((number for number, met in enumerate(calls) if len(met) > 1), None)


def is_right(summary, mesh_size):
    if summary["max_abs_diff"] is None or summary["verified_chunks"] != summary["chunks"]:
        return False
    return summary["max_abs_diff"] <= (0.0 if mesh_size == 1 else 1e-4)


def in_the_frame(sizes):
    cursor, rides = 2048, []
    for size in sizes:
        start = -(-cursor // 64) * 64
        rides.append(start + size <= 8192)
        cursor = start + size if rides[-1] else cursor
    return rides


def count(actions):
    infers = [action.startswith("INFER") for action in actions]
    cuts = [action.endswith("cut") for action in actions]
    return [(n, sum(infers[: n + 1]) - 1, sum(cuts[: n + 1])) for n in range(len(actions))]


def accepts(last, new, action, reset_cache):
    call, chunk, epoch = (after - before for before, after in zip(last, new, strict=True))
    infer = action == "INFER"
    return call == 1 and chunk == int(infer) and epoch == int(infer and reset_cache)


RIGHT = {
    "00.3": is_right,
    "03.1": in_the_frame,
    "03.2": count,
    "03.3": lambda steps: [name for wanted in ("check", "send") for name, kind in steps if kind == wanted],
    "03.4": accepts,
    "01.1": touch_in_flight,
    "02.1": group_rank,
    "02.2": groups_of,
    "02.3": number_of_down,
    "02.4": behind,
    "04.1": lambda a, b, t: a + b + t,
    "04.2": lambda a, b, t: b / (a + b + t),
    "04.3": lambda times: [k for k, ms in times.items() if ms > 3 * statistics.median(times.values())],
    "05.1": law_period_ms,
    "05.2": lambda a, b, t: next(
        d for d in range(1, 99) if law_period_ms(a, b, t, d) == law_period_ms(a, b, t, 99)
    ),
    "05.3": next_step,
    "05.4": lambda flush, depth: list(range(max(0, flush - depth + 1), flush)),
    "06.1": lambda first, second: (
        first[0] != second[0] and first[1] == second[1] and "write" in (first[2], second[2])
    ),
    "06.4": lambda k, slots: k - slots if k >= slots else None,
    "07.1": lambda size: math.ceil(math.log2(size)),
    "07.2": lambda size, hop_ms, round_ms: 2 * hop_ms + math.ceil(math.log2(size)) * round_ms,
    "07.3": lambda group, size: [0] if group == "world_pg" else [],
    "08.1": known_within,
    "08.2": cause,
    "08.3": whom_to_tell,
    "08.4": lambda killed, pipe, signal: not (pipe if killed == "launcher" else signal),
    "15.1": judge,
    "15.2": first_crossed,
    "15.3": lambda members: (min(members), 0),
}
