"""The session: the whole table, the id rules, and two ends that agree after anything legal."""

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from ppwork.errors import LocalProtocolError, PPWorkError, RemoteProtocolError, StageError
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult, Reason
from ppwork.protocol.session import COMMITMENT_POINTS, InFlight, Session
from ppwork.protocol.states import TRANSITIONS, Event, State
from ppwork.protocol.topology import Role

PLAN = ChunkPlan.of(2)
REASON = Reason("StageError", "It broke.", {"rank": 1}, "the log")
PAIRS = [(state, event) for state in State for event in Event]
LEGAL = {(state, event): after for state, row in TRANSITIONS.items() for event, after in row.items()}
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


def in_state(state, depth=2):
    session = Session(0, Role.STAGE0, depth)
    session.state = state
    return session


def ready(depth=2, role=Role.STAGE0):
    session = Session(0 if role is Role.STAGE0 else 1, role, depth)
    session.joined()
    return session


def infer(session, *, cut=False, **changes):
    ids = session.next_ids(PPAction.INFER, hard_cut=cut)
    ids = replace(ids, **{k: v for k, v in changes.items() if k != "plan"})
    plan = changes.get("plan", ChunkPlan.of(2, reset_cache=cut))
    return PPEnvelope(PPAction.INFER, ids, plan)


def other(session, action):
    return PPEnvelope(action, session.next_ids(action), reason=REASON if action is PPAction.ERROR else None)


def send(session, envelope, *, flush=False):
    session.may_send(envelope)
    session.sent(envelope, flush=flush)
    return envelope


def result_for(envelope, calls=2, **changes):
    return PPResult(PPAction.INFER, replace(envelope.ids, **changes), calls)


# The table


@pytest.mark.parametrize("pair", LEGAL, ids="-".join)
def test_legal_event_ends_in_the_state_of_the_table(pair):
    """R9 and the table of states."""
    state, event = pair
    for remote in (False, True):
        session = in_state(state)
        session.move(event, remote=remote)
        assert session.state is LEGAL[pair]


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("pair", ILLEGAL, ids="-".join)
def test_illegal_event_raises_and_leaves_the_session_in_error(pair, remote):
    """R9: CLOSED stays CLOSED, all else ends in ERROR."""
    state, event = pair
    session = in_state(state)
    with pytest.raises(RemoteProtocolError if remote else LocalProtocolError) as caught:
        session.move(event, remote=remote)
    assert session.state is (State.CLOSED if state is State.CLOSED else State.ERROR)
    assert f"event {event} came in state {state}" in caught.value.what
    assert all(legal in caught.value.what for legal in TRANSITIONS[state])
    assert caught.value.where["rank"] == 0
    assert caught.value.where["role"] == "stage0"


def test_table_covers_every_state_and_leads_only_to_states():
    assert set(TRANSITIONS) == set(State)
    assert len(LEGAL) + len(ILLEGAL) == len(State) * len(Event)
    assert set(LEGAL.values()) <= set(State)


def test_error_and_closed_are_never_left():
    """R9."""
    assert set(TRANSITIONS[State.ERROR].values()) == {State.ERROR}
    assert TRANSITIONS[State.CLOSED] == {}
    assert len(set(COMMITMENT_POINTS)) == 3


# Sending: preflight


def test_next_ids_count_actions_infers_and_cuts_and_change_nothing():
    """R2."""
    session = ready()
    assert session.next_ids(PPAction.NOOP) == Ids(0, -1, 0)
    assert session.next_ids(PPAction.NOOP, hard_cut=True) == Ids(0, -1, 0)
    assert session.next_ids(PPAction.INFER) == Ids(0, 0, 0)
    assert session.next_ids(PPAction.INFER, hard_cut=True) == Ids(0, 0, 1)
    assert session.last_ids == Ids(-1, -1, 0)


