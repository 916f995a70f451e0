"""Files of a run that are missing, cut off, changed or foreign: one line says which, what helps.

What the functions of lab say about each kind of damage is pinned in tests/lab; here it is that
every command says it, before it prints anything else, and that nothing is written.
"""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from apps.cli import main
from lab.hooked_gpt import HookedGPT
from lab.manifest import seal_folder
from lab.naming import unknown_name
from lab.tasks.registry import TASKS

LAST = "checkpoints/step-000004"
REMEDY = "restore it from a copy or train again"


def gone(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def unfinished(run: Path) -> None:
    """Take the end of a run away, as if it had been stopped right after its last checkpoint."""
    (run / "manifest.json").unlink()
    (run / "model.safetensors").unlink()


READS = {
    "config.json": (
        "probe tiny", "ablate tiny", "generate tiny abc", "report tiny", "prune tiny --heads L0H0",
        "app --run tiny", "train --resume tiny",
    ),
    "model.safetensors": (
        "probe tiny", "ablate tiny", "generate tiny abc", "prune tiny --heads L0H0",
        "train --resume tiny",
    ),
    "metrics.csv": ("train --resume tiny",),
    f"{LAST}/config.json": ("probe tiny --checkpoint 4", "train --resume tiny"),
    f"{LAST}/model.safetensors": (
        "probe tiny --checkpoint 4", "ablate tiny --checkpoint 4",
        "generate tiny abc --checkpoint 4", "prune tiny --heads L0H0 --checkpoint 4",
        "train --resume tiny",
    ),
    f"{LAST}/optimizer.safetensors": ("train --resume tiny",),
    f"{LAST}/training.json": ("train --resume tiny",),
    f"{LAST}/manifest.json": ("train --resume tiny",),
}  # fmt: skip
"""The commands that read a file; no other command is held up by its damage."""


@pytest.mark.parametrize("damage", [gone, cut, flipped])
@pytest.mark.parametrize("name", READS)
def test_every_command_that_reads_a_damaged_file_names_it(
    name: str, damage: Callable[[Path], None], home: Path, refusal: Callable[..., str]
) -> None:
    damage(home / "tiny" / name)
    before = files_of(home)
    what = {
        gone: "must be there, got no such file in ",
        cut: "must have ",
        flipped: "must have the sha256 ",
    }[damage]
    for line in READS[name]:
        message = refusal(*line.split())
        assert name in message or Path(name).name in message
        assert what in message and message.endswith(REMEDY)
        assert "<tmp>/home/tiny" in message
    assert files_of(home) == before


@pytest.mark.parametrize("damage", [cut, gone])
def test_a_damaged_manifest_is_named(
    damage: Callable[[Path], None], home: Path, refusal: Callable[..., str]
) -> None:
    damage(home / "tiny" / "manifest.json")
    message = refusal("probe", "tiny")
    assert (
        message
        == {
            cut: "manifest.json must be whole JSON, got damaged text in "
            "'<tmp>/home/tiny/manifest.json'; restore the folder from a copy",
            gone: "run must be complete, got 'tiny', which stopped before its end; "
            "train it to the end with --resume",
        }[damage]
    )


def test_a_finished_run_without_its_manifest_is_offered_only_what_works(
    home: Path,
    refusal: Callable[..., str],
    weights_only: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    stripped = shutil.copytree(home / "tiny", home / "stripped")
    weights_only(stripped)
    for name in ("tiny", "stripped"):
        (home / name / "manifest.json").unlink()
    assert refusal("probe", "stripped") == (
        "run must be complete, got 'stripped', which has no manifest.json and no checkpoint "
        "to resume from; restore the folder from a copy"
    )
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "stripped has no manifest.json: restore the folder from a copy",
        "tiny stopped at step 4: headlab train --resume tiny",
    ]
    assert main(["train", "--resume", "tiny", "--no-report"]) == 0
    assert main(["probe", "tiny", "--sequences", "2"]) == 0


@pytest.mark.parametrize("line", ["probe tiny --sequences 2", "generate tiny abc", "report tiny"])
def test_files_that_nobody_asked_for_are_missed_aloud(
    line: str,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("probes.report.folder.write_report", lambda run, out: run.path)
    assert main(line.split()) == 0
    assert "note:" not in capsys.readouterr().err
    shutil.rmtree(home / "tiny" / "checkpoints")
    assert main(line.split()) == 0
    note, *_ = capsys.readouterr().err.splitlines()
    assert note == (
        "note: tiny must have the files that its manifest.json lists; missing: "
        "checkpoints/step-000000/config.json and 14 more; restore the folder from a copy"
    )


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", cut),
        ("model.safetensors", flipped),
        ("optimizer.safetensors", gone),
        ("optimizer.safetensors", cut),
        ("training.json", gone),
        ("manifest.json", gone),
        ("manifest.json", cut),
    ],
)
def test_a_stopped_run_says_how_to_go_on_from_the_checkpoint_before(
    name: str,
    damage: Callable[[Path], None],
    home: Path,
    refusal: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    unfinished(home / "tiny")
    damage(home / "tiny" / LAST / name)
    before = files_of(home)
    message = refusal("train", "--resume", "tiny", "--no-report", remarks=True)
    assert name in message
    assert message.endswith(f", or remove '<tmp>/home/tiny/{LAST}' to resume from step 2")
    assert files_of(home) == before
    shutil.rmtree(home / "tiny" / LAST)
    assert main(["train", "--resume", "tiny", "--no-report"]) == 0
    assert main(["probe", "tiny", "--sequences", "2"]) == 0


def test_a_run_that_is_damaged_does_not_hide_the_others(
    home: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cut", "long", "pipe", "linked"):
        shutil.copytree(home / "tiny", home / name)
    cut(home / "cut" / "model.safetensors")
    manifest = home / "long" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["files"]["x" * 300] = document["files"]["config.json"]
    manifest.write_text(json.dumps(document))
    (home / "pipe" / "config.json").unlink()
    (home / "linked" / "config.json").unlink()
    (home / "linked" / "config.json").symlink_to(home / "tiny" / "config.json")
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "tiny  reversal 3" in out
    for name in ("cut", "long", "pipe", "linked"):
        assert name not in out and f"run {name} is not listed: " in caplog.text


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(schema_version=2),
            "schema_version must be at most 1, got 2 in '<tmp>/home/tiny/config.json'; "
            "update headlab to read it",
        ),
        (
            lambda d: d["train"].update(stepz=4),
            "<tmp>/home/tiny/config.json: unknown TrainConfig key 'stepz'; choose from accumulate, "
            "batch_size, betas, checkpoint_every, device, eval_every, eval_sequences, "
            "final_lr_share, grad_clip, learning_rate, length, model and 7 more "
            "(did you mean 'steps'?)",
        ),
        (
            lambda d: d["train"]["model"].update(n_head=2),
            "<tmp>/home/tiny/config.json: unknown ModelConfig key 'n_head'; choose from act_fn, "
            "attention_dir, attn_only, d_head, d_mlp, d_model, d_vocab, d_vocab_out, eps, "
            "gated_mlp, initializer_range, kept_heads and 12 more (did you mean 'n_heads'?)",
        ),
        (
            lambda d: d["train"].pop("task"),
            "<tmp>/home/tiny/config.json: TrainConfig must have the key 'task', got ...",
        ),
        (
            lambda d: d["train"].update(grad_clip="1"),
            "<tmp>/home/tiny/config.json: grad_clip must be a number of at least 0, got '1'",
        ),
        (
            lambda d: d.update(train=[1]),
            "<tmp>/home/tiny/config.json: TrainConfig must be a JSON object, got list",
        ),
        (
            lambda d: d["train"].update(task="reversl"),
            unknown_name("task", "reversl", [entry.name for entry in TASKS]),
        ),
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_a_config_that_cannot_be_read_is_named(
    change: Callable[[dict[str, Any]], object],
    message: str,
    home: Path,
    refusal: Callable[..., str],
) -> None:
    rewrite(home / "tiny" / "config.json", change)
    seal_folder(home / "tiny")  # an honest manifest, so that the content is what is looked at
    got = refusal("probe", "tiny")
    assert got.startswith(message[:-3]) if message.endswith("...") else got == message


def with_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


HUGE = 2**20


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (
            {"d_model": 16},
            None,
            "model.safetensors must hold the 4022 numbers that config.json describes, got 6656 "
            "bytes in '<tmp>/home/tiny'; use weights and config of one model",
        ),
        (
            {"d_model": 4},
            None,
            "embed.W_E must have the shape [6, 4], as its config.json says, got [6, 8] in "
            "'<tmp>/home/tiny/model.safetensors'; use weights and config of one model",
        ),
        (
            {"d_vocab": HUGE, "d_model": HUGE, "n_layers": 9_999},  # petabytes
            None,
            "model.safetensors must hold the ...",
        ),
        (
            {},
            [8, 6],
            "embed.W_E must have the shape [6, 8], as its config.json says, got [8, 6] in "
            "'<tmp>/home/tiny/model.safetensors'; use weights and config of one model",
        ),
        (
            {},
            [HUGE, HUGE],  # four terabytes
            "model.safetensors must be a whole .safetensors file, got a size of 'embed.W_E' that "
            "its shape contradicts in '<tmp>/home/tiny/model.safetensors'; restore it from a copy "
            "or train again",
        ),
        (
            {},
            [10**30, 0],
            "model.safetensors must be a whole .safetensors file, got a size of 'embed.W_E' that "
            "no tensor has in '<tmp>/home/tiny/model.safetensors'; restore it from a copy "
            "or train again",
        ),
    ],
)
def test_shapes_that_disagree_are_found_before_memory_is_taken(
    config: dict[str, int],
    shape: list[int] | None,
    message: str,
    home: Path,
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = home / "tiny"
    rewrite(run / "config.json", lambda document: document["train"]["model"].update(config))
    if shape is not None:
        with_header(run / "model.safetensors", lambda h: h["embed.W_E"].update(shape=shape))
    seal_folder(run)
    monkeypatch.setattr(HookedGPT, "__init__", None)  # building a model would be a TypeError
    monkeypatch.setattr("lab.checkpoint.read_weights", None)
    got = refusal("probe", "tiny")
    assert got.startswith(message[:-3]) if message.endswith("...") else got == message


def test_a_header_that_asks_for_more_than_the_file_holds_is_refused_where_config_agrees(
    home: Path, refusal: Callable[..., str]
) -> None:
    """The config, the header and the manifest agree on four terabytes that are not there."""
    run = home / "tiny"
    weights = run / "model.safetensors"
    rewrite(run / "config.json", lambda d: d["train"]["model"].update(d_vocab=HUGE, n_ctx=HUGE))

    def claim(header: dict[str, Any]) -> None:
        header["embed.W_E"]["shape"] = [HUGE, HUGE]
        header["embed.W_E"]["data_offsets"][1] = 4 * HUGE * HUGE

    with_header(weights, claim)
    seal_folder(run)
    manifest = run / "manifest.json"
    rewrite(manifest, lambda d: d["files"]["model.safetensors"].update(bytes=2**43))
    assert refusal("probe", "tiny").startswith("model.safetensors must have 8796093022208 bytes, ")


def test_a_pickle_as_weights_is_refused_and_never_opened(
    home: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "fired",))

    weights = home / "tiny" / "model.safetensors"
    message = (
        "weights must be a .safetensors file, got the pickle '<tmp>/home/tiny/model.safetensors', "
        "which could run any code while it loads; convert it with safetensors where you trust it"
    )
    state = {"bomb": Bomb(), "filling": b"x" * 9_999}
    torch.save(HookedGPT.load(home / "tiny").state_dict(), tmp_path / "model.pt")
    for data in (pickle.dumps(state), (tmp_path / "model.pt").read_bytes()):
        weights.write_bytes(data)
        for sealed in (False, True):
            if sealed:
                seal_folder(home / "tiny")
            for line in ("probe tiny", "generate tiny abc", "ablate tiny", "report tiny"):
                assert refusal(*line.split(), remarks=True) == message
    assert not (tmp_path / "fired").exists()
    shutil.copy(tmp_path / "model.pt", home / "tiny" / LAST / "model.safetensors")
    assert refusal("probe", "tiny", "--checkpoint", "4") == message.replace(
        "tiny/", f"tiny/{LAST}/"
    )
    told = message.replace("home/tiny/model.safetensors", "model.pt")
    assert refusal("probe", str(tmp_path / "model.pt")) == told
    assert refusal("report", str(tmp_path / "model.pt")) == (
        "run must be a folder with a config.json, got '<tmp>/model.pt'; `headlab runs` lists them"
    )
