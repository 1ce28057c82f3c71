"""Checks before any rank starts: the second half of a plan's checks, which look at the machine.

They raise ``PlanError``, or ``UnavailableError`` if torch cannot count a machine's GPUs, with what, where and
what to check first, and change nothing on disk. Torch is never imported here: a short subprocess does what
needs it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ppwork.errors import PlanError, UnavailableError, meant
from ppwork.launcher.torchrun import child_environment, running
from ppwork.plan import VIDEO_STAGE0, VIDEO_STAGE1, Plan
from ppwork.process import LOG_LEVEL_VARIABLE
from ppwork.protocol.bounds import bring_up_timeout_s
from ppwork.workloads.spec import OPTIONS, VideoOptions, check_plan, default_clip

SUBPROCESS_LIMIT_S = 120.0


def resolve(plan: Plan, *, elsewhere: bool = False) -> Plan:
    """Check a plan against this machine and fill in the fields that were left open.

    Args:
        plan: The run's plan.
        elsewhere: The ranks will run on other hosts: leave ``backend`` open, and refuse a plan of one process
            or of a shared GPU.

    Returns:
        The plan with its stages named, ``backend`` decided, and for the shipped video ``chunks`` and the
        absolute path of a clip that the plan names.

    Raises:
        PlanError: The clip, size, mesh size, stages or GPUs do not fit; nothing has started.
    """
    check_environment(plan)
    if elsewhere and (plan.one_process or plan.share_gpu):
        what = "one process" if plan.one_process else "ranks that share a GPU"
        raise PlanError(f"A plan of {what} was to run over hosts.", check_first="leave `on` out")
    plan = plan.staged
    if (plan.stage0 == VIDEO_STAGE0) != (plan.stage1 == VIDEO_STAGE1):
        own, shipped = sorted([plan.stage0, plan.stage1], key=(VIDEO_STAGE0, VIDEO_STAGE1).__contains__)
        raise PlanError(
            f"Of the two stages only {own} was given; the other was the default, {shipped}, which takes the "
            "shipped clip's tensors and no others.",
            check_first="give both, --stage0 and --stage1; beside a shipped stage one that inherits",
        )
    if plan.is_video:
        plan = _with_clip_and_chunks(plan, check_plan(plan))
    elif not plan.is_synthetic:  # the synthetic stages are ours; a check takes as long as starting a rank
        check_stages(plan)
    if elsewhere:
        return plan
    return plan.replace(backend=backend_of_one_process(plan) if plan.one_process else choose_backend(plan))


def check_limit(limit_s: float) -> None:
    """Refuse an invalid limit on a whole run: hosts and jobs get the limit, and it ends them all.

    Raises:
        PlanError: The limit is not finite, or not above 0.
    """
    if not (math.isfinite(limit_s) and limit_s > 0):
        raise PlanError(
            f"The run's limit was {limit_s:g} s; it must be a number above 0.",
            check_first="limit_s (--limit-s): a day is 86400",
        )


def check_environment(plan: Plan) -> None:
    """Refuse variables with which every rank would fail.

    Raises:
        PlanError: ``SCOPE_DIST_TIMEOUT_S``, ``PPWORK_LOG_LEVEL`` or ``GLOO_SOCKET_IFNAME`` is invalid.
    """
    bring_up_timeout_s(plan)
    level, levels = os.environ.get(LOG_LEVEL_VARIABLE, "INFO"), sorted(logging.getLevelNamesMapping())
    if level not in levels:
        raise PlanError(
            f"{LOG_LEVEL_VARIABLE} was {level!r}; there is {', '.join(levels)}.", check_first="unset it"
        )
    here = [name for _, name in socket.if_nameindex()]
    asked = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if missing := [name for name in asked.split(",") if asked and name not in here]:
        raise PlanError(
            f"GLOO_SOCKET_IFNAME was {asked!r}; this machine has no {missing[0]!r}, but {', '.join(here)}.",
            check_first="unset it: ranks of one machine use lo",
        )


def _with_clip_and_chunks(plan: Plan, options: VideoOptions) -> Plan:
    from ppwork.workloads.clip import probe  # PyAV and numpy cost more than the rest of the package

    for name in plan.options:
        if name not in OPTIONS:
            check = meant(name, OPTIONS).strip() or f"it has {', '.join(OPTIONS)}"
            raise PlanError(f"The shipped denoiser has no option {name!r}.", check_first=check)
    clip = Path(options.input).absolute() if options.input else default_clip()
    available = probe(clip).frames // options.frames_per_chunk
    if available < 1:
        raise PlanError(
            f"The clip {clip} has fewer frames than one chunk of {options.frames_per_chunk}.",
            check_first="--frames-per-chunk",
        )
    named = {"input": str(clip)} if options.input else {}
    return plan.replace(options={**plan.options, **named}, chunks=plan.chunks or available)


def choose_backend(plan: Plan) -> str:
    """Decide between gloo and NCCL for all ranks, which will run on this machine: ``Plan.backend_with``.

    Raises:
        PlanError: The plan asks for NCCL, and there are too few GPUs.
        UnavailableError: As ``count_gpus``; never with gloo.
    """
    return plan.backend_with(0 if plan.backend == "gloo" else count_gpus(), plan.world_size)


def backend_of_one_process(plan: Plan) -> str:
    """Decide between the CPU (``gloo``) and a GPU (``nccl``) for both ranks of one process.

    Raises:
        PlanError: The plan asks for a GPU and there is none.
        UnavailableError: As ``count_gpus``; never with gloo.
    """
    if plan.backend == "gloo":
        return "gloo"
    if count_gpus() > 0:
        return "nccl"
    if plan.backend == "nccl":
        raise PlanError(
            "One process was to compute on a GPU, and this machine has none.",
            check_first="without --backend nccl it computes on the CPU",
        )
    return "gloo"


def count_gpus() -> int:
    """Count CUDA devices without importing torch here; without a driver this returns at once.

    Raises:
        UnavailableError: There is a driver, but torch does not count the devices: it does not import, or does
            not end.
    """
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return 0
    script = "import torch; print(torch.cuda.device_count())"
    try:
        command = [sys.executable, "-P", "-c", script]
        answer = subprocess.run(command, capture_output=True, timeout=SUBPROCESS_LIMIT_S, check=False)
        if answer.returncode == 0:
            return int(answer.stdout)
        last = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
        why = f"exit {answer.returncode}: {''.join(last)}"
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        why = str(error)
    raise UnavailableError(
        f"This machine has a GPU's driver, and torch did not say how many GPUs there are: {why}",
        check_first=f'`{sys.executable} -c "{script}"`',
    )


def check_stages(plan: Plan) -> None:
    """Let a subprocess import the stages and check their contract, as the ranks will; warm if ranks are.

    Stages that passed are not imported again while their files stay the same: it takes as long as torch.

    Raises:
        PlanError: The subprocess refused the stages, could not import them, or took too long.
    """
    key = (plan.stage0, plan.stage1, str(Path.cwd()), os.environ.get("PYTHONPATH"))
    if (files := _passed.get(key)) and files == _written_at(files):
        return
    command = [sys.executable, "-P", "-m", "ppwork", "check-stages", plan.stage0, plan.stage1]
    try:
        answer = _answer_of(command)
    except subprocess.TimeoutExpired as error:
        raise PlanError(
            f"Importing the stages {plan.stage0} and {plan.stage1} took over {SUBPROCESS_LIMIT_S:g} s.",
            check_first="does the module do its work at import time?",
        ) from error
    try:
        if answer.returncode == 0:
            _passed[key] = _written_at(msgspec.json.decode(answer.stdout, type=list[str]))
            return
        refusal = answer.stdout if answer.returncode > 0 else b""  # killed: its output is no refusal
        what, check_first = msgspec.json.decode(refusal, type=tuple[str, str])
    except msgspec.MsgspecError:
        tail = answer.stderr.decode(errors="replace").strip().splitlines()[-1:]
        what = f"The stages could not be imported (exit {answer.returncode}): {' '.join(tail)}"
        check_first = f"run `{' '.join(command[1:])}`"
    raise PlanError(what, check_first=check_first)


def _answer_of(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        with running(command, child_environment(1), answer, errors=errors, warm=True) as process:
            code = process.wait(SUBPROCESS_LIMIT_S)
        answer.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, answer.read(), errors.read())


_passed: dict[tuple[str | None, ...], dict[str, int | None]] = {}
"""Stages that passed, by where they were looked for: their files, and when those were last written."""


def _written_at(files: Iterable[str]) -> dict[str, int | None]:
    return {file: Path(file).stat().st_mtime_ns if Path(file).exists() else None for file in files}
