"""When a rank counts as idle, busy, slow, stuck or frozen; with a clock of our own and made-up pulses."""

from __future__ import annotations

import dataclasses
import io
import logging
import re
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from waiting import END_S, wait_for

from ppwork.errors import PeerFrozenError, PlanError, StuckError
from ppwork.plan import Plan
from ppwork.process import SECONDARY, STUCK
from ppwork.protocol.bounds import Bounds, bring_up_timeout_s
from ppwork.protocol.envelope import Ids
from ppwork.protocol.topology import Topology
from ppwork.records.failure import read_records
from ppwork.records.identity import pid_space
from ppwork.records.pulse import PulseState, PulseView, read_pulse
from ppwork.records.spans import Recorder
from ppwork.runtime.lanes import WatchedQueue
from ppwork.worker import progress, watchdog
from ppwork.worker.backend_wait import framed, is_in_one
from ppwork.worker.collectives import install
from ppwork.worker.peer_watch import PeerWatch
from ppwork.worker.progress import Activity, Progress, Sample
from ppwork.worker.trace import CallRecorder
from ppwork.worker.watchdog import SITS, Watchdog, is_waiting, own_call, stacks_of_threads, without_ours

BOUNDS = Bounds(timeout_s=10.0, stall_s=4.0, freeze_s=2.0)
IDS = Ids(7, 5, 1)
TICK_S = 0.25
HOUR = timedelta(hours=1)
UNRECORDED = SimpleNamespace(_inside=SimpleNamespace(call=True), _handles={})
"""What the recording of calls knows of those that torch makes inside another one."""


def doing(step: str, since_s: float = 0.0) -> Activity:
    return Activity(step, IDS.where(), int(since_s * 1e9))


class Clock:
    """Feeds samples a quarter of a second apart."""

    def __init__(self):
        self.progress, self.now_s = Progress(BOUNDS), 0.0
        self.progress.see(Sample(0.0, None))

    def run(self, seconds: float, current: Activity | None, **seen) -> StuckError | None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            if (error := self.progress.see(Sample(self.now_s, current, **seen))) is not None:
                return error
        return None

    @property
    def state(self) -> PulseState:
        return self.progress.state


@pytest.fixture
def clock():
    return Clock()


# The main thread


def test_a_rank_is_starting_until_something_was_seen():
    assert Progress(BOUNDS).state is PulseState.STARTING


def test_a_step_of_the_stage_is_busy_then_slow_then_stuck(clock):
    step = doing("generate", since_s=0.0)
    assert clock.run(2.0, step) is None
    assert clock.state is PulseState.BUSY
    assert clock.run(2.0, step) is None
    assert clock.state is PulseState.SLOW
    error = clock.run(TICK_S, step)
    assert clock.state is PulseState.STUCK
    assert "The stage's generate did not return within 4 s" in error.what
    assert error.where == IDS.where()
    assert "stall_s" in error.check_first


def test_of_a_step_of_several_methods_the_one_that_it_is_in_is_named():
    """The mesh's step is called ``generate`` in records, and its stage has no method of that name."""
    progress.enter("generate", IDS.where())
    try:
        progress.entering("recompute")
        method, activity = progress.method_of(threading.get_ident()), progress.current()
    finally:
        progress.leave(None)
    judge = Progress(BOUNDS)
    samples = (Sample(activity.since_ns / 1e9 + tick * TICK_S, activity, method=method) for tick in range(99))
    error = next(filter(None, map(judge.see, samples)))
    assert error.what == "The stage's recompute did not return within 4 s."


def test_a_step_that_began_between_two_beats_is_charged_from_its_beginning(clock):
    clock.run(1.0, None)
    clock.run(TICK_S, doing("encode", since_s=1.1))
    assert clock.progress.own_s == pytest.approx(0.15)


def test_many_steps_each_within_the_bound_are_never_slow(clock):
    for k in range(20):
        assert clock.run(1.5, doing("generate", since_s=1.5 * k)) is None
        assert clock.state is PulseState.BUSY


