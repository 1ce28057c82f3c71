"""A job of which both are given, the folder of its ranks' logs and the log of its console."""

from __future__ import annotations

from made_logs import folder, report, traceback

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job

LATE_RECV = "RuntimeError: [h/x.cc:78] Timed out waiting 6000ms for recv operation to complete"


def test_a_folder_and_the_console_of_one_job_are_read_in_any_order(tmp_path):
    """Given before the folder, the console made its ranks those of a first host."""
    errors = [traceback(rank, 5, "dist.recv(x, 0)", LATE_RECV, inside="recv") for rank in range(3)]
    logs = folder(tmp_path / "logs", *errors)
    console = tmp_path / "console"
    lines = [line for error in errors for line in error.splitlines()]
    console.write_text("".join(f"[default0]:{line}\n" for line in lines) + report(0, r0=1, r1=1, r2=1))
    for paths in ((logs, console), (console, logs)):
        job = read_job(*paths)
        assert [*job.ranks] == [0, 1, 2]
        assert job.complete
        assert "more ranks" not in diagnose_job(job).text


def test_a_program_that_is_not_there_is_named_also_with_folders_without_files(tmp_path):
    for rank in range(2):
        (tmp_path / "logs" / "x" / "attempt_0" / str(rank)).mkdir(parents=True)
    console = tmp_path / "console"
    words = "python3: can't open file '/t/nowhere.py': [Errno 2] No such file or directory\n"
    at_start = "W1129 06:37:34.5 63 torch/distributed/run.py:874] Setting OMP_NUM_THREADS\n"
    console.write_text(at_start + 2 * words + report(0, r0=2, r1=2))
    for paths in ((tmp_path / "logs", console), (console,)):
        found = diagnose_job(read_job(*paths))
        assert "exited with code 2: Python can't open file '/t/nowhere.py'" in found.sentence, found.text
        assert found.check_first.startswith("the program's name")
    console.write_text(at_start + "my words\n" + report(0, r0=2, r1=2))
    shown = diagnose_job(read_job(tmp_path / "logs", console)).text
    assert "    my words" in shown
    assert "OMP_NUM_THREADS" not in shown


def test_a_console_with_nothing_but_torchruns_report_names_no_cause(tmp_path):
    """Rank 1 had lost its peer, and was said to be the answer; the ranks' words were in a folder."""
    console = tmp_path / "console.log"
    console.write_text(report(1, r0=-15, r1=1, r2=-15))
    found = diagnose_job(read_job(console))
    assert found.text.startswith(
        "torchrun says that rank 1 exited with code 1. What the ranks printed is not"
    )
    assert "it is not known why, nor if another rank was to blame" in found.text
    assert "`ppwork diagnose LOGS CONSOLE` reads both" in found.check_first


def test_what_a_rank_of_ours_handed_over_to_the_report_is_told_with_where_the_rest_is(tmp_path):
    """Its watchdog had ended it, which leaves no exception: only its exit code was told."""
    console = tmp_path / "console"
    said = "rank 1 failed: StuckError: The loop did not answer the chunk within 4 s, at /t/loop.py:13"
    of_rank = (
        f"  error_file: /tmp/x/1/error.json\n  traceback : {said}\n    all of it: ppwork diagnose /t/run\n"
    )
    console.write_text(report(1, r0=-15, r1=72).replace("72 (pid: 2)\n", f"72 (pid: 2)\n{of_rank}"))
    found = diagnose_job(read_job(console))
    assert found.sentence == f"R{said[1:]}.", found.text
    assert found.check_first.startswith("`ppwork diagnose /t/run`")
    assert found.cause.where == {"rank": 1}
