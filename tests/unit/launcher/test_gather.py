"""Files that come home: what a rank wrote arrives as it was, and a host writes nowhere else."""

from __future__ import annotations

import msgspec
import pytest

from ppwork.launcher.nodes import gather
from ppwork.launcher.nodes.gather import Home, Names, Sender
from ppwork.launcher.nodes.wire import PIECE, NodeWireError, Piece, Stays
from ppwork.plan import Plan
from ppwork.protocol.plan import MAX_RANKS
from ppwork.records.pulse import Pulse, PulseState, read_pulse


@pytest.fixture
def sides(tmp_path):
    """A node's sender and the launcher's home, of the host with rank 0; and both folders."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    names = Names(0, (0,))
    return Sender(there, names), Home(here, names), there, here


def test_files_that_grow_and_records_that_change_arrive_as_they_are(sides):
    sender, home, there, here = sides
    pulse = Pulse(there, 0)
    spans = there / "spans-rank0.jsonl"
    with spans.open("ab") as file:
        for part in (b"first\n", b"x" * 3 * PIECE, b"half a li", b"ne\n"):
            file.write(part)
            file.flush()
            for piece in sender.look():
                home.write(piece)
    assert (here / spans.name).read_bytes() == spans.read_bytes()
    assert read_pulse(here, 0).state is PulseState.STARTING
    pulse.beat(PulseState.BUSY, "encode", {"chunk_index": 3})
    (there / "failure-rank0.json").write_text("{}")
    for piece in sender.look():
        home.write(piece)
    assert read_pulse(here, 0).ids == {"chunk_index": 3}
    assert (here / "failure-rank0.json").read_text() == "{}"
    assert list(sender.look()) == []


def test_what_stage_0_left_comes_at_the_end_and_all_that_does_not_is_told_and_stays(sides, monkeypatch):
    """Too large, a folder, a link, a name of another kind: none of it is lost with the folder."""
    sender, home, there, here = sides
    monkeypatch.setattr(gather, "MOST_WHOLE", 3 * PIECE)
    left = {
        "summary.json": b"{}", "denoised.mp4": b"m" * 2 * PIECE, "empty.txt": b"",
        "huge.bin": b"h" * 4 * PIECE, ".hidden": b"no", "plan.json": b"no", "spans-rank1.jsonl": b"no",
    }  # fmt: skip
    for name, data in left.items():
        (there / name).write_bytes(data)
    (there / "link").symlink_to("/etc/passwd")
    (there / "frames").mkdir()
    stays = []
    for word in sender.last():
        stays.append(word) if isinstance(word, Stays) else home.write(word)
    kept = {"huge.bin", ".hidden", "spans-rank1.jsonl", "link", "frames"}
    assert {word.path for word in stays} == {str(there / name) for name in kept}
    assert Stays(str(there / "huge.bin"), 4 * PIECE) in stays
    assert sender.stays
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {
        name: left[name] for name in ("summary.json", "denoised.mp4", "empty.txt")
    }


def test_a_log_past_its_bound_comes_as_far_as_that_and_is_told_and_stays(sides, monkeypatch):
    """It ended the host before."""
    sender, home, there, here = sides
    monkeypatch.setattr(gather, "MOST_GROWN", PIECE + 10)
    (there / "torchrun.log").write_bytes(b"t" * (PIECE + 10))
    for part in (b"a" * PIECE, b"b" * 50):
        with (there / "rank0.log").open("ab") as file:
            file.write(part)
        for piece in sender.look():
            home.write(piece)
    stays = []
    for word in sender.last():
        stays.append(word) if isinstance(word, Stays) else home.write(word)
    assert (here / "rank0.log").read_bytes() == b"a" * PIECE + b"b" * 10
    assert stays == [Stays(str(there / "rank0.log"), PIECE + 50)]
    assert sender.stays


def test_more_files_than_may_come_stay_and_are_not_the_end_of_the_host(sides, monkeypatch):
    sender, home, there, here = sides
    monkeypatch.setattr(gather, "MOST_FILES", 2)
    for number in range(4):
        (there / f"{number}.png").write_bytes(b"p" * number)
    stays = []
    for word in sender.last():
        stays.append(word) if isinstance(word, Stays) else home.write(word)
    assert sorted(path.name for path in here.iterdir()) == ["0.png", "1.png"]
    assert [word.path for word in stays] == [str(there / f"{number}.png") for number in (2, 3)]


def test_all_that_the_ranks_of_a_full_host_leave_comes_home_and_the_summary_with_it(tmp_path):
    """Their names were counted with the files of stage 0, and from 36 ranks on a summary had no place."""
    there, here, names = tmp_path / "there", tmp_path / "here", Names(0, range(MAX_RANKS))
    there.mkdir()
    here.mkdir()
    left = {*names.growing, *names.records, "summary.json"}
    for name in left:
        (there / name).write_bytes(b"{}")
    sender, home = Sender(there, names), Home(here, names)
    for word in sender.last():
        home.write(word)
    assert {path.name for path in here.iterdir()} == left
    assert not sender.stays


def test_a_host_that_sends_more_files_of_stage_0_than_may_come_is_refused(sides, monkeypatch):
    _, home, _, _ = sides
    monkeypatch.setattr(gather, "MOST_FILES", 2)
    for name in ("0.png", "1.png", "rank0.log", "1.png"):
        home.write(Piece(name, 0, b"x", last=None if name == "rank0.log" else True))
    with pytest.raises(NodeWireError, match="none of its own"):
        home.write(Piece("2.png", 0, b"x", last=True))


@pytest.mark.parametrize(
    "piece",
    [
        Piece("../out", 0, b"", last=True),
        Piece("/etc/out", 0, b"", last=True),
        Piece(".ssh", 0, b"", last=True),
        Piece("a/b", 0, b"", last=True),
        Piece("", 0, b"", last=True),
        Piece(Plan.FILE_NAME, 0, b"{}", last=True),
        Piece("launch.json", 0, b"{}", last=True),
        Piece("hosts.json", 0, b"{}", last=True),
        Piece("torchrun-1.log", 0, b"of another host"),
        Piece("spans-rank1.jsonl", 0, b"of another host's rank"),
        Piece("failure-rank1.json", 0, b"{}", last=True),
        Piece("spans-rank0.jsonl", 0, b"", last=True),
        Piece("denoised.mp4", 0, b"it does not grow"),
        Piece("denoised.mp4", 5, b"without its begin", last=True),
        Piece("spans-rank0.jsonl", 5, b"after a gap"),
        Piece("spans-rank0.jsonl", gather.MOST_GROWN, b"too much"),
        Piece("denoised.mp4", gather.MOST_WHOLE, b"too much", last=True),
    ],
)
def test_a_host_writes_its_own_files_only_and_only_in_order(sides, tmp_path, piece):
    _, home, _, here = sides
    with pytest.raises(NodeWireError):
        home.write(piece)
    home.close()
    assert [path for path in here.iterdir() if path.stat().st_size] == []
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_folder_is_not_followed_and_half_a_file_does_not_stay(sides, tmp_path):
    _, home, _, here = sides
    (here / "rank0.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        home.write(Piece("rank0.log", 0, b"x"))
    home.write(Piece("denoised.mp4", 0, b"half", last=False))
    home.close()
    assert not (tmp_path / "elsewhere").exists()
    assert [path.name for path in here.iterdir()] == ["rank0.log"]


def test_a_host_without_rank_0_sends_no_summary(tmp_path):
    home = Home(tmp_path, Names(1, (1, 2)))
    for name in ("summary.json", "denoised.mp4", "outputs.safetensors"):
        with pytest.raises(NodeWireError):
            home.write(Piece(name, 0, b"x", last=True))
    home.write(Piece("torchrun-1.log", 0, b"x"))
    with pytest.raises(NodeWireError):
        home.write(msgspec.structs.replace(Piece("torchrun.log", 0, b"x")))
