"""Claims about names that were changed, and about what is in the torch that is installed."""

from __future__ import annotations

from typing import Any

from ppwork.claims.claim import BRIEFING, DOCS, Claim, ClaimFinding, Program, Seen, holds, not_testable

NEW = ("all_gather_single", "reduce_scatter_single")
OLD = ("all_gather_into_tensor", "reduce_scatter_tensor")
FLOOR = (2, 27)
OF_TABLE = (
    *("send", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter", "reduce_scatter"),
    "barrier",
)


def _spellings(seen: Seen) -> ClaimFinding:
    notes, resolved = seen["both"][0].notes, seen["mended"][0].notes
    text = ", ".join(f"{name} {_spelling(notes[name])}" for name in (*NEW, *OLD))
    text += f". With warnings as errors, {resolved['name']} gathered {resolved['got']}."
    new = all(notes[name]["there"] and notes[name]["right"] and not notes[name]["warned"] for name in NEW)
    old = all(notes[name]["there"] and notes[name]["right"] and notes[name]["warned"] for name in OLD)
    return holds(text, when=new and old)


def _spelling(seen: dict[str, Any]) -> str:
    if not seen["there"]:
        return "is not there"
    if not seen["right"]:
        return "is there and wrong"
    return f"works and warns ({seen['warned']})" if seen["warned"] else "works"


def _floor(seen: Seen) -> ClaimFinding:
    notes = seen["version"][0].notes
    if not notes["nccl"]:
        return not_testable(f"torch {notes['torch']} is built without NCCL.")
    version = ".".join(map(str, notes["nccl"]))
    text = f"torch {notes['torch']} is built with NCCL {version}."
    return holds(text, when=tuple(notes["nccl"]) >= FLOOR)


def _table(seen: Seen) -> ClaimFinding:
    notes = seen["each"][0].notes
    refused = [f"{name} ({notes[name]})" for name in (*OF_TABLE, "all_to_all") if notes[name]]
    text = f"On CPU tensors gloo refuses {', '.join(refused) or 'none of eleven operations'}"
    text += "." if notes["all_to_all"] else "; all_to_all works too."
    as_written = notes["all_to_all"] and not any(notes[name] for name in OF_TABLE)
    return holds(text, when=as_written)


CLAIMS = (
    Claim(
        id="D16",
        statement="The renamed collectives have both names, and the old ones give a FutureWarning.",
        source=f"{BRIEFING}, renaming of collectives",
        programs={"both": Program("names:both_spellings"), "mended": Program("names:resolved_once")},
        judge=_spellings,
        advice="Code for more than one version asks once, in one place, which name there is; or uses "
        "`all_gather` with a list, which was not renamed.",
    ),
    Claim(
        id="D17",
        statement="torch is built with NCCL 2.27 or newer.",
        source=f"{BRIEFING}, minimum of NCCL",
        programs={"version": Program("names:nccl_of_the_build", ranks=1, timeout_s=0.0)},
        judge=_floor,
        advice="Before you exchange the NCCL of an installation for the cluster's own, compare it with this.",
    ),
    Claim(
        id="D18",
        statement="On CPU tensors gloo has every collective of the documentation's table except all_to_all.",
        source=f"{DOCS}, table of backends",
        backends=("gloo",),
        programs={"each": Program("names:every_collective")},
        judge=_table,
        advice="Try what you need on the version that you have: the table is not of one version.",
    ),
)
