"""`verify --state FILE`: a file that is not a state file is neither written to nor removed."""

import os

import pytest

from flarecli import commands
from flarecli.__main__ import main
from flarecli.errors import UsageError

NOT_OURS = "not a state file of `flare verify`; nothing was written to it"
OTHER = "file contains the state of a check with different sources or options"


@pytest.mark.parametrize(
    "data",
    [
        b"my notes",
        b"my notes\n",
        b'{"rows": 12, "done": true}',
        b"{",
        b"[]\n",
        b"\n",
        b"\0",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
        b'{"flare": "pack"}\n',
        b'\xef\xbb\xbf{"flare": "verify", "format": 2, "options": {}}\n',
        b'\n{"flare": "verify", "format": 2, "options": {}}\n',
    ],
    ids=[
        "text",
        "text with newline",
        "json",
        "first byte of a header",
        "json list",
        "newline",
        "nul",
        "binary",
        "other journal",
        "header after a byte order mark",
        "header on line 2",
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_a_state_file_of_something_else_is_refused_and_kept(plain, tmp_path, data, quick):
    state = tmp_path / "thesis"
    state.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        list(commands.verify(str(plain), state=str(state), quick=quick))
    assert str(caught.value) == f"{state}: {NOT_OURS}"
    assert caught.value.hint == "Specify a file that does not exist yet."
    assert state.read_bytes() == data


def test_a_state_file_of_an_earlier_version_is_refused_by_name_and_kept(out, tmp_path):
    (out / "shard.00000.mds").write_bytes(b"cut")
    state = tmp_path / "state"
    data = interrupted_state(out, state).replace(b'"format": 2, ', b"", 1)
    assert data.startswith(b'{"flare": "verify", "options": ')
    state.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        commands.verify(str(out), state=str(state))
    assert (
        str(caught.value)
        == f"{state}: file contains the state of a check by an earlier version of flare"
    )
    assert caught.value.hint == "Remove the file, or specify another path for --state."
    assert state.read_bytes() == data


@pytest.mark.parametrize("name", ["index.json", "playlist.yaml", "shard.00000.mds"])
def test_a_file_of_the_dataset_is_refused_as_state_file(out, name, capsys):
    data = (out / name).read_bytes()
    assert main(["verify", str(out), "--state", str(out / name)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {out / name}: {NOT_OURS}",
        "hint: Specify a file that does not exist yet.",
    ]
    assert (out / name).read_bytes() == data


def interrupted_state(source, state, **options):
    """Stop a check after its first file, and return the state that it left."""
    check = iter(commands.verify(str(source), state=str(state), jobs=1, **options))
    next(check, None)
    check.close()
    return state.read_bytes()


def test_an_empty_file_and_an_incomplete_header_are_reused(out, tmp_path):
    (out / "shard.00000.mds").write_bytes(b"cut")
    state = tmp_path / "state"
    header = interrupted_state(out, state).splitlines(keepends=True)[0]
    for data in (b"", header[:-1], header[:40], header, header + b'{"key": '):
        state.write_bytes(data)
        assert interrupted_state(out, state).startswith(header)
        done = commands.verify(str(out), state=str(state))
        assert [one.kind for one in done] == ["size"]
        assert not state.exists()


def test_the_state_of_other_options_is_refused_and_kept(out, tmp_path):
    (out / "shard.00000.mds").write_bytes(b"cut")
    state = tmp_path / "state"
    data = interrupted_state(out, state)
    with pytest.raises(UsageError) as caught:
        commands.verify(str(out), state=str(state), quick=True)
    assert str(caught.value) == f"{state}: {OTHER}"
    assert state.read_bytes() == data


def test_a_state_that_is_not_a_regular_file_is_refused(plain, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError) as caught:
        commands.verify(str(plain), state=str(tmp_path / "fifo"))
    assert str(caught.value) == f"{tmp_path / 'fifo'}: not a regular file"


def test_a_file_that_replaced_the_state_is_not_removed(plain, tmp_path):
    state = tmp_path / "state"
    check = iter(commands.verify(str(plain), state=str(state), jobs=1))
    os.rename(state, tmp_path / "moved")
    state.write_bytes(b"mine")
    assert list(check) == []
    assert state.read_bytes() == b"mine"


def test_a_state_behind_a_link_is_removed_and_the_link_is_kept(plain, tmp_path):
    os.symlink(tmp_path / "real", tmp_path / "link")
    assert list(commands.verify(str(plain), state=str(tmp_path / "link"))) == []
    assert not (tmp_path / "real").exists() and (tmp_path / "link").is_symlink()
