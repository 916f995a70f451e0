import sys
import tomllib
from pathlib import Path

from apps.studio.launch import ENTRY, FLAGS, page_address, run_argument, server_command


def test_the_command_serves_this_machine_only():
    command = server_command(8600)
    assert command[:4] == [sys.executable, "-m", "streamlit", "run"]
    assert command[4] == str(ENTRY) and ENTRY.is_file()
    pairs = list(zip(command[5::2], command[6::2], strict=True))
    assert ("--server.address", "127.0.0.1") in pairs
    assert ("--server.allowedHosts", "127.0.0.1") in pairs
    assert ("--browser.gatherUsageStats", "false") in pairs
    assert ("--server.port", "8600") in pairs


def test_the_run_to_show_first_comes_back_out_of_the_command():
    command = server_command(8600, "my-run")
    script_arguments = command[command.index("--") + 1 :]
    assert run_argument(script_arguments) == "my-run"
    assert run_argument(["--run=a", "--other"]) == "a"
    assert run_argument([]) is None


def test_an_address_quotes_its_run():
    assert page_address(8501) == "http://127.0.0.1:8501/"
    assert page_address(8501, "a&b c") == "http://127.0.0.1:8501/?run=a%26b+c"


def test_the_file_beside_the_entry_script_agrees_with_the_flags():
    settings = tomllib.loads((Path(ENTRY).parent / ".streamlit" / "config.toml").read_text())
    for name, _ in FLAGS:
        section, option = name.split(".")
        values = [value for flag, value in FLAGS if flag == name]
        kept = settings[section][option]
        assert values == [str(v).lower() for v in (kept if isinstance(kept, list) else [kept])]
