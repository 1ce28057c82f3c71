"""The lines between a launcher and its nodes: messages to bytes and back. Pure: no pipe, no file, no clock.

A message is JSON, cut into lines of at most ``LINE`` bytes, because ``srun`` mixes longer ones of several
tasks. Each line names the node that it comes from or goes to, since one pipe may serve all of them. What else
comes down such a pipe (a greeting of the host's shell, a warning of ``srun``) is told apart and kept.

Neither side is trusted: no pickle, every size has a bound, and a line that does not fit ends the
conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from ppwork.errors import PPWorkError

VERSION = 2
"""Of these lines."""
LINE = 1000
"""Bytes of a line, its end included: ``srun`` keeps those up to 1024 whole."""
MOST = 1 << 20
"""Bytes of a message, in all of its lines."""
ARGUMENTS, ARGUMENT = 4096, (128 << 10) - 1
"""Arguments of a program of one's own at most, and bytes of one: Linux takes no longer one."""
PIECE = 48 << 10
"""Bytes of a file that one message brings."""
ALL = -1
"""Number that addresses every node."""
SLURM = "slurm"
"""In place of a node's number: ``srun`` has numbered its tasks."""
HOSTS = 1024
"""Nodes at most."""
ADDRESSES = 64
"""Of one host that are tried at most."""
_LINE = re.compile(rb"@pp (-1|\d{1,4})([+.])")
_HEAD = len(b"@pp 1023+\n")

