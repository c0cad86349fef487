"""Archives: the same tree gives the same bytes, and none reaches out of its folder."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
import zstandard

from ledger.archive import Entry, Manifest, leads_out, pack, unpack
from ledger.errors import RequestError
from ledger.pieces import DamagedError, pieces_of

ODD = os.fsdecode(b"-\xff\n \xc3\xa4'\"*")
LIMIT = 1 << 20

ENTRIES = (
    Entry(name=ODD, kind="file", mode=0o640),
    Entry(name="a", kind="folder", mode=0o755),
    Entry(name="a/empty", kind="folder", mode=0o700),
    Entry(name="a/run.sh", kind="file", mode=0o751),
    Entry(name="a/up", kind="link", mode=0o777, target="../" + ODD),
    Entry(name="zero", kind="file", mode=0o444),
)
CONTENTS = {ODD: b"odd", "a/run.sh": b"#!/bin/sh\n", "zero": b""}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a" / "empty").mkdir(parents=True)
    for name, content in CONTENTS.items():
        (root / name).write_bytes(content)
    return root


def packed(root: Path) -> tuple[bytes, Manifest]:
    out = io.BytesIO()
    size = pack(root, ENTRIES, out, LIMIT)
    body = out.getvalue()
    return body, Manifest(archive=pieces_of(body), files=len(ENTRIES), size=size)


def test_contents_modes_links_and_odd_names_arrive(tree: Path, tmp_path: Path) -> None:
    body, manifest = packed(tree)
    target = tmp_path / "copy"
    unpack(io.BytesIO(body), target, manifest)
    names = {os.path.relpath(path, target) for path in target.rglob("*")}
    assert names == {entry.name for entry in ENTRIES}
    for name, content in CONTENTS.items():
        assert (target / name).read_bytes() == content
    modes = {e.name: (target / e.name).stat().st_mode & 0o777 for e in ENTRIES if e.kind == "file"}
    assert modes == {ODD: 0o640, "a/run.sh": 0o751, "zero": 0o444}
    assert os.readlink(target / "a" / "up") == "../" + ODD
    assert (target / "a" / "up").read_bytes() == b"odd"
    # A zip file, and thus a wheel that the job builds, knows no time before 1980.
    assert (target / "a" / "run.sh").stat().st_mtime > 1_600_000_000


def test_the_same_tree_is_the_same_archive_whenever_it_was_written(tree: Path) -> None:
    before, _ = packed(tree)
    for path in tree.rglob("*"):
        os.utime(path, (1, 1))
    assert packed(tree)[0] == before
    (tree / "zero").write_bytes(b"0")
    assert packed(tree)[0] != before


def test_a_file_that_vanished_or_grew_is_refused(tree: Path) -> None:
    with pytest.raises(RequestError, match="grew while it was read"):
        pack(tree, ENTRIES, io.BytesIO(), 4)
    (tree / "zero").unlink()
    with pytest.raises(RequestError, match=r"cannot read .*zero.*No such file"):
        packed(tree)


@pytest.mark.parametrize(
    ("name", "target", "out"),
    [
        ("a/b", "c", False),
        ("a/b", "../c", False),
        ("a/b", "..", False),
        ("a/b", "../../c", True),
        ("b", "..", True),
        ("b", "/etc/passwd", True),
        ("b", "../tree/b", True),
        ("b", "..c", False),
    ],
)
def test_a_link_stays_in_the_tree_or_not(name: str, target: str, out: bool) -> None:
    assert leads_out(name, target) is out


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("/tmp/out")],
        [member("a", tarfile.DIRTYPE), member("a/../../out")],
        [member("a", tarfile.SYMTYPE, "."), member("a/out")],
        [member("a", tarfile.SYMTYPE, "b"), member("a")],
        [member("a"), member("a")],
        [member("a/b")],
        [member("a", tarfile.SYMTYPE, "/etc")],
        [member("a", tarfile.SYMTYPE, "../..")],
        [member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [member("a", tarfile.CHRTYPE)],
        [member("a", tarfile.FIFOTYPE)],
    ],
    ids=lambda members: ",".join(f"{m.name}:{m.type.decode()}" for m in members),
)
def test_what_could_reach_out_of_its_folder_is_refused(
    members: list[tarfile.TarInfo], tmp_path: Path
) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for one in members:
            tar.addfile(one)
    body = zstandard.compress(plain.getvalue())
    manifest = Manifest(archive=pieces_of(body), files=len(members), size=0)
    target = tmp_path / "sub" / "target"
    target.parent.mkdir()
    with pytest.raises(DamagedError, match="its archive has"):
        unpack(io.BytesIO(body), target, manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_an_archive_that_is_cut_or_other_than_said_is_refused(tree: Path, tmp_path: Path) -> None:
    body, manifest = packed(tree)
    with pytest.raises(DamagedError, match="cannot be read"):
        unpack(io.BytesIO(body[:-20]), tmp_path / "cut", manifest)
    with pytest.raises(DamagedError, match="cannot be read"):
        unpack(io.BytesIO(b"no archive"), tmp_path / "none", manifest)
    other = Manifest(archive=manifest.archive, files=manifest.files, size=manifest.size + 1)
    with pytest.raises(DamagedError, match="entries with 13 bytes, not 6 with 14"):
        unpack(io.BytesIO(body), tmp_path / "other", other)
