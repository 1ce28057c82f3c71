"""Claims about groups: who creates them, in which order, when, and what ranks mean in them."""

from __future__ import annotations

from ppwork.claims.claim import CARD, DOCS, SEEN, Claim, ClaimFinding, Program, Seen, does_not_hold, holds

WITH_BARRIER = {"TORCH_DIST_INIT_BARRIER": "1"}


def _everybody_creates(seen: Seen) -> ClaimFinding:
    worked = all(rank.notes.get("got") == [1.0] * 4 for rank in seen["left out"][1:])
    worked_until_told = all(rank.notes.get("total") == 1110.0 for rank in seen["left out until told"][1:])
    if worked != worked_until_told:
        raise ValueError(f"left out: worked {worked}; left out until told: worked {worked_until_told}")
    waited = {
        name: all(rank.notes["returned"] >= seen[name][0].notes["came"] for rank in seen[name][1:])
        for name in ("late", "late with barrier")
    }
    if not all(rank.notes["tried"] for rank in seen["the next group"]):
        raise ValueError("not every rank tried the next group")
    after = [rank.notes.get("got") == [1.0] * 4 for rank in seen["the next group"]]
    swapped = [rank.notes.get("got") == [1.0] * 4 for rank in seen["another order"][:1]]
    ordered = seen["one order"][0].notes["got"] == [1.0] * 4
    parts = [
        f"A group of ranks 1 and 2 {'worked' if worked else 'did not work'} without rank 0, tried in two "
        "ways",
        f"called late by rank 0, they {'waited for it' if waited['late'] else 'did not wait'}, with "
        f"TORCH_DIST_INIT_BARRIER=1 they {'did' if waited['late with barrier'] else 'did not either'}",
        f"the next group, of all three, {'worked' if all(after) else 'came to nobody'}, rank 0 being one "
        "behind",
        "two groups created in another order on one rank "
        f"{'worked' if all(swapped) else 'crossed: timed out'}"
        f"{', in one order they worked' if ordered else ''}",
    ]
    text = "; ".join(parts)
    if worked and all(after) and all(swapped):
        return does_not_hold(f"{text}.")
    if worked:
        return does_not_hold(
            f"{text}: leaving a rank out is not seen where it happens, but at a later group."
        )
    return holds(f"{text}.")


