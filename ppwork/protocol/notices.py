"""The terminal notice: how a failed rank tells its peers why, and how they report it (rules R9 and R10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppwork.errors import WHERE_KEYS, PPWorkError, TerminalNotice, text_of
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult, Reason
from ppwork.protocol.topology import Role

MAX_TEXT = 4000
"""Most characters of a text in a notice: a notice must fit into a message, however long the error's text."""


def reason_of(error: BaseException, where: Mapping[str, Any]) -> Reason:
    """Return an error in the form that a notice carries; ``where`` is used if the error is not ours."""
    if isinstance(error, PPWorkError):
        return Reason(type(error).__name__, _carried(error.what), error.where, _carried(error.check_first))
    return Reason(type(error).__name__, _carried(text_of(error)), dict(where), "the log of that rank")


def _carried(text: str) -> str:
    # Python decodes a file name that is not UTF-8 to lone surrogates, which no message can carry.
    return text[:MAX_TEXT].encode(errors="backslashreplace").decode()


def notice_of(reason: Reason, rank: int, role: Role) -> TerminalNotice:
    """Return the error that a rank raises when it has received a notice."""
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
    """Return the messages that a failing rank has to send, each with its group, in order.

    A rank that leaves because of a notice sends nothing: the notice came from the only rank that it could
    tell, and the leader has already passed the envelope on to the mesh. A follower has no link to rank 0; its
    closed connection ends the leader's next collective.
    """
    if isinstance(error, TerminalNotice) or role is Role.FOLLOWER:
        return []
    reason = reason_of(error, where)
    envelope = PPEnvelope(PPAction.ERROR, ids, reason=reason)
    if role is Role.STAGE0:
        return [("down_pg", envelope)]
    return [("up_pg", PPResult(PPAction.ERROR, ids, reason=reason)), ("mesh_pg", envelope)]
