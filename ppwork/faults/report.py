"""The report of a run with a fault: what it showed, and whether that is what good looks like.

A report is filled from a run's folder and its processes only; ``judged`` compares it with the catalogue and
gives the reasons. Nothing here knows the outcome of a case beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ppwork.faults.catalogue import ranks_of
from ppwork.faults.fault import FAILS, REFUSED, SUCCEEDS, Case
from ppwork.plan import Plan

CAUGHT, NOT_CAUGHT = "caught", "not caught"
TORCHRUN_S = 3.0
"""Seconds by which torchrun may outlive its ranks: it writes its report and takes torch down."""


class Notice(msgspec.Struct, frozen=True):
    """The first record of any rank after the injection."""

    rank: int
    error_type: str
    after_s: float


class LeftoverProcess(msgspec.Struct, frozen=True):
    """A process of the run that was still there at the end, by pid and start time."""

    pid: int
    started: float
    command: str


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """One case, run once; times are seconds of ``time.monotonic_ns`` on this host."""

    fault: str
    case: str
    injected: str
    """The injection, in the catalogue's words."""
    outcome: str = ""
    """The run's end: one of ``fault.FAILS``, ``SUCCEEDS``, ``REFUSED``, ``ENDS``."""
    injected_rank: int | None = None
    """The rank that wrote the instant of the injection; ``None`` when it came from outside."""
    injected_chunk: int | None = None
    injected_ns: int | None = None
    """Time of the injection; ``None``: nobody said so."""
    noticed: Notice | None = None
    named: int | None = None
    """The rank that the failure names first."""
    error_type: str = ""
    what: str = ""
    where: dict[str, Any] = {}
    source: str = ""
    """File and line that the failure shows."""
    exit_codes: dict[int, int] = {}
    """Codes of the ranks that ended badly, as torchrun reports them; negative is a signal."""
    gone_s: float | None = None
    """Seconds from the injection until the last rank was gone."""
    all_gone_s: float | None = None
    """Seconds from the injection until torchrun, and a launcher of its own, were gone, too."""
    took_s: float = 0.0
    left: tuple[LeftoverProcess, ...] = ()
    facts: dict[str, str] = {}
    """Facts of the run's folder: empty text is well, else what was found instead."""
    run_dir: str = ""
    """The run's folder, if it was kept."""
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    """Reasons why it counts as not caught."""


def judged(report: FaultReport, case: Case, plan: Plan) -> FaultReport:
    """Return the report with its verdict.

    Args:
        report: What the run showed.
        case: What good looks like.
        plan: The run's; the bounds depend on it.
    """
    reasons = tuple(_reasons(report, case, plan))
    return msgspec.structs.replace(report, verdict=NOT_CAUGHT if reasons else CAUGHT, reasons=reasons)


def not_run(fault_id: str, case: Case) -> FaultReport:
    """Return the report of a case that this machine cannot run.

    >>> from ppwork.faults.catalogue import fault_of
    >>> not_run("F19", fault_of("F19/cut")[1]).verdict
    'needs two hosts'
    """
    return FaultReport(fault=fault_id, case=case.name, injected=case.injected, verdict=f"needs {case.needs}")


def is_open(report: FaultReport) -> bool:
    """Say whether a case ran and was not caught: what makes ``ppwork fault run`` fail."""
    return report.verdict == NOT_CAUGHT


def _reasons(report: FaultReport, case: Case, plan: Plan) -> Iterator[str]:
    expect = case.expect
    if report.outcome != expect.outcome:
        yield f"the run {report.outcome or 'did not end'}; it should be: {expect.outcome}"
    if expect.outcome != REFUSED and report.injected_ns is None:
        yield "nothing was injected"
    if report.left:
        yield f"{len(report.left)} processes were left running"
    facts = {fact: report.facts.get(fact, "was not looked up") for fact in expect.facts}
    yield from (f"{fact}: {text}" for fact, text in facts.items() if text)
    if expect.outcome == SUCCEEDS:
        return
    yield from _wrong_words(report, case)
    if expect.outcome == REFUSED:
        return
    yield from _late(report, case, plan)
    if expect.outcome == FAILS:
        ranks = ranks_of(expect.first, plan.topology)
        if report.named not in ranks:
            yield f"{_rank(report.named)} was named first; it should be {' or '.join(map(_rank, ranks))}"


def _rank(rank: int | None) -> str:
    return "nobody" if rank is None else f"rank {rank}"


def _wrong_words(report: FaultReport, case: Case) -> Iterator[str]:
    expect = case.expect
    if expect.errors and report.error_type not in expect.errors:
        yield f"the error was {report.error_type or 'none'}; it should be {' or '.join(expect.errors)}"
    if missing := [key for key in expect.where if key not in report.where]:
        yield f"`where` lacks {', '.join(missing)}"
    yield from (f"the error does not say {text!r}" for text in expect.said if text not in report.what)


def _late(report: FaultReport, case: Case, plan: Plan) -> Iterator[str]:
    notice, gone = case.expect.notice.seconds(plan), case.expect.gone.seconds(plan)
    if report.noticed is not None and report.noticed.after_s > notice:
        yield f"the first notice came after {report.noticed.after_s:.2f} s; {notice:g} s are allowed"
    times = (("rank", report.gone_s, gone), ("process", report.all_gone_s, gone + TORCHRUN_S))
    for member, gone_s, allowed in times:
        if gone_s is None and not report.left:
            yield f"it is not known when the last {member} was gone"
        if gone_s is not None and gone_s > allowed:
            yield f"the last {member} was gone after {gone_s:.2f} s; {allowed:g} s are allowed"
