"""The codec: whatever is encoded reads back, and whatever else comes is refused in our own words."""

import datetime as dt
import struct
import tracemalloc
import zlib
from enum import Enum

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ppwork.errors import LocalProtocolError, RemoteProtocolError
from ppwork.protocol.envelope import (
    ITEM_SIZES,
    ChunkPlan,
    Ids,
    PPAction,
    PPEnvelope,
    PPResult,
    Reason,
    TensorSpec,
)
from ppwork.protocol.header import HEADER, HEADER_BYTES, Kind, Limits, body_room, pack_header
from ppwork.protocol.wire import ALIGN, JOIN_BYTES, SCHEMA_SLOTS, Body, Decoder, Encoder, lay_out, to_message

LIMITS = Limits(frame_bytes=512, max_body_bytes=4096, max_tensors=8, max_message_bytes=1 << 20)
ROOM = body_room(LIMITS.frame_bytes)
IDS = Ids(7, 5, 1)
PLAN = ChunkPlan.of(2)
LATENTS = TensorSpec("latents", "bfloat16", (4, 8, 2, 3))
REASON = Reason("StageError", "It broke.", {"rank": 1, "role": "leader"}, "the log")

words = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | words
    | st.binary(max_size=40)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
metadatas = st.dictionaries(words, values, max_size=4)
long_metadatas = st.integers(0, 3000).map(lambda size: {"long": "x" * size})
all_ids = st.builds(Ids, st.integers(0, 1 << 62), st.integers(-1, 1 << 62), st.integers(0, 1 << 62))
chunk_plans = st.builds(ChunkPlan.of, st.integers(1, 99), recompute=st.booleans(), reset_cache=st.booleans())
spec_lists = st.lists(
    st.builds(
        TensorSpec,
        st.sampled_from(["latents", "context.frames", "noise", "mask", "é" * 20, "n" * 128]),
        st.sampled_from(sorted(ITEM_SIZES)),
        st.lists(st.integers(0, 6), max_size=5).map(tuple),
        st.sampled_from(["cpu", "cuda"]),
    ),
    max_size=5,
    unique_by=lambda spec: spec.name,
).map(tuple)


def envelope(**changes):
    return replace(PPEnvelope(PPAction.INFER, IDS, PLAN), **changes)


def carry(encoder, decoder, message, specs):
    """Encode, check what both ends must agree on, and return the message that arrives."""
    encoded = encoder.encode(message, specs)
    header = decoder.header(bytes(encoded.frame))
    assert len(encoded.frame) == encoder.limits.frame_bytes
    assert len(encoded.overflow) == header.overflow_bytes(decoder.limits)
    decoded = decoder.body(header, bytes(encoded.frame), encoded.overflow)
    assert (decoded.header, decoded.layout) == (encoded.header, encoded.layout)
    assert decoded.layout.specs == tuple(specs)
    return to_message(decoded, {})


def frame_of(body_bytes, **changes):
    """Return a frame around any body bytes, with checksums that are right."""
    header = Encoder(LIMITS).encode(envelope(), ()).header
    header = replace(header, body_bytes=len(body_bytes), body_crc=zlib.crc32(body_bytes), **changes)
    raw = pack_header(header) + body_bytes
    return raw[:ROOM].ljust(LIMITS.frame_bytes, b"\0"), raw[ROOM:]


def decode(frame, overflow=b"", decoder=None):
    decoder = decoder or Decoder(LIMITS)
    return decoder.body(decoder.header(frame), frame, overflow)


def unchecked():
    """An encoder that lets everything leave: what then says no is the receiver."""
    encoder = Encoder(LIMITS)
    encoder.check = lambda *args, **kwargs: None
    return encoder


def refusal(frame, overflow=b"", decoder=None):
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frame, overflow, decoder)
    return caught.value


def traced(call):
    """Return the peak of what ``call`` allocated; a refusal is fine, any other exception is not."""
    tracemalloc.start()
    try:
        call()
    except RemoteProtocolError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


# What is encoded reads back


@given(all_ids, chunk_plans, metadatas | long_metadatas, spec_lists)
def test_infer_envelope_reads_back_equal(ids, plan, metadata, specs):
    plan = plan if plan.problem(specs) is None else ChunkPlan.of(plan.steps, reset_cache=plan.reset_cache)
    message = PPEnvelope(PPAction.INFER, ids, plan, metadata)
    assert carry(Encoder(LIMITS), Decoder(LIMITS), message, specs) == message


