"""`headlab ablate`: what it prints is what lab and probes measure, whatever the model."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from lab.config import ModelConfig
from lab.evaluation import Evaluation, evaluate
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT
from lab.run_folders import open_run
from lab.tasks.base import Batch
from lab.tasks.registry import get_task
from probes.ablation.pairs import pair_effects
from probes.ablation.redundancy import RedundancyPlan, head_redundancy
from probes.ablation.sweep import Ablation
from probes.ablation.sweep_passes import Chunk, SequenceRuns
from probes.ablation.table import ablation_sweep, head_donors
from probes.number_text import change
from probes.reading.inputs import repeated_batch
from probes.tables import json_rows

pytestmark = pytest.mark.usefixtures("tiny_home")
Headlab = Callable[..., tuple[int, str, str]]

FEW = ("--sequences", "50")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is interrupted out of the cache of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is no run: random, three heads in two layers, saved by headlab."""
    folder = tmp_path_factory.mktemp("models") / "random"
    sizes = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_vocab": 40, "n_ctx": 30}
    kept = ((0, 1, 2), (1,))
    HookedGPT(ModelConfig(**sizes, initializer_range=0.7, kept_heads=kept)).save(folder)
    return folder


def unseen(home: Path, n: int) -> Batch:
    config = open_run(home / "tiny").config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    return task.sample(n, seed=config.seed, split="test")


def table(out: str, nth: int = 0) -> dict[str, list[str]]:
    """Return the rows of a printed table by their first cell; cells are two spaces apart."""
    lines = out.split("\u2500\n")[1 + nth].split("\n\n")[0].splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {row[0]: row[1:] for row in rows}


def metrics(result: Evaluation) -> list[str]:
    return [f"{x:.4f}" for x in (result.loss, result.token_accuracy, result.exact_match)]


def interval(row: Mapping[str, float]) -> str:
    return f"{change(row['ci_low'])} to {change(row['ci_high'])}"


@pytest.mark.parametrize("written", [("L0H0", "L0H1"), ("L0H1,L0H0",)])
def test_some_heads_together_stand_beside_the_whole_model(
    written: tuple[str, ...], headlab: Headlab, tiny_home: Path
) -> None:
    code, out, err = headlab("ablate", "tiny", *FEW, "--heads", *written)
    assert (code, err) == (0, "")
    assert out.startswith("tiny: reversal of length 4, step 60\n")
    assert "zero: a head's output is replaced with zeros" in out
    assert "ablated together: L0H0, L0H1\n" in out
    model, batch = HookedGPT.load(tiny_home / "tiny"), unseen(tiny_home, 50)
    gates = HeadGates.ablate([(0, 0), (0, 1)], like=model)
    whole, ablated = evaluate(model, batch), evaluate(model, batch, gates=gates)
    shown = table(out)
    assert [row[0] for row in shown.values()] == metrics(whole)
    assert [row[1] for row in shown.values()] == metrics(ablated)
    assert shown["loss (nats)"][2] == change(ablated.loss - whole.loss)
    assert shown["exact-match"][2] == change(ablated.exact_match - whole.exact_match)
    frame = ablation_sweep(model, batch, sets=[[(0, 0), (0, 1)]])
    assert [row[3] for row in shown.values()] == [interval(row) for row in json_rows(frame)]


def test_without_heads_each_is_left_out_in_turn(headlab: Headlab, tiny_home: Path) -> None:
    code, out, err = headlab("ablate", "tiny", *FEW)
    assert (code, err) == (0, "")
    shown = table(out)
    heads = ["L0H0", "L0H1", "all of layer 0", "L1H0", "L1H1", "all of layer 1"]
    assert list(shown) == ["nothing", *heads]
    model, batch = HookedGPT.load(tiny_home / "tiny"), unseen(tiny_home, 50)
    whole = evaluate(model, batch)
    assert shown["nothing"] == [f"{whole.loss:.4f}", "-", "-", *metrics(whole)[1:]]
    for name, gone in {"L0H1": [(0, 1)], "all of layer 0": [(0, 0), (0, 1)]}.items():
        left = evaluate(model, batch, gates=HeadGates.ablate(gone, like=model))
        rise = change(left.loss - whole.loss)
        assert [*shown[name][:2], *shown[name][3:]] == [
            metrics(left)[0],
            rise,
            *metrics(left)[1:],
        ]
    assert "lower bound" in out


