"""A claim that is opened up shows program, ranks, verdict and advice, in text and in HTML alike."""

from __future__ import annotations

import html
import re
import subprocess
import sys

import pytest
from claim_reports import report
from claim_seen import noted, raised, seen

import ppwork as pp
from ppwork.claims.catalogue import claim_of
from ppwork.claims.claim import RankEnd, Verdict
from ppwork.claims.opened import LONGEST, open_up
from ppwork.errors import PlanError
from ppwork.pictures.source import source_of

LATE = noted(
    {"small_called": 500.0, "small_returned": 500.4, "large_called": 501.0},
    {"small_came": 500.25, "came": True},
)


def as_text(page: str) -> str:
    return html.unescape(re.sub(r"<br>|<[^>]+>", " ", page.replace("<code>", "`").replace("</code>", "`")))


def test_everything_is_there_in_order_and_in_both_forms():
    opened = open_up(report("C01", Verdict.DOES_NOT_HOLD, "Each waits.", late_receiver=LATE), "late receiver")
    claim, program = claim_of("C01"), source_of("ppwork.claims.programs.p2p:late_receiver")
    parts = [claim.statement, claim.source, "late receiver", "2 ranks, at most 10 s", program]
    parts += ["small_returned: ", "small_came: ", "does not hold here", "Each waits.", claim.advice]
    for shown in (repr(opened), as_text(opened._repr_html_())):
        places = [shown.find(part) for part in parts]
        assert -1 not in places
        assert places == sorted(places)


def test_moments_count_from_the_first_one_of_the_program_and_other_notes_stay():
    shown = repr(open_up(report("C01", late_receiver=LATE), "late receiver"))
    assert "small_called: at 0.000 s; small_returned: at 0.400 s; large_called: at 1.000 s" in shown
    assert "small_came: at 0.250 s; came: True" in shown


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (seen(seconds=0.5), "returned after 0.50 s"),
        (seen(RankEnd.EXITED, exit_code=-6, seconds=0.5), "exited (signal 6) after 0.50 s"),
        (seen(RankEnd.EXITED, exit_code=3, seconds=0.5), "exited (exit 3) after 0.50 s"),
        (seen(RankEnd.HUNG, line="dist.recv(t, 0)"), "hung at `dist.recv(t, 0)` after 0.00 s"),
        (raised("[/w/gloo/pair.cc:78] Timed out"), "raised RuntimeError: Timed out after 0.00 s"),
        (
            seen(notes={"error": "[/w/gloo/pair.cc:78] a\nb", "ms": 0.123456}),
            "it noted error: a b; ms: 0.1235",
        ),
        (seen(notes={"long": "x" * 999}), f"it noted long: {'x' * (LONGEST - 1)}…"),
    ],
)
def test_how_a_rank_ended_is_said_in_a_line(rank, said):
    shown = repr(open_up(report("T04", broken=[rank]), "broken"))
    (line,) = [line for line in shown.splitlines() if line.startswith("rank 0: ")]
    assert line.endswith(said)


def test_without_a_choice_all_programs_are_shown_with_their_environment():
    shown = repr(open_up(report("C04")))
    assert all(f"--- {name} (" in shown for name in claim_of("C04").programs)
    assert "TORCH_DIST_INIT_BARRIER=1)" in shown


def test_what_ranks_said_cannot_become_markup():
    page = open_up(
        report("T04", observed="<b>", broken=[seen(notes={"said": "<i>"})]), "broken"
    )._repr_html_()
    assert "<i>" not in page
    assert "&lt;i&gt;" in page
    assert "&lt;b&gt;" in page


def test_a_program_that_the_claim_does_not_have_is_refused():
    with pytest.raises(PlanError, match="C04 has no program 'broken'") as caught:
        open_up(report("C04"), "broken")
    assert "left out" in caught.value.check_first


@pytest.mark.processes
def test_claims_are_there_from_the_face_and_imported_only_when_asked_for():
    assert pp.claims.open_up is open_up
    with pytest.raises(AttributeError, match="no attribute 'claim'"):
        pp.claim  # noqa: B018
    code = (
        "import sys, ppwork as pp; before = 'ppwork.claims' in sys.modules; pp.claims.run; "
        "assert not before and 'torch' not in sys.modules and 'ppwork.claims' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_was_in_the_way_of_a_verdict_is_said():
    ran = pp.claims.Reports(
        machine=None, seconds=1.0, claims=[report("C01"), report("T04", Verdict.ERROR, "Hung.")]
    )
    assert ran.errors == ["T04: Hung."]


def test_a_run_has_its_claims_by_id():
    ran = pp.claims.Reports(machine=None, seconds=1.0, claims=[report("C01"), report("T04")])
    assert ran["T04"].id == "T04"
    assert ran.errors == []
    with pytest.raises(PlanError, match="'C04' was not run") as caught:
        ran["C04"]
    assert "C01, T04" in caught.value.check_first
