"""Slurm's own commands, and what they say of a job; called seldom, because Slurm serves a whole cluster."""

from __future__ import annotations

import contextlib
import subprocess

from ppwork.errors import UnavailableError

ANSWER_S = 30.0
"""Longest wait for a command of Slurm."""
ASK_S = 3.0
"""Seconds between two queries to Slurm."""
PENDING, GONE = "PENDING", "GONE"
"""States of a job: it waits; Slurm no longer knows it."""
GOING = (PENDING, "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "STAGE_OUT",
         "SIGNALING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")  # fmt: skip
"""States of a job that has not ended."""


class NoAnswer(UnavailableError):
    """Slurm did not answer in time: it may have done what it was asked."""


def state_of(job_id: str) -> str:
    """Return Slurm's state of a job: ``PENDING (Priority), 2 of 3 in the queue``, ``RUNNING``, ``FAILED``.

    Raises:
        UnavailableError: Slurm does not answer.
    """
    said = ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%r|%P")
    state, reason, partition = (said or f"{GONE}||").splitlines()[0].split("|", 2)
    if state == PENDING:
        queue = ("--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%i")
        waiting = ask("squeue", "--noheader", *queue).split()
        with contextlib.suppress(ValueError):  # it has begun meanwhile
            place = waiting.index(job_id) + 1
            return f"{state} ({reason}), {place} of {len(waiting)} in the queue"
    return state


def ask(*command: str, script: str = "") -> str:
    """Return the output of a command of Slurm; empty for a job that Slurm no longer knows.

    Args:
        command: The command with its options.
        script: Its standard input.

    Raises:
        UnavailableError: The command does not exist, or fails: has its error output.
        NoAnswer: It took longer than ``ANSWER_S``, or timed out by itself.

    Blocks:
        At most ``ANSWER_S``.
    """
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
        said, failed = done.stderr.strip(), done.returncode
    except subprocess.TimeoutExpired as error:
        what = f"Slurm's {command[0]} did not answer within {ANSWER_S:g} s."
        raise NoAnswer(what, check_first="`sinfo`") from error
    except OSError as error:
        what = f"Slurm's {command[0]} did not answer: {error}."
        raise UnavailableError(what, check_first="`sinfo`") from error
    if failed and "timed out" in said:
        raise NoAnswer(f"Slurm's {command[0]} failed: {said}.", check_first="`sinfo`")
    if failed and "Invalid job id" not in said:
        what = f"Slurm's {command[0]} failed: {said}"
        raise UnavailableError(what, check_first="`sinfo`: partition, nodes, time")
    return "" if failed else done.stdout.strip()
