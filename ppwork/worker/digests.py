"""Digests of data that all mesh ranks must share: replicated weights, inputs and results of chunks (F11).

Replicas that drift apart raise nothing: the sums are wrong, and no rank can be named. With ``digests`` in the
plan, mesh ranks compare the digests of their data before anything is computed with it.

The digest is a CRC-32 over the raw bytes, with dtype and shape beside it. It is meant to find a rank that
went wrong, not one that cheats: it finds any change within 32 bits in a row for certain, misses one in four
thousand million of all others, and was 1.6 to 6.7 times as fast as BLAKE2b here. A tensor on a GPU is copied
to the host first, which waits for the GPU.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import weakref
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from ppwork.errors import LocalProtocolError, ParityError, listed, named_ranks
from ppwork.plan import Plan
from ppwork.protocol.envelope import Ids, PPEnvelope
from ppwork.protocol.parity import decode_facts, differing_keys, encode_facts, spelt_out
from ppwork.records.run import SAID, WROTE
from ppwork.records.spans import RESULTS_DIFFER, Recorder
from ppwork.runtime.groups import Groups
from ppwork.runtime.lent import PLAIN
from ppwork.runtime.membership import gather
from ppwork.runtime.tensors import checksum_of, digest_of, sample_of, specs_of
from ppwork.stage import Result
from ppwork.worker.collectives import exchange
from ppwork.worker.shared_calls import SharedCalls, in_words

SUM = struct.Struct("<I60s76s")
"""Digest of a tensor's name and bytes; the name, as far as there is room; its dtype and shape."""
WHOLE = struct.Struct("<II")
"""Number of tensors, and one digest over all: exchanged first, and alone if nothing differs."""
LOOKED_AT_BYTES = 1 << 20
"""Largest tensor that is compared without ``digests``: it takes half a millisecond."""
IN_SUMMARY = "Later chunks are in the summary; --digests compares all bytes of each tensor"

_MARK = re.compile(r"#[0-9a-f]{0,4}(?=; |$)")
_MARKED = re.compile(r"(.+) \w+\[[\d, ]*\]#[0-9a-f]{4}")
"""Of what ``sampled`` says of a tensor: its name, dtype and shape, and the mark of its content."""
_CUT = re.compile(r"~[0-9a-f]{8}$")
"""End of a text that ``ledger.packed`` has cut."""
log = logging.getLogger(__name__)


