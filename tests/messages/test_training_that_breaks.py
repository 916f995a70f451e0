"""Training whose numbers stop being numbers, as the command line says it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from apps.cli import main
from lab.checkpoint import load_model
from lab.runs import list_runs, open_run


@pytest.mark.parametrize(("rate", "step"), [("1e30", 2), ("1e12", None)])
def test_a_loss_that_is_no_number_stops_at_its_step_and_keeps_the_checkpoint(
    rate: str,
    step: int | None,
    home: Path,
    small: list[str],
    refusal: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [*small, "--learning-rate", rate, "--checkpoint-every", "1", "--steps", "40"]
    message = refusal("train", "reversal", "--name", "hot", *flags, remarks=True)
    run = open_run("hot", unfinished=True)
    if step is not None:
        assert message == (
            f"loss and gradient must be finite, got loss nan and gradient norm nan at step {step}; "
            f"the checkpoint of step {step - 1} is kept: train with a lower learning_rate than "
            "1e+30"
        )
    assert f"step {run.steps[-1] + 1}" in message and "lower learning_rate" in message
    kept = load_model(run.checkpoint())
    assert all(torch.isfinite(parameter).all() for parameter in kept.parameters())
    assert [run.name for run in list_runs()] == ["tiny"]
    assert main(["runs"]) == 0
    assert "hot stopped at step" in capsys.readouterr().out
