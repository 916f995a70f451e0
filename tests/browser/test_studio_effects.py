"""Modes, gates, heads together and pruning curves in a real browser: the address, back, clicks."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_mode_and_gate_are_in_the_address_and_change_the_numbers(somebody):
    person = somebody()
    person.open("ablate?abl=L0H0")
    zero = person.expect_ablated(["L0H0"])
    person.press("radio", "resample")
    person.until(lambda: person.address.get("mode") == ["resample"])
    resampled = person.expect_ablated(["L0H0"], "resample")
    person.settle()
    gate = person.page.get_by_role("spinbutton", name="Gate")
    gate.fill("0.5")
    gate.press("Enter")
    person.until(lambda: person.address.get("gate") == ["0.5"])
    half = person.expect_ablated(["L0H0"], "resample, gate 0.5")
    assert len({record["ablated"]["loss"] for record in (zero, resampled, half)}) == 3
    assert zero["baseline"] == resampled["baseline"] == half["baseline"]
    other = somebody()
    other.open("ablate?abl=L0H0&mode=resample&gate=0.5")
    assert other.expect_ablated(["L0H0"], "resample, gate 0.5") == half


def test_heads_that_stand_in_for_each_other_are_called_redundant(somebody):
    person = somebody()
    person.open("ablate?abl=L0H0")
    expect(person.page.get_by_text("Together these")).to_have_count(0)
    person.click(1)
    said = person.page.get_by_text("Together these 2 heads change the loss by +")
    expect(said).to_contain_text("L0H1 can be removed alone, but not with the others: redundant")
    person.settle()
    person.page.get_by_text("The numbers, head by head").click()
    expect(person.page.locator("table.plain")).to_contain_text("all together")
    person.click(1)
    expect(said).to_have_count(0)


def test_a_click_gives_up_what_is_being_measured(somebody):
    person = somebody()
    person.open("prune?ckpt=40")
    person.press("button", "Measure the pruning curve")
    person.click(2, at_rest=False)  # on this page a click ablates
    record_free = person.page.get_by_role("button", name="Remove 1 head and verify")
    expect(record_free).to_be_visible()
    expect(person.banner).to_contain_text("1 head ablated (zero): L1H0")
    button = person.page.get_by_role("button", name="Measure the pruning curve")
    curve = person.page.locator(".st-key-curve svg.marks")
    expect(button.or_(curve).first).to_be_visible()
    person.settle()
    if button.is_visible():  # it was given up, and can be asked for again
        button.click()
    expect(curve).to_be_visible()
    expect(person.page.get_by_text("random orders: median (range)")).to_be_visible()


@pytest.mark.parametrize("page", ["", "ablate", "prune"])
def test_nothing_is_wider_than_a_narrow_window(somebody, page):
    person = somebody()
    person.page.set_viewport_size({"width": 400, "height": 800})
    person.open(f"{page}?abl=L0H0&abl=L0H1")
    expect(person.page.locator("td.change").first).to_be_visible()
    expect(person.page.locator("svg.marks").last).to_be_visible()
    # Charts are drawn once, then fitted to their place: wait for that.
    person.page.wait_for_function(
        "![...document.querySelectorAll('svg.marks, table')]"
        ".some(e => e.getBoundingClientRect().right > innerWidth + 1)"
    )


def test_a_hostile_mode_and_gate_are_named_and_the_default_shown(somebody):
    person = somebody()
    person.open("ablate?abl=L0H0&mode=%3Cscript%3E&gate=-1e999&value=1")
    notice = person.page.locator(".st-key-notice_address")
    expect(notice).to_contain_text("unknown mode '<script>'; choose from mean, resample, zero")
    expect(notice).to_contain_text("gate must be a number from 0 to 1, got '-1e999'; 0 is used")
    expect(notice).to_contain_text("unknown key 'value'")
    assert person.expect_ablated(["L0H0"])["gate"] == 0.0


@pytest.mark.parametrize(
    ("address", "how"), [("mode=", "zero"), ("mode=mean&mode=resample", "mean")]
)
def test_an_empty_mode_and_one_given_twice_are_what_the_notice_says(somebody, address, how):
    person = somebody()
    person.open(f"ablate?abl=L0H0&{address}")
    expect(person.page.locator("[class*=st-key-failure_]")).to_have_count(0)
    line = "unknown mode ''" if how == "zero" else "'mean', 'resample'; the first one counts"
    expect(person.page.locator(".st-key-notice_address")).to_contain_text(line)
    person.expect_ablated(["L0H0"], how)


def test_back_and_forward_show_what_their_addresses_say(somebody):
    person = somebody()
    person.open("?abl=L0H0&mode=mean")
    person.press("link", "Ablate")
    expect(person.page.locator(".st-key-map_ablated svg.marks")).to_be_visible()
    person.press("radio", "zero")
    expect(person.banner).to_contain_text("1 head ablated (zero): L0H0")
    person.until(lambda: "mode" not in person.address)
    person.settle()
    person.page.go_back()
    expect(person.banner).to_contain_text("1 head ablated (mean): L0H0")
    person.until(lambda: person.address.get("mode") == ["mean"])
