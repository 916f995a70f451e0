"""The pages as Streamlit runs them, without a browser: what they show for which address."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from apps.studio import loaders, panels, widgets
from apps.studio.address import View, all_heads
from apps.studio.launch import ENTRY
from lab.run_folders import open_run


@pytest.fixture
def home(studio_home, monkeypatch) -> Path:
    monkeypatch.setenv("HEADLAB_HOME", str(studio_home))
    monkeypatch.setattr(sys, "argv", ["app.py", "--run=tiny"])
    # AppTest looks for components in every installed package anew each time it runs a script.
    monkeypatch.setattr(manifest_scanner, "scan_component_manifests", list)
    st.cache_data.clear()
    return studio_home


def opened(**address: str | list[str]) -> AppTest:
    page = AppTest.from_file(str(ENTRY), default_timeout=600)
    for name, value in address.items():
        page.query_params[name] = value
    return page.run()


def texts(page: AppTest) -> str:
    assert not page.exception
    return "\n".join(element.value for element in page.text)


def press(page: AppTest, label: str) -> None:
    next(button for button in page.button if button.label.startswith(label)).click().run()


def table(page: AppTest) -> str:
    return next(e.proto.body for e in page.get("html") if "<table" in e.proto.body)


def test_the_first_screen_says_what_was_found(home):
    page = opened()
    assert "L0H0 looks like a reversal head" in texts(page)
    assert "Exact match 100.0 % on 200 unseen sequences" in texts(page)
    assert page.selectbox(key="run").value == "tiny"
    assert page.selectbox(key="ckpt").value == "60"
    assert page.selectbox(key="head").value == "L0H0"
    assert page.selectbox(key="metric").value == "sources"
    assert len(page.get("vega_lite_chart")) == 2
    assert 'class="ablated"' not in table(page)


def test_the_chosen_head_has_its_card(home):
    labels = json.loads(open_run(home / "tiny").file("first_screen.json").read_text())["labels"]
    for name, row in (("L0H1", labels[1]), ("L1H0", labels[2])):
        page = opened(head=name)
        strength = f" ({row['strength']})" if row["strength"] else ""
        label = row["label"].replace("sources", "reversal")
        assert f"{name}: {label}{strength}" in texts(page)
        assert row["reason"] in texts(page)
        (facts,) = (e.proto.body for e in page.get("html") if 'class="facts"' in e.proto.body)
        assert f"<td>{row['score']:.3f}</td>" in facts
        assert f"{row['n_rows']:,} rows of {row['n_sequences']:,} sequences" in facts


def test_the_first_screen_is_drawn_without_torch(home):
    code = f"""
import sys
from streamlit.testing.v1 import AppTest
page = AppTest.from_file({str(ENTRY)!r}, default_timeout=600)
page.query_params["run"] = "tiny"
page.run()
assert not page.exception and len(page.get("vega_lite_chart")) == 2, page.text
loaded = [name for name in ("torch", "transformer_lens", "transformers") if name in sys.modules]
assert loaded == [], loaded
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ENTRY.parents[2]
    )
    assert done.returncode == 0, done.stderr


def test_a_link_brings_back_its_state(home):
    page = opened(run="tiny", ckpt="20", abl=["L0H0", "L1H1"], mode="mean", head="L1H0",
                  metric="previous", prompt="abcd", click="true")  # fmt: skip
    assert page.selectbox(key="ckpt").value == "20"
    assert page.multiselect(key="abl").value == ["L0H0", "L1H1"]
    assert page.selectbox(key="head").value == "L1H0"
    assert page.selectbox(key="metric").value == "previous"
    assert page.toggle(key="click").value is True
    assert "2 heads ablated (mean): L0H0 L1H1" in texts(page)
    assert "The address contains" not in texts(page)


def test_zeros_in_a_link_survive(home):
    page = opened(run="tiny", ckpt="0", abl="L0H0", head="L0H0", T="0")
    assert page.number_input(key="T").value == 0.0
    assert any("likeliest symbol each time" in text for text in texts(page).splitlines())
    assert page.selectbox(key="ckpt").value == "0"
    assert page.multiselect(key="abl").value == ["L0H0"]
    assert "step 0" in texts(page)


