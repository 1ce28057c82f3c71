"""Run programs of ``broken/mishaps.py`` and ``broken/posted`` under torchrun, keep their consoles.

``capture.py FOLDER NAME ...``; the console is torchrun's own with ``--redirects 3 --tee 3``; only paths are
shortened. A name that ends in ``-detail`` is run with ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from captured_logs import CAPTURED
from checkout import SUPPORT

MORE = {"restarts": ["--max-restarts", "1"]}
LIMIT_S = 40
_PATHS = (
    (re.compile(r"[^\s\"]*/site-packages/"), "/site-packages/"),
    (re.compile(r"/\S*/lib/python3\.\d+/"), "/usr/lib/python3/"),
    (re.compile(r"/\S*/tests/support/broken/(?:posted/)?"), "/srv/me/"),
    (re.compile(r"/tmp/\w+/"), "/scratch/"),
    (re.compile(rf"{re.escape(sys.prefix)}/bin/"), "/usr/bin/"),
)


def capture(name: str, to: Path) -> str:
    """Run one program to its end and write what torchrun showed."""
    program = name.removesuffix("-detail")
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if name.endswith("-detail") else {}
    posted = SUPPORT / "broken/posted" / f"{program}.py"
    whole = [str(posted)] if posted.exists() else [str(SUPPORT / "broken/mishaps.py"), program]
    told = json.loads((CAPTURED / "posted/truth.json").read_text())
    nproc = told[program]["nproc"] if posted.exists() else 3
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(nproc),
            "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            *MORE.get(program, []), "--log-dir", folder, "--redirects", "3", "--tee", "3",
            *whole,
        ]  # fmt: skip
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **detail}
        agent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        end = threading.Timer(LIMIT_S, agent.terminate)
        end.start()
        text = agent.communicate()[0].decode(errors="replace")
        end.cancel()
    for pattern, short in _PATHS:
        text = pattern.sub(short, text)
    (to / f"{name}.txt").write_text(text)
    return f"{name}: code {agent.returncode}, {len(text)} characters"


if __name__ == "__main__":
    for each in sys.argv[2:]:
        sys.stdout.write(f"{capture(each, Path(sys.argv[1]))}\n")
