"""A question before a run: options to choose from, and a reply to each one after the run.

An option stands for an outcome, and its reply says why somebody might expect it and what is so. A reader who
has not chosen finds all replies folded.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass

from ppwork.errors import PlanError

LETTERS = "abcdefgh"
Outcome = float | str


@dataclass(frozen=True)
class Question:
    """A question with options; the bare value at the end of a cell shows it."""

    text: str
    options: Mapping[str, tuple[Outcome, str]]
    """Text of each option: the outcome that it stands for, and the reply to a reader who chose it."""
    answer: str = ""
    """The letter that was chosen; empty as long as none is."""

    def __repr__(self) -> str:
        lines = [f"  {letter}  {text}" for letter, text in zip(LETTERS, self.options, strict=False)]
        last = f"you say {self.answer}" if self.answer else "write your letter into answer= before you run on"
        return "\n".join([self.text, *lines, last])

    def compare(self, outcome: Outcome) -> Comparison:
        """Return the reply to the reader's choice.

        Args:
            outcome: A number, of which the nearest option is right, or the very text of one option's outcome.

        Raises:
            PlanError: No option stands for this outcome.
        """
        outcomes = [value for value, _ in self.options.values()]
        if isinstance(outcome, str):
            right = outcomes.index(outcome) if outcome in outcomes else None
        else:
            numbers = {k: value for k, value in enumerate(outcomes) if not isinstance(value, str)}
            right = min(numbers, key=lambda k: abs(numbers[k] - outcome), default=None)
        if right is None:
            raise PlanError(
                f"No option of the question stands for {outcome!r}.",
                check_first=f"the outcomes of its options: {', '.join(map(repr, outcomes))}",
            )
        return Comparison(self, LETTERS[right])


@dataclass(frozen=True)
class Comparison:
    """The outcome beside the reader's choice; shows itself at the end of a cell."""

    question: Question
    right: str
    """The letter of the option that came out."""

    def __repr__(self) -> str:
        return "\n".join([*self._open(), *self._folded()])

    def _repr_html_(self) -> str:
        shown = "".join(f"<p>{html.escape(line)}</p>" for line in self._open())
        folded = "".join(f"<p>{html.escape(line)}</p>" for line in self._folded())
        if not folded:
            return shown
        title = "The other options" if self.question.answer else "Choose first; then open this"
        return f"{shown}<details><summary>{title}</summary>{folded}</details>"

    def _open(self) -> list[str]:
        answer = self.question.answer
        if not answer:
            return []
        verdict = "right" if answer == self.right else f"the run says {self.right}"
        return [f"You said {answer}: {verdict}.", self._reply(answer)]

    def _folded(self) -> list[str]:
        letters = LETTERS[: len(self.question.options)]
        others = [self._reply(letter) for letter in letters if letter != self.question.answer]
        return others if self.question.answer else [f"The run says {self.right}.", *others]

    def _reply(self, letter: str) -> str:
        text = list(self.question.options)[LETTERS.index(letter)]
        return f"{letter}  {text}: {self.question.options[text][1]}"


def predict(question: str, options: Mapping[str, tuple[Outcome, str]], answer: str = "") -> Question:
    """Ask before a run; ``compare`` of what it returns takes the outcome after the run.

    Args:
        question: What will be seen.
        options: Text of each option: the outcome that it stands for (a number in the unit of the measurement,
            or a text), and the reply to a reader who chose it.
        answer: The reader's letter, ``a`` for the first option.

    Raises:
        PlanError: There are fewer than two options or more than eight, two stand for one outcome, one has no
            reply, or the letter is none of them.
    """
    letters = LETTERS[: len(options)]
    if not 2 <= len(options) <= len(LETTERS):
        raise PlanError(f"A question had {len(options)} options.", check_first="2 to 8 of them")
    if len({outcome for outcome, _ in options.values()}) < len(options):
        raise PlanError(f"Two options of {question!r} stand for one outcome.", check_first="their outcomes")
    for text, (_, reply) in options.items():
        if not reply:
            raise PlanError(f"The option {text!r} has no reply.", check_first="why one might choose it")
    if answer and (len(answer) != 1 or answer not in letters):
        raise PlanError(f"The answer was {answer!r}.", check_first=f"one letter of {', '.join(letters)}")
    return Question(question, options, answer)
