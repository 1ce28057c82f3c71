"""The entry of one rank of a user's own program: ``torchrun -m ppwork rank FOLDER SCRIPT ARGS``.

The program runs as under plain torchrun, with five additions: it never outlives its launcher; its calls of
torch.distributed are recorded in the folder; it prints its stacks when the launcher's limit has passed; its
standard input is empty instead of the launcher's lifeline; and at its end the garbage collector does not
visit all of torch again, which takes longer than many a lesson's program.
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
    """Run the program as ``__main__``; an exception ends this process as it would without us.

    Args:
        folder: Gets the calls.
        script: The program.
        arguments: The program's arguments.
        ops: Record torch's operators, too.
        record: Record the calls; a program that takes measurements may not want the cost.
    """
    process.hold_if_asked()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115  open as long as this process lives
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))  # where Python looks for modules beside it
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
