"""Claims about bounds, the way out, and what is left when a rank is gone."""

from __future__ import annotations

from ppwork.claims.claim import (
    CARD,
    DOCS,
    SEEN,
    Claim,
    ClaimFinding,
    Program,
    RankEnd,
    Seen,
    does_not_hold,
    holds,
    not_testable,
)

OLD_OTHERS_S, OLD_NCCL_S = 1800.0, 600.0
EXIT_S = 60.0
"""For the way out, of which a loaded machine has been seen to need 9 s; whoever needs more has hung."""


def _defaults(seen: Seen) -> ClaimFinding:
    read = seen["constants"][0].notes
    nccl = "NCCL is not in this build" if read["nccl"] is None else f"NCCL {read['nccl'] / 60:g} min"
    text = f"The constants say {read['others'] / 60:g} min, {nccl}; a group made without a timeout has "
    text += f"{read['group'] / 60:g} min."
    if read["others"] == OLD_OTHERS_S and read["nccl"] is None:
        return not_testable(text)  # one half was seen; the sentence holds only if both do
    return holds(text, when=read["others"] == OLD_OTHERS_S and read["nccl"] == OLD_NCCL_S)


def _past_the_timeout(seen: Seen) -> ClaimFinding:
    receiver = seen["past it"][1]
    if receiver.notes.get("went_on"):
        return does_not_hold(
            f"Past a timeout of 1 s, `recv` raised after {receiver.notes['raised_s']:.2f} s and the process "
            "went on: it is up to the program to end."
        )
    text = f"Past a timeout of 1 s, the process {receiver.ended} (exit {receiver.exit_code})."
    return holds(text, when=receiver.ended is RankEnd.EXITED)


def _short_timeout(seen: Seen) -> ClaimFinding:
    short, default = seen["mended"][1].notes["raised_s"], seen["broken"][1].notes
    text = (
        f"The same hang: with 2 s it was over after {short:.1f} s; with the default it was "
        f"{'still waiting' if default['waiting'] else 'over'} after 1 s and is bound by "
        f"{default['bound_s'] / 60:g} min (read, not waited for): {default['bound_s'] / short:.0f} times as "
        "long"
    )
    longer = default["waiting"] and default["bound_s"] > 10 * short
    return holds(f"{text}.", when=longer and short < 4.0)


def _exit(seen: Seen) -> ClaimFinding:
    for name, ranks in seen.items():
        if not ranks or not all(rank.notes.get("ended") for rank in ranks):
            raise ValueError(f"{name}: not every rank came to its end")
    ranks = seen["one does not"]
    hung = [number for number, rank in enumerate(ranks) if rank.ended is RankEnd.HUNG]
    codes = ", ".join(str(rank.exit_code) for rank in ranks)
    both = "left in order" if all(rank.ended is RankEnd.RETURNED for rank in seen["all do"]) else "did not"
    after = f"Where both destroyed, both {both}."
    slowest = max(rank.seconds for rank in seen["all do"])
    if hung and slowest > EXIT_S / 2:
        raise ValueError(
            f"in order it took {slowest:.0f} s: too slow a machine to tell a hang by {EXIT_S:g} s"
        )
    if hung:
        return holds(f"Rank 1 did not destroy its groups; still there at the limit: ranks {hung}. {after}")
    return does_not_hold(
        f"Rank 1 did not destroy its two groups, and both interpreters ended by themselves (exit {codes}). "
        f"{after}"
    )


def _shutdown(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][1].notes, seen["mended"]
    if not all(rank.notes.get("destroyed") for rank in mended):
        raise ValueError("with SHUTDOWN not every rank destroyed its group")
    if "error" not in broken:
        return does_not_hold("Rank 0 destroyed its group without a word, and rank 1 noticed nothing.")
    return holds(
        f"Rank 0 destroyed its group without a word: after {len(broken['got'])} results rank 1 got "
        f"“{broken['error'].split('] ')[-1].split('. ')[0]}” ({broken['after_s']:.2f} s), as if rank 0 had "
        "died. After a SHUTDOWN message both destroyed theirs and nobody raised."
    )


