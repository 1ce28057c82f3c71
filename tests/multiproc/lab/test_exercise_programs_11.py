"""The programs of lesson 11: objects out of the loop, a barrier out of it; usual false cures get hints."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

AHEAD, GUARD = right_program("11.2"), right_program("11.3")
POSTED = """    if not posted:
        post()  # that of chunk 0
    frame, coming = posted[-1]
    coming.wait()
    if len(posted) < CHUNKS:
        post()  # that of the next chunk, before the work on this one
"""
FIVE = changed(AHEAD, (POSTED, "    frame = torch.empty(1 + state.numel())\n    dist.recv(frame, src=0)\n"))
"""Right as well: the receive is not posted ahead."""
SEND, RECV = "        dist.send(frame, dst=1)\n", "    dist.recv(frame, src=0)\n"
AS_OBJECT = "        dist.send_object_list([frame], dst=1)\n"
BY_OBJECT = "    box = [None]\n    dist.recv_object_list(box, src=0)\n    frame.copy_(box[0])\n"
FIRST = "        if works:\n            works.pop().wait()  # now the buffer is ours again\n"
PREVIEW = "        time.sleep(0.2)  # writes a preview to disk\n"


def halves(line: str) -> str:
    """The call twice, with a part of the tensor each."""
    return line.replace("frame", "frame[:1]") + line.replace("frame", "frame[1:]")


@pytest.mark.parametrize(
    ("exercise", "ranks", "source", "hint"),
    [
        ("11.2", 2, changed(FIVE, (SEND, AS_OBJECT), (RECV, BY_OBJECT)),
         "in `yours`, too"),
        ("11.2", 2, changed(FIVE, (SEND, halves(SEND)), (RECV, halves(RECV))), "80 messages for 40 chunks"),
        ("11.2", 2, changed(FIVE, ("(state + k).flatten()", "state.flatten()")),
         "`yours` gives steps 780 layers 40000"),
        ("11.2", 2, changed(FIVE, ("frame[1:].view(LAYERS, 100)", "state + frame[0]")),
         "`yours` gives steps 780 layers 780000"),
        ("11.3", 3, changed(GUARD, (FIRST, ""), (PREVIEW, PREVIEW + "    dist.barrier()\n")),
         "wait for the previews"),
        ("11.3", 3, changed(GUARD, (FIRST, "")), "when may rank 0 fill it again"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, ranks, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, ranks=ranks)
    assert hint in verdict.hint
    assert not verdict.right


def test_a_receive_that_is_not_posted_ahead_is_right_as_well(tmp_path):
    assert verdict_of("11.2", FIVE, tmp_path, ranks=2).right