def test_ablation_stands_beside_the_baseline(home):
    page = opened(abl=["L0H0", "L0H1"])
    html = table(page)
    assert html.count('class="baseline" data-metric') == html.count('class="ablated" data-metric')
    assert '<td class="baseline" data-metric="exact_match">100.0 %</td>' in html
    assert '<td class="ablated" data-metric="exact_match">0.0 %</td>' in html
    before = table(page)
    page.multiselect(key="abl").set_value([]).run()
    assert "ablated" not in table(page)
    page.multiselect(key="abl").set_value(["L0H0", "L0H1"]).run()
    assert table(page) == before


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ({"run": "../../etc"}, "unknown run '../../etc'; choose from raw, tiny"),
        ({"run": "/etc/passwd"}, "unknown run '/etc/passwd'; choose from raw, tiny"),
        ({"run": "tini"}, "unknown run 'tini'; choose from raw, tiny (did you mean 'tiny'?)"),
        ({"ckpt": "7"}, "unknown checkpoint '7'; choose from 0, 20, 40, 60"),
        ({"abl": ["L99H0", "L0H1"]}, "unknown head 'L99H0'; choose from L0H0"),
        ({"mode": "nan"}, "unknown mode 'nan'; choose from mean, resample, zero"),
        ({"gate": "1.5"}, "gate must be a number from 0 to 1, got '1.5'; 0 is used"),
        ({"value": "0.5"}, "unknown key 'value'; choose from T, abl, "),
        ({"head": "L0H9"}, "unknown head 'L0H9'"),
        ({"metric": "prevoius"}, "(did you mean 'previous'?)"),
        ({"step": "abc"}, "unknown key 'step'; choose from T, abl, "),
        ({"run": ["raw", "tiny"]}, "key 'run' must be given once, got 'raw', 'tiny'; the last"),
        ({"click": "maybe"}, "unknown value of 'click' 'maybe'; choose from false, true"),
        ({"prompt": "ab$x$"}, "unknown symbols '$', 'x'; choose from a-h"),
        ({"prompt": "aaaaaaaaaa"}, "prompt must be 1 to 4 symbols"),
    ],
)
def test_junk_in_a_link_is_named_and_the_default_shown(home, address, message):
    page = opened(**address)
    assert message in texts(page)
    assert page.selectbox(key="run").value == "tiny"
    assert page.selectbox(key="head").value == "L0H0"
    assert len(page.get("vega_lite_chart")) >= 2


def test_known_parts_of_a_junk_link_are_kept(home):
    page = opened(abl=["L99H0", "L0H1"], run="nonsense")
    assert page.multiselect(key="abl").value == ["L0H1"]
    assert "1 head ablated (zero): L0H1" in texts(page)


def test_a_run_without_a_report_is_measured(home):
    page = opened(run="raw")
    assert page.selectbox(key="run").value == "raw"
    assert "No head stands out" in texts(page)
    assert len(page.get("vega_lite_chart")) == 2


def test_changing_the_run_forgets_the_checkpoint_of_the_other(home):
    page = opened(ckpt="20")
    page.selectbox(key="run").select("raw").run()
    assert not page.exception
    assert page.selectbox(key="ckpt").value == "1"


def test_the_ablate_page_compares_side_by_side_on_one_scale(home):
    page = opened(abl=["L0H0", "L0H1"], head="L1H0", prompt="abcd")
    page.switch_page("screens/ablate.py").run()
    assert "2 heads ablated (zero): L0H0 L0H1" in texts(page)
    titles = [text.value for text in page.text if text.value.startswith(("Baseline", "Ablated:"))]
    assert titles == ["Baseline", "Ablated: L0H0 L0H1"] * 2
    specs = [json.loads(chart.proto.spec) for chart in page.get("vega_lite_chart")]
    bars = [spec for spec in specs if "probability" in str(spec)]
    assert [spec["layer"][0]["encoding"]["x"]["scale"]["domain"] for spec in bars] == [[0, 1]] * 2
    assert len(specs) == 6  # grid, answers, two bars, two maps
    assert page.selectbox(key="head").value == "L1H0"
    page.slider(key="place").set_value(3).run()
    assert not page.exception


def test_the_ablate_page_without_ablation_shows_the_baseline_only(home):
    page = opened().switch_page("screens/ablate.py").run()
    assert "Click heads on the grid to ablate them" in texts(page)
    assert "Ablated:" not in texts(page)
    assert len(page.get("vega_lite_chart")) == 4