def test_the_time_that_a_step_waits_for_peers_is_not_its_own(clock):
    """Else a rank whose sum waits for one that loops would be blamed with it."""
    step = doing("generate")
    assert clock.run(3.0, step) is None
    assert clock.run(9.0, step, waiting=True) is None
    assert clock.state is PulseState.IDLE
    assert clock.run(1.0, step) is None
    assert clock.run(TICK_S, step) is not None


def test_idle_ends_only_where_a_wait_ignores_its_own_bound(clock):
    assert BOUNDS.idle_s == 20.0
    assert clock.run(20.0, None) is None
    assert clock.state is PulseState.IDLE
    error = clock.run(0.5, None)
    assert "Nothing moved for 20 s" in error.what
    assert error.where == {}


def test_a_backend_call_inside_a_step_that_never_ends_is_told_with_the_chunk(clock):
    error = clock.run(30.0, doing("generate"), waiting=True)
    assert "Nothing moved" in error.what
    assert error.where == IDS.where()


def test_entries_of_the_links_are_progress_of_an_idle_rank_and_not_of_a_busy_one(clock):
    for entries in range(10):  # a source that pauses, and its NOOPs
        assert clock.run(15.0, None, entries=entries) is None
    step = doing("generate", since_s=clock.now_s)
    assert any(clock.run(1.0, step, entries=entries) is not None for entries in range(10, 20))


def test_a_rank_alone_in_a_new_group_ends_after_a_peer_that_is_stuck_and_before_those_that_wait_for_it(clock):
    in_group = {"waiting": True, "making": True}
    assert clock.run(BOUNDS.stall_s + 1.0, doing("generate"), **in_group) is None
    stuck = clock.run(1.0, doing("generate"), **in_group)
    assert "No other rank came within 5 s to make a process group" in stuck.what
    assert stuck.where == IDS.where()
    assert clock.now_s < BOUNDS.timeout_s


def test_importing_torch_and_joining_have_the_long_bound(clock):
    assert BOUNDS.start_s == 60.0
    importing = doing("import torch")
    assert clock.run(60.0, importing) is None
    assert clock.state is PulseState.STARTING
    assert "'import torch' did not end within 60 s" in clock.run(1.0, importing).what
    # A join waits for peers all the time; its own waits are bounded one by one.
    joining = doing("join", since_s=clock.now_s)
    assert clock.run(60.0, joining, waiting=True) is None
    assert "'join'" in clock.run(1.0, joining, waiting=True).what


def test_time_in_which_the_process_did_not_run_is_not_counted(clock):
    """SIGSTOP and SIGCONT, or a paused container."""
    step = doing("generate")
    assert clock.run(3.0, step) is None
    clock.now_s += 100.0
    assert clock.run(1.0, step) is None
    assert clock.run(1.0, None) is None
    clock.now_s += 100.0
    assert clock.run(19.0, None) is None


# The peers

ME = psutil.Process()


@dataclasses.dataclass(frozen=True)
class Peer(PulseView):
    """A pulse whose process is in a state of our choice."""

    status: str | None = psutil.STATUS_SLEEPING

    def process(self):
        if self.status is None:
            return None
        status, gone = self.status, self.status == "gone while asked"

        class Process:
            def status(self):
                if gone:
                    raise psutil.NoSuchProcess(1)
                return status

        return Process()


def peer(**changes) -> Peer:
    since_ns = int(97.0 * 1e9)
    fields = {"rank": 2, "pid": 1234, "started": 1, "space": pid_space(), "beat": 1}
    state = {"state": PulseState.BUSY, "doing": "generate", "ids": IDS.where(), "since_ns": since_ns}
    return Peer(**{**fields, **state, **changes})


class Peers:
    """Looks four times a second at pulses that stay as they are, unless told otherwise."""

    def __init__(self):
        self.pulses: dict[int, Peer | None] = {}
        self.watch = PeerWatch(1, Topology(2), BOUNDS, self.pulses.get)
        self.now_s = 100.0

    def look(self, seconds: float) -> PeerFrozenError | None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            if (error := self.watch.look(self.now_s)) is not None:
                return error
        return None


