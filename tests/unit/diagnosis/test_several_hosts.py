"""Why a run over several hosts failed: from all folders, from one of them, and from consoles alone."""

from __future__ import annotations

import re

import pytest
from captured_logs import console
from test_diagnosis import record, symptom
from typer.testing import CliRunner

from ppwork.cli.main import app
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import PlanError
from ppwork.plan import Plan
from ppwork.process import STOPPED
from ppwork.records.clocks import CLOCK, HOST, Clock
from ppwork.records.failure import write_record
from ppwork.records.hosts import HostEnd, HostRecord, HostsRecord, host_logs
from ppwork.records.run import TORCHRUN_LOG, LaunchEnd
from ppwork.records.spans import Instant, Recorder, Span, span_file

HOSTS = {0: "hosta 1", 1: "hostb 1", 2: "hostb 1"}
PLAN = Plan(mesh_size=2, chunks=8)


def clock(rank, name):
    return Instant(HOST + name, "main", 0, figures={"rank": float(rank)})


@pytest.fixture
def host(tmp_path):
    """Makes the folder of a host with entries of its ranks, who have met all others or nobody."""

    def make(name, *ranks, met=True, ahead_ns=0.0):
        folder = tmp_path / name
        folder.mkdir()
        PLAN.save(folder)
        for rank in ranks:
            with Recorder(span_file(folder, rank)) as recorder:
                recorder.write(clock(rank, HOSTS[rank]))
                if met:
                    recorder.write(
                        Instant(CLOCK, "main", 1, figures={"offset_ns": ahead_ns, "error_ns": 1.0})
                    )
                    for other in HOSTS.keys() - {rank}:
                        recorder.write(clock(other, HOSTS[other]))
        return folder

    return make


def report(folder, rank, code):
    text = console("killed").read_text().replace("exitcode  : -9 ", f"exitcode  : {code} ")
    (folder / TORCHRUN_LOG).write_text(text.replace("rank      : 1 (local", f"rank      : {rank} (local"))


def test_no_rank_is_blamed_whose_hosts_folder_is_not_here(host):
    """It was the leader, who had noticed as everybody had: rank 2 was killed."""
    here = host("hosta", 0)
    write_record(here, symptom(0, 1))
    found = diagnose(here)
    assert (found.cause.rank, found.cause.error_type) == (-1, "RecordsMissing")
    assert found.sentence.startswith("Ranks 1 and 2 ran on hostb, whose records are not here;")
    assert "; rank 0 said first: PeerLostError" in found.sentence
    assert "rank 1 is not" not in found.text
    assert found.check_first.startswith("`ppwork diagnose` with the folder of every host")


def test_with_the_folders_of_all_hosts_the_cause_is_found_in_the_other_one(host):
    here, there = host("hosta", 0), host("hostb", 1, 2)
    write_record(here, symptom(0, 1))
    write_record(there, symptom(1))
    report(there, 2, -9)
    found = diagnose([here, there])
    assert (found.cause.rank, found.cause.error_type) == (2, "RankDied")
    assert [one.rank for one in found.others] == [0, 1] or [one.rank for one in found.others] == [1, 0]
    assert found.log == str(there / TORCHRUN_LOG)
    said = CliRunner().invoke(app, ["diagnose", str(here), str(there)]).output
    assert "Rank 2 (follower) failed first: RankDied" in said


def test_a_rank_that_left_nothing_on_a_host_that_did_is_one_to_blame(host):
    there = host("hostb", 1)
    write_record(there, symptom(1, 2))
    assert diagnose([host("hosta", 0), there]).cause.rank == 2


def test_the_one_rank_that_is_silent_on_its_own_host_is_named_and_what_is_missing_said(host):
    there = host("hostb", 1, 2)
    write_record(there, symptom(1))
    found = diagnose(there)
    assert found.cause.rank == 2
    assert "not known: what rank 0 left: their host's records are not here" in found.text


def test_a_host_none_of_whose_ranks_left_a_word_is_named_and_no_rank_of_it(host):
    """Its torchrun was killed, and the ranks died with it: the leader was blamed."""
    here, there = host("hosta", 0), host("hostb", 1, 2)
    write_record(here, symptom(0, 1))
    found = diagnose([here, there])
    assert (found.cause.rank, found.cause.error_type) == (-1, "HostSilent")
    assert found.sentence.startswith("No rank of hostb left a word (ranks 1 and 2)")
    assert found.check_first.startswith("is hostb up?")


