"""Feed damaged messages to the receiving ends of a session: each is a message or refused, nothing else.

``python scripts/fuzz_wire.py --frames 1000000 --seed 0``. Every frame goes the way of the runtime:
``MessageReader`` (header, overflow, body, tensors), then the ``Session`` of the leader or rank 0. To hold:

- the outcome is a message or a ``RemoteProtocolError``: no other exception, no crash, no slow frame;
- what a receiver would allocate for a frame is within the limits of the plan;
- an accepted message is one that our own encoder would send, and the next one in order (rule R2);
- after the first error the session is in ERROR and accepts nothing but a terminal notice (rule R9);
- the memory of the process stays flat.

Ends with a traceback if one of them did not. The table says how often each refusal was met: one that is
missing is a mutation that has died.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import psutil
import torch
from wire_mutations import DEPTH, LIMITS, Step, Transfer, conversation, damaged

from ppwork.errors import LocalProtocolError, RemoteProtocolError
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.header import NO_SCHEMA, Limits
from ppwork.protocol.notices import notice_of
from ppwork.protocol.session import Session
from ppwork.protocol.states import State
from ppwork.protocol.topology import LEADER_RANK, Role
from ppwork.protocol.wire import ALIGN, Decoder, Encoder
from ppwork.runtime.messages import Incoming, MessageReader, RecvBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.protocol.header import Header
    from ppwork.protocol.wire import Layout

FRAME_S = 1.0
"""CPU time that one frame may take."""
FLAT_MB = 16.0
"""Growth of the process allowed after the first tenth: of a million frames, 16 bytes of each."""
TIMES = 50
"""A legal conversation is damaged so many times before a new one is made."""


class Broken(AssertionError):
    """A property did not hold: what this program looks for."""


class End:
    """A receiving end as the runtime has it, without a link: the leader's or rank 0's."""

    def __init__(self, limits: Limits, *, leader: bool) -> None:
        self.limits, self.leader = limits, leader
        rank, role = (LEADER_RANK, Role.LEADER) if leader else (0, Role.STAGE0)
        self.session = Session(rank, role, DEPTH)
        self.session.joined()
        self._decoder = Decoder(limits)
        self._repeating = NO_SCHEMA
        self._expects = Ids(0, -1, 0)
        """Ids of the next envelope, if it is no INFER: our own count, apart from the session's."""
        self._asked: deque[PPEnvelope] = deque()
        """Rank 0's own INFERs that have no result yet."""

    def other_side(self, step: Step) -> None:
        """Do what this rank does by itself at this step: send, or finish a chunk."""
        if isinstance(step.message, PPEnvelope):
            self.session.may_send(step.message)
            self.session.sent(step.message)
            if step.message.action is PPAction.INFER:
                self._asked.append(step.message)
        elif self.session.in_flight:
            self.session.finished(self.session.in_flight[0].plan.expected_calls)

    def receive(self, transfer: Transfer) -> Incoming:
        """Read a message as ``links.P2PReceiver`` does."""
        if len(transfer.frame) != self.limits.frame_bytes:
            self._decoder.header(transfer.frame)
        expected = self._decoder.layout(self._repeating)
        reader = MessageReader(self._decoder, expected)
        _fill(reader.head[0], transfer.frame)
        header = reader.begin()
        self._sizes(header)
        for part in reader.head[1:]:
            _fill(part, transfer.overflow)
        layout = reader.open()
        self._places(header, layout)
        raw = torch.empty(layout.recv_bytes, dtype=torch.uint8)
        incoming = reader.message(RecvBuffer(layout, raw) if layout.recv_bytes else None)
        self._repeating = NO_SCHEMA if header.new_schema else header.schema_id or self._repeating
        return incoming

    def judge(self, incoming: Incoming, expected: PPEnvelope | PPResult) -> None:
        """Ask the session, as ``LeaderPlane`` and ``Stage0Plane`` do."""
        message = incoming.message
        if self.leader != isinstance(message, PPEnvelope):
            raise RemoteProtocolError(f"A {type(message).__name__} came on the wrong link.")
        if isinstance(message, PPEnvelope):
            self.session.received(message)
            self._in_order(message)
        if message.action is PPAction.ERROR and message.reason is not None:
            raise notice_of(message.reason, self.session.rank, self.session.role)
        if isinstance(message, PPResult):
            if expected.action is PPAction.SHUTDOWN:
                self.session.acknowledged(message)
                if (message.action, message.ids) != (expected.action, expected.ids):
                    raise Broken(f"accepted as acknowledgement: {message.action} {message.ids}")
            else:
                self.session.result(message)
                self._answers_the_oldest(message)

    def _in_order(self, envelope: PPEnvelope) -> None:
        if envelope.action is PPAction.ERROR:
            return
        ids, last, infer = envelope.ids, self._expects, envelope.action is PPAction.INFER
        cut = envelope.plan is not None and envelope.plan.reset_cache
        due = (last.call_id, last.chunk_index + infer)
        risen = ids.cache_epoch - last.cache_epoch
        if (ids.call_id, ids.chunk_index) != due or (risen > 0) != cut or risen < 0:
            raise Broken(f"accepted out of order: {ids} after {last}, {envelope.plan}")
        if len(self.session.in_flight) > DEPTH:
            raise Broken(f"{len(self.session.in_flight)} chunks in flight")
        self._expects = Ids(ids.call_id + 1, ids.chunk_index, ids.cache_epoch)

    def _answers_the_oldest(self, result: PPResult) -> None:
        asked = self._asked.popleft()
        fits = result.action is PPAction.INFER and result.ids == asked.ids and asked.plan is not None
        if not fits or result.observed_calls != asked.plan.expected_calls:
            raise Broken(f"accepted a wrong result: {result.action} {result.ids} for {asked.ids}")

    def _sizes(self, header: Header) -> None:
        allowed = self.limits
        within = (
            header.overflow_bytes(allowed) <= header.body_bytes <= allowed.max_body_bytes
            and header.payload_bytes <= allowed.max_message_bytes
            and header.num_tensors <= allowed.max_tensors
        )
        if not within:
            raise Broken(f"sizes past the limits: {header}")

    def _places(self, header: Header, layout: Layout) -> None:
        most = self.limits.max_message_bytes + ALIGN * self.limits.max_tensors
        together = sum(spec.nbytes for spec in layout.specs)
        if not together == layout.payload_bytes == header.payload_bytes or layout.recv_bytes > most:
            raise Broken(f"bytes past what was announced: {header} {layout}")
        for spec, offset in zip(layout.specs, layout.inline, strict=True):
            if offset is not None and offset + spec.nbytes > self.limits.frame_bytes:
                raise Broken(f"a tensor past the end of the frame: {layout}")


