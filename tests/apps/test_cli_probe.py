"""headlab probe: labels, cards and films of whatever can be probed, and what it refuses."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.inputs import checked_mask
from lab.run_folders import open_run
from lab.tasks.registry import get_task
from lab.weights import weight_not_finite
from probes.film.frames import film_checkpoints, find_onsets, onset_rows
from probes.head_classes import shown_label
from probes.labels.head_labels import label_study
from probes.reading.observed_model import require_tokens
from probes.tables import json_rows

pytestmark = pytest.mark.usefixtures("tiny_home")
Headlab = Callable[..., tuple[int, str, str]]

FEW = ("--sequences", "40")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is no run: random, three heads in two layers, saved by headlab."""
    folder = tmp_path_factory.mktemp("models") / "random"
    config = ModelConfig(
        n_layers=2,
        n_heads=3,
        d_model=12,
        d_vocab=40,
        n_ctx=30,
        initializer_range=0.7,
        kept_heads=((0, 1, 2), (1,)),
    )
    HookedGPT(config).save(folder)
    return folder


def cells(out: str) -> dict[str, list[str]]:
    """Return the rows of the last printed table by their first cell."""
    lines = out.rsplit("\u2500\n", 1)[1].split("\n\n")[0].splitlines()
    return {line.split()[0]: re.split(r"\s{2,}", line.strip()) for line in lines}


def facts(out: str) -> str:
    """Return a text without the spaces that line it up."""
    return " ".join(out.split())


def test_a_run_is_labelled_on_its_task(headlab: Headlab, tiny_home: Path) -> None:
    code, out, err = headlab("probe", "tiny", *FEW)
    assert (code, err) == (0, "")
    assert out.startswith("tiny: reversal of length 4, step 60\n")
    assert "input 40 unseen sequences of reversal; all begin with id 0 <bos>" in facts(out)
    batch = get_task("reversal", length=4, n_symbols=8).sample(40, seed=0, split="test")
    study = label_study(HookedGPT.load(tiny_home / "tiny"), batch)
    assert study.labels.attrs["repeated_blocks"] in facts(out)
    shown = cells(out)
    for row in json_rows(study.labels):
        line = shown[f"L{row['layer']}H{row['head']}"]
        assert line[1].split(" ")[0].rstrip(":") == shown_label(row["label"], "reversal")
    assert "sources" in {row["label"] for row in json_rows(study.labels)}
    assert "reversal: rows whose logits predict an answer; key: " in facts(out)


def test_a_card_has_the_numbers_and_the_reason(headlab: Headlab, tiny_home: Path) -> None:
    code, out, err = headlab("probe", "tiny", *FEW, "--card", "L0H1")
    assert (code, err) == (0, "")
    batch = get_task("reversal", length=4, n_symbols=8).sample(40, seed=0, split="test")
    study = label_study(HookedGPT.load(tiny_home / "tiny"), batch)
    row = next(r for r in json_rows(study.labels) if (r["layer"], r["head"]) == (0, 1))
    assert f"L0H1: {shown_label(row['label'], 'reversal')}" in out
    assert row["reason"] in out
    evidence = study.evidence.query("layer == 0 and head == 1")
    assert list(cells(out)) == [shown_label(name, "reversal") for name in evidence["probe"]]
    assert cells(out)["previous"][1] == f"{evidence.set_index('probe')['score']['previous']:.2f}"


def test_a_model_that_is_no_run_is_read_on_repeated_tokens(headlab: Headlab, saved: Path) -> None:
    code, out, err = headlab("probe", str(saved), *FEW)
    assert (code, err) == (0, "")
    assert out.startswith("random: 2 layers x 3 heads\n")
    model = HookedGPT.load(saved)
    study = label_study(model, sequences=40)
    assert f"input {study.labels.attrs['repeated_blocks']}" in facts(out)
    assert list(cells(out)) == ["L0H0", "L0H1", "L0H2", "L1H1"]
    other = headlab("probe", str(saved), *FEW, "--seed", "5")[1]
    assert cells(other) != cells(out)
    asked = headlab("probe", str(saved), *FEW, "--probes", "induction", "first")[1]
    assert asked.startswith("random: 2 layers x 3 heads; mean attention on each probe's cells, 40")
    assert len(cells(asked)["L1H1"]) == 3


def test_a_run_can_be_read_on_repeated_tokens_too(headlab: Headlab) -> None:
    out = headlab("probe", "tiny", *FEW, "--repeated")[1]
    assert "unseen" not in out
    assert "reversal" not in {line[1] for line in cells(out).values()}
    assert "sources" not in out


