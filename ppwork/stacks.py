"""Python tracebacks and thread stacks, read back from the text of a log; and which lines are the user's.

Two forms: what Python prints for an exception (outermost call first), and what faulthandler prints for a
process that is stuck or aborted (innermost call first, and no source lines).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

OWN = str(Path(__file__).parent) + "/"
WORKLOADS = OWN + "workloads/"
_LIBRARY = re.compile(r"^<|/(site|dist)-packages/|/lib(64)?/python3[.\d]*/|/torch/(distributed|nn|utils)/")
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)(?:,)? in (?P<function>\S+)')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):")
_BLIND = re.compile(r"^(Timeout \(\d+:\d\d:\d\d[.\d]*\)!|Fatal Python error: .*)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception,")
_CALL = re.compile(r"\b(?:dist|distributed|c10d)\.(\w+)\(")
_MESSAGE_LINES = 8
"""A message longer than this is cut: what follows it in a log cannot be told from it."""


def is_users(file: str) -> bool:
    """Say whether a file of a stack is probably the user's own: not Python's, not installed, not ours.

    The workloads that ship with the package count as a user's: they stand where one's own stages would.
    """
    return file.startswith(WORKLOADS) or not (file.startswith(OWN) or _LIBRARY.search(file))


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    file: str
    line: int
    function: str
    text: str = ""
    """The source line, where the log has it."""

    @property
    def at(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Stack:
    """A traceback of an exception, or the stack of a thread; the innermost call is last.

    Attributes:
        error: Type of the exception without its module, or faulthandler's headline; empty if it was asked.
        message: Text of the exception; empty for a thread.
        blind: faulthandler wrote it: Python could not run, or the process aborted.
    """

    frames: tuple[Frame, ...]
    error: str
    message: str = ""
    blind: bool = False
    because: Stack | None = None
    """The exception that this one was raised from, or while it was handled."""

    @property
    def chain(self) -> list[Stack]:
        """This exception and those it came from, the innermost first."""
        return [*(self.because.chain if self.because is not None else []), self]

    @property
    def users(self) -> Frame | None:
        """The innermost call in the user's own code."""
        return next((frame for frame in reversed(self.frames) if is_users(frame.file)), None)

    @property
    def call(self) -> str:
        """The call of ``torch.distributed`` that the user's code was in, such as ``all_reduce``; or empty."""
        users = self.users
        inside = self.frames[self.frames.index(users) + 1 :] if users else ()
        for frame in inside:
            if "/torch/distributed/" in frame.file and not frame.file.endswith("c10d_logger.py"):
                return frame.function
        named = _CALL.search(users.text) if users and inside else None
        return named[1] if named else ""


def frames_of(text: str) -> list[Frame]:
    """Return the calls that a text shows, in its order, with their source lines where it has them."""
    lines = text.splitlines()
    return [frame for place in range(len(lines)) if (frame := _frame(lines, place)) is not None]


def _frame(lines: list[str], place: int) -> Frame | None:
    found = _FRAME.match(lines[place])
    if found is None:
        return None
    # A call that Python shows without its source has another frame, or the error, on the next line.
    after = lines[place + 1] if place + 1 < len(lines) else ""
    text = after.strip() if after.startswith("    ") and not _FRAME.match(after) else ""
    return Frame(found["file"], int(found["line"]), found["function"], text)


def tracebacks(text: str) -> list[Stack]:
    """Return the exceptions that a log shows, in its order: causes come before what they caused."""
    found: list[Stack] = []
    lines = text.splitlines()
    for start, line in enumerate(lines):
        if line.strip() == _HEAD:
            indent = line[: len(line) - len(line.lstrip())]
            body = [one.removeprefix(indent) for one in lines[start + 1 :]]
            if (stack := _traceback(body)) is not None:
                said = next((one for one in reversed(lines[:start]) if one.strip()), "").strip()
                chained = bool(found) and said.startswith(_CHAINED)
                found.append(replace(stack, because=found[-1]) if chained else stack)
    return found


def _traceback(lines: list[str]) -> Stack | None:
    frames: list[Frame] = []
    for place, line in enumerate(lines):
        if (frame := _frame(lines, place)) is not None:
            frames.append(frame)
        elif not line.startswith("  "):
            error = _ERROR.match(line)
            if error is None:
                return None  # cut by a kill, or another process wrote into it
            message = [error["message"] or "", *_rest_of_message(lines[place + 1 :])]
            return Stack(tuple(frames), error["type"].rpartition(".")[2], "\n".join(message).rstrip())
    return None


def _rest_of_message(lines: list[str]) -> list[str]:
    rest: list[str] = []
    for line in lines[:_MESSAGE_LINES]:
        if not line.strip() or line.strip() == _HEAD or _BLIND.match(line) or line.startswith("["):
            break
        rest.append(line)
    return rest


def thread_stacks(text: str) -> list[Stack]:
    """Return the stacks that faulthandler wrote, in its order: the main thread is the last of each dump."""
    found: list[Stack] = []
    headline = ""
    frames: list[Frame] | None = None
    for line in [*text.splitlines(), ""]:
        frame = _FRAME.match(line)
        if frames is not None and frame is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"]))
            continue
        if frames is not None:
            found.append(Stack(tuple(reversed(frames)), headline, blind=True))
            frames = None
        if (blind := _BLIND.match(line)) is not None:
            headline = blind[1]
        elif _THREAD.match(line):
            frames = []
    return found
