"""Timelines as they are drawn, by what their artists stand for."""

from __future__ import annotations

from matplotlib.text import Text

from ppwork.pictures.timelines import timeline


def drawn(entries, **window):
    return timeline(entries, **window).figure


def by_gid(figure, axes=0):
    """Artists of the picture by what they stand for, such as ``chunk3.generate``."""
    artists = {}
    for artist in [*figure.axes[axes].patches, *figure.axes[axes].lines]:
        artists.setdefault(artist.get_gid(), []).append(artist)
    return artists


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]
