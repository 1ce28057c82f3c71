"""Faults of what ranks say to each other (F01 to F04, F06, F07, F09, F10, F16), as data."""

from __future__ import annotations

from msgspec.structs import replace

from ppwork.faults.fault import ALL_IDS, GPU, IN_PLAN, SUCCEEDS, Case, Expect, Fault, differs

CUT_AT = 5

SENDER_REFUSES = Expect(
    first=("stage0",), errors=("LocalProtocolError",), where=ALL_IDS, facts=("nothing sent", "peers told")
)
LEADER_REFUSES = Expect(
    first=("leader",),
    errors=("RemoteProtocolError",),
    where=("rank", "role"),
    facts=("mesh unseen", "peers told"),
)


MESSAGES = (
    Fault(
        id="F01",
        title="Metadata that cannot be serialised",
        good="Stage 0 raises in preflight; no byte of the chunk leaves; the peers learn why and leave.",
        lesson="A sender that fails half-way leaves its peer waiting; one that checks all first does not.",
        cases=(
            Case(
                name="object",
                injected="the metadata of a chunk holds a bare object(), while the mesh computes",
                on="stage0",
                plan={"options": {"stage1_ms": 50.0}},
                expect=replace(SENDER_REFUSES, said=("metadata could not be serialised",)),
            ),
        ),
    ),
    Fault(
        id="F02",
        title="A tensor that cannot travel",
        good="Stage 0 raises in preflight and names the tensor and the remedy; no byte of the chunk leaves.",
        lesson="Backends check neither layout nor dtype; a wrong tensor must be found before it is sent.",
        cases=(
            *(
                Case(
                    name=name,
                    injected=f"encode returns {tensor}",
                    on="stage0",
                    expect=replace(SENDER_REFUSES, said=(text,)),
                )
                for name, tensor, text in (
                    ("sparse", "a sparse tensor", "had layout"),
                    ("meta", "a meta tensor, which has no data", "was on meta"),
                    ("quantised", "a quantised tensor", "was quantised"),
                    ("non-contiguous", "a transposed view", "was a non-contiguous view"),
                )
            ),
            Case(
                name="no-room",
                injected="encode returns a tensor that the GPU has no room for a copy of",
                on="stage0",
                needs=GPU,
                plan={"backend": "nccl", "share_gpu": True, "timeout_s": 60.0, "max_message_bytes": 1 << 40},
                expect=replace(SENDER_REFUSES, said=("no room",)),
            ),
        ),
    ),
    Fault(
        id="F03",
        title="An inconsistent plan of a chunk",
        good="Stage 0 refuses it in preflight; with that check off, the leader refuses it before the mesh.",
        lesson="Both ends check: the sender saves time, the receiver saves the mesh.",
        cases=(
            Case(
                name="sender",
                injected="expected_calls is not steps + recompute",
                on="stage0",
                expect=replace(SENDER_REFUSES, said=("generator calls",)),
            ),
            Case(
                name="receiver",
                injected="the same, with the sender's check off",
                on="stage0",
                expect=replace(LEADER_REFUSES, said=("generator calls",)),
            ),
        ),
    ),
    Fault(
        id="F04",
        title="Ranks started with different plans or environments",
        good="Start-up names the key, its values and their ranks on every rank; no inference begins.",
        lesson="What only one rank knows becomes a collective that only one rank makes: a hang, hours later.",
        cases=(
            Case(
                name="plan",
                injected="one rank holds a plan with another number of steps",
                on="follower",
                expect=differs("plan.steps was"),
            ),
            Case(
                name="environment",
                injected="one rank has another TORCH_DISTRIBUTED_DEBUG",
                on="follower",
                expect=differs("env.TORCH_DISTRIBUTED_DEBUG was"),
            ),
        ),
    ),
    Fault(
        id="F06",
        title="A header that is not ours",
        good="The leader refuses it before the mesh sees it and tells all; nothing huge is allocated.",
        lesson="A size that is believed is an allocation, or an abort inside the backend.",
        cases=tuple(
            Case(name=name, injected=injected, on="stage0", expect=replace(LEADER_REFUSES, said=(text,)))
            for name, injected, text in (
                ("version", "the header bears wire version 99", "wire version 99"),
                ("action", "the header bears action 9", "unknown action 9"),
                ("checksum", "one bit of the header is flipped", "header's checksum was wrong"),
                ("truncated", "only the first 40 bytes of the frame are sent", "header's checksum was wrong"),
                ("oversized", "the header announces 1 TB of tensors", "are allowed"),
            )
        ),
    ),
    Fault(
        id="F07",
        title="The leader raises between receive and broadcast",
        good="A terminal notice reaches the followers and rank 0; all leave within 2 s.",
        lesson="After the commitment point the peers wait for the rest; somebody must tell them.",
        cases=(
            Case(
                name="leader",
                injected="the leader raises just before it broadcasts a chunk",
                on="leader",
                expect=Expect(
                    first=("leader",), errors=("RuntimeError",), where=("rank",), facts=("peers told",)
                ),
            ),
        ),
    ),
    Fault(
        id="F09",
        title="A flush, or a cut, while results are in flight",
        good="Flush: what was in flight is received and dropped; from there all is as in a run that "
        "began there. Cut: nothing is lost.",
        lesson="A receive is never skipped: a stale result is taken and dropped, or the link is out of step.",
        cases=(
            Case(
                name="flush",
                injected="a flush at depth 3 while two results are on their way",
                on="stage0",
                place=IN_PLAN,
                plan={"flushes": (CUT_AT,), "in_flight_depth": 3, "options": {"cache": True}},
                expect=Expect(outcome=SUCCEEDS, facts=("in flight dropped", "as if begun there")),
            ),
            Case(
                name="cut",
                injected="a hard cut at depth 3 while two results are on their way",
                on="stage0",
                place=IN_PLAN,
                plan={"hard_cuts": (CUT_AT,), "in_flight_depth": 3, "options": {"cache": True}},
                expect=Expect(outcome=SUCCEEDS, facts=("nothing dropped", "as if begun there")),
            ),
        ),
    ),
    Fault(
        id="F10",
        title="Recompute without context frames",
        good="Stage 0 refuses it in preflight; there is no fallback.",
        lesson="A silent fallback would go on with a wrong cache, and look right.",
        cases=(
            Case(
                name="no-frames",
                injected="context_frames returns nothing for a chunk that recomputes",
                on="stage0",
                plan={"recompute_every": 3},
                expect=replace(SENDER_REFUSES, said=("no context frames",)),
            ),
        ),
    ),
    Fault(
        id="F16",
        title="Repeated, skipped or disordered call_id",
        good="The receiver raises before any collective.",
        lesson="Counting costs nothing, and finds what no checksum can.",
        cases=tuple(
            Case(
                name=name,
                injected=f"the header of a chunk bears {text}, while the mesh computes the one before",
                on="stage0",
                plan={"options": {"stage1_ms": 50.0}},
                expect=replace(LEADER_REFUSES, where=ALL_IDS, said=("it must grow by exactly 1",)),
            )
            for name, text in (
                ("repeated", "the last call_id again"),
                ("skipped", "a call_id that leaves one out"),
                ("disordered", "a call_id of before the last"),
            )
        ),
    ),
)
