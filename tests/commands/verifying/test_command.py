"""verify reports damage of every kind."""

import hashlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flarecli import commands, formats
from flarecli.commands.verifying import decode as checks_values
from flarecli.commands.verifying import shard as checks
from flarecli.errors import MissingError, UsageError
from flarecli.hashes import digest
from flarecli.model import Finding
from flarecli.read import resolve
from flarecli.write import Writer
from tests.lists import write_list

AGAIN = "fetch it again, or pack it again with `flare pack … --overwrite`."
CUT = f"The file was cut short; {AGAIN}"


def findings_of(address, **options) -> list[Finding]:
    return list(commands.verify(str(address), **options))


def resign(folder: Path) -> None:
    """Write a valid checksum line to the playlist, as after an intended change."""
    path = folder / "playlist.yaml"
    write_list(path, path.read_text())


def test_a_complete_dataset_has_no_findings_and_all_counts(plain):
    done = commands.verify(str(plain))
    assert list(done) == []
    size = sum(path.stat().st_size for path in plain.iterdir())
    assert (done.files, done.shards, done.rows, done.bytes, done.findings) == (7, 4, 35, size, 0)
    assert (done.unprotected, done.extra) == ([], [])


def test_a_complete_compressed_dataset_has_no_findings(zipped):
    done = commands.verify(str(zipped))
    assert (list(done), done.shards, done.rows) == ([], 4, 35)


@pytest.mark.parametrize("kind", ["plain", "zipped"])
def test_every_flipped_bit_is_found_with_its_file(kind, request, tmp_path):
    folder, rng = (
        Path(shutil.copytree(request.getfixturevalue(kind), tmp_path / "out")),
        random.Random(3),
    )
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        for _ in range(25):
            at = rng.choice(
                [
                    rng.randrange(min(64, len(good))),
                    rng.randrange(len(good)),
                    len(good) - 1 - rng.randrange(40),
                ]
            )
            path.write_bytes(good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :])
            findings = findings_of(folder)
            assert any(path.name in one.where for one in findings), (path.name, at, findings)
        path.write_bytes(good)


def test_a_flipped_bit_is_reported_with_rows_and_checksums(out):
    path = out / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    playlist, index = out / "playlist.yaml", out / "index.json"
    seen, expected = (
        hashlib.sha1(one).hexdigest() for one in (data, data[:-1] + bytes([data[-1] ^ 1]))
    )
    message = f"checksum mismatch (rows 10 to 19): sha1 is {seen}, {playlist} lists {expected}; also different: xxh3_128 of {playlist}, sha1 of {index}"
    assert findings_of(out) == [
        Finding(
            str(path),
            "checksum",
            message,
            f"The file was changed after it was packed; {AGAIN}",
            start=0,
            stop=len(data),
        )
    ]


def test_a_shard_above_the_memory_limit_is_checked_from_the_file(out, monkeypatch):
    monkeypatch.setattr(checks, "MAX_MEMORY_BYTES", 100)
    assert findings_of(out) == []
    path = out / "shard.00002.mds"
    data = bytearray(path.read_bytes())
    data[1] ^= 128
    path.write_bytes(data)
    assert [(one.where, one.kind) for one in findings_of(out)] == [
        (str(path), "checksum"),
        (str(path), "format"),
    ]


def test_a_truncated_shard_is_one_finding(out):
    path = out / "shard.00000.mds"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-9])
    expected = Finding(
        str(path),
        "size",
        f"file is {size - 9} bytes, {out}/playlist.yaml lists {size}",
        CUT,
        start=size - 9,
        stop=size,
    )
    assert findings_of(out) == findings_of(out, quick=True) == [expected]


def test_bytes_after_the_end_are_damage(out):
    path = out / "shard.00000.mds"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"!")
    hint = f"The file was replaced; {AGAIN}"
    assert findings_of(out) == [
        Finding(
            str(path),
            "size",
            f"file is {size + 1} bytes, {out}/playlist.yaml lists {size}",
            hint,
            start=size,
            stop=size + 1,
        )
    ]


def test_a_missing_shard_and_a_missing_index_are_findings(out):
    (out / "shard.00003.mds").unlink()
    (out / "index.json").unlink()
    listed = f"no such file, {out}/playlist.yaml lists it"
    again = f"Fetch it again, or remove it and run `flare playlist {out} --reindex`."
    gone = [("index.json", again), ("shard.00003.mds", f"The file is missing; {AGAIN}")]
    assert findings_of(out) == [
        Finding(f"{out}/{name}", "missing", listed, hint) for name, hint in gone
    ]


def test_an_unreadable_playlist_is_a_finding_even_if_the_index_is_valid(out):
    (out / "playlist.yaml").write_text("data: [")
    (one,) = findings_of(out)
    assert (one.where, one.kind) == (f"{out}/playlist.yaml:2:1", "format")