Text = Annotated[str, Meta(max_length=4096)]
Short = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=HOSTS)]
Nanoseconds = Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]
Place = Annotated[int, Meta(ge=0, lt=1 << 48)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class NodeWireError(PPWorkError):
    """What came over the pipe to a node was not said by a node, or not now."""


class NodeMessage(msgspec.Struct, frozen=True, tag_field="is", forbid_unknown_fields=False):
    """Anything that is said."""

    @property
    def kind(self) -> str:
        """What it is called on the wire."""
        return str(type(self).__struct_config__.tag)


class Address(msgspec.Struct, frozen=True):
    """A place that others may reach: of an interface, by an address, at a port."""

    interface: Short
    address: Short
    port: Port = 0


class Way(msgspec.Struct, frozen=True):
    """A connection that was tried and works: to a place of the first host, from one here."""

    to: Address
    own: Address


Addresses = Annotated[tuple[Address, ...], Meta(max_length=ADDRESSES)]


class Hello(NodeMessage, frozen=True, tag="hello"):
    """First word of a node: what there is on its host."""

    wire: int
    ppwork: Short
    torch: Short
    """Empty: there is none."""
    python: Short
    host: Short
    clock: Short
    """Name of the clock, as ``Clock.name``: a node of the launcher's own host has the launcher's."""
    cores: Count
    gpus: Count


class Look(NodeMessage, frozen=True, tag="look", kw_only=True):
    """To a node: what the run needs of its host; it brings the secret."""

    secret: Annotated[bytes, Meta(max_length=64)]
    run: Short
    """Name of the run."""
    folder: Text
    """The run's, on the launcher's host."""
    marker: Short
    """Content of a file there; a host that reads it there shares the folder. Empty: it need not look."""
    cwd: Text
    needs: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """Files that must be there."""
    freeze_s: float


class Looked(NodeMessage, frozen=True, tag="looked", kw_only=True):
    """Of a node: what it found."""

    folder: Text
    """Where its ranks will write."""
    shared: bool
    """That is the launcher's own folder."""
    free_mb: float
    missing: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()


class Listen(NodeMessage, frozen=True, tag="listen"):
    """To the first node: open a socket on each address on which others may reach it."""

    loopback: bool
    """On its loopback, too."""
    others: bool
    public: bool
    """On addresses of the Internet, too."""


class Listening(NodeMessage, frozen=True, tag="listening"):
    """Of the first node: where it listens; ``refused`` are addresses of the Internet."""

    at: Addresses
    refused: Addresses = ()


class Reach(NodeMessage, frozen=True, tag="reach"):
    """To the other nodes: try these addresses of the first one."""

    at: Addresses


class Reached(NodeMessage, frozen=True, tag="reached"):
    """Of another node: which of them worked."""

    ways: Annotated[tuple[Way, ...], Meta(max_length=ADDRESSES)]


class StartRun(NodeMessage, frozen=True, tag="start", kw_only=True):
    """To a node: start ranks."""

    program: Annotated[tuple[Text, ...], Meta(max_length=64)]
    """What torchrun starts; words in braces are folders of the host."""
    arguments: Annotated[
        tuple[Annotated[str, Meta(max_length=ARGUMENT)], ...], Meta(max_length=ARGUMENTS)
    ] = ()
    """The program's own, after those words: taken as they are."""
    plan: Annotated[str, Meta(max_length=MOST // 2)]
    ranks: Count
    first: Count
    """Its first rank."""
    hosts: Count
    address: Short
    port: Port
    interface: Short
    run_id: Short
    threads: Count
    start_s: float
    limit_s: float
    warm: bool = False
    """Its ranks may be forked from a process that has torch imported, if the host's environment asks so."""


class Beat(NodeMessage, frozen=True, tag="beat"):
    """To a node; it answers at once."""

    sent_ns: Nanoseconds


class Answer(NodeMessage, frozen=True, tag="answer"):
    """Of a node, to a beat: what the beat had, and its own clock."""

    sent_ns: Nanoseconds
    now_ns: Nanoseconds


class Piece(NodeMessage, frozen=True, tag="piece"):
    """Of a node: bytes of a file; ``last`` is said of a file that comes whole, and not of one that grows."""

    name: Annotated[str, Meta(max_length=128)]
    at: Place
    data: Annotated[bytes, Meta(max_length=PIECE)]
    last: bool | None = None


class Stays(NodeMessage, frozen=True, tag="stays"):
    """Of a node: a file that is too large for the pipe; one that grows has come as far as it may."""

    path: Text
    size: Place


class Quiet(NodeMessage, frozen=True, tag="quiet"):
    """Of a node: over the ranks' network it has not heard another node."""

    peer: Count
    quiet_s: float
    closed: bool
    """The connection was closed."""


class NodeDone(NodeMessage, frozen=True, tag="done"):
    """Last word of a node: no rank is left on its host, and all files have been sent.

    Attributes:
        code: As ``torchrun`` returns it.
        free_mb: What may still be written where its ranks wrote.
    """

    code: int
    free_mb: float


class Refused(NodeMessage, frozen=True, tag="refused"):
    """Last word of a node that cannot do what it was asked."""

    what: Text
    check_first: Text


class Taken(NodeMessage, frozen=True, tag="taken"):
    """To a node: its ``NodeDone`` has come, and so has all before it; what it sent need not be kept."""


class EndRun(NodeMessage, frozen=True, tag="end"):
    """To a node: end what runs, send what there is, and leave."""

    why: Short


ToNode = Look | Listen | Reach | StartRun | Beat | Taken | EndRun
OfNode = Hello | Looked | Listening | Reached | Answer | Piece | Stays | Quiet | NodeDone | Refused
Said = ToNode | OfNode
_decoder = msgspec.json.Decoder(ToNode | OfNode)
_encoder = msgspec.json.Encoder()


def lines_of(message: NodeMessage, node: int) -> bytes:
    """Return the lines of a message from or to a node.

    Raises:
        NodeWireError: It is too long.
    """
    data = _encoder.encode(message)
    if len(data) > MOST:
        raise NodeWireError(
            f"A message to a host was {len(data)} bytes long; {MOST} are allowed.",
            check_first="the options of the plan",
        )
    step = LINE - _HEAD
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    return b"".join(
        b"@pp %d%b%b\n" % (node, b"." if number == len(pieces) else b"+", piece)
        for number, piece in enumerate(pieces, 1)
    )


class Reader:
    """Bytes of a pipe to messages.

    Attributes:
        noise: Last lines that were none of ours, at most ``NOISE`` of them.
    """

    NOISE = 20

    def __init__(self) -> None:
        self.noise: list[str] = []
        self._rest = b""
        self._begun: dict[int, list[bytes]] = {}

    def feed(self, data: bytes) -> Iterator[tuple[int, Said]]:
        """Yield the messages that are whole now, each with the node that it names.

        Raises:
            NodeWireError: A line of ours is broken; what comes after it is not read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if (message := self._line(line)) is not None:
                yield message
        if len(self._rest) > LINE:
            self._line(self._rest)  # either it is none of ours, or too long
            self._rest = b"?"

    def _line(self, line: bytes) -> tuple[int, Said] | None:
        head = _LINE.match(line)
        if head is None:
            if line.strip() and line != b"?":
                self.noise = [*self.noise, line[:LINE].decode(errors="replace").rstrip()][-self.NOISE :]
            return None
        node, payload = int(head[1]), line[head.end() :]
        if len(line) >= LINE:
            raise NodeWireError(f"A line of {len(line)} bytes came; {LINE} are allowed.")
        begun = self._begun.setdefault(node, [])
        begun.append(payload)
        if len(begun) * LINE > 2 * MOST or len(self._begun) > HOSTS:
            raise NodeWireError(f"A message without an end came, of more than {MOST} bytes.")
        if head[2] == b"+":
            return None
        del self._begun[node]
        try:
            return node, _decoder.decode(b"".join(begun))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise NodeWireError(f"A line does not read: {error}.") from error
