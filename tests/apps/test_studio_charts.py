import pandas as pd
import pytest

from apps.studio import charts, tables

SCORES = [
    {"layer": 0, "head": 0, "score": 0.99},
    {"layer": 0, "head": 1, "score": None},
    {"layer": 1, "head": 0, "score": 0.07},
]


def grid(ablated=(), chosen="L0H0"):
    return charts.head_grid(
        SCORES, shape=(2, 2), ablated=ablated, chosen=chosen, low=0.0, high=1.0, title="Sources"
    ).to_dict()


def rows_of(spec) -> list[dict]:
    (rows,) = spec["datasets"].values()
    return rows


def layers_with(spec, text: str) -> list[dict]:
    return [layer for layer in spec["layer"] if text in str(layer)]


def test_the_grid_has_layers_down_and_heads_across_on_a_fixed_scale():
    spec = grid()
    cells = spec["layer"][0]
    assert cells["encoding"]["y"]["field"] == "layer"
    assert cells["encoding"]["x"]["field"] == "head"
    assert cells["encoding"]["color"]["scale"]["domain"] == [0.0, 1.0]
    assert cells["encoding"]["x"]["scale"]["domain"] == ["0", "1"]


def test_a_click_selects_by_the_name_of_the_head():
    spec = grid()
    (parameter,) = spec["params"]
    assert parameter["name"] == "pick"
    assert parameter["select"]["fields"] == ["name"]
    assert [row["name"] for row in rows_of(spec)] == ["L0H0", "L0H1", "L1H0"]


def test_ablated_heads_are_crossed_by_data_not_by_the_selection():
    states = {row["name"]: row["state"] for row in rows_of(grid(ablated=["L1H0"]))}
    assert states == {"L0H0": "intact", "L0H1": "intact", "L1H0": "ablated"}
    (crosses,) = layers_with(grid(), charts.CROSS)
    assert "ablated" in str(crosses["transform"])


def test_a_score_without_meaning_is_not_shown_as_zero():
    missing = rows_of(grid())[1]
    assert missing["score"] is None
    assert missing["text"] == "n/a"


def test_a_label_is_written_where_a_cell_has_room_for_it():
    def named(heads: int) -> list[dict]:
        spec = charts.head_grid(
            SCORES, shape=(2, heads), ablated=(), chosen=None, low=0.0, high=1.0, title="Sources",
            labels={"L0H0": "reversal", "L1H0": "uniform"},
        ).to_dict()  # fmt: skip
        assert [row["label"] for row in rows_of(spec)] == ["reversal", "", "uniform"]
        return [m for m in spec["layer"] if m["encoding"].get("text", {}).get("field") == "label"]

    words, halo = sorted(named(4), key=lambda mark: "transform" in mark)
    assert named(12) == []
    assert "transform" not in words and "ablated" in str(halo["transform"])
    assert halo["mark"]["stroke"] == "white" and halo["mark"]["dy"] == words["mark"]["dy"]
    assert not [m for m in grid()["layer"] if "label" in str(m["encoding"].get("text"))]


def test_facts_are_escaped():
    assert "<td>&lt;b&gt;</td>" in tables.facts([("a", "<b>")])


def test_one_head_is_framed():
    assert [row["name"] for row in rows_of(grid(chosen="L1H0")) if row["chosen"]] == ["L1H0"]


def test_a_large_grid_fits_the_page_without_numbers():
    scores = [{"layer": i, "head": j, "score": 0.5} for i in range(12) for j in range(12)]
    spec = charts.head_grid(
        scores, shape=(12, 12), ablated=(), chosen="L0H0", low=0, high=1, title="t"
    ).to_dict()
    assert spec["width"] <= 420
    assert "mark_text" not in str(spec)
    assert [layer for layer in spec["layer"] if layer["mark"]["type"] == "text"] == []


def test_a_map_has_the_cells_that_a_causal_head_sees_and_keeps_equal_tokens_apart():
    pattern = [[255, 9, 9], [51, 204, 9], [0, 255, 0]]
    spec = charts.attention_map(pattern, ["<bos>", "a", "a"], high=255).to_dict()
    frame = pd.DataFrame(rows_of(spec))
    assert frame["weight"].tolist() == [1.0, 0.2, 0.8, 0.0, 1.0, 0.0]
    assert frame["query"].tolist() == ["0 bos", "1 a", "1 a", "2 a", "2 a", "2 a"]
    assert spec["encoding"]["x"]["field"] == "key"
    assert spec["encoding"]["y"]["field"] == "query"
    assert spec["encoding"]["y"]["sort"] == ["0 bos", "1 a", "2 a"]  # 10 does not precede 2
    assert spec["encoding"]["color"]["scale"]["domain"] == [0, 1]
    assert spec["encoding"]["x"]["title"].startswith("key")


@pytest.mark.parametrize("token", ["') + alert(1) + ('", "<img src=x onerror=alert(1)>", "<>"])
def test_tokens_are_data_never_part_of_an_expression(token):
    spec = charts.attention_map([[1.0]], [token]).to_dict()
    rows = rows_of(spec)
    assert rows[0]["query"].startswith("0 ")
    assert len(rows[0]["query"]) > 2
    for axis in ("x", "y"):
        expression = spec["encoding"][axis]["axis"]["labelExpr"]
        assert expression.startswith("substring(datum.label")
        assert "alert" not in expression


def test_wrong_symbols_differ_in_shape_and_place():
    spec = charts.answer_strip(
        {"expected": ["c", "b", "a"], "ablated": ["c", "x", "a", "a"]}, ["c", "b", "a"]
    ).to_dict()
    wrong = [(r["row"], r["place"], r["symbol"]) for r in rows_of(spec) if r["differs"]]
    assert wrong == [("ablated", 2, "x"), ("ablated", 4, "a")]
    assert [layer for layer in spec["layer"] if layer["mark"].get("text") == "_"]


def test_numbers_are_written_with_the_digits_that_matter():
    assert tables.shown("loss", 2.30259) == "2.3026 nats"
    assert tables.shown("loss", 0.0000161) == "0.000016 nats"
    assert tables.shown("loss", 1e-9) == "below 0.000001 nats"
    assert tables.shown("loss", 0.0) == "0.000000 nats"


def test_all_and_none_are_said_of_nothing_less():
    shares = {1.0: "100.0 %", 0.9995: ">99.9 %", 0.0006: "0.1 %", 0.0001: "<0.1 %", 0.0: "0.0 %"}
    assert {value: tables.shown("exact_match", value) for value in shares} == shares


def test_a_change_has_its_sign_its_unit_and_its_interval():
    values = {"loss": 1.0, "exact_match": 0.5, "token_accuracy": 0.25}
    ends = {"delta": -0.5, "ci_low": -0.75, "ci_high": -0.25}
    html = tables.comparison([("B", "baseline", values)], dict.fromkeys(values, ends))
    assert "-0.5000 nats<small>-0.7500 to -0.2500</small>" in html
    assert html.count("-50.0 points<small>-75.0 to -25.0</small>") == 2


def test_the_comparison_names_its_columns_and_escapes_them():
    values = {"loss": 1.0, "exact_match": 0.5, "token_accuracy": 0.25}
    html = tables.comparison([("<b>Base</b>", "baseline", values)])
    assert "<b>" not in html
    assert html.count("data-metric") == 3
    assert "1.0000 nats" in html and "50.0 %" in html and "25.0 %" in html
