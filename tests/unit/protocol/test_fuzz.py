"""Damaged frames through codec and session: a legal message or a refusal, nothing else.

The whole is ``scripts/fuzz_wire.py`` on a million frames; here a few, all refusals that they must meet, and
what the fuzzer found when it was new.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import zlib

import msgspec
import pytest
from checkout import SCRIPTS

from ppwork.errors import LocalProtocolError, PPWorkError, RemoteProtocolError, TerminalNotice
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult, Reason, TensorSpec
from ppwork.protocol.header import HEADER_BYTES, Kind, Limits, pack_header
from ppwork.protocol.notices import MAX_TEXT, notice_of, notices, reason_of
from ppwork.protocol.session import Session
from ppwork.protocol.states import State
from ppwork.protocol.topology import Role
from ppwork.protocol.wire import Body, Decoder, Encoder

FRAMES = 20_000
LIMITS = Limits(frame_bytes=512, max_body_bytes=4096, max_tensors=8, max_message_bytes=1 << 20)
IDS, PLAN = Ids(0, 0, 0), ChunkPlan.of(1)
REASON = Reason("StageError", "It broke.", {"rank": 1}, "the log")
MUST_MEET = """
A frame started with
A frame of # bytes came
A frame of wire version
The header's checksum was wrong
The header had the unknown kind
The header had the unknown action
The header had unknown flags
The header had a negative id
The header announced a new schema without an id
The header announced # tensors; # are allowed
The header announced # bytes of body
The header announced # bytes of tensors; # are allowed
The header announced # tensors, the specs are
The header announced # bytes, the specs make
The header said new_schema=False
The header said new_schema=True
The body's checksum was wrong
The body did not read: Expected
The body did not read: Input data was truncated
The body did not read: MessagePack data is malformed
, whose type is int and not str
 an object of type Ext, which would not come back
