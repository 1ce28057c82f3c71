"""What each step left, read: a sentence for the table, and the figures behind it. No torch here."""

from __future__ import annotations

import json
import re
import statistics
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from ppwork.protocol.topology import LEADER_RANK
from ppwork.records.calls import read_calls
from ppwork.records.run import Run
from ppwork.records.spans import Span
from ppwork.timeline.chunks import calls_with_chunks, is_of_chunk, steps_of
from ppwork.timeline.meetings import Meetings

GROUPS = ("down_pg", "mesh_pg")
"""The next chunk comes to the leader over the first, and to its mesh over the second."""
CLAIM = re.compile(r"^([A-Z]\d+) (.+) \([\d.]+ s\)$", re.MULTILINE)
SANITIZED = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+).*")


class Finding(NamedTuple):
    """What a step showed; no time is in it where ranks shared a card."""

    text: str
    figures: dict[str, Any]


def output_of(folder: Path) -> Any:  # noqa: ANN401  JSON types
    """Return the JSON that a command printed."""
    return json.loads((folder / "out.txt").read_bytes())


def machine(folder: Path) -> Finding:
    """Read ``ppwork doctor --json``."""
    report = output_of(folder)
    found, probed = report["machine"], report["machine"]["probed"]
    cards = ", ".join(f"{gpu['name']} ({gpu['gib']:g} GiB)" for gpu in probed["gpus"]) or "no card"
    versions = {"torch": probed["torch"], "CUDA": probed["cuda_built"], "NCCL": probed["nccl"]}
    versions |= {"driver": found["driver"]}
    missing = [row["what"] for row in report["here"] if row["verdict"] == "missing"]
    texts = [cards, *(f"{name} {text}" for name, text in versions.items() if text)]
    texts += [f"missing: {', '.join(missing)}"] if missing else []
    return Finding(", ".join(texts), {"cards": probed["gpus"], **versions, "missing": missing})


def verified(folder: Path) -> Finding:
    """Read a run that was compared with one process."""
    names = ("device", "backend", "chunks", "max_abs_diff")
    summary = Run(folder / "run", None).summary
    psnr = {name: summary["figures"][name] for name in ("psnr_noisy_db", "psnr_denoised_db")}
    figures = {**{name: summary[name] for name in names}, **psnr}
    gain = psnr["psnr_denoised_db"] - psnr["psnr_noisy_db"]
    where = f"{figures['device']} over {figures['backend']}, {figures['chunks']} chunks"
    text = f"{where}: max_abs_diff {figures['max_abs_diff']:g} to one process, PSNR {gain:+.2f} dB"
    return Finding(text, figures)


def tests(folder: Path) -> Finding:
    """Read pytest's ``--junitxml``."""
    cases = list(ET.parse(folder / "tests.xml").iter("testcase"))  # noqa: S314  pytest has just written it
    ended = {
        tag: [case for case in cases if case.find(tag) is not None] for tag in ("failure", "error", "skipped")
    }
    bad = [case.attrib["name"] for case in (*ended["failure"], *ended["error"])]
    passed = len(cases) - len(bad) - len(ended["skipped"])
    failed = f", failed: {', '.join(bad)}" if bad else ""
    return Finding(
        f"{passed} of {len(cases)} passed{failed}", {"tests": len(cases), "passed": passed, "failed": bad}
    )


def overlapped(folder: Path) -> Finding:
    """Count the chunks whose transfer ended before the generator had ended the chunk before."""
    run = Run.load(folder / "run")
    entries = run.entries_by_rank[LEADER_RANK]
    calls = calls_with_chunks(run.entries_by_rank)
    generated = {span.chunk_index: span.end_ns for span in steps_of(entries, "generate")}
    figures: dict[str, Any] = {"pairs": len(generated) - 1}
    for group in GROUPS:
        lane = f"cuda:{group}" if run.summary["device"] == "cuda" else group
        spans = [e for e in entries if isinstance(e, Span) and e.lane == lane and is_of_chunk(e, calls)]
        ended = {span.chunk_index: span.end_ns for span in spans}
        figures[group] = (
            sum(end_ns < generated.get(k - 1, 0) for k, end_ns in ended.items()) if ended else None
        )
    counts = ", ".join(
        f"{name} {'not recorded' if figures[name] is None else figures[name]}" for name in GROUPS
    )
    return Finding(f"of {figures['pairs']} next chunks come before the generator's end: {counts}", figures)


