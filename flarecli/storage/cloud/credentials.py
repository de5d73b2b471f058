"""Credential sources for object stores: environment variables, files and roles.

If no source is configured, a bucket is first read without credentials, because it may be public. If
access is denied, the role of the machine is used. Messages contain the name of a source, and never
the values of credentials.
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

__all__ = ["CredentialSource", "credential_sources"]

_UNSIGNED = {
    "s3": "AWS_SKIP_SIGNATURE",
    "gs": "GOOGLE_SKIP_SIGNATURE",
    "az": "AZURE_SKIP_SIGNATURE",
}
_PROBE_S = 1.0  # a short timeout, because the metadata service is on the local network
_ON = ("1", "true", "yes", "on")


@dataclass(frozen=True)
class CredentialSource:
    """A source of credentials.

    name    name of the source in messages
    config  settings for the client
    probe   host and port that must accept a connection before the source is used, or None
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    probe: tuple[str, int] | None = None

    @property
    def is_open(self) -> bool:
        """True if the source can be used on this machine."""
        if self.probe is None:
            return True
        try:
            socket.create_connection(self.probe, _PROBE_S).close()
        except OSError:
            return False
        return True


# A service account for emulators; with `disable_oauth`, the library does not request a token.
_EMULATED = '{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}'
_ANONYMOUS = CredentialSource("without credentials", {"skip_signature": True})


def credential_sources(
    scheme: str, env: Mapping[str, str] | None = None, anonymous: bool = False
) -> list[CredentialSource]:
    """Return the credential sources, which are tried in order until access is granted.

    scheme     s3, gs or az
    env        environment variables; default: the variables of the process
    anonymous  whether to use the configured endpoint and region without credentials
    raises     ReachError for incomplete settings, or settings that refer to a missing file or
               profile
    """
    env = os.environ if env is None else env
    if anonymous:
        env = {**env, _UNSIGNED[scheme]: "true"}
    return {"s3": _aws, "gs": _google, "az": _azure}[scheme](env)


def _is_on(env: Mapping[str, str], *names: str) -> bool:
    return any(env.get(name, "").lower() in _ON for name in names)


def is_unsigned(env: Mapping[str, str]) -> bool:
    """Return whether the environment disables signatures of S3 requests."""
    return _is_on(env, "AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST")


def _aws(env: Mapping[str, str]) -> list[CredentialSource]:
    profile = _profile(env)
    common: dict[str, Any] = {}
    endpoint = (
        env.get("AWS_ENDPOINT_URL_S3")
        or env.get("AWS_ENDPOINT_URL")
        or env.get("AWS_ENDPOINT")
        or profile.get("endpoint_url")
    )
    if endpoint:
        common["endpoint"] = _checked_endpoint(endpoint)
    common["region"] = (
        env.get("AWS_REGION")
        or env.get("AWS_DEFAULT_REGION")
        or profile.get("region")
        or "us-east-1"
    )
    if is_unsigned(env):
        return [CredentialSource(_ANONYMOUS.name, {**common, **_ANONYMOUS.config})]
    key, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if key or secret:
        if not (key and secret):
            present, missing = (
                ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
                if key
                else ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")
            )
            raise ReachError(
                f"{present} is set in the environment, but {missing} is not set",
                hint=f"Set {missing}, or unset both variables.",
            )
        return [
            CredentialSource(
                "with the key in AWS_ACCESS_KEY_ID",
                {**common, **_keys(key, secret, env.get("AWS_SESSION_TOKEN"))},
            )
        ]
    if env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return [CredentialSource("with the token in AWS_WEB_IDENTITY_TOKEN_FILE", common)]
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        found = _keys(
            profile["aws_access_key_id"],
            profile["aws_secret_access_key"],
            profile.get("aws_session_token"),
        )
        return [CredentialSource(f"with the profile {profile['']!r}", {**common, **found})]
    for name in ("role_arn", "sso_session", "sso_start_url", "credential_process"):
        if name in profile:
            raise ReachError(
                f"the profile {profile['']!r} uses {name}, which flare does not support",
                hint="Set the variables that `aws configure export-credentials --format env` prints.",
            )
    if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or env.get(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI"
    ):
        return [CredentialSource("with the container's role", common)]
    sources = [CredentialSource(_ANONYMOUS.name, {**common, **_ANONYMOUS.config})]
    if not _is_on(env, "AWS_EC2_METADATA_DISABLED"):
        metadata = (
            env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
            or env.get("AWS_METADATA_ENDPOINT")
            or "http://169.254.169.254"
        )
        config = {**common, "metadata_endpoint": metadata.rstrip("/")}
        sources.append(
            CredentialSource("with the machine's role", config, _host_and_port(metadata))
        )
    return sources


