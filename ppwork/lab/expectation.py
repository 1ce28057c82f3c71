"""A number that the prose of a lesson relies on: measured in this run, and held to its limits."""

from __future__ import annotations

from typing import Any

from ppwork.errors import PPWorkError


class Unexpected(PPWorkError):
    """A lesson's number is not what its prose says; the page is wrong on this machine, in this run."""


def expect(
    name: str,
    value: Any,  # noqa: ANN401  whatever the page is about
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    equal: Any = None,  # noqa: ANN401
) -> None:
    """Hold a value of a lesson to what the prose says; nothing is shown when it does.

    Args:
        name: Lesson and thing, such as ``"05.period"``.
        value: What was measured or printed.
        at_least: Its lower limit, itself allowed, in the unit of the value.
        at_most: Its upper limit, itself allowed.
        equal: The very value.

    Raises:
        Unexpected: The value is outside the limits, or another one.
        TypeError: There is no limit to hold it to.
    """
    if at_least is None and at_most is None and equal is None:
        raise TypeError(f"expect({name!r}) needs at_least=, at_most= or equal=")
    limits = []
    if equal is not None and value != equal:
        limits.append(f"{equal!r}")
    if at_least is not None and not value >= at_least:
        limits.append(f"at least {at_least:g}")
    if at_most is not None and not value <= at_most:
        limits.append(f"at most {at_most:g}")
    if limits:
        raise Unexpected(
            f"{name} was {value!r}, and this page says {' and '.join(limits)}.",
            check_first="was the machine busy with something else? The picture of the run shows it",
        )
