"""Claims about what is written down of collectives and messages: profiles and the flight recorder."""

from __future__ import annotations

import re

from ppwork.claims.claim import DOCS, NOTES, SEEN, Claim, ClaimFinding, Program, RankEnd, Seen, holds

WANTED = ("broadcast", "all_reduce")


def _profile(seen: Seen) -> ClaimFinding:
    sender, receiver = (rank.notes["names"] for rank in seen["profiled"])
    shown = [_has(sender, "broadcast"), _has(sender, "send"), _has(receiver, "recv")]
    facts = {fact for rank in seen["profiled"] for fact in rank.notes["facts"]}
    text = (
        f"The traces name {', '.join(sender) or 'nothing'} on the sender and "
        f"{', '.join(receiver) or 'nothing'} on the receiver; of the other rank they say "
        f"{', '.join(sorted(facts)) or 'nothing'}."
    )
    return holds(text, when=all(shown))


def _has(names: list[str], what: str) -> bool:
    return any(what in name for name in names)


def _flight(seen: Seen) -> ClaimFinding:
    recorded, drawn = seen["named"][0].notes, seen["counted"][0].notes
    messages = [name for name in recorded["names"] if re.search("send|recv", name)]
    collectives = all(_has(recorded["names"], name) for name in WANTED)
    left_out = drawn["records"] == drawn["collectives"]
    if (collectives and not messages) != left_out:
        raise ValueError(f"by name {recorded['names']}; by number {drawn}")
    text = (
        f"Of three collectives and two messages the records name {', '.join(recorded['names']) or 'none'}; "
        f"of {drawn['collectives']} collectives and {drawn['messages']} messages, drawn by lot, there are "
        f"{drawn['records']} records. The state they say is {' or '.join(recorded['states']) or 'missing'}."
    )
    return holds(text, when=left_out)


def _dump(seen: Seen) -> ClaimFinding:
    late, other = seen["by itself"]
    if not late.notes.get("error") and late.ended is not RankEnd.EXITED:
        raise ValueError("rank 0 did not time out")
    files = other.notes["files"] or late.notes.get("files", [])
    ours = seen["by ourselves"][0].notes.get("names", [])
    text = f"When a collective had timed out there {'was ' + ', '.join(files) if files else 'was no file'}"
    text += f"; records written by our own call named {', '.join(ours) or 'nothing'}."
    return holds(text, when=files)


CLAIMS = (
    Claim(
        id="D14",
        statement="`torch.profiler` shows point-to-point messages as well as collectives.",
        source=f"{DOCS}, profiling collective communication",
        programs={"profiled": Program("records:profiled", limit_s=40.0)},
        judge=_profile,
        advice="Use it to see when a message was on its way; to see which envelope it was, and whose, write "
        "your own marks around it.",
    ),
    Claim(
        id="D15",
        statement="The flight recorder records a group's collectives, and none of its sends and receives.",
        source=f"{SEEN}; {DOCS}, debugging",
        programs={
            "named": Program("records:recorded"),
            "counted": Program("records:counted_in_the_records"),
        },
        judge=_flight,
        advice="A pipeline that stands in a receive has no record of it: write down your own messages, with "
        "their number, before each call.",
    ),
    Claim(
        id="R03",
        statement="When a collective times out, the flight recorder writes its records to a file.",
        source=f"{NOTES}, #143446: dump mechanism of the flight recorder",
        programs={
            "by itself": Program("records:dumped_at_a_timeout", timeout_s=0.0),
            "by ourselves": Program("records:dumped_by_ourselves", timeout_s=0.0),
        },
        judge=_dump,
        advice="On gloo write the records yourself when a call raises (`_dump_fr_trace`, no public name); on "
        "NCCL say by TORCH_FR_DUMP_TEMP_FILE where they go.",
    ),
)
