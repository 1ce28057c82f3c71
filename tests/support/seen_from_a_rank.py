"""A rank of a program: says what it sees of itself and what others see of it, then ends as it is told."""

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import psutil

RANK, WORLD = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
IS_LAST = int(RANK) == WORLD - 1
myself = psutil.Process()
sys.stdout.write(
    json.dumps(
        {
            "arguments": sys.argv,
            "started as": sys.orig_argv,
            "shown as": myself.cmdline(),
            "variables": dict(os.environ),
            "shown variables": myself.environ(),
            "folder": str(Path.cwd()),
            "path": sys.path,
            "module": [__name__, __file__, sys.modules["__main__"].__file__],
            "input is a pipe": stat.S_ISFIFO(os.fstat(0).st_mode),
            "descriptors": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())[:3],
            "session": os.getsid(0) == os.getpid() == os.getpgid(0),
            "parent": myself.parent().cmdline()[:3],
            "signals": {
                name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGTERM", "SIGIO")
            },
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "threads": myself.num_threads(),
        }
    )
    + "\n"
)
# Who ends first has the other one ended: each waits until both have said what they see.
folder = Path(sys.argv[2])
(folder / f"said-{os.getppid()}-{RANK}").touch()
while not all((folder / f"said-{os.getppid()}-{r}").exists() for r in range(WORLD)):
    time.sleep(0.01)
match sys.argv[1]:
    case "raise" if IS_LAST:
        raise ValueError("boom")
    case "exit 3" if IS_LAST:
        sys.stderr.write("leaving\n")
        sys.exit(3)
    case "killed" if IS_LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    case "stopped" if IS_LAST:
        os.kill(os.getpid(), signal.SIGSTOP)
    case "well":
        sys.exit()
time.sleep(60)
