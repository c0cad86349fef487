"""A tree of files as one archive: a tar in pax format, compressed with zstd.

Owns both directions. Packing is deterministic (entries in byte order of their names, no times,
no owners), so that the same tree gives the same bytes. Contents, permission bits, symbolic
links, empty folders and names of any bytes are kept; owners, times and hard links are not.

Unpacking refuses what could reach beyond its folder: a name whose folder the archive itself did
not make (thus absolute names, ``..`` and ways through links), a link that leads out of the tree,
a name that comes twice, and everything that is neither file, folder nor symbolic link.
"""

from __future__ import annotations

import io
import os
import posixpath
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard

from ledger.errors import RequestError
from ledger.pieces import DamagedError, Pieces

_LEVEL = 3
_CODING = "utf-8"
_ODD_BYTES = "surrogateescape"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The blob that a job's ``snapshot`` names."""

    v: int = 1
    archive: Pieces
    files: int
    """Entries of the archive: files, links and folders."""
    size: int
    """Bytes of all files."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be packed: a file, a folder, or a link with its ``target``."""

    name: str
    """Relative, with slashes; the folder that holds it comes before it."""
    kind: str
    """``file``, ``folder`` or ``link``."""
    mode: int = 0
    size: int = 0
    target: str = ""


def leads_out(name: str, target: str) -> bool:
    """Whether the link ``name`` points out of the tree whose root it is named from."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or joined == ".." or joined.startswith("../")


def pack(root: Path, entries: Iterable[Entry], out: BinaryIO, limit_bytes: int) -> int:
    """Write the archive of ``entries`` below ``root`` to ``out``; the bytes of all files.

    Raises RequestError for what cannot be read, and where the files have grown beyond
    ``limit_bytes`` since they were looked at.
    """
    size = 0
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with (
        compressor.stream_writer(out, closefd=False) as compressed,
        tarfile.open(
            fileobj=compressed,
            mode="w|",
            format=tarfile.PAX_FORMAT,
            encoding=_CODING,
            errors=_ODD_BYTES,
        ) as tar,
    ):
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            member.mode = entry.mode
            if entry.kind == "folder":
                member.type = tarfile.DIRTYPE
            elif entry.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            if entry.kind != "file":
                tar.addfile(member)
                continue
            data = _read(root / entry.name, limit_bytes - size)
            size += len(data)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return size


def _read(path: Path, limit_bytes: int) -> bytes:
    """Whole, so that a file that somebody writes meanwhile cannot shift what comes after it."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise RequestError(
            f"cannot read {os.fspath(path)!r}: {error.strerror}; mend that, or leave it out "
            "with a line in .gpuqignore"
        ) from error
    if len(data) > limit_bytes:
        raise RequestError(f"{os.fspath(path)!r} grew while it was read: submit again")
    return data


def unpack(archive: BinaryIO, target: Path, manifest: Manifest) -> None:
    """Unpack into ``target``, which is made here.

    Raises DamagedError for an archive that is unsafe, cannot be read, or is not what
    ``manifest`` says; OSError where the disk does not take it. Leaves what it had written.
    """
    try:
        with (
            zstandard.ZstdDecompressor().stream_reader(archive) as plain,
            tarfile.open(fileobj=plain, mode="r|", encoding=_CODING, errors=_ODD_BYTES) as tar,
        ):
            files, size = _unpack_members(tar, target)
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise DamagedError(f"its archive cannot be read: {error}") from error
    if (files, size) != (manifest.files, manifest.size):
        raise DamagedError(
            f"its archive has {files} entries with {size} bytes, not {manifest.files} with "
            f"{manifest.size}"
        )


def _unpack_members(tar: tarfile.TarFile, target: Path) -> tuple[int, int]:
    files = size = 0
    target.mkdir()
    folders = {""}
    seen = set()
    for member in tar:
        name = member.name
        folder, _, last = name.rpartition("/")
        if folder not in folders or last in ("", ".", "..") or "\0" in name or name in seen:
            raise DamagedError(f"its archive has the unsafe name {name!r}")
        seen.add(name)
        files += 1
        path = target / name
        if member.type == tarfile.DIRTYPE:
            path.mkdir()
            # What cannot be entered could neither be filled nor be removed.
            path.chmod(member.mode & 0o777 | 0o700)
            folders.add(name)
        elif member.type == tarfile.SYMTYPE:
            if leads_out(name, member.linkname):
                raise DamagedError(f"its archive has the link {name!r} to {member.linkname!r}")
            path.symlink_to(member.linkname)
        elif member.type == tarfile.REGTYPE:
            size += member.size
            _unpack_file(tar, member, path)
        else:
            raise DamagedError(f"its archive has {name!r}, no file, folder or link")
    return files, size


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    with path.open("xb") as file:
        shutil.copyfileobj(source, file)
        # What its owner cannot read could not be copied for a job.
        os.fchmod(file.fileno(), member.mode & 0o777 | 0o400)