@given(all_ids, st.integers(0, 1 << 62), st.integers(0, 1 << 62), metadatas | long_metadatas, spec_lists)
def test_infer_result_reads_back_equal(ids, calls, stage1_ns, metadata, specs):
    message = PPResult(PPAction.INFER, ids, calls, stage1_ns, metadata)
    assert carry(Encoder(LIMITS), Decoder(LIMITS), message, specs) == message


@pytest.mark.parametrize("kind", [PPEnvelope, PPResult])
@pytest.mark.parametrize("action", [PPAction.NOOP, PPAction.SHUTDOWN, PPAction.ERROR])
def test_message_without_tensors_reads_back_equal(kind, action):
    message = kind(action, IDS, reason=REASON if action is PPAction.ERROR else None)
    assert carry(Encoder(LIMITS), Decoder(LIMITS), message, ()) == message


@pytest.mark.parametrize("dtype", sorted(ITEM_SIZES))
def test_spec_of_every_dtype_travels(dtype):
    """Every dense dtype works, bfloat16, float8 and bool included."""
    specs = (TensorSpec("x", dtype, (3, 5)), TensorSpec("y", dtype, (), "cuda"))
    assert carry(Encoder(LIMITS), Decoder(LIMITS), envelope(), specs) == envelope()


@pytest.mark.parametrize("extra", [-1, 0, 1, 3000])
def test_body_around_the_edge_of_the_frame_overflows_by_the_rest(extra):
    room = ROOM - HEADER_BYTES
    base = Encoder(LIMITS).encode(envelope(metadata={"k": "x" * 40}), ()).header.body_bytes
    message = envelope(metadata={"k": "x" * (40 + room - base + extra)})
    encoder = Encoder(LIMITS)
    encoded = encoder.encode(message, ())
    assert len(encoded.overflow) == max(0, encoded.header.body_bytes - room)
    assert bool(encoded.overflow) == (extra > 0)
    assert carry(encoder, Decoder(LIMITS), message, ()) == message


def test_known_schema_is_not_sent_again():
    """Specs travel once."""
    encoder, decoder = Encoder(LIMITS), Decoder(LIMITS)
    sizes = []
    for _ in range(3):
        encoded = encoder.encode(envelope(), [LATENTS])
        assert decode(bytes(encoded.frame), decoder=decoder).layout.specs == (LATENTS,)
        sizes.append((encoded.header.new_schema, encoded.header.body_bytes))
    assert [new for new, _ in sizes] == [True, False, False]
    assert sizes[0][1] > sizes[1][1] == sizes[2][1]


@given(st.lists(st.integers(1, SCHEMA_SLOTS + 6), max_size=60))
def test_both_ends_stay_in_step_over_any_sequence_of_schemas(sizes):
    """More schemas than slots: the evicted ones are announced again."""
    encoder, decoder = Encoder(LIMITS), Decoder(LIMITS)
    for size in sizes:
        carry(encoder, decoder, envelope(), [TensorSpec("x", "uint8", (size,))])
    assert len(encoder._schemas) <= SCHEMA_SLOTS


def test_evicted_schema_is_announced_again_and_a_kept_one_is_not():
    encoder, decoder = Encoder(LIMITS), Decoder(LIMITS)
    schemas = [[TensorSpec("x", "uint8", (size,))] for size in range(SCHEMA_SLOTS + 1)]
    for specs in schemas:
        carry(encoder, decoder, envelope(), specs)
    assert not encoder.encode(envelope(), schemas[1]).header.new_schema
    assert encoder.encode(envelope(), schemas[0]).header.new_schema


def test_refused_message_announces_no_schema():
    """R1: after a refusal both ends still agree on what has been announced."""
    encoder, decoder = Encoder(LIMITS), Decoder(LIMITS)
    with pytest.raises(LocalProtocolError):
        encoder.encode(envelope(metadata={"bad": object()}), [LATENTS])
    assert carry(encoder, decoder, envelope(), [LATENTS]) == envelope()


@given(metadatas, spec_lists)
def test_same_message_gives_the_same_bytes(metadata, specs):
    def reverse(value):
        if isinstance(value, dict):
            return {key: reverse(value[key]) for key in reversed(value)}
        return [reverse(item) for item in value] if isinstance(value, list) else value

    one = Encoder(LIMITS).encode(envelope(metadata=metadata), specs)
    other = Encoder(LIMITS).encode(envelope(metadata=reverse(metadata)), specs)
    assert one.frame == other.frame
    assert one.overflow == other.overflow


