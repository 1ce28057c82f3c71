"""``%%ranks``: the code of a cell on N ranks, in a notebook after ``%load_ext ppwork``.

The cell becomes a file beside the notebook, because ranks are processes of their own and nothing of the
notebook's names is there for them; the file stays, to be launched again or put under torchrun by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from ppwork.errors import PlanError
from ppwork.lab.live import in_notebook, launch_script
from ppwork.launcher.nodes.places import places_of
from ppwork.launcher.script import LIMIT_S, ScriptRun
from ppwork.records.files import write_whole

SIGNATURE = b"# A cell wrote this file, and the next one with its name replaces it: "
USAGE = (
    "%%ranks N [--file NAME.py] [--limit SECONDS] [--as NAME] [--ops] [--no-picture] [--no-record] "
    "[--on HOSTS [--ranks 1,2]] "
    "[--may-fail [--no-diagnosis] | --check EXERCISE] "
    "[ARGUMENTS of the program]"
)
EXERCISE_LIMIT_S = 30.0
"""Of a learner's attempt: what has not ended by then hangs."""


def ranks(line: str, cell: str) -> object:
    """Write the cell to a file and run it on N ranks; ``line`` is what follows ``%%ranks``.

    What the ranks printed and the picture of their calls stand under the cell, also when it fails.
    ``--limit`` is the number of seconds after which the program is stopped, 120 without it.
    ``--as NAME`` gives the finished program this name in the notebook, ``--may-fail`` shows a failure in
    place of raising it, ``--check EXERCISE`` takes the program for the answer to an exercise. ``--ops``
    records operators of torch, too: what DDP, compiled code and methods of ``ProcessGroup`` call.
    ``--no-record`` records no calls, and so shows no picture: for a program that measures its own.
    ``--no-picture`` leaves the picture out where the printed lines say all, ``--no-diagnosis`` the text of a
    failure where the picture says all, or the reader is still to find the cure. ``--on`` names hosts as
    ``ppwork run --on`` does, such as ``local:2``, and ``--ranks`` how many ranks each has.

    Returns:
        With ``--check`` the verdict; else nothing, as the program has been shown.

    Raises:
        PlanError: The line does not say how many ranks, there is no such exercise, or the file cannot be
            written or is not a cell's; nothing was started.
        RunFailed: A rank failed, or the program was stopped (not with ``--may-fail`` or ``--check``).
    """
    parser = _parser()
    options, arguments = parser.parse_known_args(parser.words(line))
    if options.exercise:
        from ppwork.lab.exercises.check import known

        known(options.exercise, on_ranks=True)
    limit_s = options.limit or (EXERCISE_LIMIT_S if options.exercise else LIMIT_S)
    write_cell(options.file, cell)
    run = launch_script(
        options.file,
        nproc=options.nproc,
        arguments=tuple(arguments),
        check=False,
        limit_s=limit_s,
        ops=options.ops,
        picture=options.picture,
        on=places_of(options.on, options.ranks) if options.on else None,
        record=options.record,
    )
    if not in_notebook():  # there the live view has ended as the program
        _show(run)
    if options.name:
        give(options.name, run)
    if options.exercise:
        from ppwork.lab.exercises.check import check

        return check(options.exercise, run)
    if run.failure is not None and not options.may_fail:
        raise run.failure
    if run.failure is not None and options.diagnosis:
        print(ending(run))  # noqa: T201  the cell's output
    return None


def own_programs_first() -> None:
    """Let ``!torchrun`` in a cell be that of this Python, also when its environment is not activated."""
    own, known = str(Path(sys.executable).parent), os.environ.get("PATH", "").split(os.pathsep)
    if known[0] != own:
        os.environ["PATH"] = os.pathsep.join([own, *known])


def ending(run: ScriptRun) -> str:
    """Return how a failed program ended, the same in every run: without its folder and its log files."""
    assert run.failure is not None  # noqa: S101  the caller has asked
    lines = run.failure.what.splitlines()
    told = "\n".join(line for line in lines if not line.startswith(("  log:", "  folder:")))
    return f"exit code {run.exit_code}\n{told}\n  check first: {run.failure.check_first}"


def write_cell(file: Path, cell: str) -> None:
    """Write a cell to its file, in place of what a cell wrote there before.

    Raises:
        PlanError: The file is somebody else's, or cannot be written.
    """
    try:
        if file.exists() and not (file.is_file() and _is_a_cells(file.read_bytes())):
            raise PlanError(
                f"The file {file} is no cell's, or was changed by hand; it was not overwritten.",
                check_first="--file: another name; or remove it, if nobody needs it",
            )
        write_whole(file, _signed(cell.encode()))
        # Python takes its bytecode for the file's if the second and the length are the same: so it may be for
        # a cell that was changed and run again at once.
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
    except OSError as error:
        raise PlanError(
            f"The cell could not be written to {file}: {error.strerror}.",
            check_first="--file: a name in a folder that you can write to",
        ) from error


def _show(run: ScriptRun) -> None:
    from IPython.display import display

    display(run)  # type: ignore[no-untyped-call]


def give(name: str, value: object) -> None:
    """Give the notebook a variable."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.push({name: value})  # type: ignore[no-untyped-call]


def _signed(cell: bytes) -> bytes:
    """Return a cell as its file has it: the last line says that nobody else wrote or changed it."""
    body = cell if cell.endswith(b"\n") else cell + b"\n"
    return body + SIGNATURE + hashlib.sha256(body).hexdigest()[:16].encode() + b"\n"


def _is_a_cells(data: bytes) -> bool:
    body, found, _ = data.rpartition(SIGNATURE)
    return bool(found) and data == _signed(body)


def _parser() -> LineParser:
    parser = LineParser(prog="%%ranks", usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("nproc", type=int)
    parser.add_argument("--file", type=Path, default=Path("my_ranks.py"))
    parser.add_argument("--limit", type=seconds)
    parser.add_argument("--as", dest="name", type=identifier)
    parser.add_argument("--ops", action="store_true")
    parser.add_argument("--no-picture", dest="picture", action="store_false")
    parser.add_argument("--on", default="")
    parser.add_argument("--ranks", default="")
    parser.add_argument("--no-record", dest="record", action="store_false")
    parser.add_argument("--no-diagnosis", dest="diagnosis", action="store_false")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--may-fail", action="store_true")
    ends.add_argument("--check", dest="exercise")
    return parser


def seconds(text: str) -> float:
    """Return a limit.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not 0.0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit: seconds, more than 0")
    return value


def identifier(text: str) -> str:
    """Return the name of a variable or class.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a variable")
    return text


class LineParser(argparse.ArgumentParser):
    """The line of a magic; what it does not understand is a ``PlanError``."""

    def words(self, line: str) -> list[str]:
        """Return the words of a line, as a shell has them."""
        try:
            return shlex.split(line)
        except ValueError as error:  # a quotation that does not end
            self.error(str(error))

    def error(self, message: str) -> NoReturn:
        """Refuse the line."""
        raise PlanError(f"{self.prog} did not understand its line: {message}.", check_first=str(self.usage))
