"""Pruning curves: orders against naive searches with gates, points against gated models."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lab.evaluation import evaluate
from lab.gates import HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.metrics import get_metrics
from probes.ablation.sweep import Ablation
from probes.execution import Execution
from probes.first_order.importance import head_importance
from probes.pruning.curves import pruning_curve, random_band, removable
from probes.pruning.hard_concrete import learn_gates
from probes.pruning.orders import (
    Search,
    best_sets,
    greedy_order,
    iterative_order,
    learned_order,
    one_shot_order,
    random_order,
    worst_first_order,
)
from probes.pruning.plan import PruningPlan
from probes.pruning.removing import cache_bytes, count_parameters, prune_heads
from probes.schemas.cause import PRUNING
from probes.tables import checked_table

TASK = get_task("reversal", length=5, n_symbols=4)
HEADS = 6


@pytest.fixture(scope="module")
def batch() -> Batch:
    return TASK.sample(12, seed=0, split="train")


@pytest.fixture(scope="module")
def held_out() -> Batch:
    return TASK.sample(15, seed=0, split="test")


@pytest.fixture(scope="module")
def model() -> HookedGPT:
    """Two layers of three heads, two of which share a key head, with biases that count."""
    from lab.config import ModelConfig

    config = ModelConfig(
        n_layers=2, n_heads=3, n_key_value_heads=1, d_model=12, d_head=4, d_vocab=6, n_ctx=16,
        initializer_range=0.6, seed=5,
    )  # fmt: skip
    model = HookedGPT(config).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".b_" in name:
                parameter.normal_(generator=generator)
    return model


@pytest.fixture
def search(model: HookedGPT, batch: Batch) -> Search:
    (loss,) = get_metrics(["loss"])
    return Search(model=model, batch=batch, metric=loss, counts=tuple(range(HEADS + 1)))


def curve_of(
    model: HookedGPT,
    batch: Batch | torch.Tensor,
    order: str | list[str] = "greedy",
    *,
    held_out: Batch | torch.Tensor,
    execution: Execution | None = None,
    **plan: Any,
) -> pd.DataFrame:
    return pruning_curve(
        model, batch, order, held_out=held_out, plan=PruningPlan(**plan), execution=execution
    )


def gated_loss(model: HookedGPT, batch: Batch, heads: object, mean: Reference | None) -> float:
    gates = HeadGates.ablate(heads, like=model, fill=mean)
    return evaluate(model, batch, gates=gates.tensors(model, [mean] if mean else [])).loss


def mean_of(model: HookedGPT, batch: Batch) -> Reference:
    _, cache = model.run_with_cache(batch.tokens)
    z = torch.stack([cache["z", layer].mean((0, 1)) for layer in range(2)]).unsqueeze(1)
    return Reference(name="train", sha256="0" * 64, z=z)


class TestOrders:
    """Which heads go first."""

    @pytest.mark.parametrize("mode", ["zero", "mean"])
    def test_greedy_is_the_naive_search(self, search: Search, mode: str) -> None:
        model, batch = search.model, search.batch
        mean = mean_of(model, batch) if mode == "mean" else None
        given = dataclasses.replace(search, ablation=Ablation(mode=mode, reference=mean))
        left, gone = list(model.config.heads()), []
        while left:
            losses = [gated_loss(model, batch, [*gone, pair], mean) for pair in left]
            gone.append(left.pop(int(np.argmin(losses))))
        assert greedy_order(given) == tuple(gone)

    def test_greedy_by_a_metric_of_which_more_is_better(self, search: Search) -> None:
        (margin,) = get_metrics(["margin"])
        given = dataclasses.replace(search, metric=margin, counts=(0, 1))
        (first,) = greedy_order(given)
        model, batch, rows = search.model, search.batch, search.batch.loss_mask
        answers = batch.tokens.roll(-1, dims=1)[rows]
        margins = {}
        for pair in model.config.heads():
            logits = model(batch.tokens, gates=HeadGates.ablate([pair], like=model))[rows]
            right = logits.gather(1, answers[:, None])[:, 0]
            logits.scatter_(1, answers[:, None], -torch.inf)
            margins[pair] = (right - logits.max(1).values).mean().item()
        assert first == max(margins, key=margins.__getitem__)

    def test_a_coarse_step_takes_several_heads_at_once(self, search: Search) -> None:
        singles = {
            pair: gated_loss(search.model, search.batch, [pair], None)
            for pair in search.model.config.heads()
        }
        cheapest = sorted(singles, key=singles.__getitem__)
        given = dataclasses.replace(search, counts=(0, 2, 4))
        order = greedy_order(given)
        assert order[:2] == tuple(cheapest[:2]) and len(order) == 4

    def test_the_oracle_tries_every_set(self, search: Search) -> None:
        model, batch = search.model, search.batch
        for count, best in zip(search.counts, best_sets(search), strict=True):
            losses = {
                heads: gated_loss(model, batch, heads, None)
                for heads in itertools.combinations(model.config.heads(), count)
            }
            assert best == min(losses, key=losses.__getitem__)

    @pytest.mark.parametrize("normalise", ["none", "layer", "param"])
    def test_importance_once_or_anew(self, search: Search, normalise: str) -> None:
        given = dataclasses.replace(search, normalise=normalise)

        def ranked(model: HookedGPT) -> list[tuple[int, int]]:
            found = head_importance(model, search.batch, normalise=normalise)
            by = found.sort_values("importance", kind="stable")
            return list(zip(by["layer"].tolist(), by["head"].tolist(), strict=True))

        once = ranked(search.model)
        assert one_shot_order(given) == tuple(once)
        assert worst_first_order(given) == tuple(reversed(once))
        gone: list[tuple[int, int]] = []
        while len(gone) < HEADS:
            gone.append(ranked(prune_heads(search.model, gone))[0])
        assert iterative_order(given) == tuple(gone)

    def test_random_orders_follow_their_seed(self, search: Search) -> None:
        drawn = [random_order(dataclasses.replace(search, seed=i)) for i in range(30)]
        assert all(sorted(order) == list(search.model.config.heads()) for order in drawn)
        assert len(set(drawn)) >= 28
        assert {order[0] for order in drawn} == set(drawn[0])
        assert random_order(dataclasses.replace(search, seed=7)) == drawn[7]

    def test_learned_gates_give_an_order(
        self, search: Search, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from probes.pruning import orders as pruning_orders
        from probes.pruning.hard_concrete import LearnedGates

        def learned(model: HookedGPT, batch: Batch, **given: object) -> LearnedGates:
            assert given == {"penalty": 0.3, "reference": None, "seed": 9}
            heads = model.config.heads()
            log_a = torch.tensor([1.0, -3, 0, 2, -2, 5]).double()
            return LearnedGates(
                heads=heads, log_a=log_a, trajectory=log_a.expand(2, -1), losses=(0.0,)
            )

        monkeypatch.setattr(pruning_orders, "learn_gates", learned)
        order = learned_order(dataclasses.replace(search, penalty=0.3, seed=9))
        assert order == ((0, 1), (1, 1), (0, 2), (0, 0), (1, 0), (1, 2))


class TestCurve:
    """What is left after each step."""

    @pytest.mark.parametrize("mode", ["zero", "mean"])
    def test_points_are_the_gated_models(
        self, model: HookedGPT, batch: Batch, held_out: Batch, mode: str
    ) -> None:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        mean = mean_of(model, batch) if mode == "mean" else None
        curve = curve_of(
            model, batch, "greedy", held_out=held_out, seeds=1, mode=mode, reference=mean,
            metrics=["loss", "token_accuracy", "exact_match"],
        )  # fmt: skip
        checked_table(curve, PRUNING)
        assert curve.attrs["chosen_by"] == "loss"
        assert curve["order"].unique().tolist() == ["greedy", "random"]
        gone: list[tuple[int, int]] = []
        small, expected = model, {}
        for row in curve[(curve["order"] == "greedy")].to_dict("records"):
            if row["metric"] == "loss":  # the first row of a step
                if row["removed"]:
                    gone.append((int(row["removed"][1]), int(row["removed"][3])))
                gates = HeadGates.ablate(gone, like=model, fill=mean)
                gates = gates.tensors(model, [mean] if mean else [])
                for column, of in (("selection", batch), ("held_out", held_out)):
                    expected[column] = evaluate(model, of, gates=gates)
                small = prune_heads(model, gone)
            for column, found in expected.items():
                assert row[column] == pytest.approx(getattr(found, row["metric"]), abs=1e-10)
            assert row["n_parameters"] == count_parameters(small)
            assert row["cache_bytes"] == cache_bytes(small)
            assert row["n_removed"] == len(gone) == HEADS - row["n_kept"]
            labels = [f"L{a}H{b}" for a, b in small.config.heads()]
            assert row["kept"] == ",".join(labels)
            assert (row["ci_low"] <= row["held_out"] <= row["ci_high"]) and row["n_sequences"] == 15
            if not gone:
                assert row["delta"] == row["delta_ci_low"] == row["delta_ci_high"] == 0
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])
        # A random order chose nothing: where it alone leads, there is no number of the selection.
        random = curve[curve["order"] == "random"].set_index("kept")["selection"]
        own = curve[curve["order"] == "greedy"].set_index("kept")["selection"]
        assert random[~random.index.isin(own.index)].isna().all()
        assert random[random.index.isin(own.index)].notna().all()

    def test_intervals_resample_held_out_sequences(
        self, model: HookedGPT, batch: Batch, held_out: Batch
    ) -> None:
        from probes.intervals import bootstrap_interval

        curve = curve_of(
            model, batch, "one-shot", held_out=held_out, seeds=0, steps=[3],
            normalise=["none"], metrics=["loss"],
        )  # fmt: skip
        row = curve.iloc[-1]
        kept = [(int(label[1]), int(label[3])) for label in row["kept"].split(",")]
        gone = sorted(set(model.config.heads()) - set(kept))
        each = [
            [gated_loss(model, held_out[i : i + 1], heads, None) for heads in ([], gone)]
            for i in range(len(held_out))
        ]
        totals, counts = 5.0 * np.array(each), np.full(15, 5.0)
        low, high = bootstrap_interval(totals, counts)
        assert (row["ci_low"], row["ci_high"]) == pytest.approx((low[1], high[1]), abs=1e-10)
        less, more = bootstrap_interval(totals[:, 1:] - totals[:, :1], counts)
        assert row["delta_ci_low"] == pytest.approx(less[0], abs=1e-10)
        assert row["delta_ci_high"] == pytest.approx(more[0], abs=1e-10)

    def test_a_pruned_model_goes_on_by_original_ids(
        self, model: HookedGPT, batch: Batch, held_out: Batch
    ) -> None:
        small = prune_heads(model, [(0, 0), (0, 1), (0, 2), (1, 1)])
        done: list[tuple[int, int]] = []
        curve = curve_of(
            small, batch, ["worst-first", "iterative"], held_out=held_out, seeds=1,
            metrics=["loss"], execution=Execution(progress=lambda i, n: done.append((i, n))),
        )  # fmt: skip
        assert set(curve["kept"]) == {"L1H0,L1H2", "L1H0", "L1H2", ""} - (
            {"L1H0", "L1H2"} - set(curve["kept"])
        )
        assert curve.groupby("order").size().to_dict() == {
            "iterative": 6, "random": 3, "worst-first": 6,
        }  # fmt: skip
        # Two searches of three steps, and five paths of three points.
        assert done == [(i + 1, 21) for i in range(21)]

    def test_an_interrupted_search_goes_on_with_the_same_bits(
        self,
        model: HookedGPT,
        batch: Batch,
        held_out: Batch,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("probes.pruning.orders.learn_gates", partial(learn_gates, steps=3))
        orders = ["greedy", "iterative", "learned"]
        given = {"held_out": held_out, "seeds": 1, "steps": [1, 2]}
        whole = curve_of(model, batch, orders, **given)

        def interrupt(done: int, total: int) -> None:
            if done == 11:  # nine steps of searches, two points
                raise KeyboardInterrupt

        execution = Execution(ledger=tmp_path)
        interrupted = Execution(ledger=tmp_path, progress=interrupt)
        with pytest.raises(KeyboardInterrupt):
            curve_of(model, batch, orders, **given, execution=interrupted)
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npz")}
        names = {str(path.relative_to(tmp_path)) for path in kept}
        assert {f"greedy-{n}/chunk-000000.npz" for n in (6, 5)} < names
        assert {f"importance-{by}-{n}.npz" for by in ("none", "layer") for n in (6, 5)} < names
        assert "learned.npz" in names
        assert sum(name.startswith(("selection-", "held-out-")) for name in names) == 4
        again = curve_of(model, batch, orders, **given, execution=execution)
        pd.testing.assert_frame_equal(again, whole, check_exact=True)
        assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
        for other in ({"seeds": 2}, {"penalty": 0.1}, {"steps": [1, 3]}, {"metric": "margin"}):
            with pytest.raises(ValueError, match="must be of the very same work, got one that d"):
                curve_of(model, batch, orders, **given | other, execution=execution)
        with pytest.raises(ValueError, match="got one that differs in tokens"):
            curve_of(model, batch[:6], orders, **given, execution=execution)

    def test_gates_are_learned_with_what_fills_the_gap(
        self, search: Search, held_out: Batch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from probes.pruning import orders as pruning_orders

        seen: list[object] = []
        learn = pruning_orders.learn_gates

        def spied(model: HookedGPT, batch: Batch, **given: object) -> object:
            seen.append(given["reference"])
            return learn(model, batch, steps=2, **given)

        monkeypatch.setattr(pruning_orders, "learn_gates", spied)
        mean = mean_of(search.model, search.batch)
        for mode in ("zero", "mean"):
            curve = curve_of(
                search.model, search.batch, "learned", held_out=held_out, steps=[2], seeds=0,
                mode=mode, reference=mean if mode == "mean" else None,
            )  # fmt: skip
            assert curve.attrs["reference"] == (None if mode == "zero" else "train")
        assert seen == [None, mean]

    def test_solved_models_are_judged_by_their_margin(self, held_out: Batch) -> None:
        """Tokens that always follow: the model is right everywhere, whatever its loss."""
        from lab.config import ModelConfig

        config = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=6, n_ctx=16)
        model = HookedGPT(config).eval()
        with torch.no_grad():
            model.unembed.b_U[3] = 40.0
        tokens = torch.full((4, 9), 3)
        curve = curve_of(model, tokens, held_out=held_out, seeds=0)
        assert curve.attrs["chosen_by"] == "margin"

    def test_many_heads_have_twenty_steps(self, build_model: Callable[..., HookedGPT]) -> None:
        model = build_model(n_layers=1, n_heads=48, d_head=2)
        tokens = torch.randint(0, 6, (4, 6), generator=torch.Generator().manual_seed(0))
        curve = curve_of(
            model, tokens[:2], "random", held_out=tokens[2:], seeds=1, metrics=["loss"]
        )
        assert curve["n_removed"].tolist() == [round(i * 2.4 - 0.5 + 1e-9) for i in range(21)]


def frame(rows: list[tuple[str, int | None, int, float]], metric: str = "loss") -> pd.DataFrame:
    """A curve of hand-made held-out values of ten heads: (order, seed, heads removed, value)."""
    from probes.tables import make_table

    whole = rows[0][3]
    blank = dict.fromkeys(PRUNING.names, 0.0)
    filled = [
        {
            **blank, "order": order, "normalise": "", "seed": seed, "n_removed": gone,
            "n_kept": 10 - gone, "removed": "", "kept": "", "metric": metric, "mode": "zero",
            "held_out": value, "delta": value - whole, "unit": "nats", "n_parameters": 0,
            "cache_bytes": 0, "n_sequences": 1,
        }
        for order, seed, gone, value in rows
    ]  # fmt: skip
    columns = {name: [row[name] for row in filled] for name in PRUNING.names}
    return make_table(columns, PRUNING, {"chosen_by": metric})


class TestWhatACurveSays:
    """Heads removable, and the band of random orders."""

    def test_most_heads_within_a_share(self) -> None:
        values = [2.0, 1.9, 2.019, 2.03, 2.11, 2.099, 3.0]
        curve = frame([("greedy", None, i, value) for i, value in enumerate(values)])
        found = removable(curve, within=(0.0, 0.01, 0.05))
        assert found["removable"].tolist() == [1, 2, 5]
        assert found["n_heads"].tolist() == [10] * 3 and found["n_orders"].tolist() == [1] * 3
        assert removable(curve)["within"].tolist() == [0.01, 0.05]

    def test_of_a_metric_of_which_more_is_better(self) -> None:
        values = [0.8, 0.9, 0.8, 0.793, 0.75, 0.0]
        curve = frame([("greedy", None, i, v) for i, v in enumerate(values)], "exact_match")
        assert removable(curve, within=(0.0, 0.01, 0.07))["removable"].tolist() == [2, 3, 4]
        nothing = frame([("greedy", None, 0, 0.0), ("greedy", None, 1, 0.0)], "exact_match")
        assert removable(nothing, within=0.0)["removable"].tolist() == [1]

    def test_of_a_whole_model_below_zero(self) -> None:
        """A share of a margin of -2 is a share of 2, or nothing would ever be lost."""
        values = [-2.0, -1.9, -2.015, -2.3]
        curve = frame([("greedy", None, i, v) for i, v in enumerate(values)], "margin")
        assert removable(curve, within=(0.0, 0.01, 0.2))["removable"].tolist() == [1, 2, 3]

    def test_random_orders_have_a_median_and_a_range(self) -> None:
        rows = [("random", s, i, 1.0 + max(0, i - s)) for s in (0, 1, 4) for i in range(6)]
        found = removable(frame(rows), within=0.01).iloc[0]
        assert (found["low"], found["removable"], found["high"]) == (0, 1, 4)
        assert found["n_orders"] == 3
        band = random_band(frame(rows))
        assert band["low"].tolist() == [1, 1, 1, 1, 1, 2]
        assert band["median"].tolist() == [1, 1, 2, 3, 4, 5]
        assert band["high"].tolist() == [1, 2, 3, 4, 5, 6]
        assert band["n_orders"].tolist() == [3] * 6

    def test_refusals(self) -> None:
        curve = frame([("greedy", None, 0, 1.0)])
        with pytest.raises(ValueError, match=r"one of random orders \(seeds=20\), got 'none'"):
            random_band(curve)
        with pytest.raises(ValueError, match="unknown metric of this curve 'margin'"):
            removable(curve, metric="margin")
        for of in (removable, random_band):
            with pytest.raises(ValueError, match="columns of the pruning table must be order, "):
                of(pd.DataFrame({"layer": [0]}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"order": "gredy"}, r"unknown pruning order 'gredy'; .*did you mean 'greedy'"),
        ({"metric": "kl"}, r"unknown metric of a pruned model 'kl'; choose from exact_match, loss"),
        ({"steps": [1, 9]}, "steps must be a whole number of at most 6, got 9"),
        ({"steps": [3, 1]}, r"steps must be different numbers of heads, ascending, got \(3, 1\)"),
        ({"mode": "resample"}, "unknown pruning mode 'resample'; choose from"),
        ({"mode": "mean"}, "reference must be one mean over all positions .* got None"),
        ({"normalise": ["layr"], "order": "one-shot"}, "unknown normalise 'layr'"),
        ({"normalise": "layr", "order": "one-shot"}, "unknown normalise 'layr'"),
        ({"metrics": "losses"}, "unknown metric of a pruned model 'losses'"),
        ({"order": []}, "order must be at least one name, got 'none'"),
        ({"order": "random"}, "seeds must be a whole number of at least 1, got 0"),
        (
            {"reference": Reference(name="x", sha256="0", z=torch.zeros(2, 1, 3, 4))},
            "reference must be left out in mode 'zero', got 'x'",
        ),
        ({"seeds": -1}, "seeds must be a whole number of at least 0"),
    ],
)
def test_what_is_refused(
    model: HookedGPT, batch: Batch, held_out: Batch, given: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        curve_of(model, batch, **{"held_out": held_out, "seeds": 0, **given})


def test_the_same_sequences_twice_and_too_many_heads(
    model: HookedGPT, batch: Batch, held_out: Batch, build_model: Callable[..., HookedGPT]
) -> None:
    with pytest.raises(ValueError, match=r"held_out must be other sequences .* the same ones"):
        curve_of(model, batch, held_out=batch)
    for other, shared in ((batch[3:5], 2), (held_out, 0)):
        curve = curve_of(model, batch, "random", held_out=other, seeds=1, steps=[1])
        assert curve.attrs["shared_sequences"] == shared
    wide = build_model(n_heads=6)
    with pytest.raises(ValueError, match=r"tried must be at most 9; take another order.* got 12"):
        curve_of(wide, batch, "oracle", held_out=held_out)


def test_sequences_that_cannot_be_measured_are_refused_before_the_search(
    model: HookedGPT, batch: Batch, held_out: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.pruning.curves.pruning_path", lambda *_: pytest.fail("searched"))
    nothing = dataclasses.replace(held_out, loss_mask=torch.zeros_like(held_out.loss_mask))
    with pytest.raises(ValueError, match="scored rows of held_out must be at least 1, got 0"):
        curve_of(model, batch, held_out=nothing)
    with pytest.raises(ValueError, match="scored rows of the selection must be at least 1, got 0"):
        curve_of(model, nothing, held_out=batch)


def test_what_an_order_was_chosen_by_is_reported(
    model: HookedGPT, batch: Batch, held_out: Batch
) -> None:
    given = {"held_out": held_out, "seeds": 1, "steps": [1]}
    curve = curve_of(model, batch, "random", metrics="exact_match", metric="loss", **given)
    assert curve["metric"].unique().tolist() == ["exact_match", "loss"]
    assert removable(curve)["metric"].unique().tolist() == ["loss"]
