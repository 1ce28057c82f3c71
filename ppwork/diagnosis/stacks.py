"""Python tracebacks and thread stacks, read back from the text of a log.

Forms of an exception: Python's own (outermost call first), an ``ExceptionGroup`` with what is in it, those of
rich and loguru, a ``SyntaxError`` without a head, and C++'s ``terminate called``. A head may stand behind a
progress bar, or behind the prefix of a logger, which then stands before every line of the traceback. Of a log
that somebody cut out, the head may be missing: ``fragments`` reads what is left.
faulthandler's stacks, of a process that is stuck or aborted, have the innermost call first and no source.

Every reader passes over the text once.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from pathlib import Path

from ppwork.plan import Plan
from ppwork.records.calls import WAIT_TENSOR
from ppwork.records.failure import is_users

FUNCTIONAL = "/_functional_collectives.py"
_PLANE = re.compile(r"/ppwork/runtime/(stage0|mesh)\.py$")
HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r'^[> ] *File "(?P<file>.+?)", line (?P<line>\d{1,9})(?!\d)(?:,? in (?P<function>\S+))?')
_SCOPE = r"(?:(?:[A-Za-z_]\w*|<locals>)\.)"
"""What may stand before the name of a class: modules, classes and functions."""
_ERROR = re.compile(rf"^(?P<type>{_SCOPE}+\w+|[A-Z]\w*|\w+[Ee]rror)(?:: (?P<message>.*)|:?)$")
_THREAD = re.compile(r"^(?P<current>Current t)?(?(current)|T)hread 0x[0-9a-f]+.*\(most recent call first\):")
_BLIND = re.compile(r"^(Timeout \(\d+:\d\d:\d\d[.\d]*\)!|Fatal Python error: .*)")
_CHAINED = ("The above exception was the direct cause of", "During handling of the above exception,")
PROGRAM = "<module>"
"""What Python calls the lines of a file that are in no function."""
IN_THREAD = "Exception in thread"
"""What Python writes above the traceback of a thread that nobody caught."""
_ASIDE = (IN_THREAD, "Exception ignored in", "Process ")
_LOGGED = re.compile(r"\b(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b")
_CALL = re.compile(r"\b(?:dist|distributed|c10d)\.(\w+)\(")
HALVES = {"send": "that nobody took", "recv": "that never came"}
"""What is missing to the message of a rank that waits in this half of it."""
_HALF = re.compile(r"(?<![a-z])i?(send|recv)(?![a-z])")
"""Half of a message in the name of a call, or of those that a line starts; ``batch_isend_irecv`` has both."""
_BATCHED = re.compile(r"\bP2POp\([\w.]*\bi(send|recv)\b")
"""Half of a message in a line that starts a batch, where it has the operations."""
_CUT_ERROR = re.compile(
    rf"^(?P<type>{_SCOPE}*_?[a-z]*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)(?:\(\w+\))?)"
    r"(?:: (?P<message>.*)|:?)$",
    re.MULTILINE,
)
"""The line of an exception without its head: only what is named like one is taken for it."""
_FLUSH_FRAME = re.compile(r'^File ".+?", line \d+')
"""A call that lost its indentation on a web page; the source line below it has, too."""
_BEFORE_FRAME = re.compile(r'^(\S.{0,120}?) {2}File "[^"\n]+", line \d+', re.MULTILINE)
"""A logger's prefix, of a traceback whose head the log does not have."""
_PREFIXES = 4
"""So many of them are looked for."""
_UNINDENTED = re.compile(r"^[^\s|]", re.MULTILINE)
_TOLD = re.compile(r":? (\(RANK \d+\))\n")
"""Behind the head: torch's checkpoints show what another rank raised."""
_RICH_FRAME = re.compile(r"^\W*(?P<file>/\S+):(?P<line>\d+)(?: in (?P<function>\S+))?")
_RICH_LINE = re.compile(r"^\W*❱ +\d+ (?P<text>.*?)[ │]*$")
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_SYNTAX = re.compile(
    r'^ +File "(?P<file>.+?)", line (?P<line>\d+)\n(?P<text> +.*)\n(?: +[\^~]+ *\n)?'
    r"(?P<type>SyntaxError|IndentationError|TabError): (?P<message>.*)", re.MULTILINE)  # fmt: skip