@pytest.fixture
def peers():
    return Peers()


def test_a_stopped_peer_is_named_once_the_bound_has_passed(peers):
    peers.pulses[2] = peer(status=psutil.STATUS_STOPPED)
    assert peers.look(2.0) is None
    error = peers.look(0.5)
    assert "Rank 2 (follower), process 1234, was stopped (SIGSTOP) and did not go on for 2.0 s" in error.what
    assert "it was last in generate, entered 5.2 s ago" in error.what
    assert error.where == {"rank": 1, "peer": 2, **IDS.where()}
    assert error.check_first.startswith("who stopped process 1234: ")


def test_of_a_stopped_peer_that_beat_outside_a_step_no_place_is_guessed(peers):
    peers.pulses[0] = peer(rank=0, status=psutil.STATUS_STOPPED, state=PulseState.IDLE, doing="", ids={})
    error = peers.look(5.0)
    assert "Rank 0 (stage0)" in error.what
    assert "did not go on for" in error.what
    assert "it was last in" not in error.what  # it may have begun a step since
    assert error.where == {"rank": 1, "peer": 0}


def test_a_peer_whose_interpreter_does_not_run_is_named_later_as_it_may_only_be_slow(peers):
    peers.pulses[2] = peer()
    assert peers.look(7.0) is None  # stall_s, and a margin in which it can tell of itself
    error = peers.look(0.5)
    assert "its interpreter did not run for 7.0 s" in error.what
    assert "GIL" in error.check_first


def test_a_peer_that_imports_torch_has_the_long_bound(peers):
    peers.pulses[2] = peer(state=PulseState.STARTING)
    assert peers.look(63.0) is None
    assert peers.look(0.5) is not None


def test_a_peer_that_beats_is_never_named(peers):
    for beat in range(100):
        peers.pulses[2] = peer(beat=beat, status=psutil.STATUS_STOPPED)
        assert peers.look(1.5) is None


@pytest.mark.parametrize(
    "pulse",
    [
        None,
        peer(state=PulseState.LEFT),
        peer(status=None),
        peer(status="gone while asked"),
        peer(space="elsewhere", status=psutil.STATUS_STOPPED),
    ],
    ids=["never came", "left", "process gone", "goes while we look", "another host"],
)
def test_who_is_not_there_is_not_judged(peers, pulse):
    peers.pulses[2] = pulse
    assert peers.look(100.0) is None


def test_after_a_pause_of_our_own_all_is_observed_anew(peers):
    peers.pulses[2] = peer(status=psutil.STATUS_STOPPED)
    assert peers.look(1.75) is None
    peers.watch.start_anew()
    assert peers.look(2.0) is None
    assert peers.look(0.5) is not None


def test_a_rank_does_not_judge_itself(peers):
    peers.pulses[1] = peer(rank=1, status=psutil.STATUS_STOPPED)
    assert peers.look(10.0) is None


# The thread


class Left(Exception):
    """In place of the end of the process."""


@pytest.fixture
def dog(tmp_path):
    def leave(code: int):
        raise Left(code)

    plan = Plan(mesh_size=2, chunks=1, timeout_s=10.0, stall_s=4.0, freeze_s=2.0)
    return Watchdog(plan, 2, tmp_path, Recorder(None), leave=leave)


@pytest.fixture(autouse=True)
def nothing_is_going_on():
    yield
    progress.leave(None)


def ticks(dog: Watchdog, seconds: float, start_s: float) -> None:
    for k in range(round(seconds / TICK_S)):
        dog.tick(start_s + k * TICK_S)


