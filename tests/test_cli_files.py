"""Output files: planned first, written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from attnviz.cli.files import Staging, kind_of
from attnviz.errors import AttnvizError, OutputError


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("out", "folder"),
        ("a.png", ".png"),
        ("A.PNG", ".png"),
        ("p.html", ".html"),
        ("r.npz", ".npz"),
    ],
)
def test_the_suffix_picks_the_form(name: str, kind: str, tmp_path: Path) -> None:
    assert kind_of(str(tmp_path / name)) == kind


def test_a_folder_may_have_a_dot_in_its_name_when_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "run.v2").mkdir()
    assert kind_of(str(tmp_path / "run.v2")) == "folder"


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        kind_of("picture.bmp")
    assert str(caught.value) == (
        "-o picture.bmp: unknown suffix .bmp; known are .png .svg .pdf .html .json .npz "
        ".safetensors, or a folder (no suffix)"
    )


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError, match="is a file; a folder is expected there"):
        kind_of(str(tmp_path / "taken"))


def test_a_slash_at_the_end_says_folder() -> None:
    assert kind_of("new.v3/") == "folder"


@pytest.mark.parametrize("given", ["-", "", ".png", "out/.npz"])
def test_what_is_no_path(given: str) -> None:
    with pytest.raises(OutputError) as caught:
        kind_of(given)
    assert str(caught.value) == f"-o '{given}': a path is expected, out or out.png, say"


def test_files_appear_together_in_folders_made_for_them(tmp_path: Path) -> None:
    with Staging(force=False) as staging:
        first = staging.plan(tmp_path / "a/b/one.txt")
        second = staging.plan(tmp_path / "a/two.txt")
        assert everything(tmp_path) == set()  # planning touches nothing
        staging.write([lambda: first.write_text("1"), lambda: second.write_text("2")])
    assert everything(tmp_path) == {"a", "a/b", "a/b/one.txt", "a/two.txt"}
    assert (tmp_path / "a/b/one.txt").read_text() == "1"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("no")])
def test_a_failure_leaves_nothing_behind(failure: BaseException, tmp_path: Path) -> None:
    def fail() -> None:
        raise failure

    with pytest.raises(type(failure)), Staging(force=False) as staging:
        first = staging.plan(tmp_path / "a/b/one.txt")
        staging.write([lambda: first.write_text("1"), fail])
    assert everything(tmp_path) == set()


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(AttnvizError) as caught, Staging(force=True) as staging:
        place = staging.plan(tmp_path / "old.txt")
        staging.write([lambda: place.write_text("new"), fail])
    assert caught.value.exit_code == 1
    assert str(caught.value) == f"{tmp_path}/old.txt cannot be written: no space left on device"
    assert everything(tmp_path) == {"old.txt"}
    assert (tmp_path / "old.txt").read_text() == "old"


def test_an_error_names_the_place_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught, Staging(force=False) as staging:
        place = staging.plan(tmp_path / "one.txt")

        def refuse() -> None:
            raise PermissionError(errno.EACCES, "Permission denied", str(place))

        staging.write([refuse])
    assert str(caught.value) == f"{tmp_path}/one.txt cannot be written: permission denied"


def test_what_is_there_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("old")
    with pytest.raises(OutputError, match="exists; --force replaces it"):
        Staging(force=False).plan(path)
    with Staging(force=True) as staging:
        place = staging.plan(path)
        staging.write([lambda: place.write_text("new")])
    assert path.read_text() == "new"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with Staging(force=True) as staging:
        place = staging.plan(tmp_path / "link.txt")
        staging.write([lambda: place.write_text("new")])
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


def test_one_path_is_not_written_twice(tmp_path: Path) -> None:
    staging = Staging(force=True)
    staging.plan(tmp_path / "one.txt")
    with pytest.raises(OutputError, match="would be written twice"):
        staging.plan(tmp_path / "sub/../one.txt")


def test_a_place_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for path, reason in (
        (tmp_path / "file/one.txt", "is a file; a folder is expected there"),
        (tmp_path / "folder.png", "is a folder; a file is expected there"),
        (tmp_path / ("n" * 300), "file name too long"),
    ):
        with pytest.raises(OutputError, match=reason):
            Staging(force=False).plan(path)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OutputError, match=r"no permission to write in"):
        Staging(force=False).plan(tmp_path / "one.txt")


def test_a_folder_that_somebody_else_uses_stays(tmp_path: Path) -> None:
    def fail() -> None:
        (tmp_path / "a/theirs.txt").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Staging(force=False) as staging:
        staging.plan(tmp_path / "a/one.txt")
        staging.write([fail])
    assert everything(tmp_path) == {"a", "a/theirs.txt"}


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("old")
    path.chmod(0o600)
    with Staging(force=True) as staging:
        place = staging.plan(path)
        staging.write([lambda: place.write_text("new")])
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_what_is_no_plain_file_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for name in ("pipe", "a"):
        with pytest.raises(OutputError, match="is no file that can be replaced"):
            Staging(force=True).plan(tmp_path / name)
    (tmp_path / "locked").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked")
    with pytest.raises(OutputError, match="locked is read-only; give another path"):
        Staging(force=True).plan(tmp_path / "locked")
