"""Lessons as a learner has them: JupyterLab in a browser, the live view with its Stop button, sliders.

``make screenshots`` runs this with two lessons whole, and leaves the pictures in ``screenshots/``. Else nbval
has run every cell of them, and what only a browser shows is shown by small notebooks.
"""

from __future__ import annotations

import os
import re
import time
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from anatomy import FOLDER
from browser import browser, page_at
from lab_server import errors_in, jupyterlab, open_notebook, run_all, wait_for_end
from launched_jobs import all_gone

from ppwork.process import WARM_VARIABLE
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import read_entries

pytestmark = [pytest.mark.notebook, pytest.mark.timeout(900)]
OVERLAP = "05-how-do-i-overlap-and-how-do-i-know.ipynb"
FAILURES = "08-what-happens-when-something-dies.ipynb"
PLAN = """\
import ppwork as pp

times = {"encode_ms": 15.0, "decode_ms": 15.0, "stage1_ms": 30.0, "payload_mb": 0.1}
plan = pp.synthetic(pp.Plan(mesh_size=2, chunks=12, backend="gloo"), **times)"""
SMALL = {
    OVERLAP: (PLAN,),
    FAILURES: (
        PLAN,
        "slow = plan.replace(chunks=40, in_flight_depth=2, options={**plan.options, 'tp_sums': 1})\n"
        "failed = pp.launch(pp.faults.with_fault(slow, 'F13/follower-mid-compute'), check=False)\n"
        "assert failed.failure.where['rank'] == 2",
        "pp.pictures.failure(failed)",
    ),
}
LIMIT_S = 400.0
"""On a whole lesson; it takes less than a minute on two quiet cores."""
SLIDERS = "pp.what_if(plan.replace(in_flight_depth=2))"
LONG = """\
long = pp.launch(plan.replace(chunks=2000, in_flight_depth=2), out="long", check=False)
print(long.failure.what)
"""
SUMS = """\
%%ranks 2
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("sums begin", flush=True)
while True:
    dist.all_reduce(torch.ones(4))
"""
STILL = """\
%load_ext ppwork
from ppwork.launcher import standstill
standstill.STILL_S = 1.5"""
HANGS = """\
%%ranks 2
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))
dist.barrier()
"""
COUNT, NAME = re.compile(r"(\d+) of \d+ chunks"), re.compile(r"(\S+), \d+ s")


@pytest.fixture(scope="module")
def lab(tmp_path_factory, kernel_launcher):
    with pytest.MonkeyPatch.context() as patch:
        # How ranks are started is not what a browser shows.
        patch.setenv(WARM_VARIABLE, str(kernel_launcher.address))
        with jupyterlab(tmp_path_factory.mktemp("lab")) as lab:
            yield lab


@pytest.fixture(scope="module")
def seen(lab):
    with browser() as started, page_at(started, (lab.url,)) as seen:
        yield seen


@pytest.fixture
def shots(tmp_path):
    folder = Path(os.environ.get("PPWORK_SCREENSHOTS", tmp_path / "screenshots")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def copy_of(name: str, folder: Path, *more_cells: str) -> None:
    notebook = nbformat.read(FOLDER / name, as_version=4)
    if "PPWORK_SCREENSHOTS" not in os.environ:
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in SMALL[name]]
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in more_cells]
    nbformat.write(notebook, folder / name)


def moved(views: list[str]) -> bool:
    """Whether the counts of one run's view went up while it was looked at."""
    named = ((NAME.search(view), view) for view in views)  # one that waits in the queue has no time yet
    counts = [(name[1], sum(map(int, COUNT.findall(view)))) for name, view in named if name is not None]
    return any(a == b and few < many for (a, few), (b, many) in pairwise(counts))


def wait_until(page, fact):
    """Wait for a fact of ours, not of the page, while its cells run."""
    end = time.monotonic() + LIMIT_S
    while not (found := fact()):
        assert not page.evaluate("() => window.ended"), errors_in(wait_for_end(page, LIMIT_S))
        assert time.monotonic() < end, "it did not come"
        page.wait_for_timeout(100)  # the interval of asking
    return found


def run_cells(page, lab, name: str, *cells: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.root / name)
    open_notebook(page, lab, name)
    run_all(page)


def take_figures(page, shots: Path, name: str) -> None:
    for number, figure in enumerate(page.locator("figure img").all(), start=1):
        figure.screenshot(path=shots / f"{name[:2]}-figure-{number:02d}.png")