_TERMINATED = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^']+)'(?:\n\s*what\(\): +(?P<message>.*))?"
)
_AFTER = re.compile(
    r"[\[+]|[EWIF]\d{4} |.*\d%\||Original |Timeout \(\d|Fatal Python|terminate called|\d{4}-\d\d-\d\d"
    r"|Exception ignored in|\"[,}\]]*$"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b"
)
"""Beginnings of lines that are no more of a message."""
_MESSAGE_LINES = 8
"""A message longer than this is cut: what follows it in a log cannot be told from it."""
_FOREIGN_LINES = 20
"""So many lines of other processes between two of a traceback are passed over."""
_MOST = 200
"""Tracebacks that are read of one log, the last ones: a loop that retries leaves thousands."""
_LONGEST = 1 << 16
"""Characters of one traceback."""


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
        because: The exception that this one was raised from, while it was handled, or that is inside it.
        above: The line above its head, or the rank that stands behind it.
        end: Where it ends in the text.
        uncaught: It ended the program: torch's own hook for that showed it.
        current: Of a thread: the one that ran, and crashed if it is about that.
        plane: Of a main thread that stands now: the call of a plane of ours that it is in, such as
            ``receive_result``; ``peer`` is the rank that it waits for, if that is known.
    """

    frames: tuple[Frame, ...]
    error: str
    message: str = ""
    blind: bool = False
    because: Stack | None = None
    above: str = ""
    end: int = field(default=0, compare=False)
    uncaught: bool = False
    current: bool = False
    plane: str = ""
    peer: int | None = None

    @property
    def chain(self) -> list[Stack]:
        """This exception and those it came from, the innermost first."""
        return [*(self.because.chain if self.because is not None else []), self]

    @property
    def users(self) -> Frame | None:
        """The innermost call in the user's own code; the plane's, where the loop around it is ours."""
        of_plane = self.frames[-1] if self.plane and self.frames else None
        return next((frame for frame in reversed(self.frames) if is_users(frame.file)), of_plane)

    @property
    def call(self) -> str:
        """The call of ``torch.distributed``, or of a plane, that the user's code was in; or empty."""
        if self.plane:
            return self.plane
        users = self.users
        inside = self.frames[self.frames.index(users) + 1 :] if users else ()
        for part in ("/torch/distributed/distributed_c10d.py", "/torch/distributed/"):
            for frame in inside:
                if part not in frame.file or frame.file.endswith("c10d_logger.py"):
                    continue
                # An operation on the result of a functional collective waits for it.
                is_wait = frame.file.endswith(FUNCTIONAL) and frame.function == "__torch_dispatch__"
                return WAIT_TENSOR if is_wait else frame.function
        named = _CALL.search(users.text) if users and inside else None
        return named[1] if named else ""

    @property
    def callers(self) -> list[Frame]:
        """The calls in the user's own code that led to the innermost one; as of ``callers_of``."""
        users = self.users
        return callers_of(self.frames, self.frames.index(users)) if users is not None else []

    @property
    def imports(self) -> bool:
        """Whether the user's line was an import that had not ended."""
        users = self.users
        inside = self.frames[self.frames.index(users) + 1 :] if users is not None else ()
        return bool(inside) and inside[0].file.startswith("<frozen importlib")

    @property
    def in_runtime(self) -> str:
        """The plane of ours that the user's line called: ``stage0`` or ``mesh``; empty if it was none."""
        users = self.users
        number = self.frames.index(users) + 1 if users is not None else len(self.frames)
        called = _PLANE.search(self.frames[number].file) if number < len(self.frames) else None
        return called[1] if called else ""

    def own_call(self, *, caller: bool = False) -> str:
        """Return that call with the user's line that made it, as ``barrier (my_loop.py:41)``; or nothing.

        Args:
            caller: Also say where the function was called that has the line, unless it is the program.
        """
        users = self.users
        if users is None or not self.call:
            return ""
        number = self.frames.index(users)
        if "/torch/" not in self.frames[number + 1].file:
            return ""  # a call of the plane on the main thread has ppwork's frames first
        at = f"{Path(users.file).name}:{users.line}"
        above = self.frames[number - 1] if number else None
        if caller and above is not None and is_users(above.file) and above.function != PROGRAM:
            at += f", called at {Path(above.file).name}:{above.line}"
        return f"{self.call} ({at})"

    @property
    def aside(self) -> bool:
        """Whether it ended a thread or a child, or nothing at all: the process itself went on."""
        return self.above.startswith(_ASIDE)

    @property
    def logged(self) -> bool:
        """Whether the line above is a logger's: somebody caught it."""
        return _LOGGED.search(self.above) is not None


