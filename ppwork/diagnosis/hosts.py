"""A run over several hosts: what is said of a host, or of the network between two, and of no rank.

A rank is not blamed where its host's records are missing, where its whole host fell silent, or where the
ranks of two hosts waited for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ppwork.diagnosis.run_evidence import RunEvidence
from ppwork.errors import PeerTimeoutError, named_ranks
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.clocks import host_of
from ppwork.records.failure import FailureRecord
from ppwork.records.spans import Entry
from ppwork.timeline.chunks import moments_by_call, spans_by_call


class HostCause(NamedTuple):
    """A cause that is no rank's."""

    error_type: str
    what: str
    check_first: str


def cause_of_hosts(evidence: RunEvidence, rank: int | None, said: str) -> HostCause | None:
    """Return what is to be said of hosts in place of a rank; ``None``: nothing.

    Args:
        evidence: Of a run none of whose records is a cause.
        rank: Whom the symptoms point to, a rank without a record; ``None``: nobody.
        said: The first symptom, as the second part of a sentence.
    """
    if evidence.absent and rank in (None, *evidence.absent):
        return _elsewhere(evidence, said)
    if rank is not None:
        return _silent_host(evidence, rank, said)
    return _silent_network(evidence, said) or _silent_direction(evidence, said)


def _elsewhere(evidence: RunEvidence, said: str) -> HostCause:
    ranks = tuple(sorted(evidence.absent))
    hosts = sorted(filter(None, {*evidence.absent.values()}))
    ran = f"ran on {' and '.join(hosts)}, whose records are not here" if hosts else "left no records here"
    return HostCause(
        "RecordsMissing",
        f"{named_ranks(ranks).capitalize()} {ran}; no rank that is here has a cause; {said}",
        "`ppwork diagnose` with the folder of every host, or `ppwork collect` them into one",
    )


def _silent_network(evidence: RunEvidence, said: str) -> HostCause | None:
    """All ranks went on, and on several hosts they waited for what never came."""
    waited = {record.rank for record in evidence.records if record.error_type == PeerTimeoutError.__name__}
    hosts = sorted({host_of(evidence.clocks.get(rank, "")) for rank in waited} - {""})
    if len(hosts) < 2 or len(evidence.records) < evidence.topology.world_size:
        return None
    return HostCause(
        "NetworkSilent",
        f"Every rank has a symptom, and ranks of {' and '.join(hosts)} waited for each other: messages "
        f"between these hosts did not pass; {said}",
        "does one host reach the other (`ping`)? a cable, a firewall, packets larger than the MTU",
    )


def _silent_direction(evidence: RunEvidence, said: str) -> HostCause | None:
    """A rank waited for what one on another host had begun to send: a goodbye may still go the other way."""
    entries = evidence.before_the_first_record()
    for record in evidence.records:
        peer, receiver = record.where.get("peer"), record.rank
        if record.error_type != PeerTimeoutError.__name__ or peer not in entries or receiver not in entries:
            continue
        hosts = [host_of(evidence.clocks.get(rank, "")) for rank in (peer, receiver)]
        on_the_way = _sent(entries[peer], receiver) - _arrived(entries[receiver])
        if "" in hosts or hosts[0] == hosts[1] or not on_the_way:
            continue
        return HostCause(
            "NetworkSilent",
            f"Every rank has a symptom, and rank {receiver} waited for call {min(on_the_way)}, which rank "
            f"{peer} had begun to send: messages from {hosts[0]} to {hosts[1]} did not pass; {said}",
            f"does {hosts[0]} reach {hosts[1]}, and the other way round? a cable, a firewall, the MTU",
        )
    return None


def _sent(entries: Sequence[Entry], to: int) -> set[int]:
    """Return the calls of which a rank began to send something to another one."""
    points = ("result.send",) if to == STAGE0_RANK else ("envelope.send", "mesh.broadcast")
    return {call for point in points for call in moments_by_call(entries, point)}


def _arrived(entries: Sequence[Entry]) -> set[int]:
    """Return the calls of which a rank got an envelope, or rank 0 a result."""
    return {*spans_by_call(entries, "receive"), *moments_by_call(entries, "arrive")}


def _silent_host(evidence: RunEvidence, rank: int, said: str) -> HostCause | None:
    """No rank of one host of several left a record or a code, nor did their torchrun."""
    hosts = {other: host_of(name) for other, name in evidence.clocks.items()}
    host = hosts.get(rank, "")
    ranks = tuple(other for other, its in hosts.items() if its == host)
    spoke = {record.rank for record in evidence.records} | {
        other for other in ranks if evidence.code_of(other) is not None
    }
    if not host or spoke.intersection(ranks) or len(set(hosts.values())) == 1:
        return None
    return HostCause(
        "HostSilent",
        f"No rank of {host} left a word ({named_ranks(ranks)}): its torchrun was ended, or the host was "
        f"lost; {said}",
        f"is {host} up? what its torchrun printed last, and its kernel's log if it was out of memory",
    )


def open_questions(
    evidence: RunEvidence, cause: FailureRecord, others: list[FailureRecord]
) -> tuple[str, ...]:
    """Return what a cause on one host leaves open: what others left, and whether it was the first."""
    if cause.rank < 0:
        return ()
    questions = []
    if evidence.absent:
        questions.append(
            f"what {named_ranks(sorted(evidence.absent))} left: their host's records are not here"
        )
    rivals = [cause.rank, *(record.rank for record in others if record.symptom == cause.symptom)]
    clocks = {evidence.clocks.get(rank, "") for rank in rivals}
    if evidence.apart.intersection(rivals) and len(clocks) > 1:
        ranks = named_ranks(sorted(rivals))
        questions.append(
            f"which of {ranks} was the first: the clocks of their hosts had not been compared yet"
        )
    return tuple(questions)
