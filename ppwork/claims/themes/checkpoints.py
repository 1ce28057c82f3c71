"""Claims about distributed checkpoints: who can read them, and saving them beside the work.

A save in the background needs a group with a CPU backend: what is claimed of it is claimed of gloo.
"""

from __future__ import annotations

import re

from ppwork.claims.claim import (
    CHECKPOINT_NOTES,
    Claim,
    ClaimFinding,
    Seen,
    between,
    does_not_hold,
    holds,
    unhurried,
)

CHECKPOINT = "documentation of torch.distributed.checkpoint"
BY_OUR_STORE = {"DCP_USE_PREFIX_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _other_ranks(seen: Seen) -> ClaimFinding:
    first, second = (rank.notes for rank in seen["two, then one"])
    wanted = [float(number) for number in range(8)]
    text = (
        f"Saved by two ranks as {first['mine']} and {second['mine']}, and read by rank 0 without the other, "
        f"it was {first['read']}."
    )
    return holds(text, when=first["read"] == wanted)


def _in_a_process(seen: Seen) -> ClaimFinding:
    thread, process = seen["thread"][0].notes, seen["process"][0].notes
    text = (
        f"`async_save` by a process returned after {process['returned_s'] * 1e3:.0f} ms and was done after "
        f"{process['done_s']:.1f} s, an interpreter having been started for it; by a thread after "
        f"{thread['returned_s'] * 1e3:.0f} ms and {thread['done_s']:.1f} s. A tensor of 1, overwritten with "
        f"2 when the call had returned, was read back as {between(process['read'])}, by a thread as "
        f"{between(thread['read'])}."
    )
    early = process["returned_s"] < process["done_s"] / 4
    return holds(text, when=early and process["read"] == [1.0, 1.0])


def _by_prefix(seen: Seen) -> ClaimFinding:
    keys, error = seen["with an address"][0].notes["keys"], seen["without one"][0].notes["error"]
    needs = re.search(r'DCP needs [^"\n]*', error)
    alone = f"failed: {needs.group() if needs else error[:80]}" if error else "worked"
    text = (
        f"With DCP_USE_PREFIX_STORE=1 the background processes of two ranks left {keys} keys with their "
        f"prefix in the store at MASTER_ADDR and MASTER_PORT; without MASTER_ADDR the save {alone}."
    )
    return holds(text, when=keys)


def _base_exception(seen: Seen) -> ClaimFinding:
    notes = [rank.notes for rank in seen["nowhere"]]
    caught = [note.get("caught", "") for note in notes]
    if all(caught):
        return holds(f"`except Exception` caught the {caught[0]} of a checkpoint that is not there.")
    passed = next(note["passed_by"] for note in notes if "passed_by" in note)
    return does_not_hold(
        f"Reading a checkpoint that is not there raised {passed}, which `except Exception` did not catch."
    )


CLAIMS = (
    Claim(
        id="A09",
        statement="A checkpoint that several ranks saved together is read whole by one rank alone.",
        source=f"{CHECKPOINT}, `load`, `no_dist`: load-time resharding",
        programs={"two, then one": unhurried("checkpoints:saved_by_two_read_by_one")},
        judge=_other_ranks,
        advice="Weights need no copy for each number of mesh ranks: save once, and let each stage read its "
        "part, at start and without the others.",
    ),
    Claim(
        id="A11",
        statement="What goes wrong in a distributed checkpoint can be caught with `except Exception`.",
        source=f"{CHECKPOINT}, `CheckpointException`; Python's rule for what programs catch",
        backends=("gloo",),
        programs={"nowhere": unhurried("checkpoints:read_from_nowhere")},
        judge=_base_exception,
        advice="A rank that guards its work with `except Exception`, to tell its peers, leaves without a "
        "word here: name CheckpointException beside it.",
    ),
    Claim(
        id="R24",
        statement="A checkpoint saved by a process of its own lets the rank go on, and its tensors change.",
        source=f"{CHECKPOINT_NOTES}, process-based asynchronous save, #162828 and #169613; {CHECKPOINT}, "
        "`async_save`",
        backends=("gloo",),
        programs={
            "thread": unhurried("checkpoints:saved_in_a_thread", ranks=1),
            "process": unhurried("checkpoints:saved_in_a_process", ranks=1),
        },
        judge=_in_a_process,
        advice="The first save of a run costs the start of an interpreter beside the work: save once before "
        "the run is measured, or by a thread.",
    ),
    Claim(
        id="R25",
        statement="With DCP_USE_PREFIX_STORE=1 a background checkpoint meets in the job's store, behind a "
        "prefix.",
        source=f"{CHECKPOINT_NOTES}, #166560",
        backends=("gloo",),
        programs={
            "with an address": unhurried("checkpoints:met_in_the_store_of_the_job", environment=BY_OUR_STORE),
            "without one": unhurried("checkpoints:without_an_address", ranks=1, environment=BY_OUR_STORE),
        },
        judge=_by_prefix,
        advice="It spares a second port, free when it was looked for and perhaps not when it is used; it "
        "needs a store that outlives the save at MASTER_ADDR, so not a job that met in a file.",
    ),
)