def test_any_mode_and_gate_stand_beside_the_baseline_with_their_interval(home):
    tables = []
    for mode, gate in (("zero", "0"), ("resample", "0"), ("resample", "0.5")):
        page = opened(abl=["L0H0", "L0H1"], mode=mode, gate=gate)
        how = mode if gate == "0" else f"{mode}, gate {gate}"
        assert f"2 heads ablated ({how}): L0H0 L0H1" in texts(page)
        assert ("use the first donor" in texts(page)) == (mode == "resample")
        assert table(page).count('<td class="change"') == table(page).count("<small>") == 3
        assert '<td class="baseline" data-metric="exact_match">100.0 %</td>' in table(page)
        tables.append(table(page))
    assert len(set(tables)) == 3


def test_two_heads_are_ablated_together_and_one_by_one(home):
    page = opened(abl=["L0H0"]).switch_page("screens/ablate.py").run()
    assert "Together these" not in texts(page)
    page.multiselect(key="abl").set_value(["L0H0", "L0H1"]).run()
    (said,) = [t for t in texts(page).split("\n") if t.startswith("Together these 2 heads change")]
    assert "L0H1 can be removed alone, but not with the others: redundant, not useless." in said
    (numbers,) = (e.proto.body for e in page.get("html") if 'class="plain"' in e.proto.body)
    assert "<th>all together</th>" in numbers


def test_what_takes_many_models_waits_for_a_click(home, monkeypatch):
    monkeypatch.setattr(panels, "AT_ONCE", 2)
    widgets.finished_work.clear()
    page = opened(abl=["L0H0", "L0H1"]).switch_page("screens/ablate.py").run()
    assert "It takes 3 ablated models." in texts(page)
    press(page, "Measure 2 heads one by one")
    assert "Together these 2 heads" in texts(page)
    page.run()  # it is remembered
    assert "Together these 2 heads" in texts(page)
    assert "Together these 2 heads" in texts(
        opened(abl=["L0H0", "L0H1"]).switch_page("screens/ablate.py").run()
    )


def test_what_cannot_be_removed_is_not_offered_for_removal(home):
    for address, why in (
        ({"mode": "resample"}, "choose zero or mean on the left"),
        ({"gate": "0.5"}, "set the gate to 0 on the left"),
    ):
        page = opened(abl="L1H0", **address).switch_page("screens/prune.py").run()
        assert why in texts(page)
        assert not [b for b in page.button if b.label.startswith("Remove")]


def test_the_prune_page_says_how_many_heads_can_go(home):
    page = opened().switch_page("screens/prune.py").run()
    assert "0 heads removed: exact match 100.0 % (95 % interval" in texts(page)
    (spare,) = (e.proto.body for e in page.get("html") if 'class="plain"' in e.proto.body)
    assert "<th>1 %</th><th>5 %</th>" in spare and "random orders: median (range)" in spare


def test_a_curve_that_no_report_has_is_measured_when_asked_for(home):
    page = opened(ckpt="20").switch_page("screens/prune.py").run()
    assert "From the run's report." not in texts(page)
    press(page, "Measure the pruning curve")
    assert "Grey: 20 random orders. Measured here." in texts(page)
    assert page.slider(key="curve_step_tiny").max == 4


def test_a_step_of_the_curve_chooses_the_heads_to_remove(home):
    page = opened().switch_page("screens/prune.py").run()
    assert "no head" in texts(page)
    page.slider(key="curve_step_tiny").set_value(2).run()
    names = next(text.value for text in page.text if text.value.count("H") == 2).split()
    press(page, "Choose these heads")
    assert page.multiselect(key="abl").value == sorted(names)
    assert 'data-metric="exact_match"' in table(page)


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_heads_are_removed_verified_and_opened(home, tmp_path, monkeypatch, mode):
    shutil.copytree(home / "tiny", tmp_path / "tiny")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    st.cache_data.clear()
    page = opened(abl=["L1H0", "L0H1"], mode=mode).switch_page("screens/prune.py").run()
    page.text_input(key="new_run_tiny").set_value("small")
    press(page, "Remove")
    assert "Written as small and read back:" in texts(page)
    tables = [e.proto.body for e in page.get("html") if "<table" in e.proto.body]
    for metric in ("loss", "exact_match", "token_accuracy"):
        cells = [
            part.split("</td>")[0]
            for body in tables[:2]
            for part in body.split(f'data-metric="{metric}">')[1:]
        ]
        assert cells[1] == cells[2] == cells[3]  # ablated, gated, pruned and read back
    assert open_run(tmp_path / "small").config.model.kept_heads == ((0,), (1,))
    press(page, "Open the pruned run")
    assert page.selectbox(key="run").value == "small"
    assert page.multiselect(key="abl").options == ["L0H0", "L1H1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../outside", "run name must be 1 to 100 letters"),
        ("", "run name must be 1 to 100 letters"),
        ("tiny", "tiny"),
    ],
)
def test_a_bad_name_for_a_pruned_run_writes_nothing(home, name, message):
    before = sorted(home.parent.rglob("*"))
    page = opened(abl=["L1H0"]).switch_page("screens/prune.py").run()
    page.text_input(key="new_run_tiny").set_value(name)
    press(page, "Remove")
    assert "Nothing was written:" in texts(page)
    assert message in texts(page)
    assert sorted(home.parent.rglob("*")) == before


