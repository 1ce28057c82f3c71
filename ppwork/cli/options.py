"""Options of the command line as a plan takes them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from ppwork.errors import PlanError
from ppwork.plan import Scalar


def path_of(text: str) -> Path:
    """Return the path of a place to write to.

    Raises:
        typer.BadParameter: It is empty, as of a variable that is not set: it would be the working folder.
    """
    if not text:
        raise typer.BadParameter("it is empty; is a variable unset? The working folder is `.`")
    return Path(text)


def size_of(text: str) -> tuple[int, int]:
    """Return width and height of ``WxH``.

    Raises:
        PlanError: It is not of that form.
    """
    width, separator, height = text.lower().partition("x")
    if not separator or not width.isdecimal() or not height.isdecimal():  # a sign is refused here too
        raise PlanError(f"The size was {text!r}; it must be WxH in pixels.", check_first="--size 160x96")
    return int(width), int(height)


def depth_of(depth: int | None, d_in: int | None, d_out: int | None) -> int:
    """Return the depth that was asked for; 1 is what a plan takes for not asked.

    Raises:
        PlanError: A depth and another split were asked for.
    """
    if depth is not None and d_in is not None and d_out is not None and depth != d_in + d_out:
        raise PlanError(
            f"The depth was {depth}, but --d-in {d_in} and --d-out {d_out} make {d_in + d_out}.",
            check_first="leave --depth out: it is the sum of the two",
        )
    return 1 if depth is None else depth


def chunk_range(text: str) -> tuple[int | None, int | None]:
    """Return the first and the last chunk of ``FIRST:LAST``; empty leaves both open.

    Raises:
        PlanError: It is not of that form.
    """
    first, separator, last = text.partition(":")
    if not text:
        return None, None
    if not separator or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        raise PlanError(f"The chunks were {text!r}; they must be FIRST:LAST.", check_first="--chunks 10:14")
    return int(first), int(last)


def options_of(pairs: list[str]) -> dict[str, Scalar]:
    """Return the options of own stages of ``KEY=VALUE`` each; what JSON knows as a number or truth is one.

    Raises:
        PlanError: One is not of that form, or a key comes twice.
    """
    options: dict[str, Scalar] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key or key in options:
            raise PlanError(
                f"The option of the stages was {pair!r}; it must be KEY=VALUE, each key once.",
                check_first="-o rate=0.5 -o name=fast",
            )
        try:
            options[key] = msgspec.json.decode(text, type=bool | int | float)
        except msgspec.MsgspecError:
            options[key] = text
    return options


def halves_of(text: str) -> tuple[float, float]:
    """Return the times of ``ENCODE,DECODE`` in ms; one number is split evenly over both.

    Raises:
        PlanError: It is not of that form.
    """
    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        times = []
    if len(times) not in (1, 2):
        raise PlanError(
            f"Stage 0 was to take {text!r}; it takes times in ms: ENCODE,DECODE, or one for both.",
            check_first="--stage0-ms 20,20",
        )
    return (times[0], times[1]) if len(times) == 2 else (times[0] / 2, times[0] / 2)
