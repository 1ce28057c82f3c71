"""What torchrun and its ranks printed, read back, and what is said of it: real logs of broken programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from captured_logs import console, log_dir

from ppwork.diagnosis.job_evidence import JobEvidence
from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import MAX_BYTES, read_job, split_by_rank
from ppwork.diagnosis.report import Report, death
from ppwork.errors import PlanError

# What is read


def test_report_tells_codes_and_who_was_first():
    report = Report.of(console("killed").read_text())
    assert report.codes == {0: -15, 1: -9, 2: -15}
    assert report.first == 1
    assert report.ranks == {0: 0, 1: 1, 2: 2}
    assert report.signal == 0


def test_report_of_a_job_that_was_ended_from_outside_has_its_signal():
    report = Report.of(console("hang-terminated").read_text())
    assert (report.codes, report.first, report.signal) == ({}, None, 15)


def test_exit_codes_do_not_mistake_a_print_for_the_report():
    printed = "rank : 5\nhello\nexitcode : 4\n"
    assert Report.of(printed + console("killed").read_text()).codes == {0: -15, 1: -9, 2: -15}
    assert Report.of(printed).codes == {}


def test_death_is_said_by_signal_or_code():
    assert death(-9) == "was killed by SIGKILL"
    assert death(-99) == "was killed by signal 99"
    assert death(3) == "exited with code 3"


@pytest.mark.parametrize(
    ("stopped", "what", "asks", "how"),
    [
        (2, "Rank 1 was killed by SIGKILL;", "who sent SIGSTOP to rank 2? Then the end", "killed by SIGKILL"),
        (1, "Rank 1 stood stopped (SIGSTOP),", "who sent SIGSTOP to it?", "until it was killed"),
    ],
)
def test_a_rank_that_the_launcher_found_stopped_is_named(tmp_path, stopped, what, asks, how):
    log = tmp_path / "console.log"
    line = f"ppwork: rank {stopped} (pid 7, stopped) was there 1 s after the first death and was killed\n"
    log.write_text(console("killed").read_text() + line)
    found = diagnose_job(read_job(log))
    assert found.headline.startswith(what)
    assert found.check_first.startswith(asks)
    assert JobEvidence(read_job(log)).line(1).endswith(how)


def test_lines_are_sorted_by_the_prefixes_of_torchrun_and_torch():
    lines, rest = split_by_rank("[rank5]: a\n[default1]:b\n[trainer1]:[rank5]:   c\nd\n[a] e", {1: 5})
    assert lines == {5: (["b"], ["a", "  c"])}
    assert rest == ["d", "[a] e"]


def test_a_print_that_torchrun_copied_into_a_traceback_does_not_end_it(tmp_path):
    whole = console("missing").read_text().splitlines(keepends=True)
    inside = next(n for n, line in enumerate(whole) if line.startswith("[default0]:[rank0]:   File"))
    torn = tmp_path / "console.log"
    torn.write_text("".join([*whole[:inside], "[default0]:joined\n", *whole[inside:]]))
    assert read_job(torn).ranks[0].errors == read_job(console("missing")).ranks[0].errors
    assert diagnose_job(read_job(torn)).cause.rank == 2


def test_folder_and_console_tell_the_same(tmp_path):
    for name in ("raises", "missing", "miscount", "shapes", "killed", "shapes-detail", "recorded"):
        of_folder = read_job(log_dir(name, tmp_path / name))
        of_console = read_job(console(name))
        assert of_folder.report == of_console.report
        assert {r: log.errors for r, log in of_folder.ranks.items()} == {
            r: log.errors for r, log in of_console.ranks.items()
        }


def test_traceback_gives_the_users_line_and_the_call(tmp_path):
    ranks = read_job(log_dir("raises", tmp_path)).ranks
    cause, waiting = ranks[1].errors[-1], ranks[0].errors[-1]
    assert (cause.error, cause.message, cause.call) == ("ValueError", "bad sample in shard 1", "")
    assert cause.users.at == "/srv/me/raises.py:12"
    assert cause.users.text == 'raise ValueError("bad sample in shard 1")'
    assert waiting.call == "all_reduce"
    assert waiting.users.at == "/srv/me/raises.py:18"


def test_message_of_several_lines_is_kept_whole():
    error = read_job(console("recorded")).ranks[1].errors[-1]
    assert error.message == "bad sample\nin shard 1"


def test_error_file_of_a_rank_speaks_where_its_log_does_not(tmp_path):
    folder = log_dir("killed", tmp_path)
    stack = "Traceback (most recent call last):\n" + "".join(
        line.partition("]: ")[2] + "\n"
        for line in console("recorded").read_text().splitlines()
        if line.startswith("[default1]:[rank1]:   ") or "ValueError" in line
    )
    made = {"message": {"message": "x", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}
    of_rank = folder / "run_x1" / "attempt_0" / "1"
    (of_rank / "error.json").write_text(json.dumps(made))
    assert read_job(folder).ranks[1].errors[-1].error == "ValueError"
    (of_rank / "error.json").write_text(json.dumps(made)[:40])
    assert read_job(folder).ranks[1].errors == ()


def test_newest_attempt_counts_and_it_may_be_named_itself(tmp_path):
    folder = log_dir("raises", tmp_path)
    newest = folder / "run_x1" / "attempt_1" / "0"
    newest.mkdir(parents=True)
    (newest / "stderr.log").write_text("[rank0]: nothing wrong\n")
    job = read_job(folder)
    assert (job.ranks[0].text, job.ranks[1].text) == ("nothing wrong", "")
    assert "bad sample" in job.earlier[0].ranks[1].text
    assert list(read_job(folder / "run_x1" / "attempt_0").ranks) == [0, 1, 2]


def test_the_folder_of_an_attempt_may_be_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(log_dir("raises", tmp_path) / "run_x1" / "attempt_0")
    assert list(read_job(Path()).ranks) == [0, 1, 2]
    monkeypatch.chdir("0")
    assert list(read_job(Path("..")).ranks) == [0, 1, 2]


def test_global_rank_of_a_second_host_comes_from_torchs_own_prefix(tmp_path):
    folder = log_dir("raises", tmp_path, report=False)
    log = folder / "run_x1" / "attempt_0" / "1" / "stderr.log"
    log.write_text(log.read_text().replace("[rank1]", "[rank9]"))
    assert sorted(read_job(folder).ranks) == [0, 2, 9]


def of_agents(folder, agents, attempt=0):
    """Leave the logs of agents with two ranks each; a number: what torch has before its lines, or nothing."""
    logs = {
        folder / f"job_{name}" / f"attempt_{attempt}" / str(local) / "stderr.log": number
        for name, numbers in agents.items()
        for local, number in enumerate(numbers)
    }
    for log in logs:
        log.parent.mkdir(parents=True)
    for log, number in logs.items():  # of one time: no agent's folder is newer than another's last log
        log.write_text(f"[rank{number}]: Traceback of it\n" if number is not None else "")


def killed_first(local, pid):
    return f"torch/distributed/elastic: failed (exitcode: -9) local_rank: {local} (pid: {pid}) of binary\n"


def test_a_local_rank_of_an_earlier_attempt_on_a_second_host_has_the_number_of_its_logs(tmp_path):
    """Of an attempt that was not the last torchrun tells local ranks alone: rank 0 ran on the other host."""
    of_agents(tmp_path, {"x": (None, 3)})
    of_agents(tmp_path, {"x": (None, 3)}, attempt=1)
    (tmp_path / "console.log").write_text(killed_first(0, 7) + killed_first(0, 8))
    job = read_job(tmp_path)
    for attempt in (job, *job.earlier):
        assert (attempt.report.codes, attempt.report.first) == ({2: -9}, 2)
        assert list(attempt.ranks) == [2, 3]


def test_a_local_rank_is_that_of_the_host_whose_console_tells_it(tmp_path):
    """Logs without a number count on from those of the host before, and so does who ended."""
    for host in ("a", "b"):
        of_agents(tmp_path / host, {"x": (None, None)})
        for log in tmp_path.glob(f"{host}/job_x/attempt_0/*/stderr.log"):
            log.write_text("it began\n")
    (tmp_path / "b" / "console.log").write_text(killed_first(0, 7))
    job = read_job(tmp_path / "a", tmp_path / "b")
    assert (list(job.ranks), job.report.codes, job.report.first) == ([0, 1, 2, 3], {2: -9}, 2)


def test_a_local_rank_of_one_of_several_hosts_in_one_folder_is_no_rank_of_the_job(tmp_path):
    of_agents(tmp_path, {"a": (0, 1), "b": (2, 3)})
    (tmp_path / "console.log").write_text(killed_first(0, 7))
    job = read_job(tmp_path)
    assert (list(job.ranks), job.report.codes, job.report.first) == ([0, 1, 2, 3], {}, None)


@pytest.mark.parametrize("of_host", [(0, 1), (2, 3)])
def test_the_console_of_one_of_several_hosts_numbers_no_ranks_of_another(tmp_path, of_host):
    of_agents(tmp_path, {"a": (0, 1), "b": (2, 3)})
    lines = [
        f" rank : {rank} (local_rank: {local})\n exitcode : 1 (pid: 7)\n"
        for local, rank in enumerate(of_host)
    ]
    (tmp_path / "console.log").write_text("".join(lines))
    ranks = read_job(tmp_path).ranks
    assert {rank: log.where.split("/")[-4] for rank, log in ranks.items()} == dict(
        enumerate(["job_a", "job_a", "job_b", "job_b"])
    )


@pytest.mark.parametrize("name", ["nowhere", "empty", "prose.txt"])
def test_path_without_a_job_is_bad_input(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "prose.txt").write_text("a shopping list\n")
    with pytest.raises(PlanError) as raised:
        diagnose_job(read_job(tmp_path / name))
    assert name in raised.value.what


def test_long_log_is_read_from_its_end(tmp_path):
    folder = log_dir("raises", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "1" / "stderr.log"
    log.write_text("x" * (5 << 20) + "\n" + log.read_text())
    job = read_job(folder)
    assert job.ranks[1].errors[-1].error == "ValueError"
    assert len(job.ranks[1].text) <= MAX_BYTES


# What is said


def said(name, tmp_path, **changes):
    """Diagnose the job's folder."""
    return diagnose_job(read_job(log_dir(name, tmp_path, **changes)))