def callers_of(frames: Sequence[Frame], at: int) -> list[Frame]:
    """Return the user's calls that led to a frame: the nearest and the first in another file, else all.

    What called a stage is ours, and leads nowhere.
    """
    above = takewhile(lambda each: is_users(each.file) or "/ppwork/" not in each.file, reversed(frames[:at]))
    callers = [frame for frame in above if is_users(frame.file) and frame.function != PROGRAM]
    elsewhere = [frame for frame in callers if frame.file != frames[at].file]
    return list(dict.fromkeys([*callers[:1], *elsewhere[:1]])) if elsewhere else callers


def line_of(file: str, line: int, run_dir: Path) -> str:
    """Return the source of a line of Python; nothing, if the file is gone or was changed after the run."""
    path, plan = Path(file), run_dir / Plan.FILE_NAME
    try:
        is_as_it_was = (
            path.suffix == ".py" and path.is_file() and path.stat().st_mtime <= plan.stat().st_mtime
        )
    except (OSError, ValueError):
        return ""
    return linecache.getline(file, line).strip() if is_as_it_was else ""


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
    return Frame(call["file"], int(call["line"]), call["function"] or PROGRAM, text)


def tracebacks(text: str) -> list[Stack]:
    """Return the exceptions that a log shows, in its order: causes come before what they caused."""
    found: list[tuple[int, Stack]] = []
    heads = [head.start() for head in re.finditer(re.escape(HEAD), text)][-_MOST:]
    for head, after in pairwise([*heads, len(text)]):
        start = text.rfind("\n", 0, head) + 1
        stop = after if after == len(text) else text.rfind("\n", 0, after) + 1
        body = _body(text, head + len(HEAD), stop)
        stack = _rich(body) if body[:2] == " ─" else _plain(text[start:head], body)
        if stack is not None:
            told = _TOLD.match(body)
            above = told[1] if told is not None else _above(text, start)
            found.append((head, replace(stack, above=above, end=head + len(HEAD) + stack.end)))
    if any(name in text for name in _SYNTAX_ERRORS):
        whole = [(start, stack.end) for start, stack in found]
        errors = [error for error in _SYNTAX.finditer(text)
                  if not any(start < error.start() < end for start, end in whole)]  # fmt: skip
        found += [(error.start(), _headless(error)) for error in errors[-_MOST:]]
    found += [(match.start(), _terminated(match)) for match in [*_TERMINATED.finditer(text)][-_MOST:]]
    return _linked(sorted(found, key=lambda one: one[0]), text)


