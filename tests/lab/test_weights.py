"""The look at a .safetensors file before memory is taken, and what is refused there."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.config import ModelConfig
from lab.hooked_gpt import HookedGPT
from lab.weights import check_header, expected_shapes, read_header, reject_pickle, weights_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positional_embedding_type": "rotary", "d_head": 6, "d_mlp": 5},
        {"positional_embedding_type": "sinusoidal", "tie_word_embeddings": True},
        {"kept_heads": ((0, 2), ())},
        {"kept_heads": ((0, 2), (1,)), "n_key_value_heads": 1},
        {"n_key_value_heads": 3, "normalization_type": "RMS", "gated_mlp": True},
        {"act_fn": "solu_ln"},
        {"attn_only": True, "normalization_type": None, "d_vocab_out": 3},
    ],
)
def test_expected_shapes_are_the_models(changes: dict[str, Any]):
    base = {"n_layers": 2, "n_heads": 3, "d_model": 12, "d_vocab": 7, "n_ctx": 5}
    config = ModelConfig(**{**base, **changes})
    state = HookedGPT(config).state_dict()
    assert dict(expected_shapes(config)) == {name: tuple(t.shape) for name, t in state.items()}


def test_a_header_is_read_without_the_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(
        weights_bytes({"a": torch.zeros(2, 3), "b": torch.ones(()), "c": torch.ones(0)})
    )
    shapes = {name: entry.shape for name, entry in read_header(path).items()}
    assert shapes == {"a": (2, 3), "b": (), "c": (0,)}
    assert check_header(path, iter(shapes.items())) == torch.float32


def write_header(path: Path, header: Any, body: int = 24) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * body)


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{nothing", "got a header that is not JSON in"),
        (b"[1]", "got a header that is not one in"),
        (b"[" * 99_999, "got a header that is not one in"),
        (b"\xff", "got a header that is not"),
        ({"a": 1}, "got a header that is not one in"),
        ({"a": entry([2, 3], 0, 24, "F99")}, "got a header that is not one in"),
        ({"a": entry([2, 4], 0, 24)}, "got a size of 'a' that its shape contradicts"),
        ({"a": entry([-2, -3], 0, 24)}, "got a negative size of 'a'"),
        ({"a": entry([10**12, 10**12], 0, 24)}, "got a size of 'a' that its shape contradicts"),
        ({"a": entry([2, 3], 8, 32)}, "got a size of 'a' that its shape contradicts"),
        ({"a": entry([2, 2], 0, 16)}, r"got \d+ bytes where its header asks for \d+"),
        ({"a": entry([2, 4], 0, 32)}, r"got \d+ bytes where its header asks for \d+"),
    ],
)
def test_a_header_that_contradicts_itself_is_one_line(tmp_path, header, message):
    path = tmp_path / "model.safetensors"
    write_header(path, header)
    with pytest.raises(
        ValueError, match=rf"^model\.safetensors must be a whole \.safetensors file, {message}.*n$"
    ):
        read_header(path)


@pytest.mark.parametrize("size", [0, 7, 8, 100, 1000])
def test_a_cut_file_is_one_line(tmp_path, size):
    path = tmp_path / "model.safetensors"
    path.write_bytes(weights_bytes({"weight": torch.zeros(300)})[:size])
    with pytest.raises(ValueError, match=r"must be a whole \.safetensors file, got \d+ bytes"):
        read_header(path)


def test_names_shapes_and_dtypes_must_be_the_expected(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(weights_bytes({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}))
    for expected, message in (
        ([("weight", (2, 3)), ("gain", (2,))], r"must hold 'gain' of shape \[2\], as its config"),
        (
            [("weight", (3, 2)), ("bias", (2,))],
            r"weight must have the shape \[3, 2\].*got \[2, 3\]",
        ),
        ([("weight", (2, 3))], r"unknown tensor 'bias'; choose from weight"),
    ):
        with pytest.raises(ValueError, match=message):
            check_header(path, iter(expected))
    path.write_bytes(weights_bytes({"a": torch.zeros(1), "b": torch.zeros(1).double()}))
    with pytest.raises(ValueError, match="tensors of 2 different dtypes"):
        check_header(path, iter([("a", (1,)), ("b", (1,))]))


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", [2, 4, "torch"])
def test_a_pickle_is_refused_by_name_and_by_its_first_bytes(tmp_path, protocol):
    bomb = {"weight": Bomb(tmp_path / "fired")}
    named, disguised = tmp_path / "model.pt", tmp_path / "model.safetensors"
    for path in (named, disguised):
        if protocol == "torch":
            torch.save(bomb, path)
            assert zipfile.is_zipfile(path)
        else:
            path.write_bytes(pickle.dumps(bomb, protocol=protocol))
        with pytest.raises(
            ValueError, match=r"^weights must be a \.safetensors file, got the pickle '.*', which"
        ):
            read_header(path)
    assert not (tmp_path / "fired").exists()


def test_a_header_whose_length_looks_like_a_pickle_is_none(tmp_path):
    path = tmp_path / "model.safetensors"
    # 640 = 0x0280: the file then starts with the bytes of a pickle of protocol 2.
    text = json.dumps({"a": entry([6], 0, 24)}).encode().ljust(640)
    write_header(path, text)
    assert path.read_bytes()[:2] == b"\x80\x02"
    reject_pickle(path)
    assert list(read_header(path)) == ["a"]


def test_whole_numbers_are_no_weights_and_no_damage(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(weights_bytes({"a": torch.zeros(2, dtype=torch.int32)}))
    with pytest.raises(ValueError, match=r"^'a' must be of one of the types F64, .*, got 'int32'"):
        check_header(path, iter([("a", (2,))]))
