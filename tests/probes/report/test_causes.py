"""What a report says of causes: what a model gets, and that the page says what was measured."""

import dataclasses

import pandas as pd
import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.tasks.registry import get_task
from probes.head_classes import CLASSES
from probes.reading.checked_sequences import check_sequences
from probes.report import causes as report_causes
from probes.report.causes import cause_figures, measure_causes, redundancy_sentences
from probes.report.page_causes import cause_sections
from probes.report.subject import Subject
from probes.tables import csv_text


@pytest.fixture(scope="module")
def subject() -> Subject:
    """A random model on a task, whose second head of layer 0 is a copy of the first."""
    torch.manual_seed(0)
    config = ModelConfig(
        n_layers=2, n_heads=2, d_model=8, d_vocab=10, n_ctx=12, initializer_range=0.8
    )
    model = HookedGPT(config)
    task = get_task("reversal", length=4, n_symbols=8)
    batch = task.sample(6, seed=0, split="test")
    unknown = dict.fromkeys(("run", "task", "step", "checkpoint_sha256", "seed"))
    return Subject(
        model=model,
        title="",
        named="",
        kind="",
        command="",
        facts=unknown,
        accuracy_batch=batch,
        batch=batch,
        reference=task.sample(5, seed=0, split="reference"),
        vocab=None,
        checked=check_sequences(model, batch),
    )


def labelled(*labels: str) -> pd.DataFrame:
    return pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "label": labels})


def test_all_parts_of_a_small_model_add_up_and_stand_on_the_page(subject):
    causes = measure_causes(subject, labelled("sources", "sources", "none", "none"))
    names = [name for name, _ in causes.tables()]
    assert names == ["redundancy", "shapley", "first_order", "agreement", "pruning", "removable"]
    shapley = causes.shapley
    assert shapley["value"].sum() == pytest.approx(shapley["joint"].iloc[0], abs=1e-9)
    assert causes.redundancy["heads"].unique().tolist() == ["L0H0,L0H1"]
    assert set(causes.removable["within"]) == {0.0, 0.01, 0.05}
    drawn = dict.fromkeys(cause_figures(causes, "reversal"), b"picture")
    assert list(drawn) == ["joint", "shapley", "first_order", "pruning"]
    page = "".join(cause_sections(causes, drawn, "reversal"))
    for title in (
        "heads replace each other",
        "Shared out",
        "How small it can get",
        "a gradient would",
    ):
        assert title in page
    written = csv_text(shapley[["value"]]).split()[1:]
    assert all(f">{number}</td>" in page for number in written)
    assert "<td>reversal</td>" in page  # not the name of the probe: that of the task


def test_a_model_gets_what_it_is_small_enough_for(subject, monkeypatch):
    labels = labelled("none", "none", "none", "none")
    assert measure_causes(subject, labels).redundancy is None
    monkeypatch.setattr(report_causes, "MOST_PRUNED", 3)
    monkeypatch.setattr(report_causes, "MOST_EXACT", 3)
    names = [name for name, _ in measure_causes(subject, labels).tables()]
    assert names == ["first_order", "agreement"]
    monkeypatch.setattr(report_causes, "MOST_ABLATED", 3)
    causes = measure_causes(subject, labels)
    assert list(causes.tables()) == []
    assert cause_sections(causes, cause_figures(causes, None), None) == []


def test_an_order_is_not_found_on_what_it_is_reported_on(subject):
    alike = dataclasses.replace(subject, reference=subject.batch)
    causes = measure_causes(alike, labelled("none", "none", "none", "none"))
    assert causes.pruning is None


def group(name, verdicts, delta, singles):
    common = {"group": name, "metric": "loss", "unit": "nats", "ci_low": 1.0, "ci_high": 2.0}
    rows = [{**common, "layer": None, "head": None, "delta": delta, "verdict": verdicts[0]}]
    rows += [
        {**common, "layer": 0, "head": i, "delta": 0.0, "verdict": verdict}
        for i, verdict in enumerate(verdicts[1:])
    ]
    return [row | {"singles": singles} for row in rows]


def test_sentences_tell_redundant_from_useless():
    assert "induction" in CLASSES
    rows = group("induction", ("needed", "redundant", "redundant"), 1.5, 0.25)
    rows += group("first", ("useless", "useless", "useless"), 0.001, 0.0)
    rows += group("previous", ("needed", "needed"), 3.0, 3.0)
    frame = pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"})
    one, other = redundancy_sentences(frame, {"first": "sink"})
    assert one == (
        "The 2 induction heads together change the loss by +1.5000 nats (95 %: +1.0000 to "
        "+2.0000), one by one by +0.2500 in all: L0H0, L0H1 can be removed alone but not with the "
        "others; they are redundant, not useless."
    )
    assert other.startswith("The 2 sink heads together")
    assert other.endswith("they can all be removed.")
