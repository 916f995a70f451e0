"""The circumstances of long work: what they may be, and that none is ignored without a word."""

import numpy as np
import pytest

from lab.runtime import Processes
from probes.ablation.sweep_passes import planned
from probes.execution import Execution
from probes.feeders.scores import feeder_scores
from probes.first_order.self_repair import repair_split
from probes.pruning.curves import pruning_curve
from probes.pruning.plan import PruningPlan


def test_memory_is_at_least_a_byte():
    with pytest.raises(ValueError, match="memory must be a whole number of at least 1, got 0"):
        Execution(memory=0)


def test_what_a_function_cannot_respect_is_refused(small_model, repeating_batch, tmp_path):
    two = Execution(processes=Processes(count=2))
    with pytest.raises(ValueError, match="processes of an execution must be left out for repair_s"):
        repair_split(small_model, repeating_batch, execution=two)
    with pytest.raises(ValueError, match="ledger of an execution must be left out for repair_spl"):
        repair_split(small_model, repeating_batch, execution=Execution(ledger=tmp_path))
    with pytest.raises(ValueError, match="processes of an execution must be left out for pruning"):
        pruning_curve(small_model, repeating_batch, held_out=repeating_batch, execution=two)
    with pytest.raises(ValueError, match="memory of an execution must be left out for feeder_sco"):
        feeder_scores(small_model, execution=Execution(memory=1))


def test_unknown_circumstances_are_pythons_own_errors(small_model, repeating_batch):
    with pytest.raises(TypeError, match="unexpected keyword argument 'memory'"):
        pruning_curve(small_model, repeating_batch, held_out=repeating_batch, memory=1)  # pyright: ignore[reportCallIssue]


def test_every_sweep_of_a_pruning_curve_respects_the_memory(
    small_model, repeating_batch, monkeypatch
):
    plan = PruningPlan(steps=[1], seeds=0, metric="loss", metrics="loss", normalise="none")
    batch, held_out = repeating_batch[:2], repeating_batch[2:5]
    orders, seen = ["greedy", "one-shot"], []
    whole = pruning_curve(small_model, batch, orders, held_out=held_out, plan=plan)

    def counted(request):
        seen.append(request.memory)
        return planned(request)

    monkeypatch.setattr("probes.ablation.sweep.planned", counted)
    little = Execution(memory=1)
    pieces = pruning_curve(
        small_model, batch, orders, held_out=held_out, plan=plan, execution=little
    )
    assert len(seen) > 3 and set(seen) == {1}
    np.testing.assert_allclose(pieces["held_out"], whole["held_out"], atol=1e-12)
