"""How long ``ppwork diagnose`` takes for 100 MB of logs: ``python benchmarks/diagnose_time.py``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job

BYTES = 100_000_000
LINE = "2026-11-22 10:00:00 INFO step 12345 loss 1.2345 lr 0.0001 tokens/s 12345.6 mem 12.3 GB\n"
RAISED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/me/a.py", line 9, in <module>\n'
    "[rank1]:     step()\n[rank1]: ValueError: NaN in batch 4\n"
)
RETRIED = (
    "[default1]:ERROR:root:again\n[default1]:Traceback (most recent call last):\n"
    '[default1]:  File "/srv/me/a.py", line 9, in <module>\n[default1]:    step()\n[default1]:OSError: try\n'
)


def repeated(text: str, size: int = BYTES) -> str:
    """Return as many copies as fill ``size`` bytes."""
    return text * (size // len(text))


def folder_of(ranks: int, path: Path) -> Path:
    """Write a ``--log-dir`` whose rank 1 raised before a long tail."""
    for rank in range(ranks):
        log = path / f"{ranks}/run/attempt_0/{rank}/stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text((RAISED if rank == 1 else "") + repeated(LINE, BYTES // ranks))
    return path / str(ranks)


def main() -> None:
    """Print wall and CPU seconds of each shape."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        paths = {f"folder of {ranks} ranks": folder_of(ranks, folder) for ranks in (4, 25)}
        for name, text in {
            "console, raised before it": RAISED + repeated(f"[default0]:{LINE}"),
            "console, a loop of retries": repeated(RETRIED),
            "console, blank lines": repeated("\n") + RAISED,
            "console, one line": RAISED + "x" * BYTES,
            "console of no rank, errors without heads": repeated('ValueError: no\n  File "a.py", line 1\n'),
        }.items():
            paths[name] = folder / f"{name}.log"
            paths[name].write_text(text)
        for name, path in paths.items():
            wall, cpu = time.perf_counter(), time.process_time()
            found = diagnose_job(read_job(path))
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            sys.stdout.write(f"{name}: {wall:.2f} s, {cpu:.2f} s of CPU; {found.sentence.splitlines()[0]}\n")


if __name__ == "__main__":
    main()