def test_whole_layers_of_a_large_model_are_asked_for(
    headlab: Headlab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.ablation.table.MOST_HEADS_WITH_LAYERS", 3)
    without, given = (headlab("ablate", "tiny", *FEW, *flag)[1] for flag in ((), ("--layers",)))
    assert list(table(without)) == ["nothing", "L0H0", "L0H1", "L1H0", "L1H1"]
    assert "Whole layers were left out" in without
    assert "all of layer 1" in table(given)
    assert "left out" not in given
    asked = {}
    monkeypatch.setattr(
        "probes.ablation.redundancy.head_redundancy",
        lambda *_, **given: asked.update(given) or 1 / 0,
    )
    with pytest.raises(ZeroDivisionError):
        headlab("ablate", "tiny", *FEW, "--groups")
    assert asked["plan"].every_set is False


def test_modes_differ_and_say_what_the_head_writes(headlab: Headlab, tiny_home: Path) -> None:
    asked = ("ablate", "tiny", *FEW, "--heads", "L0H0")
    printed = {mode: headlab(*asked, "--mode", mode)[1] for mode in ("zero", "mean", "resample")}
    ablated = [table(out)["loss (nats)"] for out in printed.values()]
    assert len({row[0] for row in ablated}) == 1
    assert len({row[1] for row in ablated}) == 3
    assert "(of 256 other sequences of reversal)" in printed["mean"]
    model, config = HookedGPT.load(tiny_home / "tiny"), open_run(tiny_home / "tiny").config
    task = get_task(config.task, length=config.length, n_symbols=config.n_symbols)
    donors = head_donors(model, task.sample(8, seed=config.seed, split="reference"))
    frame = ablation_sweep(
        model,
        unseen(tiny_home, 50),
        Ablation(mode="resample", donors=donors),
        sets=[[(0, 0)]],
        metrics=["loss"],
    )
    assert ablated[2][1] == f"{frame['ablated'][0]:.4f}"


def test_a_part_of_a_head_can_go_and_anything_be_measured(
    headlab: Headlab, tiny_home: Path
) -> None:
    asked = ("--heads", "L0H0", "--value", "0.5", "--metrics", "margin", "kl")
    code, out, _ = headlab("ablate", "tiny", *FEW, *asked)
    assert code == 0
    assert "the head keeps 0.5 of its own" in out
    model, batch = HookedGPT.load(tiny_home / "tiny"), unseen(tiny_home, 50)
    frame = ablation_sweep(
        model, batch, Ablation(value=0.5), sets=[[(0, 0)]], metrics=["margin", "kl"]
    )
    shown = table(out)
    assert [shown[name][1] for name in ("margin (logit)", "KL (nats)")] == [
        f"{x:.4f}" for x in frame["ablated"]
    ]


def test_pairs_show_what_is_beyond_the_sum(headlab: Headlab, tiny_home: Path) -> None:
    heads = ("--heads", "L0H0", "L0H1", "L1H1")
    code, out, err = headlab("ablate", "tiny", *FEW, "--pairs", *heads)
    assert (code, err) == (0, "")
    frame = pair_effects(
        HookedGPT.load(tiny_home / "tiny"), unseen(tiny_home, 50), [(0, 0), (0, 1), (1, 1)]
    )
    assert "numbers are changes of loss (nats); sorted by" in out
    shown = table(out)
    names = [
        f"L{row['layer']}H{row['head']} L{row['other_layer']}H{row['other_head']}"
        for row in json_rows(frame)
    ]
    sizes = frame["interaction"].abs().tolist()
    assert sizes[1] < 0.01 * sizes[0]  # what does not interact is counted
    assert list(shown) == names[:1] == ["L0H0 L0H1"]
    assert f"the other 2 pairs: at most {sizes[1]:.1e} of interaction" in out
    everything = headlab("ablate", "tiny", *FEW, "--pairs", *heads, "--all-heads")[1]
    assert list(table(everything)) == names
    assert "the other" not in everything
    numbers = json_rows(frame)[0]
    names = ("first", "second", "joint", "interaction")
    expected = [*(change(numbers[name]) for name in names), interval(numbers)]
    assert shown["L0H0 L0H1"] == expected


def test_groups_say_which_heads_stand_in_for_which(headlab: Headlab, tiny_home: Path) -> None:
    code, out, err = headlab("ablate", "tiny", *FEW, "--groups")
    assert (code, err) == (0, "")
    frame = head_redundancy(
        HookedGPT.load(tiny_home / "tiny"),
        unseen(tiny_home, 50),
        plan=RedundancyPlan(every_set=True),
    )
    verdicts = {row["heads"]: row["verdict"] for row in json_rows(frame) if row["head"] is None}
    assert "numbers are changes of loss (nats)\n" in out
    n_labelled = int(frame["head"].notna().sum())
    assert (f"{4 - n_labelled} head" in out) == (n_labelled < 4)  # the others are not passed over
    groups, heads = table(out), table(out, 1)
    assert len(groups) == len(verdicts)
    for row in json_rows(frame):
        if row["head"] is not None:
            assert heads[f"L{row['layer']}H{row['head']}"][-1] == row["verdict"]


def test_a_model_that_is_no_run_is_asked_the_second_copy(headlab: Headlab, saved: Path) -> None:
    code, out, err = headlab("ablate", str(saved))
    assert (code, err) == (0, "")
    assert "8 sequences, blocks of 14, prefix id 0" in out
    assert "13 rows each: those that predict the second copy from its 2nd token" in out
    assert "rough, because there are few sequences" in out
    model = HookedGPT.load(saved)
    frame = ablation_sweep(model, repeated_batch(model), metrics=["loss"])
    losses = {row["heads"]: f"{row['ablated']:.4f}" for row in json_rows(frame)}
    shown = table(out)
    assert (shown["L0H2"][0], shown["L1H1"][0]) == (losses["L0H2"], losses["L1H1"])


def test_prompts_count_every_token_but_no_padding(
    headlab: Headlab, saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "ids").write_text("3 4 5 6 7\n8 9 10\n")
    asked = ("ablate", str(saved), "--ids", str(tmp_path / "ids"), "--heads", "L0H0")
    code, out, err = headlab(*asked)
    assert (code, err) == (0, "")
    assert "every row that predicts a token of its prompt" in out
    losses = []
    with torch.no_grad():
        for row in ([3, 4, 5, 6, 7], [8, 9, 10]):
            logits = HookedGPT.load(saved)(torch.tensor([row]))[0].log_softmax(dim=-1)
            losses += [-logits[i, row[i + 1]].item() for i in range(len(row) - 1)]
    assert len(losses) == 6
    assert float(table(out)["loss (nats)"][0]) == pytest.approx(sum(losses) / 6, abs=1e-4)
    code, out, err = headlab(*asked, "--mode", "mean")
    assert (code, out) == (2, "")
    assert "prompts must have one length for --mode mean" in err


@pytest.mark.parametrize(
    ("flags", "name"), [((), "ablation"), (("--pairs",), "pairs"), (("--groups",), "redundancy")]
)
def test_what_is_printed_is_written(
    flags: tuple[str, ...], name: str, headlab: Headlab, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "out"
    code, _, err = headlab("ablate", "tiny", *FEW, *flags, "--out", str(folder))
    assert (code, err) == (0, "")
    kept = pd.read_parquet(folder / f"{name}.parquet")
    assert (kept.attrs["table"], kept.attrs["run"], kept.attrs["step"]) == (name, "tiny", 60)
    told = json.loads((folder / f"{name}.json").read_text())
    assert told["rows"] == json_rows(kept)
    assert told["provenance"]["scored"] == "query rows whose logits predict an answer token"
    assert len(pd.read_csv(folder / f"{name}.csv")) == len(kept)
    pictures = {path.stem for path in folder.glob("*.png")}
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            assert picture.info["Description"] == (
                "tiny: reversal of length 4, step 60 | "
                "input: 50 unseen sequences of reversal; all begin with id 0 <bos> | "
                "scored: query rows whose logits predict an answer token | "
                "ablated: zero: a head's output is replaced with zeros | "
                "interval: 95 %, bootstrap over sequences"
            )
    groups = {f"joint-{group}" for group in kept["group"]} if name == "redundancy" else {name}
    assert pictures == groups


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tiny --groups --pairs", "--pairs must be left out with --groups; give one of the two"),
        ("tiny --groups --heads L0H0", "--heads must be left out with --groups; give one of the"),
        ("tiny --groups --all-heads", "--all-heads must be left out with --groups; give one of"),
        ("tiny --heads L0H0 --layers", "--layers must be left out with --heads; give one of the"),
        ("tiny --pairs --metrics margin loss", "--metrics must be one with --pairs, got margin lo"),
        ("tiny --pairs --heads L0H0", "heads to pair must be 2 to 64, got 1 head; name the ones"),
        ("tiny --value 2", "value must be a number from 0 to 1, got 2.0"),
        (
            "tiny --metrics",
            "--metrics needs at least one value, got none; write --metrics loss, or",
        ),
        ("tiny --metrics perplexity", "unknown --metrics 'perplexity'; choose from exact_match, k"),
        ("tiny --sequences 0", "--sequences must be a whole number of at least 1, got 0"),
        ("SAVED --heads L1H0", "head L1H0 was pruned from this model"),
    ],
)
def test_a_wrong_request_is_one_line(
    line: str, message: str, headlab: Headlab, saved: Path
) -> None:
    code, out, err = headlab("ablate", *line.replace("SAVED", str(saved)).split())
    assert (code, out) == (2, "")
    assert err.startswith(f"headlab: error: {message}")
    assert err.count("\n") == 1


