"""The folders that one run left on several hosts: which folder has a rank's records, and all merged into one.

Hosts that share no file system have a folder each, with the records of their own ranks. No file name is
trusted: only regular files of a folder's first level are copied, under their own names.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Sequence
from pathlib import Path

from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.records.failure import failure_file
from ppwork.records.flight import flight_file
from ppwork.records.pulse import pulse_file
from ppwork.records.run import TORCHRUN_LOG, log_file
from ppwork.records.spans import span_file


def has_records(folder: Path, rank: int) -> bool:
    """Say whether a folder has any file that a rank itself wrote."""
    files = (span_file, pulse_file, failure_file, flight_file, log_file)
    return any(file(folder, rank).exists() for file in files)


def home_of(folders: Sequence[Path], rank: int) -> Path:
    """Return the folder that has a rank's records; the first folder, if none has."""
    return next((folder for folder in folders if has_records(folder, rank)), folders[0])


def torchrun_logs(folder: Path) -> list[Path]:
    """Return the logs of the hosts' torchruns that a folder has: ``torchrun.log``, ``torchrun-1.log``."""
    logs = (path for path in folder.glob("torchrun*.log") if path.is_file())
    return sorted(logs, key=lambda path: (len(path.name), path.name))  # in the order of the hosts' numbers


def plan_of(folders: Sequence[Path]) -> Plan:
    """Return the one plan of a run's folders.

    Raises:
        PlanError: There is no folder, none has a plan that reads, or two have different plans.
    """
    if not folders:
        raise PlanError("None of the paths is a folder.", check_first="the run folder of every host")
    having = [folder for folder in folders if (folder / Plan.FILE_NAME).exists()] or list(folders[:1])
    plans = {folder: Plan.load(folder) for folder in having}
    first = plans[having[0]]
    for folder, plan in plans.items():
        if plan != first:
            raise PlanError(
                f"{having[0]} and {folder} are not of one run: their plans differ.",
                check_first="the folders of one run, one of each host",
            )
    return first


def collect(folders: Sequence[Path], out: Path, logs: Sequence[Path] = ()) -> Path:
    """Merge the folders that one run left on several hosts into one.

    Args:
        folders: One folder of each host, rank 0's first if two hosts have a file of the same name.
        out: The folder to make; new or empty.
        logs: Logs of the hosts' torchruns, if they were kept elsewhere.

    Returns:
        ``out``, as one host would have left it: ``timeline``, ``diagnose`` and ``pp.open`` read it.

    Raises:
        PlanError: The folders are not of one run, two have different records of one rank, or a path does not
            exist; ``out`` is unchanged. Or a file cannot be copied; ``out`` has the files before it.
    """
    chosen: dict[str, Path] = {Plan.FILE_NAME: _plan_file(folders)}
    printed: list[Path] = []
    try:
        for folder in folders:
            torchruns = torchrun_logs(folder)
            printed += torchruns
            for path in sorted(folder.iterdir()):
                if path.name.startswith(".") or path.is_symlink() or not path.is_file() or path in torchruns:
                    continue
                other = chosen.setdefault(path.name, path)
                if path.name != Plan.FILE_NAME and not filecmp.cmp(path, other, shallow=False):
                    raise PlanError(
                        f"{other} and {path} differ: these folders are not of one run, or one is of a later.",
                        check_first="the folders of one run, one of each host",
                    )
        for path in logs:
            path.stat()
        names = [TORCHRUN_LOG, *(f"torchrun-{number}.log" for number in range(1, len(printed) + len(logs)))]
        chosen |= dict(zip(names, [*printed, *logs], strict=False))
        if out.exists() and any(out.iterdir()):
            raise PlanError(f"The folder {out} is not empty.", check_first="--out: a new folder")
        out.mkdir(parents=True, exist_ok=True)
        for name, path in chosen.items():
            shutil.copy2(path, out / name)
    except OSError as error:
        raise PlanError(
            f"{error.filename} cannot be copied into {out}: {error.strerror}.",
            check_first="whose files they are, and `df -h`",
        ) from error
    return out


def _plan_file(folders: Sequence[Path]) -> Path:
    plan_of(folders)
    return next(folder / Plan.FILE_NAME for folder in folders if (folder / Plan.FILE_NAME).exists())