def test_a_stuck_rank_writes_its_record_with_the_users_line_and_its_stacks(dog, tmp_path, capfd):
    progress.enter("generate", IDS.where())
    start_s = progress.current().since_ns / 1e9
    with pytest.raises(Left, match=str(STUCK)):
        ticks(dog, 10.0, start_s)
    (record,) = read_records(tmp_path, 3)
    assert (record.error_type, record.symptom) == ("StuckError", False)
    assert record.where == {"rank": 2, "role": "follower", **IDS.where()}
    assert record.source.startswith(f"{__file__}:")
    assert "in ticks" in record.traceback
    view = read_pulse(tmp_path, 2)
    assert (view.state, view.exit_code, view.doing, dict(view.ids)) == (
        PulseState.LEFT,
        STUCK,
        "generate",
        IDS.where(),
    )
    assert "test_watchdog.py" in capfd.readouterr().err


def test_a_stage_that_replaces_standard_error_is_watched_like_any_other(dog, tmp_path, monkeypatch, capfd):
    """Loggers that copy to a file do so; what they put there may have no descriptor."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with dog:
        first = read_pulse(tmp_path, 2).beat
        wait_for(lambda: read_pulse(tmp_path, 2).beat > first)
    progress.enter("generate", IDS.where())
    with pytest.raises(Left, match=str(STUCK)):
        ticks(dog, 10.0, progress.current().since_ns / 1e9)
    (record,) = read_records(tmp_path, 3)
    assert record.error_type == "StuckError"
    assert "test_watchdog.py" in capfd.readouterr().err


def test_a_rank_whose_backstop_cannot_be_wound_up_beats_all_the_same(dog, tmp_path, monkeypatch):
    """It takes a thread of its own, and of those there may be no more."""

    def no_thread(*_, **__):
        raise RuntimeError("unable to start watchdog thread")

    with dog:
        monkeypatch.setattr(watchdog.faulthandler, "dump_traceback_later", no_thread)
        first = read_pulse(tmp_path, 2).beat
        wait_for(lambda: read_pulse(tmp_path, 2).beat > first + 1)


def test_a_slow_step_is_warned_of_once_with_a_stack(dog, caplog):
    with caplog.at_level(logging.WARNING, "ppwork"):
        for _ in range(2):
            progress.enter("generate", IDS.where())
            ticks(dog, 3.5, progress.current().since_ns / 1e9)
    (warning,) = caplog.records
    assert "slow: generate took 2.2 s of 4 s" in warning.getMessage()
    assert "in ticks" in warning.getMessage()


def test_a_long_pause_of_the_source_is_warned_of_once_and_stands_in_the_pulse(
    dog, tmp_path, caplog, monkeypatch
):
    """A thread that fed it may have died, and then nothing raises."""
    now_ns = 10**12
    monkeypatch.setattr(progress.time, "monotonic_ns", lambda: now_ns)
    with caplog.at_level(logging.WARNING, "ppwork"):
        for _ in range(2):
            for second in range(6):
                progress.source_has(chunk=False)
                dog.tick(now_ns / 1e9)
                assert read_pulse(tmp_path, 2).paused_s == second
                now_ns += 10**9
            progress.source_has(chunk=True)
            dog.tick(now_ns / 1e9)
            assert read_pulse(tmp_path, 2).paused_s == 0.0
    assert [warning.getMessage().partition(":")[2] for warning in caplog.records] == [
        " nothing to encode for 5 s: encode says NOT_YET; is what feeds it still there?"
    ] * 2


def test_a_source_that_paused_and_then_hangs_is_not_said_to_say_not_yet(dog, tmp_path, caplog, monkeypatch):
    """It says nothing: its ``encode`` does not return, and the watchdog ends the rank for that."""
    now_ns = 10**12
    monkeypatch.setattr(progress.time, "monotonic_ns", lambda: now_ns)
    with caplog.at_level(logging.WARNING, "ppwork"):
        for _ in range(2):
            progress.source_has(chunk=False)
            now_ns += 3 * 10**9
        for _ in range(3):
            dog.tick(now_ns / 1e9)
            assert read_pulse(tmp_path, 2).paused_s == 3.0
            now_ns += 10**9
    assert "NOT_YET" not in caplog.text
    progress.source_has(chunk=True)


def test_the_pulse_says_what_the_main_thread_is_in(dog, tmp_path):
    outer = progress.enter("generate", IDS.where())
    dog.tick(0.0)
    view = read_pulse(tmp_path, 2)
    assert (view.state, view.doing, dict(view.ids)) == (PulseState.BUSY, "generate", IDS.where())
    assert view.since_ns == progress.current().since_ns
    progress.leave(outer)
    dog.tick(0.25)
    view = read_pulse(tmp_path, 2)
    assert (view.state, view.doing) == (PulseState.IDLE, "")


def stopped_peer(monkeypatch) -> None:
    monkeypatch.setattr(PulseView, "process", lambda view: peer(status=psutil.STATUS_STOPPED).process())


def test_a_rank_that_sees_a_frozen_peer_leaves_as_secondary(dog, tmp_path, monkeypatch):
    Watchdog(Plan(mesh_size=2), 0, tmp_path, Recorder(None))  # rank 0 beats once and never again
    stopped_peer(monkeypatch)
    with pytest.raises(Left, match=str(SECONDARY)):
        ticks(dog, 10.0, 50.0)
    (record,) = read_records(tmp_path, 3)
    assert (record.error_type, record.symptom) == ("PeerFrozenError", True)
    assert record.where == {"rank": 2, "role": "follower", "peer": 0}
    assert read_pulse(tmp_path, 2).exit_code == SECONDARY


def test_a_watchdog_that_did_not_run_itself_judges_nobody(dog, tmp_path, monkeypatch):
    Watchdog(Plan(mesh_size=2), 0, tmp_path, Recorder(None))
    stopped_peer(monkeypatch)
    for start_s in (50.0, 100.0, 150.0):
        ticks(dog, 2.0, start_s)
    assert read_records(tmp_path, 3) == []


def test_the_first_error_of_a_rank_stays_its_record(dog, tmp_path):
    dog._words.write(ValueError("first"))
    progress.enter("generate", IDS.where())
    with pytest.raises(Left, match="1"):
        ticks(dog, 10.0, progress.current().since_ns / 1e9)
    assert [record.error_type for record in read_records(tmp_path, 3)] == ["ValueError"]


def test_the_thread_beats_while_the_body_runs_and_its_timer_is_off_after_it(dog, tmp_path, monkeypatch):
    wound = []
    timer = watchdog.faulthandler
    monkeypatch.setattr(timer, "dump_traceback_later", lambda bound_s, **_: wound.append(bound_s))
    monkeypatch.setattr(timer, "cancel_dump_traceback_later", lambda: wound.append(None))
    seen = threading.Event()
    monkeypatch.setattr(dog, "tick", lambda now_s: seen.set() if len(wound) > 3 else 1 / 0)
    with dog:
        dog.joined(on_cuda=True)
        assert dog._on_cuda
        assert seen.wait(20.0)  # also after ticks that raised
    assert wound[0] == BOUNDS.start_s + watchdog.BLIND_MARGIN_S
    assert set(wound[1:-1]) == {BOUNDS.stall_s + watchdog.BLIND_MARGIN_S}
    assert wound[-1] is None
    dog._wind_up()
    assert wound[-1] is None
    assert read_pulse(tmp_path, 2).state is PulseState.IDLE


def frames_in(path: str):
    scope = {}
    program = "import sys\ndef here():\n    return sys._getframe()"
    exec(compile(program, path, "exec"), scope)  # noqa: S102  the one way to a frame of another file
    return scope["here"]()


def test_only_a_thread_inside_torch_distributed_waits_for_a_peer():
    assert is_waiting(frames_in("/lib/site-packages/torch/distributed/distributed_c10d.py"))
    assert not is_waiting(frames_in("/lib/site-packages/torch/nn/functional.py"))
    assert not is_waiting(frames_in("/srv/me/stage.py"))
    assert not is_waiting(None)


def test_code_without_a_line_of_the_users_has_no_source():
    own = frames_in(str(Path(watchdog.__file__).with_name("x.py")))
    assert watchdog._source_of(own).startswith(f"{__file__}:")  # the user's nearest, further out
    assert watchdog._source_of(None) == ""
    assert watchdog._stack_of(None) == ""


# A rank with a GPU


class Waiting:
    """A rank's main thread in one call of C, as ``.item()`` is."""

    def __init__(self, dog, *, on_cuda=False):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._generate)
        self.thread.start()
        wait_for(self.waits)
        dog._on_cuda = on_cuda  # `joined` would wind up the timer that ends this process
        dog._main = self.thread.ident
        self.dog, self.now_s = dog, progress.current(self.thread.ident).since_ns / 1e9

    def waits(self):
        return self.over._cond._waiters

    def wait(self):
        self.over.wait(60.0)

    def _generate(self):
        outer = progress.enter("generate", IDS.where())
        self.wait()
        progress.leave(outer)  # another thread may get this one's number

    def watched(self, seconds):
        ticks(self.dog, seconds, self.now_s)
        self.now_s += seconds

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.over.set()
        self.thread.join()


