"""Advice for columns that a file does not have, and for values that do not fit their column."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from sparsefleet.data.field import Field

__all__ = ["FILL_ADVICE", "missing_column_advice", "value_advice"]

FILL_ADVICE = "; set missing=... to replace missing values"
_SEPARATORS = ",;\t|"
_MISSING_TEXTS = ("na", "n/a", "nan", "null", "none", "?", "-", "\\n")
_TRUTHS = ("yes", "no", "true", "false", "y", "n", "t", "f")
_BAD_VALUE = re.compile(
    r"in column '(?P<column>.*)' \(\d+ of \d+\) (?P<wanted>a whole number|a decimal number)"
    r".*, found (?P<found>nothing|'.*')$"
)


def missing_column_advice(column: str, names: Sequence[str | None], separator: str = "") -> str:
    """Return what to do about a column that is not among the names of a file, or "".

    separator: the separator of the format, for text with a line of names.

    >>> missing_column_advice("age", ["Age", "City"])
    "; did you mean 'Age'? Name it with columns='Age'"
    """
    known = [name for name in names if name is not None]
    if separator and len(known) == len(names) == 1:
        for other in _SEPARATORS:
            if other != separator and other in known[0]:
                return f"; if its columns are separated by {other!r}, pass separator={other!r}"
    lower = {name.strip().lower(): name.strip() for name in known}
    near = difflib.get_close_matches(column.lower(), lower, n=1, cutoff=0.75)
    if near:
        return f"; did you mean {lower[near[0]]!r}? Name it with columns={lower[near[0]]!r}"
    if separator and any(_is_number(name) for name in known):
        return "; if the file has no line with column names, list them in header=[...]"
    return ""


def value_advice(what: str, fields: Iterable[Field]) -> str:
    """Return what to do about a bad value in CSV, or "".

    what: the parser's description of the problem.

    >>> from sparsefleet.data import Field
    >>> what = "expected in column 'city' (1 of 3) a whole number, found 'Ulm'"
    >>> value_advice(what, [Field("city", "uint64", ())])
    '; set hash_seed=... to turn strings into ids'
    """
    bad = _BAD_VALUE.search(what)
    if bad is None:
        return ""
    column, text = bad["column"], bad["found"].removeprefix("'").removesuffix("'")
    field = next((one for one in fields if column in (one.name, *one.source)), None)
    if field is None:
        return ""
    if bad["found"] == "nothing":
        return "" if field.missing is not None else FILL_ADVICE
    if text.lower() in _MISSING_TEXTS:
        value = "" if field.missing is not None else " and set missing=..."
        return f"; if {text!r} means that there is no value, list it in missing_texts=[...]{value}"
    if bad["wanted"] == "a decimal number":
        is_truth = text.lower() in _TRUTHS
        return "; if this is the label, set Label(positive='yes')" if is_truth else ""
    if field.shape is None and not field.separator:
        for separator in "|; ,":
            if separator in text:
                return f"; set separator={separator!r} to read several ids"
    return "" if _is_number(text) else "; set hash_seed=... to turn strings into ids"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
