"""Every other place that fsspec knows: Hugging Face, FTP, SFTP, SMB, HDFS, memory; and S3 through s3fs where FLARE_S3=s3fs asks for it.

One adapter for all of them, with the verbs and the errors of every store. A library's chains (`simplecache::…`, `zip://`) and
its own ways to local files are not served: an address is one scheme and one path.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from flarecli.errors import (
    CredentialsError,
    FlareError,
    FormatError,
    MissingError,
    MissingLibraryError,
    ReachError,
    UsageError,
)
from flarecli.hashes import Sums
from flarecli.names import scheme_of
from flarecli.prefetch import ordered_map, run_interruptibly
from flarecli.redact import redact, redact_text
from flarecli.storage.base import Entry, Guard, Location, Part, Store, Written, short_read
from flarecli.storage.cloud.address import check_key, resolve, user_info
from flarecli.storage.cloud.credentials import ways
from flarecli.storage.cloud.errors import denied, is_refusal
from flarecli.storage.versions import SETTLED_S, ObjectPin, Pins

__all__ = ["AnyStore"]

T = TypeVar("T")
SERVED = {  # scheme -> what installs the library behind it, where fsspec alone does not serve it
    "abfs": "adlfs",
    "box": "boxfs",
    "dropbox": "dropboxdrivefs",
    "ftp": "",
    "gcs": "gcsfs",
    "gdrive": "gdrive_fsspec",
    "hdfs": "pyarrow",
    "hf": "huggingface_hub",
    "memory": "",
    "oci": "ocifs",
    "oss": "ossfs",
    "s3": "s3fs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "webdav": "webdav4",
    "webhdfs": "requests",
}
_WHOLE = (
    "abfs",
    "gcs",
    "hf",
    "memory",
    "oci",
    "oss",
    "s3",
)  # where a file appears when its upload has ended
_SIGNS = ("ETag", "etag", "e_tag", "md5", "blob_id", "last_commit")  # what tells versions apart
_TIMES = (
    "mtime",
    "modified",
    "modify",
    "LastModified",
    "created",
)  # what does so where nothing else is told, once they lie behind
_CHECK = "Check the credentials, and that they may do this."
_BLOCK = 8 << 20
_DEEPEST = 100  # folders within folders, in a listing
_DAY_S = 24 * 3600
_FTP_TIME = re.compile(r"\d{14}(\.\d{3,6})?", re.ASCII)  # RFC 3659, 2.3
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,59}")
_DENIED = ("GatedRepoError", "error_perm")
_NOBODY = (  # what comes of these is no fault of a file's: all that follow would fail like it
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "LoginError",
    "AuthenticationException",
)


class AnyStore(Store):
    """The files of one file system of fsspec; the path of a Location is fsspec's own path there.

    address  what the user typed, with its secrets: it says how to connect, and is never shown

    Picklable, and right in forked processes and many threads: each has a file system of its own.
    """

    def __init__(self, address: str, guard: Guard) -> None:
        self.address, self.guard, self.scheme = address, guard, scheme_of(address)
        self._pins = Pins(self.show)
        self._mine = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return AnyStore, (self.address, self.guard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyStore) and (self.address, self.guard) == (
            other.address,
            other.guard,
        )

    def __hash__(self) -> int:
        return hash((self.address, self.guard))

    @classmethod
    def locate(cls, address: str, guard: Guard, unknown: type[FlareError] = UsageError) -> Location:
        """Make a Location of an address that the user typed.

        raises  `unknown` for a scheme that is not served; MissingLibraryError if its library is not installed
        """
        scheme = scheme_of(address)
        if scheme not in SERVED:
            hint = "Give a path, or an http://, https://, s3://, gs://, az:// or hf:// address."
            raise unknown(
                f"{scheme}:// is not an address that flare reads", where=redact(address), hint=hint
            )
        store = cls(scheme + address[len(scheme) :], guard)
        return Location(store, store.of_kind()._strip_protocol(store.address).strip("/"))

    def of_kind(self) -> Any:
        """Give the class of the file system."""
        install = f"pip install {' '.join(('fsspec', SERVED[self.scheme])).strip()}"
        try:
            return importlib.import_module("fsspec").get_filesystem_class(self.scheme)
        except ImportError:
            raise MissingLibraryError(
                f"the library behind {self.scheme}:// is not installed",
                where=redact(self.address),
                hint=install,
            ) from None

    def _files(self) -> Any:
        """Open the file system for this process and thread: not all of them may be shared."""
        if getattr(self._mine, "pid", 0) != os.getpid():
            kind = self.of_kind()
            options = dict(kind._get_kwargs_from_urls(self.address))
            if self.scheme == "s3":
                options |= (
                    {"anon": True}
                    if self.guard.anonymous
                    or os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true")
                    else {}
                )
            if self.scheme in ("ftp", "sftp"):
                options.setdefault("timeout", self.guard.limits.timeout_s)
            options |= {"use_listings_cache": False, "skip_instance_cache": True}
            self._mine.files, self._mine.pid = kind(**options), os.getpid()
        return self._mine.files

    def close(self) -> None:
        self._pins.clear()
        self._mine = threading.local()

    @property
    def home(self) -> str:
        """The address of everything that absolute addresses in data may name: a bucket, a host, a repository."""
        scheme, _, rest = redact(self.address).partition("://")
        return f"{scheme}://{'/'.join(rest.lstrip('/').split('/')[: 3 if scheme == 'hf' else 1])}/"

    def show(self, path: str) -> str:
        return (
            f"{self.home}{path}"
            if self.scheme in ("ftp", "sftp", "smb", "hdfs", "webhdfs", "webdav")
            else f"{self.scheme}://{path}"
        )

    def join(self, path: str, url: str) -> Location:
        """Resolve what data names: see `cloud.address`."""
        if scheme_of(url) == self.scheme and url.startswith(self.home):
            below = self.of_kind()._strip_protocol(url).strip("/")
            return Location(self, check_key(below, self.show(path)))
        return resolve(self, self.home, path, url, self.guard)

    def _path(self, path: str) -> str:
        return f"/{path}" if self.of_kind().root_marker == "/" else path

    def _do(self, path: str, call: Callable[[Any, str], T]) -> T:
        """Call the file system; give its errors the store's own words, and nothing of what they hold."""
        try:
            return call(self._files(), self._path(path))
        except FlareError:
            raise
        except FileNotFoundError:
            raise MissingError("nothing is there", where=self.show(path)) from None
        except IsADirectoryError:
            raise FormatError("a folder where a file is needed", where=self.show(path)) from None
        except ImportError:
            raise MissingLibraryError(
                f"the library behind {self.scheme}:// is not whole",
                where=self.show(path),
                hint=f"pip install {SERVED[self.scheme]}",
            ) from None
        except Exception as error:
            kind = type(error).__name__
            if refused := self._refused(error, path):
                raise refused from None
            if kind in _NOBODY:
                raise CredentialsError(
                    f"permission denied ({kind})", where=self.show(path), hint=_CHECK
                ) from None
            if isinstance(error, PermissionError) or kind in _DENIED:
                raise ReachError(
                    f"permission denied ({kind})", where=self.show(path), hint=_CHECK
                ) from None
            raise ReachError(
                f"{self.scheme} fails: {self._said(error)}", where=self.show(path)
            ) from None

    def _refused(self, error: Exception, path: str) -> FlareError | None:
        """Give what a refusal of S3 means; None if it is none. To a HEAD the answer has no word for it, so the first byte is asked for."""
        status, code = _answered(error) if self.scheme == "s3" else (0, "")
        if status in (400, 401, 403) and not code:
            try:
                self._files().cat_file(self._path(path), start=0, end=1)
            except Exception as again:
                told, word = _answered(again)
                status, code = (told, word) if is_refusal(told, word) else (status, "")
        return denied(status, code, self.show(path), _tried()) if is_refusal(status, code) else None

    def _said(self, error: Exception) -> str:
        """Give a library's own words in one line, without the secrets of the address."""
        text = redact_text(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
        password = unquote(user_info(self.address).partition(":")[2])
        return text.replace(password, "…") if password else text

    # -- reading

    def _look(self, path: str, pin: ObjectPin | None = None) -> ObjectPin:
        """Ask for the version, and check it against the pin. Raises IntegrityError if it is another."""
        info = self._do(path, lambda files, name: files.info(name))
        if info.get("type") == "directory" or info.get("size") is None:
            raise FormatError("a folder where a file is needed", where=self.show(path))
        sign = next((sign for sign in (*_SIGNS, *_TIMES) if info.get(sign)), "")
        is_strong = sign not in _TIMES or _lies_behind(info[sign])
        seen = ObjectPin(str(info.get(sign, "")), int(info["size"]), is_strong)
        return self._pins.check(path, pin, seen)

    def size(self, path: str) -> int:
        return self.version(path)[1]

    def version(self, path: str) -> tuple[str, int]:
        pin = self._pins.get(path) or self._pins.pin(
            path, run_interruptibly(lambda: self._look(path))
        )
        return pin.version, pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return (
            b""
            if start == stop
            else self._pins.read(path, lambda pin: self._ranges(path, [(start, stop)], pin))[0]
        )

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Part]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._ranges(path, pieces, pin))

    def _ranges(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[bytes], ObjectPin]:
        pin = pin or run_interruptibly(lambda: self._look(path))
        size = pin.size
        wanted = [(start, size if stop is None else stop) for start, stop in ranges]
        past = max(max(pair) for pair in wanted)
        if past > size:
            raise short_read(self.show(path), 0, past, size)

        def read(pair: tuple[int, int]) -> bytes:
            return (
                b""
                if pair[0] == pair[1]
                else bytes(
                    self._do(
                        path, lambda files, name: files.cat_file(name, start=pair[0], end=pair[1])
                    )
                )
            )

        data = [*ordered_map(read, wanted, workers=self.guard.limits.jobs)]
        for one, (start, stop) in zip(data, wanted, strict=True):
            if len(one) != stop - start:
                raise short_read(self.show(path), start, stop, len(one))
        run_interruptibly(lambda: self._look(path, pin))
        return data, pin

    def list(self, path: str) -> Iterator[Entry]:
        """List all files below a folder: where a library lists folder by folder, no more than one of each depth is in memory."""
        is_at_once = (
            self.of_kind().find is not importlib.import_module("fsspec").AbstractFileSystem.find
        )
        is_empty = True
        for entry in self._listed(path) if is_at_once else self._walked(path, 0):
            is_empty = False
            yield entry
        if is_empty:
            raise MissingError("nothing is there", where=self.show(path))

    def _listed(self, path: str) -> Iterator[Entry]:
        found = run_interruptibly(
            lambda: self._do(path, lambda files, name: files.find(name, detail=True))
        )
        top, entries = self._path(path).strip("/"), list[Entry]()
        while found:  # what a library tells of a file takes several times what is kept of it
            name, info = found.popitem()
            entries.append(
                Entry(
                    str(name).strip("/")[len(top) + 1 if top else 0 :], int(info.get("size") or 0)
                )
            )
        entries.sort(key=lambda entry: entry.name.encode("utf-8", "surrogateescape"))
        yield from (entry for entry in entries if entry.name)

    def _walked(self, path: str, depth: int) -> Iterator[Entry]:
        if depth > _DEEPEST:
            raise FormatError(
                f"folders lie more than {_DEEPEST} deep in it",
                where=self.show(path),
                hint="Name a folder further down.",
            )
        try:
            found = run_interruptibly(
                lambda: self._do(path, lambda files, name: files.ls(name, detail=True))
            )
        except MissingError:
            if not depth:
                raise
            return  # it went while we looked
        names = [
            (
                str(info["name"]).rstrip("/").rpartition("/")[2],
                info.get("type") == "directory",
                int(info.get("size") or 0),
            )
            for info in found
        ]
        if (
            len(found) == 1
            and not names[0][1]
            and str(found[0]["name"]).strip("/") == self._path(path).strip("/")
        ):
            return  # a file
        del found
        for name, is_folder, size in sorted(
            names, key=lambda one: (one[0] + "/" * one[1]).encode("utf-8", "surrogateescape")
        ):
            if is_folder:
                yield from (
                    Entry(f"{name}/{entry.name}", entry.size)
                    for entry in self._walked(self.child(path, name), depth + 1)
                )
            else:
                yield Entry(name, size)

    # -- writing

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write a file; it is collected on the local disk first, so that a half one never leaves this machine."""
        sums = Sums(hashes)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="flare-upload-"))
                for part in parts:
                    file.write(part)
                    sums.update(part)
                file.flush()
            except OSError as error:
                if isinstance(error, FlareError):  # of the parts
                    raise
                where, hint = (
                    tempfile.gettempdir(),
                    "Let TMPDIR name a folder with room for the largest file.",
                )
                raise ReachError(
                    f"cannot collect a file here: {os.strerror(error.errno or 0).lower()}",
                    where=where,
                    hint=hint,
                ) from None
            run_interruptibly(
                lambda: self._do(
                    path, lambda files, name: self._put(files, name, file.name, path, replace)
                )
            )
        self._pins.drop(path)
        return Written(sums.size, sums.hex())

    def _put(self, files: Any, name: str, source: str, path: str, replace: bool) -> None:
        if not replace and files.exists(name):
            raise UsageError("something is there already", where=self.show(path))
        if self.scheme not in ("s3", "gcs", "memory"):
            files.makedirs(name.rpartition("/")[0] or "/", exist_ok=True)
        if self.scheme in _WHOLE:
            files.put_file(source, name)
            return
        part = f"{name}.{os.getpid()}.part"
        try:
            files.put_file(source, part)
            files.mv(part, name)
        except BaseException:
            with contextlib.suppress(Exception):  # half of it may be there
                files.rm_file(part)
            raise

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):
            run_interruptibly(lambda: self._do(path, lambda files, name: files.rm_file(name)))
        self._pins.drop(path)


def _lies_behind(when: Any) -> bool:
    """Say whether a file last changed so long ago that a change since would show: of most the time is told in whole seconds, as HTTP's is."""
    try:
        if isinstance(when, str):
            when = datetime.fromisoformat(
                f"{when[:8]}T{when[8:]}+00:00" if _FTP_TIME.fullmatch(when) else when
            )
        if not isinstance(when, datetime):
            return time.time() - float(when) >= SETTLED_S
        zone, more_s = (
            (when.tzinfo, 0) if when.tzinfo is not None else (UTC, _DAY_S)
        )  # which of them, it does not say
        return time.time() - when.replace(tzinfo=zone).timestamp() >= SETTLED_S + more_s
    except (ValueError, TypeError, OverflowError):
        return False


def _answered(error: BaseException | None) -> tuple[int, str]:
    """Give the status of the answer that a library of S3 raised an error for, and the store's own word for it; 0 and nothing if there was none."""
    while error is not None:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            status, code = (
                answer.get("ResponseMetadata", {}).get("HTTPStatusCode"),
                str(answer.get("Error", {}).get("Code", "")),
            )
            return int(status or 0), code if _WORD.fullmatch(code) else ""
        error = error.__cause__
    return 0, ""


def _tried() -> str:
    """Say how S3 was asked to let us in, and where."""
    try:
        found = ways("s3")
    except FlareError:  # what is not read here, the library may know
        return "with the credentials that s3fs finds"
    endpoint = redact(str(found[0].config.get("endpoint", "")))
    return " and ".join(way.words for way in found) + (f" at {endpoint}" if endpoint else "")
