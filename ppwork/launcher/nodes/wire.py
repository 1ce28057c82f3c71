"""The lines between a launcher and its nodes: messages to bytes and back. No pipe, no file, no clock here.

A message is JSON, cut into lines of at most ``LINE`` bytes, because ``srun`` mixes longer lines of several
tasks. Each line names the node that it comes from or goes to, since one pipe may serve all nodes. Other lines
on such a pipe (a greeting of the host's shell, a warning of ``srun``) are recognised and kept.

Neither side is trusted: no pickle, every size has a bound, and a malformed line ends the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from ppwork.errors import PPWorkError

VERSION = 2
"""Version of these lines."""
LINE = 1000
"""Most bytes of a line with its end: ``srun`` keeps lines of up to 1024 whole."""
MOST = 1 << 20
"""Most bytes of a message, over all its lines."""
ARGUMENTS, ARGUMENT = 4096, (128 << 10) - 1
"""Most arguments of a user's own program, and most bytes of one: Linux takes no longer argument."""
PIECE = 48 << 10
"""Most bytes of a file in one message."""
ALL = -1
"""Number that addresses every node."""
SLURM = "slurm"
"""Replaces a node's number: ``srun`` has numbered its tasks."""
HOSTS = 1024
"""Most nodes."""
ADDRESSES = 64
"""Most addresses of one host that are tried."""
_LINE = re.compile(rb"@pp (-1|\d{1,4})([+.])")
_HEAD = len(b"@pp 1023+\n")

