"""Claims about how the ranks of a job find each other, and about what is left of a job before it."""

from __future__ import annotations

import re

from ppwork.claims.claim import (
    DOCS,
    Claim,
    ClaimFinding,
    Program,
    RankEnd,
    RankSeen,
    Seen,
    does_not_hold,
    holds,
)

MOST_S = 4.0
"""A start-up that is bounded by 1 s has raised by then, also on a machine under load."""


def _three_ways(seen: Seen) -> ClaimFinding:
    ways = {"tcp://": "tcp", "file://": "file", "the environment": "environment"}
    totals = {way: [rank.notes["total"] for rank in seen[name]] for way, name in ways.items()}
    worked = [way for way, total in totals.items() if total and set(total) == {3.0}]
    if not all(totals.values()):
        raise ValueError("nothing was seen")
    text = f"Ranks 1 and 2, added up over two ranks, came to 3 by {', '.join(worked) or 'none of them'}"
    return holds(f"{text}.") if len(worked) == len(ways) else does_not_hold(f"{text} only.")


def after_again(broken: list[RankSeen], mended: list[RankSeen]) -> tuple[bool, str]:
    """Return whether only the broken program failed to make its group again, and what happened in both."""
    worked = min(rank.notes.get("worked", 0) for rank in broken)
    stood = [rank for rank in broken if rank.ended is RankEnd.HUNG]
    if any("init" not in rank.line for rank in stood):
        raise ValueError(f"it hung at {stood[0].line!r}, not in its start-up")
    errors = [rank.notes["error"] for rank in broken if "error" in rank.notes]
    end = f"raised: {_without_source(errors[0])}" if errors else "hung"
    failed = bool(errors or stood)
    text = f"attempt {worked + 1} {end}" if failed else f"all {worked} attempts worked"
    right = [rank.notes.get("worked") == 3 and "error" not in rank.notes for rank in mended]
    return failed and all(right), f"{text}; mended, {'all 3' if all(right) else 'not all 3'} worked."


def _without_source(error: str) -> str:
    return re.sub(r"\[/\S+\]\s*", "", error).split(". This is typically")[0]


def _stale_file(seen: Seen) -> ClaimFinding:
    only_broken, text = after_again(seen["broken"], seen["mended"])
    text = f"Started from the file of an earlier job, {text}"
    return holds(text, when=only_broken)


def _variables(seen: Seen) -> ClaimFinding:
    notes = seen["one missing"][0].notes
    named = [name for name in ("RANK", "WORLD_SIZE", "MASTER_PORT") if f"variable {name} exp" in notes[name]]
    address = notes["MASTER_ADDR"]
    text = f"Rank 0, with one missing, was told which for {', '.join(named) or 'none'}"
    if not address:
        finding = holds if len(named) == 3 else does_not_hold
        return finding(f"{text}, and started without MASTER_ADDR.")
    return does_not_hold(f"{text}; without MASTER_ADDR it raised too: {address}.")


def _waits_for_all(seen: Seen) -> ClaimFinding:
    late, never = seen["late"], seen["never"][0]
    behind = late[0].notes["returned"] - late[1].notes["came"]
    text = f"Rank 0 returned {abs(behind):.2f} s {'after' if behind >= 0 else 'before'} the late rank 1 came"
    if "error" not in never.notes:
        return does_not_hold(f"{text}; where rank 1 never came, rank 0 {never.ended} without an error.")
    after, error = never.notes["after_s"], never.notes["error"]
    text += f"; where it never came, {never.notes['kind']} after {after:.1f} s of a timeout of 1 s: {error}"
    text += "" if re.search(r"\brank 1\b", error, re.IGNORECASE) else " (which rank it is, is not said)"
    return holds(f"{text}.", when=behind >= 0 and after < MOST_S)


def _connections(seen: Seen) -> ClaimFinding:
    counts = {
        name: ([r.notes["at_start"] for r in seen[name]], [r.notes["after_send"] for r in seen[name]])
        for name in ("eager", "lazy")
    }
    if not counts["eager"][0]:
        raise ValueError("nothing was seen")
    text = " ".join(
        f"{name.capitalize()}, four ranks have {start} connections when they have started, and {later} after "
        "a message from rank 0 to rank 1."
        for name, (start, later) in counts.items()
    )
    lazy = not any(counts["lazy"][0]) and counts["lazy"][1] == [1, 1, 0, 0]
    return holds(text, when=lazy and counts["eager"][0] == [3] * 4)


CLAIMS = (
    Claim(
        id="D01",
        statement="A job can start by the address of rank 0, by a shared file, or by environment variables.",
        source=f"{DOCS}, initialization: TCP, shared file-system, environment variable",
        programs={
            "tcp": Program("startup:by_tcp", timeout_s=0.0),
            "file": Program("startup:by_file", timeout_s=0.0),
            "environment": Program("startup:by_environment", timeout_s=0.0),
        },
        judge=_three_ways,
        advice="Under torchrun give nothing and let the environment say it; a file is for tests on one "
        "machine, where no port can be taken by another.",
    ),
    Claim(
        id="D02",
        statement="A `file://` that an earlier job left behind breaks the next job that starts from it.",
        source=f"{DOCS}, shared file-system initialization, warning",
        backends=("gloo",),
        programs={
            "broken": Program("startup:by_a_file_of_an_earlier_job", timeout_s=0.0, limit_s=6.0),
            "mended": Program("startup:by_a_new_file_each_time", timeout_s=0.0),
        },
        judge=_stale_file,
        advice="Put the file into a folder that is new for each run. An old one does not break every start: "
        "ranks read addresses of dead processes, and it is a matter of port numbers what that leads to.",
    ),
    Claim(
        id="D03",
        statement="By environment, RANK, WORLD_SIZE and MASTER_PORT are required, MASTER_ADDR except on rank "
        "0.",
        source=f"{DOCS}, environment variable initialization",
        programs={"one missing": Program("startup:without_a_variable", ranks=1, timeout_s=0.0)},
        judge=_variables,
        advice="Set all four on every rank; what is missing is named by a ValueError before anything waits.",
    ),
    Claim(
        id="D04",
        statement="`init_process_group` waits for every rank, and raises when its timeout has passed.",
        source=f"{DOCS}, `init_process_group`",
        programs={
            "late": Program("startup:one_comes_late", timeout_s=0.0),
            "never": Program("startup:one_never_comes", timeout_s=0.0),
        },
        judge=_waits_for_all,
        advice="Start with a short timeout, and have each rank write down that it is up: the error counts "
        "who came and names nobody.",
    ),
    Claim(
        id="D05",
        statement="With TORCH_GLOO_LAZY_INIT ranks connect when they first talk, and not all at the start.",
        source=f"{DOCS}, improving initialization time",
        backends=("gloo",),
        programs={
            "eager": Program("startup:connections_eager", ranks=4, timeout_s=0.0),
            "lazy": Program(
                "startup:connections_lazy", ranks=4, timeout_s=0.0, environment={"TORCH_GLOO_LAZY_INIT": "1"}
            ),
        },
        judge=_connections,
        advice="A pipeline talks along its edges only, so lazy saves most of the connections of a large "
        "world; but then a rank that cannot be reached shows at the first message instead of at the start.",
    ),
)
