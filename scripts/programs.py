"""Programs of torch.distributed, recorded: are calls recorded the calls made, and what is said of a hang?

``python scripts/programs.py`` runs each program of ``tests/support/traced`` that ends well under Python's
profiler, which counts its calls beside the recorder, and each of ``tests/support/hanging``, whose truth its
docstring says. It writes ``docs/programs.md``, leaves the pictures in ``--out``, and exits with 1 if a count
differs or a hang is told otherwise than ``tests/support/hanging/said.py`` has it. A few minutes.

``--others FOLDER`` runs programs of others instead (``OTHERS``), which have to be there: a clone of each
repository as ``FOLDER/OWNER/NAME``, at its commit; nothing of them is kept in this project. ``--file`` runs
any other program, on ``--nproc`` ranks, and says how many calls it made and how many were recorded. Both
count by ``scripts/counted``, which needs nothing of the recorder and follows ranks that ranks start.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import ppwork as pp
from ppwork.process import WARM_VARIABLE
from ppwork.records.calls import calls_of, read_calls, worlds_inside

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
TRACED, HANGING = SUPPORT / "traced", SUPPORT / "hanging" / "programs.py"
PAGE = ROOT / "docs" / "programs.md"
WELL = (
    "p2p", "handles", "batched", "halo", "ring_sum", "asynchronous", "collectives", "objects", "groups",
    "split_batch", "threads", "caught", "functional", "dtensor", "tensor_parallel", "by_hand", "ddp",
    "uneven_inputs", "sharded_optimizer", "sharded", "gpipe", "one_f_one_b", "checkpoint",
)  # fmt: skip
HEAD = """\
# Does `ppwork trace` see every call?

**Of {whole} of {well} programs every call from Python was recorded, and in {named} of {hangs} that hang
the planted mistake was named** (gloo, torch {torch}). {others} programs from GitHub are below.

