"""The shipped clip over three hosts, the mesh split over two of them, in sight of a stranger on a fourth.

The stranger knows where the store is, which a scan of ports would tell as well.
"""

from __future__ import annotations

import json
import subprocess
import sys

import host_processes
import pytest
from hosts import needs_hosts
from over_hosts import OnceRunning

import ppwork as pp
from ppwork.faults.hosts import NETWORK, hosts_on_a_switch, places_on
from ppwork.launcher import launch as launching
from ppwork.launcher.nodes import host_session
from ppwork.timeline.chunks import aligned, emissions, spans_by_chunk

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(300), needs_hosts]

NAMES = ("hosta", "hostb", "hostc", "stranger")
STRANGER = """\
import base64, json, os, pickle, socket, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

address, store_at, mark, *ports = sys.argv[1:]

class Attack:
    def __reduce__(self):
        return (open, (mark, "w"))

store = TCPStore(address, int(store_at), is_master=False)
keys = store.list_keys()
said = {key: store.get(key).decode(errors="replace") for key in keys}
payload = base64.b64encode(pickle.dumps(Attack()))
for key in ("torch.rendezvous.ppwork", *(key for key in keys if "rendezvous" in key)):
    store.set(key, payload)
doors = {}
for place in ports:
    there, port = place.rsplit(":", 1)
    doors[place] = socket.create_connection((there, int(port)), 5)
    doors[place].sendall(bytes(4096))
until, answered = time.monotonic() + 1.0, {}
for place, door in doors.items():
    door.settimeout(max(0.01, until - time.monotonic()))
    try:
        answered[place] = door.recv(4096).decode("latin1") or "closed"
    except TimeoutError:
        answered[place] = ""
    except OSError:
        answered[place] = "closed"
os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
groups = next(key for key in keys if "/groups/0//cpu" in key).split("/0//cpu")[0]
try:  # as rank 2, with what the store says of the others
    own = dict(store=dist.PrefixStore(groups, store), rank=2, world_size=3, timeout=timedelta(seconds=4))
    dist.init_process_group("gloo", **own)
    dist.broadcast(torch.ones(1), src=1)
    joined = "heard rank 1"
except RuntimeError as error:
    joined = str(error)
print(json.dumps({"said": said, "answered": answered, "joined": joined}))
"""


def listening(host) -> dict[str, set[str]]:
    """Return where the host's programs listen, by their names: ``ss -ltnp`` inside it."""
    done = subprocess.run(
        host.command(["ss", "-Hltnp"]), capture_output=True, text=True, timeout=20, check=True
    )
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        place, who = line.split()[3], line.split('(("')[-1].partition('"')[0]
        found.setdefault(who, set()).add(place)
    return found


def test_the_clip_over_three_hosts_is_that_of_one_process_and_a_stranger_learns_and_changes_nothing(
    tmp_path, monkeypatch
):
    made, seen = [], {}
    monkeypatch.setattr(
        launching,
        "HostSession",
        lambda *arguments: made.append(host_session.HostSession(*arguments)) or made[0],
    )
    with hosts_on_a_switch(NAMES) as hosts:
        *members, stranger = hosts

        def look():
            seen["listening"] = {host.name: listening(host) for host in hosts}
            at = made[0].hosts[0].way.to
            ports = sorted(
                place for by in seen["listening"].values() for each in by.values() for place in each
            )
            arguments = [at.address, str(at.port), str(tmp_path / "attacked"), *ports]
            done = subprocess.run(
                stranger.command([sys.executable, "-c", STRANGER, *arguments]),
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            seen.update(json.loads(done.stdout), store=f"{at.address}:{at.port}", ports=ports)

        plan = pp.Plan(mesh_size=2, in_flight_depth=3, backend="gloo", verify=True)
        on = places_on(members, tmp_path, ranks=(1, 1, 1))
        run = pp.launch(plan, on=on, out=tmp_path / "run", progress=OnceRunning(look))
        assert not any(host_processes.processes(host) for host in hosts)

    assert run.summary["max_abs_diff"] <= plan.allowed_difference
    assert run.summary["chunks"] == run.plan.chunks > 6
    assert [(host["name"], host["ranks"]) for host in run.summary["hosts"]] == [
        (name, [rank]) for rank, name in enumerate(NAMES[:3])
    ]
    entries = aligned(run.entries_by_rank)
    chunks, emits = spans_by_chunk(entries), emissions(entries)
    for k, spans in chunks.items():
        for rank in (1, 2):
            begins = [spans[step][0].start_ns for step in ((0, "send"), (rank, "generate"))]
            assert begins == sorted(begins), f"chunk {k} came to rank {rank} before it was sent"
        assert spans[1, "generate"][0].end_ns < emits[k]

    own = {name: f"{NETWORK}{number}" for number, name in enumerate(NAMES, start=1)}
    for name, by in seen["listening"].items():
        assert {place.rpartition(":")[0] for each in by.values() for place in each} <= {own[name]}
    assert seen["listening"]["stranger"] == {}
    assert seen["store"] in {place for each in seen["listening"]["hosta"].values() for place in each}
    assert sorted(seen["answered"]) == seen["ports"]
    assert {*seen["answered"].values()} <= {"", "closed"}  # he got in at each, and no byte out of any
    assert "imed out" in seen["joined"]
    assert any("/parity/" in key for key in seen["said"])
    secret = made[0]._secret.decode()
    assert not [key for key, value in seen["said"].items() if "secret" in key or secret in value]
    assert not (tmp_path / "attacked").exists()
