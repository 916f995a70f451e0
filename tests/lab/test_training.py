"""train(): the recipe against a plain loop, resuming to the bit, and what stops a run."""

import contextlib
import dataclasses
import math
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from lab import training
from lab.config import TrainConfig
from lab.durable import temporary_name
from lab.hooked_gpt import HookedGPT
from lab.run_folders import WEIGHTS, list_runs, open_run
from lab.runtime import Processes
from lab.tasks.registry import TASKS, get_task
from lab.trainer import learning_rate, micro_batches
from lab.training import StepRecord, train


def finish(config: TrainConfig, run_dir: Path | None = None, resume: bool = False) -> StepRecord:
    *_, record = train(config, run_dir=run_dir, resume=resume)
    assert record.final
    return record


def same_run(run_dir: Path, other: Path) -> bool:
    """Compare all but the folder's age and the speed of the steps."""
    rows = [
        [{k: repr(v) for k, v in row.items() if k != "tokens_per_second"} for row in run.metrics()]
        for run in (open_run(run_dir), open_run(other))
    ]
    same = (run_dir / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
    return same and rows[0] == rows[1]


def test_records_tell_every_step(tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = list(train(tiny_config))
    assert [record.step for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record.final for record in records] == [False] * 5 + [True]
    assert [record.evaluation is not None for record in records] == [False, False, True] * 2
    assert all(record.checkpoint is None for record in records)
    assert all(record.tokens_per_second > 0 for record in records)
    assert not records[-1].model.training and "HookedGPT" not in repr(records[-1])
    assert list(tmp_path.iterdir()) == []


def test_training_is_the_plain_recipe(tiny_config):
    # Written out once more, without any of the product's training code.
    task = get_task("reversal", length=3, n_symbols=4)
    model = HookedGPT(tiny_config.model)
    biases = [p for n, p in model.named_parameters() if ".b_" in n or n.endswith((".w", ".b"))]
    matrices = [p for p in model.parameters() if all(p is not b for b in biases)]
    assert {n for n, p in model.named_parameters() if any(p is m for m in matrices)} == {
        "embed.W_E", "pos_embed.W_pos", "unembed.W_U", "blocks.0.mlp.W_in", "blocks.0.mlp.W_out",
        *(f"blocks.0.attn.W_{letter}" for letter in "QKVO"),
    }  # fmt: skip
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=False,
    )
    falling = [3e-3 * (0.55 + 0.45 * math.cos(math.pi * k / 4)) for k in (1, 2, 3, 4)]
    config = dataclasses.replace(tiny_config, grad_clip=0.5)
    records = train(config)
    for step, rate in enumerate([1.5e-3, 3e-3, *falling], start=1):
        batch = task.sample(8, seed=0, split="train", step=step)
        log_probs = model(batch.tokens).log_softmax(dim=-1)
        # Answers y1..y3 stand at 5..7 and are predicted from 4..6.
        picked = log_probs[:, 4:7].gather(2, batch.tokens[:, 5:8, None])
        loss = -picked.mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= min(1.0, 0.5 / norm.item())
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        record = next(records)
        assert record.loss == pytest.approx(loss.item(), abs=1e-6)
        assert record.grad_norm == pytest.approx(norm.item(), abs=1e-6)
        assert record.learning_rate == pytest.approx(rate, abs=1e-12)
        for got, wanted in zip(record.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


def test_learning_rate_warms_up_then_falls_to_its_share(tiny_config):
    config = dataclasses.replace(tiny_config, steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [learning_rate(config, step) for step in range(1, 101)]
    assert rates[:10] == pytest.approx([k / 10 for k in range(1, 11)])
    assert rates[54] == pytest.approx(0.55) and rates[99] == pytest.approx(0.1)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert learning_rate(dataclasses.replace(config, steps=1, warmup_steps=0), 1) == 0.1


def test_every_process_and_micro_batch_takes_its_slice(tiny_config):
    task, cpu = get_task("reversal", length=3, n_symbols=4), torch.device("cpu")
    whole = task.sample(8, seed=0, split="train", step=5)
    for count, accumulate in ((1, 1), (1, 4), (2, 1), (2, 2), (4, 2)):
        config = dataclasses.replace(tiny_config, accumulate=accumulate)
        parts = [
            batch.tokens
            for index in range(count)
            for batch in micro_batches(task, config, Processes(count, index), cpu, 5)
        ]
        assert len(parts) == count * accumulate
        assert torch.equal(torch.cat(parts), whole.tokens)


@pytest.mark.parametrize("name", [entry.name for entry in TASKS])
def test_accumulation_gives_the_mean_over_the_whole_batch(tiny_config, name):
    # True because every sequence has as many answers, so that a mean of means is the mean.
    counts = get_task(name, length=2, n_symbols=4).sample(8, seed=0).loss_mask.sum(dim=1)
    assert len(counts.unique()) == 1
    config = dataclasses.replace(tiny_config, task=name, length=2)
    plain = list(train(config))
    parts = list(train(dataclasses.replace(config, accumulate=4)))
    for one, four in zip(plain, parts, strict=True):
        assert one.loss == pytest.approx(four.loss, abs=1e-6)
    wanted = dict(plain[-1].model.named_parameters())
    for weight, got in parts[-1].model.named_parameters():
        # A softmax does not see b_K: its gradient is rounding noise, which Adam scales up.
        if not weight.endswith("b_K"):
            torch.testing.assert_close(got, wanted[weight], rtol=0, atol=1e-6)


def test_seeds_are_the_configs_and_no_global_one_is_touched(tiny_config):
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002  the global state is what is looked at
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, again = finish(tiny_config), finish(tiny_config)
    other = finish(dataclasses.replace(tiny_config, seed=1))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(first.model.W_E, again.model.W_E)
    assert not torch.equal(first.model.W_E, other.model.W_E)


def test_precisions_follow_each_other_in_one_process(tiny_config):
    plain = finish(tiny_config)
    half = finish(dataclasses.replace(tiny_config, precision="bf16"))
    again = finish(tiny_config)
    assert torch.equal(plain.model.W_U, again.model.W_U)
    assert not torch.equal(plain.model.W_U, half.model.W_U)
    assert half.model.W_U.dtype == torch.float32
    torch.testing.assert_close(half.model.W_U, plain.model.W_U, rtol=0, atol=0.01)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_stopped_run_resumes_to_the_same_bits(tiny_config, finished_run, tmp_path, stop):
    run_dir = tmp_path / "tiny"
    with contextlib.closing(train(tiny_config, run_dir=run_dir)) as records:
        for record in records:
            if record.step == stop:
                break
    assert open_run(run_dir, unfinished=True).steps[-1] == stop
    assert list_runs(tmp_path) == []
    steps = [record.step for record in train(tiny_config, run_dir=run_dir, resume=True)]
    assert steps == list(range(stop + 1, 7))
    assert same_run(run_dir, finished_run)


def test_resume_starts_a_run_and_repeats_the_end_of_a_complete_one(
    tiny_config, finished_run, tmp_path
):
    run_dir = tmp_path / "tiny"
    started = finish(tiny_config, run_dir, resume=True)
    assert same_run(run_dir, finished_run)
    files = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    again = finish(tiny_config, run_dir, resume=True)
    assert (again.step, again.loss, again.evaluation) == (6, started.loss, started.evaluation)
    assert torch.equal(again.model.W_E, started.model.W_E)
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == files


@pytest.mark.parametrize("n", [0, 8, 15, 16, 17, 20, 27, 44, 46, 49])
def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(
    tiny_config, finished_run, tmp_path, dies_at_sync, n
):
    run_dir = tmp_path / "home" / "tiny"
    dies_at_sync(lambda: finish(tiny_config, run_dir, resume=True), n)
    assert all(open_run(run.path).file(WEIGHTS) for run in list_runs(run_dir.parent))
    finish(tiny_config, run_dir, resume=run_dir.exists())
    assert same_run(run_dir, finished_run)
    assert [path.name for path in run_dir.parent.iterdir()] == ["tiny"]
    assert not list(run_dir.rglob(".*"))


def test_ctrl_c_ends_the_step_and_keeps_it(tiny_config, finished_run, tmp_path, monkeypatch):
    evaluate = training.Trainer.evaluation

    def pressed(trainer):
        signal.raise_signal(signal.SIGINT)
        return evaluate(trainer)

    monkeypatch.setattr(training.Trainer, "evaluation", pressed)
    before = signal.getsignal(signal.SIGINT)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(record.step for record in train(tiny_config, run_dir=tmp_path / "tiny"))
    assert signal.getsignal(signal.SIGINT) is before
    assert open_run(tmp_path / "tiny", unfinished=True).steps == (0, 2, 3)
    monkeypatch.undo()
    finish(tiny_config, tmp_path / "tiny", resume=True)
    assert same_run(tmp_path / "tiny", finished_run)


def test_an_existing_folder_is_not_written_into(tiny_config, finished_run, weights_only, tmp_path):
    run_dir = shutil.copytree(finished_run, tmp_path / "tiny")
    with pytest.raises(
        ValueError, match=r"^run folder must be new, got .*; choose another name or"
    ):
        train(tiny_config, run_dir=run_dir)
    for field, value, message in (
        ("learning_rate", 0.5, r"got learning_rate 0\.5 where 'tiny' has 0\.003; leave it as it"),
        (
            "model",
            dataclasses.replace(tiny_config.model, seed=1),
            "got model.seed 1 where .* has 0;",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            train(dataclasses.replace(tiny_config, **{field: value}), run_dir=run_dir, resume=True)
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match=r"run must be a folder with a config\.json, got"):
        train(tiny_config, run_dir=tmp_path / "notes", resume=True)
    with pytest.raises(ValueError, match="run name must be 1 to 100 letters"):
        train(tiny_config, run_dir=tmp_path / "a name")
    weights_only(run_dir)
    with pytest.raises(
        ValueError, match=r"must have its training state .* weights only \(stripped\)"
    ):
        train(tiny_config, run_dir=run_dir, resume=True)


def test_one_process_trains_a_run(tiny_config, tmp_path):
    records = train(tiny_config, run_dir=tmp_path / "tiny")
    next(records)
    with pytest.raises(ValueError, match="folder must not be in use, got"):
        next(train(tiny_config, run_dir=tmp_path / "tiny", resume=True))
    records.close()


def test_leftovers_of_a_killed_start_do_not_block_the_next(tiny_config, tmp_path):
    left = temporary_name(tmp_path / "tiny")
    (left / "checkpoints").mkdir(parents=True)
    finish(tiny_config, tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_config_must_fit_task_and_processes(tiny_config):
    model = tiny_config.model
    for changes, message in (
        ({"n_symbols": 5}, "d_vocab must be 7 for reversal of length 3 with 5 symbols, got 6"),
        ({"model": dataclasses.replace(model, n_ctx=7)}, "n_ctx must be at least 8 for reversal"),
        ({"model": dataclasses.replace(model, d_vocab_out=7)}, "d_vocab_out must be d_vocab = 6"),
        (
            {"model": dataclasses.replace(model, attention_dir="bidirectional")},
            "attention_dir must be 'causal' to learn reversal",
        ),
        ({"task": "reversl"}, r"unknown task 'reversl'; .* \(did you mean 'reversal'\?\)"),
        ({"device": "cpu:x"}, "unknown device 'cpu:x'; choose from auto, cpu, cuda, mps"),
    ):
        with pytest.raises(ValueError, match=message):
            train(dataclasses.replace(tiny_config, **changes))
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ValueError, match="accumulate x proc"),
    ):
        patch.setattr("lab.training.join_processes", lambda device: Processes(3, 0))
        train(tiny_config)


def test_nan_stops_at_its_step_and_keeps_the_checkpoint_before(
    tiny_config, finished_run, tmp_path, monkeypatch
):
    step = training.Trainer.step
    monkeypatch.setattr(
        training.Trainer, "step", lambda t, s: step(t, s) | ({"loss": math.nan} if s == 5 else {})
    )
    with pytest.raises(
        ValueError, match=r"^loss and gradient must be finite, got loss nan .*"
    ) as e:
        finish(tiny_config, tmp_path / "tiny")
    assert "at step 5; the checkpoint of step 4 is kept: train with a lower learning" in str(
        e.value
    )
    monkeypatch.undo()
    assert open_run(tmp_path / "tiny", unfinished=True).steps == (0, 2, 4)
    finish(tiny_config, tmp_path / "tiny", resume=True)
    assert same_run(tmp_path / "tiny", finished_run)


def test_a_learning_rate_that_breaks_the_weights_is_named(tiny_config, tmp_path):
    config = dataclasses.replace(tiny_config, learning_rate=1e38)
    with pytest.raises(ValueError, match=r"must be finite, got .* at step \d.*lower learning_rate"):
        finish(config, tmp_path / "tiny")
    run = open_run(tmp_path / "tiny", unfinished=True)
    assert torch.isfinite(HookedGPT.load(run.checkpoint()).W_E).all()


@pytest.mark.parametrize("room", [150, 5000, 8000])
def test_a_disk_that_fills_up_loses_no_checkpoint(
    tiny_config, finished_run, tmp_path, full_disk, room
):
    # The metrics, the weights or the moments no longer fit.
    run_dir = tmp_path / "tiny"
    records = train(tiny_config, run_dir=run_dir)
    next(records)
    with full_disk(room), pytest.raises(OSError, match=r"^place for output must be on a disk with"):
        for record in records:
            assert record.step <= 2
    assert open_run(run_dir, unfinished=True).steps == (0,)
    assert list_runs(tmp_path) == []
    finish(tiny_config, run_dir, resume=True)
    assert same_run(run_dir, finished_run)


@pytest.mark.parametrize("place", ["/proc/headlab/tiny", "file/tiny"])
def test_a_place_that_cannot_be_written_is_one_line(tiny_config, tmp_path, place):
    (tmp_path / "file").write_bytes(b"")
    run_dir = Path(place) if place.startswith("/") else tmp_path / place
    with pytest.raises(OSError, match=r"^place for output must be writable, got '.*'; choose ano"):
        finish(tiny_config, run_dir)
