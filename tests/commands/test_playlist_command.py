"""playlist: a written playlist is read back as the same data, contains only allowed addresses, and
faults are reported.
"""

import hashlib
import shutil

import pytest
import yaml

from flarecli import commands, read
from flarecli.errors import IntegrityError, MissingError, UsageError
from flarecli.hashes import digest
from flarecli.storage import Guard
from flarecli.write import Writer


def test_a_playlist_of_bare_shards_is_complete_and_reads_the_same_rows(
    plain, tmp_path, in_tmp_path, samples
):
    shutil.copytree(plain, tmp_path / "imgs")
    for name in ("playlist.yaml", "index.json", "failed.jsonl"):
        (tmp_path / "imgs" / name).unlink()
    text = commands.playlist(
        "imgs/*.mds", out="set.yaml", hash=["sha256", "crc32"], header=[("license", "CC0")]
    )
    assert (tmp_path / "set.yaml").read_text() == text
    (name, stream), *_ = yaml.safe_load(text).items()
    paths = sorted((tmp_path / "imgs").iterdir())
    assert (name, stream["content"]) == ("data", [f"imgs/{path.name}" for path in paths])
    headers = stream["headers"]
    assert headers["rows"] == [10, 10, 10, 5]
    assert headers["bytes"] == [path.stat().st_size for path in paths]
    assert headers["sha256"] == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert headers["columns"] == {"id": "int", "image": "jpeg", "text": "str"}
    assert (headers["format"], headers["license"], "xxh3_128" in headers) == ("mds", "CC0", False)
    assert [row["id"] for row in read.open("set.yaml").take(range(35), ["id"]).to_pylist()] == [
        row["id"] for row in samples
    ]
    assert list(commands.verify("set.yaml")) == []


def test_named_sources_become_streams_and_sources_of_one_name_are_joined(
    plain, zipped, tmp_path, in_tmp_path
):
    shutil.copytree(plain, tmp_path / "a")
    shutil.copytree(zipped, tmp_path / "b=c")
    text = commands.playlist(["images=a", "b=c", "a/shard.00000.mds", "images=a/shard.00001.mds"])
    streams = yaml.safe_load(text)
    assert list(streams) == ["images", "data"]
    assert streams["images"]["content"] == [
        *(f"a/shard.0000{i}.mds" for i in range(4)),
        "a/shard.00001.mds",
    ]
    assert streams["data"]["content"][3:] == ["b=c/shard.00003.mds.zstd", "a/shard.00000.mds"]
    assert streams["data"]["headers"]["raw_bytes"][4] is None
    assert set(streams["images"]["headers"]["files"]) == {"a/index.json", "a/failed.jsonl"}
    (tmp_path / "set.yaml").write_text(text)
    assert list(commands.verify("set.yaml")) == []
    assert len(read.open("set.yaml", streams=["images"])) == 45


