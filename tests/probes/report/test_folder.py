"""The report of a run and of a model: every file, one set of numbers, nothing that runs."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from lab.config import ModelConfig, TrainConfig
from lab.evaluation import evaluate
from lab.hooked_gpt import HookedGPT
from lab.run_folders import open_run, update_derived
from lab.tasks.registry import get_task
from lab.training import train
from lab.vocab import Vocab
from probes import plots
from probes.ablation.metrics import DEFAULT_METRICS
from probes.ablation.table import ablation_sweep
from probes.attention.heads import score_heads
from probes.film.writer import FILM
from probes.labels.head_labels import label_study
from probes.reading.inputs import repeated_pair
from probes.registry import choose_probes
from probes.report import folder as report
from probes.report import page
from probes.report.folder import write_report
from probes.report.subject import film_of
from probes.schemas.film import DYNAMICS
from probes.schemas.labels import LABELS
from probes.tables import SCHEMAS, digest, json_rows, make_table, parquet_bytes, read_table

CAUSES = ("redundancy", "shapley", "first_order", "agreement", "pruning", "removable")
FIGURES = (
    *("labels", "heads", "stripes", "spectrum", "entropy", "ablation"),
    *("joint", "shapley", "first_order", "pruning"),
)
FILES = {
    *("heads.csv", "heads.parquet", "labels.csv", "labels.parquet", "evidence.parquet"),
    *("spectrum.parquet", "entropy.parquet", "ablation.csv", "ablation.parquet"),
    *(f"{name}.{form}" for name in CAUSES for form in ("csv", "parquet")),
    *("report.json", "report.html", "first_screen.json"),
    *(f"figures/{name}.png" for name in ("attention", *FIGURES)),
}
HOSTILE = "<img src=x onerror=alert(1)>\"'&$\\frac"


class Page(HTMLParser):
    """What a browser would find: tags, attributes, tables, text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.tables, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data):
        self.words.append(data)
        if self.tags and self.tags[-1] in ("td", "th") and data.strip():
            self.tables[-1][-1][-1] += data


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def plain_pictures(monkeypatch):
    """Empty figures, for tests that look at everything else: drawing takes seconds."""
    drawn = {name: (plots.new_figure(1.0, 1.0), pd.DataFrame()) for name in ("attention", *FIGURES)}
    monkeypatch.setattr(report, "draw_figures", lambda *_: drawn)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three steps."""
    config = TrainConfig(
        task="reversal",
        length=4,
        n_symbols=3,
        model=ModelConfig(n_layers=2, n_heads=2, d_model=8, d_vocab=5, n_ctx=10),
        steps=3,
        batch_size=8,
        eval_sequences=30,
        warmup_steps=1,
        checkpoint_every=2,
        device="cpu",
        precision="fp32",
    )
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    for _ in train(config, run_dir=folder):
        pass
    write_report(open_run(folder), n_sequences=20)
    return folder


@pytest.fixture(scope="module")
def screen(trained):
    return json.loads(open_run(trained).file("first_screen.json").read_bytes())


@pytest.fixture(scope="module")
def found_page(trained):
    return Page((trained / "report.html").read_text(encoding="utf-8"))


def test_run_vouches_for_every_file_of_its_report(trained):
    run = open_run(trained)
    every = {*FILES, "figures/dynamics.png"}
    assert set(run.files) >= every
    for name in every:
        assert run.file(name).stat().st_size > 100


def test_tables_bear_the_run_they_come_from(trained):
    run, schemas = open_run(trained), {schema.name: schema for schema in SCHEMAS}
    for name in ("heads", "labels", "evidence", "entropy", "spectrum", "ablation"):
        attrs = read_table(run.file(f"{name}.parquet"), schemas[name]).attrs
        assert attrs["run"] == "tiny"
        assert attrs["checkpoint_sha256"] == run.files["model.safetensors"].sha256
        assert (attrs["seed"], attrs["step"]) == (0, 3)
    ablation = read_table(run.file("ablation.parquet"), schemas["ablation"])
    assert ablation["mode"].unique().tolist() == ["zero", "mean"]
    assert ablation.attrs["reference"] == "reversal/reference/256"


def test_page_loads_nothing_and_runs_nothing(trained, found_page):
    text = (trained / "report.html").read_text(encoding="utf-8")
    assert not set(found_page.tags) & {"script", "link", "iframe", "object", "embed", "base", "a"}
    assert not [name for _, name, _ in found_page.attributes if name.startswith("on")]
    sources = [value for tag, name, value in found_page.attributes if name in ("src", "href")]
    assert len(sources) == 12
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    words = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.search(r"https?:|//|@import|url\(", words)
    assert len(text) < 600_000
    policies = [value for tag, name, value in found_page.attributes if tag == "meta"]
    assert any(value.startswith("default-src 'none'") for value in policies)


def test_page_shows_the_characters_of_the_csv(trained, found_page):
    with (trained / "heads.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows in found_page.tables
    frame = pd.read_parquet(trained / "heads.parquet")
    np.testing.assert_allclose(
        [float(row[3]) for row in rows[1:]], frame["score"].to_numpy(), rtol=1e-5
    )


def test_page_shows_every_ablation(trained, found_page):
    (table,) = (t for t in found_page.tables if t[0][:2] == ["ablated", "in its place"])
    with (trained / "ablation.csv").open(newline="") as file:
        losses = [row for row in csv.DictReader(file) if row["metric"] == "loss"]
    assert [row[2:6] for row in table[1:]] == [
        [row["ablated"], row["delta"], row["ci_low"], row["ci_high"]] for row in losses
    ]
    assert [row[0] for row in table[1:4]] == ["L0H0", "L0H1", "all of layer 0"]


def test_page_and_screen_say_what_each_head_is_and_why(trained, found_page, screen):
    labels = read_table(open_run(trained).file("labels.parquet"), LABELS)
    assert screen["labels"] == json_rows(labels)
    summary = json.loads((trained / "report.json").read_text())
    assert summary["labels"] == screen["labels"]
    (table,) = (t for t in found_page.tables if t[0] == ["head", "label", "score", "why"])
    why = {row[0]: (row[1].split(" (")[0], row[-1]) for row in table[1:]}
    assert why == {
        f"L{row.layer}H{row.head}": (row.label.replace("sources", "reversal"), row.reason)
        for row in labels.itertuples()
    }
    cards = [t for t in found_page.tables if t[0][0].startswith("score as ")]
    assert len(cards) == len(labels) == 4


def film(*scores: tuple[int, list[float]]) -> pd.DataFrame:
    """Return a film of some heads of layer 0 at steps 0, 10, 20 ..."""
    rows = [
        {"step": 10 * i, "layer": 0, "head": head, "probe": "previous", "score": score,
         "chance": 0.0, "kappa": score, "std_error": 0.01, "n_sequences": 4, "n_rows": 8,
         "unit": "mean probability"}
        for head, own in scores for i, score in enumerate(own)
    ]  # fmt: skip
    return make_table({name: [row[name] for row in rows] for name in DYNAMICS.names}, DYNAMICS, {})


def test_a_film_is_told_in_a_sentence():
    late = (3, [0.0, 0.0, 0.1, 0.9])
    two = film((0, [0.0, 0.8, 0.9, 0.9]), (1, [0.1, 0.7, 0.9, 0.8]), late, (4, [0.1] * 4))
    assert report.when_heads_form(two) == (
        "Heads set in: L0H0, L0H1 between steps 0 and 10; L0H3 between steps 20 and 30."
    )
    assert report.when_heads_form(film((4, [0.1] * 4))).startswith("No head sets in")


def test_a_film_that_was_taken_while_training_is_preferred(trained, tmp_path):
    copy = tmp_path / "tiny"
    shutil.copytree(trained, copy)
    assert film_of(open_run(copy))["step"].unique().tolist() == [0, 2, 3]
    update_derived(copy, {FILM: parquet_bytes(film((0, [0.2, 0.3])))})
    assert film_of(open_run(copy))["step"].tolist() == [0, 10]


def test_heads_of_a_class_come_first_the_clearest_on_top():
    rows = [
        {"layer": 0, "head": head, "label": label, "strength": strength, "score": score}
        for head, (label, strength, score) in enumerate(
            [("none", "", 0.9), ("first", "weak", 0.3), ("first", "strong", 0.8),
             ("uniform", "", None), ("current", "strong", 0.5)]
        )
    ]  # fmt: skip
    assert [row["head"] for row in sorted(rows, key=page.rank)] == [4, 2, 1, 0, 3]


def test_page_says_how_to_make_it_again(found_page):
    assert "headlab report tiny" in found_page.words


def test_json_holds_the_table_and_the_provenance(trained):
    summary = json.loads((trained / "report.json").read_text())
    frame = pd.read_parquet(trained / "heads.parquet")
    assert [row["score"] for row in summary["heads"]] == frame["score"].tolist()
    assert summary["provenance"]["run"] == "tiny"
    assert summary["command"] == "headlab report tiny"
    assert summary["model"]["n_heads"] == 2


def test_first_screen_holds_what_the_app_draws(trained, screen):
    frame = pd.read_parquet(trained / "heads.parquet")
    assert (screen["schema_version"], screen["run"], screen["task"]) == (2, "tiny", "reversal")
    assert (screen["step"], screen["n_layers"], screen["n_heads"]) == (3, 2, 2)
    assert [row["score"] for row in screen["scores"]] == frame["score"].tolist()
    assert [p["name"] for p in screen["probes"]] == frame["probe"].unique().tolist()
    assert screen["sequence"]["tokens"][0] == "<bos>"
    assert set(screen["best"]) == {"layer", "head", "probe", "score"}
    assert set(screen["patterns"]) == {"L0H0", "L0H1", "L1H0", "L1H1"}


def test_first_screen_patterns_are_the_model_s_on_that_sequence(trained, screen):
    model = HookedGPT.load(trained)
    ids = torch.tensor([screen["sequence"]["ids"]])
    _, cache = model.run_with_cache(ids)
    for layer in range(2):
        for head in range(2):
            stored = np.array(screen["patterns"][f"L{layer}H{head}"]) / 255
            exact = cache["pattern", layer][0, head].numpy()
            assert np.abs(stored - exact).max() <= 0.5 / 255 + 1e-6
    task = get_task("reversal", length=4, n_symbols=3)
    assert torch.equal(ids, task.sample(1, seed=0, split="test").tokens)


def test_first_screen_accuracy_is_that_of_all_unseen_sequences(trained, screen):
    unseen = get_task("reversal", length=4, n_symbols=3).sample(30, seed=0, split="test")
    exact = evaluate(HookedGPT.load(trained), unseen)
    assert screen["accuracy"] == {
        "loss": exact.loss,
        "token_accuracy": exact.token_accuracy,
        "exact_match": exact.exact_match,
        "n_sequences": 30,
    }


def test_every_figure_says_what_it_was_measured_on(trained):
    notes = {}
    for path in (trained / "figures").glob("*.png"):
        with Image.open(path) as picture:
            notes[path.stem] = picture.info["Description"].split(" | ")
    assert {"attention", *FIGURES} <= set(notes)
    assert {note[0] for note in notes.values()} == {"tiny: reversal of length 4, step 3"}
    assert notes["heads"][1:] == ["input: 20 sequences of reversal, unseen"]
    assert notes["attention"][1] == "input: 1 sequence of reversal, unseen"
    assert notes["shapley"][2] == "interval: 95 %, sequences resampled"
    if "ladder" in notes:
        assert "blocks of" in notes["ladder"][2]


def test_second_report_of_a_run_is_the_same(trained, tmp_path, plain_pictures):
    copy = tmp_path / "tiny"
    shutil.copytree(trained, copy)
    assert write_report(open_run(copy), n_sequences=20) == copy
    for name in (
        "heads.csv",
        "ablation.csv",
        "entropy.parquet",
        "report.json",
        "first_screen.json",
    ):
        assert open_run(copy).file(name).read_bytes() == (trained / name).read_bytes(), name


def test_model_without_anything_is_read_on_repeated_tokens(build_model, tmp_path, plain_pictures):
    folder = write_report(
        build_model(d_vocab=10, seed=4), tmp_path / "made" / "here", n_sequences=4
    )
    assert folder == tmp_path / "made" / "here"
    unnamed = {"redundancy.csv", "redundancy.parquet"}  # no head of it has a label
    assert files_in(folder) == FILES - unnamed
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]
    screen = json.loads((folder / "first_screen.json").read_text())
    assert screen["run"] is None
    assert len(screen["sequence"]["ids"]) == 9
    assert "too few" in (folder / "report.html").read_text()


def test_plain_tokens_are_reported_on(small_model, repeating_batch, tmp_path, plain_pictures):
    tokens = repeating_batch.tokens
    report = json.loads(
        (write_report(small_model, tmp_path / "r", batch=tokens) / "report.json").read_text()
    )
    assert report["accuracy"]["loss"] == pytest.approx(small_model(tokens, "loss").item())
    probed = {row["probe"]: row["n_rows"] for row in report["heads"]}
    assert set(probed) == {entry.name for entry in choose_probes(None, has_sources=False)}
    assert probed["previous"] == 5 * 13  # id 0 may be a word: nothing is left out
    assert {row["metric"] for row in report["ablation"]} == {*DEFAULT_METRICS}


def test_a_model_with_a_tokenizer_is_shown_in_its_words(build_model, tmp_path, plain_pictures):
    model = build_model(d_vocab=6, n_ctx=16)
    model.tokenizer = Vocab(("<bos>", "<sep>", "un", "do", "re", "mi"))
    tokens = torch.tensor([[0, 2, 3, 4, 5, 2, 3, 4], [0, 3, 2, 5, 4, 3, 2, 5]])
    folder = write_report(model, tmp_path / "r", batch=tokens)
    screen = json.loads((folder / "first_screen.json").read_text())
    assert screen["sequence"]["tokens"] == ["<bos>", "un", "do", "re", "mi", "un", "do", "re"]


@pytest.mark.parametrize("bos", [None, 5])
def test_labels_scores_and_ablations_see_the_same_tokens(
    build_model, tmp_path, plain_pictures, bos
):
    model = build_model(d_vocab=20, n_ctx=24)
    if bos is not None:
        model.tokenizer = SimpleNamespace(bos_token_id=bos, all_special_ids=[bos])
    names = Vocab(tuple(map(str, range(20))))
    folder = write_report(model, tmp_path / "r", n_sequences=4, vocab=names)
    pair = repeated_pair(model, n_sequences=4)
    assert pair.tokens[:, 0].tolist() == [bos or 0] * 4
    seen = digest(pair.tokens.numpy().tobytes())
    tables = {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}
    read = {name: frame.attrs["tokens_sha256"] for name, frame in tables.items()}
    assert {"labels", "evidence", "heads", "entropy", "spectrum", "ablation"} <= set(read)
    assert read == dict.fromkeys(read, seen)
    assert tables["labels"].attrs["repeated_blocks"] == pair.description
    wanted = label_study(model, pair=pair).labels
    pd.testing.assert_frame_equal(tables["labels"], wanted)
    scores = score_heads(model, pair.tokens, special_ids=pair.special_ids, control=pair.control)
    told = tables["heads"][tables["heads"]["probe"].isin(scores["probe"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(told, scores)
    assert "sources" in set(tables["heads"]["probe"])  # of the second block, in the first
    swept = ablation_sweep(model, pair.batch(), "zero")
    zero = tables["ablation"][tables["ablation"]["mode"] == "zero"].reset_index(drop=True)
    pd.testing.assert_frame_equal(zero, swept)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("given", [[[0, 2]], "abc", torch.tensor([0, 2])])
def test_what_is_no_tokens_is_told_in_one_line(small_model, tmp_path, given):
    with pytest.raises(ValueError, match=r"tokens must be a task's batch or .*, got a .*; pass"):
        write_report(small_model, tmp_path / "r", batch=given)


def test_hostile_texts_are_inert(small_model, repeating_batch, tmp_path, plain_pictures):
    vocab = Vocab((HOSTILE, "<script>x</script>", "$$", "a\nb", "%s", "\\"))
    folder = write_report(
        small_model, tmp_path / "r", batch=repeating_batch, vocab=vocab, command=f"do {HOSTILE}"
    )
    found = Page((folder / "report.html").read_text())
    assert f"do {HOSTILE}" in found.words
    assert not [a for a in found.attributes if a[1].startswith("on")]
    assert found.tags.count("img") == 9  # of a model without labels, and no other sequences
    assert "script" not in found.tags
    assert (
        json.loads((folder / "first_screen.json").read_text())["sequence"]["tokens"][0] == HOSTILE
    )


def test_old_report_is_replaced_and_other_files_stay(
    small_model, repeating_batch, tmp_path, plain_pictures
):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "heads.csv").write_text("old")
    write_report(small_model, tmp_path, batch=repeating_batch)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "heads.csv").read_text().startswith("layer,head,probe")


def test_failure_while_measuring_leaves_nothing(
    small_model, repeating_batch, tmp_path, monkeypatch, plain_pictures
):
    def fail(_):
        raise MemoryError

    monkeypatch.setattr(report, "report_page", fail)
    with pytest.raises(MemoryError):
        write_report(small_model, tmp_path / "r", batch=repeating_batch, n_sequences=2)
    assert list(tmp_path.iterdir()) == []


def test_wrong_requests_are_refused(small_model, build_model, tmp_path):
    with pytest.raises(ValueError, match="out_dir must be given for a model"):
        write_report(small_model)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ValueError, match="out_dir must be a folder, got the file"):
        write_report(small_model, file)
    with pytest.raises(ValueError, match="n_sequences must be a whole number of at least 1"):
        write_report(small_model, tmp_path / "r", n_sequences=0)
    with pytest.raises(ValueError, match=r"must have room for repeated blocks of 4 .*; give"):
        write_report(build_model(n_ctx=4), tmp_path / "r")


def test_escaping_holds_inside_attributes():
    assert page.text("\"'<&>") == "&quot;&#x27;&lt;&amp;&gt;"
