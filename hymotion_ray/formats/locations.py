"""Where a path or URL points: the local disk, or an object store with the client that reads it.

Knows the URL forms and the environment variables of each store. Knows nothing of what files hold.
The clients are pyarrow's own: S3, Google and Azure come built in, so that no further package is
needed, and one rule for endpoints, time-outs and retries serves prompts, Parquet and outputs alike.

- `s3://bucket/key`: credentials and profile as the AWS SDK finds them; `AWS_ENDPOINT_URL_S3` or
  `AWS_ENDPOINT_URL` for another S3 service (region then from `AWS_REGION`).
- `gs://bucket/key`: Google's default credentials; `STORAGE_EMULATOR_HOST` for an emulator.
- `az://container/blob` with `AZURE_STORAGE_ACCOUNT_NAME`, or `abfs[s]://container@account.../blob`;
  `AZURE_STORAGE_ACCOUNT_KEY` or `AZURE_STORAGE_SAS_TOKEN`, else Azure's default credential;
  `AZURE_STORAGE_ENDPOINT` for an emulator.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from pyarrow import fs

from hymotion_ray.errors import InputError

REQUEST_ATTEMPTS = 6
"""Tries of one request inside the store's client, with its own growing pauses."""
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 60.0
# Two letters at least: `C:\\x` is a path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_ALLOWED = "a local path, file://, s3://, gs://, az:// or abfs[s]://"


@dataclass(frozen=True)
class Location:
    """One place: `path` as `filesystem` wants it, `text` as the user gave it."""

    filesystem: fs.FileSystem
    path: str
    text: str

    @property
    def is_local(self) -> bool:
        """Whether `path` is a path of this machine."""
        return isinstance(self.filesystem, fs.LocalFileSystem)


def locate(text: str | os.PathLike[str]) -> Location:
    """The place that a path or URL names; nothing is opened.

    Keys are taken as they stand, without percent-decoding, as the stores' own tools do; only
    `file://` is decoded. Raises `InputError` for an unknown scheme or a URL without a bucket.
    """
    text = os.fspath(text)
    if "\0" in text:
        raise InputError(f"path {text!r} holds a NUL character; allowed: {_ALLOWED}")
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Location(fs.LocalFileSystem(), os.path.expanduser(text), text)
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return Location(fs.LocalFileSystem(), _file_path(text, rest), text)
    makers: dict[str, Callable[[str], fs.FileSystem]] = {
        "s3": _s3,
        "gs": _gcs,
        "gcs": _gcs,
        "az": _azure,
        "abfs": _azure,
        "abfss": _azure,
    }
    if scheme not in makers:
        raise InputError(f"{text!r} has the scheme {scheme!r}; allowed: {_ALLOWED}")
    bucket, _, key = rest.partition("/")
    if not bucket:
        raise InputError(f"{text!r} names no bucket; allowed: {scheme}://bucket/path")
    container = bucket.partition("@")[0] if makers[scheme] is _azure else bucket
    return Location(makers[scheme](bucket), f"{container}/{key}".rstrip("/"), text)


def _file_path(text: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise InputError(f"{text!r} names the host {host!r}; allowed: file:///absolute/path")
    return urllib.request.url2pathname("/" + path)


def _s3(bucket: str) -> fs.FileSystem:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""
    # One client for all buckets of one endpoint; without an endpoint the region is the bucket's.
    return _s3_client(endpoint, region, "" if endpoint else bucket)


@functools.lru_cache(maxsize=32)
def _s3_client(endpoint: str, region: str, bucket: str) -> fs.FileSystem:
    retry = fs.AwsStandardS3RetryStrategy(max_attempts=REQUEST_ATTEMPTS)
    common = {
        "retry_strategy": retry,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "allow_delayed_open": True,  # a small object is then one PUT, not a multipart upload
    }
    if endpoint:
        scheme, host = _endpoint(endpoint)
        region = region or "us-east-1"
        return fs.S3FileSystem(endpoint_override=host, scheme=scheme, region=region, **common)
    # Without network or bucket the first request fails, and says so with the bucket's name.
    with contextlib.suppress(OSError):
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(region=region or None, **common)


def _gcs(_bucket: str) -> fs.FileSystem:
    return _gcs_client(os.environ.get("STORAGE_EMULATOR_HOST", ""))


@functools.lru_cache(maxsize=8)
def _gcs_client(endpoint: str) -> fs.FileSystem:
    limit = datetime.timedelta(seconds=REQUEST_TIMEOUT_S)
    if endpoint:
        scheme, host = _endpoint(endpoint)
        return fs.GcsFileSystem(
            anonymous=True, endpoint_override=host, scheme=scheme, retry_time_limit=limit
        )
    return fs.GcsFileSystem(retry_time_limit=limit)


def _azure(container: str) -> fs.FileSystem:
    account = container.partition("@")[2].partition(".")[0]
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not account:
        raise InputError(
            f"az://{container}/... names no storage account; set AZURE_STORAGE_ACCOUNT_NAME, "
            "or write abfss://container@account.dfs.core.windows.net/path"
        )
    key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY", "")
    sas = "" if key else os.environ.get("AZURE_STORAGE_SAS_TOKEN", "")
    return _azure_client(account, key, sas, os.environ.get("AZURE_STORAGE_ENDPOINT", ""))


@functools.lru_cache(maxsize=8)
def _azure_client(account: str, key: str, sas: str, endpoint: str) -> fs.FileSystem:
    if not endpoint:
        return fs.AzureFileSystem(account, account_key=key or None, sas_token=sas or None)
    scheme, host = _endpoint(endpoint)
    return fs.AzureFileSystem(
        account,
        account_key=key or None,
        sas_token=sas or None,
        blob_storage_authority=host,
        dfs_storage_authority=host,
        blob_storage_scheme=scheme,
        dfs_storage_scheme=scheme,
    )


def _endpoint(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    return parts.scheme, parts.netloc
