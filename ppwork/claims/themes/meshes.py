"""Claims about meshes of ranks and groups that shrink: who is in them, in which order, with which bound."""

from __future__ import annotations

from ppwork.claims.claim import (
    CARD,
    DOCS,
    NOTES,
    SEEN,
    Claim,
    ClaimFinding,
    Program,
    Seen,
    does_not_hold,
    holds,
    not_testable,
    unhurried,
)


def _mesh_starts_the_world(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["mesh"]]
    first = notes[0]
    started = all(note["started"] for note in notes)
    rows = [note["tp"] for note in notes] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    columns = [note["pp"] for note in notes] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    slices = all(note[f"slice_{name}"] == note[name] for note in notes for name in ("pp", "tp"))
    text = (
        f"The world was {'started' if started else 'not started'} by it. In a mesh of 2 by 2 named "
        f'("pp", "tp"), an all-gather in `get_group("tp")` of rank 0 brought ranks {first["tp"]}, in '
        f'`get_group("pp")` ranks {first["pp"]}; the slices `mesh["tp"]` and `mesh["pp"]` '
        f"{'had the same groups' if slices else 'had other groups'}."
    )
    return holds(text, when=started and rows and columns and slices)


def _mesh_smaller_than_the_world(seen: Seen) -> ClaimFinding:
    broken = [rank.notes for rank in seen["broken"]]
    mended = [rank.notes for rank in seen["mended"][1:]]
    text = (
        f"`init_device_mesh` with 2 places in a world of 3 was made of ranks {broken[1]['ranks']}, rank 2 "
        f"had {'no place' if broken[2]['place'] is None else 'a place'} in it and no error; `from_group` of "
        f"the group of ranks 1 and 2 was of ranks {mended[0]['ranks']}."
    )
    if mended[0]["ranks"] != [1, 2] or [note["place"] for note in mended] != [[0], [1]]:
        return does_not_hold(f"{text} So neither way gave the mesh that was wanted.")
    return holds(text, when=broken[1]["ranks"] == [0, 1])


def _bound_of_a_mesh(seen: Seen) -> ClaimFinding:
    notes = seen["bounds"][0].notes
    text = (
        f"The world's timeout was 20 s. A mesh of one dimension, which is the world, had {notes['line']:g} "
        f"s; a row of a mesh of 2 by 2 had {notes['row']:g} s; a mesh from a group of ours made with 20 s "
        f"had {notes['from_group']:g} s."
    )
    return holds(text, when=notes["row"] == notes["line"])


def _shrunk(seen: Seen) -> ClaimFinding:
    shrunk, rest = seen["shrink_group"][:2], seen["new_group of the rest"][:2]
    by_new_group = [rank.notes["total"] for rank in rest] == [2.0, 2.0]
    worked = [rank.notes.get("total") for rank in shrunk] == [2.0, 2.0]
    how = "worked" if worked else f"raised {shrunk[0].notes['error']!r}"
    text = (
        f"`shrink_group([2])`, called by ranks 0 and 1 of three, {how}; a `new_group` of these two, which "
        f"rank 2 did not call, {'worked' if by_new_group else 'did not work'}."
    )
    return holds(text, when=worked)


def _order_of_ranks(seen: Seen) -> ClaimFinding:
    asked, told = seen["asked"], seen["told"]
    first = asked[1].notes["ranks"][0]
    if {told[1].notes["first"], told[3].notes["first"]} != {float(first)}:
        raise ValueError(f"asked: {asked[1].notes['ranks']}; told: {told[1].notes['first']:g} was first")
    text = (
        f"`new_group([3, 1])` has ranks {asked[1].notes['ranks']}; rank 1 is rank {asked[1].notes['mine']} "
        f"of it; what `group_src=0` broadcast came from rank {first}."
    )
    return holds(text, when=first == 3)


def _places(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["places"]]
    local = [note["local"] for note in notes]
    if not notes or local != [note["place"] for note in notes]:
        raise ValueError(f"local ranks {local}")
    flat = all(note["flat"] == [0, 1, 2, 3] and note["total"] == 10.0 for note in notes)
    method = "`flatten`" if notes[0]["public"] else "`_flatten`, no public one"
    text = (
        f"In a mesh of 2 by 2 ranks 0 to 3 have local ranks {local} in its two dimensions. Laid flat it "
        f"{'has a group of all four' if flat else 'has no group of all four'}, in which their local ranks "
        f"are {[note['local_of_flat'] for note in notes]}; the method is {method}."
    )
    return holds(text, when=flat)


def _split(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["both"]]
    totals = [note["total"] for note in notes]
    if not notes or totals != [2.0] * 4:
        raise ValueError(f"in the rows of the mesh ones added up to {totals}")
    refused = notes[0]["split"]
    if not refused:
        return not_testable("`split_group` made two halves of the world: this backend can split.")
    return holds(
        f"`split_group` raised: {refused}; a mesh of 2 by 2 was made all the same, and its rows work."
    )


def _one_group(seen: Seen) -> ClaimFinding:
    notes = seen["destroyed"][0].notes
    others = [notes.get(name) == 2.0 for name in ("world", "kept", "again")]
    if "ended" in notes:
        old = f"the old handle still gave {notes['ended']:g}"
    else:
        old = f"the old handle raised: {notes['ended_error']}"
    text = (
        "With one group destroyed, the world and another group "
        f"{'worked' if all(others[:2]) else 'did not work'}; made again, it "
        f"{'worked' if others[2] else 'did not work'}; {old}."
    )
    return holds(text, when=all(others))