Schema # was never announced
Schema # was announced where # is next
A message had # tensors
A tensor name had
had # sizes; up to
; sizes of # to
more than any memory holds
; only cpu and cuda can travel
, which cannot travel
Two tensors of a message had the same name
An INFER envelope came without the plan
The plan of a chunk came with a
The plan of the chunk had
The plan of the chunk expected
The plan of the chunk asked for recompute
A NOOP came with # tensors
A NOOP came with the reason of an ERROR
call_id # followed
chunk_index # of a
cache_epoch went from
cache_epoch fell
A NOOP raised cache_epoch
More than the plan's # chunks came in flight
The event infer came in state error
The event result came in state
The event acknowledged came in state
The result of Ids# came
The mesh made # generator calls
SHUTDOWN Ids# came in place of the result
came in place of the acknowledgement
A PPResult came on the wrong link
The session was ended by a peer
""".strip().splitlines()


@pytest.fixture(scope="module")
def fuzz_wire():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("fuzz_wire")


@pytest.fixture
def wire_mutations(fuzz_wire):
    return sys.modules["wire_mutations"]


def decode(decoder: Decoder, body: Body | bytes, **changes):
    """Decode a message around any body; checksums and sizes are right."""
    header = Encoder(LIMITS).encode(PPEnvelope(PPAction.INFER, IDS, PLAN), ()).header
    raw = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    specs = (body.specs if isinstance(body, Body) else None) or ()
    facts = {"num_tensors": len(specs), "payload_bytes": sum(spec.nbytes for spec in specs)}
    facts |= {"new_schema": bool(specs), "body_bytes": len(raw), "body_crc": zlib.crc32(raw), **changes}
    header = msgspec.structs.replace(header, **facts)
    room = 128 - HEADER_BYTES
    frame = (pack_header(header) + raw[:room]).ljust(LIMITS.frame_bytes, b"\0")
    return decoder.body(decoder.header(frame), frame, raw[room:])


# The fuzzer


@pytest.mark.processes
def test_damaged_frames_are_messages_or_refused_and_every_refusal_is_met(wire_mutations):
    """F06, F16, R9, R11: the properties stand in ``fuzz_wire``, which ends badly when one does not hold.

    One is that its process does not grow: it has one of its own here, too.
    """
    asked = ["--frames", str(FRAMES), "--seed", "1", "--json"]
    command = [sys.executable, str(SCRIPTS / "fuzz_wire.py"), *asked]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == 0, answer.stderr
    found = msgspec.json.decode(answer.stdout)
    missing = [what for what in MUST_MEET if not any(what in met for met in found["refusals"])]
    assert not missing, found["refusals"]
    damages = {damage.__name__ for damage in (*wire_mutations.DAMAGES, *wire_mutations.ORDERS)}
    assert found["by_damage"].keys() == damages
    assert all(sum(outcomes.values()) > 50 for outcomes in found["by_damage"].values())


def test_a_table_has_each_damage_and_each_refusal(fuzz_wire):
    findings = fuzz_wire.fuzz(500, 2)
    shown = fuzz_wire.table(findings, 1.0, fuzz_wire.Memory(500))
    assert [what for what in (*findings.by_damage, *findings.refusals) if what not in shown] == []


@pytest.mark.parametrize(
    ("check", "harmless"),
    [
        ("ppwork.protocol.header._size_problem", lambda *_: None),
        ("ppwork.protocol.wire.specs_problem", lambda *_: None),
        ("ppwork.protocol.envelope.TensorSpec.problem", lambda *_: None),
        ("ppwork.protocol.session.Session._sequence_problem", lambda *_: None),
        ("ppwork.protocol.session.Session.failed", lambda *_: None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fuzzer_notices_that_a_check_is_missing(fuzz_wire, monkeypatch, check, harmless):
    monkeypatch.setattr(check, harmless)
    with pytest.raises(Exception) as caught:  # noqa: PT011  any error that a receiver lets through is a find
        fuzz_wire.fuzz(5000, 2)
    assert not isinstance(caught.value, PPWorkError)


def test_memory_that_grows_is_noticed(fuzz_wire, monkeypatch):
    memory, findings = fuzz_wire.Memory(10), fuzz_wire.Findings()
    memory.look(findings)
    findings.frames = 10_000
    memory.warm -= 2 * fuzz_wire.FLAT_MB
    with pytest.raises(fuzz_wire.Broken, match="the process grew"):
        memory.look(findings)


# What it found


def test_known_schema_is_not_announced_again_with_other_sizes():
    """A receive may be posted for it: a longer payload in it would make gloo abort the process."""
    decoder = Decoder(LIMITS)
    small, large = (TensorSpec("x", "uint8", (size,)) for size in (1000, 9000))
    decode(decoder, Body(plan=PLAN, specs=(small,)), schema_id=1)
    for schema_id in (1, 3, 17):
        with pytest.raises(RemoteProtocolError, match=f"Schema {schema_id} was announced where 2 is next"):
            decode(decoder, Body(plan=PLAN, specs=(large,)), schema_id=schema_id)
    assert decoder.layout(1).specs == (small,)
    decode(decoder, Body(plan=PLAN, specs=(large,)), schema_id=2)
    assert decoder.layout(2).specs == (large,)


def test_refused_message_announces_no_schema_at_the_receiver():
    decoder = Decoder(LIMITS)
    with pytest.raises(RemoteProtocolError, match="without the plan"):
        decode(decoder, Body(specs=(TensorSpec("x", "uint8", (1,)),)), schema_id=1)
    assert decoder.layout(1) is None


@pytest.mark.parametrize("shape", [(1 << 47, 1 << 47, 0), (0, 1 << 32, 1 << 31), (1 << 47,) * 7 + (0,)])
def test_empty_tensor_of_more_than_any_memory_is_refused(shape):
    """It has no bytes, but torch multiplies its sizes and raises an error of its own."""
    spec = TensorSpec("x", "float32", shape)
    with pytest.raises(RemoteProtocolError, match="more than any memory holds"):
        decode(Decoder(LIMITS), Body(plan=PLAN, specs=(spec,)), schema_id=1)
    with pytest.raises(LocalProtocolError, match="more than any memory holds"):
        Encoder(LIMITS).encode(PPEnvelope(PPAction.INFER, IDS, PLAN), (spec,))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (msgspec.msgpack.Ext(5, b"x"), "at metadata['key'] an object of type Ext, which would not come back"),
        ({1: 2}, "at metadata['key'] the key 1, whose type is int and not str"),
        (msgspec.Raw(b"\xd6\xff\0\0\0\0"), "an object of type datetime, which would not come back"),
        (msgspec.Raw(b"\x91" * 990 + b"\xc0"), "recursion"),
    ],
    ids=["extension", "key", "date", "deep"],
)
def test_metadata_that_no_sender_of_ours_makes_is_refused(value, said):
    raw = msgspec.msgpack.encode([{"key": value}, PLAN])
    with pytest.raises(RemoteProtocolError, match="did not read") as caught:
        decode(Decoder(LIMITS), raw)
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("body", "changes", "said"),
    [
        (Body(plan=PLAN), {"action": PPAction.NOOP}, "The plan of a chunk came with a NOOP"),
        (Body(plan=PLAN), {"kind": Kind.RESULT}, "The plan of a chunk came with a INFER"),
        (Body(plan=PLAN, reason=REASON), {}, "A INFER came with the reason of an ERROR"),
        (Body(reason=REASON), {"action": PPAction.SHUTDOWN}, "A SHUTDOWN came with the reason"),
    ],
    ids=["plan of a noop", "plan of a result", "reason of a chunk", "reason of a shutdown"],
)
def test_part_that_the_action_does_not_allow_is_refused(body, changes, said):
    with pytest.raises(RemoteProtocolError, match=said):
        decode(Decoder(LIMITS), body, **changes)


@pytest.fixture
def asked():
    """Rank 0's session with one chunk in flight."""
    session = Session(0, Role.STAGE0, 1)
    session.joined()
    session.sent(PPEnvelope(PPAction.INFER, IDS, PLAN))
    return session


