"""The errors of a rank in the user's own program, as its console shows them."""

from __future__ import annotations

import io
import sys
import traceback
from pathlib import Path
from types import TracebackType

from ppwork.errors import LocalProtocolError, ParityError, PlanError, message_of
from ppwork.records.failure import is_users
from ppwork.worker.last_words import tell_torchrun


def show_in_one_write() -> None:
    """Show an uncaught exception in one write: Python writes line by line, which mixes several ranks'."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _in_one_write


def _in_one_write(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if (stream := sys.stderr) is None:
        return
    sys.stderr = text = io.StringIO()
    try:
        if isinstance(error, PlanError | ParityError | LocalProtocolError):  # the message says everything
            text.write(_below_users_line(error, message_of(error)))
            tell_torchrun(message_of(error))
        else:
            sys.__excepthook__(kind, error, trace)
    finally:
        sys.stderr = stream
        stream.write(text.getvalue())
        stream.flush()


def _below_users_line(error: BaseException, message: str) -> str:
    """Return an error as Python shows it, with this message and with only the user's line of its calls."""
    users = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)][-1:]
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    head = "Traceback (most recent call last):\n"
    lines = [traceback.FrameSummary(frame.filename, frame.lineno, frame.name) for frame in users]  # no ^^^^
    return "".join([head, *traceback.format_list(lines), f"{name}: {message}\n"])


def in_short(error: BaseException, rank: int, record: Path) -> str:
    """Return an error's user line and first line, in the form of torch's tracebacks, for readable logs."""
    text = _below_users_line(error, message_of(error).partition("\n")[0])
    lines = [*text.splitlines(), f"  its whole traceback: {record}"]
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)
