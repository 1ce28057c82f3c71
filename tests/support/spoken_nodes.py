"""Nodes that say what a test has them say: a program in the place of a host's Python."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """\
#!{python}
import os, sys, time
from ppwork.launcher.nodes import wire
from ppwork.launcher.nodes.wire import Reader, lines_of
from ppwork.version import __version__

NODE = int(sys.argv[-1])
HELLO = dict(wire=wire.VERSION, ppwork=__version__, torch="2", python="3.11", host=f"host{{NODE}}", clock="c",
             cores=1, gpus=0)
ADDRESS = wire.Address("lo", "127.0.0.1", 4000)

def say(message):
    sys.stdout.buffer.write(lines_of(message, NODE))
    sys.stdout.buffer.flush()

def heard(until=None):
    "Answer beats until a message of this kind has come, and return it."
    for node, message in messages:
        if isinstance(message, wire.Beat):
            say(wire.Answer(message.sent_ns, time.monotonic_ns()))
        elif isinstance(message, until or ()):
            return message
        elif isinstance(message, wire.EndRun):
            sys.exit(0)

def read():
    reader = Reader()
    while data := os.read(0, 65536):
        yield from reader.feed(data)

def up_to_start(**look):
    "The handshake of a host that is ready."
    say(wire.Hello(**HELLO))
    heard(wire.Look)
    say(wire.Looked(folder="/there", shared=False, free_mb=1e6, **look))
    if isinstance(heard((wire.Listen, wire.Reach)), wire.Listen):
        return say(wire.Listening((ADDRESS,))) or heard(wire.StartRun)
    say(wire.Reached((wire.Way(ADDRESS, wire.Address("eth1", "10.0.0.2")),)))
    return heard(wire.StartRun)

messages = read()
{script}
"""


def speaking(folder: Path, script: str) -> str:
    """Return the path of a "Python" whose nodes say what ``script`` says."""
    path = folder / "python"
    path.write_text(PROGRAM.format(python=sys.executable, script=script))
    path.chmod(0o700)
    return str(path)