def test_without_opening_only_addresses_are_listed(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(plain)
    body = "data:\n  headers:\n    format: mds\n  content:\n    - shard.00002.mds\n    - shard.00003.mds\n"
    text = commands.playlist("shard.0000{2..3}.mds", open=False)
    assert text == f"{body}# flare xxh3_128 {digest(body.encode())}\n"


def test_addresses_are_rebased_and_made_relative_to_the_base(plain, monkeypatch):
    monkeypatch.chdir(plain.parent)

    def content(**options) -> str:
        return yaml.safe_load(commands.playlist("out/shard.00000.mds", open=False, **options))[
            "data"
        ]["content"][0]

    assert content() == "out/shard.00000.mds"
    assert content(base="https://cdn.host/set") == "out/shard.00000.mds"
    assert (
        content(rebase=[("out/", "https://cdn.host/set/x/")])
        == "https://cdn.host/set/x/shard.00000.mds"
    )
    assert (
        content(
            rebase=[("nope", "x"), ("out/", "https://cdn.host/set/x/")],
            base="https://cdn.host/set/",
        )
        == "x/shard.00000.mds"
    )
    assert content(rebase=[(f"{plain}/", "y/")]) == "y/shard.00000.mds"


def test_pairs_may_be_given_as_a_dict(plain, monkeypatch):
    monkeypatch.chdir(plain.parent)
    by_dict = commands.playlist("out", rebase={"out/": "x/"}, header={"license": "CC0"}, hash=[])
    assert by_dict == commands.playlist(
        "out", rebase=[("out/", "x/")], header=[("license", "CC0")], hash=[]
    )
    assert yaml.safe_load(by_dict)["data"]["headers"]["license"] == "CC0"


def test_a_playlist_without_sources_is_refused():
    with pytest.raises(UsageError) as caught:
        commands.playlist([])
    assert str(caught.value) == "missing argument: SOURCE"


def test_a_file_outside_the_folder_of_the_playlist_is_refused(plain, tmp_path):
    with pytest.raises(UsageError) as caught:
        commands.playlist(str(plain), out=str(tmp_path / "set.yaml"))
    assert (
        str(caught.value)
        == f"{plain}/shard.00000.mds: file is outside {tmp_path}; a playlist in this folder cannot list it"
    )
    assert not (tmp_path / "set.yaml").exists()
    commands.playlist(str(plain), out=str(tmp_path / "set.yaml"), allow_local=True)
    assert len(read.open(str(tmp_path / "set.yaml"), allow_local=True)) == 35


def test_plain_files_are_listed_but_not_the_playlist_itself(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    for _ in range(2):
        text = commands.playlist(str(tmp_path), out=str(tmp_path / "set.yaml"))
        assert yaml.safe_load(text)["data"]["content"] == ["a.txt"]
    assert read.open(str(tmp_path / "set.yaml"))[0] == {"name": "a.txt", "data": b"one"}


def test_damage_is_not_hidden_by_a_new_checksum(out):
    path = out / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        commands.playlist(str(out), hash=["sha256"], out=str(out / "set.yaml"))
    assert str(caught.value) == (
        f"{path}: checksum mismatch: the {len(data)} bytes read do not match "
        "sha1 and xxh3_128 in the playlist"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hash": ["sha0"]}, "unknown hash 'sha0'"),
        ({"header": [("rows", "1")]}, "the header 'rows' is reserved"),
        ({"out": "http://b/x.yaml"}, "http://b/x.yaml: cannot write to a web server"),
    ],
)
def test_invalid_options_are_refused(plain, options, message):
    with pytest.raises(UsageError) as caught:
        commands.playlist(str(plain), **options)
    assert str(caught.value) == message


def test_one_name_for_several_streams_is_refused(out):
    (out / "set.yaml").write_text(
        "a: {headers: {format: mds}, content: []}\nb: {headers: {format: mds}, content: []}\n"
    )
    with pytest.raises(UsageError) as caught:
        commands.playlist(f"x={out}/set.yaml")
    assert str(caught.value) == f"{out}/set.yaml: cannot use the name 'x' for several streams: a, b"


# -- check


def test_a_valid_playlist_has_no_faults(plain):
    assert commands.check_playlist(f"{plain}/playlist.yaml") == []


def test_every_fault_is_reported_with_line_and_column(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "one:\n  headers:\n    rows: [1]\n    bytes: [a, 2, -1]\n    columns: {x: nope, y: int, z: 3}\n  content: [a, 3, '']\n"
        "two: 7\n"
        "three:\n  headers: {sha1: [12, ''], files: {a: {bytes: x}, b: {bytes: 1, sha1: 7}}}\n  content: [a, b]\n"
        "four:\n  header: {}\n  contents: []\n  content:\n    - a\n    - [b]\n"
    )
    assert [
        (one.where.removeprefix(f"{path}:"), one.message)
        for one in commands.check_playlist(str(path))
    ] == [
        ("3:5", "rows has 1 values, content has 3"),
        ("4:13", "bytes[0] is 'a', not a count"),
        ("4:19", "bytes[2] is -1, not a count"),
        ("5:15", "column 'x': unknown encoding 'nope'"),
        ("5:32", "column 'z': unknown encoding '3'"),
        ("6:16", "content[1] of 'one' is 3; expected an address"),
        ("6:19", "content[2] of 'one' is ''; expected an address"),
        ("7:1", "stream 'two' is not a mapping of headers and content"),
        ("9:20", "sha1[0] is 12, not text; put it in quotes"),
        ("9:37", "the file 'a' is invalid; expected sizes in bytes and checksums"),
        ("9:52", "a checksum of the file 'b' is not text; put it in quotes"),
        ("12:3", "stream 'four' has 'header'; only headers and content are allowed"),
        ("13:3", "stream 'four' has 'contents'; only headers and content are allowed"),
        ("16:7", "content[1] of 'four' is ['b']; expected an address"),
    ]


def test_yaml_features_that_playlists_do_not_have_are_reported(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "one: &a\n  content: [x, !t y]\ntwo: *a\none: {}\n3: {}\nfour:\n  headers: {rows: [1], rows: [2]}\n  content: [5]\n"
    )
    assert [
        (one.where.removeprefix(f"{path}:"), one.message)
        for one in commands.check_playlist(str(path))
    ] == [
        ("1:6", "playlists cannot contain an alias or anchor (a)"),
        ("2:16", "playlists cannot contain a tag (!t)"),
        ("3:1", "stream 'two' is not a mapping of headers and content"),
        ("3:6", "playlists cannot contain an alias or anchor (a)"),
        ("4:1", "the name 'one' was used in line 1"),
        ("5:1", "the name 3 is not text; put it in quotes"),
        ("7:24", "the name 'rows' was used in line 7"),
        ("8:3", "content[0] of 'four' is 5; expected an address"),
    ]
    path.write_text("one: {}\none: {}\ntwo: [\n")
    assert [one.where.removeprefix(f"{path}:") for one in commands.check_playlist(str(path))] == [
        "2:1",
        "4:1",
    ]


def test_addresses_that_readers_refuse_are_reported_with_line_and_column(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        "one:\n  headers: {format: tar, files: {../x: {bytes: 1}}}\n  content:\n    - a\n    - ../../etc/passwd\n    - file:///etc/passwd\n"
    )
    result = commands.check_playlist(str(path))
    assert [(one.where, one.kind) for one in result] == [
        (f"{path}:2:13", "format"),
        (f"{path}:5:7", "unsafe"),
        (f"{path}:6:7", "unsafe"),
        (f"{path}:2:34", "unsafe"),
    ]


def test_broken_yaml_and_a_wrong_last_line_are_faults(out):
    path = out / "playlist.yaml"
    text = path.read_text()
    path.write_text(text.replace("rows: [10", "rows: [11"))
    (one,) = commands.check_playlist(str(path))
    assert (one.where, one.message) == (
        f"{path}:{text.count(chr(10))}:1",
        "the last line is not the checksum of the lines above",
    )
    path.write_text(text.replace("rows: [10", "rows: [[10"))
    (one,) = commands.check_playlist(str(path))
    assert one.message.startswith("not valid YAML: ")
    path.write_bytes(b"a:\n  b\xff")
    assert [(one.where, one.message) for one in commands.check_playlist(str(path))] == [
        (f"{path}:2:4", "not UTF-8 at byte 6")
    ]
    path.write_bytes(b"a:\n  b\x1b[2J")
    (one,) = commands.check_playlist(str(path))
    assert one.where.startswith(f"{path}:2:4")
    with pytest.raises(MissingError):
        commands.check_playlist(str(out / "none.yaml"))


# -- diff


def test_a_comparison_lists_added_removed_and_changed_chunks(out):
    old, new = out / "playlist.yaml", out / "new.yaml"
    text = (
        old.read_text()
        .replace("    - shard.00000.mds\n", "    - other.mds\n")
        .replace("rows: [10, 10", "rows: [10, 9")
    )
    new.write_text(text)
    result = commands.diff_playlists(str(old), str(new))
    assert (result.added, result.removed, result.changed) == (
        ("other.mds",),
        ("shard.00000.mds",),
        ("shard.00001.mds",),
    )
    same = commands.diff_playlists(
        str(out), f"{out}/index.json"
    )  # one playlist has more facts, without a contradiction
    assert (same.added, same.removed, same.changed) == ((), (), ())


def test_chunks_of_several_streams_are_listed_with_their_stream(tmp_path):
    for name, content in (("a", "[x]"), ("b", "[x, y]")):
        (tmp_path / f"{name}.yaml").write_text(
            f"one: {{headers: {{format: mds}}, content: {content}}}\ntwo: {{headers: {{format: mds}}, content: []}}\n"
        )
    result = commands.diff_playlists(f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml")
    assert result.added == ("y",)
    (tmp_path / "b.yaml").write_text(
        "one: {headers: {format: mds}, content: [x]}\ntwo: {headers: {format: mds}, content: [x]}\n"
    )
    assert commands.diff_playlists(f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml").added == ("two: x",)


def test_repeated_chunks_and_chunks_of_another_format_are_compared(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("one: {headers: {format: mds, columns: {x: int}}, content: [x, y, x]}\n")
    second.write_text("one: {headers: {format: mds, columns: {x: int}}, content: [x, y, y]}\n")
    result = commands.diff_playlists(str(first), str(second))
    assert (result.added, result.removed, result.changed) == (("y",), ("x",), ())
    second.write_text("one: {headers: {format: mds, columns: {x: str}}, content: [x, y, x]}\n")
    assert commands.diff_playlists(str(first), str(second)).changed == ("x", "y", "x")


def test_chunks_are_matched_by_address_or_by_relative_path(out, tmp_path):
    home, text = f"{tmp_path}/elsewhere", (out / "playlist.yaml").read_text()
    (tmp_path / "elsewhere").mkdir()

    def differences(name, text, folder=tmp_path / "elsewhere"):
        (folder / name).write_text(text.partition("# flare")[0])
        result = commands.diff_playlists(
            str(out / "playlist.yaml"), f"{folder}/{name}", Guard(allow_local=True)
        )
        return result.added, result.removed, result.changed

    nothing = ((), (), ())
    assert differences("copied.yaml", text) == nothing
    assert differences("dotted.yaml", text.replace("- shard", "- ./shard")) == nothing
    assert differences("dotted.yaml", text.replace("- shard", "- ././shard"), out) == nothing
    assert differences("whole.yaml", text.replace("- shard", f"- {out}/shard")) == nothing
    assert differences("here.yaml", text.replace("- shard", f"- {home}/shard")) == nothing
    assert differences("as_file.yaml", text.replace("- shard", f"- file://{out}/shard")) == nothing
    moved = tuple(f"{tmp_path}/x/shard.0000{i}.mds" for i in range(4))
    assert differences("moved.yaml", text.replace("- shard", f"- {tmp_path}/x/shard")) == (
        moved,
        tuple(f"shard.0000{i}.mds" for i in range(4)),
        (),
    )
    assert differences(
        "less.yaml", text.replace("- shard", "- ./shard").replace("rows: [10, 10", "rows: [10, 9")
    ) == ((), (), ("shard.00001.mds",))


def test_a_comparison_contains_no_secrets(tmp_path):
    one, two = "http://u:hunter2@127.0.0.1:9/a?X-Amz-Signature=hunter2", "http://[hunter"
    (tmp_path / "a.yaml").write_text(f"one: {{headers: {{format: mds}}, content: ['{one}']}}\n")
    (tmp_path / "b.yaml").write_text(
        f"one: {{headers: {{format: mds}}, content: ['{two}', 'http://v:hunter3@127.0.0.1:9/b']}}\n"
    )
    result = commands.diff_playlists(f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml")
    assert (result.added, result.removed, result.changed) == (
        ("http://…", "http://127.0.0.1:9/b"),
        ("http://127.0.0.1:9/a",),
        (),
    )
    (tmp_path / "b.yaml").write_text(
        "one: {headers: {format: mds}, content: ['http://w:x@127.0.0.1:9/a?X-Amz-Signature=hunter2#f']}\n"
    )
    result = commands.diff_playlists(f"{tmp_path}/a.yaml", f"{tmp_path}/b.yaml")
    assert (result.added, result.removed, result.changed) == ((), (), ())


def test_a_stream_has_the_same_columns_in_all_its_parts(tmp_path):
    for name, column in (("a", "n"), ("b", "m")):
        with Writer(str(tmp_path / name), columns={column: "int"}) as writer:
            writer.write({column: 1})
    with pytest.raises(
        UsageError,
        match="b: columns differ from the columns of earlier sources in stream 'x'(?m:$)",
    ):
        commands.playlist([f"x={tmp_path}/a", f"x={tmp_path}/b"], out=str(tmp_path / "p.yaml"))


def test_a_file_that_is_not_a_playlist_is_only_replaced_with_overwrite(
    plain, tmp_path, in_tmp_path
):
    shutil.copytree(plain, tmp_path / "imgs")
    (tmp_path / "notes.yaml").write_text("- buy milk\n")
    with pytest.raises(UsageError) as caught:
        commands.playlist("imgs", out="notes.yaml")
    assert str(caught.value) == "notes.yaml: file exists and is not a playlist"
    assert caught.value.hint == "Use --overwrite to replace the file, or specify another file."
    assert (tmp_path / "notes.yaml").read_text() == "- buy milk\n"
    text = commands.playlist("imgs", out="notes.yaml", overwrite=True)
    assert (tmp_path / "notes.yaml").read_text() == text
    named = commands.playlist("images=imgs", out="notes.yaml")  # now it is a playlist
    assert (tmp_path / "notes.yaml").read_text() == named != text
