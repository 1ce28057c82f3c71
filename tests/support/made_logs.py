"""Logs of a torchrun job as torch and torchrun write them, made of a few words in a test."""

from __future__ import annotations

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job

GLOO_LOST = "RuntimeError: [/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1."
C10D = "/site-packages/torch/distributed/distributed_c10d.py"


def traceback(rank, line, source, error, *, inside="", prefix=None):
    """A traceback as torch's hook writes it, or with another prefix."""
    lines = [
        "Traceback (most recent call last):",
        f'  File "/t/a.py", line {line}, in <module>',
        f"    {source}",
    ]
    if inside:
        lines += [f'  File "{C10D}", line 1, in {inside}']
    prefix = f"[rank{rank}]: " if prefix is None else prefix
    return "".join(f"{prefix}{one}\n" for one in [*lines, *error.split("\n")])


def report(first, **codes):
    """torchrun's closing report; ranks as ``r0=-15``."""
    codes = {int(name[1:]): code for name, code in codes.items()}
    order = [rank for rank in codes if rank != first] + [first]
    text = "torch/distributed/elastic\nFailures:\n"
    for rank in order:
        text += "Root Cause (first observed failure):\n" if rank == first else ""
        text += f"[0]:\n  host : h\n  rank      : {rank} (local_rank: {rank})\n"
        text += f"  exitcode  : {codes[rank]} (pid: 2)\n"
    return text


def folder(path, *errors, console="", run="x", attempt=0):
    """A ``--log-dir`` with the stderr of each rank."""
    for rank, text in enumerate(errors):
        of_rank = path / run / f"attempt_{attempt}" / str(rank)
        of_rank.mkdir(parents=True)
        (of_rank / "stdout.log").touch()
        (of_rank / "stderr.log").write_text(text)
    if console:
        (path / "console.log").write_text(console)
    return path


def said(path):
    return diagnose_job(read_job(path))