def _body(text: str, start: int, stop: int) -> str:
    """Return a traceback below its head; of one that is very long, as of a recursion, both its ends."""
    if stop - start <= _LONGEST:
        return text[start : max(start, stop)]
    end = _UNINDENTED.search(text, start + 1, stop)
    if end is None or end.start() - start < _LONGEST // 2:
        return text[start : start + _LONGEST]
    first = text[start : start + _LONGEST // 4]
    last = text[max(start, end.start() - _LONGEST // 4) : end.start() + _LONGEST // 4]
    return f"{first[: first.rfind(chr(10)) + 1]}{last[last.find(chr(10)) + 1 :]}"


def fragments(text: str) -> list[Stack]:
    """Return the exceptions whose head the log does not have: the calls above the line of the error, if any.

    Where nothing stands above it, calls right below are its own: some paste the error first.
    """
    text = _unprefixed(text)
    ends = [error.end() for error in _CUT_ERROR.finditer(text)]
    if not ends:
        return []
    found: list[Stack] = []
    frames: list[Frame] = []
    is_whole, lines = False, text[ends[-_MOST - 1] if ends[_MOST:] else 0 :].splitlines()
    lines = [line or "" for line in _indented([*lines])]
    for number, line in enumerate(lines):
        if HEAD in line:
            is_whole, frames = True, []
        elif (frame := _frame(lines, number)) is not None:
            frames.append(frame)
        elif (error := _CUT_ERROR.match(line)) is not None:
            if not is_whole:
                after = takewhile(
                    lambda one: not _CUT_ERROR.match(one), lines[number + 1 : number + 1 + _MESSAGE_LINES]
                )
                rest = _rest_of_message([*after])
                calls = frames or _below(lines, number + 1 + len(rest))
                message = "\n".join([error["message"] or "", *rest]).rstrip()
                found.append(Stack(tuple(calls), error["type"].rpartition(".")[2], message))
            is_whole, frames = False, []
        elif line.strip() and not line.startswith("    "):
            frames = []
    return found


def own_call(traceback: str, *, caller: bool = False) -> str:
    """Return the call of ``torch.distributed`` in which a loop's own line had the error, with that line.

    ``caller``: as of ``Stack.own_call``.
    """
    stacks = tracebacks(traceback)
    return stacks[-1].chain[0].own_call(caller=caller) if stacks else ""


def half_of(call: str, line: Frame | None = None) -> str:
    """Return the half of a message that a call waits for, ``send`` or ``recv``, or both; nothing: no message.

    Of a handle's ``wait`` it is the line that tells, if it has the call that made the handle.
    """
    text = line.text if call == "wait" and line is not None else call
    halves = set(_BATCHED.findall(text) or _HALF.findall(text))
    return " or ".join(sorted(halves))


def cut_off(text: str) -> list[Frame]:
    """Return the calls of a traceback whose error the log does not have; the innermost is last.

    Stacks of threads, which a rank was asked for, are no traceback and have no error.
    """
    if ' File "' not in text or thread_stacks(text):
        return []
    frames = frames_of(_unprefixed(text))
    return frames if not tracebacks(text) and not fragments(text) else []


def _unprefixed(text: str) -> str:
    """Return a text without the prefixes that a logger put before the calls of a traceback."""
    if '  File "' not in text:
        return text
    prefixes: dict[str, int] = {}
    for call in _BEFORE_FRAME.finditer(text):
        prefixes[_shape(call[1])] = len(call[1])
        if len(prefixes) == _PREFIXES:
            break
    if not prefixes:
        return text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        for shape, length in prefixes.items():
            if _shape(line[:length]) == shape:
                lines[number] = line[length:]
                break
    return "\n".join(lines)


def _indented(lines: list[str | None]) -> list[str | None]:
    """Return lines with the indentation of calls that lost it, and of their source lines."""
    flush = [number for number, line in enumerate(lines) if line and _FLUSH_FRAME.match(line)]
    for number in flush:
        lines[number] = f"  {lines[number]}"
        source = lines[number + 1] if number + 1 < len(lines) else None
        if source and not _FRAME.match(f" {source}") and not _CUT_ERROR.match(source):
            lines[number + 1] = f"    {source.strip()}"
    return lines


def _below(lines: list[str], number: int) -> list[Frame]:
    """Return the calls that stand from this line on, up to the first line that is none."""
    frames: list[Frame] = []
    while number < len(lines) and (frame := _frame(lines, number)) is not None:
        frames.append(frame)
        number += 2 if frame.text else 1
    return frames


def _above(text: str, start: int) -> str:
    """Return the line above a head, blank ones left out."""
    lines = reversed(text[max(0, start - 500) : start].splitlines())
    return next((line.strip() for line in lines if line.strip(" |")), "").lstrip("| ")


def _linked(found: list[tuple[int, Stack]], text: str) -> list[Stack]:
    """Join exceptions with those they came from, and with those that are inside them."""
    stacks: list[Stack] = []
    for start, stack in found:
        line = text[text.rfind("\n", 0, start) + 1 : start]
        if stacks and stack.above.startswith(_CHAINED):
            stacks.append(replace(stack, because=stacks[-1]))
        elif stacks and (line.endswith("Original ") or (stacks[-1].error.endswith("Group") and "|" in line)):
            stacks[-1] = replace(stacks[-1], because=stack, end=stack.end)
        else:
            stacks.append(stack)
    return stacks


def _plain(before: str, body: str) -> Stack | None:
    """Read Python's own form, also of a group and of loguru.

    Args:
        before: Text on the head's line, before it.
        body: Text after the head, as far as the next one.
    """
    frames: list[Frame] = []
    lines = body.splitlines(keepends=True)
    prefix = _prefix(before, lines)
    shown = _indented([_without(prefix, line.rstrip("\r\n")) for line in lines])
    foreign = 0
    for number, line in enumerate(shown[1:], 1):
        if line is None or is_noise(line):
            foreign += 1
            if foreign > _FOREIGN_LINES:
                return None
            continue
        if (frame := _frame([one or "" for one in shown[number : number + 2]], 0)) is not None:
            frames.append(frame)
        elif line.strip() and not line.startswith("  "):
            error = _ERROR.match(line)
            if error is None:
                return None  # cut by a kill, or another process wrote into it
            rest = _rest_of_message(shown[number + 1 :])
            message = "\n".join([error["message"] or "", *rest]).rstrip()
            end = sum(map(len, lines[: number + 1 + len(rest)]))
            return Stack(tuple(frames), error["type"].rpartition(".")[2], message, end=end)
    return None


def _prefix(before: str, lines: list[str]) -> str:
    """Return what stands before each line of a traceback: a logger's words, a group's bars, or nothing."""
    first = next((line for line in lines[1:4] if 'File "' in line), "")
    prefix = first[: first.find('File "')]
    # Python's own calls are two columns in: more, and all of it was moved.
    is_moved = before.isspace() or (prefix.isspace() and len(prefix) > len("  "))
    is_prefixed = prefix.strip() not in ("", ">") or is_moved
    return prefix.removesuffix("> ").removesuffix("  ") if is_prefixed else ""


def _without(prefix: str, line: str) -> str | None:
    """Return a line without the prefix, ``None`` if it has another one; times in it may differ."""
    if line.startswith(prefix):
        return line[len(prefix) :]
    if _shape(line[: len(prefix)]) == _shape(prefix):
        return line[len(prefix) :]
    return "" if line.rstrip() == prefix.rstrip() else None


def _shape(text: str) -> str:
    return re.sub(r"\d", "0", text)


def is_noise(line: str) -> bool:
    """Say whether a line is one of C++, written between two of Python's."""
    return re.match(r"\[[EWIF]\d", line) is not None


def _rest_of_message(lines: list[str | None]) -> list[str]:
    rest: list[str] = []
    for line in lines[:_MESSAGE_LINES]:
        if line is None or not line.strip() or _AFTER.match(line) or HEAD in line or _FRAME.match(line):
            break
        if line.startswith(_CHAINED):
            break
        rest.append(line)
    return rest


def _rich(body: str) -> Stack | None:
    """Read rich's box: its calls, and the error below it."""
    frames: list[Frame] = []
    lines = body.splitlines(keepends=True)
    for number, line in enumerate(lines[1:], 1):
        if (call := _RICH_FRAME.match(line)) is not None:
            frames.append(Frame(call["file"], int(call["line"]), call["function"] or ""))
        elif (source := _RICH_LINE.match(line)) is not None and frames:
            frames[-1] = replace(frames[-1], text=source["text"].lstrip("│ "))
        elif "╰" in line:
            error = _ERROR.match(lines[number + 1].strip()) if lines[number + 1 :] else None
            if error is None:
                return None
            end = sum(map(len, lines[: number + 2]))
            return Stack(tuple(frames), error["type"].rpartition(".")[2], error["message"] or "", end=end)
    return None


def _headless(error: re.Match[str]) -> Stack:
    """Read a ``SyntaxError`` of the program itself: no call of it has begun, so it has no head."""
    frame = Frame(error["file"], int(error["line"]), "<module>", error["text"].strip())
    return Stack((frame,), error["type"], error["message"], end=error.end())


def _terminated(words: re.Match[str]) -> Stack:
    return Stack((), words["type"], words["message"] or "", end=words.end())


def thread_stacks(text: str) -> list[Stack]:
    """Return the stacks that faulthandler wrote, in its order: the main thread is the last of each dump."""
    stacks: list[Stack] = []
    headline = ""
    frames: list[Frame] | None = None
    current = False
    if "(most recent call first)" not in text:
        return stacks
    for line in [*text.splitlines(), ""]:
        frame = _FRAME.match(line)
        if frames is not None and frame is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            continue
        if frames is not None:
            stacks.append(Stack(tuple(reversed(frames)), headline, blind=True, current=current))
            frames = None
        if (blind := _BLIND.match(line)) is not None:
            headline = blind[1]
        elif (thread := _THREAD.match(line)) is not None:
            frames, current = [], thread["current"] is not None
    return stacks
