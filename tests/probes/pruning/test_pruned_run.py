"""Pruned runs: whole folders, verified by reading back, pruned again by original ids."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from lab.config import ModelConfig, TrainConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.presets import get_preset
from lab.run_folders import Run, list_runs, open_run
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from lab.training import train
from probes.ablation.table import mean_reference
from probes.pruning import pruned_run
from probes.pruning.pruned_run import export_pruned_model, export_pruned_run
from probes.pruning.removing import prune_heads


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A few steps of a small model: enough to be a run."""
    preset = get_preset("reversal")
    model = ModelConfig(n_layers=2, n_heads=3, d_model=12, d_head=5, d_vocab=28, n_ctx=12)
    config: TrainConfig = dataclasses.replace(
        preset, model=model, length=4, steps=4, batch_size=8, eval_sequences=16, checkpoint_every=2
    )
    path = tmp_path_factory.mktemp("runs") / "parent"
    for _ in train(config, run_dir=path):
        pass
    return open_run(path)


@pytest.fixture
def batch() -> Batch:
    return get_task("reversal", length=4).sample(20, seed=0, split="test")


def test_export_reads_back_as_the_gated_model(trained: Run, batch: Batch, tmp_path: Path) -> None:
    result = export_pruned_run(trained, [(0, 1), (1, 0)], tmp_path / "small", batch)
    run = open_run(tmp_path / "small")
    model, small = HookedGPT.load(trained.path), HookedGPT.load(run.path)
    gates = HeadGates.ablate([(0, 1), (1, 0)], like=model)
    difference = (small(batch.tokens) - model(batch.tokens, gates=gates)).abs().max().item()
    assert difference == result.certificate.max_logit_difference <= 1e-5
    assert result.gated.exact_match == result.pruned.exact_match
    assert run.config.model.kept_heads == ((0, 2), (1, 2))
    written = json.loads(run.file("parity.json").read_text())
    assert written == result.certificate.to_dict()
    assert written["weights_sha256"] == run.files["model.safetensors"].sha256
    assert written["fine_tuned_steps"] == 0
    came_from = run.info["pruned_from"]
    assert came_from["weights_sha256"] == trained.files["model.safetensors"].sha256
    assert came_from["heads"] == ["L0H1", "L1H0"]
    assert run.metrics()[-1]["eval_loss"] == pytest.approx(result.pruned.loss)
    assert [r.name for r in list_runs(tmp_path)] == ["small"]


def test_pruned_again_by_original_ids(trained: Run, batch: Batch, tmp_path: Path) -> None:
    export_pruned_run(trained, [(0, 0)], tmp_path / "once", batch)
    twice = export_pruned_run(open_run(tmp_path / "once"), [(0, 2)], tmp_path / "twice", batch)
    direct = export_pruned_run(trained, [(0, 0), (0, 2)], tmp_path / "direct", batch)
    assert direct.certificate.heads == "L0H0,L0H2" and direct.certificate.heads_gone_before == ""
    # What a step did and what had been done before it stand apart.
    assert twice.certificate.heads == "L0H2" and twice.certificate.heads_gone_before == "L0H0"
    a, b = HookedGPT.load(tmp_path / "twice"), HookedGPT.load(tmp_path / "direct")
    assert torch.equal(a(batch.tokens), b(batch.tokens))
    assert open_run(tmp_path / "twice").info["pruned_from"]["parent"]["run"] == "parent"


def test_checkpoint_and_mean(trained: Run, batch: Batch, tmp_path: Path) -> None:
    model = HookedGPT.load(trained.path, step=2)
    reference = mean_reference(model, batch, per_position=False)
    result = export_pruned_run(
        trained, [(1, 1)], tmp_path / "mean", batch, step=2, mode="mean", reference=reference
    )
    assert result.certificate.holds
    assert open_run(tmp_path / "mean").steps == (2,)


def test_nothing_is_left_when_it_cannot_be(
    trained: Run, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="unknown head 'L5H0'"):
        export_pruned_run(trained, [(5, 0)], tmp_path / "a", batch)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ValueError, match="folder must be new"):
        export_pruned_run(trained, [(0, 0)], tmp_path / "taken", batch)
    # A model that is not the gated one is not given a name.
    with monkeypatch.context() as patch:
        patch.setattr(
            pruned_run, "prune_heads", lambda model, *_, **__: prune_heads(model, [(0, 1)])
        )
        with pytest.raises(ValueError, match=r"logits must be within 1e-05 of the gated"):
            export_pruned_run(trained, [(0, 0)], tmp_path / "b", batch)
    # Nor are weights that do not read back to the last bit, trained on or not.

    load = HookedGPT.load

    def read_amiss(path: Path, device: str = "cpu", step: int | None = None) -> HookedGPT:
        model = load(path, device, step)
        if path != trained.path:
            model.blocks[0].attn.b_O.data[0] *= -1  # one bit, of 0.0 too
        return model

    monkeypatch.setattr(HookedGPT, "load", read_amiss)
    for steps in (0, 2):
        with pytest.raises(ValueError, match=r"weights must read back as they were written, with"):
            export_pruned_run(trained, [(0, 0)], tmp_path / "c", batch, fine_tune=steps)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["taken"]


