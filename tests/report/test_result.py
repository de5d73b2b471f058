"""Reports of findings with hostile texts, read back by independent parsers."""

import html.parser
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from flarecli.errors import UsageError
from flarecli.model import Finding
from flarecli.report import Result, annotation, write_report

HOSTILE = "<script>alert(1)</script> & \x1b[31m ]]> \u202e \"'\x00\ufffe"
SHOWN = "<script>alert(1)</script> & \\x1b[31m ]]> \\u202e \"'\\x00?"
RESULT = Result(
    ["out", "more"],
    [
        Finding(
            "out/shard.00000.mds",
            "value",
            f"column 'image': {HOSTILE}",
            "Look.",
            row=3,
            column="image",
            start=120,
            stop=640,
        ),
        Finding("out/shard.00000.mds", "checksum", "fails", ""),
        Finding("out/playlist.yaml", "format", "no YAML", "Pack again.", line=2, character=1),
    ],
    {"files": 7, "shards": 4, "rows": 35, "bytes": 20_000, "findings": 3},
    ["out/<b>.ffr: no checksums"],
    ["notes.txt"],
)
WHOLE = Result(["out"], [], {"files": 7, "shards": 4, "rows": 35, "bytes": 20_000, "findings": 0})


def write(tmp_path, name, result=RESULT):
    write_report(str(tmp_path / name), result)
    return (tmp_path / name).read_text(encoding="utf-8")


def test_the_junit_report_has_failed_and_passed_test_cases(tmp_path):
    root = ElementTree.fromstring(write(tmp_path, "x.xml"))
    (suite,) = root
    assert (root.tag, suite.tag, suite.get("name")) == ("testsuites", "testsuite", "out more")
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "2",
        "errors": "0",
        "skipped": "0",
    }
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "out/shard.00000.mds",
        "out/playlist.yaml",
        "5 files have no findings",
    ]
    failure = cases[0].find("failure")
    assert (failure.get("type"), failure.get("message")) == (
        "value",
        f"column 'image': {SHOWN} (and 1 more)",
    )
    assert (
        failure.text
        == f"out/shard.00000.mds[3]: column 'image': {SHOWN} (bytes 120-639)\nLook.\nout/shard.00000.mds: fails"
    )
    assert list(cases[2]) == []
    assert suite.find("system-out").text == "out/<b>.ffr: no checksums"


def test_the_junit_report_is_valid_by_the_common_schema(tmp_path):
    schema = pytest.importorskip("xmlschema").XMLSchema(str(Path(__file__).parent / "junit.xsd"))
    for result in (RESULT, WHOLE):
        text = write(tmp_path, "x.xml", result)
        assert [str(fault) for fault in schema.iter_errors(text)] == []
        assert not schema.is_valid(text.replace(' tests="', ' test="'))
        (suite,) = ElementTree.fromstring(text)
        assert len(suite.findall("testcase")) == int(suite.get("tests"))
        assert sum(case.find("failure") is not None for case in suite) == int(suite.get("failures"))


def test_a_whole_dataset_is_one_passed_test_case(tmp_path):
    (suite,) = ElementTree.fromstring(write(tmp_path, "x.xml", WHOLE))
    assert [(case.get("name"), list(case)) for case in suite] == [("7 files have no findings", [])]


def test_the_json_report_has_file_row_and_line(tmp_path):
    told = json.loads(write(tmp_path, "x.json"))
    assert {name: told[name] for name in ("sources", "whole", "files", "findings", "extra")} == {
        "sources": ["out", "more"],
        "whole": False,
        "files": 7,
        "findings": 3,
        "extra": ["notes.txt"],
    }
    assert told["found"][0] == {
        "where": "out/shard.00000.mds[3]",
        "file": "out/shard.00000.mds",
        "row": 3,
        "column": "image",
        "line": None,
        "kind": "value",
        "message": f"column 'image': {SHOWN}",
        "hint": "Look.",
        "bytes": [120, 640],
    }
    assert [(one["file"], one["row"], one["line"]) for one in told["found"]][1:] == [
        ("out/shard.00000.mds", None, None),
        ("out/playlist.yaml", None, 2),
    ]


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.policy = set(), [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_data(self, data):
        self.cells.append(data)


def test_the_findings_page_escapes_hostile_text_and_allows_no_resources(tmp_path):
    text = write(tmp_path, "x.html")
    page = _Page(text)
    assert f"column 'image': {SHOWN}" in page.cells
    assert not page.tags & {"script", "img", "iframe", "link", "a", "form", "b"}
    assert (
        page.policy
        == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    assert "\x1b" not in text and "\u202e" not in text
    assert {"3 findings", "120-639", "bytes"} <= set(page.cells)
    assert "whole" in _Page(write(tmp_path, "x.html", WHOLE)).cells


def test_an_unknown_suffix_of_a_report_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        write_report("report.txt", RESULT)
    assert str(caught.value) == "unknown suffix for a report: 'report.txt'"
    assert caught.value.hint == "Use a file name with the suffix .xml (JUnit), .json or .html."


def test_annotations_are_one_line_and_cannot_contain_other_commands(tmp_path, in_tmp_path):
    one = Finding(f"{tmp_path}/a,b:c.mds", "value", "100% bad\n::set-env name=x::y", "Look.", row=3)
    assert (
        annotation(one)
        == "::error file=a%2Cb%3Ac.mds,title=flare verify%2C value::a,b:c.mds[3]: 100%25 bad\\n::set-env name=x::y (Look.)"
    )
    line = Finding("/else/where/playlist.yaml", "format", "no YAML", line=7, character=2)
    assert (
        annotation(line)
        == "::error file=/else/where/playlist.yaml,line=7,title=flare verify%2C format::playlist.yaml: no YAML"
    )
    entry = Finding("out/index.json", "format", "is not a count", item="shards[3]")
    assert (
        annotation(entry)
        == "::error file=out/index.json,title=flare verify%2C format::index.json: shards[3]: is not a count"
    )
    far = Finding("https://h/x.mds", "value", "bad", row=1)
    assert (
        annotation(far)
        == "::error file=https%3A//h/x.mds,title=flare verify%2C value::https://h/x.mds[1]: bad"
    )
