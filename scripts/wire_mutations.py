"""Conversations of real messages on the wire, and the ways to damage them; for ``fuzz_wire``.

A blind mutation dies at the first checksum. So there are three depths: bytes as they are; header fields with
the header's checksum made right again; and bodies, as bytes or as values, with both checksums, sizes and
counts made right again, so that only the checks behind them can refuse.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.protocol.envelope import ITEM_SIZES, ChunkPlan, PPAction, PPEnvelope, PPResult, Reason, TensorSpec
from ppwork.protocol.header import FLAG_NEW_SCHEMA, HEADER, HEADER_BYTES, Limits, body_room
from ppwork.protocol.session import Session
from ppwork.protocol.topology import Role
from ppwork.protocol.wire import SCHEMA_SLOTS, Encoder

if TYPE_CHECKING:
    import random

SMALL = Limits(frame_bytes=512, max_body_bytes=4096, max_tensors=8, max_message_bytes=1 << 20)
LIMITS = (SMALL, SMALL, SMALL, replace(SMALL, frame_bytes=2048), Limits())
DEPTH = 3
FIELDS = {
    "version": (1, 16), "kind": (2, 8), "action": (3, 8), "flags": (4, 16), "num_tensors": (5, 16),
    "schema_id": (6, 32), "body_bytes": (7, 32), "reserved": (8, 32), "call_id": (9, -64),
    "chunk_index": (10, -64), "cache_epoch": (11, -64), "payload_bytes": (12, 64), "body_crc": (13, 32),
}  # fmt: skip
"""Place in the header, and bits; a minus says that it has a sign."""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -1, 7, 10_000, 10_001, 1 << 31, 1 << 48, 1 << 63, -(1 << 63), (1 << 64) - 1,
    0.5, math.nan, math.inf, "", "cpu", "cuda", "cuda:0", "meta", "float32", "qint8", "context.x", "x" * 129,
    "x" * 3000, "\0", b"", b"\xff" * 9, [], [0], [1 << 47] * 2 + [0], [1] * 9, [-1], {}, {"": []}, [[[]]],
    msgspec.msgpack.Ext(5, b"x"), msgspec.msgpack.Ext(-1, b"\0" * 4), msgspec.Raw(b"\x81\x01\x02"),
    msgspec.Raw(b"\x81\x90\x02"), msgspec.Raw(b"\x91" * 1500 + b"\xc0"), msgspec.Raw(b"\xc1"),
    msgspec.Raw(b"\xa2\xff\xff"), msgspec.Raw(b"\xdd\xff\xff\xff\xff"), msgspec.Raw(b"\xc6\x7f\xff\xff\xff"),
)  # fmt: skip
"""What a value of a body is replaced by."""


@dataclass(frozen=True)
class Transfer:
    """The control bytes of one message: what rides before its large tensors."""

    frame: bytes
    overflow: bytes


@dataclass(frozen=True)
class Step:
    """One message of a conversation, and what it was before it was damaged."""

    down: bool
    message: PPEnvelope | PPResult
    transfer: Transfer
    damage: str = ""
    """Name of what was done to it; empty for none."""


# Conversations


def conversation(rng: random.Random, limits: Limits) -> list[Step]:
    """Return what rank 0 and the leader say to each other in one legal session, up to its end."""
    session = Session(0, Role.STAGE0, DEPTH)
    session.joined()
    down, up = Encoder(limits), Encoder(limits)
    schemas = [_specs(rng, limits) for _ in range(rng.choice((1, 2, 3, SCHEMA_SLOTS + 2)))]
    steps: list[Step] = []

    def say(message: PPEnvelope | PPResult, specs: tuple[TensorSpec, ...] = ()) -> None:
        is_down = isinstance(message, PPEnvelope)
        encoded = (down if is_down else up).encode(message, specs)
        steps.append(Step(is_down, message, Transfer(bytes(encoded.frame), encoded.overflow)))

    def answer() -> None:
        oldest = session.in_flight[0]
        calls = oldest.plan.expected_calls
        result = PPResult(PPAction.INFER, oldest.ids, calls, rng.randrange(10**9), _metadata(rng))
        session.result(result)
        say(result, rng.choice(schemas))

    def ask(action: PPAction) -> None:
        specs, plan, cut = (), None, False
        if action is PPAction.INFER:
            specs, cut = rng.choice(schemas), rng.random() < 0.2
            recompute = any(spec.name.startswith("context.") for spec in specs)
            plan = ChunkPlan.of(rng.randint(1, 4), recompute=recompute, reset_cache=cut)
        ids = session.next_ids(action, hard_cut=cut)
        envelope = PPEnvelope(action, ids, plan, _metadata(rng))
        session.may_send(envelope)
        session.sent(envelope)
        say(envelope, specs)

    for _ in range(rng.randint(2, 14)):
        if session.in_flight and (len(session.in_flight) == DEPTH or rng.random() < 0.4):
            answer()
        else:
            ask(rng.choice((PPAction.INFER, PPAction.INFER, PPAction.INFER, PPAction.NOOP)))
    if rng.random() < 0.2:
        reason = Reason("StageError", "It broke.", {"rank": 1, "role": "leader"}, "the log")
        say(PPEnvelope(PPAction.ERROR, session.last_ids, reason=reason))
        say(PPResult(PPAction.ERROR, session.last_ids, reason=reason))
        return steps
    while session.in_flight:
        answer()
    ask(PPAction.SHUTDOWN)
    say(PPResult(PPAction.SHUTDOWN, session.last_ids))
    return steps


def _specs(rng: random.Random, limits: Limits) -> tuple[TensorSpec, ...]:
    names = [f"t{i}" for i in range(rng.choice((0, 1, 1, 2, 3, limits.max_tensors)))]
    if names and rng.random() < 0.3:
        names[0] = "context.frames"
    devices = ("cpu", "cpu", "cpu", "cuda")
    return tuple(
        TensorSpec(
            name,
            rng.choice(tuple(ITEM_SIZES)),
            tuple(rng.choice((0, 1, 2, 3, 16)) for _ in range(rng.randrange(4))),
            rng.choice(devices),
        )
        for name in names
    )


def _metadata(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        (
            {},
            {"fps": 24, "who": "é"},
            {"deep": [{"a": [None, True, -1.5, b"raw"]}, "x"]},
            {"long": "x" * rng.choice((100, 1000, 3000))},
        )
    )


# Damage to one message; ``other`` is another one of the same conversation, for those who take parts of it


def flip_bits(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Flip some bits."""
    whole = bytearray(sent.frame + sent.overflow)
    for _ in range(rng.choice((1, 1, 2, 8))):
        whole[_place(rng, len(whole))] ^= 1 << rng.randrange(8)
    return _cut(whole, len(sent.frame))


