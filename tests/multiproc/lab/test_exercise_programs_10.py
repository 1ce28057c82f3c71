"""The programs of lesson 10: results of the old epoch are dropped, and a mesh is restored bit for bit."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

STALE, RESTORED = right_program("10.1"), right_program("10.3")
RECV = "            dist.recv(result, src=1)\n"
IS_STALE = "            if result[1] < flushed:\n"
STATE = 'state = {f"{name} {rank}": tensor for name, tensor in model.items()}\n'
PLAY = "play(model, 0, 3)\n"
UNRECEIVED = "            if message[1] < flushed:\n                continue\n"


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("10.1", changed(STALE, (RECV, UNRECEIVED + RECV)), "Who takes the result of chunk 2"),
        ("10.1", changed(STALE, (IS_STALE, "            if result[0] == 2:\n")), "old epoch is shown"),
        ("10.1", changed(STALE, (IS_STALE, "            if result[1] == flushed:\n")), "old epoch is shown"),
        ("10.3", changed(RESTORED, (PLAY + STATE, STATE + PLAY)), "which one does `state` hold"),
        ("10.3", RESTORED.replace(STATE, "state = dict(model)\n"), "need 4"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path)
    assert hint in verdict.hint
    assert not verdict.right
