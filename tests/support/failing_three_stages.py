"""``three_stages.py RUN_DIR STAGE``, and that stage breaks at its fourth chunk, on one rank."""

import sys
from functools import wraps
from pathlib import Path

import three_stages


def breaking(method, name):
    calls = 0

    @wraps(method)
    def breaks(self, *arguments, **named):
        nonlocal calls
        calls += 1
        if calls == 4 and not getattr(self, "onward", None):  # of the generator, the follower
            raise ValueError(f"{name} broke")
        return method(self, *arguments, **named)

    return breaks


if __name__ == "__main__":
    stage = getattr(three_stages, sys.argv[2])
    step = "encode" if sys.argv[2] == "Encoder" else "step"
    setattr(stage, step, breaking(getattr(stage, step), sys.argv[2]))
    three_stages.main(Path(sys.argv[1]))
