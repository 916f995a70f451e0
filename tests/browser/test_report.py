"""The HTML report in a real browser, opened from disk with the network off."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

SHIPPED = Path(__file__).resolve().parents[2] / "artifacts" / "reversal"


@pytest.fixture
def offline(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """A page without a network, and every address that it asked for."""
    context = browser.new_context(offline=True)
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    yield page, asked
    context.close()


def test_it_renders_from_disk_and_asks_for_nothing(
    offline: tuple[Page, list[str]], tmp_path: Path
) -> None:
    page, asked = offline
    alone = tmp_path / "report.html"  # without its folder: the file is all there is
    shutil.copy(SHIPPED / "report.html", alone)
    page.goto(alone.as_uri())
    assert page.locator("h1").is_visible()
    assert [url for url in asked if not url.startswith("data:")] == [alone.as_uri()]
    assert page.locator("script").count() == 0
    pictures = page.locator("img")
    assert pictures.count() == 4
    for i in range(pictures.count()):
        assert pictures.nth(i).evaluate("picture => picture.naturalWidth") > 100
    outside = page.evaluate(
        "[...document.querySelectorAll('[src],[href]')]"
        ".map(e => e.getAttribute('src') ?? e.getAttribute('href'))"
        ".filter(a => !a.startsWith('data:') && !a.startsWith('#'))"
    )
    assert outside == []


def csv_rows(name: str) -> list[list[str]]:
    """Return a CSV of the shipped run, its header first."""
    with (SHIPPED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def tables_of(page: Page) -> list[list[list[str]]]:
    """Return the texts of every table's cells as the browser has them."""
    return page.evaluate(
        "[...document.querySelectorAll('table')].map(t => [...t.rows].map("
        "r => [...r.cells].map(c => c.textContent.trim())))"
    )


def test_its_table_of_heads_is_the_csv(offline: tuple[Page, list[str]]) -> None:
    page, _ = offline
    page.goto((SHIPPED / "report.html").as_uri())
    expected = csv_rows("heads")
    assert [table for table in tables_of(page) if table[0] == expected[0]] == [expected]


def test_its_ablations_are_those_of_the_csv(offline: tuple[Page, list[str]]) -> None:
    """One row an ablation, three metrics across; every number as the CSV writes it."""
    page, _ = offline
    page.goto((SHIPPED / "report.html").as_uri())
    (table,) = [table for table in tables_of(page) if table[0][:2] == ["ablated", "in its place"]]
    shown = {(row[0], row[1]): row for row in table[1:]}
    header, *rows = csv_rows("ablation")
    for values in rows:
        row = dict(zip(header, values, strict=True))
        whole_layer = row["head"] == ""
        label = f"all of layer {row['layer']}" if whole_layer else row["heads"]
        assert (label, row["mode"]) in shown, sorted(shown)
        cells = shown[label, row["mode"]]
        at = table[0].index(row["metric"])
        assert cells[at : at + 2] == [row["ablated"], row["delta"]]
    assert 3 * len(shown) == len(rows)