def _fill(part: torch.Tensor, raw: bytes) -> None:
    """Let bytes arrive as gloo does: a shorter message leaves the rest of the buffer as it was."""
    size = min(len(raw), part.numel())
    memoryview(part.numpy())[:size] = raw[:size]


@dataclass
class Findings:
    """What a run saw; all counts are of damaged frames."""

    frames: int = 0
    conversations: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    """By the refusal's own words, without numbers and names."""
    by_damage: dict[str, Counter[str]] = field(default_factory=dict)
    """For each damage: the kinds of error, and ``legal``."""
    slowest_s: float = 0.0
    """CPU time of the slowest frame, in seconds."""

    def note(self, damage: str, refusal: RemoteProtocolError | None, took_s: float) -> None:
        """Count one damaged frame."""
        self.frames += 1
        self.slowest_s = max(self.slowest_s, took_s)
        outcome = "legal" if refusal is None else type(refusal).__name__
        self.by_damage.setdefault(damage, Counter())[outcome] += 1
        if refusal is not None:
            self.refusals[words(refusal.what)] += 1


def words(what: str) -> str:
    """Return a refusal without what changes from one to the next."""
    return re.sub(r"b?'.*'|b?\".*\"|`[^`]*`|0x\w+|-?\d+|\([^)]*\)", "#", what)[:90]


def play(steps: list[Step], limits: Limits, findings: Findings, *, leader: bool) -> None:
    """Feed one conversation to one end.

    Raises:
        Broken: A property did not hold.
    """
    end, damaged_before, failed = End(limits, leader=leader), False, False
    for step in steps:
        if step.down != leader:
            if not _own_act(end, step, failed=failed):
                return  # what it would have to wait for was lost
            continue
        damaged_before = damaged_before or bool(step.damage)
        start, refusal = time.thread_time(), None
        try:
            _take(end, step, failed=failed)
        except RemoteProtocolError as error:
            if not damaged_before and step.message.action is not PPAction.ERROR:
                raise Broken(f"a legal conversation was refused: {error}") from error
            refusal, failed = error, True
            end.session.failed(error, end.session.last_ids)
        took_s = time.thread_time() - start
        if failed and end.session.state not in (State.ERROR, State.CLOSED):
            raise Broken(f"state {end.session.state} after {refusal}")
        if took_s > FRAME_S:
            raise Broken(f"a frame took {took_s:.2f} s: {step}")
        if step.damage:
            findings.note(step.damage, refusal, took_s)


def _take(end: End, step: Step, *, failed: bool) -> None:
    incoming = end.receive(step.transfer)
    if step.damage:
        _may_leave(incoming, end.limits)
    end.judge(incoming, step.message)
    if failed:  # a terminal notice has raised
        raise Broken(f"a failed session accepted {incoming.header}")


def _own_act(end: End, step: Step, *, failed: bool) -> bool:
    if failed and not isinstance(step.message, PPEnvelope):
        return True
    try:
        end.other_side(step)
    except LocalProtocolError:
        return failed
    if failed and step.message.action is not PPAction.ERROR:
        raise Broken(f"a failed session would send {step.message}")
    return True


def _may_leave(incoming: Incoming, limits: Limits) -> None:
    """What was accepted is what our own encoder would send."""
    try:
        Encoder(limits).encode(incoming.message, incoming.layout.specs)
    except LocalProtocolError as error:
        raise Broken(f"accepted what may not be sent: {error}: {incoming.header}") from error


def fuzz(frames: int, seed: int, heard: Callable[[Findings], None] = lambda _: None) -> Findings:
    """Damage conversations and feed them until so many damaged frames have been judged.

    Args:
        frames: Damaged frames.
        seed: Equal seeds give equal runs.
        heard: Called after each conversation.

    Raises:
        Broken: A property did not hold.
        Exception: Whatever else a receiver let through: a finding, too.
    """
    rng, findings = random.Random(seed), Findings()  # noqa: S311  to be repeated, not to be secret
    while findings.frames < frames:
        limits = rng.choice(LIMITS)
        legal = conversation(rng, limits)
        for leader in (True, False):
            play(legal, limits, findings, leader=leader)
            for _ in range(TIMES):
                play(damaged(rng, legal, down=leader), limits, findings, leader=leader)
                findings.conversations += 1
                heard(findings)
    return findings


class Memory:
    """The size of this process over a run, in MB."""

    def __init__(self, frames: int) -> None:
        self._process, self._warm_at, self._look_at = psutil.Process(), frames // 10, 0
        self.warm = self.most = 0.0

    def look(self, findings: Findings) -> None:
        """Read the size now and then."""
        if findings.frames < self._look_at:
            return
        self._look_at = findings.frames + 1000
        self.most = max(self.most, now := self._process.memory_info().rss / (1 << 20))
        if findings.frames <= self._warm_at:
            self.warm = self.most
        elif now - self.warm > FLAT_MB:
            raise Broken(f"the process grew from {self.warm:.0f} to {now:.0f} MB")


def table(findings: Findings, took_s: float, memory: Memory) -> str:
    """Return what was found as text."""
    lines = [
        f"{findings.frames} damaged frames in {findings.conversations} conversations, {took_s:.0f} s, "
        f"{findings.frames / took_s:.0f} frames a second; slowest frame {1e3 * findings.slowest_s:.1f} ms of "
        f"CPU; process {memory.warm:.0f} MB after a tenth, {memory.most:.0f} MB at most",
        "",
        f"{'damage':<16}{'legal':>9}{'refused':>9}{'notice':>9}",
    ]
    for damage, outcomes in sorted(findings.by_damage.items()):
        counts = [outcomes[kind] for kind in ("legal", "RemoteProtocolError", "TerminalNotice")]
        lines.append(f"{damage:<16}" + "".join(f"{count:>9}" for count in counts))
    lines += ["", "refusals", *(f"{count:>9}  {what}" for what, count in findings.refusals.most_common())]
    return "\n".join(lines)


def main() -> int:
    """Run as asked; print what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    memory, start = Memory(asked.frames), time.monotonic()
    findings = fuzz(asked.frames, asked.seed, memory.look)
    took_s = time.monotonic() - start
    if asked.json:
        found = msgspec.to_builtins(findings) | {
            "seed": asked.seed,
            "took_s": took_s,
            "rss_mb": [memory.warm, memory.most],
        }
        print(json.dumps(found))
    else:
        print(table(findings, took_s, memory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