def waits(diagnosis):
    return {wait.rank: (wait.call.partition(" at ")[0], wait.waits_for) for wait in diagnosis.waits}


def test_rank_that_raised_is_named_with_its_line_first(tmp_path):
    found = said("raises", tmp_path)
    assert found.text.splitlines()[:3] == [
        "/srv/me/raises.py:12, in load",
        '    raise ValueError("bad sample in shard 1")',
        "Rank 1 raised ValueError: bad sample in shard 1.",
    ]
    assert found.cause.source == "/srv/me/raises.py:12"
    assert waits(found) == {0: ("all_reduce", (1,)), 2: ("all_reduce", (1,))}
    assert found.log.endswith("attempt_0/1/stderr.log")
    assert not found.unknown


def test_rank_that_never_came_is_named_by_the_others_timeout(tmp_path):
    found = said("missing", tmp_path)
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
    assert "ranks 0 and 1 were in broadcast" in found.cause.what
    assert "still running when torchrun ended it" in found.cause.what
    assert waits(found) == {0: ("broadcast", (2,)), 1: ("broadcast", (2,))}
    assert found.unknown == ("where rank 2 was: it showed no stack",)


def test_ranks_that_wait_in_a_sum_behind_which_another_one_stands_may_differ_in_its_size_or_its_count(
    tmp_path,
):
    """A sum of 4, 5 and 6 numbers looks the same: gloo lets the rank of the 4 go on."""
    found = said("miscount", tmp_path)
    assert (found.cause.error_type, found.cause.where) == ("CollectiveMismatch", {})
    assert found.cause.source == "/srv/me/miscount.py:12"
    assert "rank 0 in barrier at /srv/me/miscount.py:13" in found.cause.what
    (either,) = found.seen
    assert either.startswith("either sizes differ in that all_reduce, and it let rank 0 through, or only")
    left_out = "in a loop ranks 1 and 2 left out the barrier at /srv/me/miscount.py:13 in the turn before"
    assert either.endswith(f", or {left_out}, or the order differs")
    assert "do sizes and types agree at /srv/me/miscount.py:12" in found.check_first


