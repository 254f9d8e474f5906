"""What a file is, by the end of its name: Parquet, Arrow, CSV, TSV, JSON Lines, a JSON array or
text; and its bytes, unpacked.

>>> form_of("requests.JSONL.gz"), form_of("data.pq"), form_of("requests")
(FileForm(kind='lines', packed='.gz'), FileForm(kind='parquet', packed=''), FileForm(kind='lines', packed=''))
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import shlex
import zlib
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from pipegen.core.distribution import need

PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
_KINDS = {
    "": "lines",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    **dict.fromkeys(PARQUET, "parquet"),
    **dict.fromkeys(ARROW, "arrow"),
}
DELIMITERS = {".csv": ",", ".tsv": "\t"}
WRITTEN = {
    **{suffix: "" for suffix, kind in _KINDS.items() if kind == "lines"},
    **dict.fromkeys(PARQUET, ".parquet"),
    **dict.fromkeys(ARROW, ".arrow"),
    **{suffix: suffix for suffix in DELIMITERS},
}
"""What a written file may end with, and the form that it has; that of JSON Lines is empty."""
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_READ = f"{', '.join(filter(None, _KINDS))}, and text packed with {', '.join(_PACKED)}"
_OFFICE = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", ".z", ".lz4", ".br", ".snappy", ".lzma")
_BEGINNINGS = {
    rb"PAR1": "a Parquet file does: let its name end with .parquet",
    rb"ARROW1": "an Arrow file does: let its name end with .arrow",
    rb"\x1f\x8b": "a gzip file does: let its name end with .gz",
    rb"BZh[1-9]1AY&SY": "a bzip2 file does: let its name end with .bz2",
    rb"\xfd7zXZ\x00": "an xz file does: let its name end with .xz",
    rb"\x28\xb5\x2f\xfd": "a zstd file does: let its name end with .zst",
    rb"PK\x03\x04": "a zip file or a workbook does: unpack it, or save the sheet as CSV",
    rb"\xff\xfe|\xfe\xff": "UTF-16 does: save it as UTF-8",
}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


class TableError(ValueError):
    """A table cannot be read or written; the message says which file, and why."""


class FileForm(NamedTuple):
    """What a file is."""

    kind: str
    """One of `lines` (JSON Lines), `json`, `csv`, `tsv`, `text`, `parquet` and `arrow`."""
    packed: str = ""
    """The suffix of its compression; empty where it has none."""


def form_of(path: str | os.PathLike[str]) -> FileForm:
    """The form of a file; one without a suffix is JSON Lines. Raises `TableError` for another
    suffix, with those that are read.

    >>> form_of("a.xlsx")
    Traceback (most recent call last):
    ...
    pipegen.io.forms.TableError: a.xlsx is a workbook, which is not read: save the sheet as CSV (UTF-8), and give the .csv file
    """
    path = Path(path)
    packed = path.suffix.lower() if path.suffix.lower() in _PACKED else ""
    suffix = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    kind = _KINDS.get(suffix)
    if kind in ("parquet", "arrow") and packed:
        raise TableError(
            f"{path} is a table in a packed file: unpack it first, and give the {suffix} file"
        )
    if kind is not None:
        return FileForm(kind, packed)
    if suffix in _OFFICE:
        raise TableError(
            f"{path} is a workbook, which is not read: save the sheet as CSV (UTF-8), and give the"
            " .csv file"
        )
    if suffix in _ARCHIVES:
        raise TableError(
            f"{path} is an archive, which is not read: unpack it, and give the file that is in it."
            f" {_READ} are read"
        )
    raise TableError(
        f"{path} ends with {suffix}, which is not read: {_READ} are; a file without a suffix is"
        " JSON Lines"
    )


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise `TableError` for an address such as `s3://bucket/a.parquet`, with the command that
    fetches it: files are read from this machine.

    >>> refuse_address("s3://bucket/a.parquet")
    Traceback (most recent call last):
    ...
    pipegen.io.forms.TableError: s3://bucket/a.parquet is an address, and files are read from this machine. Fetch it first: aws s3 cp s3://bucket/a.parquet .
    """
    text = os.fspath(path)
    match = _ADDRESS.match(text)
    if match is not None and not os.path.exists(text):
        scheme = match[1].lower()
        address = re.sub(r"//[^/@]*@", "//", text).partition("?")[0]  # without a password or a key
        if scheme == "file":
            raise TableError(
                f"{address} is an address: give the path alone, such as {text[match.end() :]}"
            )
        raise TableError(
            f"{address} is an address, and files are read from this machine. Fetch it"
            f" first{_command(scheme, address)}"
        )


def _command(scheme: str, address: str) -> str:
    """The command that fetches an address, after a colon."""
    quoted = shlex.quote(address)
    hub = re.match(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/(.+)", address)
    if hub is not None:
        version = f" --revision {shlex.quote(hub[2])}" if hub[2] else ""
        return (
            f": hf download {shlex.quote(hub[1])} {shlex.quote(hub[3])} --repo-type"
            f" dataset{version} --local-dir ."
        )
    fetch = {
        "hf": "hf download USER/NAME --repo-type dataset --local-dir .",
        "s3": f"aws s3 cp {quoted} .",
    }
    fetch |= dict.fromkeys(("gs", "gcs"), f"gcloud storage cp {quoted} .") | dict.fromkeys(
        ("http", "https"), f"curl -LO {quoted}"
    )
    return (
        f": {fetch[scheme]}"
        if scheme in fetch
        else ", with the tool of its storage, and give the file"
    )


def open_bytes(path: str | os.PathLike[str]) -> BinaryIO:
    """The bytes of a file of lines, CSV or text, unpacked while they are read.

    Raises `OSError` as `open` does, and `MissingExtra` for .zst without pyarrow. Raises `TableError`
    where the file begins as another form does, is cut off, or is packed and has no bytes.
    """
    packed = form_of(path).packed
    if packed and os.path.isfile(path) and not os.path.getsize(path):
        raise TableError(
            f"{path} has 0 bytes, and a packed file has more, also of an empty one: pack it again"
        )
    raw: io.RawIOBase = _UnpackedFile(path, packed) if packed else io.FileIO(path)
    stream = io.BufferedReader(raw)
    try:
        head = stream.peek(16)
    except BaseException:
        stream.close()
        raise
    for beginning, words in _BEGINNINGS.items():
        if re.match(beginning, head):
            stream.close()
            raise TableError(f"{path} begins as {words}")
    return cast("BinaryIO", stream)


class _UnpackedFile(io.RawIOBase):
    """A packed file as the bytes that are in it."""

    def __init__(self, path: str | os.PathLike[str], packed: str) -> None:
        self._path = path
        self._inner = _unpacker(path, packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        try:
            count: int = self._inner.readinto(buffer)
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as refusal:
            raise TableError(
                f"{self._path} cannot be unpacked: it is cut off or damaged ({refusal})"
            ) from None
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


def _unpacker(path: str | os.PathLike[str], packed: str) -> Any:
    if packed == ".zst":
        need("pyarrow", "data", "a .zst file")
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(io.FileIO(path), "r"), "zstd")
    return (
        gzip.open(path)
        if packed == ".gz"
        else bz2.open(path)
        if packed == ".bz2"
        else lzma.open(path)
    )
