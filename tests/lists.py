"""Playlists that a test rewrites."""

from flarecli.hashes import digest


def write_list(path, text):
    """Write a playlist with a valid checksum in its last line, which replaces the old checksum."""
    body = text.rpartition("# flare")[0].encode() if "# flare" in text else text.encode()
    path.write_bytes(body + f"# flare xxh3_128 {digest(body)}\n".encode())
