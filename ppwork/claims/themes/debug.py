"""Claims about the tools that say what went wrong, and about their cost."""

from __future__ import annotations

import re

from ppwork.claims.claim import CARD, DOCS, Claim, ClaimFinding, Program, Seen, holds

DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
_MISSING = re.compile(r"Ranks? ([\d, ]+) failed to pass")
_SHAPES = re.compile(r"Rank (\d+) is running collective.*?TensorShape=\[([\d, ]*)\]")


def _missing(error: str) -> list[int]:
    match = _MISSING.search(error)
    return [int(rank) for rank in match[1].split(",")] if match else []


def _monitored(seen: Seen) -> ClaimFinding:
    named = _missing(seen["late rank"][0].notes["error"])
    drawn = seen["drawn"][0].notes
    named_of_drawn = _missing(drawn["error"])
    if (named == [2]) != (named_of_drawn == drawn["missing"]):
        raise ValueError(f"late rank 2: named {named}; drawn {drawn['missing']}: named {named_of_drawn}")
    plain = _missing(seen["barrier"][0].notes["error"])
    elsewhere = seen["elsewhere"][0].notes["error"]
    text = (
        f"Rank 2 of three did not come: rank 0 named {_ranks(named)}. Of four ranks "
        f"{_ranks(drawn['missing'])}, chosen at random, did not come: it named {_ranks(named_of_drawn)}. "
        f"`barrier` named {_ranks(plain)}. On a group that is not of gloo: {elsewhere or 'it passed'}"
    )
    return holds(text, when=named == [2] and "GLOO" in elsewhere)


def _ranks(ranks: list[int]) -> str:
    return " and ".join(map(str, ranks)) or "nobody"


def _detail(seen: Seen) -> ClaimFinding:
    without = seen["broken"]
    if not without:
        raise ValueError("nothing was seen")
    wanted = {"mended": {"3", "5"}, "in a mesh": {"2, 7", "7, 2"}}
    named = {name: dict(_SHAPES.findall(_error(seen, name))) for name in wanted}
    right = {name: set(named[name].values()) == wanted[name] for name in wanted}
    if right["mended"] != right["in a mesh"]:
        raise ValueError(f"all-reduce: {named['mended']}; all-gather in a mesh: {named['in a mesh']}")
    ends = " and ".join(
        f"rank {number} {rank.ended}{f' (signal {-rank.exit_code})' if rank.exit_code < 0 else ''}"
        for number, rank in enumerate(without)
    )
    blank = not any(_SHAPES.findall(rank.notes.get("error", "")) for rank in without)
    text = (
        f"Shapes 3 and 5 in an all-reduce. Without: {ends}, and {'nobody was' if blank else 'somebody was'} "
        f"told a shape. With DETAIL: {_shapes(named['mended'])}. Shapes 2x7 and 7x2 in a group of ranks 1 "
        f"and 2: {_shapes(named['in a mesh'])}, counted within the group."
    )
    return holds(text, when=right["mended"] and blank)


def _error(seen: Seen, name: str) -> str:
    return str(next((rank.notes["error"] for rank in seen[name] if "error" in rank.notes), ""))


def _shapes(named: dict[str, str]) -> str:
    return ", ".join(f"rank {rank} [{shape}]" for rank, shape in sorted(named.items())) or "no shape named"


def _overhead(seen: Seen) -> ClaimFinding:
    notes = seen["broadcasts"][0].notes
    ratio = notes["detail_ms"] / notes["plain_ms"]
    text = (
        f"A broadcast of 1 KB between two ranks takes {notes['plain_ms']:.2f} ms, in a group with DETAIL "
        f"{notes['detail_ms']:.2f} ms: {ratio:.1f} times as long (medians of 90, in turns)."
    )
    return holds(text, when=ratio > 1.3)


CLAIMS = (
    Claim(
        id="C07",
        statement="`monitored_barrier` names the ranks that did not come; it is for gloo only.",
        source=f"{CARD}, claim 7; {DOCS}, monitored barrier",
        programs={
            "late rank": Program("debug:one_does_not_come", ranks=3),
            "drawn": Program("debug:some_do_not_come", ranks=4),
            "barrier": Program("debug:barrier_does_not_say", ranks=3),
            "elsewhere": Program("debug:monitored_elsewhere", ranks=1, timeout_s=0.0),
        },
        judge=_monitored,
        advice="One monitored barrier in a gloo group at the end of the start-up, with "
        "`wait_all_ranks=True`; the name is in rank 0's error only, and the group is broken afterwards.",
    ),
    Claim(
        id="C11",
        statement="TORCH_DISTRIBUTED_DEBUG=DETAIL turns a shape mismatch into an error with ranks and "
        "shapes.",
        source=f"{CARD}, claim 11; {DOCS}, TORCH_DISTRIBUTED_DEBUG",
        programs={
            "broken": Program("debug:shapes_differ", timeout_s=2.0),
            "mended": Program("debug:shapes_differ", environment=DETAIL),
            "in a mesh": Program("debug:shapes_differ_in_a_mesh", ranks=3),
        },
        judge=_detail,
        advice="Bring up with DETAIL. In a group its ranks are those of the group, not of the world; and p2p "
        "is not checked at all.",
    ),
    Claim(
        id="G08",
        statement="DETAIL costs time on every collective: it is for bringing up, not for production.",
        source=f"{CARD}, eighth gotcha; {DOCS}, TORCH_DISTRIBUTED_DEBUG",
        programs={"broadcasts": Program("debug:broadcasts")},
        judge=_overhead,
        advice="Switch it on by a plan that says so, and off before you measure anything.",
        alone=True,
    ),
)
