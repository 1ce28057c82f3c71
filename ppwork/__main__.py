"""``ppwork`` and ``python -m ppwork``: the command line, and the entry of the ranks.

The entries of processes that we start ourselves come first, so that a rank never imports the command line.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path


def main() -> int:
    """Dispatch to a rank, the reference, or the command line; return the exit code."""
    match sys.argv[1:]:
        case ["worker", run_dir]:
            from ppwork.worker import main as worker

            return worker.main(Path(run_dir))
        case ["node", which] if not which.startswith("-"):
            from ppwork.launcher.nodes import node

            code = node.main(which)
            sys.stderr.flush()
            # It is waited for, and Python's own clean-up would take as long as the node's, on a full machine.
            os._exit(code)
        case ["batch", run_dir]:
            from ppwork.launcher import job

            return job.main(Path(run_dir))
        case ["reference", run_dir]:
            with _held():
                from ppwork.worker import reference
            return reference.main(Path(run_dir))
        case ["check-stages", stage0, stage1]:
            with _held():
                from ppwork.worker import check_stages

                return check_stages.main(stage0, stage1)
        case ["one-process", run_dir]:
            with _held():
                from ppwork.worker import one_process
            return one_process.main(Path(run_dir))
        case [("rank" | "rank-ops" | "rank-plain") as entry, folder, program, *arguments]:
            from ppwork.worker import script

            return script.main(
                folder, program, arguments, ops=entry == "rank-ops", record=entry != "rank-plain"
            )
        case given:
            try:
                from ppwork.cli import main as cli
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("ppwork"):
                    raise
                if given[:1] == ["diagnose"] and not any(path[:1] == "-" for path in given):
                    return _diagnose(given[1:])
                from ppwork.version import WHEEL, __version__

                if given == ["--version"]:
                    sys.stdout.write(f"ppwork {__version__}\n")
                    return 0
                command = f'pip install "{WHEEL}[run]"'
                needs = f"the command line needs {error.name}: {command}, the path of your wheel"
                sys.stderr.write(f"{needs} with [run] behind it; `ppwork diagnose PATH` works without\n")
                return 2
            return cli.main()


def _diagnose(paths: list[str]) -> int:
    """Explain a run without the command line: wanted most where only what a program of one's own needs is."""
    from ppwork.errors import PlanError, UnavailableError, visible
    from ppwork.launcher.standing import diagnose_any

    try:
        sys.stdout.write(f"{visible(diagnose_any([Path(path) for path in paths]).text)}\n")
    except (PlanError, UnavailableError) as error:
        sys.stderr.write(f"{visible(str(error))}\n")
        return 2 if isinstance(error, PlanError) else 1
    return 0


def _held() -> AbstractContextManager[None]:
    """Tie this process to its launcher, and then import in the body: torch takes seconds."""
    from ppwork import process

    process.hold_if_asked()
    return process.importing()


if __name__ == "__main__":
    sys.exit(main())