class Received:
    """A chunk's tensors as a mesh rank received them; a rank that alone writes into one has other values.

    Keeps none of them. torch counts the writes, except those to an inference tensor, and numpy's.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._before = [
            (name, weakref.ref(tensor), tensor._version)
            for name, tensor in tensors.items()
            if not tensor.is_inference()
        ]

    def note(self, recorder: Recorder, ids: Ids) -> None:
        """Record the names of those that were written into since."""
        seen = ((name, kept(), before) for name, kept, before in self._before)
        names = [
            repr(name) for name, tensor, before in seen if tensor is not None and tensor._version != before
        ]
        if names:
            recorder.instant(WROTE, ids=ids.where(), text=listed(names))


def note_metadata(metadata: Mapping[str, Any], recorder: Recorder, ids: Ids) -> None:
    """Record a digest of each value that this mesh rank gave with its result, to be compared at the end."""
    if metadata:
        sums = {str(key): zlib.crc32(_as_sent({"": value})) for key, value in metadata.items()}
        recorder.instant(SAID, ids=ids.where(), figures=sums)


def described(tensor: torch.Tensor) -> str:
    """Return dtype, shape and digest of a tensor: ``float32[4, 8] 0c10f2ab``."""
    return f"{in_words(tensor.dtype, tensor.shape)} {digest_of(tensor):08x}"


def compare_loaded(groups: Groups, plan: Plan, stage: Any, asked: Iterable[str] = ()) -> set[str]:  # noqa: ANN401  the user's class
    """Wait until all ranks have loaded their stages, and compare the stages of the mesh.

    This compares the variables of ``parity_environment`` and, with ``digests`` in the plan, the tensors of
    ``replicated()``; both are optional for a generator (``ppwork.stage``).

    Args:
        groups: This rank's.
        plan: The same on every rank.
        stage: This rank's.
        asked: The options that this rank's stage has read.

    Returns:
        The options that the stages of all ranks have read.

    Raises:
        ParityError: They differ; names each variable or tensor, its values and their ranks (every rank).
        PeerTimeoutError: A rank did not come in time (every rank that came).

    Blocks:
        Until every rank has come; at most the store's timeout and a second.
    """
    facts: dict[str, Any] = {}
    if groups.rank in groups.topology.mesh_ranks:
        replicated = getattr(stage, "replicated", None) if plan.digests else None
        weights = {name: described(tensor) for name, tensor in replicated().items()} if replicated else {}
        facts = loaded_facts(os.environ, getattr(stage, "parity_environment", ()), weights)
    rank, world_size = groups.rank, groups.topology.world_size
    # A collective that a constructor makes alone has the same bound, and begins later on a busy machine.
    facts["asked"] = sorted(asked)
    every = gather(groups.store, "loaded", encode_facts(facts), rank, world_size, more_s=1.0)
    loaded = [decode_facts(each) for each in every]
    asked_by_all = {name for each in loaded for name in each.pop("asked")}
    check_loaded({rank: loaded[rank] for rank in groups.topology.mesh_ranks})
    return asked_by_all


def loaded_facts(
    environment: Mapping[str, str], names: Iterable[str], weights: Mapping[str, str]
) -> dict[str, Any]:
    """Collect the facts that a mesh rank knows only after it has loaded its stage.

    Args:
        environment: This process's environment.
        names: Variables of the stage's ``parity_environment``.
        weights: Digest by name of each tensor that must be the same on all mesh ranks.
    """
    return {
        **{f"env.{name}": environment.get(name) for name in names},
        **{f"weight.{name}": digest for name, digest in weights.items()},
    }


def check_loaded(facts_by_rank: Mapping[int, Mapping[str, Any]]) -> None:
    """Compare the ``loaded_facts`` of the mesh ranks; the keys are global ranks.

    Raises:
        ParityError: As ``parity.check_parity``.
    """
    named = differing_keys(facts_by_rank)
    if named:
        raise ParityError(
            f"The stages of the mesh were loaded differently: {spelt_out(named)}.",
            where={"group": "tp_pg"},
            check_first="do these ranks read the same files, in one environment? nothing has been computed",
        )


def compare_inputs(groups: Groups, envelope: PPEnvelope) -> None:
    """Compare a chunk's tensors over the mesh; see ``_compare``."""
    check = "does anything write to the envelope's tensors on that rank? else its memory or network"
    _compare(groups, envelope.ids, "input", envelope.tensors, check)


def compare_results(groups: Groups, ids: Ids, result: Result) -> None:
    """Compare the results of a chunk over the mesh, metadata included; see ``_compare``."""
    check = "is a sum missing, or a random number another one on that rank? the leader's result is sent"
    specs_of(result.tensors, groups.device)  # refuses, by name, a tensor that has no bytes to sum
    said = torch.tensor(zlib.crc32(_as_sent(result.metadata)))  # its length would be told as a shape
    _compare(groups, ids, "result", {**result.tensors, "metadata": said}, check)