TABLES = ("labels", "evidence", "heads", "entropy", "spectrum", "values", "copying")


@pytest.mark.parametrize("which", ["run", "model"])
def test_every_table_is_written_in_three_forms(
    which: str, headlab: Headlab, saved: Path, tmp_path: Path
) -> None:
    what = "tiny" if which == "run" else str(saved)
    code, out, err = headlab("probe", what, *FEW, "--out", str(tmp_path / "deep" / "out"))
    assert (code, err) == (0, "")
    assert f"21 files into {tmp_path}/deep/out: labels, evidence, " in facts(out)
    names = {path.name for path in (tmp_path / "deep" / "out").iterdir()}
    assert names == {f"{name}.{form}" for name in TABLES for form in ("csv", "parquet", "json")}
    for name in TABLES:
        kept = pd.read_parquet(tmp_path / "deep" / "out" / f"{name}.parquet")
        assert kept.attrs["table"] == name
        told = json.loads((tmp_path / "deep" / "out" / f"{name}.json").read_text())
        assert told["provenance"]["tokens_sha256"] == kept.attrs["tokens_sha256"]
        assert told["rows"] == json_rows(kept)
        read = pd.read_csv(tmp_path / "deep" / "out" / f"{name}.csv")
        assert list(read.columns) == list(kept.columns)
        assert len(read) == len(kept)
        assert len(kept.attrs["checkpoint_sha256"]) == 64
        expected = ("tiny", 60, 0) if which == "run" else (None, None, None)
        assert tuple(kept.attrs[key] for key in ("run", "step", "seed")) == expected
    heads = pd.read_parquet(tmp_path / "deep" / "out" / "heads.parquet")
    assert heads["control"].isna().all() == (which == "run")