def test_refused_envelope_changes_nothing():
    """R1."""
    session = ready(depth=1)
    send(session, infer(session))
    before = (session.state, session.last_ids, list(session.in_flight))
    with pytest.raises(
        LocalProtocolError, match="Chunk 1 was not sent: chunk 0 is in flight, and the plan's depth is 1"
    ) as caught:
        session.may_send(infer(session))
    assert "a `receive_result` before this `send`" in caught.value.check_first
    assert (session.state, session.last_ids, list(session.in_flight)) == before


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_bounds_the_chunks_in_flight(depth):
    session = ready(depth)
    first, *_ = [send(session, infer(session)) for _ in range(depth)]
    with pytest.raises(LocalProtocolError, match=f"depth is {depth}"):
        session.may_send(infer(session))
    session.may_send(other(session, PPAction.NOOP))
    assert session.result(result_for(first))
    session.may_send(infer(session))


@pytest.mark.parametrize("action", PPAction)
@pytest.mark.parametrize("state", State)
def test_envelope_may_leave_exactly_where_the_table_says(state, action):
    """R9: in ERROR nothing but the notice."""
    session = in_state(state)
    envelope = infer(session) if action is PPAction.INFER else other(session, action)
    event = {
        PPAction.NOOP: Event.NOOP,
        PPAction.INFER: Event.INFER,
        PPAction.SHUTDOWN: Event.SHUTDOWN,
        PPAction.ERROR: Event.NOTICE,
    }[action]
    if (state, event) in LEGAL:
        session.may_send(envelope)
        session.sent(envelope)
        assert session.state is LEGAL[state, event]
    else:
        call = dict(zip(PPAction, ("heartbeat", "send", "shutdown", "fail"), strict=True))[action]
        since = {State.STARTING: "too early", State.ERROR: "after an error that had ended the session"}
        said = f"`{call}` was called {since.get(state, r'after `shutdown..`')}."
        said = "in flight" if state is State.BUSY else said
        with pytest.raises(LocalProtocolError, match=said):
            session.may_send(envelope)
        assert session.state is state


def test_nobody_acknowledges_a_shutdown_that_has_not_come():
    session = ready()
    with pytest.raises(LocalProtocolError, match="`acknowledge` was called in state ready; SHUTDOWN had not"):
        session.may_acknowledge()
    assert session.state is State.READY
    in_state(State.DRAINING).may_acknowledge()
    with pytest.raises(LocalProtocolError, match="in state closed; it had been acknowledged"):
        in_state(State.CLOSED).may_acknowledge()


def test_shutdown_may_not_leave_before_the_drain():
    """R10."""
    session = ready()
    envelope = send(session, infer(session))
    with pytest.raises(LocalProtocolError, match=r"The stream cannot end: chunk 0 is in flight\.") as caught:
        session.may_send(other(session, PPAction.SHUTDOWN))
    assert caught.value.check_first == "a `receive_result` for each of them before `shutdown()`"
    session.result(result_for(envelope))
    send(session, other(session, PPAction.SHUTDOWN))
    assert session.state is State.DRAINING
    session.acknowledged()
    assert session.state is State.CLOSED


# Ids, at both ends


BAD_IDS = {
    "skipped call_id": ({"call_id": 3}, "call_id 3 followed 1"),
    "repeated call_id": ({"call_id": 1}, "call_id 1 followed 1"),
    "falling call_id": ({"call_id": 0}, "call_id 0 followed 1"),
    "skipped chunk": ({"chunk_index": 3}, "chunk_index 3 of a INFER followed 1"),
    "repeated chunk": ({"chunk_index": 1}, "chunk_index 1 of a INFER followed 1"),
    "falling epoch": ({"cache_epoch": 0}, "cache_epoch fell from 1 to 0"),
    "epoch without reset": ({"cache_epoch": 2}, "cache_epoch went from 1 to 2"),
    "reset without epoch": ({"plan": ChunkPlan.of(2, reset_cache=True)}, "cache_epoch went from 1 to 1"),
    "no plan": ({"plan": None}, "plan of the chunk was None"),
}


def after_two_chunks(role=Role.LEADER):
    session = ready(depth=4, role=role)
    for cut in (True, False):
        session.received(infer(session, cut=cut))
    assert session.last_ids == Ids(1, 1, 1)
    return session


@pytest.mark.parametrize("name", BAD_IDS)
def test_receiver_refuses_ids_that_do_not_follow(name):
    """R2, R3, F16."""
    changes, said = BAD_IDS[name]
    session = after_two_chunks()
    with pytest.raises(RemoteProtocolError) as caught:
        session.received(infer(session, **changes))
    assert said in caught.value.what
    assert session.state is State.ERROR
    assert session.last_ids == Ids(1, 1, 1)
    assert len(session.in_flight) == 2
    assert caught.value.where["role"] == "leader"
    assert "call_id" in caught.value.where