def _as_sent(metadata: Mapping[str, Any]) -> bytes:
    """Return metadata as the wire encodes it, where the order of a dict does not matter.

    One byte stands for metadata that cannot travel: the leader's send refuses it, and names the reason.
    """
    try:
        return msgspec.msgpack.encode(dict(metadata), order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b"\0"


def look_at_results(groups: Groups, ids: Ids, result: Result, recorder: Recorder) -> None:
    """Warn if mesh ranks return different tensors for a chunk, which fails the run at its end.

    The leader's result is sent, so an error on another rank would not show. A rank that returns no tensors is
    not compared. This runs on the CPU, in chunks that are compared anyway, and for tensors of at most
    ``LOOKED_AT_BYTES``; ``digests`` compares all.

    Collective, Blocks: As ``_differences``.
    """
    plain = {name: tensor for name, tensor in result.tensors.items() if type(tensor) is torch.Tensor}
    small = {name: tensor for name, tensor in plain.items() if tensor.nbytes <= LOOKED_AT_BYTES}
    if differences := _differences(groups, small, or_none=True):
        said = "; ".join(differences)
        recorder.instant(RESULTS_DIFFER, ids=ids.where(), text=said)
        log.warning("results of chunk %d: %s; the leader's are sent", ids.chunk_index, said)


def sampled(tensors: Mapping[str, Any]) -> tuple[int, str]:
    """Return one digest over all names and a sample of the CPU tensors' bytes, and the tensors' shapes.

    ``tally.NO_RESULT`` if there are no tensors. The shapes are as in ``CollectiveCall``, each with a mark of
    its tensor's own digest, by which ``tell_apart`` names the tensor.
    """
    digest, parts = 0, []
    for name, tensor in tensors.items():
        own = zlib.crc32(name.encode())
        is_dense = type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is torch.strided
        if is_dense and tensor.is_contiguous():
            own = checksum_of(sample_of(tensor), own)
        digest = zlib.crc32(own.to_bytes(4), digest)
        if isinstance(tensor, torch.Tensor):
            parts.append(f"{name!r} {in_words(tensor.dtype, tensor.shape)}#{own & 0xFFFF:04x}")
    return digest, "; ".join(parts)


def tell_apart(
    shared: SharedCalls, ids: Ids, odd: Mapping[int, str], recorder: Recorder, later: str = IN_SUMMARY
) -> None:
    """Warn that this rank and others returned different results for a chunk; the log names each rank once.

    Args:
        shared: The comparison that found the difference.
        ids: Ids of the chunk.
        odd: The other ranks, with the shapes of what they returned.
        recorder: Gets an instant for each such chunk.
        later: A sentence that says where to find later chunks.
    """
    mine, said, by_values = _unmarked(shared.shapes), [], defaultdict[str, list[int]](list)
    for rank, marked in odd.items():
        if (shapes := _unmarked(marked)) == mine:
            by_values[_differing_values(shared.shapes, marked)].append(rank)
        else:
            said.append(differing_shapes(dict(sorted({shared.rank: mine, rank: shapes}.items()))))
    for names, ranks in by_values.items():
        what = f"a sample of {names} that rank {shared.rank} returned" if names else ""
        what = what or f"a sample of what rank {shared.rank} returned"
        said.append(f"{what} is not what {named_ranks(ranks)} returned")
    recorder.instant(RESULTS_DIFFER, ids=ids.where(), text="; ".join(said))
    if not shared.told.issuperset(odd):
        shared.told.update(odd)
        text = "results of chunk %d differ: %s; the leader's are sent. %s"
        log.warning(text, ids.chunk_index, "; ".join(said), later)


def _unmarked(shapes: str) -> str:
    return _MARK.sub("", _CUT.sub("", shapes))


def _differing_values(mine: str, theirs: str) -> str:
    """Return the names of tensors whose marks differ; nothing if none do, as of a list that was cut."""
    pairs = zip(mine.split("; "), theirs.split("; "), strict=False)
    return listed(match[1] for one, other in pairs if one != other and (match := _MARKED.fullmatch(one)))


def differing_shapes(of_two: Mapping[int, str]) -> str:
    """Say which tensors of two ranks have other shapes, given all their shapes as in ``CollectiveCall``.

    >>> differing_shapes({1: "'x' float32[4]; 'y' int64[]", 2: "'x' float32[3]; 'y' int64[]"})
    "rank 1 returned 'x' float32[4], rank 2 returned 'x' float32[3]"
    """
    one, other = (shapes.split("; ") for shapes in of_two.values())
    only = [each for each in one if each not in other], [each for each in other if each not in one]
    if not any(only):
        only = one, other  # the same in another order
    parts = zip(of_two, only, strict=True)
    return ", ".join(f"rank {rank} returned {listed(each) or 'no such tensor'}" for rank, each in parts)


def _compare(groups: Groups, ids: Ids, what: str, tensors: Mapping[str, torch.Tensor], check: str) -> None:
    """Compare tensors over the mesh; no rank is known to hold the right ones.

    Raises:
        LocalProtocolError: They differ; names the tensors and the ranks (every mesh rank, same text).

    Collective, Blocks: As ``_differences``.
    """
    if differences := _differences(groups, tensors):
        error = LocalProtocolError(
            f"The {what} of a chunk differed on the mesh: {'; '.join(differences)}.",
            where={"rank": groups.rank, "role": str(groups.role), "group": "tp_pg", **ids.where()},
            check_first=check,
        )
        error.between = tuple(groups.topology.mesh_ranks)
        raise error


def _differences(groups: Groups, tensors: Mapping[str, torch.Tensor], *, or_none: bool = False) -> list[str]:
    """Say which mesh ranks hold different tensors; every mesh rank returns the same.

    ``or_none``: a rank may hold none.

    Collective:
        ``tp_pg``, all mesh ranks: an exchange of ``WHOLE``, and if that differs one of the tensors' digests.

    Blocks:
        Until every mesh rank has come; at most the group's timeout.
    """
    sums = b"".join(summed(name, tensor) for name, tensor in sorted(tensors.items()))
    whole = exchange(groups, WHOLE.pack(len(tensors), zlib.crc32(sums)))
    counts = [WHOLE.unpack(raw)[0] for raw in whole]
    those = [index for index, count in enumerate(counts) if count or not or_none]
    if len({whole[index] for index in those}) <= 1:
        return []
    if len({counts[index] for index in those}) > 1:
        return [f"the mesh ranks had {counts} tensors"]
    every = exchange(groups, sums.ljust(max(counts) * SUM.size, b"\0"))
    return differing_tensors(
        [every[index] for index in those], [groups.topology.mesh_ranks[i] for i in those]
    )


def summed(name: str, tensor: torch.Tensor) -> bytes:
    """Return ``SUM`` of a tensor."""
    digest = zlib.crc32(name.encode(), digest_of(tensor))
    return SUM.pack(digest, name.encode(), in_words(tensor.dtype, tensor.shape).encode())


def differing_tensors(sums: Sequence[bytes], ranks: Sequence[int]) -> list[str]:
    """Say which ranks hold different tensors, tensor by tensor; no rank is known to be right.

    Args:
        sums: For each mesh rank ``summed`` of each tensor, in the order of names; the leader's first.
        ranks: Global ranks, in the same order.
    """
    differences: list[str] = []
    for start in range(0, len(sums[0]), SUM.size):
        alike: defaultdict[bytes, list[int]] = defaultdict(list)
        for rank, mine in zip(ranks, sums, strict=True):
            alike[mine[start : start + SUM.size]].append(rank)
        if len(alike) < 2:
            continue
        sides = sorted(alike.items(), key=lambda side: len(side[1]))
        which = _differing([ranks for _, ranks in sides])
        texts = (
            [part.rstrip(b"\0").decode(errors="ignore") for part in SUM.unpack(raw)[1:]] for raw, _ in sides
        )
        names, shapes = zip(*texts, strict=True)
        if len(set(names)) > 1:  # the tensors behind this one stand against others, too
            return [*differences, f"{which} in a tensor's name: {listed(map(repr, names))}"]
        told = f"{names[0]!r}: {listed(shapes)}" if len(set(shapes)) > 1 else repr(names[0])
        differences.append(f"{which} in {told}")
    return differences


def _differing(sides: Sequence[Sequence[int]]) -> str:
    """Say that groups of ranks differ, the smallest first: ``rank 3 differs from ranks 1 and 2``."""
    if all(len(side) == 1 for side in sides):
        return f"{named_ranks([side[0] for side in sides])} differ"
    if len(sides) == 2:
        fewer, more = map(named_ranks, sides)
        return f"{fewer} differ{'s' if len(sides[0]) == 1 else ''} from {more}"
    return f"{', '.join(map(named_ranks, sides))} differ"