def test_prompts_of_a_file_are_read(headlab: Headlab, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("abcd\ndcb\nhg\nab\nef\ngh\nac\nbd\n")
    code, out, err = headlab("probe", "tiny", "--text", str(tmp_path / "words"))
    assert (code, err) == (0, "")
    assert "input 8 prompts of 6 to 10 tokens from " in facts(out)
    assert "all begin with id 0 <bos>" in out
    (tmp_path / "ids").write_text("1 2 3 1 2\n5,6,5,6,7,8,9,10\n")
    code, out, err = headlab("probe", str(saved), "--ids", str(tmp_path / "ids"))
    assert (code, err) == (0, "")
    assert "input 2 prompts of 5 to 8 tokens from " in facts(out)
    assert "first tokens differ" in out
    (tmp_path / "lines").write_text('{"ids": [4, 5, 4]}\n[1]\n')
    assert headlab("probe", str(saved), "--jsonl", str(tmp_path / "lines"))[0] == 0
    scores = headlab("probe", str(saved), "--jsonl", str(tmp_path / "lines"), "--probes", "first")
    assert scores[0] == 0
    assert "input 2 prompts of 1 to 3 tokens from " in facts(scores[1])
    assert "first tokens differ" in scores[1]


@pytest.mark.parametrize("given", ["file", "repeated"])
def test_one_call_checks_its_input_and_its_weights_once(
    given: str, headlab: Headlab, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[object] = []
    masks: list[tuple[int, ...]] = []
    tokens: list[torch.Tensor] = []

    def scan(model: HookedGPT) -> str | None:
        scans.append(model)
        return weight_not_finite(model)

    def mask(given: torch.Tensor, *shape: int, device: torch.device) -> torch.Tensor:
        masks.append(shape)
        return checked_mask(given, *shape, device=device)

    def ids(given: object) -> torch.Tensor:
        tokens.append(require_tokens(given))
        return tokens[-1]

    monkeypatch.setattr("lab.weights.weight_not_finite", scan)
    monkeypatch.setattr("probes.reading.observed_model.weight_not_finite", scan)
    monkeypatch.setattr("probes.reading.observed_model.checked_mask", mask)
    monkeypatch.setattr("probes.reading.observed_model.require_tokens", ids)
    words = ["probe", str(saved), "--out", str(tmp_path / "out")]
    if given == "file":
        (tmp_path / "ids").write_text("1 2 3 1 2\n5,6,5,6,7,8,9,10\n")
        words += ["--ids", str(tmp_path / "ids")]
    assert headlab(*words)[0] == 0
    assert len(scans) == 1
    assert masks == ([(2, 8)] if given == "file" else [])
    # The sequences, and the sample that copying_scores draws for itself.
    assert [len(one) for one in tokens] == [2 if given == "file" else 64, 10]


def test_an_interval_stands_beside_its_own_number(headlab: Headlab, saved: Path) -> None:
    header = headlab("probe", str(saved), *FEW)[1].split("\u2500")[0].splitlines()[-1]
    titles = ["head", "label", "score", "control", "effect", "of the effect"]
    assert re.split(r"\s{2,}", header.strip())[:6] == titles
    study = label_study(HookedGPT.load(saved), sequences=40)
    shown = cells(headlab("probe", str(saved), *FEW)[1])
    for row in json_rows(study.labels):
        effect = "-" if row["effect"] is None else f"{row['effect']:.2f}"
        assert shown[f"L{row['layer']}H{row['head']}"][4] == effect


def test_one_token_has_no_number_and_that_is_said(
    headlab: Headlab, saved: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text("3\n")
    code, out, err = headlab("probe", str(saved), "--ids", str(tmp_path / "one"))
    assert (code, err) == (0, "")
    out = headlab("probe", str(saved), "--ids", str(tmp_path / "one"), "--probes", "previous")[1]
    assert cells(out)["L0H0"][1] == "-"


def test_a_film_of_all_checkpoints(headlab: Headlab, tiny_home: Path, tmp_path: Path) -> None:
    asked = ("probe", "tiny", "--all-checkpoints", "--sequences", "30", "--out", str(tmp_path))
    code, out, err = headlab(*asked)
    assert (code, err) == (0, "")
    assert out.startswith("tiny: reversal of length 4, 4 checkpoints; mean attention")
    film = film_checkpoints(open_run(tiny_home / "tiny"), sequences=30)
    written = pd.read_parquet(tmp_path / "dynamics.parquet")
    pd.testing.assert_frame_equal(written, film)
    onsets = find_onsets(film)
    assert json.loads((tmp_path / "onsets.json").read_text())["rows"] == json_rows(onsets)
    table = out.split("\u2500\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table] == ["0", "20", "40", "60", "chance"]
    rows = [row for row in onset_rows(onsets) if row["probe"] == "sources"]
    assert list(cells(out)) == [f"L{row['layer']}H{row['head']}" for row in rows]
    first = f"{rows[0]['step_before']} and {rows[0]['step']}"
    assert cells(out)["L0H0"][1:3] == ["sources", first]


def test_a_film_without_an_onset_says_so(headlab: Headlab) -> None:
    code, out, _ = headlab("probe", "raw", "--all-checkpoints", *FEW, "--probes", "first")
    assert code == 0
    assert out.endswith(
        "no head forms: no chance-corrected score rises by 0.2 after the first step\n"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tiny --card 0.1", "a head must be written like L0H3, got '0.1'"),
        ("tiny --card L0H7", "unknown head 'L0H7'; choose from L0H0, L0H1, L1H0, L1H1 (did you"),
        ("SAVED --card L1H0", "head L1H0 was pruned from this model"),
        ("SAVED --checkpoint 3", "--checkpoint works only with a run, got 3; leave it out for"),
        ("tiny --text A --ids B", "prompts must come from one file, got --text and --ids; give"),
        ("tiny --text A --sequences 3", "--sequences must be left out with --text, got 3; every"),
        ("tiny --text A --repeated", "--repeated must be left out with --text; give one of the"),
        ("tiny --all-checkpoints --card L0H0", "--card must be left out with --all-checkpoints; g"),
        ("tiny --all-checkpoints --seed 3", "--seed must be left out with --all-checkpoints; give"),
        ("tiny --all-checkpoints --all-heads", "--all-heads must be left out with --all-checkpoin"),
        ("tiny --card L0H1 --probes first", "--card must be left out with --probes; give one of"),
        ("tiny --all-heads --probes first", "--all-heads must be left out with --probes; give one"),
        ("tiny --all-heads --card L0H1", "--all-heads must be left out with --card; give one of"),
        ("tiny --card L0H1,L0H0", "--card must name one head, got 'L0H1,L0H0'; give one at a"),
        ("SAVED --probes first sources", "probe sources needs a run's task, which knows"),
        ("tiny --ids GOOD --probes sources_plus_1", "probe sources_plus_1 needs a run's task"),
        ("SAVED --all-checkpoints", "--all-checkpoints needs a run, got '"),
        ("tiny --text NOWHERE", "a file of prompts must be readable, got 'No such file or directo"),
        ("tiny --text WORDS", "line 2 of '.*WORDS': prompt must be 1 to 4 symbols for reversal of"),
        ("tiny --ids LONG", "line 1 of '.*LONG' must be at most n_ctx = 12 tokens, got 13; shorte"),
        ("tiny --ids UNKNOWN", "token ids on line 1 of '.*UNKNOWN' must be from 0 to 9, got 10"),
        ("tiny --text EMPTY", "a file of prompts must have at least one line, got none in '.*EMP"),
        ("SAVED --text WORDS", "line 1 of '.*' must be token ids for a model without a tokenizer"),
        ("nothing.gguf", "unknown run or model 'nothing.gguf'; choose from raw, smollm2-135m-inst"),
        ("WORDS", "WHAT must be a run, .* or a GGUF file, got the file '.*WORDS', which"),
        ("BARE", "WHAT must be a run, .*, got the folder '.*BARE' without config.json; "),
        ("TORN.gguf", "TORN.gguf must be a whole GGUF file, got "),
        ("HOSTILE", "config.json must be whole JSON"),
        ("MAMBA", "unknown model_type 'mamba'; choose from gpt2, gpt_neox, llama (did you mean"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line(
    line: str, message: str, headlab: Headlab, saved: Path, tmp_path: Path
) -> None:
    contents = {
        "WORDS": b"ab\nabcde\n",
        "LONG": b"2 " * 13,
        "UNKNOWN": b"2 10",
        "EMPTY": b"",
        "GOOD": b"0 2 3",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "TORN.gguf").write_bytes(b"GG")
    for name in ("HOSTILE", "MAMBA", "BARE"):
        (tmp_path / name).mkdir()
    (tmp_path / "HOSTILE" / "config.json").write_bytes(b"\xff\x00{")
    (tmp_path / "MAMBA" / "config.json").write_text('{"model_type": "mamba"}')
    others = ("HOSTILE", "MAMBA", "BARE", "TORN.gguf", "NOWHERE")
    places = {name: str(tmp_path / name) for name in (*contents, *others)}
    words = [{**places, "SAVED": str(saved)}.get(word, word) for word in line.split()]
    code, out, err = headlab("probe", *words)
    assert (code, out) == (2, "")
    assert err.startswith("headlab: error: ") and err.count("\n") == 1
    assert re.search(message, err) if ".*" in message or "|" in message else message in err


def test_weights_that_are_no_numbers_are_refused(headlab: Headlab, tmp_path: Path) -> None:
    model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=30, n_ctx=20))
    with torch.no_grad():
        model.blocks[0].attn.W_K[0, 0, 0] = float("nan")
    model.save(tmp_path / "broken")
    code, out, err = headlab("probe", str(tmp_path / "broken"))
    assert (code, out) == (2, "")
    assert err == (
        "headlab: error: weights must be finite, got nan or inf in blocks.0.attn.W_K of "
        f"'{tmp_path}/broken'; restore them from a copy or train again\n"
    )


def test_a_model_without_room_for_repeats_is_told(headlab: Headlab, tmp_path: Path) -> None:
    model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=30, n_ctx=6))
    model.save(tmp_path / "short")
    code, out, err = headlab("probe", str(tmp_path / "short"))
    assert (code, out) == (2, "")
    assert err.startswith("headlab: error: model must have room for repeated blocks of 4 ")
    assert "n_ctx = 6 and 28 different ids allow 2; give sequences of your own (on the" in err
    assert err.endswith("(on the command line with --ids or --text)\n")
    (tmp_path / "ids").write_text("4 5 6\n7 8 9\n")
    assert headlab("probe", str(tmp_path / "short"), "--ids", str(tmp_path / "ids"))[0] == 0


def test_a_folder_of_transformers_is_probed(
    headlab: Headlab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=30, n_ctx=20))
    model.to_hf().save_pretrained(tmp_path / "foreign")
    code, out, err = headlab("probe", str(tmp_path / "foreign"), *FEW)
    assert code == 0, err
    assert list(cells(out)) == ["L0H0", "L0H1"]
    monkeypatch.chdir(tmp_path)  # a folder of the place where one stands needs no slash
    assert headlab("probe", "foreign", *FEW)[1] == out


def test_the_home_comes_before_a_folder_of_the_same_name(
    headlab: Headlab, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert headlab("probe", "tiny", *FEW)[1].startswith("tiny: reversal of length 4")
    assert headlab("probe", "./tiny", *FEW)[1].startswith("tiny: 2 layers x 3 heads")
