"""Names and values on the command line that tests/apps does not refuse already."""

import pytest

from lab.naming import unknown_name
from probes.registry import probe_names

PROBES = unknown_name("probe", "frist", probe_names())
RUN = "unknown run 'tiyn'; choose from tiny (did you mean 'tiny'?)"
MODEL = (
    "unknown run or model 'tiyn'; choose from smollm2-135m-instruct, tiny (did you mean 'tiny'?)"
)
HEAD = "unknown head 'L0H2'; choose from L0H0, L0H1 (did you mean 'L0H1'?)"
STEP = "step must be one with a checkpoint (0, 2, 4), got 3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ablate tiyn", MODEL),
        ("generate tiyn abc", RUN),
        ("report tiyn", RUN),
        ("prune tiyn --heads L0H0", MODEL),
        ("probe tiny --probes first frist", PROBES),
        ("generate tiny abc --ablate L0H2", HEAD),
        ("prune tiny --heads L0H2", HEAD),
        ("ablate tiny --heads L0H0,L0H2 --mode mean", HEAD),
        ("ablate tiny --heads L0H0,", "a head must be written like L0H3, got ''"),
        ("ablate tiny --checkpoint 3", STEP),
        ("generate tiny abc --checkpoint 3", STEP),
        ("prune tiny --heads L0H0 --checkpoint 3", STEP),
        ("probe tiny --checkpoint -1", STEP.replace("3", "-1")),
        ("probe tiny --device cpx", "unknown device 'cpx'; choose from auto, cpu, cuda, mps "
         "(did you mean 'cpu'?)"),
        ("probe tiny --out FILE", "--out must be a folder, got the file 'FILE'; choose another"),
        ("report tiny --out FILE", "--out must be a folder, got the file 'FILE'; choose another"),
        ("generate tiny abc --top-k 0", "top_k must be a whole number of at least 1, got 0"),
        ("generate tiny abc --top-p nan", "top_p must be a number from 0 to 1, got nan"),
        ("generate tiny abc --seed -1", "seed must be a whole number of at least 0, got -1"),
        ("train reversal --n-symbols 0", "n_symbols must be a whole number of at least 1, got 0"),
        ("train reversal --n-symbols 63", "n_symbols must be from 1 to 62 (a-z, A-Z, 0-9), got 63"),
        ("train induction --length 1", "length of induction must be a whole number of at least 2, "
         "got 1"),
        ("train reversal --steps 99999999999999999999", "steps must be below 2**63, "
         "got 99999999999999999999"),
        ("train reversal --learning-rate nan", "learning_rate must be a number of at least 0, "
         "got nan"),
        ("train reversal --model.n-layers 10001", "n_layers must be a whole number of at most "
         "10000, got 10001"),
        ("train reversal --model.n-ctx 16777217", "n_ctx must be a whole number of at most "
         "16777216, got 16777217"),
        ("train copy --model.n-ctx 8", "n_ctx must be at least 22 for copy of length 10 with 26 "
         "symbols, got 8"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_line(line, message, home, tmp_path, refusal) -> None:
    (tmp_path / "FILE").write_text("mine")
    arguments = [str(tmp_path / "FILE") if word == "FILE" else word for word in line.split()]
    assert refusal(*arguments).replace("<tmp>/FILE", "FILE") == message
    assert (tmp_path / "FILE").read_text() == "mine"
    assert [path.name for path in home.iterdir()] == ["tiny"]


def test_a_model_that_no_machine_holds_is_refused_before_it_is_built(home, refusal) -> None:
    message = refusal("train", "reversal", "--model.d-model", "16777216", "--model.n-layers", "99")
    assert message.startswith("model must fit into memory, got 334392295434485788 parameters, ")
    assert message.endswith(" GB; make its widths, its vocabulary or n_layers smaller")
    assert [path.name for path in home.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("caf\u00e9", "'caf\\xe9'"),
        ("a\nb\x1b[31m", "'a\\nb\\x1b[31m'"),
        ("t\0ny", "'t\\x00ny'"),
        ("\u00e9" * 200, "'" + "\\xe9" * 49 + "..."),
        ("\ud800", "'\\ud800'"),
        ("", "''"),
    ],
)
def test_a_name_of_any_kind_stays_one_line_of_ascii(name, quoted, home, refusal) -> None:
    told = f"unknown run or model {quoted}; choose from smollm2-135m-instruct, tiny"
    assert refusal("probe", name).startswith(told)
    for arguments in (("report", name), ("train", "--resume", name)):
        assert refusal(*arguments).startswith(f"unknown run {quoted}; choose from tiny")


def test_a_prompt_of_any_kind_stays_one_line_of_ascii(home, refusal) -> None:
    assert refusal("generate", "tiny", "a\u20ac\n") == (
        "unknown symbols '\\u20ac', '\\n'; choose from a-d"
    )
    long = refusal("generate", "tiny", "a" * 100_000)
    assert long == "prompt must be 1 to 3 symbols for reversal of length 3, got 100000"


def test_a_folder_from_elsewhere_is_named_as_it_is(home, tmp_path, refusal) -> None:
    (home / "a\nb").mkdir()
    (home / "a\nb" / "manifest.json").write_text("{}")
    assert refusal("report", "nothing") == "unknown run 'nothing'; choose from a\\nb, tiny"
    (tmp_path / "notes").mkdir()
    assert refusal("probe", str(tmp_path / "notes")) == (
        "WHAT must be a run, a model's name (smollm2-135m-instruct), a folder with "
        "config.json or a GGUF file, got the folder '<tmp>/notes' without config.json; "
        "`headlab runs` lists the runs"
    )
    for place in ("nowhere", "notes/" + "x" * 300):
        assert refusal("probe", str(tmp_path / place)) == (
            f"run must be a folder with a config.json, got '<tmp>/{place}'; "
            "`headlab runs` lists them"
        )
