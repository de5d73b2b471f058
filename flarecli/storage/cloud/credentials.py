"""Sources of credentials for object stores: environment, files and roles, with names for messages.

If nothing is configured, a bucket is read without credentials first, because it may be public, and
with the role of the machine if that is denied. Values of credentials never appear in messages.
"""

from __future__ import annotations

import configparser
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from flarecli.errors import FlareError, ReachError
from flarecli.storage.http.url import parse

__all__ = ["Way", "ways"]

_UNSIGNED = {
    "s3": "AWS_SKIP_SIGNATURE",
    "gs": "GOOGLE_SKIP_SIGNATURE",
    "az": "AZURE_SKIP_SIGNATURE",
}
_PROBE_S = 1.0  # timeout; the metadata service is on the local network
_ON = ("1", "true", "yes", "on")
_EXPORT = "Run `aws configure export-credentials --format env` and set what it prints."


@dataclass(frozen=True)
class Way:
    """A credential source: its name in messages and the settings of the client.

    probe  host and port that must accept a connection before the source is used
    """

    words: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    probe: tuple[str, int] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the source exists on this machine."""
        if self.probe is None:
            return True
        try:
            socket.create_connection(self.probe, _PROBE_S).close()
        except OSError:
            return False
        return True


# A service account for emulators, for which the library requests no token.
_EMULATED = '{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}'
_NOBODY = Way("without credentials", {"skip_signature": True})


def ways(scheme: str, env: Mapping[str, str] | None = None, anonymous: bool = False) -> list[Way]:
    """Return the credential sources to try, in order; the next is tried if access is denied.

    scheme     s3, gs or az
    env        environment; by default the one of the process
    anonymous  use no credentials, only the configured endpoint and region
    raises     ReachError for incomplete settings, or settings that name a missing file or profile
    """
    env = os.environ if env is None else env
    if anonymous:
        env = {**env, _UNSIGNED[scheme]: "true"}
    return {"s3": _aws, "gs": _google, "az": _azure}[scheme](env)


def _is_on(env: Mapping[str, str], *names: str) -> bool:
    return any(env.get(name, "").lower() in _ON for name in names)


def _aws(env: Mapping[str, str]) -> list[Way]:
    profile = _profile(env)
    common: dict[str, Any] = {}
    endpoint = (
        env.get("AWS_ENDPOINT_URL_S3")
        or env.get("AWS_ENDPOINT_URL")
        or env.get("AWS_ENDPOINT")
        or profile.get("endpoint_url")
    )
    if endpoint:
        common["endpoint"] = _checked(endpoint)
    common["region"] = (
        env.get("AWS_REGION")
        or env.get("AWS_DEFAULT_REGION")
        or profile.get("region")
        or "us-east-1"
    )
    if _is_on(env, "AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"):
        return [Way(_NOBODY.words, {**common, **_NOBODY.config})]
    key, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if key or secret:
        if not (key and secret):
            there, missing = (
                ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
                if key
                else ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")
            )
            raise ReachError(
                f"{there} is set in the environment, {missing} is not",
                hint=f"Set {missing}, or neither.",
            )
        return [
            Way(
                "with the key in AWS_ACCESS_KEY_ID",
                {**common, **_keys(key, secret, env.get("AWS_SESSION_TOKEN"))},
            )
        ]
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return [Way("with the token in AWS_WEB_IDENTITY_TOKEN_FILE", common)]
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        found = _keys(
            profile["aws_access_key_id"],
            profile["aws_secret_access_key"],
            profile.get("aws_session_token"),
        )
        return [Way(f"with the profile {profile['']!r}", {**common, **found})]
    strange = next(
        (
            name
            for name in ("role_arn", "sso_session", "sso_start_url", "credential_process")
            if name in profile
        ),
        None,
    )
    if strange:
        raise ReachError(
            f"the profile {profile['']!r} uses {strange}, which flare does not support",
            hint=_EXPORT,
        )
    if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or env.get(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI"
    ):
        return [Way("with the container's role", common)]
    found_ways = [Way(_NOBODY.words, {**common, **_NOBODY.config})]
    if not _is_on(env, "AWS_EC2_METADATA_DISABLED"):
        metadata = (
            env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            or env.get("AWS_METADATA_ENDPOINT")
            or "http://169.254.169.254"
        )
        config = {**common, "metadata_endpoint": metadata.rstrip("/")}
        found_ways.append(Way("with the machine's role", config, _host_and_port(metadata)))
    return found_ways


def _checked(endpoint: str) -> str:
    """Return a valid http(s) endpoint; the library may panic on other addresses."""
    try:
        parse(endpoint)
    except FlareError:
        hint = "Set AWS_ENDPOINT_URL to an address such as https://host:port, or unset it."
        raise ReachError("the configured S3 endpoint is not an http address", hint=hint) from None
    return endpoint.rstrip("/")


def _keys(key: str, secret: str, token: str | None) -> dict[str, str]:
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        **({"session_token": token} if token else {}),
    }


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """Read a profile from the AWS config and credentials files; the empty key holds its name."""
    home = env.get("HOME") or os.path.expanduser("~")
    name = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    files = (
        (
            env.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config"),
            name if name == "default" else f"profile {name}",
        ),
        (env.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials"), name),
    )
    found: dict[str, str] = {}
    for path, section in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            with open(path, encoding="utf-8") as file:
                parser.read_file(file)
        except OSError:
            continue
        except (configparser.Error, UnicodeDecodeError):
            raise ReachError("not a valid file of AWS profiles", where=path) from None
        found |= dict(parser[section]) if parser.has_section(section) else {}
    if not found and name != "default":
        raise ReachError(
            f"AWS_PROFILE names {name!r}, which does not exist",
            hint="List the profiles with `aws configure list-profiles`.",
        )
    return {**found, "": name}


def _google(env: Mapping[str, str]) -> list[Way]:
    common: dict[str, Any] = {}
    if env.get("STORAGE_EMULATOR_HOST"):
        base = env["STORAGE_EMULATOR_HOST"].rstrip("/")
        common = {"base_url": base if "://" in base else f"http://{base}"}
    if _is_on(env, "GOOGLE_SKIP_SIGNATURE"):
        return [Way(_NOBODY.words, {**common, **_NOBODY.config})]
    home = env.get("HOME") or os.path.expanduser("~")
    for name in (
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        if env.get(name):
            if not name.endswith("KEY") and not os.path.isfile(env[name]):
                raise ReachError(
                    "no such file",
                    where=env[name],
                    hint=f"Set {name} to the path of a credentials file.",
                )
            return [Way(f"with the account in {name}", common)]
    adc = os.path.join(
        env.get("CLOUDSDK_CONFIG") or os.path.join(home, ".config", "gcloud"),
        "application_default_credentials.json",
    )
    if os.path.isfile(adc):
        return [
            Way(
                "with the application default credentials",
                {**common, "application_credentials": adc},
            )
        ]
    if common:
        # Without a service account, the library would ask the metadata service for a token.
        return [
            Way(
                "without credentials, as emulators are asked",
                {**common, "service_account_key": _EMULATED},
            )
        ]
    found = [_NOBODY]
    if not _is_on(env, "NO_GCE_CHECK"):
        host, _, port = (env.get("GCE_METADATA_HOST") or "169.254.169.254").partition(":")
        found.append(
            Way("with the machine's account", common, (host, int(port) if port.isdecimal() else 80))
        )
    return found


def _azure(env: Mapping[str, str]) -> list[Way]:
    emulated = _is_on(env, "AZURE_STORAGE_USE_EMULATOR")
    if (
        not emulated
        and not env.get("AZURE_STORAGE_ACCOUNT_NAME")
        and not env.get("AZURE_STORAGE_ENDPOINT")
    ):
        raise ReachError(
            "AZURE_STORAGE_ACCOUNT_NAME is not set in the environment",
            hint="Set it to the name of the storage account.",
        )
    if _is_on(env, "AZURE_SKIP_SIGNATURE"):
        return [_NOBODY]
    for name in (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
        "IDENTITY_ENDPOINT",
        "MSI_ENDPOINT",
    ):
        if env.get(name):
            return [Way(f"with what {name} says")]
    if emulated:
        return [Way("with the emulator's own key")]
    if _is_on(env, "AZURE_USE_AZURE_CLI"):
        return [Way("with the account of the Azure command line")]
    return [_NOBODY, Way("with the machine's identity", {}, ("169.254.169.254", 80))]


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80