def steady(folder: Path) -> Finding:
    """Read the period of a run, its efficiency, and what a chunk took of the host."""
    run = Run.load(folder / "run")
    figures = {
        name: run.summary[name] for name in ("device", "period_ms", "stage0_ms", "stage1_ms", "efficiency")
    }
    host: Counter[int] = Counter()
    for entries in run.entries_by_rank.values():
        for entry in entries:
            if isinstance(entry, Span) and entry.lane == "main" and entry.chunk_index > 0:
                host[entry.chunk_index] += entry.end_ns - entry.start_ns
    figures["host_ms"] = round(statistics.median(host.values()) / 1e6, 3)
    text = "{device}: period {period_ms:.1f} ms, efficiency {efficiency:.2f}, host {host_ms:.1f} ms a chunk"
    return Finding(text.format(**figures), figures)


def drawn(folder: Path) -> Finding:
    """Read which lanes of the device a timeline has, and what its trace weighs."""
    entries = [entry for of_rank in Run.load(folder / "run").entries_by_rank.values() for entry in of_rank]
    lanes = sorted({entry.lane for entry in entries if entry.lane.startswith("cuda:")})
    trace = (folder / "run" / "trace.json").read_bytes()
    figures = {"lanes": lanes, "events": len(json.loads(trace)["traceEvents"]), "trace_bytes": len(trace)}
    text = (
        f"{len(lanes)} lanes of the device, a trace of {figures['events']} events, {len(trace) / 1e6:.2f} MB"
    )
    return Finding(text, figures)


def recorded(folder: Path) -> Finding:
    """Read when the calls of a program ran on its streams, and how often its host was ahead of them."""
    met = Meetings(read_calls(folder / "run"))
    calls = [call for of_rank in met.ranks.values() for call in of_rank.calls]
    waits = {id(loan.call): loan.end_ns for loan in met.loans}
    ran = [(call, call.device) for call in calls if call.device is not None]
    ahead = sum(device.end_ns > (waits.get(id(call)) or call.end_ns or 0) for call, device in ran)
    figures = {"calls": len(calls), "on_device": len(ran), "host_ahead": ahead}
    figures |= {"streams": sorted({device.stream for _, device in ran})}
    where = ", ".join(figures["streams"]) or "no stream"
    text = f"{len(ran)} of {len(calls)} calls have times of {where}, in {ahead} the host was ahead"
    return Finding(text, figures)


def claimed(folder: Path) -> Finding:
    """Read what ``ppwork claims`` told while it ran: that is there also when it was stopped."""
    verdicts = dict(CLAIM.findall((folder / "log.txt").read_text()))
    if not verdicts:
        raise ValueError("no claim was told")
    counts = Counter(verdicts.values()).most_common()
    told = ", ".join(f"{number} {verdict}" for verdict, number in counts)
    return Finding(f"{len(verdicts)} claims: {told}", verdicts)


def caught(folder: Path) -> Finding:
    """Read ``ppwork fault run --json`` of one case."""
    (report,) = output_of(folder)
    named = "nobody" if report["named"] is None else f"rank {report['named']} ({report['error_type']})"
    gone = "" if report["gone_s"] is None else f", ranks gone after {report['gone_s']:.2f} s"
    why = "".join(f"; {reason}" for reason in report["reasons"])
    return Finding(f"{report['verdict']}: named {named}{gone}, {len(report['left'])} left{why}", report)


def refused(folder: Path) -> Finding:
    """Read what a run said that should not start, or should end soon."""
    said = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
    return Finding(said[0], {"said": said})


def executed(folder: Path) -> Finding:
    """Read an executed notebook."""
    cells = json.loads((folder / "executed.ipynb").read_bytes())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    done = sum(cell["execution_count"] is not None for cell in code)
    errors = [each["ename"] for cell in code for each in cell["outputs"] if each["output_type"] == "error"]
    failed = f", stopped by {errors[-1]}" if errors else ""
    return Finding(
        f"{done} of {len(code)} cells{failed}", {"cells": len(code), "done": done, "errors": errors}
    )


def sanitized(folder: Path) -> Finding:
    """Read the summary of compute-sanitizer."""
    *_, last = SANITIZED.finditer((folder / "out.txt").read_text(errors="replace"))
    return Finding(last[0].strip(), {"found": int(last[1])})
