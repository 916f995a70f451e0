"""The studio in a real browser: what AppTest cannot do, clicks, the address and two people."""

import json
import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

HEADS = ["L0H0", "L0H1", "L1H0", "L1H1"]


def test_the_first_screen_comes_from_this_machine_only(somebody):
    person = somebody(new=True)
    person.page.goto(person.root)
    expect(person.cells).to_have_count(4)
    expect(person.page.locator(".st-key-map svg.marks")).to_be_visible()
    expect(person.page.get_by_text("L0H0 looks like a reversal head")).to_be_visible()
    expect(person.number("baseline", "exact_match")).to_have_text("100.0 %")
    expect(person.page).to_have_title("Headlab")
    person.settle()
    assert person.address == {}


def test_a_click_shows_the_map_of_the_head(somebody):
    person = somebody()
    person.open()
    person.click(2)
    expect(
        person.page.get_by_label("Attention map of L1H0: query by key", exact=True)
    ).to_be_visible()
    expect(person.page.get_by_role("combobox", name="Attention of head")).to_have_value("L1H0")
    person.until(lambda: person.address == {"head": ["L1H0"]})
    expect(person.banner).to_have_count(0)
    person.settle()
    person.page.locator(".st-key-map svg.marks g.mark-rect.role-mark path").nth(1).hover(force=True)
    expect(person.page.locator("#vg-tooltip-element")).to_contain_text("attention")


def test_a_head_is_ablated_and_restored_to_the_same_bits(somebody):
    person = somebody()
    person.open("?click=true")
    first = person.table.inner_text()
    expect(person.banner).to_have_count(0)

    person.click(0)
    one = person.expect_ablated(["L0H0"])
    assert one["ablated"]["loss"] > one["baseline"]["loss"]
    person.click(1)
    both = person.expect_ablated(["L0H0", "L0H1"])
    expect(person.number("ablated", "exact_match")).to_have_text("0.0 %")
    expect(person.number("baseline", "exact_match")).to_have_text("100.0 %")
    expect(person.page.locator(".st-key-answers svg.marks")).to_contain_text("ablated")
    assert both["answers"]["baseline"] == both["answers"]["expected"] != both["answers"]["ablated"]

    person.click(1)  # the same cell again
    assert person.expect_ablated(["L0H0"]) == one
    for _ in range(2):
        person.click(0)
        person.expect_ablated([])
        assert person.table.inner_text() == first
        person.click(0)
        expect(person.banner).to_contain_text("1 head ablated (zero): L0H0")
        expect(person.number("ablated", "loss")).to_be_visible()
    assert person.expect_ablated(["L0H0"]) == one
    person.restore_all()
    person.expect_ablated([])
    assert person.table.inner_text() == first


def test_nothing_moves_when_heads_are_ablated(somebody):
    """Four heads clicked in a row where they stood at first, also below a notice."""
    for address in ("?click=true", "?click=true&ckpt=nan&heads=L0H0", "ablate"):
        person = somebody()
        person.open(address)
        expect(person.cells).to_have_count(4)
        places = places_of(person)
        for i, heads in enumerate([["L0H0"], ["L0H0", "L0H1"], ["L0H0", "L0H1", "L1H0"], HEADS]):
            x, y, width, height = places[i]
            person.page.mouse.click(x + width / 2, y + height / 2)
            expect(person.banner).to_contain_text(f"(zero): {' '.join(heads)}")
            expect(person.page.locator(f".st-key-grid_{i + 1} svg.marks")).to_be_visible()
            assert places_of(person) == places, heads
        person.restore_all()
        expect(person.page.get_by_text("No head is ablated.")).to_be_visible()
        assert places_of(person) == places


def places_of(person):
    """Return x, y, width and height of the four heads in pixels."""
    person.settle()
    boxes = [person.cells.nth(i).bounding_box() for i in range(4)]
    return [[round(box[side]) for side in ("x", "y", "width", "height")] for box in boxes]


def test_a_copied_link_shows_the_same_to_somebody_else(somebody):
    person = somebody()
    person.open("?click=true&mode=mean&prompt=abca&metric=previous&ckpt=20")
    person.click(1)
    record = person.expect_ablated(["L0H1"], "mean")
    other = somebody(new=True)
    other.open("?" + urlsplit(person.page.url).query)
    assert other.expect_ablated(["L0H1"], "mean") == record
    assert other.table.inner_text() == person.table.inner_text()
    assert other.address == person.address
    assert record["step"] == 20 and record["answers"]["expected"] == ["a", "c", "b", "a"]


