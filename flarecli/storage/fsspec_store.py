"""Store for services that fsspec supports, such as Hugging Face, FTP, SFTP, SMB and HDFS.

The store is also used for S3 if FLARE_S3=s3fs is set. An address consists of one scheme and one
path: fsspec's chained addresses (`simplecache::…`, `zip://`) and its local file systems are not
supported.
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
from flarecli.names import check_name, scheme_of
from flarecli.prefetch import ordered_map, run_interruptibly
from flarecli.redact import redact, redact_text
from flarecli.storage.base import (
    HOST_SCHEMES,
    MAX_DEPTH,
    Buffer,
    Entry,
    Guard,
    Location,
    Store,
    Written,
    bytewise,
    resolve,
    short_read,
    too_deep,
)
from flarecli.storage.cloud.credentials import credential_sources, is_unsigned
from flarecli.storage.cloud.errors import access_denied, is_access_error
from flarecli.storage.versions import SETTLED_S, ObjectPin, Pins

__all__ = ["FsspecStore"]

T = TypeVar("T")
LIBRARIES = {  # scheme -> package that fsspec needs for the scheme, or empty
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
# Schemes of services in which a file becomes visible only when its upload is complete.
_ATOMIC = ("abfs", "gcs", "hf", "memory", "oci", "oss", "s3")
_TOKEN_FIELDS = ("ETag", "etag", "e_tag", "md5", "blob_id", "last_commit")  # identify a version
# Fields with a modification time, used if a file has none of the token fields.
_TIME_FIELDS = ("mtime", "modified", "modify", "LastModified", "created")
_ACCESS_HINT = "Check the credentials and their permissions."
_DAY_S = 24 * 3600
_FTP_TIME = re.compile(r"\d{14}(\.\d{3,6})?", re.ASCII)  # RFC 3659, section 2.3
_ERROR_CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,59}")
_DENIED = ("GatedRepoError", "error_perm")
_CREDENTIAL_ERRORS = (  # errors that end the run, because all other files would also fail
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "LoginError",
    "AuthenticationException",
)


class FsspecStore(Store):
    """A store for the files of one fsspec file system.

    The path of a Location is the path in fsspec. A store can be pickled, and used after a fork and
    in many threads, because each thread of each process has its own file system.

    address  address that the user typed; it may contain secrets, so it is used to connect but never
             shown
    """

    def __init__(self, address: str, guard: Guard) -> None:
        self.address, self.guard, self.scheme = address, guard, scheme_of(address)
        self._pins = Pins(self.show)
        self._local = threading.local()

    def __reduce__(self) -> tuple[object, ...]:
        return FsspecStore, (self.address, self.guard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FsspecStore) and (self.address, self.guard) == (
            other.address,
            other.guard,
        )

    def __hash__(self) -> int:
        return hash((self.address, self.guard))

    @classmethod
    def locate(cls, address: str, guard: Guard, unknown: type[FlareError] = UsageError) -> Location:
        """Return the Location for an address that the user typed.

        unknown  exception class for an unsupported scheme
        raises   `unknown`; MissingLibraryError if the library for the scheme is not installed
        """
        scheme = scheme_of(address)
        if scheme not in LIBRARIES:
            hint = "Use a path, or an http://, https://, s3://, gs://, az:// or hf:// address."
            raise unknown(
                f"{scheme}:// addresses are not supported", where=redact(address), hint=hint
            )
        store = cls(scheme + address[len(scheme) :], guard)
        return Location(store, store.file_system_class()._strip_protocol(store.address).strip("/"))

    def file_system_class(self) -> Any:
        """Return fsspec's file system class for the scheme.

        Raises MissingLibraryError if the library for the scheme is not installed.
        """
        packages = " ".join(("fsspec", LIBRARIES[self.scheme])).strip()
        try:
            return importlib.import_module("fsspec").get_filesystem_class(self.scheme)
        except ImportError:
            raise MissingLibraryError(
                f"the library for {self.scheme}:// is not installed",
                where=redact(self.address),
                hint=f"Run `pip install {packages}`.",
            ) from None

    def _file_system(self) -> Any:
        """Return the file system of this thread.

        Threads do not share a file system, because some file systems are not thread-safe.
        """
        if getattr(self._local, "pid", 0) != os.getpid():
            file_system_class = self.file_system_class()
            options = dict(file_system_class._get_kwargs_from_urls(self.address))
            if self.scheme == "s3" and (self.guard.anonymous or is_unsigned(os.environ)):
                options["anon"] = True
            if self.scheme in ("ftp", "sftp"):
                options.setdefault("timeout", self.guard.limits.timeout_s)
            options |= {"use_listings_cache": False, "skip_instance_cache": True}
            self._local.file_system, self._local.pid = file_system_class(**options), os.getpid()
        return self._local.file_system

    def close(self) -> None:
        self._pins.clear()
        self._local = threading.local()

    # -- addresses

    @property
    def home(self) -> str:
        """The prefix of all addresses in this store: scheme, and bucket, host or repository."""
        scheme, _, rest = redact(self.address).partition("://")
        return f"{scheme}://{'/'.join(rest.lstrip('/').split('/')[: 3 if scheme == 'hf' else 1])}/"

    def show(self, path: str) -> str:
        return f"{self.home}{path}" if self.scheme in HOST_SCHEMES else f"{self.scheme}://{path}"

    def join(self, path: str, url: str) -> Location:
        """Resolve an address found in data; see `base.resolve`."""
        if scheme_of(url) == self.scheme and url.startswith(self.home):
            below = self.file_system_class()._strip_protocol(url).strip("/")
            return Location(self, check_name(below, where=self.show(path)))
        return resolve(self, self.home, path, url, self.guard)

    def _full_path(self, path: str) -> str:
        return f"/{path}" if self.file_system_class().root_marker == "/" else path

    # -- errors

    def _call(self, path: str, call: Callable[[Any, str], T]) -> T:
        """Call the file system and convert its errors, whose messages may contain secrets."""
        try:
            return call(self._file_system(), self._full_path(path))
        except FlareError:
            raise
        except FileNotFoundError:
            raise MissingError("not found", where=self.show(path)) from None
        except IsADirectoryError:
            raise FormatError("is a folder; expected a file", where=self.show(path)) from None
        except ImportError:
            raise MissingLibraryError(
                f"the library for {self.scheme}:// is incomplete",
                where=self.show(path),
                hint=f"Run `pip install {LIBRARIES[self.scheme]}`.",
            ) from None
        except Exception as error:
            raise self._converted(error, path) from None

    def _converted(self, error: Exception, path: str) -> FlareError:
        where, name = self.show(path), type(error).__name__
        denied = self._denied_by_s3(error, path) if self.scheme == "s3" else None
        if denied is not None:
            return denied
        if name in _CREDENTIAL_ERRORS:
            return CredentialsError(f"permission denied ({name})", where=where, hint=_ACCESS_HINT)
        if isinstance(error, PermissionError) or name in _DENIED:
            return ReachError(f"permission denied ({name})", where=where, hint=_ACCESS_HINT)
        return ReachError(f"the {self.scheme} client failed: {self._text_of(error)}", where=where)

    def _denied_by_s3(self, error: Exception, path: str) -> FlareError | None:
        """Return the error if S3 denied access, else None.

        A HEAD response has no error code, so the first byte of the file is requested, and the code
        is read from that response.
        """
        status, code = _response_of(error)
        if status in (400, 401, 403) and not code:
            try:
                self._file_system().cat_file(self._full_path(path), start=0, end=1)
            except Exception as second:
                response = _response_of(second)
                if is_access_error(*response):
                    status, code = response
        if not is_access_error(status, code):
            return None
        return access_denied(status, code, self.show(path), _tried_sources())

    def _text_of(self, error: Exception) -> str:
        """Return the library's error message on one line, without the secrets of the address."""
        text = redact_text(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
        user_info = self.address.partition("://")[2].partition("/")[0].rpartition("@")[0]
        password = unquote(user_info.partition(":")[2])
        return text.replace(password, "…") if password else text

    # -- reading

    def _request_version(self, path: str, pin: ObjectPin | None = None) -> ObjectPin:
        """Request the version of a file.

        raises  FormatError for a folder; IntegrityError if the version differs from the pin
        """
        info = self._call(path, lambda files, name: files.info(name))
        if info.get("type") == "directory" or info.get("size") is None:
            raise FormatError("is a folder; expected a file", where=self.show(path))
        field = next((one for one in (*_TOKEN_FIELDS, *_TIME_FIELDS) if info.get(one)), "")
        is_strong = field not in _TIME_FIELDS or _is_settled(info[field])
        seen = ObjectPin(str(info.get(field, "")), int(info["size"]), is_strong)
        return self._pins.check(path, pin, seen)

    def size(self, path: str) -> int:
        return self.version(path)[1]

    def version(self, path: str) -> tuple[str, int]:
        pin = self._pins.get(path) or self._pins.pin(
            path, run_interruptibly(lambda: self._request_version(path))
        )
        return pin.version, pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if start == stop:
            return b""
        return self._pins.read(path, lambda pin: self._ranges(path, [(start, stop)], pin))[0]

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._ranges(path, pieces, pin))

    def _ranges(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[bytes], ObjectPin]:
        pin = pin or run_interruptibly(lambda: self._request_version(path))
        size = pin.size
        spans = [(start, size if stop is None else stop) for start, stop in ranges]
        last = max(max(span) for span in spans)
        if last > size:
            raise short_read(self.show(path), 0, last, size)

        def read(span: tuple[int, int]) -> bytes:
            start, stop = span
            data = b""
            if start != stop:
                data = bytes(
                    self._call(
                        path, lambda files, name: files.cat_file(name, start=start, end=stop)
                    )
                )
            if len(data) != stop - start:
                raise short_read(self.show(path), start, stop, len(data))
            return data

        data = [*ordered_map(read, spans, workers=self.guard.limits.jobs)]
        run_interruptibly(lambda: self._request_version(path, pin))
        return data, pin

    def list(self, path: str) -> Iterator[Entry]:
        """Yield all files below a folder.

        If the library can list only single folders, at most one folder per level is in memory.
        """
        base = importlib.import_module("fsspec").AbstractFileSystem
        lists_trees = self.file_system_class().find is not base.find
        is_empty = True
        for entry in self._list_tree(path) if lists_trees else self._list_folder(path, 0):
            is_empty = False
            yield entry
        if is_empty:
            raise MissingError("not found", where=self.show(path))

    def _list_tree(self, path: str) -> Iterator[Entry]:
        infos = run_interruptibly(
            lambda: self._call(path, lambda files, name: files.find(name, detail=True))
        )
        top, entries = self._full_path(path).strip("/"), list[Entry]()
        # The dicts of the library are dropped one by one, because a dict uses more memory than the
        # Entry that is created from it.
        while infos:
            name, info = infos.popitem()
            below = str(name).strip("/")[len(top) + 1 if top else 0 :]
            entries.append(Entry(below, int(info.get("size") or 0)))
        entries.sort(key=lambda entry: os.fsencode(entry.name))
        yield from (entry for entry in entries if entry.name)

    def _list_folder(self, path: str, depth: int) -> Iterator[Entry]:
        if depth > MAX_DEPTH:
            raise too_deep(self.show(path))
        try:
            infos = run_interruptibly(
                lambda: self._call(path, lambda files, name: files.ls(name, detail=True))
            )
        except MissingError:
            if not depth:
                raise
            return  # the folder was deleted in the meantime
        names = [str(info["name"]).strip("/") for info in infos if info.get("type") != "directory"]
        if len(infos) == 1 and names == [self._full_path(path).strip("/")]:
            return  # the path is a file
        entries = sorted(map(_folder_entry, infos), key=bytewise)
        del infos
        for name, is_folder, size in entries:
            if is_folder:
                for entry in self._list_folder(self.child(path, name), depth + 1):
                    yield Entry(f"{name}/{entry.name}", entry.size)
            else:
                yield Entry(name, size)

    # -- writing

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        """Write a file.

        The bytes are buffered on the local disk, so that an incomplete file is never uploaded. A
        failed write to the buffer raises a ReachError.
        """
        sums = Sums(hashes)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="flare-upload-"))
                for part in parts:
                    file.write(part)
                    sums.update(part)
                file.flush()
            except OSError as error:
                if isinstance(error, FlareError):  # raised by the iterator `parts`
                    raise
                raise ReachError(
                    f"cannot buffer the upload: {os.strerror(error.errno or 0).lower()}",
                    where=tempfile.gettempdir(),
                    hint="Set TMPDIR to a folder with enough free space for the largest file.",
                ) from None
            run_interruptibly(
                lambda: self._call(
                    path, lambda files, name: self._upload(files, name, file.name, path, replace)
                )
            )
        self._pins.drop(path)
        return Written(sums.size, sums.hex())

    def _upload(self, files: Any, name: str, source: str, path: str, replace: bool) -> None:
        if not replace and files.exists(name):
            raise UsageError("already exists", where=self.show(path))
        if self.scheme not in ("s3", "gcs", "memory"):
            files.makedirs(name.rpartition("/")[0] or "/", exist_ok=True)
        if self.scheme in _ATOMIC:
            files.put_file(source, name)
            return
        part = f"{name}.{os.getpid()}.part"
        try:
            files.put_file(source, part)
            files.mv(part, name)
        except BaseException:
            with contextlib.suppress(Exception):
                files.rm_file(part)
            raise

    def delete(self, path: str) -> None:
        with contextlib.suppress(MissingError):
            run_interruptibly(lambda: self._call(path, lambda files, name: files.rm_file(name)))
        self._pins.drop(path)