def test_the_lesson_on_overlap(lab, seen, shots):
    copy_of(OVERLAP, lab.root, SLIDERS, LONG)
    page = seen.page
    open_notebook(page, lab, OVERLAP)
    run_all(page)

    wait_until(page, lambda: any(e.name == "emit" for e in read_entries(lab.root / "long", rank=0)))
    wait_until(page, lambda: moved(page.evaluate("() => window.views")))
    before = page.evaluate("() => window.views.length")
    ranks = [read_pulse(lab.root / "long", rank).process() for rank in range(3)]
    assert all(ranks)
    page.wait_for_function("n => window.views.length > n + 3", arg=before)
    lanes = page.locator(".ppwork-live svg.ppwork-lanes")
    drawn = lanes.inner_html()
    assert "generate" in drawn
    page.wait_for_function(
        "was => document.querySelector('.ppwork-live svg.ppwork-lanes').innerHTML !== was", arg=drawn
    )
    page.locator(".ppwork-live").screenshot(path=shots / "05-live-view.png")
    page.locator(".ppwork-stop").click()

    outputs = wait_for_end(page, LIMIT_S)
    assert all_gone(ranks, 5.0) == []
    assert errors_in(outputs) == []
    assert "was stopped by its Stop button" in outputs[-1]["text"]

    sliders = page.locator(".ppwork-what-if")
    picture = sliders.locator("figure img")
    depth = sliders.locator(".widget-hslider", has_text="in_flight_depth").locator(".noUi-handle")
    sliders.screenshot(path=shots / "05-what-if-before.png")
    said, drawn = picture.get_attribute("alt"), picture.get_attribute("src")
    depth.focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "alt => document.querySelector('.ppwork-what-if figure img').alt !== alt", arg=said, timeout=10_000
    )
    sliders.screenshot(path=shots / "05-what-if-after.png")
    was, now = (int(re.search(r"depth (\d+)", text)[1]) for text in (said, picture.get_attribute("alt")))
    assert now == was - 1
    assert picture.get_attribute("src") != drawn
    take_figures(page, shots, OVERLAP)
    assert seen.outside == []
    assert seen.errors == []


def test_the_lesson_on_failures(lab, seen, shots):
    copy_of(FAILURES, lab.root)
    page = seen.page
    open_notebook(page, lab, FAILURES)
    run_all(page)
    outputs = wait_for_end(page, LIMIT_S)
    assert errors_in(outputs) == []
    # That a view moves is the overlap lesson's to show: the stages here take 20 ms, less than between looks.
    assert any("of 40 chunks" in view for view in page.evaluate("() => window.views"))
    take_figures(page, shots, FAILURES)
    assert seen.outside == []
    assert seen.errors == []


def test_a_cell_on_ranks(lab, seen, shots):
    """Its lanes move while it goes, Stop ends it, and its output and picture stay."""
    page = seen.page
    run_cells(page, lab, "ranks.ipynb", "%load_ext ppwork", SUMS)
    lanes = page.locator(".ppwork-live svg.ppwork-lanes")
    lanes.wait_for(timeout=LIMIT_S * 1000)
    page.wait_for_function(
        "() => document.querySelector('.ppwork-live svg.ppwork-lanes')?.innerHTML.includes('all_reduce')"
    )
    drawn = lanes.inner_html()
    page.wait_for_function(
        "was => document.querySelector('.ppwork-live svg.ppwork-lanes').innerHTML !== was", arg=drawn
    )
    page.locator(".ppwork-live").screenshot(path=shots / "ranks-live-view.png")
    page.locator(".ppwork-stop").click()
    outputs = wait_for_end(page, LIMIT_S)
    (error,) = errors_in(outputs)
    assert "was stopped" in str(error)
    assert "sums begin" in str(outputs)
    page.locator("figure img").screenshot(path=shots / "ranks-picture.png")
    assert "all_reduce" in page.locator("figure img").get_attribute("alt")
    assert seen.outside == []
    assert seen.errors == []


def test_a_cell_that_stands_still_says_so_in_its_view_which_can_still_be_stopped(lab, seen, shots):
    """The notice renews the view; once the program has ended, nothing of the notice stays."""
    page = seen.page
    run_cells(page, lab, "hangs.ipynb", STILL, HANGS)
    notice = page.locator(".ppwork-live pre", has_text="No rank has printed")
    notice.wait_for(timeout=LIMIT_S * 1000)
    assert "rank 0 waits for rank 1: all_reduce SUM float32[4] at my_ranks.py:4" in notice.inner_text()
    assert page.locator(".ppwork-live").count() == 1
    page.locator(".ppwork-live").screenshot(path=shots / "ranks-notice.png")
    page.locator(".ppwork-stop").click()
    outputs = wait_for_end(page, LIMIT_S)
    (error,) = errors_in(outputs)
    assert "was stopped" in str(error)
    assert "No rank has printed" not in str(outputs)
    assert seen.outside == []
    assert seen.errors == []
