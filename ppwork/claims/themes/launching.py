"""Claims about who starts ranks, and about groups that several threads make."""

from __future__ import annotations

from ppwork.claims.claim import CARD, DOCS, Claim, ClaimFinding, Program, Seen, holds


def _launched(seen: Seen) -> ClaimFinding:
    hand, agent = seen["by hand"][0].notes, seen["by the agent"][0].notes["by_agent"]
    text = (
        f"A rank of torchrun's agent says {agent}, a rank started by hand {hand['by_hand']}; by hand with "
        f"TORCHELASTIC_RUN_ID set it says {hand['with_variable']}."
    )
    return holds(text, when=agent and not hand["by_hand"])


def _spawned(seen: Seen) -> ClaimFinding:
    notes = seen["spawned"][0].notes
    ended, named = notes["other_is_gone"], notes["named"]
    text = (
        f"Rank 1 of two raised: `spawn` raised {notes['error']}, which {'has' if named else 'has not'} rank "
        f"1's own words, and rank 0, which would have stayed 40 s, was {'gone' if ended else 'still there'}. "
        f"A function that stands in no file: {notes['of_a_cell'] or 'taken'}"
    )
    return holds(text, when=ended and named)


def _threads(seen: Seen) -> ClaimFinding:
    results = {}
    for name in ("broken", "mended"):
        notes = [rank.notes for rank in seen[name]]
        results[name] = [[note.get(link) for link in ("down", "up")] for note in notes]
    right = [[2.0, 20.0]] * 2
    if results["mended"] != right:
        raise ValueError(f"made by one thread, the groups added up to {results['mended']}")
    broken = results["broken"][0]
    got = " and ".join("an error" if total is None else f"{total:g}" for total in broken)
    text = (
        "Two threads of each rank, in another order on rank 1, made a group each and added up 1 and 1 in the "
        f"one, 10 and 10 in the other: they got {got}. Made by the main thread: 2 and 20."
    )
    return holds(text, when=results["broken"] != right)


CLAIMS = (
    Claim(
        id="D25",
        statement="`is_torchelastic_launched` tells a rank of torchrun from one that was started by hand.",
        source=f"{CARD}, `is_torchelastic_launched`; {DOCS}, the same",
        programs={
            "by hand": Program("launching:launched_by_hand", ranks=1, timeout_s=0.0),
            "by the agent": Program("launching:launched_by_the_agent", ranks=1, timeout_s=0.0, limit_s=60.0),
        },
        judge=_launched,
        advice="It reads a variable that every child inherits: a program that a rank starts says the same of "
        "itself.",
    ),
    Claim(
        id="D26",
        statement="`torch.multiprocessing.spawn` passes a rank's error on, and ends the other ranks.",
        source=f"{DOCS}, spawn utility",
        programs={"spawned": Program("launching:spawned", ranks=1, timeout_s=0.0, limit_s=60.0, fresh=True)},
        judge=_spawned,
        advice="For a script it will do. Not in a notebook: a function of a cell stands in no file, so write "
        "one and start it by torchrun, which also gives the ranks a store and their numbers.",
    ),
    Claim(
        id="D27",
        statement="Groups that several threads of a rank make can cross: making them is not thread-safe.",
        source=f"{DOCS}, initialization, warning: from a single thread",
        backends=("gloo",),
        programs={
            "broken": Program("launching:groups_of_two_threads"),
            "mended": Program("launching:groups_of_one_thread"),
        },
        judge=_threads,
        advice="The main thread makes all groups at the start, and hands each thread its own: groups are "
        "numbered as they are made, whoever makes them.",
    ),
)