def _bound(seen: Seen) -> ClaimFinding:
    notes = seen["bound"][0].notes
    parts = [
        f"{name} was {'refused' if f'{name}_error' in notes else 'taken'}"
        for name in ("cpu", "cuda", "cuda:0")
    ]
    reason = next((notes[f"{name}_error"] for name in ("cpu", "cuda") if f"{name}_error" in notes), "")
    text = f"As `device_id` of `new_group` {', '.join(parts)} on a machine with {notes['gpus']} GPUs"
    refused = all(f"{name}_error" in notes for name in ("cpu", "cuda"))
    return holds(f"{text}{f': {reason}' if reason else '.'}", when=refused)


CLAIMS = (
    Claim(
        id="D40",
        statement="`init_device_mesh` starts the world by itself and gives each rank its row's and column's "
        "group.",
        source=f"{DOCS}, DeviceMesh; `init_device_mesh`",
        programs={"mesh": Program("meshes:mesh_of_everybody", ranks=4, timeout_s=0, limit_s=60.0)},
        judge=_mesh_starts_the_world,
        advice="For a pipeline whose stages all have as many ranks, name the dimensions and take the groups "
        "by name; a stage 0 of one rank before a mesh of N fits no rectangle: use `new_group` there.",
    ),
    Claim(
        id="D41",
        statement="A mesh with fewer places than the world has ranks is made of the first ranks, without an "
        "error.",
        source=f"{SEEN}; {DOCS}, `init_device_mesh`",
        programs={
            "broken": unhurried("meshes:mesh_without_rank_0", ranks=3),
            "mended": unhurried("meshes:mesh_from_a_group", ranks=3),
        },
        judge=_mesh_smaller_than_the_world,
        advice="Rank 0 is stage 0 and no generator: make the generator's mesh by `DeviceMesh.from_group` "
        "from the group of ranks 1 to N, or it is of ranks 0 to N-1.",
    ),
    Claim(
        id="D42",
        statement="Ranks that are left can go on in a smaller group by `shrink_group`.",
        source=f"{DOCS}, groups, `shrink_group`",
        programs={
            "shrink_group": unhurried("meshes:shrunk", ranks=3),
            "new_group of the rest": unhurried("meshes:new_group_of_the_rest", ranks=3),
        },
        judge=_shrunk,
        advice="Where it is not supported, `new_group(rest, use_local_synchronization=True)` does not need "
        "the lost rank; but a stage that is gone is gone: for inference, end the run and start it again.",
    ),
    Claim(
        id="D43",
        statement="By default the ranks of a group are numbered in the order of the list that `new_group` "
        "gets: its first is rank 0.",
        source=f"{DOCS}, `new_group` and `get_group_rank`",
        programs={
            "asked": unhurried("meshes:translated", ranks=4),
            "told": unhurried("meshes:told_by_broadcasts", ranks=4),
        },
        judge=_order_of_ranks,
        advice="Do not make a rank the leader by naming it first, unless you say `sort_ranks=False`: ask "
        "`get_group_rank`, or name the source by its rank in the world.",
    ),
    Claim(
        id="D44",
        statement="The groups of a mesh have the timeout of the world that they are made in.",
        source=f"{DOCS}, DeviceMesh: it manages the groups; against T18",
        backends=("gloo",),
        programs={"bounds": Program("meshes:bounds_of_a_mesh", ranks=4, timeout_s=20.0)},
        judge=_bound_of_a_mesh,
        advice="Make the groups yourself, each with `timeout=`, and the mesh from them by "
        "`DeviceMesh.from_group`; else a hang in a row lasts half an hour.",
    ),
    Claim(
        id="D45",
        statement="A rank can ask for its place in each dimension of a mesh, and lay the mesh flat.",
        source=f"{CARD}, `DeviceMesh.get_local_rank`; {DOCS}, DeviceMesh, its members",
        programs={"places": unhurried("meshes:places_in_a_mesh", ranks=4)},
        judge=_places,
        advice="For a collective over all of a mesh take the group that it was made from, if it was; what "
        "has no public name may go with the next torch.",
    ),
    Claim(
        id="D46",
        statement="Where a backend cannot split groups, a mesh is made by `new_group` instead.",
        source=f"{NOTES}, DeviceMesh, #141469: `new_group` instead of `split_group` off CUDA",
        programs={"both": unhurried("meshes:split_and_made", ranks=4)},
        judge=_split,
        advice="Make groups by `new_group` in code for both: what splits on NCCL only has never run on the "
        "machine that you try it on.",
    ),
    Claim(
        id="D47",
        statement="One group can be destroyed by itself and made again, and the others work on.",
        source=f"{CARD}, `destroy_process_group(group)`; {DOCS}, shutdown and reinitialization",
        programs={"destroyed": Program("meshes:one_group_destroyed")},
        judge=_one_group,
        advice="Let go of the old handle where you destroy it. Whoever makes a group again has all ranks of "
        "the world call `new_group`, in step, as at the start.",
    ),
    Claim(
        id="D48",
        statement="A `device_id` has to be an accelerator with its number; another device is refused.",
        source=f"{CARD}, `new_group(device_id)`; {DOCS}, `init_process_group` and `new_group`, `device_id`",
        programs={"bound": Program("meshes:bound_to_a_device")},
        judge=_bound,
        advice="On NCCL give it to `init_process_group`, so that connections are made at once; on gloo leave "
        "it out: nobody looks whether the GPU that you name is there.",
    ),
)
