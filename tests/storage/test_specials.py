"""What is no file is not replaced by one, whoever may do so."""

import os
import stat

import pytest

from flarecli.__main__ import main
from flarecli.errors import UsageError
from flarecli.storage import locate
from flarecli.storage.local import is_special


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_stays_a_pipe(pipe):
    with pytest.raises(UsageError) as caught:
        locate(str(pipe)).write([b"x"])
    assert (str(caught.value), caught.value.hint) == (
        f"{pipe}: no file is there, and what is there would be replaced",
        "Name a file.",
    )
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(pipe.parent) == ["pipe"]


def test_a_link_to_a_pipe_stays_a_link(pipe):
    link = pipe.parent / "link"
    link.symlink_to("pipe")
    with pytest.raises(UsageError, match="would be replaced"):
        locate(str(link)).write([b"x"])
    assert link.is_symlink()


@pytest.mark.parametrize(
    "args", [["inspect", "out", "--html"], ["verify", "out", "--report"], ["playlist", "out", "-o"]]
)
def test_no_command_replaces_one(pipe, tmp_path, monkeypatch, capfd, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a\n1\n")
    assert main(["pack", "t.csv", "out", "-q"]) == 0
    os.rename("pipe", "pipe.xml")
    capfd.readouterr()
    assert main([*args, "pipe.xml"]) == 2
    assert (
        capfd.readouterr().err
        == "error: pipe.xml: no file is there, and what is there would be replaced\nhint: Name a file.\n"
    )
    assert stat.S_ISFIFO(os.stat("pipe.xml").st_mode)


@pytest.mark.skipif(
    os.stat("/dev").st_dev == os.stat("/").st_dev, reason="/dev is no file system of its own here"
)
def test_what_lies_among_devices_is_special_and_files_are_not(tmp_path):
    def asked(name, folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            return is_special(name, fd)
        finally:
            os.close(fd)

    (tmp_path / "a").write_text("")
    assert [asked("null", "/dev"), asked("no such device", "/dev")] == [True, True]
    assert [asked("a", tmp_path), asked("b", tmp_path), asked("", tmp_path)] == [
        False,
        False,
        False,
    ]
