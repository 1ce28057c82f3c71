"""A JupyterLab of its own, on loopback, in a folder of its own; and a notebook in it, run in a browser."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Page

UP_S, STOP_S = 60.0, 20.0
NO_NEWS = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
DRAW_ALL = {"windowingMode": "none"}
"""Cells outside the window are drawn, too: they are looked at, and pictures are taken of them."""
RUN_ALL = """() => {
  const app = window.jupyterapp, panel = app.shell.currentWidget;
  window.ended = false;
  panel.context.ready
    .then(() => panel.sessionContext.ready)
    .then(() => app.commands.execute('notebook:run-all-cells'))
    .then(() => { window.ended = true; });
}"""
WATCH = """() => {
  window.views = [];
  setInterval(() => {
    for (const box of document.querySelectorAll('.ppwork-live'))
      if (box.innerText !== window.views.at(-1)) window.views.push(box.innerText);
  }, 100);
}"""
OUTPUTS = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .filter(cell => cell.model.type === 'code').map(cell => cell.model.outputs.toJSON())"""


@dataclass(frozen=True)
class Lab:
    """A server that answers."""

    url: str
    token: str
    root: Path


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Lab]:
    """Start JupyterLab with its root in ``folder``/root; it and all its kernels end with the block."""
    root, config, settings = folder / "root", folder / "config", folder / "settings"
    root.mkdir()
    write(config / "labconfig" / "page_config.json", NO_NEWS)
    write(settings / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings", DRAW_ALL)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PPWORK_NONINTERACTIVE"},
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "XDG_RUNTIME_DIR": str(folder),
    }
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16), root)
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={lab.token}",
        f"--ServerApp.root_dir={root}", "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly", "--ServerApp.terminals_enabled=False",
    ]  # fmt: skip
    with (
        (folder / "lab.log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        ) as server,
    ):
        try:
            _wait(lab, server)
            yield lab
        finally:
            _stop(server)


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _wait(lab: Lab, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + UP_S
    while not _answers(lab):
        assert server.poll() is None, "JupyterLab ended; see lab.log"
        assert time.monotonic() < end, "JupyterLab does not answer; see lab.log"
        time.sleep(0.1)  # the interval of asking


def _answers(lab: Lab) -> bool:
    connection = HTTPConnection(lab.url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", "/api/status", headers={"Authorization": f"token {lab.token}"})
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Let the server end its kernels; whatever of its family is left then is killed by its id."""
    family = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
    for process in psutil.wait_procs(family, timeout=5)[1]:
        process.kill()


def open_notebook(page: Page, lab: Lab, name: str) -> None:
    """Open a notebook of the lab's root and wait until it is drawn."""
    page.goto(f"{lab.url}/lab/tree/{name}?token={lab.token}&reset")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
    page.wait_for_function("() => window.jupyterapp && window.jupyterapp.shell.currentWidget?.context")


def run_all(page: Page) -> None:
    """Begin to run all cells, and to write down what live views say; ``ended`` becomes true at the end."""
    page.evaluate(WATCH)
    page.evaluate(RUN_ALL)


def wait_for_end(page: Page, limit_s: float) -> list[dict]:
    """Wait until all cells have run, and return their outputs, all in one list."""
    page.wait_for_function("() => window.ended", timeout=limit_s * 1000)
    return [output for outputs in page.evaluate(OUTPUTS) for output in outputs]


def errors_in(outputs: list[dict]) -> list[str]:
    return [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]