def test_checksums_without_a_checksum_line_are_a_finding(out):
    path = out / "playlist.yaml"
    body = path.read_bytes().rpartition(b"# flare")[0]
    path.write_bytes(body)
    assert [(one.where, one.message) for one in findings_of(out)] == [
        (str(path), "contains checksums, but its last line is not a checksum of the lines above")
    ]
    path.write_bytes(body + b"# flare xxh3_128 " + b"0" * 32 + b"\n")
    assert [(one.where, one.message) for one in findings_of(out)] == [
        (str(path), "the last line is not the checksum of the lines above")
    ]


def test_a_foreign_playlist_without_checksums_is_a_note(out):
    (out / "playlist.yaml").write_text(
        "data:\n  headers: {format: mds}\n  content: [shard.00000.mds]\n"
    )
    (out / "index.json").unlink()
    done = commands.verify(f"{out}/playlist.yaml", streams=["data"])
    findings = list(done)
    assert [one.kind for one in findings] == ["unlisted"] * 3
    bare = "1 of 1 files of stream 'data': no checksums; only sizes and structure were checked"
    assert done.unprotected == [f"{out}/playlist.yaml: no checksums", bare]


def test_a_foreign_index_is_checked_by_its_checksums_and_noted_as_unprotected(out):
    (out / "playlist.yaml").unlink()
    done = commands.verify(str(out))
    assert list(done) == []
    assert done.unprotected == [
        f"{out}/index.json: no checksums; compared with the headers of the shards"
    ]
    assert done.extra == ["failed.jsonl"]
    index = json.loads((out / "index.json").read_text())
    index["shards"][1]["column_names"][0] = "ix"
    (out / "index.json").write_text(json.dumps(index))
    assert [one.kind for one in findings_of(out)] == ["format"]


def test_a_playlist_and_an_index_that_differ_are_a_finding(out):
    index, playlist = out / "index.json", out / "playlist.yaml"
    old = index.read_bytes()
    changed = json.loads(old)
    del changed["shards"][3]
    changed["shards"][0]["raw_data"]["hashes"]["sha1"] = "0" * 40
    index.write_text(json.dumps(changed))
    text = (
        playlist.read_text()
        .replace(f"bytes: {len(old)}", f"bytes: {index.stat().st_size}")
        .replace(digest(old), digest(index.read_bytes()))
    )
    playlist.write_text(text)
    resign(out)
    messages = [(one.where, one.kind, one.message) for one in findings_of(out)]
    right = json.loads(old)["shards"][0]["raw_data"]["hashes"]["sha1"]
    assert messages == [
        (
            str(index),
            "listing",
            f"lists {'0' * 40} sha1 for {out}/shard.00000.mds, {playlist} lists {right}",
        ),
        (
            f"{out}/shard.00000.mds",
            "checksum",
            f"checksum mismatch (rows 0 to 9): sha1 is {right}, {index} lists {'0' * 40}",
        ),
        (str(index), "listing", f"does not list {out}/shard.00003.mds, {playlist} does"),
    ]


def test_a_name_that_leaves_the_folder_is_a_finding_and_is_not_read(out, tmp_path):
    (tmp_path / "canary.mds").write_text("canary")
    text = (out / "playlist.yaml").read_text().replace("- shard.00000.mds", "- ../canary.mds")
    (out / "playlist.yaml").write_text(text)
    resign(out)
    findings = findings_of(out)
    assert "canary" in findings[0].message and {one.kind for one in findings} == {
        "unsafe",
        "listing",
        "unlisted",
    }


def test_an_unfinished_pack_is_a_finding(out):
    (out / ".flare").mkdir()
    (out / ".flare" / "journal").write_text("{}\n")
    assert findings_of(out) == [
        Finding(
            str(out),
            "unfinished",
            "folder contains an unfinished pack",
            "Run the same `flare pack` command again with --resume.",
        )
    ]


def test_an_unlisted_shard_is_a_finding_and_other_files_are_counted(out):
    shutil.copy(out / "shard.00000.mds", out / "shard.00009.mds")
    (out / "README").write_text("words")
    shutil.copytree(out, out / "inner")  # a separate dataset
    done = commands.verify(str(out))
    message = f"shard is not listed in {out}/playlist.yaml"
    assert list(done) == [
        Finding(
            f"{out}/shard.00009.mds",
            "unlisted",
            message,
            "Remove the shard, or add it to the list: `flare playlist … -o FILE`.",
        )
    ]
    assert done.extra == ["inner/", "README"]


def test_structure_is_checked_without_checksums(out):
    for name in ("playlist.yaml", "index.json"):
        (out / name).unlink()
    path = out / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[4:8], "little")
    data[start] ^= 1
    path.write_bytes(data)
    (one,) = findings_of(path)
    assert (one.where, one.kind) == (f"{path}[0]", "format")


