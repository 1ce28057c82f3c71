"""Programs of torch.distributed, recorded: are calls recorded the calls made, and what is said of a hang?

``python scripts/programs.py`` runs each program of ``tests/support/traced`` that ends well under Python's
profiler, which counts its calls beside the recorder, and each of ``tests/support/hanging``, whose truth its
docstring says. It writes ``docs/programs.md``, leaves the pictures in ``--out``, and exits with 1 if a count
differs or a hang is told otherwise than ``tests/support/hanging/said.py`` has it. A few minutes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import ppwork as pp
from ppwork.process import WARM_VARIABLE
from ppwork.records.calls import read_calls

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
TRACED, HANGING = SUPPORT / "traced", SUPPORT / "hanging" / "programs.py"
PAGE = ROOT / "docs" / "programs.md"
WELL = (
    "p2p", "handles", "batched", "halo", "ring_sum", "asynchronous", "collectives", "objects", "groups",
    "split_batch", "threads", "caught", "functional", "dtensor", "tensor_parallel", "by_hand", "ddp",
    "uneven_inputs", "sharded_optimizer", "sharded", "gpipe", "one_f_one_b", "checkpoint",
)  # fmt: skip
HEAD = """\
# Programs that were recorded

Made by `python scripts/programs.py`, torch {torch}. Every program runs on gloo and is in
[tests/support](../tests/support); the calls made are counted by Python's profiler and by a second layer on
`Work.wait`, in the same run.

## They end well: calls made, calls recorded

| program | what it does | made | recorded | the picture says |
|---|---|---|---|---|
"""
HANGS = """
## They hang: who, where and why

Each is the mistake that its second column says; the third is the sentence of the picture, and of the error.

| program | truth | said | right |
|---|---|---|---|
"""


def counted(name: str, folder: Path) -> tuple[int, int, str]:
    """Run a program under the profiler; return calls made and recorded of all ranks, and the finding."""
    run = pp.launch_script(TRACED / "counted.py", nproc=2, arguments=(name,), out=folder)
    made = recorded = 0
    different = ""
    for rank, of_rank in read_calls(run.run_dir).items():
        line = next(line for line in run.printed(rank).splitlines() if line.startswith("@made"))
        beside = Counter(json.loads(line.removeprefix("@made"))[name])
        sites = ((call.name, of_rank.origin(call).begun.site) for call in of_rank.calls)
        ours = Counter(call for call, site in sites if Path(site.rpartition(":")[0]).stem == name)
        made, recorded = made + beside.total(), recorded + ours.total()
        different = different or ("" if ours == beside else f"rank {rank}: {ours - beside} {beside - ours}")
    picture = pp.pictures.program(run, title=name)
    (folder / f"{name}.png").write_bytes(picture.png())
    return made, recorded, different or picture.finding


def docstrings(path: Path) -> dict[str, str]:
    """Return the first line of a file's docstring, and of each of its functions', by name."""
    tree = ast.parse(path.read_text())
    nodes = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef))]
    return {getattr(node, "name", ""): (ast.get_docstring(node) or "").partition("\n")[0] for node in nodes}


def main() -> int:
    """Run all, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="gets the run folders and the pictures; default: nothing is kept"
    )
    asked = parser.parse_args()
    os.environ.setdefault(WARM_VARIABLE, "1")
    sys.path.insert(0, str(SUPPORT))
    from hanging.said import SAID

    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        folder = asked.out or Path(scratch)
        text = HEAD.format(torch=version("torch"))
        for name in WELL:
            made, recorded, finding = counted(name, folder / name)
            wrong += made != recorded or made == 0
            about = docstrings(TRACED / f"{name}.py")[""]
            text += f"| `{name}` | {about} | {made} | {recorded} | {finding} |\n"
            sys.stdout.write(f"{name}: {made} made, {recorded} recorded\n")
        text += HANGS
        truths = docstrings(HANGING)
        for name, words in SAID.items():
            run = pp.launch_script(HANGING, nproc=3, arguments=(name,), out=folder / name, check=False)
            picture = pp.pictures.program(run, title=name)
            (folder / name / f"{name}.png").write_bytes(picture.png())
            said = run.failure.headline if run.failure is not None else "it ended well"
            right = all(word in said and word in picture.finding for word in words)
            wrong += not right
            text += f"| `{name}` | {truths[name]} | {said} | {'yes' if right else 'no'} |\n"
            sys.stdout.write(f"{name}: {'right' if right else 'wrong'}: {said}\n")
    PAGE.write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
