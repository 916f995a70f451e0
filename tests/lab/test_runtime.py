"""Device, precision and surroundings, as a person names them and as a run records them."""

import subprocess
from pathlib import Path

import pytest
import torch

import lab.runtime
from lab.runtime import (
    Processes,
    autocast,
    git_sha,
    join_processes,
    mean_over,
    on_main,
    pick_device,
    resolve_precision,
    versions,
)

CPU = torch.device("cpu")


def test_devices_are_those_of_this_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == CPU
    with pytest.raises(ValueError, match=r"has \(cpu\), got 'cuda:1'; take auto"):
        pick_device("cuda:1")
    with pytest.raises(ValueError, match=r"unknown device 'cudda'; .* \(did you mean 'cuda'\?\)"):
        pick_device("cudda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("auto").type == pick_device("cuda:0").type == "cuda"
    with pytest.raises(ValueError, match=r"has \(cpu, cuda\), got 'cuda:1'"):
        pick_device("cuda:1")


def test_precision_is_bf16_where_it_is_asked_for_or_cheap(monkeypatch):
    assert resolve_precision("auto", CPU) == resolve_precision("fp32", CPU) == "fp32"
    assert resolve_precision("bf16", CPU) == "bf16"
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has, **_: has)
        assert resolve_precision("auto", torch.device("cuda")) == ("bf16" if has else "fp32")
    with pytest.raises(ValueError, match="unknown precision 'fp16'; choose from auto, bf16, fp32"):
        resolve_precision("fp16", CPU)
    weight = torch.ones(2, 2)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with autocast(precision, CPU):
            assert (weight @ weight).dtype == dtype


def test_alone_there_is_one_process():
    alone = join_processes(CPU)
    assert alone == Processes(1, 0, 0) and alone.is_main
    assert on_main(alone, lambda: 7) == 7
    assert mean_over(alone, torch.tensor(2.0)) == 2.0
    with pytest.raises(OSError, match="no room"):
        on_main(alone, lambda: (_ for _ in ()).throw(OSError("no room")))


def test_versions_are_of_what_numbers_depend_on():
    found = versions()
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"python", "headlab", "numpy", "transformer-lens", "safetensors"} <= set(found)


def test_git_sha_is_headlabs_own(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    module = tmp_path / "lab" / "runtime.py"
    module.parent.mkdir()
    module.write_text("")
    (module.parent / "__init__.py").write_text("")
    monkeypatch.setattr(lab.runtime, "__file__", str(module))
    subprocess.run([*git, "init", "-q"], check=True)
    # Installed inside somebody's repository, and no part of it.
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert git_sha() is None
    subprocess.run([*git, "add", "lab"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert git_sha() == head.stdout.strip()
    module.write_text("changed")
    assert git_sha() == head.stdout.strip() + "-dirty"
    monkeypatch.setattr(lab.runtime, "__file__", str(Path("/nowhere/lab/runtime.py")))
    assert git_sha() is None