@pytest.mark.parametrize(("branch", "first", "line"), [(11, 1, 12), (13, 0, 14)])
def test_a_call_that_an_if_may_leave_out_is_the_first_story(tmp_path, branch, first, line):
    """The story that is mostly right stood behind "the roots differ", of a root that is a number."""
    lines = ["import torch"] * 9
    lines += [
        "for step in range(4):",
        "    if rank:",
        "        dist.all_reduce(torch.ones(4))",
        "    if late:",
        "        dist.barrier()",
    ]
    if branch == 11:
        lines[12:] = ["    start()", "    dist.barrier()"]
    else:
        lines[10:12] = ["    start()", "    dist.all_reduce(torch.ones(4))"]
    program = tmp_path / "miscount.py"
    program.write_text("\n".join(lines))
    folder = log_dir("miscount", tmp_path / "logs")
    for rank in range(3):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        text = log.read_text().replace("/srv/me/miscount.py", str(program)).replace("line 13", "line 14")
        log.write_text(text)
    found = diagnose_job(read_job(folder))
    stories = [
        f"in a loop ranks 1 and 2 left out the barrier at {program}:14 in the turn before",
        "only ranks 1 and 2 made it",
    ]
    assert found.seen[0].startswith(f"either {stories[first]}, or sizes differ"), found.text
    assert found.cause.source == f"{program}:{line}"
    assert found.check_first.startswith(
        f"the `if` at miscount.py:{branch}: does it come out alike on these ranks? "
    )


@pytest.mark.parametrize("head", ["while True:", "if True:"])
def test_a_call_that_each_turn_makes_was_not_left_out_in_this_turn_by_who_stands_behind_it(tmp_path, head):
    program = tmp_path / "miscount.py"
    lines = ["import torch"] * 10
    lines += [head, "    dist.all_reduce(torch.ones(4))", "    dist.barrier()"]
    program.write_text("\n".join(lines))
    folder = log_dir("miscount", tmp_path / "logs")
    for rank in range(3):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.write_text(log.read_text().replace("/srv/me/miscount.py", str(program)))
    (stories,) = diagnose_job(read_job(folder)).seen
    assert ("only ranks 1 and 2 made it" in stories) == (head == "if True:"), stories
    assert ("in the turn before" in stories) == (head == "while True:"), stories


