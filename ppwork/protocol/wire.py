"""The bytes of a message: a fixed control frame, an overflow for a long body, then the large tensors.

Rules of this file:

- The first transfer of a message is one *frame* of ``Limits.frame_bytes``, the same on all ranks, so a
  receiver can post the receive before it knows anything about the message. The frame holds the header, the
  body and every small CPU tensor that fits. The rest follows in transfers whose sizes the frame announces.
- The body is deterministic msgpack, decoded into typed structs: no pickle, no code (rule R11).
- Specs travel once; while they repeat, an id replaces them. Both ends keep the same small table of specs. The
  tables stay equal because a link delivers in order.
- The place of each tensor depends on the specs alone, not on the length of the body. So a receiver that knows
  the schema knows every size that will come, and can post the receives before the message is sent.

No I/O and no torch here: bytes in, messages out.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

import msgspec

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, PPAction, PPEnvelope, PPResult, Reason, TensorSpec
from ppwork.protocol.header import (
    HEADER_BYTES,
    NO_SCHEMA,
    Header,
    Kind,
    Limits,
    body_room,
    ids_problem,
    pack_header,
    refused,
    unpack_header,
)

SCHEMA_SLOTS = 16
"""Schemas that both ends of a link remember."""
ALIGN = 64
"""Alignment in bytes of each tensor's start, in the frame and in the buffer of the tensors behind it."""
JOIN_BYTES = 256 << 10
"""Largest tensor that shares a transfer; the copy of a larger tensor costs more than its own transfer."""
GAVE = {
    Kind.ENVELOPE: "what `encode` returned, or `send` was given",
    Kind.RESULT: "what `step` returned, or `reply` was given",
}
"""Where the tensors of a message come from."""


@dataclass(frozen=True)
class Layout:
    """Places of a schema's tensors; see ``lay_out``."""

    specs: tuple[TensorSpec, ...]
    inline: tuple[int | None, ...]
    """Per tensor: its offset in the frame, or ``None``."""
    behind: tuple[int | None, ...]
    """Per tensor: its offset in the receive buffer, or ``None`` if it does not come behind the frame."""
    joined_bytes: int
    """Size of the buffer's start, which comes in one transfer; each later tensor has its own transfer."""
    recv_bytes: int
    """Size of the receive buffer: host memory for all CPU tensors behind the frame, one after another."""
    payload_bytes: int
    """Bytes of all tensors together, without padding."""


def lay_out(specs: Sequence[TensorSpec], frame_bytes: int) -> Layout:
    """Decide which tensors travel in the frame and where the others are received; both ends compute it alike.

    In declared order, each CPU tensor that still fits behind the room of the body is placed in the frame, at
    an aligned offset. CUDA tensors never are: to copy them would synchronise the GPU. Of the other CPU
    tensors, all of up to ``JOIN_BYTES`` are received first, in one transfer.
    """
    cursor, end = body_room(frame_bytes), 0
    inline: list[int | None] = [None] * len(specs)
    behind: list[int | None] = [None] * len(specs)
    small: list[int] = []
    large: list[int] = []
    for place, spec in enumerate(specs):
        start = _aligned(cursor)
        if spec.device != "cpu" or spec.nbytes == 0:
            continue
        if start + spec.nbytes <= frame_bytes:
            inline[place], cursor = start, start + spec.nbytes
        else:
            (small if spec.nbytes <= JOIN_BYTES else large).append(place)
    if len(small) == 1:  # there is nothing to join it with
        small, large = [], small + large
    for place in small + large:
        behind[place] = end
        end = _aligned(end + specs[place].nbytes)
    joined_bytes = sum(_aligned(specs[place].nbytes) for place in small)
    payload_bytes = sum(spec.nbytes for spec in specs)
    return Layout(tuple(specs), tuple(inline), tuple(behind), joined_bytes, end, payload_bytes)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


