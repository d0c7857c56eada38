"""A decision moves with its inputs, and nothing in a bundle reaches out of it."""

import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from decide.case import make_case
from servefit.decide.bundle import MANIFEST, make_bundle, unpack, write_folder, write_zip
from servefit.decide.decision import load_decision
from servefit.decide.verify import verify
from servefit.errors import ServefitError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The bundle of a decision with a calibration and two runs, whose originals are gone."""
    home = tmp_path_factory.mktemp("home")
    path = make_case(home, runs=2)
    made = make_bundle(load_decision(path), path, tool_version="0")
    shutil.rmtree(home)
    return made


def test_a_bundle_verifies_elsewhere(bundle, tmp_path):
    """Folder and zip, without the originals: every number holds, with no finding."""
    write_folder(bundle, tmp_path / "there")
    write_zip(bundle, tmp_path / "b.zip")
    for path in (tmp_path / "there", unpack(tmp_path / "b.zip", tmp_path / "out")):
        report = verify(path)
        assert not report.findings
        assert len(report.ledger.runs) == 2


def test_the_same_bundle_is_the_same_zip(bundle, tmp_path):
    """No clock and no order of a folder enters the bytes."""
    for name in ("a.zip", "b.zip"):
        write_zip(bundle, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_one_byte_of_any_file_is_found(bundle, tmp_path):
    """In every file but the prose, one byte changed or the file gone: it does not verify, or cannot be read."""
    names = [n for n in bundle.files if n not in ("decision.md", MANIFEST)]
    assert len(names) == 6
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        write_folder(bundle, folder)
        data = bundle.files[name]
        middle = len(data) // 2
        for changed in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], None):
            (folder / name).unlink()
            if changed is not None:
                (folder / name).write_bytes(changed)
            try:
                assert not verify(folder).holds, name
            except ServefitError as error:
                assert error.exit_code == 2  # noqa: PT017 - it may also be unreadable


def test_an_input_that_changed_is_not_bundled(tmp_path):
    """A bundle never holds what the decision was not made from."""
    path = make_case(tmp_path)
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(ServefitError, match="not the file that was decided on"):
        make_bundle(load_decision(path), path, tool_version="0")


def test_a_folder_with_something_in_it_is_left_alone(bundle, tmp_path):
    """Nothing is overwritten."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ServefitError, match="not empty"):
        write_folder(bundle, tmp_path)


GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "bundles").glob("*.zip"))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_bundles_of_older_versions_still_verify(path, tmp_path):
    """Bundles written by earlier versions are kept as they were; a new schema must go on reading them.

    Add one with every schema version: `servefit decide plan.json --run RUN --bundle tests/golden/bundles/NAME.zip`.
    """
    report = verify(unpack(path, tmp_path))
    assert not report.findings
    assert report.checked > 150


def test_there_is_a_golden_bundle_of_every_schema_version():
    """Whoever raises a schema version adds a bundle."""
    from servefit.decide.decision import SCHEMA_VERSION

    assert {f"decision-{v}" for v in range(1, SCHEMA_VERSION + 1)} <= {p.stem for p in GOLDEN}


def a_zip(path, entries):
    """A zip with these (name, data, mode) entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, data)
    path.write_bytes(out.getvalue())
    return path


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([("../evil", b"x", 0o644)], "points out"),
        ([("/etc/x", b"x", 0o644)], "points out"),
        ([("a/../../x", b"x", 0o644)], "points out"),
        ([("C:\\x", b"x", 0o644)], "points out"),
        ([("link", b"/etc/passwd", 0o120777)], "the link"),
        ([("decision.md", bytes(64 * 2**20), 0o644)], "would unpack"),
        ([("notes.md", b"x", 0o644)], "no decision.md"),
        ([(f"f{i}", b"", 0o644) for i in range(10_001)], "10,001 files"),
    ],
    ids=["climbs", "absolute", "climbs inside", "drive", "link", "bomb", "no decision", "many"],
)
def test_a_hostile_zip_is_one_sentence(tmp_path, entries, said):
    """Refused before anything but harmless files is written, and nothing lands outside."""
    path = a_zip(tmp_path / "b.zip", entries)
    with pytest.raises(ServefitError, match=said) as caught:
        unpack(path, tmp_path / "in" / "out")
    assert caught.value.exit_code == 2
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name not in ("b.zip", "notes.md")]


def test_what_is_no_zip_is_one_sentence(tmp_path):
    """Text, and a zip cut in the middle."""
    (tmp_path / "a.zip").write_text("hello")
    with pytest.raises(ServefitError, match="cannot be unpacked"):
        unpack(tmp_path / "a.zip", tmp_path / "out")


def test_an_entry_longer_than_it_says_is_refused(bundle, tmp_path):
    """The declared size is what was looked at; more is never read."""
    write_zip(bundle, tmp_path / "b.zip")
    data = bytearray((tmp_path / "b.zip").read_bytes())
    at = data.rindex(b"PK\x01\x02")  # the last entry of the central directory: its size of 24 bytes in
    data[at + 24 : at + 28] = (5).to_bytes(4, "little")
    (tmp_path / "b.zip").write_bytes(data)
    with pytest.raises(ServefitError, match=r"b\.zip"):
        unpack(tmp_path / "b.zip", tmp_path / "out")


@pytest.mark.parametrize("climb", ["../plan.json", "/etc/hostname", "runs/../../x"])
def test_a_path_that_climbs_out_of_a_bundle_is_refused(bundle, tmp_path, climb):
    """In the front matter as in the manifest."""
    write_folder(bundle, tmp_path / "a")
    path = tmp_path / "a" / "decision.md"
    path.write_text(path.read_text().replace('path: "plan.json"', f"path: {json.dumps(climb)}"))
    with pytest.raises(ServefitError, match="points out of the bundle"):
        verify(tmp_path / "a")


def test_a_link_out_of_a_bundle_is_refused(bundle, tmp_path):
    """A symbolic link in a bundle's folder reaches nothing."""
    write_folder(bundle, tmp_path / "a")
    (tmp_path / "outside.json").write_bytes(bundle.files["plan.json"])
    (tmp_path / "a" / "plan.json").unlink()
    (tmp_path / "a" / "plan.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(ServefitError, match="points out of the bundle"):
        verify(tmp_path / "a")


def test_a_newer_bundle_is_refused(bundle, tmp_path):
    """The manifest's schema version is read."""
    write_folder(bundle, tmp_path / "a")
    manifest = json.loads(bundle.files[MANIFEST]) | {"schema_version": 9}
    (tmp_path / "a" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ServefitError, match="schema version 9"):
        verify(tmp_path / "a")
