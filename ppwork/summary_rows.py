"""What a run came to, in a few named lines: for the terminal and for a notebook alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppwork.plan import Plan
    from ppwork.run import Run


def depth_of(plan: Plan) -> str:
    """Return the depth of a plan in words, with its parts and its order where they are not the usual ones."""
    split = f" (d_in {plan.d_in}, d_out {plan.d_out})" if plan.d_in else ""
    order = "" if plan.order == "overlap" else f", {plan.order}"
    return f"depth {plan.in_flight_depth}{split}{order}"


def rows_of(finished: Run) -> list[tuple[str, str]]:
    """Return name and text of each line; what the run did not measure has none."""
    summary, plan = finished.summary, finished.plan
    versions = summary.get("versions", {})
    rows = [
        ("ranks", f"{plan.world_size} (stage 0 + mesh of {plan.mesh_size}), {summary.get('backend')}"),
        ("chunks", f"{summary.get('chunks')}, {depth_of(plan)}"),
    ]
    if "psnr_denoised_db" in summary:
        noisy, clean = summary["psnr_noisy_db"], summary["psnr_denoised_db"]
        rows.append(("PSNR", f"noisy {noisy:.2f} dB, denoised {clean:.2f} dB ({clean - noisy:+.2f} dB)"))
    if summary.get("period_ms") is not None:
        rows.append(
            (
                "period",
                f"{summary['period_ms']:.1f} ms (stage 0 {summary['stage0_ms']:.1f} ms, "
                f"stage 1 {summary['stage1_ms']:.1f} ms)",
            )
        )
    if plan.flushes:
        dropped = ", ".join(map(str, summary.get("dropped_chunks", ())))
        said = f"dropped {dropped}" if dropped else "nothing was in flight, nothing dropped"
        rows.append(("flushed", f"at chunk {', '.join(map(str, sorted(plan.flushes)))}: {said}"))
    if summary.get("overlap_score") is not None and plan.in_flight_depth > 1:
        idle = summary.get("mesh_idle_ms")
        rows.append(
            (
                "overlap",
                f"score {summary['overlap_score']:.2f}, efficiency {summary['efficiency']:.2f}"
                + (f", mesh idle {idle:.1f} ms" if idle is not None else ""),
            )
        )
    if "max_abs_diff" in summary:
        rows.append(("verified", f"max_abs_diff {summary['max_abs_diff']:g} to one process"))
    rows.append(("versions", f"ppwork {versions.get('ppwork')}, torch {versions.get('torch')}"))
    rows.append(("folder", str(finished.run_dir)))
    return rows