@pytest.mark.parametrize("action", [PPAction.NOOP, PPAction.SHUTDOWN])
def test_only_an_infer_is_the_result_of_a_chunk(asked, action):
    with pytest.raises(RemoteProtocolError, match="came in place of the result") as caught:
        asked.result(PPResult(action, IDS, 1))
    assert caught.value.where == {"rank": 0, "role": "stage0", "peer": 1, **IDS.where()}
    assert asked.state is State.ERROR


@pytest.mark.parametrize(
    "answer",
    [PPResult(PPAction.INFER, Ids(1, 0, 0), 1), PPResult(PPAction.SHUTDOWN, IDS)],
    ids=["action", "ids"],
)
def test_only_the_shutdown_of_this_session_is_its_acknowledgement(asked, answer):
    asked.result(PPResult(PPAction.INFER, IDS, 1))
    asked.sent(PPEnvelope(PPAction.SHUTDOWN, Ids(1, 0, 0)))
    with pytest.raises(RemoteProtocolError, match="in place of the acknowledgement") as caught:
        asked.acknowledged(answer)
    assert caught.value.where == {"rank": 0, "role": "stage0", "peer": 1, **answer.ids.where()}
    assert asked.state is State.ERROR


def test_acknowledgement_of_this_shutdown_closes_the_session(asked):
    asked.result(PPResult(PPAction.INFER, IDS, 1))
    asked.sent(PPEnvelope(PPAction.SHUTDOWN, Ids(1, 0, 0)))
    asked.acknowledged(PPResult(PPAction.SHUTDOWN, Ids(1, 0, 0)))
    assert asked.state is State.CLOSED


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * (2 << 20)),
        OSError("cannot read /clips/\udcff.mp4"),
        LocalProtocolError("y" * (2 << 20), check_first="\udcff" * MAX_TEXT),
    ],
    ids=["long", "not UTF-8", "ours"],
)
def test_notice_of_any_error_can_leave(error):
    """Else the peers would hear nothing but a closed connection."""
    for _, message in notices(Role.LEADER, IDS, error, {"rank": 1}):
        encoded = Encoder(Limits()).encode(message, ())
        assert encoded.header.action is PPAction.ERROR
        assert len(encoded.frame) + len(encoded.overflow) < 64 << 10


def test_text_of_a_peer_is_bounded_in_our_own_error():
    reason = Reason("X", "a" * (1 << 19), {"rank": "b" * (1 << 19)}, "c" * (1 << 19))
    notice = notice_of(reason, 1, Role.LEADER)
    assert isinstance(notice, TerminalNotice)
    assert len(str(notice)) < 3 * MAX_TEXT
    assert reason_of(notice, {}).error_type == "TerminalNotice"
