"""Options of the command line as a plan takes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import typer

from ppwork.errors import PlanError


def given(context: typer.Context) -> list[Any]:
    """Return the arguments and options of a command that somebody gave."""
    named = {option: context.get_parameter_source(option.name or "") for option in context.command.params}
    return [option for option, source in named.items() if source is not None and source.name != "DEFAULT"]


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


def bytes_of(mebibytes: float) -> int:
    """Return the bytes of so many MiB.

    Raises:
        PlanError: There is no end of them: by this bound ranks refuse a message before they make room for it.
    """
    if not math.isfinite(mebibytes):
        raise PlanError(f"The largest message was {mebibytes} MiB.", check_first="--max-message-mb 4096")
    return int(mebibytes * (1 << 20))


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


def options_of(pairs: list[str], file: Path | None = None) -> dict[str, Any]:
    """Return the options of own stages.

    Args:
        pairs: ``KEY=VALUE`` each; a value that is JSON (a number, a list) is that, any other is text.
        file: JSON, an object of options; a pair of the same key comes before it.

    Raises:
        PlanError: A pair is not of that form, or a key comes twice; the file does not read, or is no object.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key or key in options:
            raise PlanError(
                f"The option of the stages was {pair!r}; it must be KEY=VALUE, each key once.",
                check_first="-o rate=0.5 -o name=fast",
            )
        try:
            options[key] = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            options[key] = text
    return options if file is None else {**_options_in(file), **options}


def _options_in(file: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise PlanError(
            f"The file of options {file} cannot be read: {error.strerror}.", check_first="--options"
        ) from error
    except msgspec.MsgspecError as error:
        raise PlanError(
            f"The file of options {file} is no JSON object: {error}.",
            check_first='it looks like {"rate": 0.5}',
        ) from error


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
