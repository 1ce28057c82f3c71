"""Faults of processes and machines (F13, F14, F17 to F21), as data."""

from __future__ import annotations

from ppwork.faults.fault import (
    ANY,
    BLIND,
    ENDS,
    FROZEN,
    IN_PLAN,
    NOBODY,
    OUTSIDE,
    REFUSED,
    STUCK,
    SUCCEEDS,
    TWO_HOSTS,
    Bound,
    Case,
    Expect,
    Fault,
)

LIVES = 200
"""Chunks of a run that is to be ended from outside."""

STARTED = Bound(20.0, because="torchrun and torch have to start first; nothing is computed")
SILENT = Bound(
    2.0, after="timeout_s", because="nothing closes a connection over a cut link; only a bound ends it"
)
LOST = Bound(
    20.0, after="timeout_s", because="torchrun on the host that lost its store gives up later than its ranks"
)
CUT = Expect(first=(NOBODY,), errors=("NetworkSilent",), said=("hosta and hostb",), notice=SILENT, gone=LOST)
"""Both sides waited alike: the network between their hosts is named, and no rank."""
KILLS = (
    ("stage0", "idle", "while its source pauses"),
    ("leader", "idle", "while it waits for an envelope"),
    ("follower", "idle", "while it waits for a broadcast"),
    ("stage0", "mid-send", "when the frame of a chunk has left and its tensors have not"),
    ("leader", "mid-send", "when the frame of a chunk has come and its tensors have not"),
    ("leader", "mid-broadcast", "when the frame of a chunk was broadcast and its tensors were not"),
    ("follower", "mid-broadcast", "when the frame of a chunk has come and its tensors have not"),
    ("stage0", "mid-compute", "in encode"),
    ("leader", "mid-compute", "in the generator, whose sum the others wait for"),
    ("follower", "mid-compute", "in the generator, whose sum the others wait for"),
)

