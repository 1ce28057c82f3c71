"""Claims that were run, as a page or a notebook's table; ``opened`` shows one with its programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.html_table import TOP_LEFT, html_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppwork.claims.runs import ClaimReport, Machine, Reports

INTRODUCTION = """# Claims about `torch.distributed`, tried

Each row was run on the machine named in its column by `ppwork claims`: real ranks, a program of a few lines,
and a verdict made of nothing but what these ranks saw. `ppwork claims C04 --show` shows the program, what
each rank saw and what to do about it. A verdict speaks of that machine, backend and version: run it on yours.
A further column says what was seen only where its verdict differs from the first.
"""


def markdown(columns: Sequence[Reports]) -> str:
    """Return the page ``docs/claims.md``: one row per claim, one column per machine.

    Args:
        columns: Runs of the claims; the first one decides which rows there are. A further column says what
            was seen only where its verdict is another one.
    """
    first, lines = columns[0], [INTRODUCTION]
    lines += [_machine_line(letter, one) for letter, one in zip("ABCDEFGH", columns, strict=False)]
    for theme in dict.fromkeys(claim.theme for claim in first.claims):
        heads = " | ".join(letter for letter, _ in zip("ABCDEFGH", columns, strict=False))
        lines += ["", f"## {theme}", "", f"| id | claim | {heads} | what your code does |"]
        lines.append("|" + "---|" * (len(columns) + 3))
        for claim in (claim for claim in first.claims if claim.theme == theme):
            said = [claim.id, f"{claim.statement} ({claim.source})"]
            said += [_found(claim, first=None), *(_cell(one, claim) for one in columns[1:]), claim.advice]
            lines.append(f"| {' | '.join(map(_in_table, said))} |")
    return "\n".join(lines) + "\n"


def _machine_line(letter: str, reports: Reports) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in reports.counts.items() if number)
    return f"- **{letter}**: {machine_text(reports.machine)}. {counts}; {reports.seconds:.0f} s in all."


def machine_text(machine: Machine) -> str:
    """Return where and with what, in one line."""
    gpus = "no GPU" if not machine.gpus else f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}"
    return (
        f"{machine.backend}, torch {machine.torch}, Python {machine.python}, {machine.system}, "
        f"{machine.cpus} cores, {machine.memory_gib:g} GiB, {gpus}, ppwork {machine.ppwork}, {machine.date}"
    )


def _cell(reports: Reports, first: ClaimReport) -> str:
    found = next((claim for claim in reports.claims if claim.id == first.id), None)
    return "not run" if found is None else _found(found, first=first)


def _found(claim: ClaimReport, *, first: ClaimReport | None) -> str:
    as_before = first is not None and first.verdict == claim.verdict
    return f"**{claim.verdict}**" + ("" if as_before else f": {claim.observed}")


def _in_table(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_html(reports: Sequence[ClaimReport]) -> str:
    """Return claims as a table for a notebook."""
    rows = ((r.id, r.statement, str(r.verdict), r.observed, r.advice) for r in reports)
    return html_table(("", "claim", "verdict", "here", "so"), rows, TOP_LEFT)