def _abort(seen: Seen) -> ClaimFinding:
    notes, mended = seen["broken"][1].notes, seen["mended"][1]
    later = notes["recv_ended_s"] - notes["aborted_s"]
    text = (
        f"`abort` returned {notes['aborted_s']:.2f} s into the receive, which ended {later:.2f} s later "
        f"({notes['error'].split('] ')[-1][:60]})"
    )
    exits = f"Ending the process from the thread did end it (exit {mended.exit_code})."
    if "Timed out" in notes["error"] and later > 0.4:
        return holds(f"{text}: only the group's timeout of 1.2 s ended it. {exits}")
    return does_not_hold(f"{text}. {exits}")


def _survivors(seen: Seen) -> ClaimFinding:
    dead, first, second = seen["survivors"]
    if dead.ended is not RankEnd.EXITED:
        raise ValueError("rank 0 is not dead")
    seen_s = max(first.notes["seen_s"], second.notes["seen_s"])
    works = first.notes.get("got") == [2.0] * 4 and second.notes.get("got") == [1.0] * 4
    collective = first.notes.get("collective", "")
    text = (
        f"Rank 0 died; ranks 1 and 2, receiving from it, were told within {1000 * seen_s:.0f} ms, and then "
        f"{'could' if works else 'could not'} send to each other in the same group. A collective of the "
        f"group {'failed' if collective else 'passed'}."
    )
    return holds(text, when=works)


CLAIMS = (
    Claim(
        id="C03",
        statement="Past the timeout of its group the process crashes.",
        source=f"{CARD}, claim 3; {DOCS}, `init_process_group`",
        programs={
            "past it": Program(
                "failure:past_the_timeout",
                timeout_s=1.0,
                limit_s=30.0,
                environment={"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"},
            ),
        },
        judge=_past_the_timeout,
        advice="Catch nothing and leave, on every backend: on gloo the process lives on, and the group is "
        "broken.",
    ),
    Claim(
        id="D49",
        statement="The default timeout is 10 min on NCCL and 30 min elsewhere.",
        source=f"{CARD}, claim 3; {DOCS}, `init_process_group`",
        programs={"constants": Program("failure:constants", ranks=1, timeout_s=0.0)},
        judge=_defaults,
        advice="Set the timeout yourself, for every group.",
    ),
    Claim(
        id="C05",
        statement="A rank that does not call `destroy_process_group` can make the exit hang.",
        source=f"{CARD}, claim 5; {DOCS}, shutdown, of NCCL",
        programs={
            "one does not": Program(
                "failure:one_does_not_destroy", fresh=True, limit_s=EXIT_S, timeout_s=30.0
            ),
            "all do": Program("failure:all_destroy", fresh=True, limit_s=EXIT_S, timeout_s=30.0),
        },
        judge=_exit,
        advice="Destroy on every rank at the end of its main function, and give the way out a bound.",
    ),
    Claim(
        id="G01",
        statement="With the default timeouts a hang while bringing up costs many minutes; set short ones.",
        source=f"{CARD}, first gotcha",
        backends=("gloo",),
        programs={
            "broken": Program("failure:hang_with_the_default", timeout_s=0.0),
            "mended": Program("failure:hang_with_two_seconds", timeout_s=2.0),
        },
        judge=_short_timeout,
        advice="Seconds while you bring a pipeline up, minutes when it runs; nowhere the default.",
    ),
    Claim(
        id="G06",
        statement="A rank that destroys its group without a word breaks its peers; SHUTDOWN comes first.",
        source=f"{CARD}, sixth gotcha",
        backends=("gloo",),
        programs={
            "broken": Program("failure:leaves_without_a_word"),
            "mended": Program("failure:says_shutdown"),
        },
        judge=_shutdown,
        advice="End by a message that reaches every rank; then each destroys. What your peer sees otherwise "
        "looks like your death.",
    ),
    Claim(
        id="T16",
        statement="On gloo, `abort()` of the group from another thread does not end a receive that waits.",
        source=f"{SEEN}; against {DOCS}, abort",
        backends=("gloo",),
        programs={
            "broken": Program("failure:aborted_from_a_thread", timeout_s=1.2),
            "mended": Program("failure:ended_from_a_thread"),
        },
        judge=_abort,
        advice="A watchdog that must end a rank ends its process; nothing less is sure.",
    ),
    Claim(
        id="T17",
        statement="On gloo, the survivors of a rank's death can go on sending to each other in the same "
        "group.",
        source=f"{SEEN}",
        backends=("gloo",),
        programs={"survivors": Program("failure:survivors", ranks=3)},
        judge=_survivors,
        advice="Use it for a last word to the others (who died, and why), not to work on.",
    ),
)