NO_TENSORS = Layout((), (), (), 0, 0, 0)


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The variable part of both messages."""

    metadata: dict[str, Any] = {}
    plan: ChunkPlan | None = None
    specs: tuple[TensorSpec, ...] | None = None
    """Present with a new schema only."""
    reason: Reason | None = None
    observed_calls: int = 0
    stage1_ns: int = 0


@dataclass(slots=True)
class EncodedMessage:
    """A message ready to leave: from here on only the link itself can raise."""

    header: Header
    frame: bytearray
    """``frame_bytes`` long; the inline tensors still have to be copied to their places."""
    overflow: bytes
    layout: Layout


@dataclass(slots=True)
class Decoded:
    """A message whose specs are known and checked, but whose tensors have not been received."""

    header: Header
    body: Body
    layout: Layout


class Encoder:
    """The sending end of one direction of a link."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._msgpack = msgspec.msgpack.Encoder(order="deterministic")
        self._schemas: dict[tuple[TensorSpec, ...], tuple[int, Layout]] = {}
        self._next_schema = NO_SCHEMA + 1

    def encode(self, message: PPEnvelope | PPResult, specs: Sequence[TensorSpec]) -> EncodedMessage:
        """Turn a message into its frame; the last part of preflight (rule R1).

        Args:
            message: The message; its ``tensors`` are not touched.
            specs: One spec per tensor, in declared order.

        Raises:
            LocalProtocolError: The message has metadata that msgpack cannot carry, an inconsistent chunk
                plan, a spec that cannot travel, a repeated name, impossible ids, a size over the limits, or
                parts that the action does not allow (the sending rank only).
        """
        specs = tuple(specs)
        announced = self._schemas.get(specs)
        self.check(message, specs, new_specs=announced is None)
        is_new = bool(specs) and announced is None
        schema_id, layout = announced or (
            self._next_schema if specs else NO_SCHEMA,
            lay_out(specs, self.limits.frame_bytes),
        )
        body = self.body(message, specs if is_new else None)
        if is_new:
            self._remember(schema_id, layout)  # only now: a refused message announces no schema
        kind = Kind.ENVELOPE if isinstance(message, PPEnvelope) else Kind.RESULT
        sizes = len(specs), len(body), layout.payload_bytes
        header = Header(kind, message.action, message.ids, is_new, schema_id, *sizes, zlib.crc32(body))
        room = body_room(self.limits.frame_bytes) - HEADER_BYTES
        frame = bytearray(self.limits.frame_bytes)
        frame[:HEADER_BYTES] = pack_header(header)
        frame[HEADER_BYTES : HEADER_BYTES + min(room, len(body))] = body[:room]
        return EncodedMessage(header, frame, body[room:], layout)

    def check(
        self, message: PPEnvelope | PPResult, specs: tuple[TensorSpec, ...], *, new_specs: bool
    ) -> None:
        """Refuse a message that no receiver would accept, as ``encode`` does; specs are checked if new."""
        is_envelope = isinstance(message, PPEnvelope)
        plan = message.plan if isinstance(message, PPEnvelope) else None
        problem = (
            (specs_problem(specs, self.limits) if new_specs else None)
            or ids_problem(message.action, message.ids)
            or parts_problem(message.action, plan, specs, message.reason, is_envelope=is_envelope)
        )
        if problem is not None:
            raise LocalProtocolError(
                problem,
                where=message.ids.where(),
                check_first=f"{GAVE[Kind.ENVELOPE if is_envelope else Kind.RESULT]}; nothing was sent",
            )

    def body(self, message: PPEnvelope | PPResult, specs: tuple[TensorSpec, ...] | None = None) -> bytes:
        """Return the variable part, with the specs of a new schema; refuse metadata as ``encode`` does."""
        calls = (message.observed_calls, message.stage1_ns) if isinstance(message, PPResult) else (0, 0)
        plan = message.plan if isinstance(message, PPEnvelope) else None
        try:
            check_plain(message.metadata)
            body = self._msgpack.encode(Body(dict(message.metadata), plan, specs, message.reason, *calls))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise LocalProtocolError(
                f"The metadata could not be serialised: {error}.",
                where=message.ids.where(),
                check_first="; ".join(
                    [
                        *getattr(error, "__notes__", []),
                        "metadata takes str, numbers, bool, None, bytes, lists (a tuple arrives as one), "
                        "and dicts with str keys",
                    ]
                ),
            ) from error
        if len(body) > self.limits.max_body_bytes:
            raise LocalProtocolError(
                f"Metadata and names took {len(body)} bytes; {self.limits.max_body_bytes} are allowed.",
                where=message.ids.where(),
                check_first="send large data as a tensor, not as metadata",
            )
        return body

    def _remember(self, schema_id: int, layout: Layout) -> None:
        self._next_schema += 1
        self._schemas[layout.specs] = (schema_id, layout)
        # The receiver keeps SCHEMA_SLOTS schemas; forget the schema whose slot this id takes over.
        for specs, (old_id, _) in list(self._schemas.items()):
            if old_id <= schema_id - SCHEMA_SLOTS:
                del self._schemas[specs]


