"""What stands under a name is whole, whatever happened while it was written."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.durable import (
    atomic_dir,
    atomic_write,
    hold,
    one_clear_error,
    read_json,
    remove_leftovers,
    temporary_name,
)


def test_a_full_disk_leaves_the_old_file_and_says_one_line(tmp_path, full_disk):
    path = tmp_path / "a.json"
    atomic_write(path, b"old")
    with full_disk(1000), pytest.raises(OSError, match=r"^place for output must be on a disk") as e:
        atomic_write(path, b"x" * 2000)
    assert str(e.value) == (
        f"place for output must be on a disk with room, got 'File too large' at {str(path)!r}; "
        "free some space or choose another place, then try again (what was complete is kept)"
    )
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_a_full_disk_leaves_no_half_folder(tmp_path, full_disk):
    room = pytest.raises(OSError, match="disk with room")
    with full_disk(1000), room, atomic_dir(tmp_path / "run") as folder:
        atomic_write(folder / "small", b"x")
        atomic_write(folder / "large", b"x" * 2000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/headlab", "file/below"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    # /proc refuses root too, which a folder without permissions does not.
    (tmp_path / "file").write_bytes(b"")
    target = Path(place) if place.startswith("/") else tmp_path / place
    for write in (lambda: atomic_write(target / "a", b"x"), lambda: atomic_dir(target).__enter__()):
        with pytest.raises(OSError, match=r"must be writable, got .*; choose another place"):
            write()


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "deep" / "run"
    with pytest.raises(ZeroDivisionError), atomic_dir(final) as folder:
        (folder / "a").write_bytes(b"x")
        assert not final.exists()
        raise ZeroDivisionError
    assert list(final.parent.iterdir()) == []
    with atomic_dir(final) as folder:
        (folder / "a").write_bytes(b"x")
    assert list(final.parent.iterdir()) == [final]
    with pytest.raises(ValueError, match=r"folder must be new, got '.*run', which exists; choose"):
        atomic_dir(final).__enter__()


def test_one_process_holds_a_folder_and_kill_lets_go(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from lab.durable import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with pytest.raises(
        ValueError, match=r"must not be in use, got .* another process writes; wait"
    ):
        hold(tmp_path).__enter__()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with hold(tmp_path):
        pass


def test_leftovers_go_unless_their_owner_lives(tmp_path):
    dead, alive, other = (temporary_name(tmp_path / n) for n in ("run", "run", "running"))
    for path in (dead, alive, other):
        path.mkdir()
    keep = tmp_path / "run"
    keep.mkdir()
    file = temporary_name(tmp_path / "run")
    file.write_bytes(b"half")
    with hold(alive):
        remove_leftovers(tmp_path, "run")
    assert set(tmp_path.iterdir()) == {alive, other, keep}
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {keep}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1', "must be whole JSON, got damaged text"),
        (b"\xff\xfe", "must be whole JSON, got damaged text"),
        (b"[" * 100_000, "must be whole JSON, got damaged text"),
        (b"[1]", "must be a JSON object, got list"),
        (None, "must be a readable file, got 'No such file or directory'"),
    ],
)
def test_damaged_json_is_one_line(tmp_path, text, message):
    path = tmp_path / "a.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"^a\.json {message}.*; restore the folder from a copy$"):
        read_json(path)


def test_permissions_are_the_remedy_where_they_are_the_fault(tmp_path):
    for number, remedy in ((errno.EROFS, "change its permissions or "), (errno.ENAMETOOLONG, "")):
        with (
            pytest.raises(OSError, match=rf"got '.*' at '.*'; {remedy}choose another place"),
            one_clear_error(tmp_path),
        ):
            raise OSError(number, os.strerror(number))


def test_a_folder_holds_nothing_of_a_lock_once_it_is_let_go(tmp_path):
    with atomic_dir(tmp_path / "run") as folder:
        (folder / "a").write_bytes(b"x")
    with hold(tmp_path / "run"), pytest.raises(ValueError, match="must not be in use"):
        hold(tmp_path / "run").__enter__()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]
    with pytest.raises(FileNotFoundError):
        hold(tmp_path / "missing").__enter__()
    assert not (tmp_path / "missing").exists()
