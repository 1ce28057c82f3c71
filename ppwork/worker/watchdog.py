"""The watchdog of a rank: a thread that beats its pulse, and ends a process that would hang for ever.

It never calls ``torch.distributed``, so it goes on when everything else is stuck there. For code that holds
the GIL, so that no thread can run, it has one backstop: a timer of ``faulthandler``, restarted at each beat.
The timer needs no GIL, writes the stacks and ends the process with code 1. It measures wall-clock time: it
also ends a process that was stopped for longer than ``stall_s`` and then goes on.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO

from ppwork.errors import PeerFrozenError, StuckError
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.plan import PipelinePlan
from ppwork.records.failure import OWN, is_users
from ppwork.records.pulse import Pulse, PulseState, nothing_to_encode, read_pulse
from ppwork.records.spans import Recorder
from ppwork.worker import progress
from ppwork.worker.backend_wait import is_in_one
from ppwork.worker.exit_barrier import ExitBarrier
from ppwork.worker.last_words import FailureWriter
from ppwork.worker.peer_watch import PeerWatch
from ppwork.worker.progress import PAUSED_S, Progress, Sample

TICK_S = 0.25
"""Seconds between two beats."""
BLIND_MARGIN_S = 1.0
"""Seconds after ``stall_s`` at which the backstop fires: the thread says more, and comes first if it can."""
SITS = 4
"""Samples at one instruction after which a rank with a GPU counts as waiting for it: a loop moves on."""
MOST_FRAMES = 100
"""Innermost frames of a thread that are shown, as faulthandler does."""
MAKE_GROUPS = ("new_group", "_new_group_with_tag", "split_group")
"""Functions of torch in which a rank waits for the other ranks of a new group."""
STDERR = 2
"""Descriptor of the process's standard error."""
C10D = os.sep + "distributed_c10d.py"
"""File of torch's collectives."""
WRAPPERS = tuple(str(Path(__file__).with_name(name)) for name in ("backend_wait.py", "trace.py"))
"""Files whose frames may be inside torch's frames."""
_TORCH, _DISTRIBUTED = (os.sep + os.path.join("torch", *folders, "") for folders in ((), ("distributed",)))  # noqa: PTH118

log = logging.getLogger(__name__)


