"""The course: lessons as files, refreshed, turned into decks, and the instructor's notes."""
