"""The manifest of a folder: manifest.json lists size and sha256 of every other file. No torch.

It is written last, so a folder with a manifest is complete, and every listed file is checked
against it before it is read. `lab.run_folders` describes runs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lab.checks import is_whole
from lab.config import SCHEMA_VERSION
from lab.durable import atomic_write, file_sha256, read_json, to_json
from lab.naming import bare, quoted

MANIFEST = "manifest.json"
"""The file that lists the others of its folder; written last."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The entry of a file in a manifest."""

    sha256: str
    bytes: int


def is_inside(name: str) -> bool:
    """Return whether a relative name with forward slashes is inside its folder and not hidden."""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") for part in parts)
    return bool(parts) and parts[0] != "/" and not hidden and not set(name) & {"\x00", "\\"}


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path, after following links, is inside a folder (which may be a link).

    Run folders may come from others: a link in one must not redirect reads or writes.
    """
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # too long, a circle of links, a NUL
        return False


def is_file_within(path: Path, folder: Path) -> bool:
    """Return whether a path is a file in a folder, not a link to a file elsewhere."""
    try:
        return path.is_file() and is_within(path, folder)
    except OSError:  # the name is too long, or access is denied
        return False


def read_versioned(path: Path) -> dict[str, Any]:
    """Read a versioned JSON file of a run folder.

    Raises:
        ValueError: If it was written by a newer version; an older one is upgraded step by step.
    """
    data = read_json(path)
    version = data.get("schema_version")
    if not is_whole(version) or version < 1:
        raise ValueError(
            "schema_version must be a whole number of at least 1, got "
            f"{quoted(version)} in {str(path)!r}"
        )
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"schema_version must be at most {SCHEMA_VERSION}, got {quoted(version)} in "
            f"{str(path)!r}; update headlab to read it"
        )
    return data


def read_manifest(folder: Path) -> dict[str, FileEntry]:
    """Return the entries of a folder's manifest.json, by relative name with forward slashes.

    Raises:
        ValueError: If the manifest is missing, damaged, too new or names a file outside the folder.
    """
    path = folder / MANIFEST
    if not is_file_within(path, folder):
        raise ValueError(
            f"folder must be complete, got {str(folder)!r} without its {MANIFEST}; "
            "use a run or a checkpoint that was written to its end"
        )
    listed = read_versioned(path).get("files")
    entries = {}
    for name, entry in listed.items() if isinstance(listed, dict) else ():
        whole = isinstance(entry, dict) and isinstance(entry.get("sha256"), str)
        if not is_inside(name) or not whole or not is_whole(entry.get("bytes")):
            raise ValueError(
                f"{MANIFEST} must list files of its folder with sha256 and bytes, "
                f"got {quoted(name)} in {str(path)!r}; restore the folder from a copy"
            )
        entries[name] = FileEntry(sha256=entry["sha256"], bytes=entry["bytes"])
    if not entries:
        raise ValueError(
            f"{MANIFEST} must list the files of its folder, got none in {str(path)!r}; "
            "restore the folder from a copy"
        )
    return entries


def file_in(folder: Path, name: str) -> Path:
    """Return the path of a file of a folder, after checking that it exists.

    Raises:
        ValueError: If it is missing, or a link that leads out of the folder.
    """
    path = folder / name
    if not is_file_within(path, folder):
        raise ValueError(
            f"{bare(name)} must be there, got no such file in {str(folder)!r}; "
            "restore it from a copy or train again"
        )
    return path


def check_size(folder: Path, name: str, entry: FileEntry) -> Path:
    """Return the path of a listed file, after checking its place and size."""
    path = file_in(folder, name)
    size = path.stat().st_size
    if size != entry.bytes:
        raise ValueError(
            f"{name} must have {entry.bytes} bytes, got {size} in {str(folder)!r}; "
            "restore it from a copy or train again"
        )
    return path


def verified(folder: Path, name: str, entry: FileEntry) -> Path:
    """Return the path of a listed file, after checking its sha256.

    Raises:
        ValueError: If it is missing, cut off or changed.
    """
    path = check_size(folder, name, entry)
    got = file_sha256(path)
    if got != entry.sha256:
        raise ValueError(
            f"{name} must have the sha256 {entry.sha256[:12]}..., got {got[:12]}... in "
            f"{str(folder)!r}, so it was changed; restore it from a copy or train again"
        )
    return path


def entry_of(path: Path) -> FileEntry:
    return FileEntry(sha256=file_sha256(path), bytes=path.stat().st_size)


def write_manifest(folder: Path, entries: Mapping[str, FileEntry]) -> None:
    """Write manifest.json, atomically."""
    files = {name: asdict(entries[name]) for name in sorted(entries)}
    atomic_write(folder / MANIFEST, to_json({"schema_version": SCHEMA_VERSION, "files": files}))


def seal_folder(folder: Path) -> None:
    """Mark a folder as complete: write a manifest of all its visible files."""
    files = [path for path in folder.rglob("*") if is_file_within(path, folder)]
    names = [path.relative_to(folder).as_posix() for path in files]
    listed = [name for name in names if name != MANIFEST and is_inside(name)]
    write_manifest(folder, {name: entry_of(folder / name) for name in listed})
