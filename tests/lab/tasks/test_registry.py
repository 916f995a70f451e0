"""What every registered task promises, and how the list behaves before any task is imported."""

import subprocess
import sys

import pytest
import torch

from lab.tasks.registry import TASKS, get_task
from lab.vocab import BOS_ID

each_task = pytest.mark.parametrize("name", [entry.name for entry in TASKS])

FITTING = {"recall": "dbaed"}
"""What a person may type for tasks that do not take any five letters."""


def test_the_list_needs_no_torch():
    code = (
        "import sys; from lab.tasks.registry import TASKS; import lab.tasks;"
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_task_is_answered_with_the_names_and_a_suggestion():
    names = ", ".join(sorted(entry.name for entry in TASKS)[:12])
    with pytest.raises(ValueError, match=rf"^unknown task 'inducton'; choose from {names}.* \(did"):
        get_task("inducton")


@each_task
def test_a_task_has_the_name_and_summary_of_its_entry(name):
    entry = next(entry for entry in TASKS if entry.name == name)
    task = get_task(name, length=4, n_symbols=9)
    assert (task.name, task.summary, task.length, task.n_symbols) == (name, entry.summary, 4, 9)
    assert task.d_vocab == len(task.vocab) == 11
    assert task == get_task(name, length=4, n_symbols=9) != get_task(name, length=3, n_symbols=9)


@each_task
@pytest.mark.parametrize("length", [2, 3, 10])
def test_the_scored_rows_predict_the_answer_and_their_sources_hold_it(name, length):
    task = get_task(name, length=length)
    batch = task.sample(50, seed=0)
    assert batch.tokens.shape == batch.loss_mask.shape == (50, task.n_tokens)
    assert batch.sources.shape[:2] == batch.tokens.shape
    assert not batch.loss_mask[:, -1].any()
    x = task.draw(50, seed=0, split="train", step=0, first=0)
    answer = task.answer(x)
    for i in range(50):
        rows = batch.loss_mask[i].nonzero()[:, 0].tolist()
        assert [batch.tokens[i, p + 1].item() for p in rows] == answer[i].tolist()
        for p in range(task.n_tokens):
            keys = [s for s in batch.sources[i, p].tolist() if s >= 0]
            assert bool(keys) == (p in rows)
            for key in keys:
                assert key <= p
                assert batch.tokens[i, key] == batch.tokens[i, p + 1]


@each_task
def test_a_prompt_is_the_sequence_up_to_its_first_scored_row(name):
    task, text = get_task(name, length=5), FITTING.get(name, "dbaec")
    batch = task.sequences(task.read(text))
    prompt = task.prompt(text)
    first = batch.loss_mask[0].int().argmax().item()
    assert torch.equal(prompt, batch.tokens[:, : first + 1])
    assert torch.equal(task.answer(task.read(text)), batch.tokens[:, first + 1 :])
    assert prompt[0, 0] == BOS_ID


@each_task
def test_samples_are_a_pure_function_of_seed_split_step_and_number(name):
    task = get_task(name)
    whole = task.sample(8, seed=1, split="test", step=3)
    parts = [task.sample(4, seed=1, split="test", step=3, first=first) for first in (0, 4)]
    assert torch.equal(whole.tokens, torch.cat([part.tokens for part in parts]))
    for other in ({"seed": 2}, {"split": "train"}, {"step": 4}):
        different = task.sample(8, **({"seed": 1, "split": "test", "step": 3} | other))
        assert (different.tokens != whole.tokens).float().mean() > 0.5


@each_task
def test_sampling_leaves_the_global_generators_alone(name):
    before = torch.get_rng_state()
    get_task(name).sample(8, seed=0)
    assert torch.equal(before, torch.get_rng_state())


@each_task
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^prompt must be \d to \d+ symbols for \w+ of length 5, .*got none(;.*)?$"),
        ("abcdefghijkl", r"^prompt must be \d to \d+ symbols for \w+ of length 5, .*got 12(;.*)?$"),
        ("ab?", r"^unknown symbol '\?'; choose from a-l$"),
        ("a<sep>", r"^unknown symbols '<', 's', 'p', '>'; choose from a-l$"),
        ("a b", r"^unknown symbol ' '; choose from a-l$"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_in_one_line(name, text, message):
    with pytest.raises(ValueError, match=message):
        get_task(name, length=5, n_symbols=12).prompt(text)


@each_task
def test_ids_that_are_no_letters_are_refused(name):
    task = get_task(name, length=3, n_symbols=6)
    for bad in (1, 8):
        with pytest.raises(ValueError, match=r"^symbols must be letter ids from 2 to 7, got"):
            task.sequences(torch.tensor([[2, 3, bad]]))
    with pytest.raises(ValueError, match=r"^x must be \d to \d symbols for .* got 8(;.*)?$"):
        task.sequences(torch.full((1, 8), 2))


@each_task
@pytest.mark.parametrize("length", [0, -1])
def test_lengths_below_one_are_refused(name, length):
    message = rf"^length must be a whole number of at least 1, got {length}$"
    with pytest.raises(ValueError, match=message):
        get_task(name, length=length)


@each_task
@pytest.mark.parametrize("n_symbols", [0, 63])
def test_numbers_of_symbols_without_letters_are_refused(name, n_symbols):
    with pytest.raises(ValueError, match=r"^n_symbols must be from 1 to 62"):
        get_task(name, length=2, n_symbols=n_symbols)