[`ppwork trace`](diagnose.md#you-can-start-it-again) records the calls of a `torch.distributed` program;
what C++ calls below them, as DDP's reducer does, needs `--ops` and is not counted here.
Here its count is compared with a second one, of the same run. The programs that hang were written for this
test, by the authors of the rules: it shows that these mistakes are still named, and not how often the
answer is right about yours. [That was counted elsewhere](reliability.md#measured).

Made by `python scripts/programs.py`, torch {torch}, which fails if a count differs or a mistake is not named.

## Programs that end well

They are in [tests/support](../tests/support). Calls made are counted by Python's profiler and by a second
layer on `Work.wait`. The sentence of the trace counts six more in each: start, barrier and end of the
test's own frame (`counted.py`), on two ranks.

| program | what it does | made | recorded | the trace says |
|---|---|---|---|---|
"""
HANGS = """
## Programs that hang

| program | the planted mistake | the trace says |
|---|---|---|
"""


OTHERS_HEAD = """\
## Programs of others

All calls of these were recorded, too. One of them fails by itself on a CPU, which its row says. Made by
`python scripts/programs.py --others FOLDER`, torch {torch}, on gloo. The calls made are counted by Python's
profiler in every process of the program, also in ranks that its ranks start by themselves. Most are written
for GPUs: the last column says what was changed of a program's text, and with which arguments it ran.

| program | ranks | made | recorded | the trace says | changed |
|---|---|---|---|---|---|
"""
OTHERS_TITLE = "## Programs of others\n"
COUNTED = ROOT / "scripts" / "counted"
LIMIT_S = 240.0
LONGEST = 400
"""Characters of a sentence that stand in the table of programs of others."""


@dataclass(frozen=True)
class Other:
    """A program of somebody else.

    Attributes:
        repository: Owner and name, on GitHub.
        changes: Texts of the program, and what stands there instead.
        why: What the changes are for.
        data: Files of numbers that it reads, and their length.
    """

    repository: str
    commit: str
    path: str
    nproc: int = 2
    arguments: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    why: str = ""
    data: tuple[str, ...] = ()

    @property
    def link(self) -> str:
        """The program as Markdown."""
        at = f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"
        return f"[{self.repository}: {self.path}]({at}) at {self.commit[:10]}"


EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
OPERATOR = ("kubeflow/training-operator", "ee1162919408cbca4a899f2916cfcd0ecd562881")
COUNT = ("verify_min_gpu_count(min_gpus=_min_gpu_count)", "True")
KIND = ("torch.accelerator.current_accelerator().type", '"cpu"')
ON_CPU = "no count of GPUs, device `cpu`"
TENSOR_PARALLEL = "distributed/tensor_parallelism"
OTHERS = (
    Other(*EXAMPLES, f"{TENSOR_PARALLEL}/tensor_parallel_example.py", changes=(COUNT, KIND), why=ON_CPU),
    Other(*EXAMPLES, f"{TENSOR_PARALLEL}/sequence_parallel_example.py", changes=(COUNT, KIND), why=ON_CPU),
    Other(*EXAMPLES, f"{TENSOR_PARALLEL}/fsdp_tp_example.py", 4, changes=(COUNT, KIND), why=ON_CPU),
    Other(
        *EXAMPLES, "distributed/FSDP2/example.py",
        changes=(COUNT, ("backend=backend, device_id=device", "backend=backend")),
        why="no count of GPUs, no index of a device",
    ),
    Other(
        *EXAMPLES, "distributed/ddp/example.py",
        changes=(
            COUNT, ("get_default_backend_for_device(acc)", 'get_default_backend_for_device("cpu")'),
            ("        torch.accelerator.set_device_index(rank)\n", ""), (".to(rank)", ""),
            (", device_ids=[rank]", ""),
        ),
        why=ON_CPU,
    ),
    Other(*OPERATOR, "examples/pytorch/smoke-dist/dist_sendrecv.py", 3),
    Other(*OPERATOR, "examples/pytorch/cpu-demo/demo.py"),
    Other(*OPERATOR, "examples/pytorch/elastic/echo/echo.py"),
    Other("ArchieGertsman/spark-sched-sim", "ba5c3337085e00543871190ff6c85bdb1d087c8d", "run.py", 1),
    Other(
        "seilk/fullstack-deeplearning", "c38d973cad683e252f8d9454c3c61b7104e86267",
        "ddp/dist_gather_example.py", 1,
    ),
    Other(
        "NotTheStallion/pipeline-parallelism-from-scratch", "dd80250948ac50097c39adfe7dd83638d7aaa7f1",
        "test_gpipe.py", 4,
    ),
    Other(
        "narumiruna/pytorch-distributed-example", "e6d2beb002ffbd614f7cfd95f718195f4621ca19", "toy/main.py",
        arguments=("--steps", "3"),
        changes=((
            "args = parser.parse_args()",
            "args = parser.parse_args(); import os; "
            "args.rank, args.world_size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])",
        ),),
        why="rank and size from torchrun",
    ),
    Other(
        "rasbt/LLMs-from-scratch", "28c65cdfbc3338e2e040016eea4b7fdf556e4d57",
        "appendix-A/01_main-chapter-code/DDP-script-torchrun.py",
        changes=(
            ('init_process_group(backend="nccl"', 'init_process_group(backend="gloo"'),
            ("    torch.cuda.set_device(rank)\n", ""), ("model.to(rank)", 'model.to("cpu")'),
            (", device_ids=[rank]", ""), ("features.to(rank), labels.to(rank)", "features, labels"),
            ("device=rank", 'device="cpu"'),
        ),
        why="gloo, device `cpu`",
    ),
    Other(
        "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "train.py",
        arguments=(
            "--dataset=toy", "--device=cpu", "--backend=gloo", "--compile=False", "--dtype=float32",
            "--eval_iters=1", "--batch_size=4", "--block_size=16", "--n_layer=2", "--n_head=2",
            "--n_embd=32", "--max_iters=3", "--gradient_accumulation_steps=4", "--log_interval=1",
        ),
        changes=(
            ("    device = f'cuda:{ddp_local_rank}'\n    torch.cuda.set_device(device)\n", ""),
            (", device_ids=[ddp_local_rank]", ""),
        ),
        why="no device of its own for a rank; random numbers for data",
        data=("data/toy/train.bin", "data/toy/val.bin"),
    ),
)  # fmt: skip


def counted_beside(program: Path, nproc: int, arguments: tuple[str, ...], out: Path) -> tuple[int, int, str]:
    """Run any program with the counter of ``scripts/counted`` in all its processes.

    Returns:
        Calls made and recorded by all ranks; and what differs, or the picture's sentence.
    """
    counts = out / "counts"
    counts.mkdir(parents=True)
    before = os.environ.get("PYTHONPATH", "")
    os.environ |= {"COUNTED": str(counts.absolute()), WARM_VARIABLE: "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(COUNTED), before)))
    here = Path.cwd()
    os.chdir(program.parent)
    try:
        run = pp.launch_script(
            program.name, nproc=nproc, arguments=arguments, out=out / "run", check=False, limit_s=LIMIT_S
        )
    finally:
        os.chdir(here)
        os.environ["PYTHONPATH"] = before
    made: Counter[str] = Counter()
    for path in counts.glob("*.json"):
        made.update(json.loads(path.read_text()))
    recorded: Counter[str] = Counter()
    for folder in (run.run_dir, *worlds_inside(run.run_dir)):
        for of_rank in calls_of(folder).values():
            recorded.update(call.name for call in of_rank.calls)
    if recorded != made:
        return made.total(), recorded.total(), f"different: {recorded - made} {made - recorded}"
    picture = pp.pictures.program(run, title=program.stem)
    (out / f"{program.stem}.png").write_bytes(picture.png())
    return made.total(), recorded.total(), picture.finding


def others(clones: Path, folder: Path) -> int:
    """Run the programs of others, write their table, and return how many had other counts."""
    text, wrong = OTHERS_HEAD.format(torch=version("torch")), 0
    for number, other in enumerate(OTHERS):
        program = clones / other.repository / other.path
        if other.changes:
            source = program.read_text()
            for ours, theirs in other.changes:
                source = source.replace(ours, theirs)
            program = program.with_name(f"{program.stem}_changed.py")
            program.write_text(source)
        for name in other.data:
            path = clones / other.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(n if not at % 2 else 0 for at, n in enumerate(os.urandom(8000))))
        out = (folder / f"{number:02}-{program.stem}").absolute()
        made, recorded, finding = counted_beside(program, other.nproc, other.arguments, out)
        wrong += made != recorded or made == 0
        changed = other.why or ("nothing" if not other.arguments else "")
        if other.arguments:
            changed += f"{'; ' if changed else ''}`{' '.join(other.arguments)}`"
        finding = finding if len(finding) <= LONGEST else f"{finding[:LONGEST]}..."
        text += f"| {other.link} | {other.nproc} | {made} | {recorded} | {finding} | {changed} |\n"
        sys.stdout.write(f"{other.path}: {made} made, {recorded} recorded: {finding}\n")
    PAGE.write_text(f"{PAGE.read_text().partition(OTHERS_TITLE)[0].rstrip()}\n\n{text}")
    return wrong


def counted(name: str, folder: Path) -> tuple[int, int, str]:
    """Run a program under the profiler; return calls made and recorded of all ranks, and the finding."""
    run = pp.launch_script(TRACED / "counted.py", nproc=2, arguments=(name,), out=folder)
    made = recorded = 0
    different = ""
    for rank, of_rank in read_calls(run.run_dir).items():
        line = next(line for line in run.printed(rank).splitlines() if line.startswith("@made"))
        beside = Counter(json.loads(line.removeprefix("@made"))[name])
        sites = ((call.name, of_rank.origin(call).begun.site) for call in of_rank.calls)
        ours = Counter(call for call, site in sites if Path(site.rpartition(":")[0]).stem == name)
        made, recorded = made + beside.total(), recorded + ours.total()
        different = different or ("" if ours == beside else f"rank {rank}: {ours - beside} {beside - ours}")
    picture = pp.pictures.program(run, title=name)
    (folder / f"{name}.png").write_bytes(picture.png())
    return made, recorded, different or picture.finding


def docstrings(path: Path) -> dict[str, str]:
    """Return the first line of a file's docstring, and of each of its functions', by name."""
    tree = ast.parse(path.read_text())
    nodes = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef))]
    return {getattr(node, "name", ""): (ast.get_docstring(node) or "").partition("\n")[0] for node in nodes}


def main() -> int:
    """Run all, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="gets the run folders and the pictures; default: nothing is kept"
    )
    parser.add_argument("--others", type=Path, metavar="FOLDER", help="clones of the repositories of others")
    parser.add_argument("--file", type=Path, metavar="PROGRAM", help="any program")
    parser.add_argument("--nproc", type=int, default=2, help="ranks of that program")
    parser.add_argument("arguments", nargs="*", help="its own, behind --")
    asked = parser.parse_args()
    if asked.others or asked.file:
        with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
            folder = asked.out or Path(scratch)
            if asked.others:
                return 1 if others(asked.others, folder) else 0
            program, arguments = asked.file.absolute(), tuple(asked.arguments)
            made, recorded, finding = counted_beside(program, asked.nproc, arguments, folder.absolute())
            sys.stdout.write(f"{made} made, {recorded} recorded: {finding}\n")
            return 1 if made != recorded else 0
    os.environ.setdefault(WARM_VARIABLE, "1")
    sys.path.insert(0, str(SUPPORT))
    from hanging.said import SAID

    whole = named = 0
    text = ""
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        folder = asked.out or Path(scratch)
        for name in WELL:
            made, recorded, finding = counted(name, folder / name)
            whole += made == recorded != 0
            about = docstrings(TRACED / f"{name}.py")[""]
            text += f"| `{name}` | {about} | {made} | {recorded} | {finding} |\n"
            sys.stdout.write(f"{name}: {made} made, {recorded} recorded\n")
        text += HANGS
        truths = docstrings(HANGING)
        for name, words in SAID.items():
            run = pp.launch_script(HANGING, nproc=3, arguments=(name,), out=folder / name, check=False)
            picture = pp.pictures.program(run, title=name)
            (folder / name / f"{name}.png").write_bytes(picture.png())
            said = run.failure.headline if run.failure is not None else "it ended well"
            right = all(word in said and word in picture.finding for word in words)
            named += right
            text += f"| `{name}` | {truths[name]} | {'' if right else '**wrong:** '}{said} |\n"
            sys.stdout.write(f"{name}: {'right' if right else 'wrong'}: {said}\n")
    kept = "".join(PAGE.read_text().partition(OTHERS_TITLE)[1:]) if PAGE.exists() else ""
    counts = {"well": len(WELL), "others": len(OTHERS), "hangs": len(SAID), "whole": whole, "named": named}
    text = HEAD.format(torch=version("torch"), **counts) + text
    PAGE.write_text(f"{text}\n{kept}" if kept else text)
    return 0 if (whole, named) == (len(WELL), len(SAID)) else 1


if __name__ == "__main__":
    sys.exit(main())