PROCESSES = (
    Fault(
        id="F13",
        title="A rank is killed (SIGKILL)",
        good="Everybody is gone within 2 s; the dead rank is named first, with its signal.",
        lesson="A dead peer's connection closes at once; what is said then is a symptom and no cause.",
        cases=tuple(
            Case(
                name=f"{role}-{moment}",
                injected=f"the {role} is killed {when}",
                on=role,
                expect=Expect(first=(role,), errors=("RankDied",), where=("rank",), said=("SIGKILL",)),
            )
            for role, moment, when in KILLS
        ),
    ),
    Fault(
        id="F14",
        title="A rank stops making progress",
        good="Ended within the bounds of the plan, the rank named, with its stacks where it can still run.",
        lesson="Dead is seen at once; frozen and stuck only by a bound, and only a bound that fits the work.",
        cases=(
            *(
                Case(
                    name=f"{role}-stopped",
                    injected=f"the {role} gets SIGSTOP while it computes",
                    on=role,
                    expect=Expect(
                        first=(role,),
                        errors=("PeerFrozenError",),
                        where=("rank",),
                        said=("SIGSTOP",),
                        notice=FROZEN,
                        gone=FROZEN,
                    ),
                )
                for role in ("stage0", "leader", "follower")
            ),
            *(
                Case(
                    name=f"{role}-loop",
                    injected=f"the stage of the {role} loops for ever",
                    on=role,
                    expect=Expect(
                        first=(role,),
                        errors=("StuckError",),
                        where=("rank", "role"),
                        notice=STUCK,
                        gone=STUCK,
                    ),
                )
                for role in ("stage0", "leader", "follower")
            ),
            Case(
                name="follower-holds-gil",
                injected="the stage of the follower sits in a C call that never gives the interpreter back",
                on="follower",
                expect=Expect(
                    first=("follower",), errors=("StuckError",), where=("rank",), notice=BLIND, gone=BLIND
                ),
            ),
        ),
    ),
    Fault(
        id="F17",
        title="A slow consumer, a slow producer",
        good="The run ends well; no queue passes its bound.",
        lesson="Backpressure is the bound of every queue; without it, slow means out of memory.",
        cases=tuple(
            Case(
                name=name,
                injected=text,
                on="stage0",
                place=IN_PLAN,
                plan={"options": options, "in_flight_depth": 3},
                expect=Expect(outcome=SUCCEEDS, facts=("queues within bounds", "nothing dropped")),
            )
            for name, text, options in (
                ("slow-mesh", "the generator takes 20 times as long as stage 0", {"stage1_ms": 100.0}),
                ("slow-source", "encode takes 10 times as long as the mesh", {"encode_ms": 100.0}),
                ("slow-decode", "decode takes 10 times as long as the mesh", {"decode_ms": 100.0}),
            )
        ),
    ),
    Fault(
        id="F18",
        title="The run is stopped from outside",
        good="No rank survives, also when ranks sit in a blocked receive.",
        lesson="torchrun killed hard leaves its ranks for ever, unless they hold a line of their own.",
        cases=tuple(
            Case(
                name=name,
                injected=text,
                place=OUTSIDE,
                plan={"chunks": LIVES, "options": {"stage1_ms": 300.0}},
                expect=Expect(outcome=ENDS),
            )
            for name, text in (
                ("ctrl-c", "SIGINT to the launcher and to torchrun, as a terminal sends it"),
                ("sigterm", "SIGTERM to the launcher"),
                ("launcher-killed", "SIGKILL to the launcher"),
                ("torchrun-sigint", "SIGINT to torchrun"),
                ("torchrun-sigterm", "SIGTERM to torchrun"),
                ("torchrun-killed", "SIGKILL to torchrun"),
            )
        ),
    ),
    Fault(
        id="F19",
        title="The network between two hosts is cut or delayed",
        good="Cut: a bounded failure with the right diagnosis. Delay: only slower.",
        lesson="A cut cable closes no connection; only a bound notices.",
        cases=tuple(
            Case(
                name=name,
                injected=f"the link between two hosts is {text}",
                place=OUTSIDE,
                needs=TWO_HOSTS,
                plan={"chunks": 40, "options": {"stage1_ms": 50.0}},
                expect=expect,
            )
            for name, text, expect in (
                ("cut", "taken down", CUT),
                (
                    "delayed",
                    "taken down for a second, so that what is lost has to be sent again",
                    Expect(outcome=SUCCEEDS, facts=("nothing dropped",)),
                ),
            )
        ),
    ),
    Fault(
        id="F20",
        title="The disk is full, or the run folder cannot be written",
        good="Refused before start, or at the first write; no half-written record is taken for a whole one.",
        lesson="What cannot be written down did not happen, for whoever looks later.",
        cases=(
            Case(
                name="unwritable",
                injected="the parent of the run folder is a file",
                place=OUTSIDE,
                expect=Expect(outcome=REFUSED, errors=("PlanError",), said=("cannot be used",)),
            ),
            Case(
                name="full",
                injected="no file of one rank may grow any more",
                on="follower",
                expect=Expect(
                    first=("follower",),
                    errors=("RankDied",),
                    where=("rank",),
                    said=("could not write its records",),
                    facts=("records whole",),
                ),
            ),
        ),
    ),
    Fault(
        id="F21",
        title="A start that cannot work",
        good="A clear error with the remedy, before any inference; or it does not matter.",
        lesson="Most first runs fail at the start; the message is the product.",
        cases=(
            Case(
                name="world-size",
                injected="torchrun by hand starts one rank too few",
                place=OUTSIDE,
                expect=Expect(
                    first=(ANY,),
                    errors=("PlanError",),
                    where=("rank",),
                    said=("ranks were started",),
                    facts=("no inference",),
                    notice=STARTED,
                    gone=STARTED,
                ),
            ),
            Case(
                name="too-few-gpus",
                injected="NCCL is asked for with more ranks than GPUs",
                place=OUTSIDE,
                plan={"backend": "nccl", "mesh_size": 63},
                expect=Expect(outcome=REFUSED, errors=("PlanError",), said=("one GPU per rank",)),
            ),
            Case(
                name="port-in-use",
                injected="torchrun's usual port 29500 is taken",
                place=OUTSIDE,
                expect=Expect(outcome=SUCCEEDS, facts=("nothing dropped",)),
            ),
            Case(
                name="stale-rendezvous",
                injected="ranks started by hand find the store file of a run that was killed",
                place=OUTSIDE,
                expect=Expect(outcome=SUCCEEDS, facts=("nothing dropped",)),
            ),
        ),
    ),
)