@pytest.mark.parametrize("name", BAD_IDS)
def test_sender_refuses_ids_that_do_not_follow(name):
    """R1, R2: the same rule, before a byte has left."""
    changes, said = BAD_IDS[name]
    session = after_two_chunks()
    with pytest.raises(LocalProtocolError) as caught:
        session.may_send(infer(session, **changes))
    assert said in caught.value.what
    assert session.state is State.BUSY


@pytest.mark.parametrize("action", [PPAction.NOOP, PPAction.SHUTDOWN])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"chunk_index": 0}, "must grow by exactly 1 over INFER and never else"),
        ({"cache_epoch": 1}, "raised cache_epoch; only an INFER may"),
        ({"call_id": 5}, "call_id 5 followed -1"),
    ],
    ids=["chunk", "epoch", "call"],
)
def test_receiver_refuses_an_action_that_counts_as_a_chunk(action, changes, said):
    """R2."""
    session = ready(role=Role.LEADER)
    envelope = other(session, action)
    with pytest.raises(RemoteProtocolError) as caught:
        session.received(replace(envelope, ids=replace(envelope.ids, **changes)))
    assert said in caught.value.what


def test_receiver_refuses_more_in_flight_than_the_plan_allows():
    session = ready(depth=1, role=Role.LEADER)
    session.received(infer(session))
    with pytest.raises(RemoteProtocolError, match="More than the plan's 1 chunks"):
        session.received(infer(session))
    assert session.state is State.ERROR


@pytest.mark.parametrize("action", [PPAction.NOOP, PPAction.INFER, PPAction.SHUTDOWN])
@pytest.mark.parametrize("skip", [0, 3], ids=["right id", "wrong id"])
def test_closed_session_refuses_any_envelope_and_stays_closed(action, skip):
    """R9."""
    session = in_state(State.CLOSED)
    envelope = infer(session) if action is PPAction.INFER else other(session, action)
    envelope = replace(envelope, ids=replace(envelope.ids, call_id=envelope.ids.call_id + skip))
    with pytest.raises(RemoteProtocolError):
        session.received(envelope)
    assert session.state is State.CLOSED


def test_notice_is_received_whatever_its_ids_and_ends_the_session():
    """R9: terminal, it must get through whatever the counters say."""
    session = after_two_chunks()
    session.received(PPEnvelope(PPAction.ERROR, Ids(77, 3, 0), reason=REASON))
    assert session.state is State.ERROR
    assert session.last_ids == Ids(1, 1, 1)
    session.received(PPEnvelope(PPAction.ERROR, Ids(-1, -1, 0), reason=REASON))
    assert session.state is State.ERROR


# Results


def test_result_of_the_oldest_chunk_is_good_and_frees_it():
    session = ready()
    first, second = (send(session, infer(session)) for _ in range(2))
    assert session.result(result_for(first)) is True
    assert session.state is State.BUSY
    assert session.in_flight == deque([InFlight(second.ids, PLAN)])
    assert session.result(result_for(second)) is True
    assert session.state is State.READY


@pytest.mark.parametrize("changes", [{"call_id": 1}, {"chunk_index": 1}, {"cache_epoch": 1}], ids=repr)
def test_result_with_other_ids_than_the_oldest_is_refused(changes):
    """R2."""
    session = ready()
    first, _ = (send(session, infer(session)) for _ in range(2))
    with pytest.raises(RemoteProtocolError, match="the oldest in flight was") as caught:
        session.result(result_for(first, **changes))
    assert session.state is State.ERROR
    assert caught.value.where["peer"] == 1
    assert len(session.in_flight) == 2


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_result_with_another_call_count_than_the_plan_is_refused_on_rank_0(calls):
    """R4."""
    session = ready()
    envelope = send(session, infer(session))
    with pytest.raises(RemoteProtocolError, match=f"made {calls} generator calls; .* expected 2"):
        session.result(result_for(envelope, calls))
    assert session.state is State.ERROR


