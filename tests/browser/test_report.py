"""The HTML report in a real browser, opened from disk with the network off."""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page

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
    assert pictures.count() == len(list((SHIPPED / "figures").glob("*.png"))) == 13
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
        at = table[0].index(row["metric"].replace("_", " "))
        assert cells[at : at + 2] == [row["ablated"], row["delta"]]
    assert 3 * len(shown) == len(rows)


FIGURES = ("labels", "heads", "stripes", "ladder", "spectrum", "entropy", "ablation")
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</style><script>alert(2)</script>",
    "</title><svg onload=alert(3)>",
    '" onmouseover="alert(4)',
    "<a href='javascript:alert(5)'>&lt;b&gt;</a>",
    "-->]]>\u2028${alert(6)}",
)
HARMFUL = (
    "[...document.querySelectorAll('*')].filter(e => ['SCRIPT', 'IFRAME', 'SVG', 'A', 'BASE', "
    "'FORM', 'LINK', 'OBJECT', 'EMBED'].includes(e.tagName.toUpperCase()) || "
    "[...e.attributes].some(a => a.name.startsWith('on') || /javascript:/i.test(a.value)))"
    ".map(e => e.outerHTML)"
)


@pytest.fixture(scope="module")
def hostile_page() -> str:
    """A page in which every text that comes from elsewhere wants to run."""
    from probes.report.page import Content, report_page
    from probes.schemas.cause import ABLATION
    from probes.schemas.heads import HEADS
    from probes.schemas.labels import LABELS
    from probes.tables import read_table

    heads, labels, ablation = (
        read_table(SHIPPED / f"{schema.name}.parquet", schema)
        for schema in (HEADS, LABELS, ABLATION)
    )
    image, style, title, quote, link, end = HOSTILE
    named = ablation.copy()
    named["heads"] += image
    named["mode"] += style
    labels = labels.assign(label=quote, reason=title, mixture=link, rows=end, tested=image)
    with (SHIPPED / "figures" / "heads.png").open("rb") as file:
        png = file.read()
    content = Content(
        title=title,
        subtitle=quote,
        sentence=link,
        facts={image: style, quote: end},
        figures=dict.fromkeys((*FIGURES, "attention", "dynamics"), png),
        heads=heads,
        labels=labels,
        task=quote,
        forming=link,
        ablation=named,
        causes=[],
        command=f"headlab report '{style}'",
        provenance=dict(zip(HOSTILE, reversed(HOSTILE), strict=True)),
        files=HOSTILE,
    )
    return report_page(content)


def dialogs_of(page: Page) -> list[str]:
    """Return what the page's scripts say in dialogs, from now on; each dialog is closed."""
    said = []

    def close(dialog: Dialog) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", close)
    return said


@pytest.mark.parametrize("guarded", [True, False])
def test_texts_that_want_to_run_are_only_read(
    browser: Browser, hostile_page: str, tmp_path: Path, guarded: bool
) -> None:
    """Also without the policy that forbids everything: escaping alone must hold."""
    policy = '<meta http-equiv="Content-Security-Policy"'
    assert policy in hostile_page
    file = tmp_path / "report.html"
    text = hostile_page if guarded else hostile_page.replace(policy, '<meta name="none"')
    file.write_text(text, encoding="utf-8")
    context = browser.new_context()
    context.set_offline(True)
    page = context.new_page()
    ran, asked, said = dialogs_of(page), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    for cell in page.locator("h1, td, pre, code").all()[:80:2]:
        cell.hover()
    assert page.evaluate(HARMFUL) == []
    assert page.locator("img").count() == 9 and page.locator("style").count() == 1
    assert (ran, said) == ([], [])
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert page.title() == page.locator("h1").text_content() == HOSTILE[2]
    words = page.evaluate("document.body.textContent")
    assert all(text in words for text in HOSTILE)
    context.close()


def test_tokens_that_want_to_run_are_only_read(browser: Browser, tmp_path: Path) -> None:
    """A whole report, its pictures too, of a model whose tokens are called like that."""
    from lab.config import ModelConfig
    from lab.hooked_gpt import HookedGPT
    from lab.vocab import Vocab
    from probes.report.folder import write_report

    model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=10, n_ctx=12))
    vocab = Vocab((*HOSTILE, "$\\frac{$", "%s\n", "a", "b"))
    folder = write_report(
        model, tmp_path / HOSTILE[0], n_sequences=4, vocab=vocab, command=f"do {HOSTILE[1]}"
    )
    page = browser.new_context(offline=True).new_page()
    ran = dialogs_of(page)
    page.goto((folder / "report.html").as_uri())
    assert page.evaluate(HARMFUL) == [] and ran == []
    assert f"do {HOSTILE[1]}" in page.locator("pre").all_text_contents()
    for i in range(4):
        assert page.locator("img").nth(i).evaluate("picture => picture.naturalWidth") > 100
    page.context.close()
