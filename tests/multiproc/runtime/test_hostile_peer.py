"""A stranger at the ports of the ranks: the run ends right, or with a clear error; never with wrong data."""

from __future__ import annotations

import json
import time

import pytest
from hostile import Stranger

import ppwork as pp
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc

CHUNKS = 60
BOUND_S = 45.0
"""Start-up of a loaded machine, and the plan's ``timeout_s``."""
JOINS = """
import json, os, sys
from pathlib import Path
from ppwork.runtime import groups
from ppwork.runtime.membership import Membership
from ppwork.errors import PPWorkError
from ppwork.plan import Plan
rank = int(os.environ["RANK"])
if rank == 0:
    make = groups.token
    groups.token = lambda secret, *edge: make(b"guessed", *edge)
try:
    groups.join(Plan(mesh_size=1, timeout_s=20.0), Membership.here())
except PPWorkError as error:
    said = [type(error).__name__, error.what, error.where]
    Path(sys.argv[1], f"said-{rank}").write_text(json.dumps(said))
os._exit(0)
"""


@pytest.fixture
def stranger():
    made = Stranger()
    yield made
    made.end()


@pytest.mark.parametrize("when", ["start-up", "mid-run"])
def test_garbage_on_every_port_makes_no_wrong_data(tmp_path, stranger, when):
    plan = pp.Plan(
        mesh_size=2, chunks=CHUNKS, backend="gloo", in_flight_depth=2, timeout_s=15.0, frame_bytes=1024,
        stage0="hostile:Exact", stage1="toy_stages:Slow", options={"step_s": 0.03}, verify=True,
    )  # fmt: skip

    def started(*_) -> None:
        if when == "start-up":
            stranger.begin()

    def progress(entry) -> None:
        if entry.name == "emit":
            stranger.begin()

    start = time.monotonic()
    run = pp.launch(plan, out=tmp_path / "run", check=False, started=started, progress=progress)
    stranger.end()
    assert time.monotonic() - start < BOUND_S
    assert set(stranger.reached) == {0, 1, 2}
    assert min(stranger.reached.values()) > 200
    if run.failure is None:
        assert (run.summary["chunks"], run.summary["max_abs_diff"]) == (CHUNKS, 0.0)
        return
    # In mid-run all pairs are connected and nobody else gets in.
    assert when == "start-up", run.failure
    assert run.failure.where["rank"] in (0, 1, 2)
    errors = {record.error_type for record in read_records(run.run_dir, 3)}
    assert errors <= {"RemoteProtocolError", "PeerLostError", "PeerTimeoutError", "TerminalNotice"}
    assert not [entry for entry in run.entries(0) if entry.name == "emit"]


def test_peer_that_cannot_make_the_runs_tokens_is_refused_at_the_first_edge(tmp_path, start_ranks):
    """Rank 0 stands for a stranger who took its place: gloo asks for no more than a small number."""
    program = tmp_path / "joins.py"
    program.write_text(JOINS)
    start_ranks([[str(program), str(tmp_path)]] * 2).wait()
    kind, what, where = json.loads((tmp_path / "said-1").read_text())
    assert kind == "RemoteProtocolError"
    assert "not made by a rank of this run" in what
    assert where == {"rank": 1, "role": "leader", "group": "down_pg", "peer": 0}
    kind, _, where = json.loads((tmp_path / "said-0").read_text())
    assert (kind, where["group"]) == ("PeerLostError", "up_pg")