def test_a_run_that_was_asked_to_end_lost_no_host(host):
    """`ppwork stop` ends a node of a run over this machine's nodes, and its launcher sees that."""
    folder = host("hosta", 0, 1, 2)
    lost = HostEnd(error_type="HostLost", what="Host hosta lost its node.", check_first="who ended it?")
    HostsRecord(hosts=(HostRecord(name="hosta", ranks=(0,)),), end=lost).save(folder)
    assert diagnose(folder).cause.error_type == "HostLost"
    LaunchEnd(exit_code=STOPPED, what="The run was ended by `ppwork stop`.\n  folder: here").save(folder)
    assert diagnose(folder).cause.what == "The run was ended by `ppwork stop`."


def test_ranks_that_waited_for_each_other_on_two_hosts_point_at_the_network(host):
    """The cable was cut: which rank's bound passed first is chance."""
    here, there = host("hosta", 0), host("hostb", 1, 2)
    write_record(here, symptom(0, 1, error_type="PeerTimeoutError", at_ns=6))
    write_record(there, symptom(1, 0, error_type="PeerTimeoutError", at_ns=5))
    write_record(there, symptom(2, 1))
    found = diagnose([here, there])
    assert (found.cause.rank, found.cause.error_type) == (-1, "NetworkSilent")
    assert "messages between these hosts did not pass" in found.sentence
    (there / "failure-rank2.json").unlink()
    assert diagnose([here, there]).cause.rank == 2


@pytest.mark.parametrize("came", [True, False])
def test_what_a_rank_sent_to_another_host_and_never_came_points_at_the_network(host, came):
    """One direction of the cable was lost: a goodbye got across the other way, and one alone timed out."""
    here, there = host("hosta", 0), host("hostb", 1, 2)
    for folder, rank, entries in (
        (here, 0, [Instant("envelope.send", "down_pg", call, call, call, 0) for call in (1, 2, 3)]),
        (
            there,
            1,
            [
                Span("receive", "down_pg", call, call + 1, call, call)
                for call in (1, 2, 3)[: 3 if came else 2]
            ],
        ),
    ):
        with Recorder(span_file(folder, rank)) as recorder:
            for entry in (
                clock(rank, HOSTS[rank]),
                *(clock(other, HOSTS[other]) for other in HOSTS),
                *entries,
            ):
                recorder.write(entry)
    write_record(there, symptom(1, 0, error_type="PeerTimeoutError", at_ns=10**12))
    write_record(here, symptom(0, 1, at_ns=10**12 + 1))
    write_record(there, symptom(2, 1, at_ns=10**12 + 1))
    found = diagnose([here, there])
    if came:
        assert found.sentence.startswith("Every record is a symptom")
        return
    assert (found.cause.rank, found.cause.error_type) == (-1, "NetworkSilent")
    assert "rank 1 waited for call 3, which rank 0 had begun to send" in found.sentence
    assert "messages from hosta to hostb did not pass" in found.sentence


def test_ranks_that_nobody_met_are_not_known_to_be_anywhere(host):
    here = host("hosta", 0, met=False)
    write_record(here, symptom(0, 1, error_type="PeerTimeoutError"))
    found = diagnose(here)
    assert (found.cause.rank, found.cause.error_type) == (-1, "RecordsMissing")
    assert "Ranks 1 and 2 left no records here" in found.sentence


def test_causes_on_clocks_that_were_not_compared_are_in_no_order_and_that_is_said(host):
    """Rank 1's clock began later: by its number it was the first."""
    here, there = host("hosta", 0, met=False), host("hostb", 1, 2, met=False)
    write_record(here, record(0, at_ns=10**15))
    write_record(there, record(1, at_ns=7))
    found = diagnose([there, here])
    assert found.cause.rank == 0
    assert "not known: which of ranks 0 and 1 was the first" in found.text
    assert " after " not in found.text


def test_causes_on_clocks_that_were_compared_are_in_order(host):
    here, there = host("hosta", 0), host("hostb", 1, 2, ahead_ns=5e12)
    write_record(here, record(0, at_ns=10**9))
    write_record(there, record(1, at_ns=5 * 10**12 + 7))
    found = diagnose([here, there])
    assert found.cause.rank == 1
    assert "then rank 0 after 1.000 s" in found.text
    assert "which of" not in found.text