def test_quick_reads_headers_only(out):
    path = out / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert findings_of(out, quick=True) == []
    data[5] ^= 1
    path.write_bytes(data)
    assert [(one.where, one.kind) for one in findings_of(out, quick=True)] == [
        (str(path), "format")
    ]


def test_decode_finds_values_that_contradict_their_encoding(out):
    findings = findings_of(out, decode=True)
    assert len(findings) == 35
    (chunk, *_) = resolve([str(out)])[0].streams[0]
    first, second = formats.find("mds").open_shard(chunk).layout["starts"][:2].tolist()
    message, hint = "column 'image': damaged jpeg: no image size in the header", checks_values.HINT
    assert findings[0] == Finding(
        f"{out}/shard.00000.mds",
        "value",
        message,
        hint,
        row=0,
        column="image",
        start=first,
        stop=second,
    )


def test_findings_end_with_the_number_of_further_findings(out):
    done = commands.verify(str(out), decode=True, max_findings=3)
    findings = list(done)
    assert len(findings) == 4
    assert findings[-1] == Finding(
        str(out), "more", "32 more findings", "Use a larger --max-findings to see all findings."
    )
    assert done.findings == 35


def test_a_zstd_bomb_stops_at_the_declared_size(zipped, tmp_path):
    import zstandard

    folder = Path(shutil.copytree(zipped, tmp_path / "out"))
    (folder / "playlist.yaml").unlink()
    path = folder / "shard.00000.mds.zstd"
    path.write_bytes(zstandard.compress(bytes(50_000_000)))
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["zip_data"] = {
        "basename": path.name,
        "bytes": path.stat().st_size,
        "hashes": {},
    }
    (folder / "index.json").write_text(json.dumps(index))
    (one,) = findings_of(folder)
    size = index["shards"][0]["raw_data"]["bytes"]
    assert (one.where, one.kind, one.message) == (
        str(path),
        "integrity",
        f"decompresses to more than {size} bytes",
    )


def test_an_unknown_checksum_is_a_finding(out):
    (out / "playlist.yaml").unlink()
    index = json.loads((out / "index.json").read_text())
    index["shards"][0]["raw_data"]["hashes"] = {"sha0": "12"}
    (out / "index.json").write_text(json.dumps(index))
    assert [one.message for one in findings_of(out)] == [
        f"{out}/index.json lists an unknown checksum 'sha0'"
    ]


def test_several_addresses_are_checked_in_order(plain, zipped, out):
    (out / "shard.00001.mds").unlink()
    done = commands.verify([str(plain), str(out), str(zipped)], jobs=1)
    assert [one.kind for one in done] == ["missing"]
    assert done.shards == 12


def test_a_missing_address_is_an_error(tmp_path):
    with pytest.raises(MissingError) as caught:
        commands.verify(str(tmp_path / "none"))
    assert str(caught.value) == f"{tmp_path}/none: no such file or folder"
    with pytest.raises(MissingError, match="folder is empty"):
        commands.verify(str(tmp_path))


def test_an_unknown_stream_is_an_error(plain):
    with pytest.raises(UsageError) as caught:
        commands.verify(str(plain), streams=["labels"])
    assert str(caught.value) == f"{plain}/playlist.yaml: no stream 'labels'"


def test_importing_the_commands_is_cheap_and_modules_do_not_hide_functions():
    heavy = "assert not {'pyarrow', 'yaml'} & set(sys.modules)"
    code = f"import sys, flarecli.commands as v; {heavy}; import flarecli.commands.verifying.command; print(v.verify)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<function verify")


def test_a_file_of_an_old_writer_is_noted_as_partly_unprotected():
    fixtures = Path(__file__).parents[3] / "fixtures" / "ffrecord"
    complete = commands.verify(str(fixtures / "many" / "data"))
    assert (list(complete), complete.unprotected) == ([], [])
    old = fixtures / "oldversion" / "data"
    result = commands.verify(str(old))
    assert list(result) == []
    (name,) = old.glob("*.ffr")
    assert result.unprotected == [
        f"{name}: the table has no checksum (written by an old version); only its structure was checked"
    ]


def test_findings_above_the_limit_of_a_shard_are_reported_as_one_finding(tmp_path):
    rows = 10_005
    with Writer(str(tmp_path / "d"), columns={"b": "bytes"}, format="ffrecord") as writer:
        for _ in range(rows):
            writer.write({"b": b"x"})
    (shard,) = (tmp_path / "d").glob("*.ffr")
    data = shard.read_bytes()
    shard.write_bytes(data[:-rows] + b"y" * rows)
    found = [
        one for one in commands.verify(str(shard), max_findings=rows) if one.kind == "integrity"
    ]
    assert [one.row for one in found[:-1]] == list(range(10_000))
    assert found[-1].message == "only the first 10000 findings of this shard are listed"