def test_a_model_without_heads_says_so(home, tmp_path, monkeypatch):
    shutil.copytree(home / "tiny", tmp_path / "tiny")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    run = open_run(tmp_path / "tiny")
    view = View(run=run, step=60, ablated=tuple(all_heads(run)))
    loaders.export_pruned(view, "bare")
    page = opened(run="bare")
    assert "Every head of this model was pruned" in texts(page)


def test_two_sessions_do_not_disturb_each_other(home):
    alone = opened(prompt="abcd")
    ablated = opened(prompt="abcd", abl=["L0H0", "L0H1"])
    again = alone.run()
    assert table(again) == table(opened(prompt="abcd"))
    assert "ablated" not in table(again)
    assert "ablated" in table(ablated)


def test_restore_all_restores_all(home):
    page = opened(abl=["L0H0", "L0H1"])
    page.button(key="banner_restore").click().run()
    assert page.multiselect(key="abl").value == []
    assert "ablated (" not in texts(page)


def test_without_a_run_the_page_says_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path / "none"))
    st.cache_data.clear()
    page = opened()
    assert "No run yet" in page.header[0].value
    assert page.code[0].value == "headlab demo"
    assert str(tmp_path / "none") in texts(page)


def test_what_a_run_folder_says_is_never_markdown(home, tmp_path, monkeypatch):
    """A run folder may come from anyone: its words go where no markdown is read."""
    from lab.run_folders import update_derived

    shutil.copytree(home / "tiny", tmp_path / "tiny")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    run = open_run(tmp_path / "tiny")
    screen = json.loads(run.file("first_screen.json").read_text())
    hostile = "$x$ :red[hi] **b** <img src=x onerror=alert(1)> ![i](http://example.invalid/i.png)"
    screen["sentence"] = hostile
    screen["task"] = hostile
    screen["sequence"]["tokens"][1] = hostile
    for probe in screen["probes"]:
        probe["summary"] = probe["title"] = hostile
    for row in screen["labels"]:
        row["label"] = row["reason"] = hostile
    update_derived(run.path, {"first_screen.json": json.dumps(screen).encode()})
    st.cache_data.clear()
    page = opened()
    assert hostile in texts(page)
    markdown = [*page.markdown, *page.caption, *page.header, *page.title]
    assert [element.value for element in markdown if "onerror" in str(element.value)] == []
    assert [e for e in page.get("html") if "onerror" in e.proto.body] == []


def test_a_damaged_run_is_one_line(home, tmp_path, monkeypatch):
    shutil.copytree(home / "tiny", tmp_path / "tiny")
    monkeypatch.setenv("HEADLAB_HOME", str(tmp_path))
    path = tmp_path / "tiny" / "first_screen.json"
    data = path.read_bytes()
    path.write_bytes(data[:-3] + b"?" + data[-2:])
    st.cache_data.clear()
    page = opened()
    (line,) = [text for text in texts(page).split("\n") if "sha256" in text]
    assert line.startswith("first_screen.json must have the sha256")
    assert "Traceback" not in texts(page)


def test_an_error_that_nobody_foresaw_is_one_line(home, monkeypatch):
    from apps.studio import charts

    def broken(*_: object, **__: object) -> None:
        raise KeyError("one\ntwo")

    monkeypatch.setattr(charts, "attention_map", broken)
    page = opened()
    assert "This could not be drawn:\nKeyError: 'one\\ntwo'" in texts(page)
