"""A growing table: columns in memory, a CSV file that is appended to, and a Parquet file at the end.

The CSV file is the journal. Each flush appends whole lines, so a killed run leaves every flushed row and at worst one
torn line, which a reader drops; memory holds only the rows since the last flush. `write` turns the journal into
Parquet, row group by row group. While a journal is open no Parquet file lies beside it, so a Parquet file that exists
is complete and newer than the CSV.
"""

import array
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from fedsim.measure._files import atomic
from fedsim.measure.errors import LedgerError

FLUSH_ROWS = 65_536
_BLOCK_BYTES = 1 << 20


def one_line(text: str) -> str:
    """Return text that fits one line of UTF-8: line breaks become " / ", what cannot be encoded is escaped."""
    if text.isascii() and text.isprintable():
        return text
    return " / ".join(text.encode("utf-8", "backslashreplace").decode().splitlines())


class Journal:
    """Rows of one schema; strings are kept once each.

    Args:
        schema: columns of int64, float64 or string.
        folder: where the files go, or None to stay in memory until `write`.
        name: file name without suffix.
        flush_rows: rows held before they are appended to the file by themselves.
        base: rows to begin with, for a journal in memory.
    """

    def __init__(
        self,
        schema: pa.Schema,
        folder: Path | None,
        name: str,
        flush_rows: int = FLUSH_ROWS,
        base: pa.Table | None = None,
    ) -> None:
        self.schema = schema
        self.name = name
        self._folder = folder
        self._flush_rows = flush_rows
        self._base = schema.empty_table() if base is None else base
        self._clear()
        if folder is not None:
            _recover(schema, folder, name)

    def append(self, row: Sequence[Any]) -> None:
        """Add one row, in the order of the schema."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)
        self._held += 1
        if self._folder is not None and self._held >= self._flush_rows:
            self.flush()

    def extend(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add rows, given as columns of equal length in the order of the schema."""
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)
        self._held += len(columns[0])
        if self._folder is not None and self._held >= self._flush_rows:
            self.flush()

    def flush(self) -> None:
        """Append the rows held to the CSV file; without a folder they stay in memory.

        Raises:
            OSError: the disk refused; the file is cut back and the rows stay held.
        """
        if self._folder is None or not self._held:
            return
        _append(self._folder / f"{self.name}.csv", self._buffered())
        self._clear()

    def table(self) -> pa.Table:
        """Return all rows, those on disk and those held."""
        stored = self._base if self._folder is None else read(self.schema, self._folder, self.name)
        return pa.concat_tables([stored, self._buffered()])

    def write(self, folder: Path | None = None) -> None:
        """Write ``name.csv`` and ``name.parquet``, each atomically.

        Args:
            folder: another place for a copy, or None for the folder the journal was opened in.
        """
        if self._folder is None or (folder is not None and folder.resolve() != self._folder.resolve()):
            if folder is None:
                raise ValueError(f"{self.name} lives in memory and needs a folder to be written to; pass one")
            write(self.table(), folder, self.name)
            return
        self.flush()
        _to_parquet(self.schema, self._folder, self.name)

    def keep(self, column: str, largest: int) -> None:
        """Forget the rows whose `column` exceeds `largest`; a run resumes from there."""
        table = self.table()
        kept = table.filter(pc.less_equal(table[column], largest))
        self._clear()
        if self._folder is None:
            self._base = kept
        else:
            _write_csv(kept, self._folder / f"{self.name}.csv")

    def _buffered(self) -> pa.Table:
        return pa.Table.from_arrays([column.to_arrow() for column in self._columns], schema=self.schema)

    def _clear(self) -> None:
        self._columns = [_column(field.type) for field in self.schema]
        self._appends = [column.append for column in self._columns]
        self._held = 0