def test_a_stage_that_waits_for_its_device_is_no_cause_before_nccls_own_bound(dog, tmp_path):
    """Its sum waits on the device for a peer; the peer's own watchdog, or NCCL's, says who it was."""
    with Waiting(dog, on_cuda=True) as main:
        main.watched(BOUNDS.timeout_s + 5.0)
        assert read_records(tmp_path, 3) == []
        assert read_pulse(tmp_path, 2).state is PulseState.IDLE
        with pytest.raises(Left, match=str(STUCK)):
            main.watched(BOUNDS.idle_s)
    (record,) = read_records(tmp_path, 3)
    assert "each wait is bounded by 10 s" in record.what


def test_the_same_stage_without_a_gpu_is_stuck(dog, tmp_path):
    with Waiting(dog, on_cuda=False) as main, pytest.raises(Left, match=str(STUCK)):
        main.watched(BOUNDS.stall_s + 1.0)
    (record,) = read_records(tmp_path, 3)
    assert "generate did not return within 4 s" in record.what


class WaitingForSum(Waiting):
    """One in the ``wait`` of a sum that it has begun, to which its peer comes at the end."""

    def __init__(self, dog, *, traced):
        install()
        store = dist.HashStore()
        with ThreadPoolExecutor(2) as ranks:  # each comes up when the other one does
            self.groups = [*ranks.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, HOUR), (0, 1))]
        self.work = self.groups[0].allreduce([torch.ones(1)])
        self.recorded = CallRecorder._wait(UNRECORDED, dist.Work.wait) if traced else None
        super().__init__(dog)

    def waits(self):
        return is_in_one(sys._current_frames().get(self.thread.ident))

    def wait(self):
        self.recorded(self.work) if self.recorded else self.work.wait()

    def __exit__(self, *exc_info):
        self.groups[1].allreduce([torch.ones(1)]).wait()
        self.thread.join()