def test_zeros_in_a_link_survive(somebody):
    person = somebody()
    person.open("?abl=L0H0&T=0&ckpt=0")
    record = person.expect_ablated(["L0H0"])
    assert (record["step"], record["temperature"]) == (0, 0)
    expect(person.page.get_by_text("Answers: the likeliest symbol each time")).to_be_visible()
    expect(person.page.get_by_role("spinbutton", name="Temperature")).to_have_value(
        re.compile(r"^0([.,]0+)?$")
    )
    hot = somebody()
    hot.open("?abl=L0H0&T=5&ckpt=0")
    drawn = hot.expect_ablated(["L0H0"])
    assert drawn["temperature"] == 5
    assert drawn["answers"]["baseline"] != record["answers"]["baseline"]
    assert drawn["baseline"] == record["baseline"]


def test_junk_in_a_link_is_named_and_nothing_breaks(somebody):
    person = somebody()
    person.open("?T=nan&abl=L99H0&run=../../etc&ckpt=nan&head=L7H7&metric=%3Cimg%20src%3Dx%3E")
    notice = person.page.locator("[class*=st-key-notice_]")
    expect(notice.first).to_contain_text("unknown run '../../etc'; choose from raw, ")
    expect(notice.first).to_contain_text("unknown head 'L99H0'")
    expect(notice.first).to_contain_text("temperature must be a number from 0 to 5, got 'nan'")
    expect(notice.last).to_contain_text("unknown probe '<img src=x>'")
    expect(person.page.get_by_text("L0H0 looks like a reversal head")).to_be_visible()
    expect(person.page.get_by_text(re.compile("Traceback|Error:"))).to_have_count(0)
    expect(person.page.get_by_role("combobox", name="Run")).to_have_value("tiny")
    person.until(lambda: person.address == {})


def test_pages_keep_the_state_and_the_banner_stays_in_sight(somebody):
    person = somebody()
    person.open("ablate?abl=L0H0&head=L1H1&metric=previous&run=tiny")
    expect(person.page.locator(".st-key-map_baseline svg.marks")).to_be_visible()
    expect(person.page.locator(".st-key-map_ablated svg.marks")).to_be_visible()
    state = {"abl": ["L0H0"], "head": ["L1H1"], "metric": ["previous"]}
    person.until(lambda: person.address == state)
    person.click(1)  # on this page a click always ablates
    expect(person.banner).to_contain_text("2 heads ablated (zero): L0H0 L0H1")
    person.settle()
    person.page.locator(".st-key-map_ablated").scroll_into_view_if_needed()
    person.page.mouse.wheel(0, 3000)
    expect(person.banner).to_be_in_viewport()
    person.press("link", "Heads")
    expect(person.page.locator(".st-key-map svg.marks")).to_be_visible()
    state["abl"] = ["L0H0", "L0H1"]
    person.until(lambda: person.address == state)


def test_heads_are_removed_in_one_click_and_the_run_opens_after_a_restart(home, restart, somebody):
    """Scenario 10: this server and a new one open the exported run and give the same numbers."""
    person = somebody()
    person.open("prune?abl=L1H0&abl=L1H1")
    person.page.get_by_label("Name of the new run").fill("small")
    person.press("button", "Remove 2 heads and verify")
    expect(person.page.get_by_text("Written as small and read back:")).to_be_visible()
    expect(person.page.locator("[data-size=parameters_after]")).to_be_visible()
    expect(person.page.get_by_text("Largest difference of a logit")).to_be_visible()
    person.settle()
    gated = person.number("ablated", "loss").first.inner_text()
    person.press("button", "Open the pruned run")
    expect(person.page.get_by_role("combobox", name="Run")).to_have_value("small")
    person.until(lambda: person.address == {"run": ["small"]})
    later = somebody(restart())
    later.open("?run=small")
    expect(later.page.get_by_role("combobox", name="Run")).to_have_value("small")
    for reader in (person, later):
        expect(reader.cells).to_have_count(2)
        expect(reader.number("baseline", "loss").first).to_have_text(gated)
    proof = json.loads((home / "small" / "parity.json").read_text())
    assert proof["holds"] and proof["max_logit_difference"] <= 1e-5
    came_from = json.loads((home / "small" / "config.json").read_text())["pruned_from"]
    parent = json.loads((home / "tiny" / "manifest.json").read_text())["files"]
    assert came_from["weights_sha256"] in {entry["sha256"] for entry in parent.values()}


def test_two_people_do_not_disturb_each_other(somebody):
    one, other = somebody(), somebody(new=True)
    other.open("?prompt=abcd")
    before, numbers = other.table.inner_text(), other.record()
    one.open("?click=true&abl=L0H0")
    for index, heads in ((1, ["L0H0", "L0H1"]), (2, ["L0H0", "L0H1", "L1H0"])):
        one.click(index)
        one.expect_ablated(heads)
        other.page.reload()
        expect(other.table).to_be_visible()
        other.settle()
        assert other.table.inner_text() == before
        assert other.record() == numbers
    expect(one.number("ablated", "exact_match")).to_have_text("0.0 %")
