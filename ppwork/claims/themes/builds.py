"""Claims about what this build of torch has: backends, deprecated names, symmetric memory."""

from __future__ import annotations

from ppwork.claims.claim import (
    CARD,
    DOCS,
    Claim,
    ClaimFinding,
    Program,
    Seen,
    does_not_hold,
    holds,
    unhurried,
)


def _availability(seen: Seen) -> ClaimFinding:
    notes = seen["asked"][0].notes
    if any(notes["there"][name] != there for name, there in notes["by_function"].items()):
        raise ValueError(f"asked by name {notes['there']}, by function {notes['by_function']}")
    built = [name for name, there in notes["there"].items() if there]
    chosen = notes["chosen"]
    absent = {device: name for device, name in chosen.items() if not notes["there"][name]}
    text = (
        f"torch {notes['torch']} has {' and '.join(built)}; for a CPU it would take {chosen['cpu']}, for "
        f"CUDA {chosen['cuda']}{', which is not built in' if absent else ''}. The group made here says "
        f"{notes['ours']}."
    )
    return holds(text, when=not absent)


def _deprecated(seen: Seen) -> ClaimFinding:
    notes = seen["asked"][0].notes
    warned = f"warned ({notes['warned'][0]})" if notes["warned"] else "did not warn"
    several = notes["several_gpus"]
    text = (
        f"`reduce_op` gave {notes['reduce_op']:g} of 1 and 2 and {warned}; `torch.distributed.launch` is "
        f"{'there' if notes['launch'] else 'gone'}; of the functions for several GPUs a rank "
        f"{', '.join(several) or 'none'} {'are' if len(several) > 1 else 'is'} left."
    )
    return holds(text, when=notes["reduce_op"] == 3.0 and notes["launch"] and len(several) == 3)


def _registered(seen: Seen) -> ClaimFinding:
    notes = seen["registered"][0].notes
    text = f"Before, the name was {'refused' if notes['before'] else 'taken'}"
    text += f" ({notes['before']})" if notes["before"] else ""
    if "total" not in notes:
        return does_not_hold(f"{text}; registered, it made no group.")
    works = notes["asked"] == 1 and notes["name"] == "ours" and notes["total"] == 2.0
    text += (
        f"; registered, our function was called {notes['asked']} time, `get_backend` says {notes['name']}, "
        f"and an all-reduce of ones gave {notes['total']:g}."
    )
    return holds(text, when=works)


def _symmetric(seen: Seen) -> ClaimFinding:
    notes = seen["asked"][0].notes
    if "made" in notes:
        text = f"A buffer was made on {notes['device']}."
        return does_not_hold(text) if notes["device"] == "cpu" else holds(text)
    text = f"A buffer on {notes['device']} was refused: {notes['error']}"
    return holds(text, when=notes["device"] == "cpu")


CLAIMS = (
    Claim(
        id="D24",
        statement="What torch would take as the backend of a device is built in.",
        source=f"{DOCS}, `get_default_backend_for_device`, `is_backend_available`, `is_nccl_available` and "
        "its kind, `get_backend`",
        programs={"asked": Program("builds:asked_for_backends", ranks=1, timeout_s=0.0)},
        judge=_availability,
        advice="Ask `is_backend_available` before you start, and say the backend in the call: the default "
        "names what the device would like, and the error comes when the first group is made.",
    ),
    Claim(
        id="D23",
        statement="What is documented as deprecated is still there: `reduce_op`, the launch module, "
        "functions of several GPUs.",
        source=f"{DOCS}, `reduce_op`, launch utility, multi-GPU collective functions",
        programs={"asked": Program("builds:deprecated_names")},
        judge=_deprecated,
        advice="`ReduceOp`, `torchrun` and one GPU a rank; run the tests with FutureWarning as an error, and "
        "the line that has to change is named.",
    ),
    Claim(
        id="D31",
        statement="A backend of one's own is registered by name, and then carries groups like torch's own.",
        source=f"{DOCS}, third-party backends, `Backend.register_backend`",
        backends=("gloo",),
        programs={"registered": Program("builds:backend_of_ours", timeout_s=0.0)},
        judge=_registered,
        advice="A way to slip a backend that counts or delays under a program that you may not change; every "
        "rank has to register it before its first group.",
    ),
    Claim(
        id="D33",
        statement="Symmetric memory, which copy engine collectives need, is for accelerators only.",
        source=f"{CARD}, copy engine collectives; {DOCS}, symmetric memory",
        programs={"asked": unhurried("builds:symmetric_memory")},
        judge=_symmetric,
        advice="Plan nothing with it that shall be tried without a GPU; it speeds up collectives inside a "
        "mesh, not the messages between stages.",
    ),
)
