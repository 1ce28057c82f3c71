"""Ranks that a program's rank starts by itself: ``torch.multiprocessing.spawn``, ``Process``, ``os.fork``.

torchrun's rank is then one process of many. The processes that it starts say which ranks they are only when
they call ``init_process_group``. From then on each has a file of calls, in one folder for all that were
started together: a program may start one world after another.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ppwork.records.calls import INSIDE, calls_file

_RANK, _SIZE = (re.compile(rf"[?&]{name}=(\d+)") for name in ("rank", "world_size"))
"""Parts of the address of an ``init_method``, which may be missing."""


class Followed:
    """Travels with a process that is started; when that process unpickles it, its calls are recorded."""

    def __init__(self, follow: Callable[[str, bool], None], folder: str, ops: bool) -> None:
        self._about = follow, folder, ops

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        follow, folder, ops = self._about
        return _unpickled, (follow, folder, ops)


def _unpickled(follow: Callable[[str, bool], None], folder: str, ops: bool) -> None:
    follow(folder, ops)


class InnerRanks:
    """The worlds that this process starts.

    Args:
        folder: Gets a folder for each world.
        rank: This process's own rank.
    """

    def __init__(self, folder: Path, rank: int | None) -> None:
        self._folder, self._begin = folder, f"{INSIDE}{'' if rank is None else rank}-"
        self._worlds = 0
        self._started: list[BaseProcess] = []

    @property
    def folder(self) -> Path:
        """The folder of the world that is being started."""
        return self._folder / f"{self._begin}{self._worlds:03}"

    def follow(self, follow: Callable[[str, bool], None], *, ops: bool) -> None:
        """Make every process that is started from now on record its calls.

        Args:
            follow: A module's function; called in the new process with the folder of its world, and ``ops``.
            ops: Whether operators are recorded.
        """
        begin = BaseProcess.start

        def start(process: BaseProcess) -> None:
            if self._started and not any(map(_is_there, self._started)):
                self._started.clear()
                self._worlds += 1
            process._ppwork = Followed(follow, str(self.folder), ops)  # type: ignore[attr-defined]
            begin(process)
            self._started.append(process)

        start.__doc__ = begin.__doc__
        BaseProcess.start = start  # type: ignore[assignment,method-assign]


def _is_there(process: BaseProcess) -> bool:
    try:
        return process.is_alive()
    except (ValueError, AssertionError):  # it was closed, or belongs to the process that forked us
        return False


def place_of(start: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return rank and size of the world that a call of ``init_process_group`` names; -1 if it names none.

    Args:
        start: The function.
        args: Arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    stated = inspect.signature(start).bind_partial(*args, **kwargs).arguments
    address = str(stated.get("init_method") or "")
    found = []
    for name, query, variable in (("rank", _RANK, "RANK"), ("world_size", _SIZE, "WORLD_SIZE")):
        number: Any = stated.get(name)
        if number is None or number < 0:
            in_address = query.search(address)
            number = in_address[1] if in_address else os.environ.get(variable, "-1")
        found.append(int(number))
    return found[0], found[1]


def free_folder(folder: Path, rank: int) -> Path:
    """Return this folder, or the next one without a rank of this number: an earlier world may have had it."""
    begin, _, number = folder.name.rpartition("-")
    while calls_file(folder, rank).exists():
        number = f"{int(number) + 1:03}"
        folder = folder.with_name(f"{begin}-{number}")
    return folder