def test_ranks_of_which_one_has_left_the_loop_made_turns_of_different_number(tmp_path):
    """The commonest hang of all: data that do not divide. The first story was that sizes differ."""
    program = tmp_path / "miscount.py"
    lines = [
        *["import torch"] * 10,
        "for batch in mine:",
        "    dist.all_reduce(torch.ones(4))",
        "dist.barrier()",
    ]
    program.write_text("\n".join(lines))
    folder = log_dir("miscount", tmp_path / "logs")
    for rank in range(3):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.write_text(log.read_text().replace("/srv/me/miscount.py", str(program)))
    found = diagnose_job(read_job(folder))
    assert found.seen == (
        "either rank 0 made fewer turns of the loop at miscount.py:11 than ranks 1 and 2, or sizes differ in "
        "that all_reduce, and it let rank 0 through, or only ranks 1 and 2 made it, or the order differs",
    )
    assert found.check_first.startswith(
        "does the loop at miscount.py:11 make as many turns on all ranks? do sizes"
    )


def test_a_sum_of_all_ranks_beside_one_of_a_group_may_lack_its_group(tmp_path):
    """Four stories were told of it, and none was that."""
    folder = log_dir("miscount", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "0" / "stderr.log"
    of_group = log.read_text().replace("dist.barrier()", "dist.all_reduce(x, group=mesh)")
    log.write_text(of_group.replace("in barrier", "in all_reduce"))
    found = diagnose_job(read_job(folder))
    assert found.seen[0].startswith(
        "either the groups differ: the all_reduce at /srv/me/miscount.py:12 names none, and is of all ranks; "
        "that at /srv/me/miscount.py:13 names one, or sizes differ"
    )
    assert found.check_first.startswith("is `group=` missing at /srv/me/miscount.py:12? do sizes")


def test_an_if_of_the_helper_that_makes_the_sum_is_named_with_its_file(tmp_path):
    """The `if` of the loop was named, which only ends it; the guilty one stood right above the sum."""
    helper, program = tmp_path / "helper.py", tmp_path / "miscount.py"
    helper.write_text("def sum_up(x):\n    if x.any():\n        dist.all_reduce(x)\n")
    lines = [*["import torch"] * 10, "for n in mine:", "    sum_up(x)", "    if n == 0:", "        break"]
    program.write_text("\n".join([*lines, "    dist.barrier()"]))
    folder = log_dir("miscount", tmp_path / "logs")
    for rank in range(3):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        text = log.read_text().replace("/srv/me/miscount.py", str(program)).replace("line 13", "line 15")
        of_helper = rf'\1File "{helper}", line 3, in sum_up\n\2dist.all_reduce(x)\n'
        line, call = rf'File "{program}", line 12, in <module>\n', r"dist\.all_reduce\(torch\.ones\(4\)\)\n"
        log.write_text(re.sub(rf"(.*){line}(.*){call}", rf"\1{line}\2sum_up(x)\n{of_helper}", text))
    found = diagnose_job(read_job(folder))
    assert "helper.py:3" in found.cause.source
    assert found.check_first.startswith("the `if` at helper.py:2: does it come out alike on these ranks? ")
    assert found.seen[0].startswith("either only ranks 1 and 2 made it, or sizes differ")


def test_a_rank_whose_watchdog_spoke_is_named_though_torchrun_ended_the_others_before_they_did(tmp_path):
    stuck = (
        "Thread 0x00007f3970212b80 (most recent call first):\n"
        '  File "/srv/me/loop.py", line 73 in end_in_c\n  File "/srv/me/loop.py", line 95 in serve\n'
        "rank 1 failed at /srv/me/loop.py:73\n"
        "ppwork.errors.StuckError: The loop did not answer the chunk within 8 s.\n"
        "  where: rank=1 role=leader\n"
    )
    lost = "[rank2]: ppwork.errors.PeerLostError: The connection broke: Connection closed by peer.\n"
    for rank, text in enumerate(("", stuck, f"[rank2]: Traceback (most recent call last):\n{lost}")):
        log = tmp_path / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(text)
    found = diagnose_job(read_job(tmp_path))
    assert (found.cause.rank, found.cause.source) == (1, "/srv/me/loop.py:73")
    assert found.sentence.endswith("Rank 1 said: The loop did not answer the chunk within 8 s.")


def test_a_rank_alone_in_a_sum_that_the_others_are_behind_is_not_blamed_either(tmp_path):
    """It may have made one more, or one with more numbers in it."""
    folder = log_dir("miscount", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "1" / "stderr.log"
    log.write_text(log.read_text().replace("line 12", "line 13").replace("all_reduce", "barrier"))
    found = diagnose_job(read_job(folder))
    assert (found.cause.where, found.cause.source) == ({}, "/srv/me/miscount.py:12")


def test_who_noticed_in_the_sum_that_a_peer_had_given_up_waited_in_it_as_well(tmp_path):
    folder = log_dir("miscount", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "1" / "stderr.log"
    head, _, _ = log.read_text().rpartition("[rank1]: RuntimeError")
    log.write_text(
        f"{head}[rank1]: RuntimeError: [/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:1.\n"
    )
    found = diagnose_job(read_job(folder))
    assert (found.cause.where, found.cause.source) == ({}, "/srv/me/miscount.py:12")


@pytest.mark.parametrize(
    ("call", "story"),
    [
        ("reduce", "sizes or the roots (`dst`) differ in that reduce, and it let rank 0 through, or only"),
        ("broadcast", "the roots (`src`) differ in that broadcast, and it let rank 0 through, or only"),
        (
            "gather_object",
            "the roots (`dst`) differ in that gather_object, and it let rank 0 through, or only",
        ),
    ],
)
def test_another_root_may_have_let_a_rank_through_and_none_is_blamed(tmp_path, call, story):
    folder = log_dir("miscount", tmp_path)
    for rank in (1, 2):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.write_text(log.read_text().replace("all_reduce", call))
    found = diagnose_job(read_job(folder))
    assert (found.cause.where, found.cause.source) == ({}, "/srv/me/miscount.py:12")
    assert found.seen[0].startswith(f"either {story} ranks 1 and 2 made it")
    assert "`ppwork trace PROGRAM` shows each rank's" in found.check_first


@pytest.mark.parametrize(("call", "line"), [("all_gather", 12), ("all_reduce", 14)])
def test_a_rank_in_another_call_is_named_where_no_size_can_have_let_it_through(tmp_path, call, line):
    """A gather to all of other sizes is aborted; and who stands above the sum has not come to it."""
    folder = log_dir("miscount", tmp_path)
    for rank in (1, 2):
        log = folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.write_text(log.read_text().replace("line 12", f"line {line}").replace("all_reduce", call))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (0, "CollectiveMismatch")
    assert found.cause.source == "/srv/me/miscount.py:13"
    assert waits(found) == {1: (call, (0,)), 2: (call, (0,))}


def test_size_mismatch_without_detail_names_the_two_neighbours_and_what_is_not_known(tmp_path):
    for found in (said("shapes", tmp_path), diagnose_job(read_job(console("shapes")))):
        assert found.cause.where == {"rank": 0, "peer": 1}
        assert "3336 bytes where it expected 2668" in found.cause.what
        assert found.cause.source == "/srv/me/shapes.py:11"
        assert found.unknown == ("which of ranks 0 and 1 has the wrong size",)
        assert "DETAIL" in found.check_first


@pytest.mark.parametrize(
    ("line", "peer"),
    [
        ("dist.all_reduce(x, op=dist.ReduceOp.SUM)", 1),
        ("dist.all_reduce(x, dist.ReduceOp.SUM, tp)", None),  # of some ranks, and no word of a group
        ("dist.all_reduce(", None),  # all that Python shows of a call over several lines
    ],
)
def test_the_neighbour_in_a_sum_is_named_where_its_line_shows_that_all_ranks_are_in_it(tmp_path, line, peer):
    folder = log_dir("shapes", tmp_path)
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):
        log.write_text(log.read_text().replace("dist.all_reduce(torch.ones(length))", line))
    found = diagnose_job(read_job(folder))
    assert found.cause.where.get("peer") == peer
    assert ("which rank sent it" in found.unknown) == (peer is None)


def test_the_neighbour_of_the_last_rank_that_a_cut_console_shows_is_not_known(tmp_path):
    """It is rank 0 only if no rank of a higher number was in the sum."""
    whole = console("shapes").read_text()
    cut = tmp_path / "console.log"
    cut.write_text(whole[: whole.index("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")])
    assert diagnose_job(read_job(cut)).cause.where == {"rank": 0, "peer": 1}
    text = cut.read_text().replace("local_rank: 0", "local_rank: 3")
    cut.write_text(text.replace("[default0]", "[default3]").replace("[rank0]", "[rank3]"))
    assert diagnose_job(read_job(cut)).cause.where == {"rank": 3}


def test_who_stands_in_a_sum_is_not_its_other_end_where_a_silent_rank_may_be(tmp_path):
    """Rank 1 sent too much and left no word; rank 2 saw only that rank 0 was gone: no line shows a group."""
    folder = log_dir("shapes", tmp_path, report=False)
    log_of = {rank: folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log" for rank in (1, 2)}
    log_of[1].write_text("")
    log_of[2].write_text(log_of[2].read_text().replace("(torch.ones(length))", "("))
    found = diagnose_job(read_job(folder))
    assert found.cause.where == {"rank": 0}
    assert "which rank sent it" in found.unknown


def test_size_mismatch_of_another_call_names_the_rank_that_was_aborted(tmp_path):
    folder = log_dir("shapes", tmp_path)
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):
        log.write_text(log.read_text().replace("all_reduce", "gather"))
    found = diagnose_job(read_job(folder))
    assert found.cause.where == {"rank": 0}
    assert found.unknown == ("which rank sent it",)


def test_a_message_that_is_too_long_has_the_sender_of_its_line_and_detail_is_not_advised(tmp_path):
    folder = log_dir("shapes", tmp_path)
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):
        received = log.read_text().replace("dist.all_reduce(torch.ones(length))", "dist.recv(x, 2)")
        log.write_text(received.replace("all_reduce", "recv"))
    found = diagnose_job(read_job(folder))
    assert found.cause.where == {"rank": 0, "peer": 2}
    assert found.sentence.endswith("bytes where it expected 2668, by rank 2, and gloo aborted it.")
    assert found.unknown == ()
    assert "both sides" in found.check_first
    assert "DETAIL" not in found.check_first
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):  # who waits for rank 0 is not where that one was
        log.write_text(log.read_text().replace("dist.recv(x, 2)", "dist.recv(x, 0)"))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.source, found.lines) == (0, "", ())


