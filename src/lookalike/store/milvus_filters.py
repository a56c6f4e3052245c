"""How lookalike's addresses, columns and filters are said to Milvus. Nothing here talks to a server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from lookalike.core.errors import LookalikeError
from lookalike.store.protocol import Condition, Where

PORT = 19530
TOKEN = "LOOKALIKE_MILVUS_TOKEN"  # a variable of the environment
KEY, VECTOR = "pk", "vector"
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,60}")


@dataclass(frozen=True)
class Address:
    """`milvus://host:19530/database?tls`; the last two can be left out."""

    host: str
    port: int = PORT
    database: str = ""
    tls: bool = False

    @property
    def server(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def uri(self) -> str:
        """As the client wants it."""
        return f"{'https' if self.tls else 'http'}://{self.server}"

    def __str__(self) -> str:
        return f"milvus://{self.server}{f'/{self.database}' * bool(self.database)}{'?tls' * self.tls}"


def address(text: str) -> Address:
    """An address as a user writes it. One with a password is refused, and not repeated: it would be kept and shown."""
    found = urlsplit(text)
    if "@" in found.netloc:
        raise LookalikeError(
            "A password does not belong in an address, which is kept and shown: leave out what stands before the `@` "
            f"and set the environment variable {TOKEN}=USER:PASSWORD."
        )
    try:
        host, port = found.hostname, found.port or PORT
    except ValueError:
        host, port = None, PORT
    database = found.path.strip("/")
    whole = host and (not database or _PLAIN.fullmatch(database)) and found.query in ("", "tls") and not found.fragment
    if found.scheme != "milvus" or not host or not whole:
        shown = f"{found.scheme}://{found.netloc}"  # what follows may be meant as a secret
        raise LookalikeError(f"`{shown}` is not the address of a Milvus server: write milvus://HOST:{PORT}[/DATABASE].")
    return Address(host, port, database, found.query == "tls")


def to_key(column: str) -> str:
    """The name of a column inside Milvus, of nothing but letters, digits and `_`, whatever the column is called."""
    return f"c_{column}" if _PLAIN.fullmatch(column) else f"x_{column.encode('utf-8', 'surrogatepass').hex()}"


def from_key(key: str) -> str:
    kind, name = key[:2], key[2:]
    return name if kind == "c_" else bytes.fromhex(name).decode("utf-8", "surrogatepass")


def expression(where: Where, lists: Mapping[str, int]) -> str:
    """A filter in Milvus's language. `lists` says how long the lists of a column are at most; others hold plain text.

    A beginning is said as a range of text: what `like` takes for a wildcard differs between versions. Every comparison
    asks first whether the field exists, so that `not` is right whatever a version says of missing ones.
    """
    return " and ".join(f"{'not ' * c.negate}({_condition(c, lists)})" for c in where)


def _condition(condition: Condition, lists: Mapping[str, int]) -> str:
    field = f'$meta["{to_key(condition.column)}"]'
    longest = lists.get(condition.column, 0)
    values = [value for value in condition.values if _is_text(value)]
    if condition.prefix:
        fields = [field, *(f"{field}[{place}]" for place in range(longest))]
        parts = [f"(exists {f}) and {_starts(f, start)}" for f in fields for start in values]
    elif values:
        parts = [f"(exists {field}) and {field} in {texts(values)}"]
        parts += [f"(exists {field}) and json_contains_any({field}, {texts(values)})"] * bool(longest)
    else:
        parts = []
    return " or ".join(f"({part})" for part in parts) or f'{KEY} == ""'  # which no row has


def _starts(field: str, start: str) -> str:
    end = after(start)
    return f"{field} >= {text(start)}" + (f" and {field} < {text(end)}" if end else "")


def after(start: str) -> str:
    """The smallest text behind all that begin with `start`, in the order of code points; empty where there is none."""
    start = start.rstrip(chr(0x10FFFF))
    if not start:
        return ""
    following = ord(start[-1]) + 1
    return start[:-1] + chr(0xE000 if following == 0xD800 else following)


def text(value: str) -> str:
    """A text as a literal: JSON's escapes are among those that Milvus reads, and nothing ends the literal early."""
    return json.dumps(value, ensure_ascii=False)


def texts(values: Sequence[str]) -> str:
    return f"[{', '.join(map(text, values))}]"


def _is_text(value: str) -> bool:
    """Halves of surrogate pairs (bytes that are no UTF-8) are in no stored text, and cannot be sent."""
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