class Decoder:
    """The receiving end of one direction of a link. It trusts nothing that it has not checked."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._msgpack = msgspec.msgpack.Decoder(Body)
        self._schemas: dict[int, tuple[int, Layout]] = {}
        self._next_schema = NO_SCHEMA + 1

    def header(self, frame: bytes | bytearray | memoryview) -> Header:
        """Check the fixed part of a frame.

        Raises:
            RemoteProtocolError: The frame has a wrong length, magic, version, kind, action or checksum,
                impossible ids, or a size over the limits (the receiving rank only; nothing was allocated).
        """
        return unpack_header(frame, self.limits)

    def body(self, header: Header, frame: bytes | bytearray | memoryview, overflow: bytes) -> Decoded:
        """Check the body and find the tensors' specs and places.

        Args:
            header: The frame's header, from the method ``header``.
            frame: The whole frame.
            overflow: Exactly ``header.overflow_bytes`` bytes.

        Raises:
            RemoteProtocolError: The message has a bad checksum, a body that is not ours, an unknown or
                repeated schema id, specs that cannot travel, sizes that contradict the header, parts that the
                action does not allow, or a chunk plan that contradicts itself (the receiving rank only).
        """
        inline = min(header.body_bytes, body_room(self.limits.frame_bytes) - HEADER_BYTES)
        raw = bytes(frame[HEADER_BYTES : HEADER_BYTES + inline]) + overflow
        if len(raw) != header.body_bytes or zlib.crc32(raw) != header.body_crc:
            raise refused("The body's checksum was wrong.", "memory or network of the peer", header.ids)
        try:
            body = self._msgpack.decode(raw)
            check_plain(body.metadata)
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError) as error:
            raise refused(f"The body did not read: {error}.", "the peer's ppwork", header.ids) from error
        layout = self._layout(header, body)
        problem = self._contradiction(header, body, layout)
        if problem is not None:
            raise refused(problem, "the log of the sender around this call_id", header.ids)
        if header.new_schema:
            self._schemas[header.schema_id % SCHEMA_SLOTS] = (header.schema_id, layout)
            self._next_schema += 1
        return Decoded(header, body, layout)

    def layout(self, schema_id: int) -> Layout | None:
        """Return the layout of a schema, ``None`` if it is not known here; for receives posted ahead."""
        stored_id, layout = self._schemas.get(schema_id % SCHEMA_SLOTS, (NO_SCHEMA, None))
        return layout if stored_id == schema_id else None

    def _layout(self, header: Header, body: Body) -> Layout:
        specs = body.specs or ()
        if header.new_schema != bool(specs):
            raise refused(
                f"The header said new_schema={header.new_schema}, but {len(specs)} specs came with it.",
                "the peer's ppwork",
                header.ids,
            )
        if header.new_schema:
            if (problem := specs_problem(specs, self.limits)) is not None:
                raise refused(problem, f"{GAVE[header.kind]}, on the peer", header.ids)
            return lay_out(specs, self.limits.frame_bytes)
        if header.schema_id == NO_SCHEMA:
            return NO_TENSORS
        layout = self.layout(header.schema_id)
        if layout is None:
            raise refused(
                f"Schema {header.schema_id} was never announced on this link.",
                "do both ends run the same ppwork?",
                header.ids,
            )
        return layout

    def _contradiction(self, header: Header, body: Body, layout: Layout) -> str | None:
        specs = layout.specs
        if header.new_schema and header.schema_id != self._next_schema:
            # A receive for this id may already be posted: with other sizes the backend would abort.
            return f"Schema {header.schema_id} was announced where {self._next_schema} is next."
        if len(specs) != header.num_tensors:
            return f"The header announced {header.num_tensors} tensors, the specs are {len(specs)}."
        if layout.payload_bytes != header.payload_bytes:
            return (
                f"The header announced {header.payload_bytes} bytes, the specs make {layout.payload_bytes}."
            )
        is_envelope = header.kind is Kind.ENVELOPE
        return parts_problem(header.action, body.plan, specs, body.reason, is_envelope=is_envelope)


def parts_problem(
    action: PPAction,
    plan: ChunkPlan | None,
    specs: Sequence[TensorSpec],
    reason: Reason | None,
    *,
    is_envelope: bool,
) -> str | None:
    """Say which part the action lacks or must not have, or what is wrong in its plan (both ends, R1)."""
    if action is PPAction.INFER and is_envelope:
        if plan is None:
            return "An INFER envelope came without the plan of its chunk."
    elif plan is not None:
        return f"The plan of a chunk came with a {action.name}; only an INFER envelope has one."
    if action is not PPAction.INFER and specs:
        return f"A {action.name} came with {len(specs)} tensors; only INFER carries any."
    if action is PPAction.ERROR and reason is None:
        return "An ERROR came without its reason."
    if action is not PPAction.ERROR and reason is not None:
        return f"A {action.name} came with the reason of an ERROR."
    return None if plan is None else plan.problem(specs)


def specs_problem(specs: Sequence[TensorSpec], limits: Limits) -> str | None:
    """Say why these tensors cannot travel together, or ``None`` if they can."""
    if len(specs) > limits.max_tensors:
        return f"A message had {len(specs)} tensors; {limits.max_tensors} are allowed: stack or join some."
    for spec in specs:
        if (problem := spec.problem()) is not None:
            return problem
    if len({spec.name for spec in specs}) != len(specs):
        return "Two tensors of a message had the same name."
    total = sum(spec.nbytes for spec in specs)
    if total > limits.max_message_bytes:
        return f"The tensors had {total} bytes; {limits.max_message_bytes} are allowed."
    return None


def check_plain(metadata: object) -> None:
    """Refuse values that msgpack cannot carry or returns as another type: a set as a list, a date as text.

    Raises:
        TypeError: It is no mapping, or there is such a value; names its place, such as
            ``metadata['prompts'][0]``, and its type. A note says what to give in its place.
        RecursionError: The metadata is nested too deep, or contains itself.
    """
    if not isinstance(metadata, Mapping):
        raise TypeError(f"a {type(metadata).__name__} was given, and not a dict")
    if (problem := _not_plain(metadata)) is not None:
        place_and_kind, remedy = problem
        error = TypeError(f"at metadata{place_and_kind}")
        error.add_note(remedy)
        raise error


def _not_plain(value: object) -> tuple[str, str] | None:
    """Return place and kind of the first part that cannot travel, and what to give in its place."""
    if value is None or isinstance(value, str | float | bytes):
        return None
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else (" an int of more than 64 bits", "`str(...)` of it")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                return (
                    f" the key {key!r}, whose type is {type(key).__name__} and not str",
                    "`str(...)` of the key",
                )
            if (problem := _not_plain(item)) is not None:
                return f"[{key!r}]{problem[0]}", problem[1]
        return None
    if isinstance(value, list | tuple):
        for place, item in enumerate(value):
            if (problem := _not_plain(item)) is not None:
                return f"[{place}]{problem[0]}", problem[1]
        return None
    kind, remedy = _kind_and_remedy(value)
    return f" {kind} {type(value).__name__}, which would not come back as one", remedy


def _kind_and_remedy(value: object) -> tuple[str, str]:
    if is_dataclass(value):
        return "a dataclass", "`dataclasses.asdict(...)` makes a dict of it"
    if isinstance(value, Enum):
        return "an enum", "its `.name` or its `.value`"
    kind = "an object of type"
    if isinstance(value, set | frozenset):
        return kind, "`sorted(...)` makes a list of it"
    if hasattr(value, "tolist"):  # of numpy or torch, which this room does not import
        if getattr(value, "ndim", 0) == 0:
            return kind, "its `.item()`, a plain number"
        return kind, "a tensor goes among the tensors; `.tolist()` makes a list of a small one"
    return kind, "`str(...)` of it, or its parts"


def to_message(decoded: Decoded, tensors: Mapping[str, Any]) -> PPEnvelope | PPResult:
    """Return the message: the decoded parts and the received tensors."""
    header, body = decoded.header, decoded.body
    if header.kind is Kind.ENVELOPE:
        return PPEnvelope(header.action, header.ids, body.plan, body.metadata, tensors, body.reason)
    return PPResult(
        header.action, header.ids, body.observed_calls, body.stage1_ns, body.metadata, tensors, body.reason
    )