def test_end_of_a_copied_log_is_not_taken_for_a_time_of_the_run(host):
    """It is a time of day of whoever wrote the file last, and was put on this host's clock."""
    here = host("hosta", 0)
    with Recorder(span_file(here, 0)) as recorder:
        recorder.write(clock(0, HOSTS[0]))
        recorder.write(Instant("emit", "main", 5, 0, 0, 0))
    (here / TORCHRUN_LOG).write_text("ppwork: the run passed its limit and was stopped\n")
    assert "1 of 8 chunks had been emitted." in diagnose(here).text
    with Recorder(span_file(here, 0)) as recorder:
        recorder.write(clock(0, Clock.of_this_host().name))
        recorder.write(Instant("emit", "main", 5, 0, 0, 0))
    assert "1 of 8 chunks had been emitted, the last one" in diagnose(here).text


def test_folders_of_different_runs_are_refused_and_one_that_is_not_there_is_told(host, tmp_path):
    here, there = host("hosta", 0), host("hostb", 1, 2)
    assert diagnose([here, tmp_path / "nowhere"]).seen[-1].endswith("nowhere is not there, and was not read")
    PLAN.replace(seed=7).save(there)
    with pytest.raises(PlanError, match="not of one run"):
        diagnose([here, there])


# Programs of others


def test_consoles_of_two_hosts_are_one_job(tmp_path):
    """The first host's agent ended its rank; the second one saw the death."""
    consoles = [tmp_path / "a.log", tmp_path / "b.log"]
    for path, rank, code in zip(consoles, (0, 3), (-15, -9), strict=True):
        text = console("killed").read_text().replace("exitcode  : -9 ", f"exitcode  : {code} ")
        text = text.replace("rank      : 1 (local", f"rank      : {rank} (local")
        kept = [f"rank      : {other} (local" for other in (0, 2) if other != rank]
        path.write_text("\n".join(line for line in text.splitlines() if not any(k in line for k in kept)))
    assert diagnose(consoles).cause.rank == 3
    assert diagnose(consoles[::-1]).cause.rank == 3


RAISED = """\
Traceback (most recent call last):
  File "/srv/me/{name}.py", line 7, in <module>
    raise {error}
{error}
"""


def test_log_dirs_of_two_hosts_count_on(tmp_path):
    """Each has a folder 0: the second host's is rank 1."""
    for name, text in (("a", "all is well\n"), ("b", RAISED.format(name="mine", error="ValueError: my bug"))):
        folder = tmp_path / name / "attempt_0" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
        (folder / "stdout.log").write_text("")
    found = diagnose([tmp_path / "a", tmp_path / "b"])
    assert (found.cause.rank, found.cause.error_type) == (1, "ValueError")


@pytest.mark.parametrize("reports", ["of both", "of the second", "of none"])
@pytest.mark.parametrize("ranks", [((0, 1), (2,)), ((0,), (1, 2)), ((1, 2), (0,))])
def test_ranks_of_a_launch_over_hosts_have_the_numbers_of_its_record(tmp_path, ranks, reports):
    """Each host counts its folders from 0; all torchruns' logs lie beside the first host's folders."""
    records = [HostRecord(name=f"host{number}", ranks=of_host) for number, of_host in enumerate(ranks)]
    HostsRecord(hosts=tuple(records)).save(tmp_path)
    report = console("killed").read_text()
    for number, of_host in enumerate(ranks):
        for local, rank in enumerate(of_host):
            folder = host_logs(tmp_path, number) / "run_x1" / "attempt_0" / str(local)
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(f"this is {rank}\n")
            (folder / "stderr.log").write_text("")
        if reports == "of both" or (number and reports == "of the second"):
            block = "\n".join(
                line for line in report.splitlines() if not re.search("rank      : [02] ", line)
            )
            closing = block.replace(
                "rank      : 1 (local_rank: 1)", f"rank      : {of_host[0]} (local_rank: 0)"
            )
            (tmp_path / f"torchrun{f'-{number}' if number else ''}.log").write_text(closing)
    found = read_job(tmp_path)
    assert {rank: log.text for rank, log in found.ranks.items()} == {n: f"this is {n}" for n in range(3)}
