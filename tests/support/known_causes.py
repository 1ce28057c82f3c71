"""Jobs whose cause is known, and the score of what is said of them from each kind of log.

``mishaps``: consoles of ``broken/mishaps.py``, run under torchrun (``capture.py``). ``reports``: logs built
after public bug reports, each with its address in ``truth.json``; ``set_aside``, ``held_out``, ``blind``,
``unseen``, ``fresh``, ``anew``, ``third`` and ``fourth``: such that were scored once, after the rules were
written. ``posted``: consoles of ``broken/posted``, programs that were written and run by somebody who had not
read the rules.

``python tests/support/known_causes.py`` prints the table.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from captured_logs import CAPTURED, TEED, log_dir

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.errors import PlanError


@dataclass(frozen=True)
class Truth:
    """The true cause of a job.

    Attributes:
        ranks: Ranks of which one must be named first; empty: nobody in particular.
        words: One of them must be in the answer, else it is only vague.
        nproc: Ranks of the job, where it was run here.
        optional: A rank may be named, and the answer is right without one.
    """

    ranks: tuple[int, ...]
    words: tuple[str, ...]
    nproc: int = 3
    optional: bool = False

    @property
    def needs_a_rank(self) -> bool:
        """Whether one rank differs from the others; where that is not known, the words are enough."""
        return len(self.ranks) in (1, 2) and not self.optional


MISHAPS = {
    "bcast_src": Truth((0, 1), ("root", "CollectiveMismatch")),
    "cascade": Truth((1, 2), ("disk quota exceeded",)),
    "conn_reset": Truth((1,), ("ConnectionResetError",)),
    "ddp_uneven": Truth((2,), ("barrier", "SIGSEGV")),
    "ddp_uneven-detail": Truth((0, 1, 2), ("SIGSEGV",)),
    "ddp_differs": Truth((0, 1, 2), ("shape", "size", "SizeMismatch", "DDP expects", "bytes")),
    "dtypes": Truth((0, 1), ("size", "Double")),
    "exc_group": Truth((1,), ("shard 0 is corrupt",)),
    "exit_text": Truth((1,), ("no licence", "left without a word")),
    "finally_barrier": Truth((1,), ("label 17",)),
    "fork_after_init": Truth((1,), ("never came", "gloo::EnforceNotMet")),
    "harmless_hang": Truth((1,), ("never came",)),
    "harmless_kill": Truth((1,), ("SIGKILL", "left without a word", "never came to the")),
    "isend_exit": Truth((0,), ("code 3", "left without a word", "never came")),
    "late": Truth((2,), ("never came",)),
    "lock_order": Truth((0, 1, 2), ("all_reduce",)),
    "newgroup_differs": Truth((0, 1, 2), ("different calls",)),
    "oom_rlimit": Truth((1,), ("MemoryError",)),
    "own_hook": Truth((1,), ("50257",)),
    "port_in_use": Truth((0,), ("EADDRINUSE", "address already in use")),
    "no_master": Truth((0,), ("29778", "never came")),
    "read_timeout": Truth((1,), ("TimeoutError: timed out",)),
    "retry_then_abort": Truth((1,), ("code 7", "bucket does not answer")),
    "same_rank": Truth((2,), ("waited for rank 2", "rank 2")),
    "save_barrier": Truth((0,), ("barrier", "BARRIER")),
    "segfault": Truth((1,), ("SIGSEGV", "left without a word", "never came to the")),
    "sums_of_some": Truth((1, 2), ("sizes", "bytes")),
    "splits": Truth((0, 1, 2), ("bytes",)),
    "swallowed": Truth((1,), ("barrier", "BARRIER")),
    "tags": Truth((0, 1), ("recv", "never came")),
    "wrong_src": Truth((0, 1), ("recv", "never came")),
    "thread_dies": Truth((1,), ("image_0017",)),
    "unpicklable": Truth((1,), ("pickle",)),
    "world_size": Truth((3,), ("waited for rank 3",)),
    "wrong_master": Truth((2,), ("rank 2",)),
    "restarts": Truth((1,), ("No space left",)),
    "tqdm_bar": Truth((1,), ("NaN in batch 4",)),
    "loguru_like": Truth((1,), ("shard 3 is empty",)),
    "loader_raises": Truth((1,), ("image 2 is truncated",)),
    "loader_killed": Truth((1,), ("is killed by signal", "killed by signal")),
    "terminate_what": Truth((1,), ("map::at",)),
    "destroy_early": Truth((2,), ("never came", "left")),
    "caught_peer_error": Truth((2,), ("learning rate is negative",)),
    "import_error": Truth((1,), ("tokenizer_that_is_not_here",)),
    "syntax": Truth((1,), ("SyntaxError",)),
    "child_raises": Truth((1,), ("preprocessing ended",)),
    "all_raise": Truth((0, 1, 2), ("not divisible by 3",)),
    "notify_key": Truth((2,), ("rank 2",)),
    "asserts": Truth((0,), ("loss is nan",)),
    "fsdp_uneven": Truth((0,), ("barrier", "BARRIER")),
}


def jobs() -> Iterator[tuple[str, str, Path, Truth]]:
    """Return set, name, console and truth of each job."""
    for path in sorted((CAPTURED / "mishaps").glob("*.txt")):
        truth = MISHAPS.get(path.stem) or MISHAPS[path.stem.removesuffix("-detail")]
        yield "mishaps", path.stem, path, truth
    for group in (
        "reports",
        "set_aside",
        "held_out",
        "blind",
        "unseen",
        "fresh",
        "anew",
        "third",
        "fourth",
        "posted",
    ):
        for name, told in json.loads((CAPTURED / group / "truth.json").read_text()).items():
            ranks, words = tuple(told["ranks"]), tuple(told["words"])
            truth = Truth(ranks, words, told.get("nproc", 3), "optional" in told)
            yield group, name, CAPTURED / group / f"{name}.txt", truth


def views(console: Path, group: str, folder: Path, nproc: int) -> Iterator[tuple[str, Path]]:
    """Lay a job's console out as each of the kinds of log that people keep."""
    yield "console", console
    if group in ("mishaps", "posted"):
        yield "folder", log_dir(console, folder / "alone", ranks=nproc, report=False)
        yield "both", log_dir(console, folder / "both", ranks=nproc)
        untagged = folder / "untagged.log"
        untagged.write_text(TEED.sub(r"\2", console.read_text()))
        yield "untagged", untagged


