"""The terminal notice: how a rank that failed tells its peers why, and how they say it (rules R9 and R10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppwork.errors import WHERE_KEYS, PPWorkError, TerminalNotice, text_of
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult, Reason
from ppwork.protocol.topology import Role

MAX_TEXT = 4000
"""Characters of a text that a notice carries: it must fit wherever the error's own text would not."""


def reason_of(error: BaseException, where: Mapping[str, Any]) -> Reason:
    """Return an error as it travels in a notice; of one that is not ours it says where this rank was."""
    if isinstance(error, PPWorkError):
        return Reason(type(error).__name__, _carried(error.what), error.where, _carried(error.check_first))
    return Reason(type(error).__name__, _carried(text_of(error)), dict(where), "the log of that rank")


def _carried(text: str) -> str:
    # A file name that is not UTF-8 stands in messages as lone surrogates, which no message carries.
    return text[:MAX_TEXT].encode(errors="backslashreplace").decode()


def notice_of(reason: Reason, rank: int, role: Role) -> TerminalNotice:
    """Return the error that a rank raises when a notice has reached it."""
    peer = reason.where.get("rank")
    origin = " ".join(f"{key}={str(reason.where[key])[:99]}" for key in WHERE_KEYS if key in reason.where)
    return TerminalNotice(
        f"The session was ended by a peer ({origin or 'origin unknown'}): {reason.what[:MAX_TEXT]}",
        where={"rank": rank, "role": str(role), "peer": peer if isinstance(peer, int) else None},
        check_first=reason.check_first[:MAX_TEXT] or "the peer's log",
    )


def notices(
    role: Role, ids: Ids, error: BaseException, where: Mapping[str, Any]
) -> list[tuple[str, PPEnvelope | PPResult]]:
    """Return what a failing rank has to send, and on which groups, in order.

    A rank that is leaving because of a notice has nothing to add: it came from the only rank that could be
    told, and the leader passed it on to the mesh as the envelope that it was. A follower has no link of its
    own; its closed connection ends the leader's next collective.
    """
    if isinstance(error, TerminalNotice) or role is Role.FOLLOWER:
        return []
    reason = reason_of(error, where)
    envelope = PPEnvelope(PPAction.ERROR, ids, reason=reason)
    if role is Role.STAGE0:
        return [("down_pg", envelope)]
    return [("up_pg", PPResult(PPAction.ERROR, ids, reason=reason)), ("mesh_pg", envelope)]
