"""``PPControlPlane``: the whole runtime of one rank, as a prototype of yours would use it.

Stage 0 sends and receives results; the leader receives and sends results; a follower receives. Behind each
call stand the session's rules, preflight, the lanes and the commitment points. Whatever goes wrong goes
through ``fail``, which tells the peers before this rank leaves.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ppwork.groups import join
from ppwork.mesh_end import MeshEnd
from ppwork.stage0_end import Stage0End
from ppwork.timeline import Recorder

if TYPE_CHECKING:
    from ppwork.plan import Plan
    from ppwork.plane import Hook


class PPControlPlane(Stage0End, MeshEnd):
    """One rank's end of the pipeline.

    Args:
        plan: What the ranks agreed on.
        groups: From ``groups.join``; the plane closes them at the end of its ``with`` block.
        recorder: Gets a span for each step and an instant at each commitment point.
        hook: Called just before each commitment point.
    """

    @classmethod
    def join(
        cls, plan: Plan, *, recorder: Recorder | None = None, hook: Hook | None = None
    ) -> PPControlPlane:
        """Bring up this process as the rank that torchrun's environment says it is; see ``groups.join``.

        Use it as a context manager: the end of the block closes the groups, an exception tells the peers.

        Collective:
            All ranks, once, before anything else of ``torch.distributed``.
        """
        rank, local_rank, world_size = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        groups = join(plan, rank=rank, local_rank=local_rank, world_size=world_size)
        return cls(plan, groups, recorder or Recorder(None), hook)

    def __enter__(self) -> PPControlPlane:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """After SHUTDOWN: leave in order (rule R10). After an exception: tell the peers, let it pass on."""
        if error is not None:
            # The groups stay as they are: destroying them would wait for peers that may be gone.
            self.fail(error)
        else:
            self._leave()
