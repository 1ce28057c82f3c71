"""The fixed 64 bytes: nothing in them is believed before it was held against the limits."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppwork.errors import RemoteProtocolError
from ppwork.protocol.envelope import Ids, PPAction
from ppwork.protocol.header import (
    HEADER,
    HEADER_BYTES,
    Header,
    Kind,
    Limits,
    body_room,
    ids_problem,
    pack_header,
    unpack_header,
)

LIMITS = Limits(frame_bytes=512, max_body_bytes=4096, max_tensors=8, max_message_bytes=1 << 20)
FIELDS = (
    "magic",
    "version",
    "kind",
    "action",
    "flags",
    "num_tensors",
    "schema_id",
    "body_bytes",
    "reserved",
    "call_id",
    "chunk_index",
    "cache_epoch",
    "payload_bytes",
    "body_crc",
    "header_crc",
)


def header_of(**changes):
    fields = {
        "kind": Kind.ENVELOPE,
        "action": PPAction.INFER,
        "ids": Ids(7, 5, 1),
        "new_schema": False,
        "schema_id": 3,
        "num_tensors": 2,
        "body_bytes": 40,
        "payload_bytes": 1024,
        "body_crc": 99,
    }
    return Header(**{**fields, **changes})


def frame_of(header):
    return pack_header(header).ljust(LIMITS.frame_bytes, b"\0")


def tampered(**changes):
    """Return a frame with some raw fields changed and the header's checksum right again."""
    values = dict(zip(FIELDS, HEADER.unpack(pack_header(header_of())), strict=True))
    packed = HEADER.pack(*{**values, **changes}.values())
    packed = packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))
    return packed.ljust(LIMITS.frame_bytes, b"\0")


headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    action=st.sampled_from(PPAction),
    ids=st.builds(
        Ids, st.integers(0, (1 << 63) - 1), st.integers(-1, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)
    ),
    new_schema=st.booleans(),
    schema_id=st.integers(1, (1 << 32) - 1),
    num_tensors=st.integers(0, LIMITS.max_tensors),
    body_bytes=st.integers(0, LIMITS.max_body_bytes),
    payload_bytes=st.integers(0, LIMITS.max_message_bytes),
    body_crc=st.integers(0, (1 << 32) - 1),
)


@given(headers)
def test_header_reads_back_what_was_packed(header):
    packed = pack_header(header)
    assert len(packed) == HEADER_BYTES == 64
    for kind in (bytes, bytearray, memoryview):
        assert unpack_header(kind(frame_of(header)), LIMITS) == header


@given(headers)
def test_overflow_is_what_the_frame_cannot_hold(header):
    inline = min(header.body_bytes, body_room(LIMITS.frame_bytes) - HEADER_BYTES)
    assert inline + header.overflow_bytes(LIMITS) == header.body_bytes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"magic": b"HTTP"}, "started with b'HTTP'"),
        ({"version": 2}, "version 2 arrived, but this build reads version 1"),
        ({"kind": 0}, "unknown kind 0"),
        ({"kind": 3}, "unknown kind 3"),
        ({"action": 4}, "unknown action 4"),
        ({"flags": 2}, "flags 0x2"),
        ({"reserved": 1}, "reserved bits 0x1"),
        ({"flags": 1, "schema_id": 0}, "new schema without an id"),
        ({"call_id": -1}, "negative id"),
        ({"chunk_index": -2}, "negative id"),
        ({"cache_epoch": -1}, "negative id"),
        ({"action": 3, "call_id": -2}, "negative id"),
        ({"num_tensors": 9}, "announced 9 tensors; 8 are allowed"),
        ({"num_tensors": 65535}, "announced 65535 tensors"),
        ({"body_bytes": 4097}, "announced 4097 bytes of body; 4096"),
        ({"body_bytes": (1 << 32) - 1}, "bytes of body"),
        ({"payload_bytes": (1 << 20) + 1}, "bytes of tensors; 1048576"),
        ({"payload_bytes": (1 << 64) - 1}, "bytes of tensors"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_header_with_a_right_checksum_and_a_wrong_field_is_refused(changes, said):
    """F06, R11: magic, version, action and every announced size."""
    assert unpack_header(tampered(), LIMITS) == header_of()
    with pytest.raises(RemoteProtocolError) as caught:
        unpack_header(tampered(**changes), LIMITS)
    assert said in caught.value.what
    assert caught.value.check_first


def test_notice_may_bear_the_ids_of_a_session_that_has_made_no_call():
    """R9: a rank that fails before the first call must still be able to say why."""
    header = header_of(action=PPAction.ERROR, ids=Ids(-1, -1, 0))
    assert unpack_header(frame_of(header), LIMITS).ids == Ids(-1, -1, 0)


@pytest.mark.parametrize("ids", [Ids(1 << 63, 0, 0), Ids(0, 1 << 63, 0), Ids(0, 0, 1 << 63)], ids=repr)
def test_id_beyond_63_bits_is_a_problem_before_it_is_packed(ids):
    """R1."""
    assert "63 bits" in ids_problem(PPAction.INFER, ids)
    assert ids_problem(PPAction.INFER, Ids((1 << 63) - 1, -1, 0)) is None


@given(st.integers(0, 8 * HEADER_BYTES - 1))
def test_flipped_bit_of_the_header_is_refused(bit):
    """F06: gloo checks nothing, so the checksum must."""
    frame = bytearray(frame_of(header_of()))
    frame[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RemoteProtocolError):
        unpack_header(frame, LIMITS)


@given(st.binary(max_size=2 * LIMITS.frame_bytes))
@example(b"")
def test_frame_of_another_length_is_refused_with_both_lengths(frame):
    if len(frame) == LIMITS.frame_bytes:
        frame += b"\0"
    with pytest.raises(RemoteProtocolError, match=f"frame of {len(frame)} bytes came; 512 were agreed"):
        unpack_header(frame, LIMITS)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 16) - 1))
def test_huge_announcements_allocate_nothing(payload_bytes, body_bytes, num_tensors):
    """R11: sizes are checked before anything is allocated."""
    frame = tampered(payload_bytes=payload_bytes, body_bytes=body_bytes, num_tensors=num_tensors)
    allowed = (
        payload_bytes <= LIMITS.max_message_bytes
        and body_bytes <= LIMITS.max_body_bytes
        and num_tensors <= LIMITS.max_tensors
    )
    tracemalloc.start()
    try:
        unpack_header(frame, LIMITS)
        accepted = True
    except RemoteProtocolError:
        accepted = False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert accepted == allowed
    assert peak < 32 * 1024
