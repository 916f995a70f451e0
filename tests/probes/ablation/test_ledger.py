"""An interrupted sweep goes on where it was, bit for bit, and takes nobody else's results."""

import re

import numpy as np
import pytest
import torch

from lab.durable import atomic_write, hold
from probes.ablation import sweep_passes as sweep_runs
from probes.ablation.ledger import Ledger
from probes.ablation.sweep import Ablation, sweep_sets
from probes.execution import Execution

SETS = [((0, 0),), ((0, 1),), ((0, 2),), ((1, 0),), ((1, 1), (1, 2))]
TOKENS = torch.randint(6, (4, 9), generator=torch.Generator().manual_seed(5))
LITTLE = 100_000
"""Bytes that make several chunks of this sweep."""


def swept(model, ledger, tokens=TOKENS, sets=SETS, *, progress=None, **changes):
    execution = Execution(memory=LITTLE, ledger=ledger, progress=progress)
    return sweep_sets(model, tokens, sets, execution=execution, **changes)


@pytest.fixture
def computed(monkeypatch):
    """The chunks that are computed, not read."""
    chunks, totals = [], sweep_runs.SequenceRuns.totals

    def counted(self, chunk):
        chunks.append(chunk)
        return totals(self, chunk)

    monkeypatch.setattr(sweep_runs.SequenceRuns, "totals", counted)
    return chunks


def test_interrupted_sweep_goes_on_bit_for_bit(build_model, tmp_path, computed):
    model = build_model().float()
    whole = swept(model, None)
    n_chunks = len(computed)
    assert n_chunks >= 5
    computed.clear()

    def interrupt(done, total):
        if len(computed) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(model, tmp_path / "ledger", progress=interrupt)
    assert len(computed) == 3
    resumed = swept(model, tmp_path / "ledger")
    assert len(computed) == n_chunks
    assert resumed.totals.tobytes() == whole.totals.tobytes()
    again = swept(model, tmp_path / "ledger")
    assert len(computed) == n_chunks
    assert again.totals.tobytes() == whole.totals.tobytes()
    assert not list((tmp_path / "ledger").glob(".*"))


def test_ledger_of_another_sweep_is_refused(build_model, tmp_path):
    model, folder = build_model(), tmp_path / "ledger"
    swept(model, folder)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    one_more = build_model()
    with torch.no_grad():
        one_more.blocks[1].attn.W_Q[0, 0, 0] += 1e-9
    threads = torch.get_num_threads()
    others = {
        "model": lambda: swept(one_more, folder),
        "config": lambda: swept(build_model(eps=1e-6), folder),
        "tokens": lambda: swept(model, folder, (TOKENS + 1) % 6),
        "sets": lambda: swept(model, folder, sets=SETS[:-1]),
        "ablation": lambda: swept(model, folder, ablation=Ablation(value=0.5)),
        "metrics": lambda: swept(model, folder, metrics=["margin"]),
        "chunks": lambda: sweep_sets(model, TOKENS, SETS, execution=Execution(ledger=folder)),
        "threads": lambda: swept(model, folder),
    }
    for name, another in others.items():
        torch.set_num_threads(threads + (name == "threads"))
        try:
            with pytest.raises(ValueError, match=rf"got one that differs in {name} in '"):
                another()
        finally:
            torch.set_num_threads(threads)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_full_disk_costs_the_ledger_and_not_the_sweep(
    build_model, tmp_path, monkeypatch, caplog, written
):
    model = build_model()
    whole = swept(model, None)
    left = iter(range(written))

    def fills_up(path, data):
        if next(left, None) is None:
            raise OSError("place for output must be on a disk with room")
        atomic_write(path, data)

    monkeypatch.setattr("probes.ablation.ledger.atomic_write", fills_up)
    found = swept(model, tmp_path / "ledger")
    assert found.totals.tobytes() == whole.totals.tobytes()
    (record,) = caplog.records  # once, not for every part
    assert re.match(r"nothing .*be kept of this work: .* with room", record.getMessage())
    assert len(list((tmp_path / "ledger").iterdir())) == written


def test_a_ledger_in_use_costs_the_ledger_and_not_the_sweep(build_model, tmp_path, caplog):
    model, folder = build_model(), tmp_path / "ledger"
    whole = swept(model, folder)
    kept = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with hold(folder):
        found = swept(model, folder)
    assert found.totals.tobytes() == whole.totals.tobytes()
    assert "nothing is kept of this work: folder must not be in use" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == kept


def test_folder_that_is_no_ledger_or_damaged(build_model, tmp_path):
    model = build_model()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"must be a new folder or an earlier ledger, got '.*photo"
    ):
        swept(model, tmp_path / "photos")
    folder = tmp_path / "ledger"
    swept(model, folder)
    (folder / "manifest.json").write_bytes(b"{")
    with pytest.raises(ValueError, match=r"got damage in '.*t.json'; delete the folder '.*ledger'"):
        swept(model, folder)


def test_damaged_chunk_or_one_of_another_shape_is_computed_again(build_model, tmp_path, computed):
    model, folder = build_model(), tmp_path / "ledger"
    whole = swept(model, folder)
    chunk = folder / "chunk-000002.npz"
    good = chunk.read_bytes()
    shape = np.load(chunk)["totals"].shape
    where = good.index(np.load(chunk)["totals"].tobytes())
    np.savez(tmp_path / "wide.npz", totals=np.zeros((1, *shape)))
    np.save(tmp_path / "plain.npy", np.zeros(shape))
    bad = [
        b"",
        good[:-1],
        good[: where + 3] + bytes([good[where + 3] ^ 1]) + good[where + 4 :],
        *((tmp_path / name).read_bytes() for name in ("wide.npz", "plain.npy")),
    ]
    for content in bad:
        chunk.write_bytes(content)
        computed.clear()
        assert swept(model, folder).totals.tobytes() == whole.totals.tobytes()
        assert len(computed) == 1
        computed.clear()
        swept(model, folder)
        assert not computed


def test_no_bit_of_a_kept_part_can_turn_into_an_error_or_into_another_number(tmp_path):
    ledger = Ledger(tmp_path)
    totals = np.arange(6.0).reshape(2, 3)
    ledger.write("part", totals)
    kept = tmp_path / "part.npz"
    good = kept.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        kept.write_bytes(bad)
        found = ledger.read("part", totals.shape)
        assert found is None or np.array_equal(found, totals)


def test_a_ledger_knows_no_hooks_and_knows_autocast(build_model, tmp_path):
    model, folder = build_model().float(), tmp_path / "ledger"
    swept(model, folder)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ValueError, match="got one that differs in autocast in"),
    ):
        swept(model, folder)
    model.blocks[0].hook_mlp_out.add_hook(lambda out, hook: out * 0)
    with pytest.raises(ValueError, match=r"must be a plain HookedGPT without hooks, .*take them o"):
        swept(model, folder)
    assert np.isfinite(swept(model, None).totals).all()
