"""The pool of claims says in its own words that no rank could be forked."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace

import pytest

from ppwork.claims import pool
from ppwork.claims.catalogue import claim_of
from ppwork.errors import RunFailed
from ppwork.launcher.warm import NotWarm


@pytest.mark.skipif("sys.platform != 'linux'")
def test_a_warm_launcher_that_does_not_start_fails_the_run_with_a_hint(monkeypatch):
    def launcher(_):
        raise NotWarm("the warm launcher did not start: no memory")

    monkeypatch.setattr(pool, "WarmLauncher", launcher)
    (program, *_) = claim_of("C04").programs.values()
    with pool.Pool(1, "gloo") as ranks:
        with pytest.raises(RunFailed, match="The process that forks the ranks of claims ended") as failed:
            ranks.run(program)
        assert "ppwork claims ID --show" in failed.value.check_first


def test_ctrl_c_while_the_pool_ends_leaves_neither_its_threads_nor_its_folder(monkeypatch):
    ranks = pool.Pool(1, "gloo")
    working = ranks.submit(threading.current_thread).result()

    def close():
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ranks, "_launcher", SimpleNamespace(close=close))
    with pytest.raises(KeyboardInterrupt), ranks:
        assert ranks._scratch.exists()
    assert not ranks._scratch.exists()
    assert not working.is_alive()
