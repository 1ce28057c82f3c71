"""Logs as people post them: without torchrun's report, and often without the head of the traceback."""

from __future__ import annotations

import json

import pytest

from ppwork.diagnosis.jobs import diagnose_job
from ppwork.diagnosis.logs import read_job
from ppwork.diagnosis.stacks import fragments, tracebacks
from ppwork.errors import PlanError

FRAMES = '  File "/me/train.py", line 12, in <module>\n    step(batch)\n'


def said(tmp_path, text):
    log = tmp_path / "posted.txt"
    log.write_text(text)
    return diagnose_job(read_job(log))


@pytest.mark.parametrize(
    "text",
    [
        f"{FRAMES}ValueError: shard 3 is empty\n",
        f"    return first(batch)\n{FRAMES}ValueError: shard 3 is empty\n",
        f"ValueError: shard 3 is empty\n{FRAMES}",
    ],
    ids=["below its calls", "a call cut in half", "above its calls"],
)
def test_an_exception_without_its_head_is_read_with_the_calls_beside_it(tmp_path, text):
    (stack,) = fragments(text)
    assert (stack.error, stack.message) == ("ValueError", "shard 3 is empty")
    assert [frame.at for frame in stack.frames] == ["/me/train.py:12"]
    found = said(tmp_path, text)
    assert found.sentence == "A rank raised ValueError: shard 3 is empty."
    assert found.lines[0].startswith("/me/train.py:12")
    assert found.unknown == ("which rank it was",)


def test_torchs_prefix_names_the_rank_also_where_the_head_is_cut_off(tmp_path):
    found = said(tmp_path, "rank 0: OK\n[rank1]: FileNotFoundError: [Errno 2] No such file: '/tmp/x'\n")
    assert (found.cause.rank, found.cause.error_type) == (1, "FileNotFoundError")


def test_whole_tracebacks_are_no_fragments_and_words_of_a_log_no_exceptions():
    whole = f"Traceback (most recent call last):\n{FRAMES}ValueError: shard 3 is empty\n"
    assert fragments(whole) == []
    assert (
        fragments(
            "INFO: Epoch 3\nWarning: slow\nError\nLoss: 0.3\nERROR: retrying\n  ValueError: in a dump\n"
        )
        == []
    )


def test_a_log_that_tells_of_no_rank_and_no_exception_is_refused(tmp_path):
    with pytest.raises(PlanError, match="no exception"):
        said(tmp_path, "INFO: Epoch 3\nloss 0.3\n")


def test_a_traceback_that_was_moved_to_the_right_is_read(tmp_path):
    """torchrun shows what ``@record`` handed over two columns in; the wrapper's call is not the program's."""
    text = """traceback : Traceback (most recent call last):
    File "/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 5, in wrapper
      return f(*args, **kwargs)
    File "/me/train.py", line 162, in main
      torch.cuda.set_device(device)
  RuntimeError: CUDA error: invalid device ordinal
"""
    found = said(tmp_path, text)
    assert found.sentence == "A rank raised RuntimeError: CUDA error: invalid device ordinal."
    assert found.lines[0].startswith("/me/train.py:162")


def test_a_recursion_is_read_from_both_its_ends():
    calls = '  File "/me/tree.py", line 8, in flatten\n    return [flatten(part) for part in tree]\n'
    long = (
        f"Traceback (most recent call last):\n{FRAMES}{calls * 2000}RecursionError: maximum recursion depth\n"
    )
    (stack,) = tracebacks(f"{long}a later line\n")
    assert (stack.error, stack.message.splitlines()[0]) == ("RecursionError", "maximum recursion depth")
    assert stack.users.at == "/me/tree.py:8"
    assert stack.frames[0].at == "/me/train.py:12"


def test_a_checkpoints_error_is_that_of_the_rank_it_came_from(tmp_path):
    text = """Traceback (most recent call last): (RANK 2)
  File "/me/load.py", line 5, in plan
    check(key)
RuntimeError: Missing key: exp_avg.
"""
    found = said(tmp_path, "".join(f"[rank3]: {line}\n" for line in text.splitlines()))
    assert found.cause.rank == 2
    assert found.seen == ("rank 3 tells it: torch's checkpoint passes errors on",)


