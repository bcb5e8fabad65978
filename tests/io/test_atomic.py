"""A file is replaced as a whole, or not at all."""

import os

import pytest

from mercer.io.atomic import replacing


def write(path, content):
    with replacing(path) as file:
        file.write(content)


@pytest.mark.parametrize("name", ["file", "x" * 255, "é" * 127])
def test_the_file_has_the_name_and_the_content(name, tmp_path):
    for content in (b"first", b"second"):
        write(str(tmp_path / name), content)
        assert (tmp_path / name).read_bytes() == content
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(error, tmp_path):
    for existing in ([], ["file"]):
        with pytest.raises(error), replacing(tmp_path / "file") as file:
            file.write(b"half of it")
            raise error
        assert os.listdir(tmp_path) == existing
        (tmp_path / "file").write_bytes(b"old")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_else(step, tmp_path, monkeypatch):
    write(tmp_path / "file", b"old")

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        write(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == ["file"] and (tmp_path / "file").read_bytes() == b"old"


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    calls = []

    def recorded(name):
        function = getattr(os, name)

        def call(*arguments):
            calls.append("sync the folder" if name == "fsync" and "replace" in calls else name)
            return function(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, recorded(name))
    write(tmp_path / "file", b"content")
    assert calls == ["fsync", "replace", "sync the folder"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_of_a_plain_open(mask, tmp_path):
    before = os.umask(mask)
    try:
        write(tmp_path / "ours", b"")
        (tmp_path / "plain").write_bytes(b"")
        for mode in (0o600, 0o664):  # of a file that is there: writing to it keeps them
            (tmp_path / f"{mode:o}").touch()
            (tmp_path / f"{mode:o}").chmod(mode)
            write(tmp_path / f"{mode:o}", b"")
            assert (tmp_path / f"{mode:o}").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode
