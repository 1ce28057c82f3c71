"""Injectors of wrong messages from rank 0, and of a bad start or leader (F01 to F04, F06, F07, F10, F16)."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import torch

from ppwork.faults.catalogue import AT_CHUNK
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope
from ppwork.protocol.header import HEADER, HEADER_BYTES
from ppwork.runtime.messages import Outgoing
from ppwork.runtime.plane import PPControlPlane
from ppwork.runtime.stage0 import Stage0Plane
from ppwork.stage import Chunk
from ppwork.worker.injectors.injector import Around, CaseInjector, put


class BadMetadata(CaseInjector):
    """F01."""

    def plane(self, plane: PPControlPlane) -> None:
        """Let a chunk leave with metadata that msgpack cannot carry."""
        assert isinstance(plane, Stage0Plane), "the catalogue puts it on rank 0"  # noqa: S101
        send = plane.send

        def sent(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as ``send``
            if self.due(plane.session.last_ids.chunk_index + 1):
                self.injected()
                kwargs["metadata"] = {"camera": object()}
            return send(*args, **kwargs)

        put(plane, "send", sent)


class BadTensor(CaseInjector):
    """F02."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Let ``encode`` return a tensor that cannot travel, in place of its first tensor."""

        def encode(chunk_index: int) -> Any:  # noqa: ANN401  the stage's
            encoded = stage.encode(chunk_index)
            if not self.due(chunk_index) or not isinstance(encoded, dict | Chunk):
                return encoded
            self.injected()
            tensors = encoded.tensors if isinstance(encoded, Chunk) else encoded
            bad = {**tensors, next(iter(tensors)): self._bad()}
            return replace(encoded, tensors=bad) if isinstance(encoded, Chunk) else bad

        return Around(stage, encode=encode)

    def _bad(self) -> torch.Tensor:
        if self.case == "sparse":
            return torch.eye(4).to_sparse()
        if self.case == "meta":
            return torch.empty(4, device="meta")
        if self.case == "quantised":
            return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
        if self.case == "no-room":
            free, _ = torch.cuda.mem_get_info()
            return torch.empty(free * 2 // 3, dtype=torch.uint8, device="cuda")
        return torch.ones(4, 3).t()


class BadChunkPlan(CaseInjector):
    """F03."""

    def plane(self, plane: PPControlPlane) -> None:
        """Let a chunk's plan expect other calls than its steps make; in case ``receiver`` unchecked here."""
        preflight = plane.preflight

        def encoded(envelope: PPEnvelope) -> Outgoing:
            if envelope.action is PPAction.INFER and self.due(envelope.ids.chunk_index):
                self.injected(envelope.ids)
                if self.case == "receiver":
                    put(preflight.encoder, "check", lambda *_, **__: None)
                steps = envelope.plan.steps if envelope.plan else 1
                envelope = msgspec.structs.replace(envelope, plan=ChunkPlan(steps, steps + 4))
            return preflight(envelope)

        put(plane, "preflight", encoded)


class DifferentStart(CaseInjector):
    """F04, and F05 if the flag is an option of the plan."""

    def before_join(self, plan: Plan) -> Plan:
        """Return another plan than the other ranks hold, or change this rank's environment."""
        self.injected()
        if self.case == "environment":
            os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
            return plan
        if self.case == "plan":
            return plan.replace(steps=plan.steps + 1)
        return plan.replace(options={**plan.options, "one_more_sum": True})


class BadFrame(CaseInjector):
    """F06 and F16: the frame that leaves rank 0 differs from the one that its own checks have seen."""

    def plane(self, plane: PPControlPlane) -> None:
        """Change the frame of a chunk as it is posted, after all checks that could refuse it."""
        down = plane.links["down_pg"]
        post = down.post

        def posted(outgoing: Outgoing) -> list[Any]:
            ids = outgoing.message.ids
            if outgoing.message.action is PPAction.INFER and self.due(ids.chunk_index):
                frame = bytes(outgoing.head[0].numpy())
                self.injected(ids)
                spoilt = bytearray(self._spoilt(frame, ids))
                outgoing.head[0] = torch.frombuffer(spoilt, dtype=torch.uint8)
            works: list[Any] = post(outgoing)
            return works

        put(down, "post", posted)

    def _spoilt(self, frame: bytes, ids: Ids) -> bytes:
        if self.case == "truncated":
            return frame[:40]
        if self.case == "checksum":
            return frame[:20] + bytes([frame[20] ^ 1]) + frame[21:]
        field, value = {
            "version": (1, 99),
            "action": (3, 9),
            "oversized": (12, 1 << 40),
            "repeated": (9, ids.call_id - 1),
            "skipped": (9, ids.call_id + 1),
            "disordered": (9, ids.call_id - 2),
        }[self.case]
        return with_field(frame, field, value)


def with_field(frame: bytes, field: int, value: int) -> bytes:
    """Return a frame with one field of its header changed, and the header's checksum made right again."""
    fields = list(HEADER.unpack(frame[:HEADER_BYTES]))
    fields[field] = value
    packed = HEADER.pack(*fields)[:-4]
    return packed + struct.pack("<I", zlib.crc32(packed)) + frame[HEADER_BYTES:]


class LeaderRaises(CaseInjector):
    """F07."""

    def hook(self, point: str, ids: Ids) -> None:
        """Raise between receive and broadcast."""
        if point == "mesh.broadcast" and self.due(ids.chunk_index):
            self.injected(ids)
            raise RuntimeError("the leader's own trouble, between receive and broadcast")


class NoContextFrames(CaseInjector):
    """F10."""

    def stage(self, stage: Any) -> Any:  # noqa: ANN401  as ``Injector``
        """Let ``context_frames`` return nothing."""

        def context_frames(chunk_index: int) -> Any:  # noqa: ANN401  the stage's
            if not self.due(chunk_index):
                return stage.context_frames(chunk_index)
            self.injected()
            return {}

        return Around(stage, context_frames=context_frames)


class InThePlan(CaseInjector):
    """F09 and F17: the plan causes it; rank 0 only records when."""

    def plane(self, plane: PPControlPlane) -> None:
        """Keep the plane, which knows how much is in flight."""
        self._plane = plane

    def hook(self, point: str, ids: Ids) -> None:
        """Record that the chunk with which the fault begins leaves, and how many are in flight then."""
        begins = (*self._plan.flushes, *self._plan.hard_cuts) or (AT_CHUNK,)
        if point == "envelope.send" and ids.chunk_index == begins[0] and not self._done:
            self.injected(ids, in_flight=len(self._plane.session.in_flight))