def set_bytes(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Set some bytes to values that msgpack and integers make much of."""
    whole = bytearray(sent.frame + sent.overflow)
    for _ in range(rng.choice((1, 2, 4))):
        whole[_place(rng, len(whole))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return _cut(whole, len(sent.frame))


def move_slices(rng: random.Random, sent: Transfer, other: Transfer) -> Transfer:
    """Take a slice out, double it, or put one of another message in; the frame keeps its length."""
    whole = _sliced(rng, sent.frame + sent.overflow, other.frame)
    return _cut(bytearray(whole.ljust(len(sent.frame), b"\0")), len(sent.frame))


def other_length(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Cut the frame or its overflow, or let it go on."""
    size = rng.randrange(len(sent.frame) * 2)
    if sent.overflow and rng.random() < 0.5:
        return Transfer(sent.frame, (sent.overflow * 2)[: rng.randrange(len(sent.overflow) * 2)])
    return Transfer((sent.frame * 2)[:size], sent.overflow)


def splice(rng: random.Random, sent: Transfer, other: Transfer) -> Transfer:
    """Let a message begin as one and go on as another."""
    at = rng.choice((HEADER_BYTES, rng.randrange(len(sent.frame))))
    return Transfer(sent.frame[:at] + other.frame[at:], rng.choice((sent.overflow, other.overflow)))


def noise(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Send noise."""
    return Transfer(rng.randbytes(len(sent.frame)), sent.overflow)


def header_field(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Set one or two fields of the header to an extreme, or near to what they were; the checksum is right."""
    fields = list(HEADER.unpack(sent.frame[:HEADER_BYTES]))
    for _ in range(rng.choice((1, 1, 2))):
        place, bits = FIELDS[rng.choice(tuple(FIELDS))]
        low, high = (-(1 << 63), (1 << 63) - 1) if bits < 0 else (0, (1 << bits) - 1)
        value = rng.choice(
            (low, high, 0, 1, -1, 2, 3, fields[place] - 1, fields[place] + 1, rng.randint(low, high))
        )
        fields[place] = min(max(value, low), high)
    return Transfer(_header(fields) + sent.frame[HEADER_BYTES:], sent.overflow)


def ids(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Move the three counters by little: what only the session can refuse."""
    fields = list(HEADER.unpack(sent.frame[:HEADER_BYTES]))
    for place in rng.sample((9, 10, 11), rng.choice((1, 1, 2))):
        fields[place] = max(-1, fields[place] + rng.choice((-1, 1, 2)))
    return Transfer(_header(fields) + sent.frame[HEADER_BYTES:], sent.overflow)


def body_bytes(rng: random.Random, sent: Transfer, other: Transfer) -> Transfer:
    """Damage the body's bytes; every checksum and size is right."""
    body = bytearray(_body(sent))
    for _ in range(rng.choice((1, 1, 2, 5))):
        if body:
            body[rng.randrange(len(body))] = rng.choice(
                (0x00, 0x7F, 0x80, 0xC0, 0xC1, 0xDF, rng.randrange(256))
            )
    return _with_body(sent, _sliced(rng, bytes(body), _body(other)) if rng.random() < 0.3 else bytes(body))


def body_values(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Change the body's values; every checksum and size is right, and mostly counts are, too."""
    body = msgspec.msgpack.decode(_body(sent))
    for _ in range(rng.choice((1, 1, 2))):
        _change(rng, body)
    try:
        packed = msgspec.msgpack.encode(body)
    except (OverflowError, RecursionError):
        return sent
    fields: dict[str, int] = {}
    if rng.random() < 0.8:
        fields = _counts(body)
    return _with_body(sent, packed, **fields)


def specs(rng: random.Random, sent: Transfer, _: Transfer) -> Transfer:
    """Announce other tensors in a new schema; counts and sizes are mostly made right."""
    body = msgspec.msgpack.decode(_body(sent))
    shape = [
        rng.choice((0, 1, 2, 100, 1 << 20, 1 << 40, (1 << 48) - 1, 1 << 48)) for _ in range(rng.randrange(11))
    ]
    names = rng.choice(
        (["a"], ["a", "b"], ["a", "a"], [""], [f"n{i}" for i in range(rng.choice((8, 9, 300)))])
    )
    body[2] = [
        [name, rng.choice((*ITEM_SIZES, "qint8")), shape, rng.choice(("cpu", "cuda"))] for name in names
    ]
    fields = _counts(body) if rng.random() < 0.9 else {}
    if rng.random() < 0.8:
        fields["schema_id"] = max(
            1, HEADER.unpack(sent.frame[:HEADER_BYTES])[6] + rng.choice((0, 1, 1, 1, 2))
        )
    return _with_body(sent, msgspec.msgpack.encode(body), **fields)


DAMAGES = (
    flip_bits, set_bytes, move_slices, other_length, splice, noise,
    header_field, header_field, ids, ids, body_bytes, body_values, body_values, body_values, specs, specs,
)  # fmt: skip
"""The deeper ones more often: there is more behind the checksums than before them."""


# Damage to the order of a conversation


def drop(rng: random.Random, steps: list[Step], places: list[int]) -> None:
    """Leave a message out."""
    at = rng.randrange(len(places))
    if at + 1 < len(places):
        steps[places[at + 1]] = replace(steps[places[at + 1]], damage="drop")
    del steps[places[at]]


def repeat(rng: random.Random, steps: list[Step], places: list[int]) -> None:
    """Say a message again, at once or later."""
    at = rng.choice(places)
    steps.insert(rng.randint(at + 1, len(steps)), replace(steps[at], damage="repeat"))


def swap(rng: random.Random, steps: list[Step], places: list[int]) -> None:
    """Exchange two messages."""
    one, other = rng.choice(places), rng.choice(places)
    if one != other:
        steps[one], steps[other] = (replace(steps[at], damage="swap") for at in (other, one))


def outrun(rng: random.Random, steps: list[Step], places: list[int]) -> None:
    """Let all that comes after a place come at once, before this end has said or done anything itself."""
    start = rng.choice(places)
    down = steps[start].down
    steps[start:] = [replace(step, damage="outrun") for step in steps[start:] if step.down == down]


ORDERS = (drop, repeat, swap, outrun)


def damaged(rng: random.Random, legal: list[Step], *, down: bool) -> list[Step]:
    """Return a conversation that goes wrong in one direction, at one place or at many."""
    steps = list(legal)
    places = [at for at, step in enumerate(steps) if step.down == down]
    if rng.random() < 0.15:
        rng.choice(ORDERS)(rng, steps, places)
        return steps
    # What follows the first damage meets a session that has failed; a late one meets a session in full swing.
    share, start = rng.choice(((0.3, 0), (1.0, rng.randrange(len(places)))))
    for at in places[start:]:
        if rng.random() < share:
            step, damage = steps[at], rng.choice(DAMAGES)
            spoiled = damage(rng, step.transfer, rng.choice(legal).transfer)
            if spoiled != step.transfer:
                steps[at] = replace(step, transfer=spoiled, damage=damage.__name__)
    return steps


# Bytes


def _place(rng: random.Random, size: int) -> int:
    """Return an offset, mostly in the header and the beginning of the body."""
    return rng.randrange(min(size, rng.choice((HEADER_BYTES, HEADER_BYTES, 160, size))))


def _cut(whole: bytearray, frame_bytes: int) -> Transfer:
    return Transfer(bytes(whole[:frame_bytes]), bytes(whole[frame_bytes:]))


def _sliced(rng: random.Random, whole: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(whole) + 1)
    end = min(len(whole), start + rng.randint(1, 40))
    middle = rng.choice((b"", whole[start:end] * 2, other[start:end], other[:20] + whole[start:end]))
    return whole[:start] + middle + whole[end:]


def _header(fields: list[Any]) -> bytes:
    packed = HEADER.pack(*fields)
    return packed[:-4] + struct.pack("<I", zlib.crc32(packed[:-4]))


def _body(sent: Transfer) -> bytes:
    size = HEADER.unpack(sent.frame[:HEADER_BYTES])[7]
    inline = min(size, body_room(len(sent.frame)) - HEADER_BYTES)
    return sent.frame[HEADER_BYTES : HEADER_BYTES + inline] + sent.overflow


def _with_body(sent: Transfer, body: bytes, **fields: int) -> Transfer:
    values, room = list(HEADER.unpack(sent.frame[:HEADER_BYTES])), body_room(len(sent.frame)) - HEADER_BYTES
    for name, value in {**fields, "body_bytes": len(body), "body_crc": zlib.crc32(body)}.items():
        place, bits = FIELDS[name]
        values[place] = min(value, (1 << bits) - 1)
    inline = body[:room].ljust(room, b"\0")
    return Transfer(_header(values) + inline + sent.frame[HEADER_BYTES + room :], body[room:])


def _counts(body: Any) -> dict[str, int]:  # noqa: ANN401  whatever the body has become
    """Return the header's fields as the specs of a body make them, if these are specs at all."""
    try:
        announced = msgspec.convert(body[2], tuple[TensorSpec, ...]) if body[2] else ()
        payload = sum(spec.nbytes for spec in announced)
    except (msgspec.ValidationError, KeyError, IndexError, TypeError):
        return {}
    if not announced:
        return {}
    return {"num_tensors": len(announced), "payload_bytes": max(0, payload), "flags": FLAG_NEW_SCHEMA}


def _change(rng: random.Random, tree: Any) -> None:  # noqa: ANN401  what msgpack carries
    """Change one value somewhere in a tree of lists and dicts."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(tree[key], list | dict) and tree[key] and rng.random() < 0.8:
            tree = tree[key]
            continue
        how = rng.randrange(6)
        if how == 0:
            del tree[key]
        elif how == 1 and isinstance(tree, list):
            tree.insert(key, tree[key])
        elif how == 2 and isinstance(tree, list):
            tree.append(rng.choice(VALUES))
        else:
            tree[key] = rng.choice(VALUES)
        return
