"""Faults inside the stages and the mesh (F05, F08, F11, F12, F15, F22), as data."""

from __future__ import annotations

from msgspec.structs import replace

from ppwork.faults.fault import ALL_IDS, GPU, SUCCEEDS, Case, Expect, Fault, differs
from ppwork.plan import VIDEO_STAGE0, VIDEO_STAGE1

SMALL_FRAMES = {"width": 64, "height": 48}
MESH_REFUSES = Expect(first=("leader", "follower"), errors=("LocalProtocolError",))
FOLLOWER_REFUSES = Expect(first=("follower",), errors=("LocalProtocolError",), where=ALL_IDS)

STAGES = (
    Fault(
        id="F05",
        title="A collective behind a flag of one rank",
        good="A flag of the plan is found at start-up; an unknown one before the backend is called.",
        lesson="Collectives match by order alone: one extra makes all later ones mean something else.",
        cases=(
            Case(
                name="flag-of-the-plan",
                injected="an option of the plan differs on one rank",
                on="follower",
                expect=differs("plan.options was"),
            ),
            *(
                Case(
                    name=name,
                    injected=f"one mesh rank makes one more all_reduce, {text}",
                    on="follower",
                    plan={"compare_collectives": -1},
                    expect=replace(MESH_REFUSES, where=("rank", "role", "group")),
                )
                for name, text in (
                    ("other-shape", "of another shape"),
                    ("same-shape", "like the others: the silent kind"),
                )
            ),
        ),
    ),
    Fault(
        id="F08",
        title="A collective of stage code on the wrong group",
        good="The guard raises before the backend, and names the call, the group used and the one allowed.",
        lesson="Rank 0 is in the default group and never comes: the classic hang.",
        cases=tuple(
            Case(
                name=name,
                injected=f"stage 1 calls all_reduce on {text}",
                on="follower",
                expect=replace(
                    FOLLOWER_REFUSES,
                    where=("rank", "role", "group"),
                    said=("all_reduce", group, "only tp_pg"),
                ),
            )
            for name, text, group in (
                ("default-group", "no group, so on the default one", "world_pg"),
                ("wrong-group", "mesh_pg", "mesh_pg"),
            )
        ),
    ),
    Fault(
        id="F11",
        title="Input or weights perturbed on one mesh rank",
        good="The comparison of digests names the rank and the tensor.",
        lesson="Replicas that drift apart raise nothing: the sums are wrong, and nobody is to blame.",
        cases=(
            Case(
                name="input",
                injected="one element of a received tensor changes before the generator",
                on="follower",
                plan={"digests": True},
                expect=replace(MESH_REFUSES, where=ALL_IDS, said=("differed on the mesh",)),
            ),
            Case(
                name="weights",
                injected="one element of a replicated weight differs after loading",
                on="follower",
                plan={
                    "digests": True,
                    "stage0": VIDEO_STAGE0,
                    "stage1": VIDEO_STAGE1,
                    "options": SMALL_FRAMES,
                },
                expect=differs("weight."),
            ),
        ),
    ),
    Fault(
        id="F12",
        title="Another number of generator calls on one rank",
        good="Caught on that rank before its first unmatched collective.",
        lesson="The plan of a chunk travels, so each rank can count for itself.",
        cases=tuple(
            Case(
                name=name,
                injected=f"one mesh rank makes one generator call {name} than the plan of the chunk says",
                on="follower",
                expect=replace(FOLLOWER_REFUSES, said=("calls",)),
            )
            for name in ("more", "fewer")
        ),
    ),
    Fault(
        id="F15",
        title="Stage code raises",
        good="The stage's own error comes first, with its file and line; the peers learn why.",
        lesson="The first traceback that a user sees should be the user's own.",
        cases=(
            *(
                Case(
                    name=role,
                    injected=f"the stage of the {role} gets no tensors, and its own code raises",
                    on=role,
                    expect=Expect(
                        first=(role,), errors=("StageError",), where=ALL_IDS, facts=("source of the stage",)
                    ),
                )
                for role in ("stage0", "leader", "follower")
            ),
            Case(
                name="out-of-memory",
                injected="the generator asks for more memory than the GPU has",
                on="follower",
                needs=GPU,
                plan={"backend": "nccl", "share_gpu": True, "timeout_s": 60.0},
                expect=Expect(first=("follower",), errors=("StageError",), where=ALL_IDS),
            ),
        ),
    ),
    Fault(
        id="F22",
        title="Two callers of the transport at once",
        good="The second caller is refused; the run goes on and ends well.",
        lesson="A protocol has one caller per rank, or no order.",
        cases=(
            Case(
                name="second-thread",
                injected="a second thread of rank 0 sends a heartbeat while the first one encodes",
                on="stage0",
                expect=Expect(outcome=SUCCEEDS, facts=("second caller refused", "nothing dropped")),
            ),
        ),
    ),
)