@pytest.mark.parametrize("traced", [False, True], ids=["", "recorded"])
def test_a_stage_that_waits_for_a_sum_that_it_began_is_no_cause_before_the_groups_own_bound(
    dog, tmp_path, traced
):
    """``work.wait()`` is a call of C: no frame of torch shows that it waits for a peer, which may loop."""
    with WaitingForSum(dog, traced=traced) as main:
        main.watched(BOUNDS.timeout_s + 5.0)
        assert read_records(tmp_path, 3) == []
        assert read_pulse(tmp_path, 2).state is PulseState.IDLE


def test_the_line_of_a_collective_that_waits_is_still_the_users(monkeypatch):
    """Ours stands inside torch's function there."""
    install()
    seen = []
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, HOUR)
    monkeypatch.setattr(dist.Work, "wait", framed(lambda *_: seen.append(sys._getframe())))
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_group", lambda: group)
    monkeypatch.setattr(dist.distributed_c10d, "_rank_not_in_group", lambda _: False)
    dist.all_reduce(torch.ones(1))
    frame = seen[0].f_back  # of a lambda that is a call of C elsewhere
    assert is_in_one(frame)
    assert is_waiting(without_ours(frame))
    assert own_call(without_ours(frame)).startswith("all_reduce (test_watchdog.py:")


