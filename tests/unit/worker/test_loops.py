"""The loops of rank 0 against a link on paper: what is done in which order, the same as in the simulator."""

from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.plan import SCHEDULES, Plan
from ppwork.protocol.envelope import ChunkPlan, PPAction, PPEnvelope, PPResult
from ppwork.protocol.session import Session
from ppwork.protocol.topology import Role
from ppwork.records.spans import Recorder, Span, read_entries, span_file
from ppwork.runtime.lent import Lent
from ppwork.stage import NOT_YET, Emission
from ppwork.timeline.costs import Costs
from ppwork.timeline.simulate import simulate
from ppwork.worker import reference, role
from ppwork.worker.loops import settle_numbers, stage0_loop


class Paper:
    """Rank 0's end of a link whose results arrive when somebody waits for them, or at once (``eager``)."""

    def __init__(self, plan, *, eager=False, pauses=()):
        self.plan, self.eager, self.pauses = plan, eager, list(pauses)
        self.groups = SimpleNamespace(timeout_s=plan.timeout_s, role=Role.STAGE0, rank=0, handles=dict)
        self.recorder, self.lent = Recorder(None), Lent(0, "chunk", "its end")
        self.session = Session(0, Role.STAGE0, plan.in_flight_depth)
        self.session.joined()
        self.on_the_way, self.here, self.acts = deque(), deque(), []
        self.sending = False

    def run(self):
        stage0_loop(self, self.plan, self)
        return " ".join(self.acts)

    # The stage

    def encode(self, chunk_index):
        if chunk_index in self.pauses:
            self.pauses.remove(chunk_index)
            self.acts.append("?")
            return NOT_YET
        self.acts.append(f"e{chunk_index}")
        return {"x": torch.tensor([chunk_index])}

    def decode(self, chunk_index, tensors):
        self.acts.append(f"d{chunk_index}")
        return Emission(torch.zeros(1))

    # The plane

    def send(self, tensors, *, metadata, hard_cut, flush, recompute, steps):
        ids = self.session.next_ids(PPAction.INFER, hard_cut=hard_cut)
        assert tensors["x"].item() == ids.chunk_index
        envelope = PPEnvelope(PPAction.INFER, ids, ChunkPlan.of(1, reset_cache=hard_cut), {}, tensors)
        self.session.may_send(envelope)
        self.session.sent(envelope, flush=flush)
        self.acts.append(f"s{ids.chunk_index}")
        (self.here if self.eager else self.on_the_way).append(PPResult(PPAction.INFER, ids, 1))
        return ids

    def on_device(self, name, ids):
        return nullcontext()

    def timed(self, name, ids, *, more):
        return nullcontext()

    def heartbeat(self):
        envelope = PPEnvelope(PPAction.NOOP, self.session.next_ids(PPAction.NOOP))
        self.session.may_send(envelope)
        self.session.sent(envelope)
        self.acts.append("noop")

    @property
    def results_ready(self):
        return len(self.here)

    def await_result(self):
        if not self.here:
            self.here.append(self.on_the_way.popleft())

    def receive_result(self):
        self.await_result()
        result = self.here.popleft()
        return result, self.session.result(result)

    def release_result(self):
        pass

    def shutdown(self):
        assert not self.session.in_flight


@pytest.mark.parametrize(
    ("fields", "acts"),
    [
        ({}, "e0 s0 d0 e1 s1 d1 e2 s2 d2 e3 s3 d3"),
        ({"in_flight_depth": 2}, "e0 s0 e1 s1 d0 e2 s2 d1 e3 s3 d2 d3"),
        ({"in_flight_depth": 3}, "e0 s0 e1 s1 e2 s2 d0 e3 s3 d1 d2 d3"),
        ({"in_flight_depth": 2, "schedule": "send-after-decode"}, "e0 s0 e1 d0 s1 e2 d1 s2 e3 d2 s3 d3"),
        ({"in_flight_depth": 3, "schedule": "send-after-decode"}, "e0 s0 e1 e2 d0 s1 e3 d1 s2 d2 s3 d3"),
        ({"d_in": 1, "d_out": 1}, "e0 s0 e1 s1 d0 e2 s2 d1 e3 s3 d2 d3"),
        ({"d_in": 1, "d_out": 2}, "e0 s0 e1 e2 s1 d0 e3 s2 d1 s3 d2 d3"),
    ],
    ids=repr,
)
def test_order_of_acts(fields, acts):
    """Overlap is s(k+1) before d(k), the mistake the other way round; encoding goes on in both."""
    assert Paper(Plan(chunks=4, **fields)).run() == acts


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rank_0_works_in_the_order_that_the_simulator_says(schedule, depth):
    plan = Plan(chunks=9, in_flight_depth=depth, schedule=schedule)
    costs = Costs(encode_ms=3.0, decode_ms=2.0, stage1_ms=10.0)
    entries = simulate(plan, costs, schedule=schedule).entries_by_rank[0]
    said = [e for e in entries if isinstance(e, Span) and e.name in ("encode", "decode")]
    said.sort(key=lambda span: span.start_ns)
    done = [act for act in Paper(plan).run().split() if act[0] in "ed"]
    assert done == [f"{span.name[0]}{span.chunk_index}" for span in said]