def test_one_rank_that_was_interrupted_is_not_called_a_rank_that_stayed_away(tmp_path):
    raised = "[rank1]: Traceback (most recent call last):\n"
    raised += "".join(f"[rank1]: {line}\n" for line in [*FRAMES.splitlines(), "KeyboardInterrupt"])
    lost = "[rank0]: Traceback (most recent call last):\n" + "".join(
        f"[rank0]: {line}\n"
        for line in [*FRAMES.splitlines(), "RuntimeError: [/gloo/pair.cc:553] Connection closed by peer"]
    )
    report = (
        "Root Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n  exitcode  : -2 (pid: 9)\n"
    )
    found = said(tmp_path, raised + lost + report)
    assert found.cause.rank == 1
    assert found.sentence.startswith("Rank 1 was interrupted by SIGINT")
    assert found.unknown == ()
    found = said(tmp_path, raised + lost)
    assert found.cause.rank == 1
    assert "Ctrl-C" in found.unknown[0]


def test_a_traceback_that_lost_its_indentation_is_read():
    text = """Scheduler hit an exception: Traceback (most recent call last):
File "/t/a.py", line 7, in load
raise ValueError(f"shard {shard}")
ValueError: shard 3
"""
    (error,) = tracebacks(text)
    assert (error.error, error.message, error.users.at) == ("ValueError", "shard 3", "/t/a.py:7")
    assert error.users.text == 'raise ValueError(f"shard {shard}")'
    (cut,) = fragments(text.partition("\n")[2])
    assert (cut.message, cut.users.at) == ("shard 3", "/t/a.py:7")


def test_a_loggers_prefix_before_a_cut_traceback_is_passed_over(tmp_path):
    prefix = "(EngineCore_0 pid=268) ERROR 09-05 21:10:3{} [core.py:702] "
    lines = [*FRAMES.splitlines(), "ValueError: shard 3 is empty", "more"]
    found = said(tmp_path, "".join(f"{prefix.format(n)}{line}\n" for n, line in enumerate(lines)))
    assert found.sentence == "A rank raised ValueError: shard 3 is empty\nmore."


def test_a_traceback_inside_json_is_read(tmp_path):
    text = f"Traceback (most recent call last):\n{FRAMES}ValueError: shard 3 is empty\n"
    found = said(tmp_path, 'ERROR:{"py_callstack": ' + json.dumps(text) + "}\n")
    assert found.sentence == "A rank raised ValueError: shard 3 is empty."


def test_a_traceback_that_ends_before_its_error_says_where_it_stood(tmp_path):
    found = said(tmp_path, "".join(f"[rank1]: {line}\n" for line in FRAMES.splitlines()))
    assert (found.cause.rank, found.cause.error_type) == (1, "CutOff")
    assert found.sentence.startswith("The traceback of rank 1 is cut off before its error; it stood in")
    assert found.cause.source


@pytest.mark.parametrize(
    "prefix", ["(Worker_TP1 pid=7) ", "[1,1]<stderr>: ", "1: ", "[2024-02-27T21:35] 88a9df [rank=1] || "]
)
def test_prefixes_of_other_launchers_name_the_rank(tmp_path, prefix):
    text = f"Traceback (most recent call last):\n{FRAMES}ValueError: shard 3 is empty\n"
    found = said(tmp_path, "".join(f"{prefix}{line}\n" for line in text.splitlines()))
    assert found.sentence == "Rank 1 raised ValueError: shard 3 is empty."


@pytest.mark.parametrize(
    "name", ["main.<locals>.MyError", "mod.make.<locals>.Bad", "A.f.<locals>.g.<locals>.Bad"]
)
def test_an_exception_whose_class_stands_in_a_function_is_read(name):
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    raise E\n' + name
    (error,) = tracebacks(f"{text}: x\n")
    assert (error.error, error.message) == (name.rpartition(".")[2], "x")


def test_a_fragment_of_an_exception_whose_class_stands_in_a_function_is_read():
    (error,) = fragments('  File "/srv/me/a.py", line 3, in main\n    raise E\nmain.<locals>.MyError: x\n')
    assert (error.error, error.message) == ("MyError", "x")
