"""One rank of a claim's program: sets up what the program asks for, keeps its notes, says how it ended."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.claims.jobs import ClaimJob, begun_file, notes_file, outcome_file, stack_file
from ppwork.process import die_with_parent
from ppwork.runtime import nccl

if TYPE_CHECKING:
    import torch

PROGRAMS = "ppwork.claims.programs."
MEET_S = 30.0
"""How long ranks wait for each other where nothing is claimed."""


@dataclass(frozen=True)
class World:
    """World of a program: its rank, its device, and a place for its notes.

    Attributes:
        folder: Empty at the start, the same for all ranks of the program, gone after it.
        device: This rank's device: ``cpu``, or ``cuda:N``.
    """

    rank: int
    size: int
    backend: str
    timeout_s: float
    folder: Path
    device: torch.device

    def note(self, **facts: Any) -> None:  # noqa: ANN401  whatever JSON carries
        """Write down what was seen, at once: an abort or a hang after it does not take it back."""
        with notes_file(self.folder, self.rank).open("ab", buffering=0) as file:
            file.write(msgspec.json.encode(facts) + b"\n")

    def store(self, name: str = "store") -> Any:  # noqa: ANN401  a FileStore
        """Return a store of all ranks of this program; another name is another store."""
        import torch.distributed as dist

        store = dist.FileStore(str(self.folder / name), self.size)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=self.timeout_s or 5.0))
        return store

    def meet(self, name: str) -> None:
        """Wait in a store until all ranks are here; no collective: a group's first call is still to come."""
        store = self.store(name)
        store.set(str(self.rank), "here")
        store.wait([str(rank) for rank in range(self.size)], timedelta(seconds=MEET_S))

    def init(self, **options: Any) -> None:  # noqa: ANN401  as ``init_process_group``'s
        """Make the default group with this world's backend, store and timeout, unless told otherwise.

        On NCCL its connections are made at once, as the runtime does it.
        """
        import torch.distributed as dist

        wanted = {"backend": self.backend, "store": self.store(), "rank": self.rank, "world_size": self.size}
        bound = {"timeout": timedelta(seconds=self.timeout_s or 5.0)}
        device = {"device_id": self.device} if self.backend == "nccl" else {}
        dist.init_process_group(**{**wanted, **bound, **device, **options})


def run_rank(job: ClaimJob, rank: int) -> int:
    """Run the program as this rank; return the exit code."""
    program, folder = job.program, Path(job.folder)
    os.environ.update(program.environment)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(program.ranks)})
    stack = stack_file(folder, rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    import torch
    import torch.distributed as dist

    dist.set_debug_level_from_env()  # type: ignore[attr-defined]
    device = torch.device("cpu")
    if job.backend == "nccl":
        nccl.turn(os.environ)
        if torch.cuda.device_count() < program.ranks:  # NCCL refuses two ranks of one host on one GPU
            os.environ.update(nccl.sharing_a_gpu(rank))
        device = torch.device("cuda", rank % max(1, torch.cuda.device_count()))
        torch.cuda.set_device(device)
    world = World(rank, program.ranks, job.backend, program.timeout_s, folder, device)
    module, _, name = program.path.partition(":")
    try:
        run = getattr(importlib.import_module(PROGRAMS + module), name)
        if program.timeout_s:
            world.meet("start")  # a short timeout is for the program, not for a slow start
            world.init()
            world.meet("connected")  # who leaves early would break another's connecting
        begun_file(folder, rank).touch()
        run(world)
    except Exception as error:  # noqa: BLE001  what a program raises is what we want to know
        _write(folder, rank, error)
        return 0 if not program.fresh else _leave(0)
    _write(folder, rank, None)
    if program.timeout_s and not program.fresh and dist.is_initialized():
        # In order where everybody came, unless the program did it; who hung or broke is not waited for.
        dist.destroy_process_group()
    return 0


def _leave(code: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _write(folder: Path, rank: int, error: Exception | None) -> None:
    outcome = {"error_type": "", "error": "", "line": ""}
    if error is not None:
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}programs{os.sep}" in f.filename
        ]
        text = str(error).strip().splitlines()
        outcome = {
            "error_type": type(error).__name__,
            "error": text[0] if text else "",
            "line": frames[-1].line or "" if frames else "",
        }
        traceback.print_exception(error)
    outcome_file(folder, rank).write_bytes(msgspec.json.encode(outcome))


if __name__ == "__main__":
    die_with_parent()
    sys.exit(run_rank(msgspec.json.decode(sys.argv[1].encode(), type=ClaimJob), int(sys.argv[2])))
