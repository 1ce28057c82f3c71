"""The entry of one rank of somebody's own program: ``torchrun -m ppwork rank FOLDER SCRIPT ARGS``.

The program runs as it would under plain torchrun, with five things added: it never outlives its launcher,
its calls of torch.distributed are recorded in the folder, it answers with its stacks when the launcher's
limit has passed, it has an empty input instead of the launcher's lifeline, and on its way out the garbage
collector does not look through all of torch once more, which takes longer than many a program of a lesson.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import runpy
import signal
import sys
from pathlib import Path

from ppwork import process
from ppwork.worker.trace import start


def main(folder: str, script: str, arguments: list[str], *, ops: bool = False, record: bool = True) -> int:
    """Run the program as ``__main__``; what it raises ends this process as it would without us.

    Args:
        folder: Gets the calls.
        script: The program.
        arguments: Its own.
        ops: Record operators of torch, too.
        record: Record the calls; a program that measures its own may not want what that takes.
    """
    process.hold_if_asked()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115  of this process, as long as it lives
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))  # where Python looks for its neighbours
    recorder = start(Path(folder), ops=ops) if record else None
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if recorder is not None and not (isinstance(error, SystemExit) and not error.code):
            recorder.failed(error)
        raise
    finally:
        gc.freeze()
    return 0