@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER])
@pytest.mark.parametrize("calls", [0, 1, 3])
def test_another_call_count_than_the_plan_is_refused_on_every_mesh_rank(role, calls):
    """R4."""
    session = ready(role=role)
    session.received(infer(session))
    with pytest.raises(
        LocalProtocolError, match=f"{calls} generator calls were made; .* expected 2"
    ) as caught:
        session.finished(calls)
    assert session.state is State.ERROR
    assert caught.value.where["role"] == role
    assert caught.value.where["chunk_index"] == 0


def test_finished_returns_the_oldest_chunk_with_its_plan():
    session = ready(role=Role.LEADER)
    first = infer(session)
    session.received(first)
    session.received(infer(session))
    assert session.finished(2) == InFlight(first.ids, PLAN)
    assert session.state is State.BUSY
    session.finished(2)
    assert session.state is State.READY


def test_result_that_nobody_waits_for_is_refused():
    session = ready()
    with pytest.raises(RemoteProtocolError, match="event result came in state ready"):
        session.result(PPResult(PPAction.INFER, Ids(0, 0, 0), 2))
    assert session.state is State.ERROR
    session = ready(role=Role.LEADER)
    with pytest.raises(LocalProtocolError, match="event result came in state ready"):
        session.finished(2)
    assert session.state is State.ERROR


def test_cut_leaves_what_is_in_flight_good():
    """R3: each result is checked against the epoch of its own envelope."""
    session = ready(depth=3)
    sent = [send(session, infer(session, cut=cut)) for cut in (False, True, False)]
    assert [envelope.ids.cache_epoch for envelope in sent] == [0, 1, 1]
    assert [session.result(result_for(envelope)) for envelope in sent] == [True, True, True]


def test_flush_makes_what_is_in_flight_stale_and_a_receive_is_never_skipped():
    """R3."""
    session = ready(depth=4)
    sent = [send(session, infer(session)) for _ in range(2)]
    sent.append(send(session, infer(session, cut=True), flush=True))
    sent.append(send(session, infer(session)))
    assert [session.result(result_for(envelope)) for envelope in sent] == [False, False, True, True]
    assert session.state is State.READY


# The end


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_after_failed_nothing_passes_but_the_notice(state):
    """R9."""
    session = in_state(state)
    session.in_flight.append(InFlight(Ids(0, 0, 0), PLAN))
    session.failed(ValueError("user code"), Ids(0, 0, 0))
    refused = [
        session.joined,
        lambda: session.may_send(infer(session)),
        lambda: session.may_send(other(session, PPAction.NOOP)),
        lambda: session.may_send(other(session, PPAction.SHUTDOWN)),
        lambda: session.sent(infer(session)),
        lambda: session.received(infer(session)),
        lambda: session.received(other(session, PPAction.SHUTDOWN)),
        lambda: session.finished(2),
        lambda: session.result(PPResult(PPAction.INFER, Ids(0, 0, 0), 2)),
        session.acknowledged,
    ]
    for act in refused:
        with pytest.raises((LocalProtocolError, RemoteProtocolError)):
            act()
        assert session.state is State.ERROR
    notice = other(session, PPAction.ERROR)
    session.may_send(notice)
    session.sent(notice)
    session.received(notice)
    session.failed(ValueError("again"), Ids(0, 0, 0))
    assert session.state is State.ERROR


def test_failed_keeps_a_closed_session_closed():
    session = in_state(State.CLOSED)
    session.failed(ValueError("late"), Ids(0, 0, 0))
    assert session.state is State.CLOSED


def test_failed_adds_rank_and_ids_to_an_error_of_ours():
    session = ready(role=Role.LEADER)
    early = StageError("It broke.")
    session.failed(early, session.last_ids)
    assert early.where == {"rank": 1, "role": "leader"}
    session = after_two_chunks()
    late = PPWorkError("It broke.", where={"call_id": 0})
    session.failed(late, session.last_ids)
    assert late.where == {"rank": 1, "role": "leader", "call_id": 0, "chunk_index": 1, "cache_epoch": 1}


def test_an_error_of_a_chunk_that_has_no_call_yet_gets_no_other_calls_ids():
    """Rank 0 encodes ahead: the last call is one of an earlier chunk."""
    session = after_two_chunks()
    error = StageError("It broke.", where={"chunk_index": 2})
    session.failed(error, session.last_ids)
    assert error.where == {"rank": session.rank, "role": str(session.role), "chunk_index": 2}


