"""``three_stages.py`` changed: ``changed_three_stages.py RUN_DIR STAGE``; or ``slow`` in place of a stage.

The stage breaks at its fourth chunk, on one rank. When slow, each of the three takes 50 ms for a chunk.
"""

import sys
import time
from functools import wraps
from pathlib import Path

from checkout import EXAMPLES

sys.path.insert(0, str(EXAMPLES))

import three_stages

STEPS = {"Encoder": "encode", "Generator": "step", "Decoder": "step"}


def changed(name, before):
    stage, step = getattr(three_stages, name), STEPS[name]
    method = getattr(stage, step)

    @wraps(method)
    def call(self, *arguments, **named):
        before(self)
        return method(self, *arguments, **named)

    setattr(stage, step, call)


def breaking(name):
    calls = 0

    def breaks(self):
        nonlocal calls
        calls += 1
        if calls == 4 and not getattr(self, "onward", None):  # of the generator, the follower
            raise ValueError(f"{name} broke")

    return breaks


if __name__ == "__main__":
    if sys.argv[2] == "slow":
        for name in STEPS:
            changed(name, lambda self: time.sleep(0.05))
    else:
        changed(sys.argv[2], breaking(sys.argv[2]))
    three_stages.main(Path(sys.argv[1]))