def _folder_entry(info: dict[str, Any]) -> tuple[str, bool, int]:
    """Return the name of an entry, whether the entry is a folder, and its size in bytes."""
    name = str(info["name"]).rstrip("/").rpartition("/")[2]
    return name, info.get("type") == "directory", int(info.get("size") or 0)


def _is_settled(when: Any) -> bool:
    """Return whether a modification time is old enough to identify a version.

    Most servers report whole seconds, so a file may change again within the same second.
    """
    try:
        if isinstance(when, str):
            if _FTP_TIME.fullmatch(when):
                when = f"{when[:8]}T{when[8:]}+00:00"
            when = datetime.fromisoformat(when)
        if not isinstance(when, datetime):
            return time.time() - float(when) >= SETTLED_S
        if when.tzinfo is not None:
            return time.time() - when.timestamp() >= SETTLED_S
        # The time zone is unknown, so one day is added to the required age.
        return time.time() - when.replace(tzinfo=UTC).timestamp() >= SETTLED_S + _DAY_S
    except (ValueError, TypeError, OverflowError):
        return False


def _response_of(error: BaseException | None) -> tuple[int, str]:
    """Return the status and error code of the S3 response that caused an error.

    Without a response, the status is 0 and the error code is empty.
    """
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = str(response.get("Error", {}).get("Code", ""))
            return int(status or 0), code if _ERROR_CODE.fullmatch(code) else ""
        error = error.__cause__
    return 0, ""


def _tried_sources() -> str:
    """Return a description of the credentials and the endpoint that were used for S3."""
    try:
        sources = credential_sources("s3")
    except FlareError:  # s3fs supports credential sources that flare does not support
        return "with the credentials that s3fs finds"
    endpoint = redact(str(sources[0].config.get("endpoint", "")))
    names = " and ".join(source.name for source in sources)
    return f"{names} at {endpoint}" if endpoint else names