def test_detail_names_rank_call_and_shapes(tmp_path):
    found = said("shapes-detail", tmp_path)
    assert found.cause.rank == 1
    assert found.cause.what == (
        "Rank 1 called ALLREDUCE number 0 on [5000] Float where ranks 0 and 2 called ALLREDUCE number 0 on "
        "[4000] Float."
    )
    assert found.cause.source == "/srv/me/shapes.py:11"
    found = said("miscount-detail", tmp_path / "2")
    assert found.cause.what.startswith("Rank 0 called BARRIER number 2 where ranks 1 and 2 called ALLREDUCE")


def test_detail_with_two_ranks_does_not_pretend_to_know_who_is_wrong(tmp_path):
    found = said("shapes-detail", tmp_path, ranks=2)
    assert found.cause.rank == 1  # torchrun saw it fail first
    assert found.unknown == ("which of ranks 0 and 1 is the wrong one",)


@pytest.mark.parametrize("silent", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize(("name", "wrong"), [("shapes-detail", 1), ("miscount-detail", 0)])
def test_detail_of_ranks_that_torchrun_ended_before_they_spoke_is_no_less_true(tmp_path, name, wrong, silent):
    """One log alone names a pair, of which it cannot tell; two that agree name the third."""
    folder = log_dir(name, tmp_path)
    for rank in silent:
        (folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log").write_text("")
    found = diagnose_job(read_job(folder))
    assert found.cause.error_type == "CollectiveMismatch"
    if silent == (wrong,):
        assert found.cause.rank == wrong
        # Of the same operation the others tell the shape; another one may be a call of DETAIL itself.
        is_told = name == "shapes-detail"
        asked = () if is_told else (f"which call rank {wrong} made instead: its log does not tell",)
        assert len(found.unknown) == len(asked)
        assert all(map(str.startswith, found.unknown, asked))
        assert found.cause.what.count("ALLREDUCE number 0 on") == 2 * is_told
    else:
        ranks = sorted((found.cause.where["rank"], found.cause.where["peer"]))
        assert f"which of ranks {ranks[0]} and {ranks[1]} is the wrong one" in found.unknown
        assert wrong in ranks or name == "miscount-detail", (
            "what DETAIL says of others may be a call of its own"
        )


def test_rank_that_left_early_is_told_from_one_that_died_by_the_report(tmp_path):
    found = said("leaves", tmp_path)
    assert (found.cause.rank, found.cause.error_type) == (2, "LeftEarly")
    assert "ended with code 0 while ranks 0 and 1 were in all_reduce" in found.cause.what
    found = said("leaves", tmp_path / "2", report=False)
    assert found.cause.rank == 2
    assert "without a word" in found.cause.what
    assert "whether rank 2 ended well" in found.unknown[0]


def test_a_rank_of_which_a_console_has_no_word_may_have_ended_before_it_sent():
    found = diagnose_job(read_job(console("forgotten-end")))
    assert found.cause.what.startswith("Rank 1 stood in recv at /srv/me/plain.py:45 for a message that never")
    assert found.check_first.startswith("did rank 0 end before its half of that message? else peer and tag")
    (unknown,) = found.unknown
    assert unknown.startswith("how rank 0 ended")


@pytest.mark.parametrize(
    ("call", "passed"),
    [
        ("all_reduce", "sizes differ in that all_reduce, and it let ranks 1 and 2 through, or "),
        ("broadcast", "the roots (`src`) differ in that broadcast, and it let ranks 1 and 2 through, or "),
        ("barrier", ""),
    ],
)
def test_of_ranks_that_ended_well_most_are_not_blamed_for_the_call_of_a_few(tmp_path, call, passed):
    """That few may have made a call too many, or one of another size or root."""
    folder = log_dir("leaves", tmp_path)
    logs = [folder / "run_x1" / "attempt_0" / str(rank) / "stderr.log" for rank in range(3)]
    logs[0].write_text(logs[0].read_text().replace("all_reduce", call))
    logs[1].write_text("")
    report = (folder / "console.log").read_text()
    (folder / "console.log").write_text(re.sub(r"\[1\]:\n.*?(?=-{20})", "", report, flags=re.DOTALL))
    found = diagnose_job(read_job(folder))
    assert found.cause.where == {}, found.text
    assert found.seen[0] == f"either {passed}only rank 0 made it, or ranks 1 and 2 ended early"


def test_a_rank_that_could_not_reach_the_store_is_named_with_the_address_that_it_tried(tmp_path):
    found = said("port", tmp_path)
    assert found.cause.where == {"rank": 2}
    what = (
        "Rank 2 did not come to init_process_group, where ranks 0 and 1 waited: The client socket has timed "
    )
    assert found.cause.what == f"{what}out after 6000ms while trying to connect to (localhost, 1)."
    assert found.check_first.startswith("MASTER_ADDR and MASTER_PORT of rank 2")
    assert "frame #" not in found.text, "C++ says nothing to anybody here"


def test_a_rank_that_came_under_anothers_number_is_named(tmp_path):
    found = said("rank-twice", tmp_path)
    assert found.cause.where == {"rank": 2}
    assert found.cause.what.startswith("Nobody joined as rank 2: the process that should have")
    assert found.check_first.startswith("RANK of that process")


def test_a_thread_that_died_in_a_call_is_shown_where_no_log_has_another_cause(tmp_path):
    found = said("thread", tmp_path)
    assert found.cause.error_type == "OnlySymptoms"
    assert (
        "  a thread of rank 1 died in all_reduce at /srv/me/mistakes.py:101: RuntimeError: Timed"
        in found.text
    )
    assert found.check_first.startswith("do all ranks make the call of that thread")


def test_rank_that_left_no_line_in_a_console_is_not_invented():
    found = diagnose_job(read_job(console("leaves")))
    assert found.cause.error_type == "OnlySymptoms"
    assert found.cause.where == {}
    assert any("more ranks" in one for one in found.unknown)


def test_killed_rank_is_named_with_its_signal(tmp_path):
    found = said("killed", tmp_path)
    assert (found.cause.rank, found.cause.error_type) == (1, "RankDied")
    assert "SIGKILL" in found.cause.what
    assert "out-of-memory" in found.check_first
    assert waits(found) == {0: ("all_reduce", (1,)), 2: ("all_reduce", (1,))}


def test_rank_that_torchrun_killed_for_not_leaving_is_no_cause(tmp_path):
    """Of 30 s after its SIGTERM: the others had timed out, and one of them was first."""
    folder = log_dir("missing", tmp_path)
    log = folder / "console.log"
    log.write_text(log.read_text().replace("-15 (pid", "-9 (pid"))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
    assert "still running" not in found.cause.what


def test_exit_without_a_word_is_named_with_its_code(tmp_path):
    folder = log_dir("killed", tmp_path)
    log = folder / "console.log"
    log.write_text(log.read_text().replace("exitcode  : -9 ", "exitcode  : 7 "))
    assert "Rank 1 exited with code 7" in diagnose_job(read_job(folder)).cause.what


def test_monitored_barrier_names_the_missing_rank(tmp_path):
    found = said("monitored-barrier", tmp_path)
    assert found.cause.rank == 2
    assert "never came to the monitored_barrier" in found.cause.what
    assert waits(found) == {0: ("monitored_barrier", (2,)), 1: ("monitored_barrier", (2,))}


@pytest.mark.parametrize("name", ["hang-aborted", "hang-interrupted"])
def test_hang_that_was_ended_with_stacks_names_the_rank_outside_the_call(tmp_path, name):
    for found in (said(name, tmp_path), diagnose_job(read_job(console(name)))):
        assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
        assert found.cause.source == "/srv/me/missing.py:15"
        assert waits(found) == {0: ("broadcast", (2,)), 1: ("broadcast", (2,))}


@pytest.mark.parametrize("code", [-15, -6])
def test_hang_in_which_torchrun_ended_a_rank_before_its_stack_names_that_rank(tmp_path, code):
    """SIGABRT to all ranks without stopping torchrun: it may be quicker than the handler of the last one."""
    folder = log_dir("hang-aborted", tmp_path)
    (folder / "run_x1" / "attempt_0" / "2" / "stderr.log").write_text("")
    report = folder / "console.log"
    head, rank_2, rest = report.read_text().partition("rank      : 2 ")
    report.write_text(head + rank_2 + rest.replace("exitcode  : -6 ", f"exitcode  : {code} ", 1))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (2, "NeverCame")
    assert found.unknown == ("where rank 2 was: it showed no stack",)
    assert waits(found) == {0: ("broadcast", (2,)), 1: ("broadcast", (2,))}


def test_rank_that_torch_aborted_at_its_exit_says_what_to_look_for(tmp_path):
    """An ordinary exit with the process group alive: SIGABRT in place of code 0, now and then."""
    folder = log_dir("killed", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "1" / "stderr.log"
    log.write_text("terminate called without an active exception\n")
    report = folder / "console.log"
    report.write_text(report.read_text().replace("exitcode  : -9 ", "exitcode  : -6 "))
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (1, "RankDied")
    assert "SIGABRT" in found.cause.what
    assert "destroy_process_group" in found.check_first


def test_hang_that_was_ended_without_stacks_says_what_is_missing(tmp_path):
    for found in (said("hang-terminated", tmp_path), diagnose_job(read_job(console("hang-terminated")))):
        assert "SIGTERM" in found.cause.what
        assert found.cause.where == {}
        assert "ask while it stands: `ppwork diagnose`, without a path" in found.check_first


def test_ranks_that_all_sent_first_are_told_that_nobody_received(tmp_path):
    found = said("ring", tmp_path)
    assert found.cause.error_type == "NobodyReceived"
    assert found.cause.where == {"rank": 0, "peer": 1}  # which fails first is chance: the lowest is named
    assert found.cause.source == "/srv/me/ring.py:13"
    assert not found.unknown
    (of_console,) = diagnose_job(read_job(console("ring"))).unknown
    assert "more ranks" in of_console


def test_ranks_that_all_received_first_are_told_that_nobody_sent(tmp_path):
    folder = log_dir("ring", tmp_path)
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):
        text = log.read_text().replace("dist.send(mine", "dist.recv(mine")
        log.write_text(text.replace("in send", "in recv"))
    assert diagnose_job(read_job(folder)).cause.error_type == "NobodySent"


def test_a_rank_that_said_nothing_may_have_been_the_receiver(tmp_path):
    folder = log_dir("ring", tmp_path)
    (folder / "run_x1" / "attempt_0" / "1" / "stderr.log").write_text("")
    assert diagnose_job(read_job(folder)).cause.error_type == "NeverCame"


def test_symptoms_at_one_line_are_not_blamed_on_anybody(tmp_path):
    folder = log_dir("missing", tmp_path, ranks=2)
    (folder / "console.log").unlink()
    found = diagnose_job(read_job(folder))
    assert found.cause.error_type == "OnlySymptoms"
    assert found.unknown == ("which rank was the first",)


def test_two_ranks_in_two_calls_do_not_tell_who_is_wrong(tmp_path):
    folder = log_dir("miscount", tmp_path, ranks=2)
    found = diagnose_job(read_job(folder))
    assert found.cause.error_type == "CollectiveMismatch"
    assert found.unknown == ("which of ranks 0, 1 and 2 is the wrong one",)


def test_several_ranks_that_raise_are_all_named_the_first_one_first(tmp_path):
    folder = log_dir("raises", tmp_path)
    logs = folder / "run_x1" / "attempt_0"
    (logs / "0" / "stderr.log").write_text((logs / "1" / "stderr.log").read_text())
    found = diagnose_job(read_job(folder))
    assert found.cause.rank == 1
    assert found.cause.what.endswith("So did rank 0.")


def test_error_raised_from_a_symptom_is_a_symptom(tmp_path):
    """``raise TrainingError("step 3") from error``: its rank is not the cause."""
    folder = log_dir("leaves", tmp_path)
    log = folder / "run_x1" / "attempt_0" / "0" / "stderr.log"
    wrapped = (
        "[rank0]: \n[rank0]: The above exception was the direct cause of the following exception:\n"
        "[rank0]: \n[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/srv/me/leaves.py", line 30, in <module>\n'
        "[rank0]: TrainingError: step 3\n"
    )
    log.write_text(log.read_text() + wrapped)
    found = diagnose_job(read_job(folder))
    assert (found.cause.rank, found.cause.error_type) == (2, "LeftEarly")


def test_job_without_any_failure_says_so(tmp_path):
    folder = log_dir("raises", tmp_path, report=False)
    for log in folder.glob("run_x1/attempt_0/*/stderr.log"):
        log.write_text("all good\n")
    found = diagnose_job(read_job(folder))
    assert found.cause is None
    assert "none has exit codes" in found.text
    assert "rank 0: all good" in found.text
    assert "check first: did it hang? `ppwork trace --nproc N PROGRAM`" in found.text
    assert "`ppwork diagnose`, without a path, looks into its ranks" in found.check_first


def test_a_program_is_no_log(tmp_path):
    """Its lines were shown as such that may tell of an error."""
    program = tmp_path / "train.py"
    program.write_text("def stop():\n    raise ValueError('failed')\n")
    with pytest.raises(PlanError, match="is a program, and no log") as raised:
        read_job(program)
    assert "the log of its console" in raised.value.check_first
