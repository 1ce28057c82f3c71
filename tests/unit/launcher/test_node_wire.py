"""Lines between a launcher and its nodes: whole again after any cut, and a refusal for anything else."""

from __future__ import annotations

import random
import zlib
from typing import get_args

import msgspec
import pytest

from ppwork.errors import PPWorkError
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.wire import ALL, LINE, MOST, NodeWireError, Reader, lines_of

ROUNDS = 4000
START = wire.StartRun(
    program=("-m", "ppwork", "worker", "{folder}"),
    plan='{"options": "' + "x\u00e9\n" * 900 + '"}',
    ranks=2, first=1, hosts=2, address="10.0.0.1", port=29400, interface="eth0", run_id="5f", threads=1,
    start_s=60.0, limit_s=3600.0,
)  # fmt: skip
MESSAGES = [
    START,
    msgspec.structs.replace(START, arguments=("{folder}", *["x" * 4000] * 100, "x" * wire.ARGUMENT)),
    wire.Hello(1, "0.1", "2.13", "3.11", "gpu-a", "gpu-a 5f", 8, 1),
    wire.Look(secret=b"s" * 64, run="r", folder="/runs/r", marker="m", cwd="/", freeze_s=2.0),
    wire.Looked(folder="/tmp/r", shared=False, free_mb=1e3, missing=("/clip.mp4",)),
    wire.Listening((wire.Address("eth0", "10.0.0.1", 4000),)),
    wire.Piece("spans-rank0.jsonl", 0, bytes(range(256)) * 192),
    wire.Quiet(1, 2.5, closed=False),
    wire.NodeDone(-9, 1e3),
    wire.EndRun("over"),
    wire.Beat(1 << 61),
]


def test_messages_come_back_whole_whatever_they_are_cut_into_and_whatever_stands_between():
    """A greeting of a shell is no line of ours; several nodes speak through one pipe."""
    sent, data = [], b"Welcome to gpu-a!\n"
    for number, message in enumerate(MESSAGES):
        sent.append((number % 3 + ALL, message))
        data += lines_of(message, number % 3 + ALL) + b"srun: warning @pp\n"
    assert max(map(len, data.split(b"\n"))) < LINE
    dice = random.Random(7)
    for _ in range(20):
        reader, came, at = Reader(), [], 0
        while at < len(data):
            step = dice.choice((1, 7, 999, 1000, 1001, 70_000))
            came += reader.feed(data[at : at + step])
            at += step
        assert came == sent
        assert reader.noise[0] == "Welcome to gpu-a!"


def test_every_message_is_among_those_that_are_read_back():
    assert {type(message) for message in MESSAGES} < {*get_args(wire.ToNode), *get_args(wire.OfNode)}


def test_who_changes_a_message_changes_the_version():
    """Two versions that call themselves the same would lose each other's node in mid-run."""
    kinds = get_args(wire.ToNode) + get_args(wire.OfNode)
    fields = {kind.__struct_config__.tag: kind.__struct_fields__ for kind in kinds}
    now = zlib.crc32(repr(sorted(fields.items())).encode())
    assert (wire.VERSION, now) == (2, 1239560438), "other fields: count VERSION up, and put both numbers here"


def test_damaged_lines_are_a_message_or_a_refusal_and_nothing_grows():
    """Nobody trusts a host: whatever comes, a bounded message or one kind of error."""
    dice, refused = random.Random(11), 0
    whole = [lines_of(message, 1) for message in MESSAGES if len(message_bytes(message)) < 3000]
    for _ in range(ROUNDS):
        data = bytearray(dice.choice(whole))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 40)]
                case 2:
                    data[at:at] = dice.randbytes(dice.randint(1, 40))
                case 3:
                    data[at:at] = data[: dice.randint(1, len(data))]
            if not data:
                break
        reader = Reader()
        try:
            for _, message in reader.feed(bytes(data)):
                assert isinstance(message, wire.ToNode | wire.OfNode)
        except NodeWireError:
            refused += 1
        assert len(reader.noise) <= Reader.NOISE
    assert refused > ROUNDS / 20


def message_bytes(message) -> bytes:
    return msgspec.json.encode(message)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"@pp 0.{}\n", "does not read"),
        (b'@pp 0.{"is":"code","run":"rm"}\n', "does not read"),
        (b'@pp 0.{"is":"done","code":"0"}\n', "does not read"),
        (b'@pp 0.{"is":"piece","name":"' + b"x" * 200 + b'","at":0,"data":""}\n', "does not read"),
        (b'@pp 0.{"is":"piece","name":"x","at":-1,"data":""}\n', "does not read"),
        (b"@pp 0." + b"[" * 900 + b"\n", "does not read"),
        (b"@pp 0+" + b"x" * LINE + b"\n", "bytes came"),
        (b"@pp 0+" + b"x" * 5 * LINE, "bytes came"),
        (b"".join(b"@pp 0+%b\n" % (b"x" * 900) for _ in range(2 * MOST // LINE + 2)), "without an end"),
    ],
)
def test_what_no_side_says_is_refused_with_its_reason(data, words):
    with pytest.raises(NodeWireError, match=words) as refused:
        list(Reader().feed(data))
    assert isinstance(refused.value, PPWorkError)


def test_a_message_that_is_too_long_is_not_sent():
    with pytest.raises(NodeWireError, match="are allowed"):
        lines_of(msgspec.structs.replace(START, plan="x" * MOST), 0)
