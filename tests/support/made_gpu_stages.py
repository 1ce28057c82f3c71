"""``scripts/gpu/run.py`` with a made table: steps that end well, fail, hang, hide or lack something."""

from __future__ import annotations

import sys

from checkout import SCRIPTS

sys.path.insert(0, str(SCRIPTS / "gpu"))

import run
from findings import Finding
from stages import FOLDER, Stage, Step

HIDDEN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + "/hidden.pid", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists(sys.argv[1] + "/hidden.pid"):
    time.sleep(0.01)
"""
"""Starts a process of its own session that has no parent any more and ignores polite words."""
HANGS = f"{HIDDEN}print('begun', flush=True)\ntime.sleep(600)"

WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def output(folder):
    return Finding((folder / "out.txt").read_text().strip(), {"bytes": (folder / "out.txt").stat().st_size})


def program(code, *arguments):
    return (sys.executable, "-c", code, *arguments)


def made(backend, gpus):
    raises, fails = (
        program("raise ValueError('broken here')"),
        ("sh", "-c", "echo first >&2; echo last >&2; exit 3"),
    )
    return {
        "first": Stage(
            60,
            [
                Step("ends well", [("echo", "one"), ("echo", backend)], output),
                Step("lacks", [("echo", "never")], output, "no such thing here"),
                Step("fails", [fails, ("echo", "never")], lambda folder: 1 / 0),
                Step("raises", [raises], lambda folder: 1 / 0),
                Step("may fail", [fails], output, codes=(3,)),
                Step("does not read", [("true",)], lambda folder: 1 / 0),
                Step("sees what came before", [("cat", f"{FOLDER}/../results.json")], output),
                Step("has variables", [("sh", "-c", "echo $MADE")], output, variables={"MADE": "so"}),
            ],
        ),
        "second": Stage(
            60,
            [
                Step("leaves somebody behind", [program(HIDDEN, FOLDER)], output),
                Step("hangs", [program(HANGS, FOLDER)], output, limit_s=6.0),
                Step("comes after", [("echo", "three")], output),
            ],
        ),
        "waits": Stage(60, [Step("waits", [program(WAITS)], output)]),
        "third": Stage(0, [Step("too late", [("echo", "never")], output)]),
    }


if __name__ == "__main__":
    run.stages, run.CORES = made, 1  # limits as they stand
    sys.exit(run.main())
