"""Claims about the stores that process groups are made from."""

from __future__ import annotations

from ppwork.claims.claim import DOCS, NOTES, SEEN, Claim, ClaimFinding, Program, Seen, does_not_hold, holds
from ppwork.claims.themes.startup import MOST_S, after_again

SHARED = ("TCPStore", "FileStore", "PrefixStore")


def _across_processes(seen: Seen) -> ClaimFinding:
    there = seen["two processes"][1].notes
    thread = seen["two threads"][0].notes["got"] == "value"
    reached = [name for name in (*SHARED, "HashStore") if there[name]]
    text = (
        f"A key of rank 0 was there for rank 1 in {', '.join(reached) or 'none of them'}; in a HashStore "
        f"another thread {'had' if thread else 'did not have'} it."
    )
    return holds(text, when=tuple(reached) == SHARED and thread)


def _operations(seen: Seen) -> ClaimFinding:
    notes = seen["each on each"][0].notes
    refused = {name: notes[name] for name in (*SHARED, "HashStore")}
    text = "; ".join(f"{name} refuses {', '.join(what)}" for name, what in refused.items() if what)
    deleting = [name for name, what in refused.items() if "delete_key" not in what]
    text = f"{text or 'None refuses any of 12 operations'}; `delete_key` works on {', '.join(deleting)}."
    as_written = refused.pop("FileStore") == ["delete_key"] and not any(refused.values())
    return holds(text, when=as_written)


def _prefix(seen: Seen) -> ClaimFinding:
    only_broken, text = after_again(seen["broken"], seen["mended"])
    text = f"With groups made again on one TCPStore, {text}"
    return holds(text, when=only_broken)


def _listens(seen: Seen) -> ClaimFinding:
    broken, mended = seen["broken"][0].notes, seen["mended"][0].notes
    stranger = "was taken" if broken["key"] == "written by a stranger" else "was not taken"
    text = (
        f"A TCPStore for 127.0.0.1 listens on {_addresses(broken)}, and what a stranger wrote there "
        f"{stranger}; on a socket of ours it listens on {_addresses(mended)}."
    )
    everywhere = bool({"::", "0.0.0.0"} & set(broken["addresses"]))  # noqa: S104  what was seen
    return holds(text, when=everywhere and stranger == "was taken")


def _addresses(notes: dict[str, list[str]]) -> str:
    return ", ".join(notes["addresses"]) or "no address"


def _soft_bind(seen: Seen) -> ClaimFinding:
    alone, agent = seen["without"][0].notes, seen["with the agent's word"][0].notes
    text = f"At a port that is taken a second TCPStore {_second(alone)}; with the word of the agent it "
    text += f"{_second(agent)}."
    joined = agent.get("got") == "of the first"
    return holds(text, when="error" in alone and joined)


def _second(notes: dict[str, str]) -> str:
    return f"raises {notes['kind']}" if "error" in notes else f"reads what is {notes['got']}"


def _peer_closes(seen: Seen) -> ClaimFinding:
    host, waiting = (rank.notes for rank in seen["host"])
    other = seen["client"][2].notes.get("got") == "value"
    other_said = f"the death of another client {'did not disturb' if other else 'disturbed'} it"
    if "error" not in waiting:
        return does_not_hold(f"A client that waited was not told that the host is gone; {other_said}.")
    after = waiting["at"] - host["left"]
    text = (
        f"A client that waited, with 5 s, for a key got {waiting['kind']} {after:.2f} s after the host of "
        f"the store was gone: {waiting['error']} And {other_said}."
    )
    return holds(text, when=after < MOST_S and other)


CLAIMS = (
    Claim(
        id="D06",
        statement="A HashStore is for the threads of one process; the other stores are for all processes.",
        source=f"{DOCS}, `HashStore`",
        programs={
            "two processes": Program("stores:told_by_each_store", timeout_s=0.0),
            "two threads": Program("stores:hash_store_of_a_thread", ranks=1, timeout_s=0.0),
        },
        judge=_across_processes,
        advice="HashStore for tests in one process; FileStore between processes of one machine, TCPStore "
        "between machines.",
    ),
    Claim(
        id="D07",
        statement="All stores have the same operations, except that a FileStore cannot `delete_key`.",
        source=f"{DOCS}, `Store.delete_key`, warning",
        programs={"each on each": Program("stores:every_operation", ranks=1, timeout_s=0.0)},
        judge=_operations,
        advice="Try the operations that you need on the store that you use; a queue is not to be had on all.",
    ),
    Claim(
        id="D08",
        statement="A group that is made again on the same store meets the addresses of the one before; a "
        "PrefixStore keeps them apart.",
        source=f"{DOCS}, `PrefixStore`; {SEEN}",
        backends=("gloo",),
        programs={
            "broken": Program("stores:started_again_on_the_same_store", timeout_s=0.0, limit_s=6.0),
            "mended": Program("stores:started_again_behind_a_prefix", timeout_s=0.0),
        },
        judge=_prefix,
        advice="After a restart put the number of the attempt into the prefix of the store; without it the "
        "restart works now and then, which is worse than never.",
    ),
    Claim(
        id="D09",
        statement="A TCPStore listens on every address of its machine, whatever host it is given, and takes "
        "what anybody writes.",
        source=f"{SEEN}; {DOCS}, `TCPStore`",
        programs={
            "broken": Program("stores:store_that_listens", ranks=1, timeout_s=0.0),
            "mended": Program("stores:store_on_a_socket_of_ours", ranks=1, timeout_s=0.0),
        },
        judge=_listens,
        advice="On one machine hand it a socket that is bound to 127.0.0.1 (`master_listen_fd`), or use a "
        "FileStore; on several keep the port behind a firewall.",
    ),
    Claim(
        id="R01",
        statement="Under a launcher that has a store, a TCPStore at its port joins it instead of failing.",
        source=f"{NOTES}, #147465: soft fail bind when agent store active",
        programs={
            "without": Program("stores:port_taken", ranks=1, timeout_s=0.0),
            "with the agent's word": Program("stores:port_taken_by_the_agent", ranks=1, timeout_s=0.0),
        },
        judge=_soft_bind,
        advice="If two jobs meet at one port, the error is plain without torchrun; with it they may share a "
        "store unawares. Let the launcher choose the port.",
    ),
    Claim(
        id="R02",
        statement="A client of a TCPStore is told at once when the store's host dies, and does not mind "
        "another client's death.",
        source=f"{NOTES}, #145757: remote peer closes connection",
        programs={
            "host": Program("stores:host_of_the_store_leaves", timeout_s=0.0),
            "client": Program("stores:client_of_the_store_leaves", ranks=3, timeout_s=0.0),
        },
        judge=_peer_closes,
        advice="The rank with the store is a single point of failure: keep the store in the launcher, which "
        "outlives the ranks.",
    ),
)