# Where tensors ride


def taken(specs, offsets):
    return [(o, spec.nbytes) for spec, o in zip(specs, offsets, strict=True) if o is not None]


@given(spec_lists, st.integers(8, 128).map(lambda n: 64 * n))
def test_every_tensor_gets_one_aligned_place_and_none_overlap(specs, frame_bytes):
    layout = lay_out(specs, frame_bytes)
    for spec, inline, behind in zip(specs, layout.inline, layout.behind, strict=True):
        places = (inline is not None) + (behind is not None)
        assert places == (spec.device == "cpu" and spec.nbytes > 0)
    for offsets, start, end in (
        (layout.inline, body_room(frame_bytes), frame_bytes),
        (layout.behind, 0, layout.recv_bytes),
    ):
        cursor = start
        for offset, nbytes in sorted(taken(specs, offsets)):
            assert offset % ALIGN == 0
            assert offset >= cursor
            cursor = offset + nbytes
        assert cursor <= end
    assert layout.payload_bytes == sum(spec.nbytes for spec in specs)


def test_small_cpu_tensors_ride_in_the_frame_and_nothing_else():
    """A small message costs one transfer; CUDA tensors and large ones go alone."""
    specs = (
        TensorSpec("small", "uint8", (60,)),
        TensorSpec("gpu", "uint8", (4,), "cuda"),
        TensorSpec("large", "uint8", (4096,)),
        TensorSpec("empty", "uint8", (0,)),
        TensorSpec("last", "uint8", (64,)),
        TensorSpec("full", "uint8", (1,)),
    )
    layout = lay_out(specs, 256)
    assert layout.inline == (128, None, None, None, 192, None)
    assert layout.behind == (None, None, 0, None, None, 4096)
    assert layout.joined_bytes == layout.recv_bytes == 4096 + ALIGN


def test_what_does_not_fit_into_the_frame_shares_one_transfer_unless_it_is_large():
    """Each transfer costs more than a copy of some 10 KB; one tensor has nothing to be joined with."""
    small, large = ("uint8", (4000,)), ("uint8", (JOIN_BYTES + 1,))
    of = [large, small, large, small]
    layout = lay_out([TensorSpec(str(n), *each) for n, each in enumerate(of)], 256)
    assert layout.joined_bytes == 2 * 4032
    assert layout.behind[1::2] == (0, 4032)
    assert layout.behind[0] == layout.joined_bytes < layout.behind[2]
    assert lay_out(layout.specs[:3], 256).joined_bytes == 0


# What the sender refuses: nothing has left


def looped():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        1j,
        range(3),
        1 << 64,
        -(1 << 63) - 1,
        "\ud800",
        looped(),
        {1: 2},
        {None: 1},
        {(1,): 2},
        [object()],
    ],
    ids=[
        "object",
        "function",
        "complex",
        "range",
        "huge",
        "minus huge",
        "surrogate",
        "loop",
        "int key",
        "None key",
        "tuple key",
        "nested",
    ],
)
def test_metadata_that_msgpack_cannot_carry_is_refused_before_sending(value):
    """R1, F01."""
    with pytest.raises(LocalProtocolError, match="metadata could not be serialised") as caught:
        Encoder(LIMITS).encode(envelope(metadata={"value": value}), ())
    assert caught.value.where == IDS.where()
    assert "metadata takes" in caught.value.check_first


def test_metadata_with_a_key_that_is_no_string_is_refused_before_sending():
    """R1: the receiver reads string keys only."""
    with pytest.raises(LocalProtocolError, match="metadata could not be serialised"):
        Encoder(LIMITS).encode(envelope(metadata={1: "one"}), ())


def test_too_many_tensors_are_laid_at_the_door_of_whoever_gave_them():
    specs = [TensorSpec(f"x{i}", "uint8", (1,)) for i in range(9)]
    for message, gave in (
        (envelope(), "what `encode` returned, or `send` was given"),
        (PPResult(PPAction.INFER, IDS, 1), "what `step` returned, or `reply` was given"),
    ):
        with pytest.raises(LocalProtocolError, match="stack or join some") as caught:
            Encoder(LIMITS).encode(message, specs)
        assert caught.value.check_first == f"{gave}; nothing was sent"


class UncheckedPlan(ChunkPlan, frozen=True):
    """A plan that a sender without our check would let through."""

    def problem(self, specs):
        return None


