"""Effects that the pages show against direct calls of lab and probes, and caches' keys."""

import dataclasses

import pytest
import streamlit as st

from apps.scored_sequences import DONORS
from apps.studio import effects, loaders, models
from apps.studio.address import View
from lab.evaluation import evaluate
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from probes.ablation.sweep import Ablation
from probes.ablation.table import ablation_sweep, head_donors

pytestmark = pytest.mark.filterwarnings("ignore::streamlit.errors.StreamlitAPIWarning")

HEADS = [(0, 1), (1, 0)]


@pytest.fixture
def view(studio_home, monkeypatch) -> View:
    monkeypatch.setenv("HEADLAB_HOME", str(studio_home))
    st.cache_data.clear()
    st.cache_resource.clear()
    return View(run=next(run for run in loaders.all_runs() if run.name == "tiny"), step=60)


@pytest.fixture
def model(view):
    return HookedGPT.load(view.run.path, step=60)


@pytest.fixture
def batch(view):
    return models.task_of(view.run).sample(200, seed=0, split="test")


def test_numbers_are_those_of_lab(view, model, batch):
    gates = HeadGates.ablate(HEADS, like=model)
    assert effects.intact_numbers(view) == dataclasses.asdict(evaluate(model, batch))
    found = effects.effect(dataclasses.replace(view, ablated=("L0H1", "L1H0")))
    whole, ablated = (dataclasses.asdict(evaluate(model, batch, gates=g)) for g in (None, gates))
    for metric in ("token_accuracy", "exact_match", "n_sequences"):
        assert (found.baseline[metric], found.ablated[metric]) == (whole[metric], ablated[metric])
    assert found.baseline["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert found.ablated["loss"] == pytest.approx(ablated["loss"], rel=1e-5)
    loss = found.change["loss"]
    assert loss["delta"] == pytest.approx(found.ablated["loss"] - found.baseline["loss"])
    assert loss["ci_low"] < loss["delta"] < loss["ci_high"]


@pytest.mark.parametrize(("mode", "gate"), [("zero", 0.5), ("resample", 0.0), ("resample", 0.25)])
def test_every_mode_and_gate_is_that_of_the_sweep(view, model, batch, mode, gate):
    kept = models.task_of(view.run).sample(256, seed=0, split="reference")
    donors = head_donors(model, kept[:DONORS]) if mode == "resample" else None
    ablation = Ablation(mode=mode, value=gate, donors=donors)
    frame = ablation_sweep(model, batch, ablation, sets=[HEADS])
    rows = frame.set_index("metric")
    shown = dataclasses.replace(view, ablated=("L0H1", "L1H0"), mode=mode, gate=gate)
    found = effects.effect(shown)
    for metric in ("loss", "exact_match", "token_accuracy"):
        assert found.ablated[metric] == rows["ablated"][metric]
        assert found.change[metric]["ci_low"] == rows["ci_low"][metric]


def test_one_pass_resamples_from_the_first_donor_and_keeps_what_the_gate_says(view):
    shown = dataclasses.replace(view, ablated=("L0H1",), mode="resample", gate=0.25)
    gates = models.gates_of(shown)
    assert gates is not None and gates.fill is not None
    assert gates.fill[:, 0].equal(models.donors(view).z[0])
    assert gates.g[0, 0, 0].tolist() == [1.0, 0.25]


def test_restored_numbers_are_the_same_bits_as_the_first(view):
    first = effects.intact_numbers(view)
    for heads in (("L0H0",), ("L0H0", "L0H1"), ("L1H1",)):
        changed = effects.effect(dataclasses.replace(view, ablated=heads))
        assert changed.ablated["loss"] != changed.baseline["loss"]
        effects.intact_numbers.clear()  # measured again, not remembered
        assert effects.intact_numbers(view) == first


def test_every_part_of_the_view_changes_the_numbers(view):
    """A part that were missing from a cache's key would show another view's numbers."""
    raw = next(run for run in loaders.all_runs() if run.name == "raw")
    one = dataclasses.replace(view, ablated=("L0H0",))
    variants = [
        one,
        dataclasses.replace(one, step=20),
        dataclasses.replace(one, ablated=("L0H1",)),
        dataclasses.replace(one, mode="mean"),
        dataclasses.replace(one, mode="resample"),
        dataclasses.replace(one, gate=0.5),
        dataclasses.replace(one, mode="mean", gate=0.5),
        dataclasses.replace(one, run=raw, step=0),
        dataclasses.replace(one, step=0),
    ]
    losses = [effects.effect(variant).ablated["loss"] for variant in variants]
    assert len(set(losses)) == len(variants)
    assert [effects.effect(variant).ablated["loss"] for variant in variants] == losses
    keys = [effects.joint_key(variant) for variant in variants]
    assert len(set(keys)) == len(variants)
    # Two untrained models of one seed say the same.
    texts = [loaders.next_tokens(variant, "abcd").places for variant in variants[:-2]]
    assert all(one != other for i, one in enumerate(texts) for other in texts[:i])


def test_the_joint_effect_says_who_is_redundant(view):
    told = []
    rows = effects.joint_effect(
        dataclasses.replace(view, ablated=("L0H0", "L0H1", "L1H0")),
        lambda done, total: told.append((done, total)),
    )
    assert [row["head"] for row in rows] == [None, 0, 1, 0]
    assert rows[0]["n_sequences"] == 500  # as many as `headlab ablate` takes
    assert [row["verdict"] for row in rows] == ["needed", "needed", "redundant", "redundant"]
    assert rows[0]["ci_low"] > rows[0]["singles"]
    assert (
        told[-1][0]
        == told[-1][1]
        == 1 + effects.joint_runs(dataclasses.replace(view, ablated=("L0H0", "L0H1", "L1H0")))
    )


def test_a_curve_is_measured_as_the_report_has_it(view):
    """The report of `tiny` is of fewer sequences: the heads and the steps are the same."""
    reported = loaders.reported_curve(view)
    measured = effects.measured_curve(view, lambda done, total: None)
    assert reported is not None and measured is not None
    assert [len(gone) for gone in measured.gone] == [len(gone) for gone in reported.gone]
    assert measured.n_orders == reported.n_orders == 20
    assert measured.n_sequences == effects.CURVE_SEQUENCES
    assert measured.spare.keys() == {(o, w) for o in ("greedy", "random") for w in (0.01, 0.05)}
    assert loaders.reported_curve(dataclasses.replace(view, step=20)) is None
    assert loaders.reported_curve(dataclasses.replace(view, mode="mean")) is None
