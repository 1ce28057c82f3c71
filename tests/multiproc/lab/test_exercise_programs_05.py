"""Programs of ranks for the exercises of lesson 05: the right one passes, each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import right_program

import ppwork as pp

OVERLAPS, AHEAD = right_program("05.1"), right_program("05.2")


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("05.1", OVERLAPS, ""),
        ("05.1", OVERLAPS.replace("        if k > 0:", "        if k < CHUNKS:").replace("k - 1,", "k,"), "take turns"),
        ("05.1", OVERLAPS.replace("range(CHUNKS + 1)", "range(CHUNKS + 2)").replace("k > 0", "k > 1").replace("k - 1,", "k - 2,"), "more than 2 chunks"),
        ("05.1", OVERLAPS.replace("            leaving.wait()\n", ""), "never waits for the handle of isend"),
        ("05.1", OVERLAPS.replace("leaving = dist.isend(envelope, dst=1)", "leaving = dist.send(envelope, dst=1)").replace("leaving.wait()", "pass").replace("coming = dist.irecv(result, src=1)", "coming = None").replace("coming.wait()", "dist.recv(result, src=1)"), "All ranks were in send"),
        ("05.2", AHEAD, ""),
        ("05.2", AHEAD.replace("torch.empty(SIZE), torch.empty(SIZE)]", "torch.empty(SIZE)] * 2"), "two buffers"),
        ("05.2", AHEAD.replace("        time.sleep(0.020)  # generate\n", "").replace("        posted.wait()\n", "        posted.wait()\n        time.sleep(0.020)\n"), "after it has generated"),
    ],
    ids=["right", "in turns", "too deep", "forgotten", "both send", "ahead", "one buffer", "not ahead"],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    path = tmp_path / "my_program.py"
    path.write_text(source)
    run = pp.launch_script(path, nproc=2, out=tmp_path / "run", check=False, limit_s=30)
    verdict = pp.check(exercise, run)
    assert verdict.right is (hint == "")
    assert hint in verdict.hint
