"""How a program ended, told from the files that it left: its calls know more than the logs where it hung."""

from captured_logs import TEED, console, log_dir
from made_calls import MadeCalls
from made_logs import folder, report, traceback

from ppwork.launcher.script import _failure
from ppwork.process import PAST_LIMIT
from ppwork.records.run import TORCHRUN_LOG


def past_its_limit(folder):
    """Return the failure of a program that stood in calls that do not fit when its limit passed."""
    calls = MadeCalls(folder, 2)
    calls.call(0, "all_reduce", 1, None, line=5)
    calls.call(1, "barrier", 1, 2, line=7)
    return _failure(folder, PAST_LIMIT, 8.0)


def test_torchruns_word_on_our_own_signal_does_not_hide_who_waited_for_whom(tmp_path):
    """At the limit torchrun is ended by SIGTERM, and is at times quick enough to say so."""
    log_dir("hang-terminated", tmp_path, report=False)
    (tmp_path / TORCHRUN_LOG).write_text(TEED.sub("", console("hang-terminated").read_text()))
    failure = past_its_limit(tmp_path)
    assert "rank 0 waits for rank 1: all_reduce at prog.py:5" in failure.what
    assert "SIGTERM" not in failure.what
    assert failure.check_first.startswith("which of the two calls is meant")


def test_our_own_kill_at_the_limit_is_not_what_ended_the_program(tmp_path):
    """On a full machine ranks may not follow a SIGTERM in time: "killed by SIGKILL" was the headline."""
    (tmp_path / TORCHRUN_LOG).write_text(report(0, r0=-9, r1=-9))
    failure = past_its_limit(tmp_path)
    assert "rank 0 waits for rank 1: all_reduce at prog.py:5" in failure.what
    assert "SIGKILL" not in failure.headline


def test_a_traceback_that_our_own_kill_cut_off_does_not_hide_who_waited_for_whom(tmp_path):
    """Where a rank stood in our own code was the headline, and the whole log what to check first."""
    cut = traceback(0, 5, "dist.all_reduce(x)", "", inside="all_reduce").rpartition("[rank0]: ")[0]
    folder(tmp_path, cut, "")
    failure = past_its_limit(tmp_path)
    assert "rank 0 waits for rank 1: all_reduce at prog.py:5" in failure.what
    assert failure.check_first.startswith("which of the two calls is meant")
