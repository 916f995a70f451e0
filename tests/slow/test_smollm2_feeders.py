"""Who feeds SmolLM2's induction heads: named, with a drop and a control."""

from pathlib import Path
from typing import Any

import pytest

from apps.cli import main
from lab.hooked_gpt import HookedGPT
from probes.feeders.scores import feeder_scores
from probes.reading.inputs import repeated_pair
from probes.schemas.cause import FEEDERS
from probes.tables import read_table

NAME = "smollm2-135m-instruct"

pytestmark = pytest.mark.slow


def test_the_command_names_them(
    smollm2_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm2_cache))
    assert main(["feeders", NAME, "--out", str(tmp_path / "out")]) == 0
    assert "L16H0 feeds" in capsys.readouterr().out
    frame = read_table(tmp_path / "out" / "feeders.parquet", FEEDERS)
    singles = frame[frame["head"].notna()]
    assert (singles["layer"] < singles["target_layer"]).all()
    assert len(singles["heads"].unique()) == 9 * singles["target_layer"].max()
    joint = frame[frame["head"].isna()]
    assert len(joint) == len(frame.groupby(["target_layer", "target_head"])) >= 5
    # All heads that look back, together: no induction head keeps more than an eighth of its score,
    # and as many others leave it alone.
    assert (joint["ablated"] < 0.125 * joint["baseline"]).all()
    assert joint["feeds"].all() and (joint["control"] < 0.25 * joint["drop"]).all()
    of_one = singles[(singles["target_layer"] == 17) & (singles["target_head"] == 3)]
    row: Any = of_one[of_one["heads"] == "L16H0"].iloc[0]
    assert row["feeds"] and row["previous"] > 0.8
    assert row["ci_low"] > 0.9 * row["baseline"] > 0.6
    assert abs(row["control"]) < 0.02 and row["n_controls"] >= 3
    assert row["loss_ci_low"] > 4.0 and row["loss_control"] < 0.5
    # The weights say so too, here.
    strongest: Any = of_one.sort_values("k_composition").iloc[-1]
    assert strongest["heads"] == "L16H0"


def test_all_of_it_goes_through_what_later_heads_look_at(smollm2: HookedGPT) -> None:
    """Published: 0.742 of 0.750 on 8 sequences of two blocks of 40, ids 1000 to 40000 behind 1."""
    pair = repeated_pair(smollm2, n_sequences=8, block=40, prefix=1, ids=range(1000, 40_000))
    frame = feeder_scores(smollm2, pair, targets=[(17, 3)], feeders=[(16, 0)], frozen=True)
    row: Any = frame.iloc[0]
    assert row["baseline"] == pytest.approx(0.75, abs=0.05)
    assert row["drop"] == pytest.approx(0.742, abs=0.05)
    assert row["ci_low"] > 0.9 * row["baseline"]
    assert row["loss_delta"] > 4.0
    assert abs(row["frozen_loss_delta"]) < 0.1