def test_inconsistent_chunk_plan_is_refused_by_the_sender_and_by_the_receiver():
    """R4, F03."""
    message = envelope(plan=ChunkPlan(4, 3))
    with pytest.raises(LocalProtocolError, match="expected 3 generator calls") as caught:
        Encoder(LIMITS).encode(message, ())
    assert caught.value.where == IDS.where()
    let_through = unchecked().encode(message, ())
    error = refusal(bytes(let_through.frame))
    assert "expected 3 generator calls" in error.what
    assert error.where == IDS.where()


def test_recompute_without_context_frames_is_refused_by_the_sender_and_by_the_receiver():
    """R4, F10."""
    message = envelope(plan=ChunkPlan.of(1, recompute=True))
    with pytest.raises(LocalProtocolError, match="no context frames"):
        Encoder(LIMITS).encode(message, [LATENTS])
    let_through = unchecked().encode(message, [LATENTS])
    assert "no context frames" in refusal(bytes(let_through.frame)).what


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([TensorSpec("x", "uint8", (1,)), TensorSpec("x", "int8", (2,))], "same name"),
        ([TensorSpec(f"x{i}", "uint8", (1,)) for i in range(9)], "9 tensors; 8 are allowed"),
        ([TensorSpec("x", "uint8", ((1 << 20) + 1,))], "1048577 bytes; 1048576 are allowed"),
        ([TensorSpec("x", "uint8", (1 << 19,)), TensorSpec("y", "uint16", (1 << 19,))], "1572864 bytes"),
        ([TensorSpec("x", "qint8", (1,))], "cannot travel"),
        ([TensorSpec("x", "uint8", (-1,))], "shape"),
    ],
    ids=["repeated", "many", "large", "large together", "dtype", "negative"],
)
def test_specs_that_cannot_travel_are_refused_by_the_sender_and_by_the_receiver(specs, said):
    """R1, R11."""
    with pytest.raises(LocalProtocolError) as caught:
        Encoder(LIMITS).encode(envelope(), specs)
    assert said in caught.value.what
    raw = msgspec.msgpack.encode(Body(plan=PLAN, specs=tuple(specs)))
    frame, overflow = frame_of(raw, new_schema=True, schema_id=1, num_tensors=1, payload_bytes=1)
    assert said in refusal(frame, overflow).what


def test_body_over_the_limit_is_refused_before_sending():
    with pytest.raises(LocalProtocolError, match=r"Metadata and names took 5\d\d\d bytes; 4096 are"):
        Encoder(LIMITS).encode(envelope(metadata={"k": b"x" * 5000}), ())


@pytest.mark.parametrize(
    ("message", "specs", "said"),
    [
        (envelope(plan=None), (), "without the plan"),
        (PPEnvelope(PPAction.NOOP, IDS), (LATENTS,), "NOOP came with 1 tensors"),
        (PPResult(PPAction.SHUTDOWN, IDS), (LATENTS,), "SHUTDOWN came with 1 tensors"),
        (PPEnvelope(PPAction.ERROR, IDS), (), "without its reason"),
        (PPResult(PPAction.ERROR, IDS), (), "without its reason"),
    ],
    ids=["no plan", "noop", "shutdown", "error", "error result"],
)
def test_message_with_the_wrong_parts_is_refused_by_the_sender_and_by_the_receiver(message, specs, said):
    """R1: what the receiver would refuse does not leave."""
    with pytest.raises(LocalProtocolError) as caught:
        Encoder(LIMITS).encode(message, specs)
    assert said in caught.value.what
    frame, _ = frame_of(
        msgspec.msgpack.encode(Body(specs=specs or None)),
        kind=Kind.ENVELOPE if isinstance(message, PPEnvelope) else Kind.RESULT,
        action=message.action,
        new_schema=bool(specs),
        schema_id=1 if specs else 0,
        num_tensors=len(specs),
        payload_bytes=sum(spec.nbytes for spec in specs),
    )
    assert said in refusal(frame).what


@pytest.mark.parametrize("ids", [Ids(-1, 0, 0), Ids(0, -2, 0), Ids(0, 0, -1), Ids(1 << 63, 0, 0)], ids=repr)
def test_ids_that_the_header_cannot_hold_are_refused_before_sending(ids):
    """R1."""
    with pytest.raises(LocalProtocolError, match="header had"):
        Encoder(LIMITS).encode(envelope(ids=ids), ())


