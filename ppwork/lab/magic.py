"""``%%ranks``: the code of a cell on N ranks, in a notebook after ``%load_ext ppwork``.

The cell becomes a file beside the notebook, because ranks are processes of their own and nothing of the
notebook's names is there for them; the file stays, to be launched again or put under torchrun by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
from pathlib import Path
from typing import NoReturn

from ppwork.errors import PlanError
from ppwork.lab.live import launch_script
from ppwork.launcher.script import LIMIT_S, ScriptRun
from ppwork.records.files import write_whole

SIGNATURE = b"# A cell wrote this file, and the next one with its name replaces it: "
USAGE = "%%ranks N [--file NAME.py] [--limit SECONDS] [ARGUMENTS of the program]"


def ranks(line: str, cell: str) -> ScriptRun:
    """Write the cell to a file and run it on N ranks; ``line`` is what follows ``%%ranks``.

    What the ranks printed and the picture of their calls stand under the cell, also when it fails.

    Raises:
        PlanError: The line does not say how many ranks, or the file cannot be written or is not a cell's;
            nothing was started.
        RunFailed: A rank failed, or the program was stopped.
    """
    options, arguments = _parser().parse_known_args(shlex.split(line))
    try:
        if options.file.exists() and not (options.file.is_file() and _is_a_cells(options.file.read_bytes())):
            raise PlanError(
                f"The file {options.file} is no cell's, or was changed by hand; it was not overwritten.",
                check_first="--file: another name; or remove it, if nobody needs it",
            )
        write_whole(options.file, _signed(cell.encode()))
    except OSError as error:
        raise PlanError(
            f"The cell could not be written to {options.file}: {error.strerror}.",
            check_first="--file: a name in a folder that you can write to",
        ) from error
    run = launch_script(
        options.file, nproc=options.nproc, arguments=tuple(arguments), check=False, limit_s=options.limit
    )
    if run.failure is not None:
        from IPython.display import display

        display(run)  # type: ignore[no-untyped-call]
        raise run.failure
    return run


def _signed(cell: bytes) -> bytes:
    """Return a cell as its file has it: the last line says that nobody else wrote or changed it."""
    body = cell if cell.endswith(b"\n") else cell + b"\n"
    return body + SIGNATURE + hashlib.sha256(body).hexdigest()[:16].encode() + b"\n"


def _is_a_cells(data: bytes) -> bool:
    body, found, _ = data.rpartition(SIGNATURE)
    return bool(found) and data == _signed(body)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%ranks", usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("nproc", type=int)
    parser.add_argument("--file", type=Path, default=Path("my_ranks.py"))
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PlanError(f"%%ranks did not understand its line: {message}.", check_first=USAGE)