def graded(path: Path, truth: Truth) -> tuple[str, str]:
    """Return ``right``, ``vague``, ``wrong`` or ``denied``, and the answer."""
    try:
        found = diagnose_job(read_job(path))
    except PlanError as error:
        return "denied", str(error)
    named = found.cause.where.get("rank") if found.cause is not None else None
    if found.text.startswith("Nothing") or (named is not None and named not in truth.ranks):
        return "wrong", found.text
    is_right = any(word in found.text for word in truth.words) and (
        named is not None or not truth.needs_a_rank
    )
    return "right" if is_right else "vague", found.text


def scores(wanted: str = "") -> Iterator[tuple[str, str, str, str, str]]:
    """Return set, name, view, grade and answer of each log."""
    for group, name, console, truth in jobs():
        if wanted in (group, name, ""):
            with tempfile.TemporaryDirectory() as folder:
                for view, path in views(console, group, Path(folder), truth.nproc):
                    yield group, name, view, *graded(path, truth)


if __name__ == "__main__":
    counts: dict[tuple[str, str], Counter[str]] = {}
    for group, name, view, grade, answer in scores(*sys.argv[1:2]):
        counts.setdefault((group, view), Counter())[grade] += 1
        if grade != "right":
            sys.stdout.write(f"{grade}: {name}, {view}\n" + (f"{answer}\n\n" if sys.argv[2:] else ""))
    for (group, view), of_view in counts.items():
        shown = ", ".join(f"{of_view[grade]} {grade}" for grade in ("right", "vague", "wrong", "denied"))
        sys.stdout.write(f"{group}, {view}: {shown}\n")
