"""What the launch of a run costs: ``ppwork run`` of four short chunks, cold, against a bare torchrun.

The bare program imports torch, joins a gloo group of as many ranks, and leaves. Both are whole commands, from
the shell's view, interleaved. The second table says where the seconds of ``ppwork run`` went
(``pp.pictures.startup``), as medians. Goal: at most 0.5 s more than the bare torchrun.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

from ppwork.process import WARM_VARIABLE
from ppwork.records.run import Run
from ppwork.timeline.startup import STEPS, startup

RANKS, LIMIT_S, GOAL_S = 3, 120.0, 0.5
BARE = """\
import torch.distributed as dist

dist.init_process_group("gloo")
dist.destroy_process_group()
"""
RUN = (
    "run",
    "--workload",
    "synthetic",
    "--chunks",
    "4",
    "--stage0-ms",
    "1,1",
    "--stage1-ms",
    "1",
    "--payload-mb",
    "0",
)


def seconds(command: list[str], folder: Path) -> float:
    """Return the wall time of a command.

    Raises:
        SystemExit: It failed; the end of what it said is the message.
    """
    environment = {key: value for key, value in os.environ.items() if key != WARM_VARIABLE}
    start = time.perf_counter()
    ended = subprocess.run(
        command, check=False, capture_output=True, env=environment, cwd=folder, timeout=LIMIT_S, text=True
    )
    if ended.returncode:
        raise SystemExit(f"{command[1:4]} ended with {ended.returncode}:\n{ended.stderr[-4000:]}")
    return time.perf_counter() - start


def main() -> None:
    """Print and write the tables."""
    parser = common.described(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        folder = Path(scratch)
        (folder / "bare.py").write_text(BARE)
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(RANKS),
        ]
        bare, ours, shares, steps = [], [], [], []
        for number in range(asked.rounds):
            out = folder / f"run{number}"

            def both(attempt: int, out: Path = out) -> tuple[float, float, Path]:
                to = out.with_name(f"{out.name}-{attempt}")
                one = seconds([*torchrun, "bare.py"], folder)
                return one, seconds([sys.executable, "-m", "ppwork", *RUN, "--out", str(to)], folder), to

            (one, other, to), share = common.measured_quietly(both)
            bare.append(one)
            ours.append(other)
            shares.append(share)
            steps.append({(step.row, step.name): step.ms / 1e3 for step in startup(Run(to, None))})
    more = [other - one for one, other in zip(bare, ours, strict=True)]
    rows = [
        [name, statistics.median(times), min(times), max(times)]
        for name, times in (("bare torchrun", bare), ("ppwork run", ours), ("difference of a pair", more))
    ]
    places = dict.fromkeys(place for of_run in steps for place in of_run)
    where = [
        [row, name, statistics.median(of_run[row, name] for of_run in steps if (row, name) in of_run)]
        for row, name in sorted(places, key=lambda place: (place[0], STEPS.index(place[1])))
    ]
    parts = [
        f"{asked.rounds} pairs, {RANKS} ranks; seconds of the whole command. Others took at most "
        f"{max(shares):.0%} of the machine. Goal: at most {GOAL_S} s more.",
        common.table(["command", "median", "least", "most"], rows),
        "Where the seconds of `ppwork run` go (medians; its command line comes before):",
        common.table(["process", "step", "s"], where),
    ]
    data = {"bare_s": bare, "ppwork_s": ours, "others": shares, "steps": where}
    sys.stdout.write(common.report("launch", "Launch", parts, data, asked.results))


if __name__ == "__main__":
    main()
