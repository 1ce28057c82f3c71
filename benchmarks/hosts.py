"""What several hosts cost a period: one plan on this machine alone, and over hosts in miniature, in turn.

Each host has a network, a name and processes of its own (namespaces), and all share this machine's cores:
what is measured is a chunk's way through a switch and the nodes beside the ranks, no real network. As root.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import common

import ppwork as pp
from ppwork.faults.hosts import hosts_on_a_switch, places_on, why_no_hosts

PLAN = pp.synthetic(
    pp.Plan(mesh_size=2, chunks=60, in_flight_depth=3, backend="gloo"),
    encode_ms=20,
    decode_ms=20,
    stage1_ms=40,
    payload_mb=1.0,
)
NAMES = ("hosta", "hostb", "hostc")
PLACES = {"this machine alone": (), "two hosts, 1 and 2 ranks": (1, 2), "three hosts, a rank each": (1, 1, 1)}


def measured(ranks: tuple[int, ...], folder: Path) -> tuple[float, float]:
    """Return the period in milliseconds, and the seconds of the whole launch."""
    with contextlib.ExitStack() as stack:
        on = None
        if ranks:
            hosts = stack.enter_context(hosts_on_a_switch(NAMES[: len(ranks)]))
            on = places_on(hosts, folder, ranks=ranks)
        start = time.monotonic()
        run = pp.launch(PLAN, on=on, out=folder / "run")
        return run.summary["period_ms"], time.monotonic() - start


def main() -> None:
    """Print and write the table."""
    parser = common.described(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    if why := why_no_hosts():
        raise SystemExit(f"no hosts in miniature here: {why}")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PLACES}
    shares = []
    for _ in range(asked.rounds):
        for name, ranks in PLACES.items():

            def once(_: int, ranks: tuple[int, ...] = ranks) -> tuple[float, float]:
                with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
                    return measured(ranks, Path(scratch))

            figures, share = common.measured_quietly(once, wait_s=5.0)
            found[name].append(figures)
            shares.append(share)
    rows = []
    for name, figures in found.items():
        periods, launches = zip(*figures, strict=True)
        rows.append(
            [name, statistics.median(periods), min(periods), max(periods), statistics.median(launches)]
        )
    parts = [
        f"{asked.rounds} rounds of {PLAN.chunks} chunks at depth {PLAN.in_flight_depth}, stages of 40 ms, "
        f"1 MB each way. Others took at most {max(shares):.0%} of the machine.",
        common.table(["ranks on", "period, ms", "least", "most", "launch, s"], rows),
    ]
    data = {"figures": found, "others": shares}
    sys.stdout.write(common.report("hosts", "Several hosts", parts, data, asked.results))


if __name__ == "__main__":
    main()
