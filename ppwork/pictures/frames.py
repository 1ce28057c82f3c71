"""One message as bytes: the frame, its header, and the tensors that come after it.

Everything is encoded here as a link would encode it; only the drawing is this file's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, TensorSpec
from ppwork.protocol.header import HEADER, HEADER_BYTES, Limits, body_room
from ppwork.protocol.wire import EncodedMessage, Encoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELDS = (
    "magic", "version", "kind", "action", "flags", "num_tensors", "schema_id", "body_bytes", "reserved",
    "call_id", "chunk_index", "cache_epoch", "payload_bytes", "body_crc", "header_crc",
)  # fmt: skip
"""Names of the header's fields, in the order of ``header.HEADER``."""
WIDTHS = {"B": 1, "H": 2, "I": 4, "q": 8, "Q": 8}
LEFT, LONG, TALL = 0.35, 11.3, 0.62
"""Left side of every row, its length and its height, in inches."""
NAMES, FRAME, FIELD, AFTER, ROW = 0.4, 1.15, 3.05, 5.15, 0.4
"""Upper sides of the rows, and height of a line, in inches."""
MOST = 4
"""Parts of the frame, and transfers after it, that are named; the table has all of them."""
IN_ORDER = (style.BLUE, style.SKY, style.GREEN, style.YELLOW, style.PURPLE, style.ORANGE)


class FramePart(NamedTuple):
    """Some bytes of a message."""

    name: str
    transfer: int
    """Number of the transfer that carries it, from 1: the frame."""
    offset: int
    """From the beginning of that transfer, in bytes."""
    size: int


def frame(
    tensors: Mapping[str, tuple[str, Sequence[int]]], *, metadata: Mapping[str, Any] | None = None
) -> Picture:
    """Return the bytes of a first envelope with these tensors, at the default limits.

    Args:
        tensors: By name: dtype such as ``"bfloat16"``, and shape. All are CPU tensors.
        metadata: What the application says about the chunk; plain values.

    Raises:
        LocalProtocolError: No rank would send this: a dtype that is none, metadata that msgpack cannot carry.
    """
    specs = [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape) in tensors.items()]
    envelope = PPEnvelope(PPAction.INFER, Ids(0, 0, 0), ChunkPlan.of(4), dict(metadata or {}))
    encoded = Encoder(Limits()).encode(envelope, specs)
    parts = list(_parts(encoded))
    return Picture(_finding(encoded, parts), lambda: _draw(encoded, parts), _table(parts))


def fields() -> list[FramePart]:
    """Return the fields of the header, with their places in it."""
    sizes = [WIDTHS.get(code, 0) or int(code[:-1]) for code in re.findall(r"\d*[a-zA-Z]", HEADER.format)]
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [FramePart(name, 1, start, size) for name, start, size in zip(FIELDS, starts, sizes, strict=True)]


def _parts(encoded: EncodedMessage) -> Iterator[FramePart]:
    layout, frame_bytes = encoded.layout, len(encoded.frame)
    within = min(encoded.header.body_bytes, body_room(frame_bytes) - HEADER_BYTES)
    yield FramePart("header", 1, 0, HEADER_BYTES)
    yield FramePart("body", 1, HEADER_BYTES, within)
    transfer = 1
    if encoded.overflow:
        transfer += 1
        yield FramePart("rest of the body", transfer, 0, len(encoded.overflow))
    for spec, inline in zip(layout.specs, layout.inline, strict=True):
        if inline is not None:
            yield FramePart(spec.name, 1, inline, spec.nbytes)
        elif spec.nbytes:
            transfer += 1
            yield FramePart(spec.name, transfer, 0, spec.nbytes)


def _draw(encoded: EncodedMessage, parts: list[FramePart]) -> Figure:
    own = [part for part in parts if part.transfer == 1]
    after = [part for part in parts if part.transfer > 1]
    lines = [f"transfer {part.transfer}: {part.name}, {part.size:,} bytes" for part in after]
    if len(lines) > MOST:
        lines = [*lines[: MOST - 1], f"and {len(lines) - MOST + 1} more"]
    paper, axes = style.page(2 * LEFT + LONG, AFTER + ROW * max(1, len(lines)) + 0.2)
    total, inch = len(encoded.frame), LONG / len(encoded.frame)
    axes.text(LEFT, NAMES, f"transfer 1: the frame, {total:,} bytes", fontsize=13, fontweight="bold")
    axes.add_patch(_rectangle(LEFT, FRAME, LONG, TALL, style.FAINT))
    for number, part in enumerate(own):
        x, width = LEFT + part.offset * inch, max(part.size * inch, 0.04)
        axes.add_patch(_rectangle(x, FRAME, width, TALL, IN_ORDER[number % len(IN_ORDER)]))
        if number >= MOST:
            continue
        row = FRAME - 0.14 if number % 2 else FRAME + TALL + 0.24
        text = f"{part.name}: {part.size:,} bytes from {part.offset:,}"
        axes.text(x, row, text, fontsize=12, ha="left", va="bottom" if number % 2 else "center")
    room = body_room(total)
    body_end = max(part.offset + part.size for part in own if part.offset < room)
    last = max([room, *(part.offset + part.size for part in own)])
    for start, end, words in ((body_end, room, "for a longer body"), (last, total, "for more small tensors")):
        if (end - start) * inch > len(words) * style.CHAR:
            middle = LEFT + (start + end) / 2 * inch
            axes.text(middle, FRAME + TALL / 2, words, fontsize=11, color=style.DARK, **style.CENTRED)
    axes.plot([LEFT + room * inch] * 2, [FRAME, FRAME + TALL], color=style.DARK, linestyle=":")
    axes.text(LEFT, FIELD - 0.5, f"the header, {HEADER_BYTES} bytes", fontsize=13, fontweight="bold")
    byte = LONG / HEADER_BYTES
    for number, field in enumerate(fields()):
        x, width = LEFT + field.offset * byte, field.size * byte
        colour = style.PALE if number % 2 else "white"
        axes.add_patch(_rectangle(x, FIELD, width, 1.25, colour))
        axes.text(x + width / 2, FIELD + 0.62, field.name, fontsize=11, rotation=90, **style.CENTRED)
        axes.text(x, FIELD + 1.42, str(field.offset), fontsize=10, ha="center", va="center", color=style.DARK)
    title = "then, each part in a transfer of its own" if after else "nothing comes after it"
    axes.text(LEFT, AFTER - 0.25, title, fontsize=13, fontweight="bold")
    for number, line in enumerate(lines):
        axes.text(LEFT, AFTER + 0.12 + ROW * number, line, fontsize=12, va="center")
    return paper


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> Any:  # noqa: ANN401  of matplotlib
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="black", linewidth=0.8)


def _table(parts: list[FramePart]) -> Table:
    rows = [
        [str(part.transfer), part.name, f"{part.offset:,}", f"{part.size:,}"]
        for part in [*fields(), *parts[1:]]
    ]
    return Table(["transfer", "part", "from byte", "bytes"], rows)


def _finding(encoded: EncodedMessage, parts: list[FramePart]) -> str:
    alone = [part for part in parts if part.transfer > 1]
    inline = sum(offset is not None for offset in encoded.layout.inline)
    riding = f"{inline} of {len(encoded.layout.specs)} tensors ride in the frame"
    return (
        f"The frame has {len(encoded.frame):,} bytes, {HEADER_BYTES} of them header and "
        f"{encoded.header.body_bytes} body; {riding}. Transfers after it: "
        f"{len(alone)}, of {sum(part.size for part in alone):,} bytes."
    )