def test_an_interrupted_command_goes_on_when_it_is_given_again(
    headlab: Headlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "cache" / "headlab" / "sweeps"
    asked = ("ablate", "tiny", *FEW)
    whole = headlab(*asked)
    assert list(kept.iterdir()) == []  # what is done and shown is not kept
    done: list[int] = []

    def interrupted(self: SequenceRuns, chunk: Chunk) -> np.ndarray:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return totals(self, chunk)

    totals = SequenceRuns.totals
    with monkeypatch.context() as patch:
        patch.setattr(SequenceRuns, "totals", interrupted)
        code, out, err = headlab(*asked)
    (folder,) = kept.iterdir()
    assert (code, out) == (130, "")
    assert err == (
        f"headlab: stopped; progress is saved; run the same command to resume ({folder})\n"
    )
    assert len(list(folder.glob("chunk-*.npz"))) == 2
    runs: list[int] = []

    def counted(self: SequenceRuns, chunk: Chunk) -> np.ndarray:
        runs.append(1)
        return totals(self, chunk)

    monkeypatch.setattr(SequenceRuns, "totals", counted)
    assert headlab("ablate", "tiny", "--sequences", "51")[0] == 0  # another request begins anew
    n_chunks = len(runs)
    runs.clear()
    assert headlab(*asked, "--out", str(tmp_path / "out")) != whole  # which says where it wrote
    assert len(runs) == n_chunks - 2
    assert headlab(*asked) == whole
    assert list(kept.iterdir()) == []


def test_work_is_done_where_nothing_can_be_kept(
    headlab: Headlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    assert headlab("ablate", "tiny", *FEW, "--heads", "L0H0")[0] == 0
    monkeypatch.setattr(SequenceRuns, "totals", interrupt)
    code, _, err = headlab("ablate", "tiny", *FEW, "--heads", "L0H0")
    assert (code, err) == (130, "headlab: stopped\n")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
