"""A chunk that a flush dropped, in the picture."""

from drawn_timelines import by_gid, drawn, texts
from legible import assert_legible
from made_runs import made

from ppwork.records.spans import Instant, Span


def flushed(entries_by_rank, chunk):
    """Return the run as if this chunk had been dropped: no decode, a drop in place of its emission."""

    def told(entry):
        if entry.chunk_index != chunk or entry.name not in ("decode", "emit"):
            return [entry]
        ids = {"call_id": entry.call_id, "chunk_index": chunk}
        return [] if isinstance(entry, Span) else [Instant("drop", "main", entry.at_ns, **ids)]

    stage0 = [kept for entry in entries_by_rank[0] for kept in told(entry)]
    return {**entries_by_rank, 0: stage0}


def test_a_drop_is_marked_in_place_of_the_emission_and_explained():
    figure = drawn(flushed(made(chunks=5), 2))
    found = by_gid(figure)
    assert "chunk2.emit" not in found
    (mark,) = found["chunk2.drop"]
    assert mark.get_marker() == "X"
    assert "drop" in texts(figure)
    place = (mark.get_xdata()[0], mark.get_ydata()[0])
    beside = [text.get_text() for text in figure.axes[0].texts if getattr(text, "xy", None) == place]
    assert beside == ["drop 2"]


def test_a_run_without_a_flush_has_no_word_of_it():
    assert "drop" not in texts(drawn(made(chunks=5)))


def test_a_flush_is_a_line_where_its_chunk_began_and_what_it_made_stale_was_made_and_dropped():
    figure = drawn(flushed(made(chunks=5, cut_at=3), 2), first_chunk=2, last_chunk=3)
    (line,) = by_gid(figure)["flush"]
    (encode,) = by_gid(figure)["chunk3.encode"]
    assert line.get_xdata()[0] == encode.get_x()
    shown = texts(figure)
    assert "flush, with chunk 3" in shown
    assert "2, made, then dropped" in shown
    assert_legible(figure)


def test_a_cut_with_nothing_in_flight_is_no_flush():
    assert "flush" not in by_gid(drawn(made(chunks=5, cut_at=3)))


def test_only_the_work_can_be_shown_and_then_no_word_speaks_of_a_transfer():
    run = flushed(made(chunks=5, cut_at=3), 2)
    whole, figure = drawn(run), drawn(run, only_work=True)
    lanes = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert set(lanes) == {"main"}
    assert {"chunk2.drop", "chunk3.encode", "chunk3.generate", "flush"} <= by_gid(figure).keys()
    aside = {"chunk2.envelope.send", "chunk3.preflight"}
    assert aside <= by_gid(whole).keys()
    assert not aside & by_gid(figure).keys()
    said = {"transfer", "waiting to receive", "leaves rank 0 (envelope.send)"}
    assert said <= {*texts(whole)}
    assert not said & {*texts(figure)}
    assert_legible(figure)
