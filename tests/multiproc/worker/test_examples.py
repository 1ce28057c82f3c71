"""The programs that adopters begin with, run as they are told to run them."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec

import pytest
from checkout import EXAMPLES, ROOT, SUPPORT
from plain_torchrun import torchrun, torchrun_to_its_end

import ppwork as pp
from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import WarmLauncher
from ppwork.process import WARM_VARIABLE
from ppwork.records.calls import read_calls
from ppwork.records.run import log_file
from ppwork.records.spans import Span, read_entries
from ppwork.timeline.meetings import Meetings

pytestmark = pytest.mark.multiproc

PORTING = EXAMPLES / "porting"
MOST_LINES = {"plain": 70, "loop": 30, "stages": 25}
IMPORTS = """\
import contextlib, os, sys, warnings
import torch._dynamo.backends.debugging, torch.distributed.fsdp, torch.distributed.tensor.parallel
with contextlib.suppress(ImportError), warnings.catch_warnings(action="ignore"):
    import transformers.models.llama.modeling_llama
os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by these imports
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name
"""
"""The last line is that of our launcher: with so many modules torchrun's own way takes a second each time."""


@pytest.fixture(autouse=True, scope="module")
def imported_once(tmp_path_factory, warm_unless_marked_cold):
    """A warm launcher with the imports of the Llamas, which take each process longer than torch."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "sitecustomize.py").write_text(IMPORTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        launcher = WarmLauncher(child_environment(1))
        patch.setenv(WARM_VARIABLE, str(launcher.address))
        yield
        launcher.close()


def test_two_pipelines_in_one_job_have_a_folder_each_and_leave_the_jobs_group_alone(tmp_path):
    said = torchrun(6, EXAMPLES / "two_pipelines.py", tmp_path)
    total = 4 * sum(10 * k + k + 1 for k in range(4))
    assert said == [f"both pipelines: {2.0 * total}"]
    for name in ("first", "second"):
        assert pp.open(tmp_path / name).summary["figures"]["total"] == total


def test_a_mesh_of_the_programs_own_beside_a_link_on_the_cpu():
    assert torchrun(3, EXAMPLES / "cpu_link.py") == [f"chunk {k}: {40 * k}, summed on cpu" for k in range(6)]


def test_a_live_source_decides_about_cuts_flushes_steps_and_the_end():
    every = {
        0: "chunk 0: a cat, frame 1 of its scene, 1 steps",
        1: "chunk 1: a cat, frame 2 of its scene, 2 steps",
        2: "chunk 2: a cat, frame 3 of its scene, 2 steps",
        3: "chunk 3: a dog, frame 1 of its scene, 1 steps",
        4: "chunk 4: a dog, frame 2 of its scene, 2 steps",
        5: "chunk 5: no, a bird!, frame 1 of its scene, 1 steps",
        6: "chunk 6: no, a bird!, frame 2 of its scene, 2 steps",
    }
    said = torchrun(3, EXAMPLES / "live_source.py")
    # At the flush two chunks at most are on their way, and whether they are is the machine's to say.
    dropped = set(every.values()) - set(said)
    assert dropped <= {every[3], every[4]}
    assert said == [line for line in every.values() if line not in dropped]


@pytest.fixture(scope="module")
def words():
    """What the Llama says that is split once and stays loaded: in each session, as in one process."""
    said = torchrun(3, EXAMPLES / "llama_dtensor.py")
    matches = [re.fullmatch(r"session \d: (.*) as in one process", line) for line in said]
    assert all(matches), said
    return [ast.literal_eval(match[1]) for match in matches]


def test_a_llama_split_by_torch_says_in_both_sessions_what_it_says_in_one_process(words):
    """A cache on the mesh, DTensors that outlive the session, and no new process."""
    first, second = words
    assert first == second
    assert len({*first[0], *first[1]}) > 2  # a model that says one word only would prove nothing


def launched(tmp_path, monkeypatch, stage0: str, stage1: str, depth: int = 2, **plan):
    monkeypatch.chdir(EXAMPLES)
    plan = pp.Plan(
        mesh_size=2, in_flight_depth=depth, backend="gloo", stage0=stage0, stage1=stage1, timeout_s=90, **plan
    )
    return pp.launch(plan, out=tmp_path / "run")


@pytest.mark.parametrize(("way", "depth"), [("Split", 3), ("Sharded", 2)])
def test_stages_hold_the_llama_as_torch_splits_or_shards_it(words, tmp_path, monkeypatch, way, depth):
    """``parallelize_module``, and FSDP2; at depth 3 the source has to wait for its own words."""
    summary = launched(tmp_path, monkeypatch, "llama:Words", f"llama:{way}", depth, verify=True).summary
    assert summary["figures"]["said"] == words[0]
    assert summary["verified_chunks"] == 8


def test_a_compiled_llama_says_the_same(words, tmp_path, monkeypatch):
    """Its collectives are functional ones, and are compared in the first chunks."""
    run = launched(tmp_path, monkeypatch, "llama:Words", "llama:Compiled", options={"backend": "aot_eager"})
    assert run.summary["figures"]["said"] == words[0]


@pytest.mark.skipif(
    find_spec("transformers") is None, reason='transformers is not here: pip install "ppwork[examples]"'
)
def test_a_llama_of_transformers_equals_itself_in_one_process(tmp_path, monkeypatch):
    names = "llama_transformers:Words", "llama_transformers:Llama"
    summary = launched(tmp_path, monkeypatch, *names, verify=True).summary
    first, second = summary["figures"]["said"]
    assert len({*first, *second}) > 2
    assert summary["verified_chunks"] == 8


def test_a_mesh_that_is_restored_goes_on_bit_for_bit(tmp_path, monkeypatch):
    """It was saved while the next chunk was in flight; the restored ranks begin with other weights."""
    monkeypatch.chdir(EXAMPLES)

    def outputs(name: str, chunks: int, **options: int):
        plan = pp.Plan(
            mesh_size=2,
            in_flight_depth=2,
            backend="gloo",
            stage0="saved_mesh:Numbers",
            stage1="saved_mesh:Attention",
            chunks=chunks,
            options={"folder": str(tmp_path / "saved"), **options},
            keep_outputs=True,
        )
        return pp.launch(plan, out=tmp_path / name).outputs

    whole = outputs("whole", 6, save_at=2)
    rest = outputs("rest", 3, first=3)
    assert len({tuple(each) for each in whole.values()}) == 6
    assert all((whole[3 + index] == each).all() for index, each in rest.items())


def test_three_stages_are_two_pipelines_with_a_rank_in_both(tmp_path):
    said = torchrun(4, EXAMPLES / "three_stages.py", tmp_path)
    assert said == [f"{'la' * n} -> {'mb' * n}" for n in range(1, 7)]
    assert pp.open(tmp_path / "first").summary["chunks"] == 6


def changed_three_stages(run_dir, change: str) -> int:
    return torchrun_to_its_end(4, SUPPORT / "changed_three_stages.py", run_dir, change).code


def test_three_stages_work_at_once(tmp_path):
    """Of 50 ms each: while rank 3 has a chunk, ranks 1 and 2 have the next, and rank 0 one after that."""
    assert changed_three_stages(tmp_path, "slow") == 0
    encoded, generated, decoded = (
        [e for e in read_entries(tmp_path / name, rank) if isinstance(e, Span) and e.name == step]
        for name, rank, step in (("first", 0, "encode"), ("first", 1, "generate"), ("second", 1, "generate"))
    )
    assert [len(each) for each in (encoded, generated, decoded)] == [6, 6, 6]

    def meet(*spans: Span) -> bool:
        return max(span.start_ns for span in spans) < min(span.end_ns for span in spans)

    assert sum(meet(d, g) for d, g in zip(decoded, generated[1:], strict=False)) >= 4
    assert any(meet(d, g, e) for d in decoded for g in generated for e in encoded)


@pytest.mark.parametrize(
    ("stage", "begins"), [("Encoder", ("first", 0)), ("Generator", ("first", 2)), ("Decoder", ("second", 1))]
)
def test_a_failure_in_one_of_three_stages_ends_all_and_is_named_where_it_began(tmp_path, stage, begins):
    assert changed_three_stages(tmp_path, stage) == 1
    name, rank = begins
    cause = pp.diagnose(tmp_path / name).cause
    assert (cause.rank, cause.what.endswith(f"raised ValueError: {stage} broke")) == (rank, True)


def test_a_wrong_share_in_a_loop_shows_beside_the_same_job_with_a_mesh_of_one(tmp_path):
    """As the page says: the sum is the same on all ranks, so that no guard sees it."""
    for name, nproc, fault in (("one", 2, ""), ("two", 3, ""), ("odd", 3, "shifted")):
        torchrun(nproc, SUPPORT / "sharded_loop.py", tmp_path / name, fault)
        assert pp.diagnose(tmp_path / name).is_odd is False
    one = pp.open(tmp_path / "one")
    assert sorted(one.outputs) == [0, 1, 2, 3]
    assert one.outputs[0].shape == (3, 4)
    assert one.compare(tmp_path / "two").max_abs_diff < 1e-5
    finding = one.compare(tmp_path / "odd").finding
    assert re.fullmatch(
        r"The outputs of 3 of 4 chunks differ, by [\d.]+ at most; the first is chunk 1\.", finding
    )


@pytest.fixture(scope="module")
def plain():
    """What the script without a library says."""
    return torchrun(3, PORTING / "plain.py")


def test_the_port_to_an_own_loop_says_the_same_and_has_the_guards(plain, tmp_path):
    """It had no run folder and so neither watchdog nor comparison, and it is what one copies."""
    assert len(plain) == 8
    assert torchrun(3, PORTING / "loop.py", tmp_path / "run") == plain
    assert pp.diagnose(tmp_path / "run").sentence.startswith("Nothing failed: the run emitted 8 chunks; ")


def test_a_loop_with_a_live_source_answers_all_that_came_and_ends_in_order(tmp_path):
    said = torchrun(3, EXAMPLES / "live_loop.py", tmp_path / "run")
    assert said == [f"answer {2.0 * number}" for number in range(8)]
    assert pp.diagnose(tmp_path / "run").sentence.startswith("Nothing failed: the run emitted 8 chunks; ")
    beats = [entry for entry in pp.open(tmp_path / "run").entries(0) if entry.name == "envelope.send"]
    assert len({entry.call_id for entry in beats}) > 8  # chunks, the end, and at least one heartbeat


def test_a_split_state_that_starts_anew_at_each_sequence_gives_the_numbers_of_a_mesh_of_one(tmp_path):
    said = [torchrun(ranks, EXAMPLES / "recurrent.py", tmp_path / str(ranks)) for ranks in (2, 3)]
    assert said[0] == said[1]
    assert [line.split()[:2] for line in said[0]] == [["north", "5"], ["south", "3"], ["west", "6"]]
    cuts = {entry.cache_epoch for entry in pp.open(tmp_path / "3").entries(0)}
    assert {0, 1, 2} <= cuts


def test_a_mesh_may_receive_the_next_chunk_before_it_answers_one(tmp_path):
    """The page had the four calls below `reply`, without the count that rank 0 checks."""
    said = torchrun(3, EXAMPLES / "late_answers.py", tmp_path / "run")
    assert said == [f"answer {2.0 * number}" for number in range(6)]
    received = [entry for entry in pp.open(tmp_path / "run").entries(1) if entry.name == "mesh.broadcast"]
    sent = [entry for entry in pp.open(tmp_path / "run").entries(1) if entry.name == "result.send"]
    assert received[1].at_ns < sent[0].at_ns


def test_the_port_to_stages_says_the_same_at_depth_2(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(PORTING)
    plan = pp.Plan(
        mesh_size=2, chunks=8, in_flight_depth=2, backend="gloo", stage0="stages:Ends", stage1="stages:Mlp"
    )
    run = pp.launch(plan, out=tmp_path / "run")
    log = log_file(run.run_dir, 0).read_text().splitlines()
    assert [line for line in log if re.fullmatch(r"\d [\d.]+", line)] == plain


def lines_of(name: str) -> int:
    """Count the lines of a script that are neither blank, nor comment, nor docstring."""
    text = (PORTING / f"{name}.py").read_text()
    code = ast.parse(text)
    code.body = [node for node in code.body if not isinstance(node, ast.Expr)]
    first = code.body[0].lineno
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines()[first - 1 :]
    )


@pytest.mark.parametrize("name", MOST_LINES)
def test_a_port_is_short_and_the_page_says_how_short(name):
    count = lines_of(name)
    assert count <= MOST_LINES[name]
    page = (ROOT / "docs" / "prototype.md").read_text()
    assert re.search(rf"porting/{name}\.py\) \| {count} \|", page)


def test_the_program_of_the_readmes_picture_lends_its_buffer_until_its_wait(tmp_path):
    run = pp.launch_script(EXAMPLES / "calls.py", nproc=3, out=tmp_path / "run")
    lent = [loan for loan in Meetings(read_calls(run.run_dir)).loans if loan.call.name == "isend"]
    assert [(loan.call.rank, loan.wait.name) for loan in lent] == [(1, "wait")] * 2
