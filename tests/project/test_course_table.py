"""The table of lessons says what the lessons' own cards say."""

import json

from checkout import ROOT


def test_the_table_of_lessons_is_that_of_their_cards():
    rows = []
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        card = json.loads(path.read_text())["metadata"]["ppwork"]
        exercises = f" + {card['exercise_minutes']}" if "exercise_minutes" in card else ""
        link = f"[{card['lesson']:02d}](../notebooks/{path.name})"
        rows.append(f"| {link} | {card['question']} | {card['minutes']}{exercises} |")
    assert "\n".join(rows) in (ROOT / "docs" / "lessons.md").read_text()
