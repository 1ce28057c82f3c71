"""``ppwork verify``: the results of a loop, beside those of the same loop with a mesh of one."""

from __future__ import annotations

import re
import shlex

import pytest
from checkout import EXAMPLES
from commands import ppwork

pytestmark = pytest.mark.multiproc

RIGHT = (EXAMPLES / "recurrent.py").read_text()
SIZE = 'int(os.environ["WORLD_SIZE"]) - 1'
WRONG = {
    "share": ("w.chunk(parts)[part]", "w.chunk(parts)[0]", r"of 14 of 14 chunks differ, by .*is chunk 0"),
    "reset": (
        "if chunk.plan.reset_cache:",
        "if chunk.plan.reset_cache and plane.groups.rank == 1:",
        r"the first is chunk 5, which came with a cut",
    ),
}


def test_a_loop_that_is_right_says_how_far_it_is_from_a_mesh_of_one(tmp_path):
    program, own, both = tmp_path / "loop.py", tmp_path / "own", tmp_path / "both"
    assert RIGHT.count(SIZE) == 1
    program.write_text(RIGHT.replace(SIZE, "2"))  # as a plan is mostly written
    done = ppwork("verify", str(program), str(own), "--out", str(both))
    assert done.returncode == 0, done.stderr
    found = (
        r"The outputs of all 14 chunks are equal|The outputs of \d+ of 14 chunks differ by \S+ at most, less"
    )
    assert re.match(found, done.stdout), done.stdout
    assert not own.exists()
    assert {"mesh-of-1", "mesh-of-2"} <= {path.name for path in both.iterdir()}


def test_the_console_of_a_loop_that_was_not_verified_has_the_command_that_does_it(
    tmp_path, start_ranks, capfd
):
    """A wrong share ended well, and only `ppwork diagnose` said that nobody had looked."""
    right, wrong, _ = WRONG["share"]
    program, folder = tmp_path / "my loop.py", tmp_path / "own"
    program.write_text(RIGHT.replace(right, wrong))
    assert start_ranks([[str(program), str(folder)]] * 3).wait() == [0, 0, 0]
    command = shlex.join(["ppwork", "verify", "--nproc", "3", str(program), str(folder)])
    said = f"ppwork: 14 chunks came, and their numbers were not checked: `{command}` compares them"
    assert capfd.readouterr().err.count(said) == 1


@pytest.mark.parametrize("case", WRONG)
def test_a_share_that_is_wrong_on_one_rank_fails_it(tmp_path, case):
    """A check that cannot fail is a defect: alone such a loop says that nothing failed."""
    right, wrong, said = WRONG[case]
    assert RIGHT.count(right) == 1
    program = tmp_path / "loop.py"
    program.write_text(RIGHT.replace(right, wrong))
    done = ppwork("verify", str(program), "unused", "--out", str(tmp_path / "both"))
    assert done.returncode == 1
    told = " ".join(done.stderr.split())
    assert re.search(said, told), told
    assert "own share of the weights, and does it reset its own state?" in told


@pytest.mark.parametrize(
    ("code", "ranks", "what"),
    [
        ("print('no pipeline')", "3", "joined no pipeline of all its ranks"),
        ("raise SystemExit('no clip')", "3", "no clip"),
        ("", "2", "A mesh of one has nothing to be compared with, and --nproc was 2."),
    ],
)
def test_what_cannot_be_verified_is_refused(tmp_path, code, ranks, what):
    program = tmp_path / "other.py"
    program.write_text(code)
    done = ppwork("verify", str(program), "--nproc", ranks, "--out", str(tmp_path / "both"))
    assert done.returncode in (1, 2)
    assert what in " ".join(done.stderr.split())