def test_notice_before_the_first_call_arrives():
    """R9: a rank that fails before any call passed still says why."""
    for kind in (PPEnvelope, PPResult):
        message = kind(PPAction.ERROR, Ids(-1, -1, 0), reason=REASON)
        assert carry(Encoder(LIMITS), Decoder(LIMITS), message, ()) == message


# What the receiver refuses


@pytest.mark.parametrize(
    ("raw", "changes", "said"),
    [
        (b"\xc1", {}, "did not read"),
        (b"", {}, "did not read"),
        (b"\x91\x81\xa1a\xdd\xff\xff\xff\xff\x01", {}, "did not read"),
        (b"\x91\x81\xa1a" + b"\x91" * 4000, {}, "did not read"),
        (b"\x91\x81\xa1a\xa1\xff", {}, "did not read"),
        (b"\x91\x81\xa1a\x81\x80\x01", {}, "did not read"),
        (msgspec.msgpack.encode([{}, None, None, None, 0, 0, "more"]), {}, "did not read"),
        (msgspec.msgpack.encode(Body(plan=PLAN)), {"num_tensors": 1}, "announced 1 tensors, the specs are 0"),
        (msgspec.msgpack.encode(Body(plan=PLAN)), {"payload_bytes": 9}, "announced 9 bytes"),
        (msgspec.msgpack.encode(Body(plan=PLAN)), {"schema_id": 5}, "Schema 5 was never announced"),
        (msgspec.msgpack.encode(Body(plan=PLAN)), {"schema_id": 5, "new_schema": True}, "0 specs came"),
        (msgspec.msgpack.encode(Body(plan=PLAN, specs=(LATENTS,))), {}, "1 specs came"),
    ],
    ids=[
        "reserved byte",
        "empty",
        "huge list",
        "deep",
        "not UTF-8",
        "map as key",
        "more fields",
        "count",
        "bytes",
        "unknown schema",
        "no specs",
        "surplus specs",
    ],
)
def test_body_with_a_right_checksum_and_wrong_content_is_refused(raw, changes, said):
    """F06, R11."""
    error = refusal(*frame_of(raw, **changes))
    assert said in error.what
    assert error.where == IDS.where()


def test_wrong_checksum_of_the_body_is_refused():
    """F06."""
    frame, _ = frame_of(msgspec.msgpack.encode(Body(plan=PLAN)))
    assert decode(frame).body.plan == PLAN
    damaged = bytearray(frame)
    damaged[HEADER_BYTES] ^= 1
    assert "body's checksum" in refusal(damaged).what


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b""], ids=["short", "long", "none"]
)
def test_overflow_of_another_length_is_refused(change):
    encoded = Encoder(LIMITS).encode(envelope(metadata={"k": "x" * 1000}), ())
    assert encoded.overflow
    assert "checksum" in refusal(bytes(encoded.frame), change(encoded.overflow)).what


@given(st.binary(min_size=LIMITS.frame_bytes, max_size=LIMITS.frame_bytes) | st.binary(max_size=600))
def test_random_frame_is_refused(frame):
    """F06: never another exception than ours."""
    with pytest.raises(RemoteProtocolError):
        decode(frame)


@given(st.binary(max_size=1000), st.sampled_from(Kind), st.sampled_from(PPAction), st.booleans())
def test_random_body_is_a_message_or_refused_and_allocates_little(raw, kind, action, new_schema):
    """F06, R11: checksums are right, so only the decoder stands between these bytes and the rank."""
    changes = {"kind": kind, "action": action, "new_schema": new_schema, "schema_id": int(new_schema)}
    frame, overflow = frame_of(raw, **changes)
    assert traced(lambda: decode(frame, overflow)) < LIMITS.frame_bytes + LIMITS.max_body_bytes + 64 * 1024


@given(
    st.lists(
        st.sampled_from(
            [
                b"\x91",
                b"\x96",
                b"\x80",
                b"\x81",
                b"\xa1a",
                b"\xc0",
                b"\xc3",
                b"\x01",
                b"\xd0\xff",
                b"\xcb" + b"\x7f" * 8,
                b"\xdc\xff\xff",
                b"\xdd\xff\xff\xff\xff",
                b"\xde\xff\xff",
                b"\xdf\xff\xff\xff\xff",
                b"\xc6\xff\xff\xff\xff",
                b"\xdb\xff\xff\xff\xff",
                b"\xc7\x0c\xff" + b"\xff" * 12,
                b"\xd4\x05\x01",
                b"\xc9\xff\xff\xff\xff\x01",
            ]
        ),
        max_size=60,
    ).map(b"".join)
)
def test_body_that_announces_huge_parts_allocates_little(tail):
    """R11: a length inside the body is not believed either."""
    frame, overflow = frame_of(b"\x96\x81\xa1k" + tail)
    assert traced(lambda: decode(frame, overflow)) < LIMITS.frame_bytes + LIMITS.max_body_bytes + 64 * 1024


