"""Tables: csv and parquet files, data frames, mappings and arrays, as named columns of four kinds.

A column holds numbers, texts, truth values or dates, and says which of its values are missing. A parquet file (or a polars
LazyFrame) is read one column at a time, when the column is asked for; a csv file is read whole, as text, and each column is
then taken for the narrowest kind that all of its values belong to. What was assumed on the way is in `Table.notes`.
Rows are counted from 1 in messages, without the header; lines of a file with it.
"""

from mercer.io.tables.columns import MISSING, Column, Kind, TableError
from mercer.io.tables.frames import collected, import_polars
from mercer.io.tables.reading import read_table
from mercer.io.tables.table import Table, similar

__all__ = ["read_table", "Table", "Column", "Kind", "MISSING", "TableError", "similar", "import_polars", "collected"]
