"""Training whose numbers stop being numbers, as the command line says it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from apps.cli import main
from lab.durable import hold
from lab.hooked_gpt import HookedGPT
from lab.run_folders import MetricsRow, list_runs, open_run
from lab.trainer import Trainer


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
    kept = HookedGPT.load(run.checkpoint())
    assert all(torch.isfinite(parameter).all() for parameter in kept.parameters())
    assert [run.name for run in list_runs()] == ["tiny"]
    assert main(["runs"]) == 0
    assert "hot stopped at step" in capsys.readouterr().out


@pytest.mark.parametrize("step", [1, 3])
def test_a_step_that_no_memory_holds_leaves_only_what_was_learned(
    step: int,
    home: Path,
    small: list[str],
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Trainer.step

    def too_large(trainer: Trainer, number: int) -> MetricsRow:
        if number == step:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 41339060224 bytes. Error code 12"
            )
        return usual(trainer, number)

    monkeypatch.setattr(Trainer, "step", too_large)
    message = refusal("train", "reversal", "--name", "large", *small, remarks=True)
    assert message == (
        "model and batch must fit into memory, got too little for 41.3 GB at once; make the model, "
        "the length or --batch-size smaller"
    )
    left = sorted(path.name for path in home.iterdir())
    assert left == (["tiny"] if step == 1 else ["large", "tiny"])
    if step == 3:
        assert open_run("large", unfinished=True).steps == (0, 2)
        monkeypatch.setattr(Trainer, "step", usual)
        assert main(["train", "--resume", "large", "--no-report"]) == 0


def test_a_run_that_is_in_use_is_refused_before_anything_is_announced(
    home: Path, refusal: Callable[..., str]
) -> None:
    (home / "tiny" / "manifest.json").unlink()
    with hold(home / "tiny"):
        assert refusal("train", "--resume", "tiny").startswith("folder must not be in use, got ")
