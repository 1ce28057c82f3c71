"""Python tracebacks and thread stacks, read back from the text of a log.

Two forms: what Python prints for an exception (outermost call first), and what faulthandler prints for a
process that is stuck or aborted (innermost call first, and no source lines).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ppwork.records.failure import is_users

_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)(?:,)? in (?P<function>\S+)')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+.*\(most recent call first\):")
_BLIND = re.compile(r"^(Timeout \(\d+:\d\d:\d\d[.\d]*\)!|Fatal Python error: .*)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception,")
_CALL = re.compile(r"\b(?:dist|distributed|c10d)\.(\w+)\(")
_MESSAGE_LINES = 8
"""A message longer than this is cut: what follows it in a log cannot be told from it."""


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
    return [frame for number in range(len(lines)) if (frame := _frame(lines, number)) is not None]


def _frame(lines: list[str], number: int) -> Frame | None:
    call = _FRAME.match(lines[number])
    if call is None:
        return None
    # A call that Python shows without its source has another frame, or the error, on the next line.
    after = lines[number + 1] if number + 1 < len(lines) else ""
    text = after.strip() if after.startswith("    ") and not _FRAME.match(after) else ""
    return Frame(call["file"], int(call["line"]), call["function"], text)


def tracebacks(text: str) -> list[Stack]:
    """Return the exceptions that a log shows, in its order: causes come before what they caused."""
    stacks: list[Stack] = []
    lines = text.splitlines()
    for start, line in enumerate(lines):
        if line.strip() == _HEAD:
            indent = line[: len(line) - len(line.lstrip())]
            body = [below.removeprefix(indent) for below in lines[start + 1 :]]
            if (stack := _traceback(body)) is not None:
                before = next((above for above in reversed(lines[:start]) if above.strip()), "").strip()
                is_chained = bool(stacks) and before.startswith(_CHAINED)
                stacks.append(replace(stack, because=stacks[-1]) if is_chained else stack)
    return stacks


def _traceback(lines: list[str]) -> Stack | None:
    frames: list[Frame] = []
    for number, line in enumerate(lines):
        if (frame := _frame(lines, number)) is not None:
            frames.append(frame)
        elif not line.startswith("  "):
            error = _ERROR.match(line)
            if error is None:
                return None  # cut by a kill, or another process wrote into it
            message = [error["message"] or "", *_rest_of_message(lines[number + 1 :])]
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
    stacks: list[Stack] = []
    headline = ""
    frames: list[Frame] | None = None
    for line in [*text.splitlines(), ""]:
        frame = _FRAME.match(line)
        if frames is not None and frame is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"]))
            continue
        if frames is not None:
            stacks.append(Stack(tuple(reversed(frames)), headline, blind=True))
            frames = None
        if (blind := _BLIND.match(line)) is not None:
            headline = blind[1]
        elif _THREAD.match(line):
            frames = []
    return stacks