def read(schema: pa.Schema, folder: Path, name: str) -> pa.Table:
    """Return what lies in a folder, a torn last line left out; an empty table if nothing does.

    Raises:
        LedgerError: a file is damaged, or is another table.
    """
    parquet, path = folder / f"{name}.parquet", folder / f"{name}.csv"
    found, other = (parquet, path) if parquet.exists() else (path, parquet)
    try:
        if found == parquet:
            return pq.read_table(parquet, memory_map=False).select(schema.names).cast(schema)
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return schema.empty_table()
        return pacsv.read_csv(pa.BufferReader(whole), convert_options=_convert(schema)).select(schema.names)
    except (pa.ArrowException, KeyError, OSError) as error:
        remedy = f"delete it, and {other.name} is read in its place" if other.exists() else "restore it"
        raise LedgerError(f"{found} is damaged or no table of {name} ({error}): {remedy}") from error


def write(table: pa.Table, folder: Path, name: str) -> None:
    """Write a whole table as CSV and Parquet."""
    _write_csv(table, folder / f"{name}.csv")
    with atomic(folder / f"{name}.parquet") as file:
        pq.write_table(table, file, compression="zstd")


class _Numbers:
    def __init__(self, code: str, kind: pa.DataType) -> None:
        self._values = array.array(code)
        self._kind = kind
        self.append, self.extend = self._values.append, self._values.extend

    def to_arrow(self) -> pa.Array:
        return pa.array(memoryview(self._values), type=self._kind)


class _Strings:
    def __init__(self) -> None:
        self._codes = array.array("i")
        self._seen: dict[str, int] = {}

    def append(self, value: str) -> None:
        self._codes.append(self._seen.setdefault(value, len(self._seen)))

    def extend(self, values: Iterable[str]) -> None:
        for value in values:
            self.append(value)

    def to_arrow(self) -> pa.Array:
        words = pa.array(list(self._seen), pa.string())
        return words.take(pa.array(memoryview(self._codes), type=pa.int32()))


def _column(kind: pa.DataType) -> _Numbers | _Strings:
    if pa.types.is_string(kind):
        return _Strings()
    return _Numbers("q" if pa.types.is_integer(kind) else "d", kind)


def _convert(schema: pa.Schema) -> pacsv.ConvertOptions:
    # An empty reason is an empty string and a time that does not exist is NaN; neither is a missing value.
    return pacsv.ConvertOptions(
        column_types=schema, null_values=[], strings_can_be_null=False, include_columns=schema.names
    )


def _csv_bytes(table: pa.Table, header: bool) -> bytes:
    buffer = io.BytesIO()
    pacsv.write_csv(table, buffer, pacsv.WriteOptions(include_header=header))
    return buffer.getvalue()


def _write_csv(table: pa.Table, path: Path) -> None:
    with atomic(path) as file:
        pacsv.write_csv(table, file)


def _append(path: Path, table: pa.Table) -> None:
    size = path.stat().st_size if path.exists() else 0
    data = _csv_bytes(table, header=size == 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            file.write(data)
            file.flush()
        except OSError:
            file.truncate(size)
            raise


def _recover(schema: pa.Schema, folder: Path, name: str) -> None:
    """Bring a folder back to an open journal: the CSV whole, no Parquet."""
    path, parquet = folder / f"{name}.csv", folder / f"{name}.parquet"
    if parquet.exists():
        if not path.exists():
            _write_csv(read(schema, folder, name), path)
        parquet.unlink()
    if not path.exists():
        return
    with path.open("rb+") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def _to_parquet(schema: pa.Schema, folder: Path, name: str) -> None:
    path = folder / f"{name}.csv"
    if not path.exists():
        _write_csv(schema.empty_table(), path)
    options = pacsv.ReadOptions(block_size=_BLOCK_BYTES)
    with atomic(folder / f"{name}.parquet") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        with pacsv.open_csv(path, read_options=options, convert_options=_convert(schema)) as reader:
            for batch in reader:
                writer.write_batch(batch)
