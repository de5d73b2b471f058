"""Which private addresses data may reach: what the user typed, `--allow-host` and `--allow-private`."""

from __future__ import annotations

import csv
import json

import pycurl
import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.errors import UnsafeError, UsageError
from flarecli.storage import Guard, Limits, locate, with_reach
from flarecli.storage.http import ip_guard as permits
from flarecli.storage.http.engine import Window
from flarecli.storage.http.ip_guard import (
    AllowedHost,
    Permit,
    check_address,
    parse_host,
    permit_for,
    redirect_permit,
)
from flarecli.storage.http.request import Request
from flarecli.storage.http.transfer import Slot
from flarecli.storage.http.url import parse


def index(folder, *urls):
    path = folder / "index.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(
            [["key", "url"], *([f"k{i}", url] for i, url in enumerate(urls))]
        )
    return str(path)


def packed(capfd, *args):
    """Run `flare pack` and return exit code and stderr."""
    code = main(["pack", *args, "--fetch", "url:data", "--key", "key"])
    return code, capfd.readouterr().err


# -- the option


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Data.Example.com", ("data.example.com", None, None)),
        ("data.example.com:8080", ("data.example.com", None, 8080)),
        ("10.0.0.7:80", ("10.0.0.7", None, 80)),
        ("[::1]:8080", ("[::1]", None, 8080)),
        ("::1", ("[::1]", None, None)),
        ("[0:0::1]", ("[::1]", None, None)),
        ("10.1.0.0/16", ("", "10.1.0.0/16", None)),
        ("10.1.0.0/16:8080", ("", "10.1.0.0/16", 8080)),
        ("[fd00::/8]:8080", ("", "fd00::/8", 8080)),
    ],
)
def test_a_host_a_port_or_a_network_is_parsed(text, wanted):
    host, network, port = parse_host(text)
    assert (host, None if network is None else str(network), port) == wanted
    assert isinstance(parse_host(text), AllowedHost)


@pytest.mark.parametrize(
    "text",
    ["", ":80", "a:b", "a:0", "a:65536", "http://a", "a/b", "10.1.0.1/16", "[::1", "me@a", "a b"],
)
def test_an_invalid_host_is_a_usage_error(text, capfd, tmp_path):
    with pytest.raises(UsageError):
        parse_host(text)
    assert main(["cat", str(tmp_path), "--allow-host", text]) == 2
    assert "hint: Write it like data.example.com:8080, [::1]:8080 or 10.1.0.0/16." in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("origin", "hosts", "ip", "is_allowed"),
    [
        ("http://a.example:80", (), "10.0.0.7", False),
        ("http://a.example:80", ("a.example",), "10.0.0.7", True),
        ("https://a.example:443", ("a.example",), "10.0.0.7", True),
        ("http://a.example:8080", ("a.example",), "10.0.0.7", False),
        ("http://a.example:8080", ("a.example:8080",), "10.0.0.7", True),
        ("http://a.example:80", ("a.example:8080",), "10.0.0.7", False),
        ("http://b.example:80", ("a.example",), "10.0.0.7", False),
        ("http://b.example:9000", ("10.0.0.0/24",), "10.0.0.7", True),
        ("http://b.example:9000", ("10.0.0.0/24:9000",), "10.0.0.7", True),
        ("http://b.example:9001", ("10.0.0.0/24:9000",), "10.0.0.7", False),
        ("http://b.example:9000", ("10.0.1.0/24",), "10.0.0.7", False),
        ("http://b.example:9000", ("10.0.0.0/24",), "::ffff:10.0.0.7", True),
        ("http://[::1]:8080", ("[::1]:8080",), "::1", True),
        ("http://[::1]:8080", ("::/0",), "::1", True),
        ("http://a.example:80", ("0.0.0.0/0",), "169.254.169.254", False),
        ("http://a.example:80", ("a.example",), "169.254.169.254", False),
        ("http://a.example:80", ("169.254.0.0/16",), "169.254.169.254", False),
        ("http://169.254.169.254:80", ("169.254.169.254",), "169.254.169.254", True),
        ("http://169.254.169.254:80", ("169.254.0.0/16",), "169.254.169.254", False),
        ("http://2852039166:80", ("2852039166",), "169.254.169.254", False),
        ("http://[fd00:ec2::254]:80", ("fd00::/8",), "fd00:ec2::254", False),
        ("http://[fd00:ec2::254]:80", ("[fd00:ec2::254]",), "fd00:ec2::254", True),
        ("http://[fd00:ec2::253]:80", ("fd00::/8",), "fd00:ec2::253", True),
        ("http://a.example:80", (), "93.184.216.34", True),
    ],
)
def test_an_address_is_allowed_by_host_port_or_network(origin, hosts, ip, is_allowed):
    permit = permit_for(origin, frozenset(), False, hosts)
    reason, hint = check_address(origin, permit, ip)
    assert (reason == "", hint == "") == (is_allowed, is_allowed)


