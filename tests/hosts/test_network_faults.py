"""The N faults of the network and of whole hosts under plain torchrun: who leaves, when, and what is said.

They take minutes, so `make hosts` runs them and `make test` does not. Nobody beats across hosts here: whoever
waits for a silent one has the plan's ``timeout_s`` alone.
"""

from __future__ import annotations

import contextlib

import host_processes
import pytest
from disturbed import PLAN, TIMEOUT_S, disturbed
from hosts import job_over, needs_hosts
from relay import relayed

import ppwork as pp
from ppwork.records.spans import read_entries
from ppwork.timeline.chunks import emissions

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(400), needs_hosts]

LATEST_S = TIMEOUT_S + 4.0
"""The longest that a rank may outlive the network; the timeout begins with the transfer that waits."""
SOONEST_S = TIMEOUT_S - 1.0


def cut(job, processes):
    job.hosts[1].cut()


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=["N01-before-the-mesh", "N02-inside-the-mesh"])
def test_a_pulled_cable_is_noticed_by_the_timeout_alone_and_named_as_the_network(tmp_path, ranks):
    ended = disturbed(tmp_path, cut, ranks=ranks)
    assert min(ended.after_s.values()) > SOONEST_S
    assert max(ended.after_s.values()) < LATEST_S, ended.after_s
    assert [len(spoke) for spoke in ended.records] == [*ranks]
    assert ended.said.cause.error_type == "NetworkSilent"
    assert "hosta and hostb" in ended.said.text


@pytest.mark.parametrize(("sender", "receiver"), [(0, 1), (1, 0)], ids=["N03-a-to-b", "N03-b-to-a"])
def test_one_lost_direction_ends_both_sides_and_names_nobody_as_the_cause(tmp_path, sender, receiver):
    """What is not acknowledged is not followed by more: nobody goes on. A goodbye may still get across."""
    ended = disturbed(tmp_path, lambda job, _: job.hosts[sender].lose_what_goes_to(job.hosts[receiver]))
    assert min(ended.after_s.values()) > SOONEST_S
    assert max(ended.after_s.values()) < LATEST_S, ended.after_s
    assert [len(spoke) for spoke in ended.records] == [1, 2]
    assert ended.said.cause.error_type == "NetworkSilent"


@pytest.mark.parametrize("lost", [0, 1], ids=["N06-hosta", "N06-hostb"])
def test_the_host_that_is_left_waits_for_its_timeout_and_the_other_is_named(tmp_path, lost):
    dead = {0: (0,), 1: (1, 2)}[lost]
    ended = disturbed(tmp_path, lambda job, _: host_processes.power_off(job.hosts[lost]))
    left = [after_s for rank, after_s in ended.after_s.items() if rank not in dead]
    assert max(ended.after_s[rank] for rank in dead) < 1.0
    assert min(left) > SOONEST_S
    assert max(left) < LATEST_S, ended.after_s
    assert f"No rank of {('hosta', 'hostb')[lost]} left a word" in ended.said.text


def test_n07_a_frozen_host_keeps_its_ranks_until_it_is_thawed(tmp_path):
    with contextlib.ExitStack() as stack:

        def freeze(job, processes):
            host_processes.freeze(job.hosts[1])
            stack.callback(host_processes.thaw, job.hosts[1])

        ended = disturbed(tmp_path, freeze, stays=(1, 2))
    assert ended.after_s.keys() == {0}
    assert SOONEST_S < ended.after_s[0] < LATEST_S


@pytest.mark.parametrize(
    ("delay_s", "loss"), [(0.0, 0.02), (0.1, 0.0)], ids=["N04-loss-of-2-percent", "N05-100-ms-each-way"]
)
def test_a_slow_network_is_only_slow(tmp_path, delay_s, loss):
    plan = PLAN.replace(chunks=12, timeout_s=60.0)
    for name in ("hosta", "hostb"):
        (tmp_path / name / "run").mkdir(parents=True)
        plan.save(tmp_path / name / "run")
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(job_over(tmp_path, "-m", "ppwork", "worker", "{local}/run"))
        counts = stack.enter_context(relayed(job.hosts[1], delay_s=delay_s, loss=loss))
        assert job.wait(300) == [0, 0], [log.read_text()[-2000:] for log in job.logs]
    passed, lost = counts
    assert passed > 100
    assert (lost > 0) == (loss > 0)
    here = job.folders[0] / "run"
    assert sorted(emissions({0: read_entries(here, 0)})) == list(range(12))
    assert "Nothing failed" in pp.diagnose([folder / "run" for folder in job.folders]).text
