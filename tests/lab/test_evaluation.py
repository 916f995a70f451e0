"""Loss and accuracies against loops in plain Python, and what an evaluation must leave alone."""

import dataclasses
import math

import pytest
import torch
from torch import nn

from lab.config import ModelConfig
from lab.evaluation import Evaluation, answer_loss, evaluate
from lab.gates import GateTensors, HeadGates
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.copying import Copying
from lab.tasks.induction import Induction
from lab.tasks.reversal import Reversal


class RecordedModel(nn.Module):
    """Random logits that favour the right answer a little, handed out sequence by sequence."""

    def __init__(self, batch: Batch, d_vocab: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(*batch.tokens.shape, d_vocab, generator=generator, dtype=torch.float64)
        favour = nn.functional.one_hot(batch.tokens.roll(-1, dims=1), d_vocab)
        self.logits = nn.Parameter(noise + 1.5 * favour)
        self.dropout = nn.Dropout(0.5)
        self.calls = []

    def forward(self, tokens, *, gates=None):
        start = sum(n for n, *_ in self.calls)
        self.calls.append((len(tokens), gates, torch.is_grad_enabled(), self.training))
        if start == len(self.logits):
            raise RuntimeError("no more logits")
        return self.dropout(self.logits[start : start + len(tokens)])


def naive(logits: torch.Tensor, batch: Batch) -> tuple[Evaluation, list[float]]:
    """Every definition written out, one number at a time."""
    losses, right, exact, sequence_losses = [], [], [], []
    for b in range(len(batch)):
        own, ok = [], []
        for p in range(batch.tokens.shape[1]):
            if batch.loss_mask[b, p]:
                row = logits[b, p].tolist()
                target = int(batch.tokens[b, p + 1])
                own.append(math.log(sum(math.exp(x) for x in row)) - row[target])
                ok.append(row.index(max(row)) == target)
        losses += own
        right += ok
        if own:
            exact.append(all(ok))
            sequence_losses.append(sum(own) / len(own))
    evaluation = Evaluation(
        loss=sum(losses) / len(losses),
        token_accuracy=sum(right) / len(right),
        exact_match=sum(exact) / len(exact),
        n_sequences=len(exact),
    )
    return evaluation, sequence_losses


TASKS = [
    Reversal(length=2, n_symbols=2),
    Copying(length=3, n_symbols=2),
    Induction(length=3, n_symbols=3),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("chunk", [1, 7, 20, 500])
def test_evaluation_equals_the_definitions_in_every_chunking(task, chunk):
    batch = task.sample(20, seed=0)
    model = RecordedModel(batch, task.d_vocab)
    want, _ = naive(model.logits, batch)
    assert 0 < want.exact_match < want.token_accuracy < 1  # else the comparison says little
    got = evaluate(model, batch, chunk=chunk)
    assert dataclasses.asdict(got) == pytest.approx(dataclasses.asdict(want), abs=1e-12)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_answer_loss_equals_the_definition(task):
    batch = task.sample(20, seed=1)
    logits = RecordedModel(batch, task.d_vocab).logits
    want, sequences = naive(logits, batch)
    assert answer_loss(logits, batch).item() == pytest.approx(want.loss, abs=1e-12)
    got = answer_loss(logits, batch, reduce="sequence").tolist()
    assert got == pytest.approx(sequences, abs=1e-12)


def test_sequences_with_different_numbers_of_rows_weigh_by_their_rows():
    tokens = torch.tensor([[0, 1, 2, 0], [0, 2, 1, 0]])
    mask = torch.tensor([[True, True, True, False], [False, True, False, False]])
    batch = Batch(tokens, mask, torch.full((2, 4, 1), -1))
    model = RecordedModel(batch, 3)
    want, _ = naive(model.logits, batch)
    assert evaluate(model, batch, chunk=1).loss == pytest.approx(want.loss, abs=1e-12)
    assert answer_loss(model.logits, batch).item() == pytest.approx(want.loss, abs=1e-12)


def test_a_sequence_without_a_row_that_counts_is_neither_right_nor_wrong():
    task = Reversal(length=2, n_symbols=2)
    batch = task.sample(20, seed=0)
    batch.loss_mask[::3] = False
    model = RecordedModel(batch, task.d_vocab)
    want, _ = naive(model.logits, batch)
    got = evaluate(model, batch, chunk=7)
    assert dataclasses.asdict(got) == pytest.approx(dataclasses.asdict(want), abs=1e-12)
    assert got.n_sequences == 13
    assert 0 < got.exact_match < 1


def test_only_the_rows_that_count_get_a_gradient():
    batch = Reversal(length=3).sample(4, seed=0)
    logits = torch.zeros(4, 8, 28, requires_grad=True)
    answer_loss(logits, batch).backward()
    assert torch.equal(logits.grad.abs().sum(dim=-1) > 0, batch.loss_mask)


def test_half_precision_logits_are_read_in_float32():
    batch = Reversal(length=3).sample(4, seed=0)
    logits = torch.randn(4, 8, 28, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert answer_loss(logits, batch).item() == answer_loss(logits.float(), batch).item()


def test_modes_are_left_as_found_even_when_the_model_fails():
    batch = Reversal(length=2).sample(3, seed=0)
    model = RecordedModel(batch, 28).train()
    model.dropout.eval()
    evaluate(model, batch)
    assert (model.training, model.dropout.training) == (True, False)
    assert model.calls == [(3, None, False, False)]  # no gradient, eval mode
    with pytest.raises(RuntimeError, match="no more logits"):
        evaluate(model, batch)
    assert (model.training, model.dropout.training) == (True, False)
    assert torch.is_grad_enabled()


def test_gates_reach_every_forward_pass():
    batch = Reversal(length=2).sample(5, seed=0)
    model = RecordedModel(batch, 28)
    gates = HeadGates(heads=((0, 0),))
    evaluate(model, batch, gates=gates, chunk=2)
    assert [(n, got) for n, got, *_ in model.calls] == [(2, gates), (2, gates), (1, gates)]


def test_nothing_to_measure_is_refused():
    batch = Reversal(length=2).sample(5, seed=0)
    model = RecordedModel(batch, 28)
    batch.loss_mask[:2] = False
    for nothing in (batch[:0], batch[:2]):
        with pytest.raises(
            ValueError,
            match=r"^a batch to evaluate must have at least 1 row that counts, got none in "
            rf"{len(nothing)} sequences; give",
        ):
            evaluate(model, nothing)
    with pytest.raises(ValueError, match=r"^chunk must be a whole number of at least 1, got 0$"):
        evaluate(model, batch, chunk=0)


@pytest.fixture
def model() -> HookedGPT:
    config = ModelConfig(
        n_layers=2, n_heads=2, d_model=8, d_vocab=5, n_ctx=8, initializer_range=0.5
    )
    return HookedGPT(config).double()


def test_a_gated_evaluation_is_that_of_the_model_without_the_head(model):
    batch = Reversal(length=3, n_symbols=3).sample(50, seed=0)
    gated = evaluate(model, batch, gates=HeadGates.ablate([(0, 1)], like=model))
    before = evaluate(model, batch)
    with torch.no_grad():
        model.blocks[0].attn.W_O[1] = 0
    assert gated == evaluate(model, batch) != before


def test_gates_of_single_sequences_stay_with_them(model):
    batch = Reversal(length=3, n_symbols=3).sample(6, seed=0)
    g = torch.rand(2, 6, 1, 2, generator=torch.Generator().manual_seed(0)).double()
    fill = torch.randn(2, 6, 8, 2, 4, generator=torch.Generator().manual_seed(1)).double()
    gates = GateTensors(g=g, fill=fill)
    whole = evaluate(model, batch, gates=gates)
    parts = evaluate(model, batch, gates=gates, chunk=4)
    assert dataclasses.asdict(parts) == pytest.approx(dataclasses.asdict(whole), abs=1e-12)
    assert whole.loss == pytest.approx(naive(model(batch.tokens, gates=gates), batch)[0].loss)


@pytest.mark.gpu
def test_a_model_on_a_gpu_measures_a_batch_on_the_cpu(model):
    batch = Reversal(length=3, n_symbols=3).sample(50, seed=0)
    want = evaluate(model, batch, chunk=20)
    got = evaluate(model.to("cuda"), batch, chunk=20)
    assert dataclasses.asdict(got) == pytest.approx(dataclasses.asdict(want), abs=1e-12)