# Two ends on a fake link


class TwoEnds(RuleBasedStateMachine):
    """Rank 0 and the leader, wired through two deques; anything legal, in any order."""

    def __init__(self):
        super().__init__()
        self._start()

    def _start(self):
        self.depth = 3
        self.stage0 = ready(self.depth)
        self.mesh = ready(self.depth, Role.LEADER)
        self.down = deque()
        self.up = deque()
        self.expected_good = deque()
        self.chunks = self.calls = self.cuts = 0

    def _send(self, envelope, *, flush=False):
        send(self.stage0, envelope, flush=flush)
        self.down.append(envelope)
        self.calls += 1

    @precondition(lambda self: self.stage0.state in (State.READY, State.BUSY))
    @rule(
        kind=st.sampled_from(["plain", "plain", "cut", "flush"]), steps=st.integers(1, 4), redo=st.booleans()
    )
    def infer(self, kind, steps, redo):
        cut = kind != "plain"
        plan = ChunkPlan.of(steps, recompute=redo, reset_cache=cut)
        envelope = infer(self.stage0, cut=cut, plan=plan)
        if len(self.expected_good) == self.depth:
            with pytest.raises(LocalProtocolError):
                self.stage0.may_send(envelope)
            return
        self._send(envelope, flush=kind == "flush")
        if kind == "flush":
            self.expected_good = deque([False] * len(self.expected_good))
        self.expected_good.append(True)
        self.chunks += 1
        self.cuts += cut

    @precondition(lambda self: self.stage0.state in (State.READY, State.BUSY))
    @rule()
    def noop(self):
        self._send(other(self.stage0, PPAction.NOOP))

    @precondition(lambda self: self.stage0.state is State.READY)
    @rule()
    def shutdown(self):
        self._send(other(self.stage0, PPAction.SHUTDOWN))

    @precondition(lambda self: self.stage0.state is self.mesh.state is State.CLOSED)
    @rule()
    def refuse_more_and_start_afresh(self):
        for action in PPAction:
            with pytest.raises(LocalProtocolError):
                self.stage0.may_send(other(self.stage0, action))
        assert self.stage0.last_ids == self.mesh.last_ids
        self._start()

    @precondition(lambda self: self.down)
    @rule()
    def mesh_receives(self):
        envelope = self.down.popleft()
        self.mesh.received(envelope)
        assert self.mesh.last_ids == envelope.ids
        if envelope.action is PPAction.SHUTDOWN:
            self.mesh.acknowledged()
            self.up.append(PPResult(PPAction.SHUTDOWN, envelope.ids))

    @precondition(lambda self: self.mesh.in_flight)
    @rule()
    def mesh_computes(self):
        calls = self.mesh.in_flight[0].plan.expected_calls
        done = self.mesh.finished(calls)
        self.up.append(PPResult(PPAction.INFER, done.ids, calls))

    @precondition(lambda self: self.up)
    @rule()
    def stage0_receives(self):
        result = self.up.popleft()
        if result.action is PPAction.SHUTDOWN:
            self.stage0.acknowledged()
        else:
            assert self.stage0.result(result) is self.expected_good.popleft()

    @invariant()
    def counters_are_what_was_sent(self):
        """R2."""
        assert self.stage0.last_ids == Ids(self.calls - 1, self.chunks - 1, self.cuts)

    @invariant()
    def in_flight_is_bounded_and_the_mesh_is_never_ahead(self):
        assert len(self.stage0.in_flight) == len(self.expected_good) <= self.depth
        assert len(self.mesh.in_flight) <= len(self.stage0.in_flight)
        assert self.mesh.last_ids.call_id <= self.stage0.last_ids.call_id

    def teardown(self):
        while self.down or self.up or self.mesh.in_flight:
            if self.down:
                self.mesh_receives()
            if self.mesh.in_flight:
                self.mesh_computes()
            if self.up:
                self.stage0_receives()
        assert self.stage0.last_ids == self.mesh.last_ids
        assert self.stage0.state is self.mesh.state
        assert self.stage0.state in (State.READY, State.CLOSED)
        assert not self.stage0.in_flight


TestTwoEndsAgree = TwoEnds.TestCase
TestTwoEndsAgree.settings = settings(max_examples=40, stateful_step_count=40)
