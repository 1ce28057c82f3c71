"""What would be wrong with a question of a lesson."""

from __future__ import annotations

from ppwork.lab.question import LETTERS, QuestionFile


def problem_of(question: QuestionFile) -> str:
    """Say why it cannot be asked; nothing: it can."""
    if not 2 <= len(question.options) <= len(LETTERS):
        return f"it has {len(question.options)} options, not 2 to {len(LETTERS)}"
    if len({option.outcome for option in question.options}) < len(question.options):
        return "two of its options stand for one outcome"
    silent = [option.text for option in question.options if not option.reply.strip()]
    return f"the option {silent[0]!r} has no reply" if silent else ""