NUMBERS = {
    "version": 1,
    "kind": 2,
    "action": 3,
    "flags": 4,
    "num_tensors": 5,
    "schema_id": 6,
    "body_bytes": 7,
    "reserved": 8,
    "call_id": 9,
    "chunk_index": 10,
    "cache_epoch": 11,
    "payload_bytes": 12,
}


@given(st.sampled_from(sorted(NUMBERS)), st.integers(0, 300) | st.integers(-(1 << 63), (1 << 64) - 1))
def test_any_header_field_may_lie_behind_a_right_checksum(field, value):
    """F06, R11: the checksum is right again, so the deeper checks are reached."""
    encoded = Encoder(LIMITS).encode(envelope(metadata={"k": "x" * 600}), [LATENTS])
    fields = list(HEADER.unpack(encoded.frame[:HEADER_BYTES]))
    truth, fields[NUMBERS[field]] = fields[NUMBERS[field]], value
    try:
        packed = HEADER.pack(*fields)
    except struct.error:  # does not fit into the field
        return
    packed = packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))
    frame = packed + bytes(encoded.frame[HEADER_BYTES:])
    peak = traced(lambda: decode(frame, encoded.overflow))
    assert peak < LIMITS.frame_bytes + LIMITS.max_body_bytes + 64 * 1024
    # The ids are the session's to judge and a free schema id is any; all else contradicts something here.
    if value != truth and field not in ("call_id", "chunk_index", "cache_epoch", "schema_id", "kind"):
        refusal(frame, encoded.overflow)


@given(st.lists(st.integers(0, 8 * 1200 - 1), min_size=1, max_size=4, unique=True))
def test_flipped_bits_anywhere_are_refused(bits):
    """F06."""
    encoded = Encoder(LIMITS).encode(envelope(metadata={"k": "x" * 800}), [LATENTS])
    whole = bytearray(bytes(encoded.frame[:ROOM]) + encoded.overflow)
    for bit in bits:
        whole[bit // 8 % len(whole)] ^= 1 << bit % 8
    frame, overflow = bytes(whole[:ROOM]).ljust(LIMITS.frame_bytes, b"\0"), bytes(whole[ROOM:])
    if frame + overflow == bytes(encoded.frame) + encoded.overflow:
        return  # two flips met
    assert refusal(frame, overflow).what


@given(st.integers(0, LIMITS.frame_bytes - 1), st.binary(min_size=1, max_size=100))
def test_cut_or_extended_frame_is_refused(length, tail):
    frame = bytes(Encoder(LIMITS).encode(envelope(), [LATENTS]).frame)
    assert "frame of" in refusal(frame[:length]).what
    assert "frame of" in refusal(frame + tail).what


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        ({1, 2}, "an object of type", "`sorted(...)`"),
        (dt.date(2026, 1, 1), "an object of type", "`str(...)`"),
        (Limits(), "a dataclass", "`dataclasses.asdict(...)`"),
        (Colour.RED, "an enum", "its `.name`"),
        (np.float32(1.5), "an object of type", "its `.item()`"),
        (np.ones(3), "an object of type", "a tensor goes among the tensors"),
    ],
    ids=["set", "date", "dataclass", "enum", "number", "array"],
)
def test_metadata_that_would_come_back_as_another_type_is_refused_with_what_to_give_in_its_place(
    value, kind, remedy
):
    """F01: msgpack would carry it, as a list, a text or a dict."""
    message = PPEnvelope(PPAction.NOOP, Ids(0, -1, 0), metadata={"fine": 1, "key": {"inner": [None, value]}})
    with pytest.raises(LocalProtocolError, match="would not come back as one") as caught:
        Encoder(Limits()).encode(message, ())
    assert f"at metadata['key']['inner'][1] {kind} {type(value).__name__}" in caught.value.what
    assert caught.value.check_first.startswith(remedy)
