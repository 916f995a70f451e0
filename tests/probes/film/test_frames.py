"""Frames of a film against the probes they repeat, and onsets against curves drawn by hand."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from lab.hooked_gpt import HookedGPT
from lab.run_folders import open_run
from lab.tasks.registry import get_task
from probes.attention.heads import score_heads
from probes.film.frames import (
    Camera,
    dynamics_table,
    film_checkpoints,
    find_onsets,
    mean_and_error,
    onset_rows,
)
from probes.reading.observed_model import slices_of
from probes.registry import probe_names
from probes.schemas.film import DYNAMICS, ONSETS
from probes.tables import make_table


def frame_of(camera: Camera, model, step: int = 0) -> pd.DataFrame:
    return dynamics_table([camera.frame(model, step)], camera.provenance(model))


@pytest.mark.parametrize("most_chosen", [2**22, 0])
@pytest.mark.parametrize("at_once", [16_384, 30])
def test_a_frame_has_the_scores_of_score_heads(
    small_model, at_once, most_chosen, monkeypatch
) -> None:
    monkeypatch.setattr("probes.film.frames.MOST_CHOSEN", most_chosen)  # whole matrices, or cells
    # Of 14 tokens each, two sequences are 28: then the batch takes three forward passes.
    monkeypatch.setattr("probes.film.frames.slices_of", partial(slices_of, at_once=at_once))
    batch = get_task("reversal", length=6, n_symbols=4).sample(5, seed=1, split="test")
    frame = frame_of(Camera(batch), small_model, 7)
    expected = score_heads(small_model, batch)
    assert (frame["step"] == 7).all()
    for name in ("layer", "head", "probe", "n_sequences", "n_rows", "unit"):
        assert frame[name].tolist() == expected[name].tolist(), name
    for name in ("score", "chance", "kappa"):
        # A film keeps nine digits.
        np.testing.assert_allclose(frame[name], expected[name], rtol=1e-8, atol=1e-9)
    assert frame.attrs["tokens_sha256"] == expected.attrs["tokens_sha256"]


def test_a_frame_keeps_the_original_ids_of_a_pruned_model(build_model, repeating_batch) -> None:
    pruned = build_model(kept_heads=((2,), ()))
    frame = frame_of(Camera(repeating_batch, ["previous", "first"]), pruned)
    assert frame[["layer", "head", "probe"]].to_numpy().tolist() == [
        [0, 2, "previous"],
        [0, 2, "first"],
    ]
    nothing = frame_of(Camera(repeating_batch), build_model(kept_heads=((), ())))
    assert nothing.empty
    assert list(nothing.columns) == DYNAMICS.names


def test_a_probe_without_rows_is_nan(build_model) -> None:
    batch = get_task("reversal", length=1, n_symbols=1).sample(3, seed=0)
    frame = frame_of(Camera(batch, ["sources_plus_2", "first"]), build_model()).set_index("probe")
    nothing = frame.loc["sources_plus_2"]
    assert nothing[["score", "chance", "kappa", "std_error"]].isna().all(axis=None)
    assert (nothing["n_rows"] == 0).all()
    assert frame.loc["first", "score"].between(0, 1).all()


def test_the_standard_error_is_that_of_a_ratio() -> None:
    generator = np.random.default_rng(0)
    rows = np.array([[4.0, 4.0, 4.0, 4.0, 4.0], [3.0, 0.0, 1.0, 2.0, 5.0]])
    masses = generator.random((2, 5, 3)) * rows[:, :, None]
    score, error = mean_and_error(masses, rows)
    each = masses[0] / 4.0
    np.testing.assert_allclose(score[0], each.mean(axis=0))
    np.testing.assert_allclose(error[0], each.std(axis=0, ddof=1) / math.sqrt(5))
    for column in range(3):
        mean = sum(masses[1, :, column]) / 11.0
        squares = sum((masses[1, b, column] - mean * rows[1, b]) ** 2 for b in (0, 2, 3, 4))
        assert score[1, column] == pytest.approx(mean)
        assert error[1, column] == pytest.approx(math.sqrt(4 / 3 * squares) / 11.0)
    assert np.isnan(mean_and_error(masses[:, :1], rows[:, :1])[1]).all()


def test_a_film_of_the_checkpoints_is_a_frame_of_each(studio_home) -> None:
    run = open_run(studio_home / "tiny")
    film = film_checkpoints(run, sequences=30, probes=["sources", "first"])
    assert film["step"].unique().tolist() == [0, 20, 40, 60]
    assert film.attrs["run"] == "tiny"
    batch = get_task("reversal", length=4, n_symbols=8).sample(30, seed=0, split="test")
    for step, frame in film.groupby("step"):
        model = HookedGPT.load(run.path, step=step)
        expected = score_heads(model, batch, ["sources", "first"])
        np.testing.assert_allclose(frame["score"], expected["score"], rtol=1e-6)
    onsets = find_onsets(film)
    assert set(zip(onsets["layer"], onsets["probe"], strict=True)) == {(0, "sources")}
    with pytest.raises(ValueError, match="unknown probe 'soruces'"):
        film_checkpoints(run, probes=["soruces"])
    with pytest.raises(ValueError, match="sequences must be a whole number of at least 1, got 0"):
        film_checkpoints(run, sequences=0)


def drawn(*curves: list[float], chance: float = 0.1) -> pd.DataFrame:
    """Return a film of one layer, a head for each curve of kappa, a frame every ten steps."""
    rows = [
        (10 * i, 0, head, "induction", chance + (1 - chance) * kappa, chance, kappa, 0.01, 9, 99)
        for head, curve in enumerate(curves)
        for i, kappa in enumerate(curve)
    ]
    columns = dict(zip(DYNAMICS.names, zip(*rows, strict=True), strict=False))
    return make_table(columns | {"unit": ["mean probability"] * len(rows)}, DYNAMICS, {"run": "x"})


def test_an_onset_is_the_middle_of_the_rise() -> None:
    film = drawn(
        [0.0, 0.1, 0.49, 0.51, 0.9, 1.0],  # between 20 and 30
        [0.0, 0.6, 0.1, 0.2, 0.7, 0.8],  # a spike alone is none: between 30 and 40
        [0.0, 0.0, 0.1, 0.15, 0.19, 0.1],  # does not rise enough
        [0.9, 0.9, 1.0, 1.0, 1.0, 1.0],  # was there before
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.9],  # in the last frame
        [0.0, 0.9, 0.9, 0.1, 0.0, 0.0],  # rises and falls
        [0.0, 0.0, 0.9, 0.0, 0.0, 0.0],  # one frame only
        [math.nan] * 6,
    )
    found = find_onsets(film)
    assert list(found.columns) == ONSETS.names
    assert found.attrs["run"] == "x"
    told = found[["head", "step_before", "step"]].to_numpy().tolist()
    assert told == [[0, 20, 30], [1, 30, 40], [4, 40, 50], [5, 0, 10]]
    first = found.iloc[0]
    assert first["score_before"] == pytest.approx(0.1 + 0.9 * 0.49)
    assert first["score"] == pytest.approx(0.1 + 0.9 * 0.51)
    assert (first["first"], first["highest"], first["last"]) == pytest.approx((0.1, 1.0, 1.0))
    assert [row["head"] for row in onset_rows(found)] == [5, 0, 1, 4]
    assert len(find_onsets(film.sample(frac=1.0, random_state=0))) == 4


def test_one_frame_has_no_onset() -> None:
    assert find_onsets(drawn([1.0])).empty
    with pytest.raises(ValueError, match="columns of the dynamics table must be step, layer"):
        find_onsets(drawn([1.0]).drop(columns="step"))


def test_every_probe_is_filmed(repeating_batch, small_model) -> None:
    frame = frame_of(Camera(repeating_batch), small_model)
    assert tuple(frame["probe"].unique()) == probe_names()
    assert torch.equal(repeating_batch.tokens, Camera(repeating_batch).tokens)