@pytest.mark.parametrize(
    ("origin", "ip", "hint"),
    [
        (
            "http://a.example:80",
            "10.0.0.7",
            "Give --allow-host a.example if you trust what names it.",
        ),
        (
            "https://a.example:8443",
            "10.0.0.7",
            "Give --allow-host a.example:8443 if you trust what names it.",
        ),
        (
            "http://[::1]:8080",
            "::1",
            "Give --allow-host [::1]:8080 if you trust what names it.",
        ),
        (
            "http://a.example:80",
            "169.254.169.254",
            "Metadata addresses must be named exactly: give --allow-host 169.254.169.254.",
        ),
    ],
)
def test_the_hint_names_the_narrowest_option(origin, ip, hint):
    assert check_address(origin, permits.PUBLIC, ip)[1] == hint


def test_a_switch_for_all_does_not_cover_metadata_services():
    everything = permit_for("http://a.example:80", frozenset(), True, ())
    assert check_address("http://a.example:80", everything, "10.0.0.7") == ("", "")
    assert check_address("http://a.example:80", everything, "169.254.169.254")[0]
    # A proxy would open the connection, so a literal address is refused before it is asked.
    for host in ("169.254.169.254", "2852039166", "[::ffff:169.254.169.254]"):
        origin = parse(f"http://{host}/").origin
        assert permit_for(origin, frozenset(), True, ()) == Permit()
        assert redirect_permit(origin, True) == Permit()


# -- packing what an index names


def test_a_local_index_may_not_name_a_private_address(web, tmp_path, capfd):
    url = web.file("/a", b"inside")
    source, out = index(tmp_path, url), str(tmp_path / "out")
    code, err = packed(capfd, source, out)
    assert code == 5
    assert err == (
        f"error: {source}[0]: k0: {url}: leads to 127.0.0.1, a loopback address\n"
        f"hint: Give --allow-host 127.0.0.1:{web.port} if you trust what names it, or "
        "--on-error skip to leave such rows out.\n"
    )
    assert not web.asked
    assert packed(capfd, source, out, "--resume", "--allow-host", f"127.0.0.1:{web.port}")[0] == 0
    assert flarecli.open(out)[0]["data"] == b"inside"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--allow-host", "127.0.0.1"], 5),
        (["--allow-host", "127.0.0.1:1"], 5),
        (["--allow-host", "localhost:{port}"], 5),
        (["--allow-host", "127.0.0.2", "--allow-host", "127.0.0.1:{port}"], 0),
        (["--allow-host", "127.0.0.0/8"], 0),
        (["--allow-host", "127.0.0.0/8:{port}"], 0),
        (["--allow-host", "127.0.0.0/8:1"], 5),
        (["--allow-host", "10.0.0.0/8"], 5),
        (["--allow-private"], 0),
    ],
)
def test_options_allow_as_much_as_they_name(web, tmp_path, capfd, options, code):
    source = index(tmp_path, web.file("/a", b"inside"))
    given = [one.format(port=web.port) for one in options]
    assert packed(capfd, source, str(tmp_path / "out"), *given)[0] == code
    assert bool(web.asked) == (code == 0)


