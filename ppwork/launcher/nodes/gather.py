"""Files that come home from a host: chosen by known names, sent in pieces, and written within bounds.

The launcher does not trust a node's host with its file system: the host may send its own ranks' records, its
torchrun's output and, if it has rank 0, files of stage 0; under names without a folder, and of bounded size.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ppwork.launcher.nodes.wire import PIECE, NodeWireError, Piece, Stays
from ppwork.plan import Plan
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.failure import failure_file
from ppwork.records.files import temporary
from ppwork.records.flight import flight_file
from ppwork.records.hosts import HOSTS_FILE
from ppwork.records.ledger import ledger_file
from ppwork.records.pulse import pulse_file
from ppwork.records.run import (
    END_FILE,
    OUTPUTS_FILE,
    REFERENCE_LOG,
    RETURNED_FILE,
    SUMMARY_FILE,
    TORCHRUN_LOG,
    VERIFY_FILE,
    log_file,
)
from ppwork.records.spans import span_file
from ppwork.records.threads import threads_file

MOST_WHOLE = 64 << 20
"""Largest file that comes whole; a larger one stays on its host, and the summary says where."""
MOST_GROWN = 1 << 30
"""Most bytes of a rank's log or spans; the rest stays on its host as well."""
MOST_FILES = 256
"""Most files of stage 0, besides the host's records, whose names are known; others stay on the host."""
MOST_TOLD = 16
"""Most files and folders that are named as staying on a host; all are in one folder."""
PER_LOOK = 16
"""Pieces of one file that are sent before the next file has its turn."""
_OURS = {Plan.FILE_NAME, END_FILE, HOSTS_FILE, VERIFY_FILE, REFERENCE_LOG}
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,100}")
_OF_A_RANK = re.compile(r"rank\d+|^torchrun")


def torchrun_log(node: int) -> str:
    """Return the name of the file with the output of a node's torchrun."""
    return f"torchrun-{node}.log" if node else TORCHRUN_LOG


class Names:
    """Names of the files of one host.

    Args:
        node: Number of the host's node.
        ranks: The host's ranks.
    """

    def __init__(self, node: int, ranks: Sequence[int]) -> None:
        here = Path()
        self.growing = [torchrun_log(node)]
        self.growing += [file(here, rank).name for rank in ranks for file in (span_file, log_file)]
        records = (pulse_file, failure_file, flight_file, threads_file)
        self.records = [file(here, rank).name for rank in ranks for file in records]
        self.scratch = {ledger_file(here, rank).name for rank in ranks}
        """Files by which ranks of one host communicate while they run; they are removed with the folder."""
        self._has_stage0 = STAGE0_RANK in ranks

    def of_stage0(self, name: str) -> bool:
        """Say whether stage 0 may have left a file of this name: summary, outputs, files of its own code."""
        if not self._has_stage0 or name in _OURS:
            return False
        known = (SUMMARY_FILE, OUTPUTS_FILE, RETURNED_FILE)
        return name in known or bool(_PLAIN.fullmatch(name) and not _OF_A_RANK.search(name))


class Sender:
    """Finds what has not been sent yet in a node's folder.

    Args:
        folder: The folder of the node's ranks.
        names: Names of the node's files.
    """

    def __init__(self, folder: Path, names: Names) -> None:
        self._folder, self._names = folder, names
        self._offsets = dict.fromkeys(names.growing, 0)
        self._sent: dict[str, tuple[int, int] | bytes] = {}
        self.stays = False
        """Whether anything was not sent: too large, a folder, a link, or a name of another kind."""

    def look(self) -> Iterator[Piece]:
        """Yield the new bytes of files that grow, and the records that have changed."""
        for name in self._names.growing:
            with contextlib.suppress(OSError), (self._folder / name).open("rb") as file:
                file.seek(self._offsets[name])
                for _ in range(PER_LOOK):
                    if not (data := file.read(min(PIECE, MOST_GROWN - self._offsets[name]))):
                        break
                    yield Piece(name, self._offsets[name], data)
                    self._offsets[name] += len(data)
        for name in self._names.records:
            with contextlib.suppress(OSError):
                # A pulse is mapped into memory: its modification time says nothing.
                data = (self._folder / name).read_bytes() if name.startswith("pulse") else b""
                if self._sent.get(name) != (seen := data or self._stamp(name)):
                    self._sent[name] = seen
                    yield from self._whole(name)

    def last(self) -> Iterator[Piece | Stays]:
        """Yield all that is left when no rank runs; stage 0's files smallest first."""
        while pieces := list(self.look()):
            yield from pieces
        known = {*self._offsets, *self._names.records, *self._names.scratch, *_OURS}
        left, told = MOST_FILES, 0
        for path in sorted(self._folder.iterdir(), key=lambda path: path.lstat().st_size):
            size, is_plain = path.lstat().st_size, path.is_file() and not path.is_symlink()
            if path.name in known and size <= self._offsets.get(path.name, MOST_GROWN):
                continue
            if is_plain and self._names.of_stage0(path.name) and size <= MOST_WHOLE and left > 0:
                left -= 1
                yield from self._whole(path.name)
                continue
            self.stays = True
            if told < MOST_TOLD:
                told += 1
                yield Stays(os.fsencode(path).decode(errors="replace"), size)

    def _stamp(self, name: str) -> tuple[int, int]:
        state = (self._folder / name).stat()
        return state.st_mtime_ns, state.st_size

    def _whole(self, name: str) -> Iterator[Piece]:
        data = (self._folder / name).read_bytes()[:MOST_WHOLE]
        for at in range(0, max(len(data), 1), PIECE):
            yield Piece(name, at, data[at : at + PIECE], last=at + PIECE >= len(data))


class Home:
    """Writes the files of one node into the run's folder.

    Args:
        run_dir: The run's folder here.
        names: Names of the node's files.
    """

    def __init__(self, run_dir: Path, names: Names) -> None:
        self._run_dir, self._names = run_dir, names
        self._half: dict[str, Path] = {}
        self._of_stage0: set[str] = set()

    def write(self, piece: Piece) -> None:
        """Write one piece at its place.

        Raises:
            NodeWireError: This node may not send the file, or the piece does not continue it.
            OSError: The disk is full, or the folder is gone.
        """
        name = piece.name
        grows = piece.last is None
        known = name in self._names.growing if grows else name in self._names.records
        if not known and not grows and self._names.of_stage0(name):
            self._of_stage0.add(name)
            known = len(self._of_stage0) <= MOST_FILES
        if not known:
            raise NodeWireError(f"A host sent a file {name!r}, which is none of its own.")
        if piece.at + len(piece.data) > (MOST_GROWN if grows else MOST_WHOLE):
            raise NodeWireError(f"A host sent more of {name} than is allowed.")
        path = self._run_dir / name
        if not grows:
            if piece.at == 0:
                self._drop(name)
                self._half[name] = temporary(path)
            if name not in self._half:
                raise NodeWireError(f"A host sent the end of {name} without its begin.")
            path = self._half[name]
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644), "wb") as file:
            if file.seek(0, os.SEEK_END) != piece.at:
                raise NodeWireError(f"A host sent {name} from byte {piece.at}, which does not continue it.")
            file.write(piece.data)
        if piece.last:
            self._half.pop(name).replace(self._run_dir / name)

    def close(self) -> None:
        """Remove files that have not come whole."""
        for name in list(self._half):
            self._drop(name)

    def _drop(self, name: str) -> None:
        if (half := self._half.pop(name, None)) is not None:
            half.unlink(missing_ok=True)