def _created_late(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"], seen["mended"]
    if not mended or not all(rank.notes.get("done") for rank in mended):
        raise ValueError("created up front, it did not work either")
    if all(rank.notes.get("done") for rank in broken):
        return does_not_hold("A group created between two messages worked as well as one created up front.")
    if not all("send" in rank.line or "new_group" in rank.line for rank in broken):
        raise ValueError("it stopped elsewhere")
    ends = "; ".join(f"rank {number} {rank.ended} in `{rank.line}`" for number, rank in enumerate(broken))
    return holds(
        f"Created between two messages, with a timeout of 1 s: {ends}. Each waited for the other at another "
        "place. Created up front: done."
    )


def _non_member(seen: Seen) -> ClaimFinding:
    outside, *members = (rank.notes for rank in seen["handles"])
    inside = [notes["rank_in_it"] for notes in members]
    text = (
        f"Rank 0, outside, got {'NON_GROUP_MEMBER' if outside['non_member'] else 'something else'} (type "
        f"{outside['handle']}) with rank {outside['rank_in_it']} and size {outside['size']} in it; ranks 1 "
        f"and 2 have ranks {inside[0]} and {inside[1]} in it."
    )
    right = outside["non_member"] and outside["rank_in_it"] == -1 and inside == [0, 1]
    return holds(text, when=right)


def _root(seen: Seen) -> ClaimFinding:
    broken = [rank.notes.get("raised", "") for rank in seen["broken"][1:]]
    mended = seen["mended"][2].notes
    tried = seen["all roots"][1].notes
    refused = [rank for rank in range(4) if isinstance(tried[f"src_{rank}"], str)]
    if bool(broken[0]) != (0 in refused):
        raise ValueError(f"src=0 in the group of 1 and 2: {broken[0]!r}; in the group of 1 and 3: {tried}")
    text = (
        f"In the group of ranks 1 and 2, `src=0`: {broken[0].partition(' <')[0] or 'no error'}; `src=1` "
        f"brought {mended['src'][0]:g} and `group_src=0` brought {mended['group_src'][0]:g} from its first "
        "rank. In the group of ranks 1 and 3, of the sources 0 to 3 these were refused: "
        f"{', '.join(map(str, refused)) or 'none'}."
    )
    return holds(text, when=all(broken) and refused == [0, 2])


def _timeout_of_a_group(seen: Seen) -> ClaimFinding:
    bounds = seen["bounds"][0].notes
    broken, mended = seen["broken"][1].notes, seen["mended"][1].notes
    text = (
        f"The world's timeout was {bounds['world']:g} s; a group made without one had {bounds['without']:g} "
        f"s, and a receive in it was still waiting after {broken['waited_s']:.1f} s, when its peer left; "
        f"told 1 s, a group's receive ended after {mended['waited_s']:.1f} s."
    )
    own = bounds["without"] != bounds["world"]
    if own != ("Timed out" not in broken["error"]):
        raise ValueError(f"read: {bounds['without']} s; observed: {broken['error']}")
    return holds(text, when=own)


CLAIMS = (
    Claim(
        id="C04",
        statement="A rank that skips a `new_group` is noticed in that call: the members wait for it.",
        source=f"read out of a rule, {CARD}, claim 4; {DOCS}, `new_group`: every rank has to call it",
        programs={
            "left out": Program("groups:one_rank_left_out", ranks=3),
            "left out until told": Program("groups:left_out_until_told", ranks=4),
            "late": Program("groups:one_rank_late", ranks=3),
            "late with barrier": Program("groups:one_rank_late", ranks=3, environment=WITH_BARRIER),
            "the next group": Program("groups:left_out_of_the_first", ranks=3, limit_s=8.0),
            "another order": Program("groups:created_in_another_order", limit_s=20.0),
            "one order": Program("groups:created_in_one_order"),
        },
        judge=_everybody_creates,
        advice="Call every `new_group` on every rank, in one function that all ranks run, whatever this "
        "machine lets pass: groups are numbered as they are created, and a rank that is one behind meets the "
        "wrong one.",
    ),
    Claim(
        id="G04",
        statement="A group that is created in the midst of the work stands still; create all groups up "
        "front.",
        source=f"{CARD}, fourth gotcha",
        programs={
            "broken": Program("groups:created_late", timeout_s=1.0, limit_s=20.0),
            "mended": Program("groups:created_up_front"),
        },
        judge=_created_late,
        advice="Create the p2p groups and the mesh group in one place at the start, before any message.",
    ),
    Claim(
        id="G05",
        statement="A rank outside a group calls `new_group` too, gets NON_GROUP_MEMBER, and its rank is -1.",
        source=f"{CARD}, fifth gotcha; {DOCS}, `new_group`",
        programs={"handles": Program("groups:handles_inside_and_outside", ranks=3)},
        judge=_non_member,
        advice="Do not test the handle for None, and never give it to a call: it is a number that some calls "
        "take without an error and then do nothing.",
    ),
    Claim(
        id="T07",
        statement="`src` is a rank of the world: `broadcast(src=0, group=mesh)` raises where 0 is no member.",
        source=f"{SEEN}; {DOCS}, `broadcast`: source rank on the global process group",
        programs={
            "broken": Program("groups:root_outside_the_group", ranks=3),
            "mended": Program("groups:root_by_global_rank", ranks=3),
            "all roots": Program("groups:roots_tried", ranks=4),
        },
        judge=_root,
        advice="Write `group_src=0` for the first rank of a group.",
    ),
    Claim(
        id="T18",
        statement="A group made without a timeout has the backend's default, not the world's timeout.",
        source=f"{SEEN}; {DOCS}, `new_group`: see `init_process_group` for the default",
        backends=("gloo",),
        programs={
            "bounds": Program("groups:bounds_of_groups", timeout_s=1.0),
            "broken": Program("groups:group_without_a_timeout", timeout_s=1.0),
            "mended": Program("groups:group_with_a_timeout", timeout_s=1.0),
        },
        judge=_timeout_of_a_group,
        advice="Pass `timeout=` to every `new_group`, or a hang in it lasts half an hour.",
    ),
)
