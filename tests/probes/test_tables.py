"""Tables keep their columns, their types and where they come from, in memory and on the disk."""

import copy
import io
import json
import math

import pandas as pd
import pytest

from lab.tasks.registry import get_task
from probes.ablation.pairs import pair_effects
from probes.ablation.redundancy import RedundancyPlan, head_redundancy
from probes.ablation.shapley import shapley_values
from probes.ablation.table import ablation_sweep
from probes.attention.distances import head_distances
from probes.attention.entropy import entropy_profile
from probes.attention.heads import score_heads
from probes.attention.maps import attention_map
from probes.attention.offsets import offset_spectrum
from probes.attention.peaks import head_peaks
from probes.borrowed.attribution import logit_attribution
from probes.borrowed.edges import edge_attribution
from probes.borrowed.lens import logit_lens
from probes.borrowed.patching import patch_activations
from probes.feeders.composition import composition_scores
from probes.feeders.scores import feeder_scores
from probes.film.frames import Camera, dynamics_table, find_onsets
from probes.first_order.agreement import first_order_study
from probes.first_order.attribution_patching import estimated_ablations
from probes.first_order.importance import head_importance
from probes.first_order.self_repair import repair_split
from probes.labels.head_labels import label_study
from probes.planted import PlantedHead, plant
from probes.pruning.curves import pruning_curve, random_band, removable
from probes.pruning.hard_concrete import learn_gates
from probes.pruning.plan import PruningPlan
from probes.pruning.removing import prune_heads
from probes.pruning.survivors import survivor_labels
from probes.reading.inputs import repeated_pair
from probes.schemas.heads import HEADS
from probes.schemas.labels import LABELS
from probes.tables import (
    SCHEMAS,
    checked_table,
    csv_text,
    json_rows,
    json_text,
    parquet_bytes,
    read_table,
)
from probes.writing.copying import copying_scores
from probes.writing.values import head_values

BUILT_OR_LEARNED = ("planted", "gates")
"""Tables of what a model was made to be, not of what was measured of it."""


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
        "planted": plant([[PlantedHead(kind="previous")]]).truth,
        **tables_of_causes(copy.deepcopy(small_model).eval(), repeating_batch),
    }


def tables_of_causes(model, batch):
    other = get_task("reversal", length=6, n_symbols=4).sample(5, seed=4, split="test")
    pair, first_order = [(0, 1), (1, 0)], first_order_study(model, batch)
    curve = pruning_curve(
        model,
        batch,
        ["one-shot", "random"],
        held_out=other,
        plan=PruningPlan(steps=[1, 3], seeds=2),
    )
    before = PlantedHead(kind="previous", beta=20.0, writes="tokens")
    induction = plant([[before], [PlantedHead(kind="induction", beta=20.0)]]).model
    return {
        "pairs": pair_effects(model, batch, pair),
        "shapley": shapley_values(model, batch, pair),
        "redundancy": head_redundancy(
            model, batch, {"both": pair}, plan=RedundancyPlan(controls=2)
        ),
        "feeders": feeder_scores(induction, repeated_pair(induction, n_sequences=2)),
        "importance": head_importance(model, batch),
        "estimates": estimated_ablations(model, batch),
        "first_order": first_order.heads,
        "agreement": first_order.agreement,
        "self_repair": repair_split(model, batch),
        "composition": composition_scores(model),
        "patching": patch_activations(model, batch, other),
        "lens": logit_lens(model, batch),
        "attribution": logit_attribution(model, batch),
        "edges": edge_attribution(model, batch, other),
        "pruning": curve,
        "random_band": random_band(curve),
        "removable": removable(curve),
        "survivors": survivor_labels(model, prune_heads(model, [(0, 1)]), batch),
        "gates": learn_gates(model, batch, steps=2).table(),
    }


@pytest.mark.parametrize("name", [schema.name for schema in SCHEMAS])
def test_parquet_gives_back_values_types_and_provenance(tables, name, tmp_path):
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet_bytes(tables[name]))
    back = read_table(path, next(schema for schema in SCHEMAS if schema.name == name))
    pd.testing.assert_frame_equal(back, tables[name])
    assert back.attrs == tables[name].attrs
    assert back.attrs["table"] == name
    if name not in BUILT_OR_LEARNED:
        known = {"run", "checkpoint_sha256", "seed", "device", "dtype", "versions"}
        assert known <= set(back.attrs)


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
    schema = HEADS
    with pytest.raises(ValueError, match="columns of the heads table must be layer, head, probe"):
        checked_table(heads.drop(columns="kappa"), schema)
    with pytest.raises(ValueError, match="'score' of the heads table must be of type float64"):
        checked_table(heads.astype({"score": "str"}), schema)
    newer = heads.copy()
    newer.attrs = {**heads.attrs, "definition_version": schema.version + 1}
    with pytest.raises(ValueError, match=r"definition_version .* must be at most 2, got 3"):
        checked_table(newer, schema)


def test_labels_of_version_1_have_the_eigenvalue_under_its_old_name(tables, tmp_path):
    table = tables["labels"]
    old = table.rename(columns={"eigenvalue": "copying"})
    old.attrs = {**table.attrs, "definition_version": 1}
    old.to_parquet(tmp_path / "labels.parquet", index=False)
    back = read_table(tmp_path / "labels.parquet", LABELS)
    assert back["eigenvalue"].equals(table["eigenvalue"])
    assert back.attrs["definition_version"] == 2
