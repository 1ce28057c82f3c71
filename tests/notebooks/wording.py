"""How a lesson says it: what stays out of the prose."""

from __future__ import annotations

import re

ID = re.compile(r"\b(?:[ACDFGT]\d\d|R\d{1,2})\b")
"""Of claims, faults and rules: the reader has no list of them at hand. A0 to A5 are steps of the card."""
DEVICES = {"A10", "A16", "A30", "A40", "T10"}
BOUND = re.compile(
    r"\b(?:a|an|the|its|this|that|these|those|each|every|which|one|two|no|own|short|long|same|first|time)"
    r" bounds?\b(?! to\b)"
)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FOOTNOTE = re.compile(r"^(?:\[\^|<sub>|<small>).*$", re.MULTILINE)


def wording_problems(prose: str) -> list[str]:
    """Say what words a lesson's prose has that it should not; footnotes may name ids."""
    text = FOOTNOTE.sub("", FENCE.sub("", re.sub(r"\]\([^)]*\)", "]", prose)))
    found = [
        f"the prose names {name}, which the reader cannot know"
        for name in dict.fromkeys(ID.findall(text))
        if name not in DEVICES
    ]
    found += [f"{words!r}: the field says timeout or limit" for words in dict.fromkeys(BOUND.findall(text))]
    return found
