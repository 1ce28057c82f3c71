"""Runs claims and reports what was found. No torch here: the pool's processes have it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

from ppwork.claims.catalogue import CLAIMS, claim_of
from ppwork.claims.claim import Claim, ClaimFinding, RankSeen, Verdict, not_testable
from ppwork.claims.pool import Pool
from ppwork.claims.report import ClaimReport, Machine, Reports
from ppwork.errors import PlanError, text_of
from ppwork.launcher import share
from ppwork.launcher.checks import count_gpus
from ppwork.version import __version__

BACKENDS = ("gloo", "nccl")
PARALLEL = 3
"""Programs at a time: most of them wait, and a bound is never so short that a neighbour could use it up."""


def run(claim_id: str, *, backend: str = "gloo") -> ClaimReport:
    """Run one claim here and now.

    Args:
        claim_id: Such as ``C04``; ``ppwork claims --list`` has them all.
        backend: ``gloo`` or ``nccl``.

    Raises:
        PlanError: There is no such claim or backend, or NCCL was asked for and there is no GPU.
        UnavailableError: This machine has a GPU's driver, and torch does not say how many GPUs there are.

    Blocks:
        Until its programs have ended; each has its bound.
    """
    return run_all([claim_id], backend=backend).claims[0]


def run_all(
    ids: Sequence[str] = (),
    *,
    backend: str = "gloo",
    parallel: int = PARALLEL,
    progress: Callable[[ClaimReport], None] | None = None,
) -> Reports:
    """Run claims, those whose times count alone and after the others.

    Args:
        ids: Which; none are all.
        backend: ``gloo`` or ``nccl``.
        parallel: Programs at a time.
        progress: Called with each report as it comes, on another thread.

    Raises:
        PlanError: As ``run``.
        UnavailableError: As ``run``.

    Blocks:
        Until all have ended.
    """
    chosen = [claim_of(claim_id) for claim_id in ids] or list(CLAIMS.values())
    gpus = count_gpus()
    if backend not in BACKENDS:
        raise PlanError(f"The backend was {backend!r}.", check_first=f"one of {', '.join(BACKENDS)}")
    if backend == "nccl" and not gpus:
        raise PlanError(
            "Claims were asked for on NCCL, and this machine has no GPU.", check_first="--backend gloo"
        )
    start = time.monotonic()
    reports: dict[str, ClaimReport] = {}
    with Pool(min(parallel, len(chosen)), backend) as pool:

        def run_claim(claim: Claim) -> None:
            reports[claim.id] = _run(claim, pool, backend, gpus)
            if progress is not None:
                progress(reports[claim.id])

        together = [claim for claim in chosen if not claim.alone]
        for future in [pool.submit(run_claim, claim) for claim in together]:
            future.result()
        for claim in chosen:
            if claim.alone:
                run_claim(claim)
    machine = _machine(backend, gpus)
    return Reports(
        machine=machine, seconds=round(time.monotonic() - start, 1), claims=[reports[c.id] for c in chosen]
    )


def _run(claim: Claim, pool: Pool, backend: str, gpus: int) -> ClaimReport:
    start, seen = time.monotonic(), {}
    if claim.gpus > gpus:
        finding = not_testable(f"It needs {claim.gpus} GPU{'s' * (claim.gpus > 1)}; this machine has {gpus}.")
    elif backend not in claim.backends:
        finding = not_testable(f"It speaks of {' and '.join(claim.backends)}, and this run was on {backend}.")
    else:
        seen = {name: pool.run(program) for name, program in claim.programs.items()}
        finding = judged(claim, seen)
    return ClaimReport(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        theme=claim.theme,
        verdict=finding.verdict,
        observed=finding.observed,
        advice=claim.advice,
        seconds=round(time.monotonic() - start, 2),
        seen=seen,
    )


def judged(claim: Claim, seen: dict[str, list[RankSeen]]) -> ClaimFinding:
    """Return what the claim's judge makes of this; missing notes are an error of ours, no verdict."""
    try:
        return claim.judge(seen)
    except Exception as error:  # noqa: BLE001  a program that did not get far enough leaves notes out
        ends = "; ".join(
            f"{name} rank {rank} {end.ended}{': ' + end.error if end.error else ''}"
            for name, ranks in seen.items()
            for rank, end in enumerate(ranks)
        )
        return ClaimFinding(Verdict.ERROR, f"The notes do not suffice ({text_of(error)}). {ends}")


def _machine(backend: str, gpus: int) -> Machine:
    return Machine(
        cpus=share.cores(),
        memory_gib=round(share.memory()[0] / (1 << 30), 1),
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=version("torch"),
        ppwork=__version__,
        backend=backend,
        date=time.strftime("%Y-%m-%d"),
    )
