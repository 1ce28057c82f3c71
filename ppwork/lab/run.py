"""A run as a notebook has it: read back, drawn, and compared with another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppwork.errors import listed, named_chunks
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.pictures.timelines import timeline
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records import run as records
from ppwork.records.notes import came_with_a_cut
from ppwork.records.outputs import Output, read_outputs
from ppwork.records.run import OUTPUTS_FILE, as_run
from ppwork.timeline.costs import Costs

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Run(records.Run):
    """One finished run of a plan and what a notebook asks of it; ``pp.launch`` and ``pp.open`` return it."""

    @classmethod
    def of(cls, run: records.Run) -> Run:
        """Return a finished run as a notebook has it."""
        return cls(run.run_dir, run.exit_code, run.failure)

    @property
    def outputs(self) -> dict[int, Output]:
        """Rank 0's outputs, by chunk index, in their own dtype; bfloat16 comes as float32.

        A loop's result with several tensors is a dict by name.

        Raises:
            PlanError: The outputs were not kept (``keep_outputs`` of the plan).
            UnreadableError: The file does not read as outputs, or numpy lacks a dtype.
        """
        return read_outputs(self.run_dir)

    def timeline(
        self,
        compare: records.Run | Path | str | None = None,
        **options: Any,  # noqa: ANN401  as there
    ) -> Picture:
        """Return what every rank did: ``pp.pictures.timeline`` of this run, titled by its folder.

        Args:
            compare: A second run or its folder, drawn below on the same time axis.
            options: Further arguments of ``pp.pictures.timeline``.

        Raises:
            PlanError: There is nothing to draw.
        """
        other = None if compare is None else as_run(compare)
        titles = {"title": self.run_dir.name, "compare_title": other.run_dir.name if other else ""}
        return timeline(self, compare=other, **{**titles, **options})

    def costs(self, *, warm_up: int = 1) -> Costs:
        """Return what each step of a chunk took, for ``pp.simulate`` and ``pp.what_if``; best at depth 1.

        Args:
            warm_up: Chunks left out at the start.

        Raises:
            PlanError: No chunk has all its spans.
        """
        return Costs.from_run(self, warm_up=warm_up)

    def compare(self, other: records.Run | Path | str) -> RunComparison:
        """Put another run beside this one: plan, measures, own figures, and outputs where both kept them.

        Args:
            other: A run, or its folder.

        Raises:
            PlanError: The other folder is not one of a run.
        """
        return RunComparison(self, other if isinstance(other, records.Run) else open(other))


def open(run_dir: Path | str) -> Run:  # noqa: A001  as ``pp.open``
    """Read back a run that has ended, also of a torchrun of one's own: ``pp.open("runs/mine")``.

    Raises:
        PlanError: As ``Run.load``.
    """
    return Run.load(Path(run_dir))


@dataclass(frozen=True, repr=False)
class RunComparison:
    """Two runs side by side; a notebook shows the table."""

    first: records.Run
    second: records.Run

    @property
    def differences(self) -> dict[int, float] | None:
        """Largest absolute difference of the outputs, by chunk; infinite where only one run has the chunk.

        Or where shapes differ, or a NaN is in one. ``None``: not both runs kept their outputs
        (``keep_outputs`` of the plan).
        """
        if not all((run.run_dir / OUTPUTS_FILE).is_file() for run in (self.first, self.second)):
            return None
        return {index: max(each.values()) for index, each in self._by_name.items()}

    @cached_property
    def _outputs(self) -> list[dict[int, Output]]:
        """The kept outputs of both runs, read once."""
        return [read_outputs(run.run_dir) for run in (self.first, self.second)]

    @cached_property
    def _by_name(self) -> dict[int, dict[str, float]]:
        """The differences by chunk and name of the tensor; no name where a chunk has only one."""
        ours, theirs = self._outputs
        return {index: _distances(ours.get(index), theirs.get(index)) for index in sorted({*ours, *theirs})}

    @property
    def max_abs_diff(self) -> float | None:
        """Largest of ``differences``; ``None`` if there are none."""
        return max((self.differences or {}).values(), default=None)

    @property
    def finding(self) -> str:
        """How far the outputs are apart, in a sentence; what only rounds differently counts apart."""
        differences = self.differences
        if differences is None:
            return "Outputs were not kept by both: Plan(keep_outputs=True)."
        names = [run.run_dir.name for run in (self.first, self.second)]
        kept = dict(zip(names, self._outputs, strict=True))
        missing = {name: [index for index in differences if index not in has] for name, has in kept.items()}
        only = {index for indexes in missing.values() for index in indexes}
        apart = {index: each for index, each in differences.items() if each > 0 and index not in only}
        rounding = max(run.plan.allowed_difference for run in (self.first, self.second))
        far = {index: each for index, each in apart.items() if each > rounding}
        near = [each for index, each in apart.items() if index not in far]
        most: dict[str, float] = {}
        for name, each in (pair for index in far for pair in self._by_name[index].items()):
            most[name] = max(each, most.get(name, 0.0)) if each < math.inf else most.get(name, 0.0)
        finite = [f"{each:g} at most{f' in {name!r}' if name else ''}" for name, each in most.items() if each]
        parts, of_all = [], f"of {len(differences)} chunks differ"
        if far:
            by = f", by {listed(finite)}" if finite else ""
            parts.append(f"The outputs of {len(far)} {of_all}{by}; the first is chunk {min(far)}")
            if came_with_a_cut(self.first.entries(STAGE0_RANK), min(far)):
                parts[-1] += ", which came with a cut: was the cache reset there on each mesh rank of both?"
            odd = [index for index, each in far.items() if each == math.inf]
            parts += [f"{named_chunks(odd)}: another shape, or a NaN"] if odd else []
        if near:
            whose = f"those of {len(near)} more" if far else f"The outputs of {len(near)} {of_all}"
            parts.append(f"{whose} by {max(near):g} at most, less than a tolerance of {rounding:g}")
        elif not far and len(only) < len(differences):
            of = f"{'other ' if only else ''}{len(differences) - len(only)}"
            parts.append(f"The outputs of all {of} chunks are equal")
        parts += [f"{named_chunks(indexes)}: missing in {run}" for run, indexes in missing.items() if indexes]
        return f"{'; '.join(parts)}."

    @property
    def table(self) -> Table:
        """Where the plans differ, then each figure of both."""
        names = [run.run_dir.name for run in (self.first, self.second)]
        rows = [[name, _text(a), _text(b), _ratio(a, b)] for name, a, b in self._facts()]
        return Table(["", *names, "second / first"], rows, below=self.finding)

    def _facts(self) -> Iterator[tuple[str, object, object]]:
        plans = [run.plan.to_dict() for run in (self.first, self.second)]
        yield from ((f"plan.{key}", a, plans[1][key]) for key, a in plans[0].items() if a != plans[1][key])
        ours, theirs = (_figures(run.summary) for run in (self.first, self.second))
        yield from ((name, ours.get(name), theirs.get(name)) for name in {**ours, **theirs})

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _figures(summary: dict[str, Any]) -> dict[str, object]:
    own = {f"{key}.{name}": v for key in ("figures", "metrics") for name, v in summary.get(key, {}).items()}
    known = {name: value for name, value in summary.items() if isinstance(value, int | float)}
    return {**known, **{name: value for name, value in own.items() if isinstance(value, int | float | str)}}


def _distances(ours: Output | None, theirs: Output | None) -> dict[str, float]:
    """Return how far two outputs of a chunk are apart, by name; infinite where only one has a name."""
    one, other = (
        each if isinstance(each, dict) else {} if each is None else {"": each} for each in (ours, theirs)
    )
    names = {**one, **other}
    return {
        name: _distance(one[name], other[name]) if name in one and name in other else float("inf")
        for name in names
    }


def _distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    if ours.shape != theirs.shape:
        return float("inf")
    if ours.size == 0:
        return 0.0
    kind = "complex128" if "c" in (ours.dtype.kind, theirs.dtype.kind) else "float64"
    far = float(abs(ours.astype(kind) - theirs.astype(kind)).max())
    return far if far == far else float("inf")  # noqa: PLR0124  NaN


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _ratio(first: object, second: object) -> str:
    numbers = [value for value in (first, second) if isinstance(value, float)]
    return f"{numbers[1] / numbers[0]:.2f}" if len(numbers) == 2 and numbers[0] else "-"