Text = Annotated[str, Meta(max_length=4096)]
Short = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=HOSTS)]
Nanoseconds = Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]
Place = Annotated[int, Meta(ge=0, lt=1 << 48)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class NodeWireError(PPWorkError):
    """A message on the pipe to a node is not a node's, or comes at the wrong time."""


class NodeMessage(msgspec.Struct, frozen=True, tag_field="is", forbid_unknown_fields=False):
    """Any message."""

    @property
    def kind(self) -> str:
        """Name of this kind of message on the wire."""
        return str(type(self).__struct_config__.tag)


class Address(msgspec.Struct, frozen=True):
    """A place that others may reach: an interface, an address on it, and a port."""

    interface: Short
    address: Short
    port: Port = 0


class Way(msgspec.Struct, frozen=True):
    """A connection that was tried and works: to a place of the first host, from a place here."""

    to: Address
    own: Address


Addresses = Annotated[tuple[Address, ...], Meta(max_length=ADDRESSES)]


class Hello(NodeMessage, frozen=True, tag="hello"):
    """First message of a node: what its host has."""

    wire: int
    ppwork: Short
    torch: Short
    """Empty if the host has none."""
    python: Short
    host: Short
    clock: Short
    """Name of the clock, as ``Clock.name``: a node on the launcher's own host has the launcher's."""
    cores: Count
    gpus: Count


class Look(NodeMessage, frozen=True, tag="look", kw_only=True):
    """To a node: what the run needs of its host; also brings the secret."""

    secret: Annotated[bytes, Meta(max_length=64)]
    run: Short
    """Name of the run."""
    folder: Text
    """The run's folder on the launcher's host."""
    marker: Short
    """Content of a file in that folder; a host that reads it there shares the folder. Empty: do not look."""
    cwd: Text
    needs: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """Files that must exist on the host."""
    freeze_s: float


class Looked(NodeMessage, frozen=True, tag="looked", kw_only=True):
    """From a node: what it found."""

    folder: Text
    """Folder into which its ranks will write."""
    shared: bool
    """Whether that is the launcher's own folder."""
    free_mb: float
    missing: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()


class Listen(NodeMessage, frozen=True, tag="listen"):
    """To the first node: open a socket on each address on which others may reach it."""

    loopback: bool
    """Also on its loopback."""
    others: bool
    public: bool
    """Also on addresses of the Internet."""


class Listening(NodeMessage, frozen=True, tag="listening"):
    """From the first node: where it listens; ``refused`` are addresses of the Internet."""

    at: Addresses
    refused: Addresses = ()


class Reach(NodeMessage, frozen=True, tag="reach"):
    """To the other nodes: try these addresses of the first node."""

    at: Addresses


class Reached(NodeMessage, frozen=True, tag="reached"):
    """From another node: which addresses worked."""

    ways: Annotated[tuple[Way, ...], Meta(max_length=ADDRESSES)]


class StartRun(NodeMessage, frozen=True, tag="start", kw_only=True):
    """To a node: start ranks."""

    program: Annotated[tuple[Text, ...], Meta(max_length=64)]
    """What torchrun starts; words in braces stand for folders of the host."""
    arguments: Annotated[
        tuple[Annotated[str, Meta(max_length=ARGUMENT)], ...], Meta(max_length=ARGUMENTS)
    ] = ()
    """The program's own arguments, after those words; passed on unchanged."""
    plan: Annotated[str, Meta(max_length=MOST // 2)]
    ranks: Count
    first: Count
    """The host's first rank."""
    hosts: Count
    address: Short
    port: Port
    interface: Short
    run_id: Short
    threads: Count
    start_s: float
    limit_s: float
    warm: bool = False
    """Whether its ranks may be forked from a process with torch, if the host's environment asks for that."""


class Beat(NodeMessage, frozen=True, tag="beat"):
    """To a node, which answers at once."""

    sent_ns: Nanoseconds


class Answer(NodeMessage, frozen=True, tag="answer"):
    """From a node, to a beat: the beat's time, and the node's own clock."""

    sent_ns: Nanoseconds
    now_ns: Nanoseconds


class Piece(NodeMessage, frozen=True, tag="piece"):
    """From a node: bytes of a file; ``last`` is set for a file that comes whole, and ``None`` if it grows."""

    name: Annotated[str, Meta(max_length=128)]
    at: Place
    data: Annotated[bytes, Meta(max_length=PIECE)]
    last: bool | None = None


class Stays(NodeMessage, frozen=True, tag="stays"):
    """From a node: a file that is too large for the pipe; a growing one has come up to its limit."""

    path: Text
    size: Place


class Quiet(NodeMessage, frozen=True, tag="quiet"):
    """From a node: it has not heard another node over the ranks' network."""

    peer: Count
    quiet_s: float
    closed: bool
    """Whether the connection was closed."""


class NodeDone(NodeMessage, frozen=True, tag="done"):
    """Last message of a node: no rank is left on its host, and all files have been sent.

    Attributes:
        code: torchrun's exit code, as ``torchrun`` returns it.
        free_mb: Free space where its ranks wrote.
    """

    code: int
    free_mb: float


class Refused(NodeMessage, frozen=True, tag="refused"):
    """Last message of a node that cannot do what it was asked."""

    what: Text
    check_first: Text


class Taken(NodeMessage, frozen=True, tag="taken"):
    """To a node: its ``NodeDone`` and all before it have come; it need not keep its files."""


class EndRun(NodeMessage, frozen=True, tag="end"):
    """To a node: end the ranks, send what there is, and leave."""

    why: Short


ToNode = Look | Listen | Reach | StartRun | Beat | Taken | EndRun
OfNode = Hello | Looked | Listening | Reached | Answer | Piece | Stays | Quiet | NodeDone | Refused
Said = ToNode | OfNode
_decoder = msgspec.json.Decoder(ToNode | OfNode)
_encoder = msgspec.json.Encoder()


def lines_of(message: NodeMessage, node: int) -> bytes:
    """Return the lines of a message from or to a node.

    Raises:
        NodeWireError: The message is too long.
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
    """Turns the bytes of a pipe into messages.

    Attributes:
        noise: The last lines that are not ours, at most ``NOISE``.
    """

    NOISE = 20

    def __init__(self) -> None:
        self.noise: list[str] = []
        self._rest = b""
        self._begun: dict[int, list[bytes]] = {}

    def feed(self, data: bytes) -> Iterator[tuple[int, Said]]:
        """Yield the messages that are complete now, each with the node that it names.

        Raises:
            NodeWireError: A line of ours is broken; nothing after it is read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if (message := self._line(line)) is not None:
                yield message
        if len(self._rest) > LINE:
            self._line(self._rest)  # it is either not ours, or too long
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
