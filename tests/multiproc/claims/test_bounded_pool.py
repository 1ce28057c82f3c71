"""A program of claims is bounded by its limit, whatever becomes of the process that forks its ranks."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest
from waiting import END_S, wait_for

from ppwork.claims.claim import Program
from ppwork.claims.pool import STACK_S, Pool
from ppwork.errors import RunFailed
from ppwork.launcher.processes import KILL_S, is_alive
from ppwork.launcher.warm import END_S as CLOSE_S

pytestmark = pytest.mark.multiproc

LIMIT_S = 1.0
SLACK_S = 10.0
"""Of a busy machine."""


def test_a_program_whose_ends_nobody_tells_is_given_up():
    """The warm launcher stood still: the ranks were killed, and their ends waited for without a bound."""
    program, raised = Program("groups:one_rank_left_out", ranks=3, limit_s=LIMIT_S), []
    with Pool(1, "gloo") as ranks:

        def run():
            with pytest.raises(RunFailed) as caught:
                ranks.run(program)
            raised.append((caught.value, time.monotonic()))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        server = psutil.Process(wait_for(lambda: ranks._launcher)._process.pid)
        forked = wait_for(lambda: all_begun(ranks, server))
        os.kill(server.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        thread.join(END_S)
        assert raised, "it still waits"
        error, ended = raised[0]
        assert error.what == "A claim's program was killed, and nobody told that ranks 0, 1 and 2 had ended."
        assert not [rank for rank in forked if is_alive(rank)]
        assert ended - stopped < LIMIT_S + STACK_S + KILL_S + CLOSE_S + SLACK_S


def all_begun(pool: Pool, server: psutil.Process) -> list[psutil.Process]:
    begun = list(pool._scratch.glob("*/*begun*"))
    return server.children() if len(begun) == 3 else []
