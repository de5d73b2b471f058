"""Private addresses: the reserved ranges, and the addresses that options, typed origins and
redirects may reach.
"""

from __future__ import annotations

import csv
import ipaddress
import json

import pycurl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flarecli
from flarecli.__main__ import main
from flarecli.errors import (
    UnsafeError,
    UsageError,
)
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
    reserved,
)
from flarecli.storage.http.request import Request
from flarecli.storage.http.transfer import Handle
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
def test_allowed_hosts_ports_and_networks_are_parsed(text, wanted):
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
    assert "hint: Use a value such as data.example.com:8080, [::1]:8080 or 10.1.0.0/16." in (
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
    permit = permit_for(origin, Guard(allow_hosts=hosts))
    reason, hint = check_address(origin, permit, ip)
    assert (reason == "", hint == "") == (is_allowed, is_allowed)


@pytest.mark.parametrize(
    ("origin", "ip", "hint"),
    [
        (
            "http://a.example:80",
            "10.0.0.7",
            "Pass --allow-host a.example if you trust the data that links to it.",
        ),
        (
            "https://a.example:8443",
            "10.0.0.7",
            "Pass --allow-host a.example:8443 if you trust the data that links to it.",
        ),
        (
            "http://[::1]:8080",
            "::1",
            "Pass --allow-host [::1]:8080 if you trust the data that links to it.",
        ),
        (
            "http://a.example:80",
            "169.254.169.254",
            "To allow this metadata service, pass --allow-host 169.254.169.254.",
        ),
    ],
)
def test_the_hint_names_the_narrowest_option(origin, ip, hint):
    assert check_address(origin, permits.PUBLIC, ip)[1] == hint


def test_allow_private_does_not_include_metadata_services():
    everything = permit_for("http://a.example:80", Guard(allow_private=True))
    assert check_address("http://a.example:80", everything, "10.0.0.7") == ("", "")
    assert check_address("http://a.example:80", everything, "169.254.169.254")[0]
    # A proxy would open the connection, so a literal address is refused before the request.
    for host in ("169.254.169.254", "2852039166", "[::ffff:169.254.169.254]"):
        origin = parse(f"http://{host}/").origin
        assert permit_for(origin, Guard(allow_private=True)) == Permit()
        assert redirect_permit(origin, Guard(allow_private=True)) == Permit()


def test_a_local_index_may_not_name_a_private_address(web, tmp_path, capfd):
    url = web.file("/a", b"inside")
    source, out = index(tmp_path, url), str(tmp_path / "out")
    code, err = packed(capfd, source, out)
    assert code == 5
    assert err == (
        f"error: {source}[0]: k0: {url}: leads to 127.0.0.1, a loopback address\n"
        f"hint: Pass --allow-host 127.0.0.1:{web.port} if you trust the data that links to it, or "
        "--on-error skip to omit such rows.\n"
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
        "rows failed because of a private address: pass --allow-host "
        f"127.0.0.1:{web.port} if you trust the data that links to it." in err
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
        assert (
            "hint: Pass --allow-private, or replace the link in the data with its redirect target"
            in err
        )
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


@pytest.fixture
def listed(web, tmp_path):
    """A dataset on a local server, and a local playlist that names it."""
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
    assert (
        f"hint: Pass --allow-host 127.0.0.1:{web.port} if you trust the data that links to it"
        in err
    )
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


def test_a_library_that_opens_connections_itself_requires_an_allowed_host(tmp_path):
    at = locate(f"{tmp_path}/", Guard(allow_local=True))
    with pytest.raises(UnsafeError) as caught:
        at.join("ftp://127.0.0.1:1/x")
    assert str(caught.value) == (
        "ftp://127.0.0.1:1/x: flare cannot check which IP address the ftp:// client connects to"
    )
    assert caught.value.hint == ("Pass --allow-host with the host and port, if you trust the data.")
    allowed = with_reach(Guard(allow_local=True), ["127.0.0.1:1"])
    assert str(locate(f"{tmp_path}/", allowed).join("ftp://127.0.0.1:1/x")) == "ftp://127.0.0.1:1/x"


def fetch(origin, port, addresses, permit):
    """Fetch from a host name that resolves to these addresses, in their order; return libcurl's
    code and the fault.
    """
    slot = Handle(Limits(timeout_s=5.0), permit, Window(None))
    host = origin.partition("://")[2].rpartition(":")[0]
    slot.easy.setopt(pycurl.RESOLVE, [f"{host}:{port}:{','.join(addresses)}"])
    request = Request(parse(f"{origin}/a"), print, Guard(named=frozenset([origin])))
    slot.begin(request, 0.0)
    code = 0
    try:
        slot.easy.perform()
    except pycurl.error as error:
        code = error.args[0]
    return code, slot.finish(code)


@pytest.fixture
def public(monkeypatch):
    """Treat 127.0.0.9, where nothing listens, as a public address: tests do not connect to real
    ones.
    """
    real = permits.reserved
    monkeypatch.setattr(permits, "reserved", lambda ip: "" if ip == "127.0.0.9" else real(ip))
    return "127.0.0.9"


def test_a_typed_host_whose_first_address_was_public_stays_public(web, public):
    """DNS rebinding: the second address is a service of this machine."""
    web.file("/a", b"secret")
    origin = f"http://rebinding.example:{web.port}"
    permit = permit_for(origin, Guard(named=frozenset([origin])))
    code, fault = fetch(origin, web.port, [public, "127.0.0.1"], permit)
    assert code and not web.asked
    assert (fault.kind, fault.message) == (
        "unsafe",
        "leads to 127.0.0.1, a loopback address; an earlier connection to the host used a public address",
    )
    # the name server returns only the private address: a later connection is refused, too
    assert fetch(origin, web.port, ["127.0.0.1"], permit)[1].kind == "unsafe"
    assert not web.asked


def test_an_allowed_host_whose_first_address_was_public_stays_public(web, public):
    origin = f"http://rebinding-allowed.example:{web.port}"
    permit = permit_for(origin, Guard(allow_hosts=(f"rebinding-allowed.example:{web.port}",)))
    assert fetch(origin, web.port, [public, "127.0.0.1"], permit)[1].kind == "unsafe"
    assert not web.asked


def test_a_typed_host_whose_first_address_is_private_is_allowed(web, public):
    web.file("/a", b"mine")
    origin = f"http://intranet.example:{web.port}"
    permit = permit_for(origin, Guard(named=frozenset([origin])))
    code, fault = fetch(origin, web.port, ["127.0.0.1"], permit)
    assert (code, fault) == (0, None)


_PRIVATE = """
0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1
192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::7f00:1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::10.0.0.1
64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:a00:1:: 2002:c0a8:101::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1
fec0::1 ff02::1 ff0e::1 4000::1 3fff::1
"""


_PUBLIC = "1.1.1.1 8.8.8.8 172.15.255.255 172.32.0.1 192.0.1.1 100.128.0.1 2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8"


@pytest.mark.parametrize("ip", _PRIVATE.split())
def test_reserved_addresses_are_recognised(ip):
    assert reserved(ip)


@pytest.mark.parametrize("ip", _PUBLIC.split())
def test_public_addresses_are_recognised(ip):
    assert reserved(ip) == ""


@pytest.mark.parametrize(
    "ip", ["", "localhost", "127.1", "0x7f.0.0.1", "2130706433", "/tmp/socket"]
)
def test_invalid_numeric_addresses_are_not_public(ip):
    assert reserved(ip)


@given(st.ip_addresses())
def test_every_address_that_python_calls_private_is_reserved(ip):
    if not ip.is_global and not (
        ip.version == 6 and (ip.ipv4_mapped or ip in ipaddress.IPv6Network("2002::/16"))
    ):
        assert reserved(str(ip))


# IANA's special-purpose registries, and the public addresses before and after each network
NETWORKS = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_reserved_network_includes_its_first_and_last_address(network):
    first, last = ipaddress.ip_network(network)[0], ipaddress.ip_network(network)[-1]
    assert reserved(str(first)) and reserved(str(last))
    assert not reserved(str(first - 1)) and not reserved(str(last + 1))


@pytest.mark.parametrize("last", ["0.255.255.255", "255.255.255.255", "224.0.0.0", "240.0.0.0"])
def test_the_last_addresses_of_ipv4_are_reserved(last):
    assert reserved(last)
