"""Take one guard out at a time and see that a test fails: ``python tests/mutations.py [NAME...]``.

Each mutation is data: a line of ppwork, what stands there without the guard, and the tests that must notice.
They run in a copy of the tree, so that the working tree is never touched, and the ranks import the copy too.
First they run there unchanged: a test that fails anyway shows nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT_S = 120.0
"""A test may not take longer on average; without a guard some would hang for ever."""

UNIT, RANKS = "tests/unit", "tests/multiproc"
GUARDS = f"{RANKS}/worker/test_guards.py"
DIFFERENCE = f"{GUARDS}::test_a_difference_raises_on_every_mesh_rank_before_the_backend"
BAD_IDS = f"{UNIT}/protocol/test_session.py::test_receiver_refuses_ids_that_do_not_follow"
BACKEND = f"{UNIT}/runtime/test_before_the_backend.py"


@dataclass(frozen=True)
class Mutation:
    """A guard, taken out."""

    name: str
    faults: str
    file: str
    old: str
    """Text that occurs once in the file."""
    new: str
    tests: tuple[str, ...]
    """Node ids of which at least one must fail."""


MUTATIONS = (
    Mutation(
        "parity", "F04", "ppwork/runtime/groups.py",
        "    check_parity(facts_by_rank)\n", "",
        (f"{RANKS}/runtime/test_startup.py::test_a_differing_environment_is_refused_with_the_variable_named",),
    ),
    Mutation(
        "blocked-host", "F21", "ppwork/runtime/groups.py",
        "if sequential is not None:", "if False:",
        (f"{UNIT}/runtime/test_groups.py::"
         "test_what_blocks_the_host_is_refused_on_all_ranks_where_chunks_overlap[2]",),
    ),
    Mutation(
        "parity-of-a-plan", "F04 F05", "ppwork/protocol/parity.py",
        'facts.update({f"plan.{key}": value for key, value in plan.to_dict().items()})', "pass",
        (f"{UNIT}/protocol/test_parity.py::test_difference_names_key_values_and_ranks",),
    ),
    Mutation(
        "parity-of-stages", "F05 F11", "ppwork/worker/digests.py",
        "    check_loaded({rank: loaded[rank] for rank in groups.topology.mesh_ranks})\n", "",
        (f"{GUARDS}::test_weights_and_variables_of_the_stage_that_differ_are_named_before_any_chunk",),
    ),
    Mutation(
        "weight-digests", "F11", "ppwork/worker/digests.py",
        'if plan.digests else None', "if False else None",
        (f"{GUARDS}::test_weights_and_variables_of_the_stage_that_differ_are_named_before_any_chunk",),
    ),
    Mutation(
        "input-digests", "F11", "ppwork/worker/loops.py",
        "if plan.digests:\n            compare_inputs", "if False:\n            compare_inputs",
        (f"{DIFFERENCE}[input]",),
    ),
    Mutation(
        "leader-validates-first", "F03 F06 F16", "ppwork/runtime/mesh.py",
        "                    self._own(incoming)\n", "                    pass\n",
        (f"{RANKS}/faults/test_fault_cases.py::"
         "test_a_fault_is_caught_by_the_right_rank_within_its_bound_and_leaves_nothing[F16/skipped]",),
    ),
    Mutation(
        "call-id", "F16", "ppwork/protocol/session.py",
        "if ids.call_id != last.call_id + 1:", "if False:",
        (f"{BAD_IDS}[skipped call_id]",),
    ),
    Mutation(
        "chunk-index", "F16", "ppwork/protocol/session.py",
        "if ids.chunk_index != last.chunk_index + int(infer):", "if False:",
        (f"{BAD_IDS}[skipped chunk]",),
    ),
    Mutation(
        "epoch-falls", "F09", "ppwork/protocol/session.py",
        "if ids.cache_epoch < last.cache_epoch:", "if False:",
        (f"{BAD_IDS}[falling epoch]",),
    ),
    Mutation(
        "epoch-and-reset", "F09", "ppwork/protocol/session.py",
        "envelope.plan.reset_cache != cut):", "False):",
        (f"{BAD_IDS}[epoch without reset]",),
    ),
    Mutation(
        "depth-at-the-receiver", "F17", "ppwork/protocol/session.py",
        'problem = problem or f"More than', 'problem = problem or "" and f"More than',
        (f"{UNIT}/protocol/test_session.py::test_receiver_refuses_more_in_flight_than_the_plan_allows",),
    ),
    Mutation(
        "depth-at-the-sender", "F17", "ppwork/protocol/session.py",
        "elif envelope.action is PPAction.INFER and len(self.in_flight) >= self.depth:", "elif False:",
        (f"{UNIT}/protocol/test_session.py::test_depth_bounds_the_chunks_in_flight",),
    ),
    Mutation(
        "stale-result", "F09", "ppwork/protocol/session.py",
        "return oldest.ids.cache_epoch >= self.flushed_before", "return True",
        (f"{UNIT}/protocol/test_session.py::test_flush_makes_what_is_in_flight_stale_and_a_receive_is_never_skipped",),
    ),
    Mutation(
        "call-count", "F12", "ppwork/protocol/session.py",
        "if observed_calls != oldest.plan.expected_calls:", "if False:",
        (f"{UNIT}/protocol/test_session.py::test_another_call_count_than_the_plan_is_refused_on_every_mesh_rank",),
    ),
    Mutation(
        "call-count-at-rank-0", "F12", "ppwork/protocol/session.py",
        "elif result.observed_calls != oldest.plan.expected_calls:", "elif False:",
        (f"{UNIT}/protocol/test_session.py::test_result_with_another_call_count_than_the_plan_is_refused_on_rank_0",),
    ),
    Mutation(
        "call-budget", "F12", "ppwork/worker/tally.py",
        "if self.calls >= self._expected:", "if False:",
        (f"{UNIT}/worker/test_tally.py::test_a_call_too_many_is_refused_before_it_enters_the_generator",),
    ),
    Mutation(
        "calls-are-counted", "F12", "ppwork/worker/role.py",
        "stage if on_stage0 else counted(stage, tally)", "stage",
        (f"{GUARDS}::test_a_generator_call_too_many_is_caught_on_its_rank_before_its_first_collective",),
    ),
    Mutation(
        "header-checksum", "F06", "ppwork/protocol/header.py",
        " and zlib.crc32(head[:-4]) == header_crc", "",
        (f"{UNIT}/protocol/test_header.py::test_flipped_bit_of_the_header_is_refused",),
    ),
    Mutation(
        "body-checksum", "F06", "ppwork/protocol/wire.py",
        " or zlib.crc32(raw) != header.body_crc:", ":",
        (f"{UNIT}/protocol/test_wire.py::test_wrong_checksum_of_the_body_is_refused",),
    ),
    Mutation(
        "limits-before-allocation", "F06", "ppwork/protocol/header.py",
        "        if value > limit:\n", "        if False:\n",
        (f"{UNIT}/protocol/test_header.py::test_huge_announcements_allocate_nothing",),
    ),
    Mutation(
        "wrong-group", "F08", "ppwork/worker/collectives.py",
        "    if allowed is None or (group is allowed.handle and group is not None):\n", "    if True:\n",
        (f"{BACKEND}::test_stage_code_on_another_group_is_refused_whatever_it_calls",),
    ),
    Mutation(
        "wrong-group-round-the-stage", "F08", "ppwork/worker/stage_code.py",
        "        self._group.__enter__()\n", "        self._group._outer = None\n",
        (f"{GUARDS}::test_a_collective_on_another_group_is_refused_on_every_rank_that_makes_it",),
    ),
    Mutation(
        "handshake-of-shapes", "F05", "ppwork/worker/collectives.py",
        "            compare(groups, tally, _operation(name, named, frame, groups.topology.mesh_ranks))\n",
        "            pass\n",
        (f"{DIFFERENCE}[dtype]",),
    ),
    Mutation(
        "handshake-of-counts", "F05 F12", "ppwork/worker/collectives.py",
        "if tally.comparing:", "if False:",
        (f"{DIFFERENCE}[one more at the end]",),
    ),
    Mutation(
        "preflight-first", "F01 F02 F03 F10", "ppwork/runtime/stage0.py",
        "            outgoing = self.preflight(envelope)\n",
        '            self._commit("envelope.send", ids)\n'
        "            outgoing = self.preflight(envelope)\n",
        (f"{BACKEND}::test_what_cannot_travel_is_refused_before_the_commitment_point",),
    ),
    Mutation(
        "forgotten-reply", "F17", "ppwork/runtime/mesh.py",
        "                if self._is_open(envelope.ids):\n", "                if False:\n",
        (f"{UNIT}/runtime/test_mesh_plane.py::test_a_loop_that_goes_on_without_an_answer_is_refused_at_any_depth",),
    ),
    Mutation(
        "second-reply", "F17", "ppwork/runtime/mesh.py",
        "        if not self._in_hand:\n", "        if False:\n",
        (f"{UNIT}/runtime/test_mesh_plane.py::test_a_second_reply_is_no_answer_to_a_chunk_that_has_only_arrived",),
    ),
    Mutation(
        "notice-down", "F07", "ppwork/protocol/notices.py",
        'return [("down_pg", envelope)]', "return []",
        (f"{BACKEND}::test_whoever_fails_tells_all_that_listen_to_it",),
    ),
    Mutation(
        "notice-up", "F07", "ppwork/protocol/notices.py",
        '("up_pg", PPResult(PPAction.ERROR, ids, reason=reason)), ', "",
        (f"{BACKEND}::test_whoever_fails_tells_all_that_listen_to_it",),
    ),
    Mutation(
        "notices-are-sent", "F07", "ppwork/runtime/plane.py",
        "        self.fail(error)\n", "        pass\n",
        (f"{RANKS}/faults/test_failures.py::test_a_decode_that_raises_ends_the_mesh_by_notice",),
    ),
    Mutation(
        "bound-of-a-lane", "F14", "ppwork/runtime/lanes.py",
        "    if not done:\n", "    if False:\n",
        (f"{BACKEND}::test_a_job_that_does_not_end_is_given_up_at_its_bound",),
    ),
    Mutation(
        "one-caller", "F22", "ppwork/runtime/plane.py",
        "if thread is not caller:", "if False:",
        (f"{UNIT}/runtime/test_one_caller.py::test_another_thread_is_refused_with_both_names_and_the_first_goes_on",),
    ),
    Mutation(
        "write-whole", "F20", "ppwork/records/files.py",
        '        with half.open("xb") as file:  # follows no link\n            file.write(data)\n'
        "        half.replace(path)\n",
        "        path.write_bytes(data)\n",
        (f"{UNIT}/records/test_files.py::test_write_that_fails_midway_leaves_the_old_file_and_nothing_else",),
    ),
    Mutation(
        "recorder-stops-at-a-torn-line", "F20", "ppwork/records/spans.py",
        "            self._file = None\n            raise RecordError(",
        "            raise RecordError(",
        (f"{UNIT}/records/test_torn_folder.py::"
         "test_a_recorder_that_cannot_write_says_so_once_and_leaves_a_torn_line_at_the_end_only",),
    ),
    Mutation(
        "lifeline", "F18", "ppwork/process.py",
        "            os.killpg(0, signal.SIGKILL)\n    finally:  # whatever went wrong with the others\n"
        "        os._exit(ORPHANED)\n",
        "            pass\n    finally:\n        pass\n",
        (f"{RANKS}/launcher/test_lifeline.py::test_the_end_of_the_launchers_pipe_ends_a_rank_whose_parent_lives",),
    ),
    Mutation(
        "parent-death-signal", "F18", "ppwork/process.py",
        "        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)\n", "",
        (f"{RANKS}/launcher/test_lifeline.py::test_the_death_of_its_parent_ends_a_rank_whose_pipe_is_still_open",),
    ),
    Mutation(
        "watchdog-of-a-stuck-stage", "F14", "ppwork/worker/watchdog.py",
        "        if stuck is not None:\n", "        if False:\n",
        (f"{RANKS}/worker/test_liveness.py::test_a_loop_without_an_end_is_ended_and_told_with_the_users_line",),
    ),
    Mutation(
        "watchdog-of-a-frozen-peer", "F14", "ppwork/worker/watchdog.py",
        "        if frozen is not None:\n", "        if False:\n",
        (f"{RANKS}/worker/test_liveness.py::"
         "test_a_stopped_rank_is_named_by_its_peers_and_a_pause_of_all_of_them_by_nobody",),
    ),
)  # fmt: skip


def copy_of_the_tree(folder: Path) -> None:
    """Copy what git knows or would take; ignored files are not copied."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in (
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    ):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[list[str], str]:
    """Run tests on the copy; return those that failed, and what pytest printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(folder), *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S * len(tests),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return list(tests), f"past {LIMIT_S * len(tests):g} s"
    # A file that cannot be collected has no ``::``: it shows nothing about a guard.
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return failed, done.stdout + done.stderr


def imports_the_copy(folder: Path) -> bool:
    """Say whether a process there, such as a rank, gets the copy and not what is installed."""
    code = "import ppwork; print(ppwork.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, check=True
    )
    return Path(done.stdout.decode().strip()).is_relative_to(folder)


def main(names: list[str]) -> int:
    """Run the named mutations, or all; 0 if for every guard a test failed without it."""
    unknown = set(names) - {one.name for one in MUTATIONS}
    if unknown:
        known = ", ".join(one.name for one in MUTATIONS)
        sys.exit(f"no such guard: {', '.join(sorted(unknown))}; known: {known}")
    chosen = [one for one in MUTATIONS if not names or one.name in names]
    unnoticed = 0
    with tempfile.TemporaryDirectory(prefix="ppwork-mutants-") as made:
        folder = Path(made).resolve()
        copy_of_the_tree(folder)
        if not imports_the_copy(folder):
            sys.exit("the copy would not be imported: is PYTHONPATH ignored here?")
        broken = failing_anyway(folder, sorted({test for one in chosen for test in one.tests}))
        sys.stdout.write(f"| guard | fault | taken out of | test that failed | s |\n|{' --- |' * 5}\n")
        for one in chosen:
            unnoticed += not _noticed(one, folder, broken)
    sys.stdout.write(
        f"{len(chosen) - unnoticed} of {len(chosen)} guards have a test that fails without them\n"
    )
    return int(unnoticed > 0)


def failing_anyway(folder: Path, tests: list[str]) -> list[str]:
    """Return the tests that fail with every guard in place: they can show nothing."""
    broken: list[str] = []
    for part in (RANKS, UNIT):  # apart: each folder has a conftest of its own
        mine = tuple(test for test in tests if test.startswith(part))
        failed, said = run_tests(folder, mine) if mine else ([], " passed")
        if failed or " passed" not in said:
            sys.stderr.write(said[-3000:])
        broken += failed if " passed" in said else mine
    return broken


def _noticed(one: Mutation, folder: Path, broken: list[str]) -> bool:
    path = folder / one.file
    text = path.read_text()
    line = text[: text.index(one.old)].count("\n") + 1
    path.write_text(text.replace(one.old, one.new))
    start = time.monotonic()
    sound = tuple(test for test in one.tests if not any(name.startswith(test) for name in broken))
    try:
        failed = run_tests(folder, sound)[0] if sound else []
    finally:
        path.write_text(text)
    said = failed[0].rpartition("::")[2] if failed else "NONE" if sound else "it fails anyway"
    took = time.monotonic() - start
    sys.stdout.write(f"| {one.name} | {one.faults} | {one.file}:{line} | {said} | {took:.0f} |\n")
    sys.stdout.flush()
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
