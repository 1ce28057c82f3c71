"""A browser without a window, for tests: Chromium, found or installed; it asks nobody but us."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

from ppwork.lab.doctor.machine import BROWSERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Route

FLAGS = [
    "--no-sandbox",  # root in a container has no other way; the pages are our own
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
INSTALL = (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"])
INSTALL_LIMIT_S = 300.0
SIZE = {"width": 1280, "height": 900}


@dataclass
class Seen:
    """A page, and what it should not have done."""

    page: Page
    outside: list[str] = field(default_factory=list)
    """Addresses that were asked for and are not ours; none was let through."""
    errors: list[str] = field(default_factory=list)
    """Of the page's own scripts."""


def chromium() -> str:
    """Return the path of a Chromium; on Debian, as root, install it first where there is none."""
    if _found() is None and shutil.which("apt-get") and os.geteuid() == 0:
        for command in INSTALL:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(
                command, env=environment, timeout=INSTALL_LIMIT_S, check=False, capture_output=True
            )
    path = _found()
    if path is None:
        pytest.fail(
            "no Chromium for the browser tests: `apt install chromium`, or your system's package of it"
        )
    return path


def _found() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser; each page of ``page_at`` in it has storage and windows of its own."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def page_at(started: Browser, ours: tuple[str, ...], *, scripts: bool = True) -> Iterator[Seen]:
    """Open an empty page that may ask only for addresses that begin with one of ``ours``."""
    context = started.new_context(viewport=SIZE, java_script_enabled=scripts)
    try:
        seen = Seen(context.new_page())

        def refuse(route: Route) -> None:
            seen.outside.append(route.request.url)
            route.abort()

        # What is ours is let through without asking this process: a page may load hundreds of files.
        allowed = "|".join(re.escape(beginning) for beginning in (*ours, "data:", "blob:"))
        seen.page.route(re.compile(f"^(?!{allowed})"), refuse)
        sockets = tuple(address.replace("http:", "ws:") for address in ours)
        seen.page.on("websocket", lambda ws: ws.url.startswith(sockets) or seen.outside.append(ws.url))
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        yield seen
    finally:
        context.close()