def test_rows_left_out_for_a_private_address_are_noted_with_the_option(web, tmp_path, capfd):
    source = index(tmp_path, web.file("/a", b"inside"), "b")
    (tmp_path / "b").write_bytes(b"beside")
    code, err = packed(capfd, source, str(tmp_path / "out"), "--on-error", "skip")
    assert code == 1
    assert (
        "rows failed because of a private address: give --allow-host "
        f"127.0.0.1:{web.port} if you trust what names it." in err
    )
    (line,) = (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "unsafe"


def test_a_redirect_reaches_a_private_address_only_at_the_origin_of_the_row(
    web, other_web, tmp_path, capfd
):
    other_web.file("/secret", b"secret")
    web.file("/a", b"a")
    own, inside = f"127.0.0.1:{web.port}", f"127.0.0.1:{other_web.port}"
    web.page("/own", b"", status=302, Location="/a")
    web.page("/inside", b"", status=302, Location=other_web.url("/secret"))
    web.page("/alias", b"", status=302, Location=web.url("/a", host="localhost"))
    allowed = ["--allow-host", own, "--allow-host", inside, "--allow-host", "127.0.0.0/8"]
    source = index(tmp_path, web.url("/own"))
    assert packed(capfd, source, str(tmp_path / "own"), *allowed)[0] == 0
    for name in ("inside", "alias"):
        source = index(tmp_path, web.url(f"/{name}"))
        code, err = packed(capfd, source, str(tmp_path / name), *allowed)
        assert code == 5
        assert "leads to 127.0.0.1, a loopback address\n" in err or "leads to ::1" in err
        assert "hint: Give --allow-private, or name the address that it redirects to in the" in err
    assert not other_web.asked


def test_a_typed_origin_stays_allowed_and_others_do_not(web, other_web, tmp_path, capfd):
    web.file("/a", b"a")
    other_web.file("/secret", b"secret")
    web.file("/index.csv", f"key,url\nk0,{web.url('/a')}\n".encode())
    assert packed(capfd, web.url("/index.csv"), str(tmp_path / "one"))[0] == 0
    web.file("/other.csv", f"key,url\nk0,{other_web.url('/secret')}\n".encode())
    code, err = packed(capfd, web.url("/other.csv"), str(tmp_path / "two"))
    assert code == 5 and f"--allow-host 127.0.0.1:{other_web.port} " in err
    assert not other_web.asked
    allowed = ["--allow-host", f"127.0.0.1:{other_web.port}"]
    assert packed(capfd, web.url("/other.csv"), str(tmp_path / "two"), "--resume", *allowed)[0] == 0


# -- every command, and every function


@pytest.fixture
def listed(web, tmp_path):
    """A dataset on a server of this machine, and a local playlist that names it."""
    folder = tmp_path / "data"
    with flarecli.Writer(str(folder), columns={"n": "int", "data": "bytes"}) as writer:
        writer.write({"n": 7, "data": b"x"})
    for path in folder.iterdir():
        web.file(f"/data/{path.name}", path.read_bytes())
    path = tmp_path / "set.yaml"
    flarecli.playlist(str(folder), out=str(path), rebase=[("data/", web.url("/data/"))])
    return path


COMMANDS = [
    "cat",
    "inspect --sample 1",
    "verify",
    "unpack {} OUT",
    "pack {} OUT",
    "playlist --hash md5",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_needs_the_option_for_a_playlist_that_names_a_private_host(
    web, listed, tmp_path, capfd, command
):
    def run(*options):
        words = (command if "{}" in command else f"{command} {{}}").format(listed).split()
        words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
        return main([*words, *options])

    code = run()
    err = capfd.readouterr().err
    assert code == (1 if command == "verify" else 5)
    assert f"hint: Give --allow-host 127.0.0.1:{web.port} if you trust what names it" in err
    assert not web.asked
    assert run("--allow-host", f"127.0.0.1:{web.port}") == 0, capfd.readouterr().err


def test_every_function_that_reads_addresses_takes_allow_host(web, listed, tmp_path):
    allowed = {"allow_host": f"127.0.0.1:{web.port}"}
    source = str(listed)
    with pytest.raises(UnsafeError):
        flarecli.open(source)[0]
    assert flarecli.open(source, **allowed)[0]["n"] == 7
    assert flarecli.inspect(source, sample=1, **allowed).streams[0].rows == 1
    assert list(flarecli.verify(source, **allowed)) == []
    assert sum(batch.num_rows for batch in flarecli.cat(source, **allowed)) == 1
    assert "md5" in flarecli.playlist(source, hash=["md5"], **allowed)
    assert flarecli.pack(source, str(tmp_path / "packed"), **allowed).rows == 1
    assert flarecli.unpack(source, str(tmp_path / "files"), **allowed).rows == 1


def test_an_origin_typed_beside_a_local_playlist_is_allowed_in_it(web, listed, capfd):
    typed = web.url("/data/")
    assert main(["verify", str(listed), typed]) == 0, capfd.readouterr().err


def test_a_library_that_opens_connections_itself_needs_its_host_named(tmp_path):
    at = locate(f"{tmp_path}/", Guard(allow_local=True))
    with pytest.raises(UnsafeError) as caught:
        at.join("ftp://127.0.0.1:1/x")
    assert str(caught.value) == (
        "ftp://127.0.0.1:1/x: flare cannot check which address ftp:// connects to"
    )
    assert caught.value.hint == (
        "Give --allow-host with its host and port if you trust what names it."
    )
    allowed = with_reach(Guard(allow_local=True), ["127.0.0.1:1"])
    assert str(locate(f"{tmp_path}/", allowed).join("ftp://127.0.0.1:1/x")) == "ftp://127.0.0.1:1/x"


# -- names that change their address


def fetch(origin, port, addresses, permit):
    """Fetch from a host name that resolves to these addresses, in their order; return libcurl's code and the fault."""
    slot = Slot(Limits(timeout_s=5.0), permit, Window(None))
    host = origin.partition("://")[2].rpartition(":")[0]
    slot.easy.setopt(pycurl.RESOLVE, [f"{host}:{port}:{','.join(addresses)}"])
    request = Request(parse(f"{origin}/a"), print, named=frozenset([origin]))
    slot.begin(request, 0.0)
    code = 0
    try:
        slot.easy.perform()
    except pycurl.error as error:
        code = error.args[0]
    return code, slot.finish(code)


@pytest.fixture
def public(monkeypatch):
    """127.0.0.9, where nothing listens, counts as a public address: no test connects to a real one."""
    real = permits.reserved
    monkeypatch.setattr(permits, "reserved", lambda ip: "" if ip == "127.0.0.9" else real(ip))
    return "127.0.0.9"


def test_a_typed_host_whose_first_address_was_public_stays_public(web, public):
    """DNS rebinding: the second of two addresses is that of a service of this machine."""
    web.file("/a", b"secret")
    origin = f"http://rebinding.example:{web.port}"
    permit = permit_for(origin, frozenset([origin]), False, ())
    code, fault = fetch(origin, web.port, [public, "127.0.0.1"], permit)
    assert code and not web.asked
    assert (fault.kind, fault.message) == (
        "unsafe",
        "leads to 127.0.0.1, a loopback address; its first address was public",
    )
    # the name server answers with the private address alone: a later connection is refused, too
    assert fetch(origin, web.port, ["127.0.0.1"], permit)[1].kind == "unsafe"
    assert not web.asked


def test_an_allowed_host_whose_first_address_was_public_stays_public(web, public):
    origin = f"http://rebinding-allowed.example:{web.port}"
    permit = permit_for(origin, frozenset(), False, (f"rebinding-allowed.example:{web.port}",))
    assert fetch(origin, web.port, [public, "127.0.0.1"], permit)[1].kind == "unsafe"
    assert not web.asked


def test_a_typed_host_whose_first_address_is_private_is_allowed(web, public):
    web.file("/a", b"mine")
    origin = f"http://intranet.example:{web.port}"
    permit = permit_for(origin, frozenset([origin]), False, ())
    code, fault = fetch(origin, web.port, ["127.0.0.1"], permit)
    assert (code, fault) == (0, None)