def _checked_endpoint(endpoint: str) -> str:
    """Return an endpoint without a trailing slash.

    Raises ReachError if the endpoint is not an http(s) address, because obstore may then panic.
    """
    try:
        parse(endpoint)
    except FlareError:
        hint = "Set AWS_ENDPOINT_URL to an address such as https://host:port, or unset it."
        raise ReachError(
            "the configured S3 endpoint is not an HTTP or HTTPS URL", hint=hint
        ) from None
    return endpoint.rstrip("/")


def _keys(key: str, secret: str, token: str | None) -> dict[str, str]:
    return {
        "access_key_id": key,
        "secret_access_key": secret,
        **({"session_token": token} if token else {}),
    }


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """Read the selected profile from the AWS config and credentials files.

    return  setting -> value; the empty string -> name of the profile
    """
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
            raise ReachError("not a valid AWS profile file", where=path) from None
        found |= dict(parser[section]) if parser.has_section(section) else {}
    if not found and name != "default":
        raise ReachError(
            f"the AWS profile {name!r} does not exist or is empty",
            hint="List the profiles with `aws configure list-profiles`.",
        )
    return {**found, "": name}


def _google(env: Mapping[str, str]) -> list[CredentialSource]:
    common: dict[str, Any] = {}
    if env.get("STORAGE_EMULATOR_HOST"):
        base = env["STORAGE_EMULATOR_HOST"].rstrip("/")
        common = {"base_url": base if "://" in base else f"http://{base}"}
    if _is_on(env, "GOOGLE_SKIP_SIGNATURE"):
        return [CredentialSource(_ANONYMOUS.name, {**common, **_ANONYMOUS.config})]
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
            return [CredentialSource(f"with the account in {name}", common)]
    adc = os.path.join(
        env.get("CLOUDSDK_CONFIG") or os.path.join(home, ".config", "gcloud"),
        "application_default_credentials.json",
    )
    if os.path.isfile(adc):
        return [
            CredentialSource(
                "with the application default credentials",
                {**common, "application_credentials": adc},
            )
        ]
    if common:
        # Without a service account, the library would request a token from the metadata service.
        return [
            CredentialSource(
                "without credentials, for an emulator",
                {**common, "service_account_key": _EMULATED},
            )
        ]
    found = [_ANONYMOUS]
    if not _is_on(env, "NO_GCE_CHECK"):
        host, _, port = (env.get("GCE_METADATA_HOST") or "169.254.169.254").partition(":")
        found.append(
            CredentialSource(
                "with the machine's account", common, (host, int(port) if port.isdecimal() else 80)
            )
        )
    return found


def _azure(env: Mapping[str, str]) -> list[CredentialSource]:
    emulated = _is_on(env, "AZURE_STORAGE_USE_EMULATOR")
    if (
        not emulated
        and not env.get("AZURE_STORAGE_ACCOUNT_NAME")
        and not env.get("AZURE_STORAGE_ENDPOINT")
    ):
        raise ReachError(
            "AZURE_STORAGE_ACCOUNT_NAME is not set in the environment",
            hint="Set AZURE_STORAGE_ACCOUNT_NAME to the name of the storage account.",
        )
    if _is_on(env, "AZURE_SKIP_SIGNATURE"):
        return [_ANONYMOUS]
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
            return [CredentialSource(f"with {name}")]
    if emulated:
        return [CredentialSource("with the emulator's own key")]
    if _is_on(env, "AZURE_USE_AZURE_CLI"):
        return [CredentialSource("with the account of the Azure command line")]
    return [
        _ANONYMOUS,
        CredentialSource("with the machine's identity", {}, ("169.254.169.254", 80)),
    ]


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80
