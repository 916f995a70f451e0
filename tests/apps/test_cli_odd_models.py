"""Every command on models that are not GPT-2's: other architectures, no score, no head."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.cli import main
from apps.terminal.head_table import say_head_table

Headlab = Callable[..., tuple[int, str, str]]

SMALL: str = """
    --length 2 --n-symbols 6 --steps 2 --warmup-steps 1 --batch-size 8 --eval-sequences 8
    --device cpu --no-report --model.n-layers 2 --model.d-model 12
"""
FEW = ("--sequences", "20")
MODELS = {
    "bare": """--model.normalization-type None --model.attn-only --model.d-head 5 --model.n-heads 3
        --model.initializer-range None --n-symbols 62""",
    "llama": """--model.normalization-type RMS --model.gated-mlp --model.act-fn silu
        --model.n-heads 4 --model.n-key-value-heads 2 --model.d-head 4
        --model.positional-embedding-type rotary --model.rotary-dim 2
        --model.rotary-adjacent-pairs""",
    "tied": """--model.tie-word-embeddings --model.positional-embedding-type sinusoidal
        --model.n-heads 2 --model.parallel-attn-mlp --model.act-fn solu_ln --model.d-mlp 7""",
    "odd": "--length 1 --n-symbols 1 --model.n-layers 1 --model.n-heads 1 --model.d-model 7",
}
"""Between them every field of ModelConfig that training takes; `odd` has rows without a target."""


@pytest.fixture(scope="module")
def odd_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with all MODELS, and two of them pruned: `half` (no head in layer 0) and `nothing`."""
    home = tmp_path_factory.mktemp("odd") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADLAB_HOME", str(home))
        for name, flags in MODELS.items():
            assert main(["train", "copy", "--name", name, *SMALL.split(), *flags.split()]) == 0
        for name, heads in (("half", "L0H0,L0H1"), ("nothing", "L0H0,L0H1,L1H0,L1H1")):
            assert main(["prune", "tied", "--heads", heads, "--out", name, *FEW]) == 0
    return home


@pytest.fixture(autouse=True)
def at_home(odd_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLAB_HOME", str(odd_home))


@pytest.mark.parametrize("name", [*MODELS, "half"])
def test_every_command_works(name: str, headlab: Headlab) -> None:
    head = "L1H0" if name == "half" else "L0H0"
    prompt = "a" if name == "odd" else "ab"
    for line in (
        ("probe", name, *FEW),
        ("ablate", name, *FEW),
        ("ablate", name, *FEW, "--heads", head, "--mode", "mean"),
        ("generate", name, prompt, "--ablate", head),
        ("prune", name, *FEW, "--heads", head, "--mode", "mean", "--out", f"{name}-less"),
        ("probe", f"{name}-less", *FEW),
        ("runs",),
    ):
        code, out, err = headlab(*line)
        assert code == 0, (line, err)
        assert out
    if name in MODELS:
        assert headlab("train", "--resume", name, "--no-report")[0] == 0


@pytest.mark.parametrize("name", ["bare", "odd"])
def test_a_report_is_drawn(name: str, headlab: Headlab, tmp_path: Path) -> None:
    code, _, err = headlab("report", name, "--out", str(tmp_path / "report"))
    assert code == 0, err
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    drawn = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert drawn >= {"labels", "heads", "stripes", "spectrum", "entropy", "ablation", "attention"}
    assert page.count("<img") == len(drawn)


def test_a_score_without_a_row_is_a_dash(headlab: Headlab) -> None:
    shown = headlab("probe", "odd", *FEW, "--probes", "sources_plus_2", "first")[1].splitlines()
    assert shown[-2].split()[:2] == ["L0H0", "-"]
    assert shown[-1].split()[:2] == ["chance", "-"]


@pytest.mark.parametrize("missing", [None, "", math.nan])
def test_a_missing_number_of_any_kind_is_a_dash(
    missing: object, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"layer": 0, "head": 0, "probe": "first", "score": missing, "chance": missing}
    say_head_table([row])
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["L0H0", "-"],
        ["chance", "-"],
    ]


def test_a_model_without_heads_is_a_sentence(headlab: Headlab, tmp_path: Path) -> None:
    sentence = (
        "nothing: copy of length 2, step 2; every head was pruned, so there is nothing to probe\n"
    )
    assert headlab("probe", "nothing", *FEW) == (0, sentence, "")
    probes = [("probe", *flags, "--out", "p") for flags in ((), ("--all-checkpoints",))]
    prune = ("prune", "--keep", "0")
    for command, *flags in (("ablate",), ("importance",), ("feeders",), prune, *probes):
        code, _, err = headlab(command, "nothing", *flags)  # nothing is written: no success
        refused = "headlab: error: WHAT must be a model with heads, got 'nothing', whose"
        assert (code, err.startswith(refused), err.count("\n")) == (2, True, 1)
    lines = [(name, "--heads", "L0H0") for name in ("ablate", "prune")]
    for line in (*lines, ("probe", "--card", "L0H0")):
        code, _, err = headlab(line[0], "nothing", *line[1:])
        assert code == 2
        assert err.startswith("headlab: error: head L0H0 was pruned from this model")
    out = tmp_path / "report"
    assert headlab("report", "nothing", "--out", str(out))[0] == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Every head of this model was pruned: there is no head to show." in page
    assert "<img" not in page
    assert "What each head looks at" not in page
    assert not (out / "figures").exists()
    assert (out / "heads.csv").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--model.d-vocab-out", "3"),
            "d_vocab_out must be d_vocab = 28 to learn copy, whose answers are symbols that it "
            "reads, got 3; leave it out",
        ),
        (
            ("--model.attention-dir", "bidirectional"),
            "attention_dir must be 'causal' to learn copy, got 'bidirectional', which sees the "
            "answers; leave it out",
        ),
    ],
)
def test_a_model_that_could_not_answer_is_not_trained(
    flags: tuple[str, ...], message: str, headlab: Headlab, odd_home: Path
) -> None:
    before = list(odd_home.iterdir())
    assert headlab("train", "copy", *flags) == (2, "", f"headlab: error: {message}\n")
    assert list(odd_home.iterdir()) == before
