"""What a run has noted of itself and went on, as it is read back: odd results, cuts, writes, full queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ppwork.errors import listed, meant, named_chunks, named_ranks, ranks_by_value
from ppwork.records.run import (
    NO_EMISSION,
    NOTHING_RESET,
    ODD_RESULTS,
    OPTIONS_ASKED,
    QUEUE,
    metadata_apart,
    writes_apart,
)
from ppwork.records.spans import RESULTS_DIFFER, Entry, Instant, Recorder


def queues_of(entries: Iterable[Entry]) -> list[dict[str, str | int]]:
    """Return a rank's queues, from its last instants: ``name``, ``bound``, ``most`` and ``done``."""
    return [
        {"name": entry.name.removeprefix(QUEUE), **{key: int(n) for key, n in entry.figures.items()}}
        for entry in entries
        if isinstance(entry, Instant) and entry.name.startswith(QUEUE)
    ]


def odd_results(summary: Mapping[str, object]) -> list[int]:
    """Return the chunks for which mesh ranks returned different results, according to a summary."""
    return _chunks_in(summary, ODD_RESULTS)


def useless_cuts(summary: Mapping[str, object]) -> list[int]:
    """Return the chunks that came with a cut but reset nothing, according to a summary."""
    return _chunks_in(summary, NOTHING_RESET)


def came_with_a_cut(entries: Iterable[Entry], chunk: int) -> bool:
    """Say whether a chunk began a new epoch of the cache, by rank 0's entries."""
    epochs = {entry.chunk_index: entry.cache_epoch for entry in entries if entry.chunk_index >= 0}
    return chunk - 1 in epochs and epochs.get(chunk, 0) > epochs[chunk - 1]


def told_of_emissions(entries: Iterable[Entry]) -> str:
    """Say that rank 0 emitted nothing at all though chunks came, as of a forgotten ``return``; else empty."""
    texts = [entry.text for entry in entries if isinstance(entry, Instant) and entry.name == "emit"]
    if not texts or any(text != NO_EMISSION for text in texts):
        return ""
    return f"none: {NO_EMISSION} for each of {len(texts)} chunks: a forgotten `return`?"


def note_asked_options(recorder: Recorder, options: Collection[str], asked: Iterable[str]) -> None:
    """Record which names of options a rank's stage asked for, if the plan has options."""
    if len(options):
        recorder.instant(OPTIONS_ASKED, text="\n".join(sorted(asked)))


def told_of_options(options: Collection[str], entries_by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Say which options of a plan no stage asked for; empty if a rank does not tell.

    A stage may also pass all its options on in a way that is not seen, as to a decoder in C.
    """
    notes = [
        [entry.text for entry in entries if isinstance(entry, Instant) and entry.name == OPTIONS_ASKED]
        for entries in entries_by_rank.values()
    ]
    asked = {name for texts in notes for text in texts for name in text.splitlines()}
    if not options or not all(notes):
        return ""
    if not asked:
        return f"no stage was seen to read an option; {listed(map(repr, options))} may have had no effect"
    return _told_of_unasked([name for name in options if name not in asked], asked - {*options})


def told_of_misspelt(options: Collection[str], asked: Collection[str]) -> str:
    """Say which options nobody has asked for by now and are spelt nearly as one that was; else empty.

    An option may be read as late as in ``step``: only one that looks like a slip is told before that.
    """
    others = {*asked} - {*options}
    return _told_of_unasked([name for name in options if name not in asked and meant(name, others)], others)


def _told_of_unasked(idle: Collection[str], others: Collection[str]) -> str:
    questions = "".join(meant(name, others) for name in idle)
    return f"no stage asked for {listed(map(repr, idle))}; {questions}".rstrip("; ") if idle else ""


def why_not_reset(*, of_loop: bool) -> str:
    """Say why nothing may have been reset at a cut: of stages it is known."""
    if of_loop:
        return "the loop of a mesh rank did not read `chunk.plan.reset_cache`: was its cache not reset?"
    return "nothing was reset: the generator has no `reset_cache`"


def told_of_results(entries_by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Return what mesh ranks said of the first chunk whose results differed; empty if nothing is told."""
    every = (entry for entries in entries_by_rank.values() for entry in entries)
    told = [each for each in every if isinstance(each, Instant) and each.name == RESULTS_DIFFER and each.text]
    first = min((each.chunk_index for each in told), default=-1)
    texts = dict.fromkeys(each.text for each in told if each.chunk_index == first)
    return f"of chunk {first}, {'; '.join(texts)}" if texts else ""


def told_of_writes(entries_by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Return which mesh ranks wrote into which received tensors, if they differ; of the first chunk."""
    if not (apart := writes_apart(entries_by_rank)):
        return ""
    by_names = ranks_by_value(apart[min(apart)])
    each = ", ".join(f"{named_ranks(ranks)} into {names or 'none'}" for names, ranks in by_names.items())
    return (
        f"Mesh ranks wrote into different ones of the tensors that all of them had received, in "
        f"{named_chunks(sorted(apart))}: {each}"
    )


def told_of_metadata(entries_by_rank: Mapping[int, Sequence[Entry]]) -> str:
    """Return in which chunks mesh ranks gave different metadata, and the keys in the first of them."""
    if not (apart := metadata_apart(entries_by_rank)):
        return ""
    first = min(apart)
    ranks = sorted({rank for by_rank in apart[first].values() for rank in by_rank})
    keys = f"{listed([*map(repr, apart[first])])} of {named_ranks(ranks)} differ in chunk {first}"
    return f"Mesh ranks gave different metadata with their results in {named_chunks(sorted(apart))}: {keys}"


def _chunks_in(summary: Mapping[str, object], key: str) -> list[int]:
    chunks = summary.get(key)
    return [index for index in chunks if isinstance(index, int)] if isinstance(chunks, list) else []
