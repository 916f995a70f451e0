"""One Chromium, and one server of the studio as `headlab app` starts it, for all tests here."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    expect,
    sync_playwright,
)

from apps.studio.launch import server_command

START_SECONDS = 300.0
SECONDS = 1000
PATIENCE = 120 * SECONDS
"""How long a state may take to come on a machine that is busy with other work."""
SETTLED = """
() => {
  const still = document.querySelector('[data-testid=stApp]')?.dataset.testScriptState ===
      'notRunning' && !document.querySelector('[data-stale=true], [data-testid=stSkeleton]');
  const places = [...document.querySelectorAll('svg.marks, table')].map(e => {
    const {x, y, width, height} = e.getBoundingClientRect();
    return [x, y, width, height].join();
  }).join(' ');
  const before = window.settling;
  window.settling = {places, frames: still && places === before?.places ? before.frames + 1 : 0};
  return window.settling.frames >= 5;
}
"""
"""The script run is finished, and charts and tables have stood still for five frames."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        reason = "needs Debian's chromium; none is installed"
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def served(home: Path, log: Path) -> Iterator[int]:
    """Serve the studio over the runs of a home; give its port."""
    port = free_port()
    settings = {**os.environ, "HEADLAB_HOME": str(home)}
    with log.open("wb") as output:
        server = subprocess.Popen(
            server_command(port, "tiny"), env=settings, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            try:
                with opener.open(f"http://127.0.0.1:{port}/_stcore/health", timeout=60):
                    break
            except OSError:
                late = time.monotonic() > deadline
                if server.poll() is not None or late:
                    pytest.fail(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        try:
            server.wait(timeout=120)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture(scope="session")
def home(studio_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the runs of studio_home, which the servers of this folder may write to."""
    home = tmp_path_factory.mktemp("served") / "runs"
    shutil.copytree(studio_home, home)
    return home


@pytest.fixture(scope="session")
def port(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of the server that most tests share."""
    with served(home, tmp_path_factory.mktemp("server") / "log.txt") as port:
        yield port


@pytest.fixture
def restart(home: Path, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Return a function that starts another server over the same runs and gives its port."""
    with contextlib.ExitStack() as servers:
        yield lambda: servers.enter_context(served(home, tmp_path / "log.txt"))


@dataclass
class Person:
    """Somebody with an own browser profile on the studio."""

    page: Page
    root: str
    console: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def open(self, address: str = "") -> None:
        self.page.goto(self.root + address)
        expect(self.table).to_be_visible()
        self.settle()

    def settle(self) -> None:
        """Wait until the app has drawn all that it will: before each act, and before reading.

        After an act, first wait for something that only its result shows: the app is still until
        its server has heard of it.
        """
        self.page.evaluate("delete window.settling")
        self.page.wait_for_function(SETTLED)

    def hear(self, message: ConsoleMessage) -> None:
        """Remember an error on the console.

        On a page's own address Streamlit's frontend looks for its server beside the page first, and
        finds it one level up.
        """
        beside = re.search(r"/(ablate|prune)/_stcore/", message.location["url"])
        if message.type == "error" and not beside:
            self.console.append(message.text)

    @property
    def cells(self) -> Locator:
        """The cells of the head grid, layer by layer."""
        grid = self.page.locator(".st-key-grid svg.marks g.mark-rect.role-mark")
        return grid.first.locator("path")

    def press(self, role: Literal["button", "link", "radio"], name: str) -> None:
        """Click a control that a person sees at rest."""
        self.settle()
        self.page.get_by_role(role, name=name).click()

    def restore_all(self) -> None:
        self.settle()
        self.banner.get_by_role("button", name="Restore all").click()

    def click(self, index: int, *, at_rest: bool = True) -> None:
        """Click a cell, and wait for the chart that takes the clicked one's place."""
        if at_rest:
            self.settle()
        chart = self.page.locator(".st-key-grid [class*=st-key-grid_]")
        before = chart.get_attribute("class") or ""
        self.cells.nth(index).click(force=True)
        generation = int(re.findall(r"st-key-grid_(\d+)", before)[0])
        expect(self.page.locator(f".st-key-grid_{generation}")).to_have_count(0)
        expect(self.page.locator(f".st-key-grid_{generation + 1} svg.marks")).to_be_visible()

    @property
    def table(self) -> Locator:
        """Baseline beside ablated; the last part of the page that is drawn."""
        return self.page.locator("table.comparison")

    def number(self, kind: str, metric: str) -> Locator:
        return self.page.locator(f"td.{kind}[data-metric={metric}]")

    def expect_ablated(self, heads: list[str], mode: str = "zero") -> dict:
        """Wait until banner, address and numbers speak of these heads; return the numbers."""
        if not heads:
            expect(self.banner).to_have_count(0)
            expect(self.number("ablated", "loss")).to_have_count(0)
            self.until(lambda: "abl" not in self.address)
            self.settle()
            return {}
        count = "1 head" if len(heads) == 1 else f"{len(heads)} heads"
        expect(self.banner).to_contain_text(f"{count} ablated ({mode}): {' '.join(heads)}")
        self.until(lambda: self.address.get("abl") == heads)
        self.settle()
        record = self.record()
        assert (record["heads"], how_of(record)) == (heads, mode)
        return record

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE / SECONDS
        while not holds():
            assert time.monotonic() < deadline
            self.page.wait_for_timeout(50)

    def record(self) -> dict:
        """Download the numbers with all their digits."""
        with self.page.expect_download() as started:
            self.page.get_by_role("button", name="Numbers as JSON").click()
        return json.loads(Path(started.value.path()).read_text())

    @property
    def banner(self) -> Locator:
        return self.page.locator(".st-key-banner")

    @property
    def address(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.page.url).query)


def how_of(record: dict) -> str:
    """Return what a record calls ablation, as the banner has it."""
    return f"{record['mode']}, gate {record['gate']:g}" if record["gate"] else record["mode"]


@pytest.fixture(scope="session")
def profile(browser: Browser) -> Iterator[BrowserContext]:
    """The profile that most tests share: only the first page of it compiles the app's scripts."""
    with browser.new_context() as context:
        yield context


@pytest.fixture
def somebody(
    browser: Browser, profile: BrowserContext, port: int, request, tmp_path_factory
) -> Iterator[Callable[..., Person]]:
    """Return a function that opens a window; afterwards look at what all of them did.

    Each window is a session of its own to the server. With new=True its browser has an empty cache.
    """
    people: list[Person] = []

    def come(at: int = port, *, new: bool = False) -> Person:
        page = browser.new_page() if new else profile.new_page()
        page.set_default_timeout(PATIENCE)
        page.set_viewport_size({"width": 1440, "height": 900})
        person = Person(page=page, root=f"http://127.0.0.1:{at}/")
        people.append(person)
        person.page.on("console", lambda message: person.hear(message))
        person.page.on("pageerror", lambda error: person.console.append(str(error)))
        person.page.on(
            "request",
            lambda asked: (
                person.foreign.append(asked.url)
                if urlsplit(asked.url).hostname not in ("127.0.0.1", None)
                else None
            ),
        )
        return person

    failed_before = request.session.testsfailed
    yield come
    if request.session.testsfailed > failed_before:
        folder = tmp_path_factory.mktemp("screenshots")
        for i, person in enumerate(people):
            person.page.screenshot(path=folder / f"{request.node.name}-{i}.png")
    for person in people:
        person.page.close()
    assert [(person.console, person.foreign) for person in people] == [([], [])] * len(people)
