"""SmolLM2 from the package that carries it, beside transformers' own reading of the same file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.families.token_text import token_vocab
from lab.hooked_gpt import HookedGPT
from lab.packaged import KNOWN, packaged_file

NAME = "smollm2-135m-instruct"
PROMPT = "The capital of France is"
MEASURE = """
import json, resource, sys
import torch
from lab import HookedGPT
HookedGPT
model = HookedGPT.from_pretrained("smollm2-135m-instruct")
with torch.no_grad():
    shares = model(model.to_tokens("The capital of France is"))[0, -1].double().softmax(-1)
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
share, token = shares.max(0)
print(json.dumps({
    "bytes": peak, "token": model.to_string([int(token)]), "share": share.item(),
}))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("smollm2_cache"),
]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Read the same file by transformers, with its own dequantiser's output and its own code."""
    from transformers import LlamaForCausalLM

    path = packaged_file(KNOWN[NAME], NAME)
    hf = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    hf.generation_config.eos_token_id = None
    return hf.eval()


def measured(cache: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_memory_of_two_loads(tmp_path: Path):
    for _ in ("converted", "from the cache"):
        got = measured(tmp_path)
        assert got["token"] == " Paris"
        assert 0.7 <= got["share"] <= 0.85
        assert got["bytes"] < 1.5e9, got


def test_the_page_runs_as_it_stands(
    smollm2: HookedGPT, smollm2_cache: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(smollm2_cache))
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", Path("docs/pretrained.md").read_text(), re.S):
        exec(block, names)
    first = names["table"].query("query_pos == 4").iloc[0]
    assert (first["token"], round(first["baseline"], 2)) == ("\N{OPEN BOX}Paris", 0.77)
    assert names["table"].attrs["weights"] == smollm2.provenance
    assert torch.equal(names["same"](names["tokens"]), smollm2(names["tokens"]))


def test_provenance(smollm2: HookedGPT):
    assert smollm2.provenance == "SmolLM2-135M, instruct model, 4-bit Q4_1, dequantised"
    assert not smollm2.cfg.default_prepend_bos


def test_greedy_tokens_are_those_of_transformers(smollm2: HookedGPT, theirs: Any):
    tokens = smollm2.to_tokens(PROMPT)
    with torch.no_grad():
        torch.testing.assert_close(smollm2(tokens), theirs(tokens).logits, atol=1e-3, rtol=1e-3)
    expected = theirs.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=64
    )
    assert expected.shape[1] == tokens.shape[1] + 64
    got = smollm2.generate(tokens, max_new_tokens=64, temperature=0.0)
    assert got.tolist() == expected.tolist()


def test_the_way_back_has_the_weights_of_transformers(smollm2: HookedGPT, theirs: Any):
    back = smollm2.to_hf().state_dict()
    expected = theirs.state_dict()
    assert back.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(back[name], tensor), name


TEXTS = (
    PROMPT,
    "  two spaces, 12345 digits, don't; na\u00efve caf\u00e9 \U0001f600",
    "\n\n\tdef f(x):\n    pass\r\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "\u4e16\u754c x1y22 3.14 1,000",
)


def test_the_tokenizer_is_that_of_transformers(smollm2: HookedGPT):
    from transformers import AutoTokenizer

    path = packaged_file(KNOWN[NAME], NAME)
    expected = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in TEXTS:
        ids = smollm2.to_tokens(text)[0].tolist()
        assert ids == expected(text, add_special_tokens=False)["input_ids"], text
        assert smollm2.to_string(ids) == text
    assert smollm2.tokenizer.eos_token == "<|im_end|>"
    chat = [{"role": "user", "content": "Hi"}]
    written = smollm2.tokenizer.apply_chat_template(chat, tokenize=False)
    assert written.startswith("<|im_start|>system\n")


def test_the_tokenizer_is_that_of_llama_cpp(smollm2: HookedGPT):
    """Other digits too, which transformers' reading of the file keeps with the space before."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    path = packaged_file(KNOWN[NAME], NAME)
    oracle = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in (*TEXTS, "x \u00b2\u00b3 \u0661"):
        expected = oracle.tokenize(text.encode(), add_bos=False, special=True)
        assert smollm2.to_tokens(text)[0].tolist() == expected, text


def test_every_token_has_a_name_of_its_own(smollm2: HookedGPT):
    names = token_vocab(smollm2.tokenizer).symbols
    assert len(set(names)) == len(names) == 49152
    assert token_vocab(smollm2.tokenizer).decode(smollm2.to_tokens(PROMPT)[0].tolist()) == [
        "The",
        *(f"\N{OPEN BOX}{word}" for word in ("capital", "of", "France", "is")),
    ]