def test_fine_tuning_follows_the_certificate(trained: Run, batch: Batch, tmp_path: Path) -> None:
    heads = [(0, 0), (1, 0), (1, 1), (1, 2)]
    plain = export_pruned_run(trained, heads, tmp_path / "plain", batch)
    tuned = export_pruned_run(trained, heads, tmp_path / "tuned", batch, fine_tune=12)
    assert plain.tuned is None and tuned.tuned is not None
    assert tuned.pruned == plain.pruned
    assert tuned.certificate.max_logit_difference == plain.certificate.max_logit_difference
    # The certificate tells that it is of the weights before training, and which those are.
    proof = json.loads((tmp_path / "tuned" / "parity.json").read_text())
    assert proof["fine_tuned_steps"] == 12
    assert proof["weights_sha256"] == plain.certificate.weights_sha256
    saved = open_run(tmp_path / "tuned").files["model.safetensors"].sha256
    assert proof["weights_sha256"] != saved
    assert tuned.tuned.loss < tuned.pruned.loss
    run = open_run(tmp_path / "tuned")
    assert run.steps == (16,) and run.metrics()[-1]["step"] == 16
    assert run.info["pruned_from"]["fine_tuned_steps"] == 12
    assert run.metrics()[-1]["eval_loss"] == pytest.approx(tuned.tuned.loss)
    model = HookedGPT.load(run.path)
    assert model.config.kept_heads == ((1, 2), ())
    assert open_run(trained.path).files == trained.files


class TestFolderOfAForeignModel:
    """A model that is no run: its folder opens everywhere, with its tokenizer."""

    @pytest.fixture
    def model(self) -> HookedGPT:
        from tokenizers import Tokenizer, models, processors
        from transformers import PreTrainedTokenizerFast

        config = ModelConfig(
            n_layers=2, n_heads=4, n_key_value_heads=2, d_model=16, d_vocab=28, n_ctx=12
        )
        model = HookedGPT(config).double().eval()
        words = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="a"))
        words.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
        model.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>")
        model.cfg.default_prepend_bos = True  # as from_pretrained finds it
        model.provenance = "a model of this test"
        return model

    def test_opens_again_as_the_gated_model(
        self, model: HookedGPT, batch: Batch, tmp_path: Path
    ) -> None:
        heads = [(0, 3), (1, 0), (1, 1)]
        proof = export_pruned_model(model, heads, tmp_path / "small", batch.tokens)
        assert proof.holds and proof.limit < 1e-11 and proof.heads == "L0H3,L1H0,L1H1"
        assert proof.cache_bytes_before - proof.cache_bytes_after == 2 * 4 * 8
        small = HookedGPT.load(tmp_path / "small")
        gates = HeadGates.ablate(heads, like=model)
        difference = (small(batch.tokens) - model(batch.tokens, gates=gates)).abs().max().item()
        assert difference == proof.max_logit_difference
        assert small.provenance == model.provenance
        assert small.tokenizer.get_vocab() == model.tokenizer.get_vocab()
        assert small.to_tokens("a").tolist() == model.to_tokens("a").tolist() == [[0, 1]]
        written = json.loads((tmp_path / "small" / "parity.json").read_text())
        assert written == proof.to_dict()
        told = json.loads((tmp_path / "small" / "config.json").read_text())["pruned_from"]
        assert told["heads"] == ["L0H3", "L1H0", "L1H1"] and told["mode"] == "zero"
        again = export_pruned_model(small, [(0, 2)], tmp_path / "again", batch.tokens)
        assert again.heads == "L0H2" and again.heads_gone_before == "L0H3,L1H0,L1H1"

    def test_headlab_probe_reads_it(
        self,
        model: HookedGPT,
        batch: Batch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from apps.cli import main

        export_pruned_model(model, [(0, 3), (1, 0)], tmp_path / "small", batch.tokens)
        assert main(["probe", str(tmp_path / "small"), "--sequences", "4"]) == 0
        out = capsys.readouterr().out
        assert "L0H2" in out and "L1H3" in out
        assert "L0H3" not in out and "L1H0" not in out

    def test_nothing_is_left_of_a_model_that_differs(
        self, model: HookedGPT, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pruned_run, "prune_heads", lambda model, heads, **given: model)
        with pytest.raises(ValueError, match=r"logits must be within .* nothing was written"):
            export_pruned_model(model, [(0, 0)], tmp_path / "small", batch.tokens)
        assert not list(tmp_path.iterdir())