class Watchdog:
    """Watches this rank and its peers on this host; a context manager whose body is watched.

    The rank's main thread creates it, and it watches that thread.

    The bounds are the plan's: ``stall_s``, ``freeze_s``, ``timeout_s``. It writes what it finds to ``words``,
    and then ``leave`` ends the process. All ranks of the run share one folder. The backstop writes to
    ``stacks``, or else to descriptor 2: a stage's replacement of ``sys.stderr`` may have no descriptor.

    ``ends_stopped``: a peer that was stopped (SIGSTOP) for too long is killed as this rank leaves, as our own
    launcher would do; any other torchrun waits 30 s for it.

    Raises:
        PlanError: ``SCOPE_DIST_TIMEOUT_S`` is not a number of seconds (this rank).
    """

    def __init__(
        self,
        plan: PipelinePlan,
        rank: int,
        run_dir: Path,
        recorder: Recorder,
        *,
        words: FailureWriter | None = None,
        pulse: Pulse | None = None,
        stacks: IO[bytes] | None = None,
        leave: Callable[[int], object] = os._exit,
        ends_stopped: bool = False,
    ) -> None:
        self._bounds, self._recorder, self._leave = Bounds.of(plan), recorder, leave
        self._words = words or FailureWriter(run_dir, rank, recorder)
        self._ends_stopped = ends_stopped
        self._pulse = pulse or Pulse(run_dir, rank)
        self._stacks = stacks
        self._telling = progress.telling(self._pulse.begin)
        self._where: dict[str, int | str] = {"rank": rank}
        if rank < plan.world_size:  # ``join`` reports a rank too many, on all ranks at once
            self._where["role"] = str(plan.topology.role(rank))
        self._progress = Progress(self._bounds)
        self._peers = PeerWatch(rank, plan.topology, self._bounds, partial(read_pulse, run_dir))
        self._main = threading.get_ident()
        self._warned: set[str] = set()
        self._ticked_s = time.monotonic()
        self._joined = self._on_cuda = self._hangs_up = self._paused = False
        self._others = tuple(other for other in range(plan.world_size) if other != rank)
        self._place: tuple[int, int] | None = None
        self._call = "", 0
        """The main thread's collective outside of a chunk, and the first sample of it (nanoseconds)."""
        self._sat = 0
        self._winding = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._telling.__enter__()
        self._wind_up()
        self._thread.start()
        return self

    def joined(self, *, on_cuda: bool, hangs_up: bool = True) -> None:
        """Note that this rank has been brought up: from now on ``stall_s`` applies; main thread only.

        ``hangs_up``: a stuck rank may close its connections to tell its peers: none belongs to the job.

        Without this call the first steps, which may come before the next beat, have the long start-up bound.
        """
        self._joined, self._on_cuda, self._hangs_up = True, on_cuda, hangs_up
        self._wind_up()
        self._pulse.beat(PulseState.IDLE)

    def __exit__(self, *exc_info: object) -> None:
        self._telling.__exit__(None, None, None)
        self._over.set()
        with self._winding:
            faulthandler.cancel_dump_traceback_later()
        self._thread.join(PAUSED_S)

    def tick(self, now_s: float) -> None:
        """Sample, beat, check the peers at ``now_s`` (``time.monotonic``); past a bound end the process."""
        innermost = sys._current_frames().get(self._main)
        frame, current = without_ours(innermost), progress.current(self._main)
        waiting = is_in_one(innermost) or is_waiting(frame) or self._sits(frame)
        making = makes_group(frame)
        entries, method = self._recorder.entries, progress.method_of(self._main)
        sample = Sample(now_s, current, waiting=waiting, entries=entries, making=making, method=method)
        stuck = self._progress.see(sample)
        which = {} if current is None else current.which or {}
        step, since_ns = ("", 0) if current is None else (current.step, current.since_ns)
        if step in ("", progress.LOOP) and (call := own_call(frame)):
            self._call = call, self._call[1] if call == self._call[0] else time.monotonic_ns()
            step, since_ns = self._call
        else:
            self._call = "", 0
        paused_s = progress.paused_s(self._main)
        self._pulse.beat(self._progress.state, step, which, since_ns, paused_s)
        self._warn_of_pause(paused_s)
        if stuck is not None:
            self._end(stuck, frame)
        elif self._progress.state is PulseState.SLOW and step not in self._warned:
            self._warned.add(step)
            passed_s, stall_s = self._progress.own_s, self._bounds.stall_s
            text = "rank %d is slow: %s took %.1f s of %g s so far\n%s"
            log.warning(text, self._where["rank"], step, passed_s, stall_s, _stack_of(frame))
        if now_s - self._ticked_s > PAUSED_S:
            self._peers.start_anew()
        self._ticked_s = now_s
        frozen = self._peers.look(now_s)
        if frozen is not None:
            self._end(frozen, None)

    def _warn_of_pause(self, paused_s: float) -> None:
        """Warn once that the source has had no chunk for long: its feeder may have died."""
        if not paused_s:
            self._paused = False
        elif paused_s > self._bounds.stall_s and not self._paused:
            self._paused = True
            why = "encode says NOT_YET; is what feeds it still there?"
            log.warning("rank %s: %s: %s", self._where["rank"], nothing_to_encode(paused_s), why)

    def _sits(self, frame: FrameType | None) -> bool:
        """Say whether the main thread has been in one C call for a while, on a rank with a GPU.

        It may wait for the device, and so for a peer: a transfer or sum of NCCL may be on the stream that
        ``.item()``, ``.cpu()`` or an allocation waits for. NCCL's bound, ``timeout_s``, then passes first.
        """
        place = None if frame is None else (id(frame), frame.f_lasti)
        self._sat = self._sat + 1 if place == self._place else 0
        self._place = place
        return self._on_cuda and self._sat >= SITS

    def _run(self) -> None:
        while not self._over.wait(TICK_S):
            with _going_on("wind up its timer"):
                self._wind_up()
            with _going_on("look"):
                self.tick(time.monotonic())

    def _wind_up(self) -> None:
        # At any moment, not only in a stage's steps: one may begin, and hold the GIL, between two beats.
        with self._winding:
            bound_s = self._bounds.stall_s if self._joined else self._bounds.start_s
            if not self._over.is_set():
                to = self._stacks or STDERR
                faulthandler.dump_traceback_later(bound_s + BLIND_MARGIN_S, exit=True, file=to)

    def _end(self, error: StuckError | PeerFrozenError, frame: FrameType | None) -> None:
        error.at(**self._where)
        if frame is None:
            self._words.write(error)
        else:
            with suppress(OSError):
                os.write(STDERR, stacks_of_threads(self._main).encode())
            self._words.write(error, source=_source_of(frame), stack=_stack_of(frame))
        self._pulse.leave(self._words.exit_code)
        if self._ends_stopped and isinstance(error, PeerFrozenError):
            line = self._peers.end_stopped(int(error.where["peer"]), self._bounds.freeze_s)
            if line:
                with suppress(OSError):
                    os.write(STDERR, f"{line}\n".encode())
        if frame is not None and self._hangs_up:
            # The main thread reaches no call that tells the peers; torchrun ends those that have not heard.
            self._words.exit_barrier = ExitBarrier(deaf=self._others)
            self._words.stay_for_peers()
        self._leave(self._words.exit_code)


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Log an error of the body and go on: a dead watchdog would look like a frozen rank."""
    try:
        yield
    except Exception:
        log.exception("the watchdog could not %s", what)


def stacks_of_threads(main: int) -> str:
    """Return the stacks of all threads in faulthandler's form, without those that are in our code alone.

    Args:
        main: Identifier of a thread that is shown in any case.
    """
    texts, left_out = [], 0
    for thread, innermost in sys._current_frames().items():
        frames = [frame for frame, _ in islice(traceback.walk_stack(innermost), MOST_FRAMES)]
        if thread != main and all(_is_ours(frame.f_code.co_filename) for frame in frames):
            left_out += 1
            continue
        lines = (f'  File "{f.f_code.co_filename}", line {f.f_lineno} in {f.f_code.co_name}' for f in frames)
        texts.append("\n".join([f"Thread 0x{thread:016x} (most recent call first):", *lines]))
    return "\n" + "\n\n".join([*texts, f"Threads of ppwork that are not shown: {left_out}\n"])


def _is_ours(file: str) -> bool:
    return file.startswith(OWN) or file == threading.__file__


def without_ours(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is not in one of our wrappers round torch's functions."""
    while frame is not None and frame.f_code.co_filename in WRAPPERS:
        frame = frame.f_back
    return frame


def is_waiting(frame: FrameType | None) -> bool:
    """Say whether a thread is inside ``torch.distributed``, and so waits for a peer."""
    while frame is not None and _TORCH in frame.f_code.co_filename:
        if _DISTRIBUTED in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def own_call(frame: FrameType | None) -> str:
    """Return the collective that the user's own code called on this thread, with its line; else nothing.

    For example ``barrier (my_loop.py:41)``.
    """
    call = ""
    while frame is not None and _TORCH in frame.f_code.co_filename:
        if frame.f_code.co_filename.endswith(C10D):
            call = frame.f_code.co_name
        frame = frame.f_back
    if frame is None or not call or not is_users(frame.f_code.co_filename):
        return ""
    return f"{call} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def makes_group(frame: FrameType | None) -> bool:
    """Say whether a thread is in the user's own call that creates a process group."""
    makes = False
    while frame is not None and _TORCH in frame.f_code.co_filename:
        makes = makes or frame.f_code.co_name in MAKE_GROUPS
        frame = frame.f_back
    return makes and frame is not None and not frame.f_code.co_filename.startswith(OWN)


def _stack_of(frame: FrameType | None) -> str:
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _source_of(frame: FrameType | None) -> str:
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