def test_a_loop_of_python_never_counts_as_a_wait_for_the_device(dog):
    def stage():
        while True:
            yield "one"
            yield "two"

    dog._on_cuda = True
    running = stage()
    for _ in range(10 * SITS):
        next(running)
        assert not dog._sits(running.gi_frame)
    for _ in range(SITS):
        found = dog._sits(running.gi_frame)
    assert found


# Activity and bounds


def test_a_step_inside_a_step_gives_the_outer_one_back():
    outer = progress.enter("generate", IDS.where())
    with progress.during("inner"):
        assert progress.current().step == "inner"
    assert (progress.current().step, progress.current().which) == ("generate", IDS.where())
    progress.leave(outer)
    assert progress.current() is None


def test_each_thread_is_in_a_step_of_its_own_and_a_watchdog_sees_that_of_its_maker(dog, tmp_path):
    """Two ranks can be threads of one process: a step of one must not end, or hide, that of the other."""
    begun, go_on = threading.Event(), threading.Event()

    def other_rank():
        with progress.during("encode"):
            begun.set()
            go_on.wait(10.0)

    outer = progress.enter("generate", IDS.where())
    thread = threading.Thread(target=other_rank)
    thread.start()
    assert begun.wait(10.0)
    dog.tick(progress.current().since_ns / 1e9)
    go_on.set()
    thread.join(10.0)
    assert read_pulse(tmp_path, 2).doing == progress.current().step == "generate"
    assert progress.current(thread.ident) is None
    progress.leave(outer)


def test_bounds_follow_the_plan_and_the_environment(monkeypatch):
    monkeypatch.delenv("SCOPE_DIST_TIMEOUT_S", raising=False)
    assert Bounds.of(Plan(timeout_s=30.0)) == Bounds(30.0, 24.0, 5.0)
    assert Bounds.of(Plan(timeout_s=30.0, stall_s=3.0, freeze_s=1.0)) == Bounds(30.0, 3.0, 1.0)
    assert Bounds(100.0, 1.0, 1.0).start_s == 155.0
    monkeypatch.setenv("SCOPE_DIST_TIMEOUT_S", "5")
    assert Bounds.of(Plan(timeout_s=30.0)) == Bounds(5.0, 4.0, 5.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e9", "nan"])
def test_a_timeout_of_the_environment_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("SCOPE_DIST_TIMEOUT_S", text)
    with pytest.raises(PlanError, match="SCOPE_DIST_TIMEOUT_S was"):
        bring_up_timeout_s(Plan())


def test_threads_that_are_in_our_code_alone_are_not_shown():
    """Behind one line of the user's stood thirty of ours, on the console of his own torchrun."""
    ended, queue = threading.Event(), WatchedQueue(1)
    ours = threading.Thread(target=queue.get, args=(60.0,), daemon=True)
    users = threading.Thread(target=wait_for, args=(ended.is_set,), daemon=True)
    ours.start(), users.start()
    wait_for(lambda: "lanes.py" in str(traceback.format_stack(sys._current_frames()[ours.ident])))
    shown = stacks_of_threads(threading.get_ident())
    ended.set(), queue.put(None)
    for thread in (ours, users):
        thread.join(END_S)
    assert re.search(r"^Thread 0x[0-9a-f]+ \(most recent call first\):\n.* in wait_for$", shown, re.MULTILINE)
    assert " in test_threads_that_are_in_our_code_alone_are_not_shown\n" in shown
    assert "lanes.py" not in shown
    assert re.search(r"\nThreads of ppwork that are not shown: [1-9]\d*\n$", shown)
