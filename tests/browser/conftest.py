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
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

from apps.studio.launch import server_command

START_SECONDS = 90.0
SECONDS = 1000
PATIENCE = 30 * SECONDS

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
                with opener.open(f"http://127.0.0.1:{port}/_stcore/health", timeout=2):
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
            server.wait(timeout=20)
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

    def click(self, index: int) -> None:
        """Click a cell, and wait for the chart that takes the clicked one's place."""
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
            return {}
        count = "1 head" if len(heads) == 1 else f"{len(heads)} heads"
        expect(self.banner).to_contain_text(f"{count} ablated ({mode}): {' '.join(heads)}")
        self.until(lambda: self.address.get("abl") == heads)
        # What is on the screen may still be of the state before: the record says of which it is.
        records: list[dict] = []
        self.until(
            lambda: (
                records.append(self.record())
                or (records[-1]["heads"], how_of(records[-1])) == (heads, mode)
            )
        )
        return records[-1]

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


@pytest.fixture
def somebody(
    browser: Browser, port: int, request, tmp_path_factory
) -> Iterator[Callable[[], Person]]:
    """Return a function that opens a new profile; afterwards look at what all of them did."""
    people: list[Person] = []

    def come(at: int = port) -> Person:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(PATIENCE)
        person = Person(page=context.new_page(), root=f"http://127.0.0.1:{at}/")
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
        person.page.context.close()
    assert [(person.console, person.foreign) for person in people] == [([], [])] * len(people)
