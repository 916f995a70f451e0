"""Tables keep their columns, their types and where they come from, in memory and on the disk."""

import io
import json
import math

import pandas as pd
import pytest

from probes.ablation import ablation_sweep
from probes.copying import copying_scores
from probes.distances import head_distances
from probes.entropy import entropy_profile
from probes.film import Camera, dynamics_table, find_onsets
from probes.heads import score_heads
from probes.labels import label_study
from probes.maps import attention_map
from probes.offsets import offset_spectrum
from probes.peaks import head_peaks
from probes.schemas.labels import LABELS
from probes.tables import (
    SCHEMAS,
    checked_table,
    csv_text,
    get_schema,
    json_rows,
    json_text,
    parquet_bytes,
    read_table,
)
from probes.values import head_values


@pytest.fixture(scope="module")
def tables(small_model, repeating_batch):
    study = label_study(small_model, repeating_batch)
    camera = Camera(repeating_batch)
    film = dynamics_table([camera.frame(small_model, 0)], camera.provenance(small_model))
    return {
        "dynamics": film,
        "onsets": find_onsets(film),
        "labels": study.labels,
        "evidence": study.evidence,
        "heads": score_heads(small_model, repeating_batch[:1]),
        "entropy": entropy_profile(small_model, repeating_batch),
        "ablation": ablation_sweep(small_model, repeating_batch),
        "attention": attention_map(small_model, repeating_batch, layer=1, head=2, sequence=3),
        "spectrum": offset_spectrum(small_model, repeating_batch),
        "peaks": head_peaks(small_model, repeating_batch),
        "distances": head_distances(small_model, repeating_batch),
        "values": head_values(small_model, repeating_batch),
        "copying": copying_scores(small_model, repeating_batch.tokens[:, :4]),
    }


@pytest.mark.parametrize("name", [schema.name for schema in SCHEMAS])
def test_parquet_gives_back_values_types_and_provenance(tables, name, tmp_path):
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet_bytes(tables[name]))
    back = read_table(path, get_schema(name))
    pd.testing.assert_frame_equal(back, tables[name])
    assert back.attrs == tables[name].attrs
    assert back.attrs["table"] == name
    assert {"run", "checkpoint_sha256", "seed", "device", "dtype", "versions"} <= set(back.attrs)


@pytest.mark.parametrize("name", [schema.name for schema in SCHEMAS])
def test_csv_has_every_number_to_six_digits_and_nothing_for_missing(tables, name):
    text = csv_text(tables[name])
    assert "nan" not in text.lower().replace("nan_", "")
    back = pd.read_csv(io.StringIO(text))
    assert len(back) == len(tables[name])
    for column in tables[name].select_dtypes("float64"):
        ours, theirs = tables[name][column], back[column].astype(float)
        assert theirs.isna().tolist() == ours.isna().tolist()
        assert (theirs - ours).abs().max() <= 1e-5 * max(1.0, ours.abs().max()) or ours.isna().all()


def test_json_rows_are_plain_and_know_no_nan(tables):
    rows = json_rows(tables["ablation"])
    assert rows[9]["head"] is None
    assert rows[0]["head"] == 0
    rows = json_rows(tables["heads"])
    assert rows[0]["ci_low"] is None
    assert json.loads(json_text({"rows": rows}))["rows"] == rows
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"x": math.nan})


def test_wrong_tables_are_refused(tables):
    heads = tables["heads"]
    schema = get_schema("heads")
    with pytest.raises(ValueError, match="columns of the heads table must be layer, head, probe"):
        checked_table(heads.drop(columns="kappa"), schema)
    with pytest.raises(ValueError, match="'score' of the heads table must be of type float64"):
        checked_table(heads.astype({"score": "str"}), schema)
    newer = heads.copy()
    newer.attrs = {**heads.attrs, "definition_version": schema.version + 1}
    with pytest.raises(ValueError, match=r"definition_version .* must be at most 2, got 3"):
        checked_table(newer, schema)
    with pytest.raises(ValueError, match=r"unknown table 'head'.*did you mean 'heads'"):
        get_schema("head")


def test_labels_of_version_1_have_the_eigenvalue_under_its_old_name(tables, tmp_path):
    table = tables["labels"]
    old = table.rename(columns={"eigenvalue": "copying"})
    old.attrs = {**table.attrs, "definition_version": 1}
    old.to_parquet(tmp_path / "labels.parquet", index=False)
    back = read_table(tmp_path / "labels.parquet", LABELS)
    assert back["eigenvalue"].equals(table["eigenvalue"])
    assert back.attrs["definition_version"] == 2