def test_while_the_source_pauses_what_is_here_is_decoded_and_nothing_waited_for():
    plan = Plan(chunks=4, in_flight_depth=3)
    assert Paper(plan, eager=True, pauses=[2, 2, 2]).run() == "e0 s0 e1 s1 ? d0 ? d1 ? e2 s2 e3 s3 d2 d3"
    assert Paper(plan, pauses=[2, 2]).run() == "e0 s0 e1 s1 ? ? e2 s2 d0 e3 s3 d1 d2 d3"


def test_heartbeats_come_when_nothing_has_left_for_long_and_never_behind_an_envelope_on_its_way():
    plan = Plan(chunks=2, heartbeat_s=1e-9)
    assert Paper(plan, pauses=[0, 1]).run() == "? noop e0 s0 noop d0 ? noop e1 s1 noop d1"
    busy = Paper(plan, pauses=[0, 1])
    busy.sending = True
    assert busy.run() == "? e0 s0 d0 ? e1 s1 d1"


@pytest.mark.parametrize(("depth", "decoded"), [(1, "01234"), (2, "0134"), (3, "034"), (4, "34")])
def test_a_flush_drops_what_is_in_flight_and_no_more(depth, decoded):
    """R3: at depth d, the d - 1 chunks before the flush; at depth 1 there is nothing to drop."""
    acts = Paper(Plan(chunks=5, in_flight_depth=depth, flushes=(3,))).run().split()
    assert "".join(act[1:] for act in acts if act[0] == "d") == decoded


def test_a_chunk_that_was_refused_is_still_seen_to_be_encoded(tmp_path):
    class Refused(Paper):
        def send(self, tensors, **options):
            raise LocalProtocolError("'x' had layout sparse")

    rank0 = Refused(Plan(chunks=4))
    rank0.recorder = Recorder(span_file(tmp_path, 0))
    with rank0.recorder, pytest.raises(LocalProtocolError):
        rank0.run()
    (entry,) = read_entries(tmp_path, 0)
    assert (entry.name, entry.chunk_index, entry.call_id) == ("encode", 0, 0)


@pytest.mark.parametrize(("verify", "tf32"), [(True, False), (False, True)])
def test_a_run_that_is_compared_rounds_as_its_reference_does(monkeypatch, verify, tf32):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    settle_numbers(Plan(verify=verify))
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.get_num_threads() == 1


def test_ranks_and_reference_settle_that_before_anything_is_computed(monkeypatch, tmp_path):
    Plan(chunks=1).save(tmp_path)

    class Settled(Exception):
        """In place of the run."""

    def settle(plan):
        raise Settled

    for module in (role, reference):
        monkeypatch.setattr(module, "settle_numbers", settle)
    with pytest.raises(Settled):
        reference.main(tmp_path)
    with pytest.raises(Settled):
        role.play(Plan(chunks=1), tmp_path, 0, Recorder(None), None, None, None)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_without_a_number_of_chunks_the_source_says_when_it_has_ended(depth, monkeypatch):
    paper = Paper(Plan(in_flight_depth=depth))
    encode = paper.encode
    monkeypatch.setattr(paper, "encode", lambda index: None if index == 4 else encode(index))
    assert paper.run() == Paper(Plan(in_flight_depth=depth, chunks=4)).run()
