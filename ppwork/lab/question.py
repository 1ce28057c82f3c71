"""A question before a run: options to choose from, and a reply to each one after the run.

The questions of a lesson stand in ``questions/NN.toml`` and not in its cells, because their replies are the
answers. An option stands for an outcome; its reply says why somebody might expect it and what is so.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ppwork.errors import PlanError

FOLDER = Path(__file__).parent / "questions"
LETTERS = "abcdefgh"
Outcome = float | str


class Option(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer to choose.

    Attributes:
        text: What it says; ``{name}`` is a value that the lesson gives.
        outcome: What the run must show for it to be right: a number, a text, or ``"{name}"`` for a value.
        reply: To a reader who chose it.
    """

    text: str
    outcome: Outcome
    reply: str


class QuestionFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question as its file has it."""

    question: str
    options: tuple[Option, ...]
    judge: str = "run"
    """Says which option is right: the run, or sums that the lesson does by hand."""


@dataclass(frozen=True)
class Question:
    """A question with options; the bare value at the end of a cell shows it."""

    text: str
    options: tuple[Option, ...]
    judge: str = "run"
    answer: str = ""
    """The letter that was chosen; empty as long as none is."""

    def __repr__(self) -> str:
        lines = [f"  {letter}  {option.text}" for letter, option in zip(LETTERS, self.options, strict=False)]
        last = f"you say {self.answer}" if self.answer else "write your letter into answer= before you run on"
        return "\n".join([self.text, *lines, last])

    def compare(self, outcome: Outcome) -> AnswerComparison:
        """Return the reply to the reader's choice.

        Args:
            outcome: A number, of which the nearest option is right, or the very text of one option's outcome.

        Raises:
            PlanError: No option stands for this outcome.
        """
        outcomes = [option.outcome for option in self.options]
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
        return AnswerComparison(self, LETTERS[right])


@dataclass(frozen=True)
class AnswerComparison:
    """The outcome beside the reader's choice; shows itself at the end of a cell."""

    question: Question
    right: str
    """The letter of the option that came out."""

    def __repr__(self) -> str:
        return "\n".join([*self._open(), *self._folded()])

    def _repr_html_(self) -> str:
        shown = "".join(f"<p>{html.escape(line)}</p>" for line in self._open())
        folded = "".join(f"<p>{html.escape(line)}</p>" for line in self._folded())
        title = "The other options" if self.question.answer else "Choose first; then open this"
        return f"{shown}<details><summary>{title}</summary>{folded}</details>"

    def _open(self) -> list[str]:
        answer = self.question.answer
        if not answer:
            return []
        verdict = "right" if answer == self.right else f"the {self._says}"
        return [f"You said {answer}: {verdict}.", self._reply(answer)]

    def _folded(self) -> list[str]:
        letters = LETTERS[: len(self.question.options)]
        others = [self._reply(letter) for letter in letters if letter != self.question.answer]
        return others if self.question.answer else [f"The {self._says}.", *others]

    @property
    def _says(self) -> str:
        judge = self.question.judge
        return f"{judge} {'say' if judge.endswith('s') else 'says'} {self.right}"

    def _reply(self, letter: str) -> str:
        option = self.question.options[LETTERS.index(letter)]
        return f"{letter}  {option.text}: {option.reply}"


def questions_of(lesson: str) -> dict[str, QuestionFile]:
    """Return the questions of a lesson, such as ``"01"``, by name.

    Raises:
        PlanError: It has none.
    """
    path = FOLDER / f"{lesson}.toml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in FOLDER.glob("*.toml")))
        raise PlanError(f"There are no questions of a lesson {lesson!r}.", check_first=f"one of {names}")
    return msgspec.toml.decode(path.read_bytes(), type=dict[str, QuestionFile])


def predict(name: str, answer: str = "", **values: Any) -> Question:  # noqa: ANN401  whatever a lesson counts
    """Ask before a run; ``compare`` of what it returns takes the outcome after the run.

    Args:
        name: Lesson and question, such as ``"01.late"``.
        answer: The reader's letter, ``a`` for the first option.
        values: The lesson's values that the question speaks of by name.

    Raises:
        PlanError: There is no such question, a value that it speaks of is not given, or the letter is none of
            its options'.
    """
    lesson, _, own = name.partition(".")
    asked = questions_of(lesson)
    if own not in asked:
        raise PlanError(
            f"There is no question {name!r}.",
            check_first=f"one of {', '.join(f'{lesson}.{known}' for known in asked)}",
        )
    try:
        options = tuple(_filled(option, values) for option in asked[own].options)
        text = asked[own].question.format_map(values)
    except KeyError as error:
        raise PlanError(
            f"The question {name!r} speaks of {error.args[0]!r}, which was not given.",
            check_first=f"predict({name!r}, {error.args[0]}=...)",
        ) from error
    letters = LETTERS[: len(options)]
    if answer and (len(answer) != 1 or answer not in letters):
        raise PlanError(f"The answer was {answer!r}.", check_first=f"one letter of {', '.join(letters)}")
    return Question(text, options, asked[own].judge, answer)


def _filled(option: Option, values: Mapping[str, Any]) -> Option:
    outcome = option.outcome
    if isinstance(outcome, str) and outcome.startswith("{") and outcome.endswith("}"):
        outcome = values[outcome[1:-1]]
    return Option(option.text.format_map(values), outcome, option.reply.format_map(values))
