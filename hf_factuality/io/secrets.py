"""Secrets: taken out of messages, and found in files before they are published.

The rules are those of detect-secrets that name a kind of token, and ours for what it does not know. Its rules for entropy and
keywords are left out: they refuse tokenizers. RE2, by way of pyarrow, passes over what holds nothing, in time that does not
depend on the text.
"""

from __future__ import annotations

import base64
import codecs
import importlib
import io
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO


_IN_MESSAGES = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(?:(?-i:hf_)(?!factuality)|sk-|xox[a-z]-|gh[pousr]_|(?-i:github_pat_|glpat-|npm_|pypi-|AIza|A[KS]IA|eyJ))[\w-]{8,}"
    r"|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)",
    re.IGNORECASE,
)
_IN_SETTINGS = re.compile(
    r"(?:hf_(?!factuality)|gh[pousr]_|Bearer |sk-(?!(?<=[-/_](?:ta|ri|de|di|ma)sk-)(?:-?(?:[a-z]{1,12}|v?[0-9]{1,2})(?![A-Za-z0-9_]))+(?!-)))"
    r"[A-Za-z0-9_-]{16,}"
)
"""Anywhere in a text, since encoded addresses run into what they hold; but `multi-task-deberta-v3-large` is a name."""
SECRET_SETTING = re.compile(
    r"api_?key$|secret|passw|authoriz|credential|bearer|(?:access|auth|hf)_?token", re.IGNORECASE
)
"""Names of settings that hold a key or a password."""
MAYBE_SECRET_SETTING = re.compile(r"key$|secret|passw|authoriz|credential|bearer|token$", re.IGNORECASE)
"""Names of settings that may hold one, and are not shown; `hf_tokenizer` and `access_token_budget` are none."""
_BLOCK, _TAIL = 1 << 23, 1 << 13
"""Bytes of a file that are read at once, and how many of them are read again with the next ones."""
_PIECE, _OVERLAP = 1 << 14, 1 << 11
"""Characters that are searched at once, and by how much the next ones overlap: longer than any secret has to be known."""
_ESCAPES = re.compile(rb"\\{1,4}(?:u00([2-7][0-9A-Fa-f])|x([2-7][0-9A-Fa-f])|([/_]))")

# Where the rule says nothing else, a token begins after something that is no part of a word; `MY_hf_...` is one.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))", r"(?:^|[^A-Za-z0-9]|\\[nrtbf])"
_ASSIGNED = r"""["'\]]{0,3}\s{0,3}(?:=>?|:=?|,)\s{0,3}["']?"""
_TOKENS = {
    "Hugging Face token": r"(?:hf_(?:oauth_)?|api_org_)[A-Za-z0-9]{20,}",
    "GitHub Token": r"github_pat_\w{30,}",
    "key of OpenAI, Anthropic or the like": r"sk-[A-Za-z0-9_-]{32,}",
    "Google key": r"AIza[\w-]{35}|GOCSPX-[\w-]{28}|ya29\.[\w-]{30,}",
    "npm token": r"npm_[A-Za-z0-9]{36}",
    "PyPI Token": r"pypi-[\w-]{50,}",
    "Slack Token": r"(?:xox[a-z]|xapp)-[\w-]{20,}",
    "API key": r"(?:r8|gsk)_\w{30,}|(?:xai|pplx|nvapi|tvly)-[\w-]{30,}|dckr_pat_[\w-]{20,}|dapi[0-9a-f]{32}|hvs\.[\w-]{24,}",
}
_ANYWHERE = {
    "private key": r"BEGIN (?:\w+ ){0,3}PRIVATE KEY|PuTTY-User-Key-File-\d: \w|LS0tLS1CRUdJTi[\w+/]{40}|AGE-SECRET-KEY-1\w{50}|\"d\"\s*:\s*\"[\w-]{42}",
    "AWS secret key": r"(?:(?i:aws).{0,20}?(?i:key|secret|pw|pass|token)|(?i:secret_?access_?key)).{0,20}?[\s'\":=,(]"
    r"(?P<secret>[0-9a-zA-Z/+]{40})(?:[^\w/+=]|$)",
    "bearer token": r"(?i:bearer)[\s:]{1,3}(?P<secret>[\w.~+/=-]{20,})",
    "login": r"(?:(?i:authorization).{1,5}(?i:basic)\s+|\"auth\"\s*:\s*\"|_auth\s*=\s*\"?)(?P<secret>[\w+/]{11,}={0,2})",
    "password in an address": r"""://[^\s/@:"'<>\\]{0,100}:(?P<secret>[^\s/@"'<>\\,;|(){}\[\]`]{3,100})@[\w\[]""",
    "key or password": r"(?i:api[_-]?key|secret[_-]?key|access[_-]?(?:key|token)|auth[_-]?token|client[_-]?secret|passw(?:or)?d"
    rf"|login\(key|login\(token){_ASSIGNED}(?P<secret>[\w+/=~-]{{20,200}})(?:[\"'\s,;)}}\\&<]|$)",
    "password of a .netrc": r"machine\s+\S{1,100}\s+login\s+\S{1,100}\s+password\s+(?P<secret>\S{3,100})",
}
_KEPT = (
    *("AWS Access Key", "Azure Storage Account access key", "Discord Bot Token", "GitHub Token", "GitLab Token"),
    *("JSON Web Token", "Mailchimp Access Key", "PyPI Token", "SendGrid API Key", "Slack Token"),
    *("Square OAuth Secret", "Stripe Access Key", "Telegram Bot Token", "Twilio API Key"),
)
"""Kinds whose rules are those of detect-secrets; its others are too wide for tokenizers and prose, or narrower than ours."""
_RANDOM = {"bearer token", "key or password", "Telegram Bot Token", "Twilio API Key"}
_PACKED = (b"PAR1", b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_BOUNDED = {"Telegram Bot Token", "Twilio API Key", "Mailchimp Access Key", "Discord Bot Token"}
"""Kinds that are known by their length alone."""
_PLACEHOLDER = re.compile(r"x{4}|0{8}|\*{3}|your|placeholder|redacted", re.IGNORECASE)
_NO_PASSWORD = re.compile(r"[$%*.:]|(?:(?:my|the|db|user)[-_]?)?(?:password|passwd|pass|pwd|token)$", re.IGNORECASE)
_WORDS = re.compile(r"\w{2,6}(?:[-_.]+(?:[A-Z]?[a-z]{0,15}|[0-9]{1,4}))+")
_BODY = re.compile(
    r"""(?: BLOCK)?-{0,5} ?-{0,5}(?>\\[nrt]|<br ?/?>|[\s"'+,;>|\\]|[A-Z][A-Za-z-]+: [^\n\\]*+)*+[A-Za-z0-9+/]{16,}+(?!\.\.)"""
)


def redact(text: str) -> str:
    """`text` without what looks like an access token or the login of an address: errors of servers repeat these."""
    return _IN_MESSAGES.sub("***", text)


def holds_token(setting: str) -> bool:
    """Whether there is what looks like an access token in a setting: longer than what [`redact`] takes out, as names may begin so too."""
    return _IN_SETTINGS.search(setting) is not None


def find_secret(data: str | bytes) -> tuple[int, str] | None:
    """The first thing in a text that looks like a token, a key or a password: its line, from 1, and its kind.

    Bytes are in UTF-8 or whatever else holds ASCII as it is.
    """
    data = data.encode("utf-8", "replace") if isinstance(data, str) else data
    starts = range(0, len(data), _PIECE)
    pieces = [_unescaped(data[start : start + _PIECE + _OVERLAP]) for start in starts]
    suspects = [True] if len(pieces) == 1 else _suspects(pieces)
    for start, piece, suspect in zip(starts, pieces, suspects, strict=True):
        if suspect:
            text = piece.decode("latin-1")
            found = [
                (match.start(), kind)
                for kinds, rule in _rules()
                for match in rule.finditer(text)
                if _is_secret(kind := kinds[int(match.lastgroup[1:])], match)
            ]
            if found:
                place, kind = min(found)
                return data.count(b"\n", 0, start) + text.count("\n", 0, place) + 1, kind
    return None


def find_in_file(file: str | Path | bytes) -> tuple[int | None, str] | None:
    """As [`find_secret`], in a file or its contents, also in another encoding, packed, or in a table.

    The line is `None` where there are no lines.
    """
    if isinstance(file, bytes):
        return _search(io.BytesIO(file))
    state = Path(file).stat()
    return _find_in_file(Path(file).absolute(), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=10_000)
def _find_in_file(path: Path, size: int, _changed: int) -> tuple[int | None, str] | None:
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            header = int.from_bytes(file.read(8), "little")
            if 8 + header <= size and file.read(1) == b"{":  # tensors hold no text
                found = find_secret(file.read(header))
                return found and (None, found[1])
            file.seek(0)
        return _search(file)


def text_encoding(head: bytes) -> str | None:
    """Encoding of a text in UTF-8, UTF-16 or UTF-32, with its mark or without; `None` of what is no text."""
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8"
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) < len(head) // 4 or min(even, odd) > len(head) // 100:
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


def _unescaped(text: bytes) -> bytes:
    """Without the escapes of JSON and of programs for ASCII, and on the same lines."""
    if not any(escape in text for escape in (b"\\u00", b"\\x", b"\\/", b"\\_")):
        return text
    return _ESCAPES.sub(lambda match: match[3] or bytes([int(match[1] or match[2], 16)]), text)


def _search(stream: Any, depth: int = 0) -> tuple[int | None, str] | None:
    head = stream.read(_BLOCK)
    if head.startswith(_PACKED) and depth < 3 and stream.seekable():
        try:
            stream.seek(0)
            return next(((None, kind) for kind in _inside(head, stream, depth)), None)
        except Exception:  # noqa: BLE001 - damaged, locked, or of another kind: then what stands there as it is
            stream.seek(len(head))
    encoding, line, rest = text_encoding(head[: 1 << 16]), 0, b""
    while head:
        rest += head
        found = find_secret(_text(rest, encoding))
        if found is not None:
            return (None if encoding is None or depth else line + found[0]), found[1]
        line += _text(rest[:-_TAIL], encoding).count(b"\n")
        rest, head = rest[-_TAIL:], stream.read(_BLOCK)
    return None


def _text(data: bytes, encoding: str | None) -> bytes:
    if encoding is None:
        return data.translate(None, b"\0")
    return data if encoding == "utf-8" else data.decode(encoding, "replace").encode("utf-8")


def _inside(head: bytes, stream: BinaryIO, depth: int) -> Iterator[str]:
    """Kinds of secrets in a table, or in what is packed in a file."""
    if head.startswith(b"PAR1"):
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(stream)
        texts = [b"\n".join((*item,)) for item in (table.metadata.metadata or {}).items()]
        yield from (found[1] for text in texts if (found := find_secret(text)) is not None)
        for batch in table.iter_batches():
            for column in batch.columns:
                yield from _in_column(column)
        return
    for member in _members(head, stream):
        found = _search(member, depth + 1)
        if found is not None:
            yield found[1]


def _members(head: bytes, stream: BinaryIO) -> Iterator[Any]:
    if head.startswith(b"PK"):
        import zipfile

        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            weights = any(name.endswith("/data.pkl") for name in names)  # of torch: tensors hold no text
            yield from (archive.open(name) for name in names if not (weights and re.search(r"/data/\d+$", name)))
    elif head.startswith(b"\x28"):
        import pyarrow

        yield pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd")
    else:
        module = {b"\x1f": "gzip", b"B": "bz2", b"\xfd": "lzma"}[head[:1]]
        yield importlib.import_module(module).open(stream)


def _in_column(column: Any) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.compute as compute

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _in_column(column.storage)
    elif pa.types.is_dictionary(kind):
        yield from _in_column(column.dictionary)
    elif pa.types.is_map(kind):
        yield from _in_column(column.keys)
        yield from _in_column(column.items)
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _in_column(part)
    elif pa.types.is_nested(kind):
        yield from _in_column(column.flatten())
    elif not pa.types.is_primitive(kind) and not pa.types.is_null(kind):
        column = column.cast(pa.large_binary())
        hits = compute.match_substring_regex(column, pattern=rf"{_net()}|\\(?:u00[2-7]|x[2-7]|[/_])")
        for value in column.filter(hits):
            found = find_secret(value.as_py())
            if found is not None:
                yield found[1]


@cache
def _rules() -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
    """Kinds, and the rule in which they are the outer groups, in that order."""
    kinds, rules = zip(*_TOKENS.items(), *_kept(), strict=True)
    bounded = ((r"(?![\w-])" if kind in _BOUNDED else "") for kind in kinds)
    tokens = "|".join(f"(?P<k{n}>{rule}{end})" for n, (rule, end) in enumerate(zip(rules, bounded, strict=True)))
    alone = [((kind,), re.compile(f"(?P<k0>{rule})", re.ASCII)) for kind, rule in _ANYWHERE.items()]
    return (kinds, re.compile(f"{_START[0]}(?:{tokens})", re.ASCII)), *alone


@cache
def _net() -> str:
    """All rules in one, for RE2: what it does not catch is no secret."""
    tokens = "|".join([*_TOKENS.values(), *(rule for _, rule in _kept())]).replace(r"(?!\w)", "")
    net = "|".join([f"{_START[1]}(?:{tokens})", *_ANYWHERE.values()]).replace("?P<secret>", "?:")
    return re.sub(r",\d{4,}\}", ",}", net)  # it counts to 1000


@cache
def _kept() -> tuple[tuple[str, str], ...]:
    """The rules of detect-secrets, with the flags written into them."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    detectors = get_mapping_from_secret_type_to_class()
    rules = [(kind, rule) for kind in _KEPT for rule in detectors[kind].denylist]
    return tuple(
        (kind, f"(?i:{rule.pattern})" if rule.flags & re.IGNORECASE else rule.pattern) for kind, rule in rules
    )


def _suspects(pieces: list[bytes]) -> list[bool]:
    import pyarrow as pa
    import pyarrow.compute as compute

    return compute.match_substring_regex(pa.array(pieces, pa.large_binary()), pattern=_net()).to_pylist()


def _is_secret(kind: str, match: re.Match[str]) -> bool:
    """Whether a match is more than a placeholder, a name of several words or an example of documentation."""
    secret = match.groupdict().get("secret") or match[0]
    if kind == "private key":
        return _is_private_key(match)
    if kind == "password in an address":
        user = match[0][3:].partition(":")[0]
        return secret != user and _NO_PASSWORD.match(secret) is None and _PLACEHOLDER.search(secret) is None
    if kind == "JSON Web Token":
        header, _, claims = secret.partition(".")
        return b'"alg"' in _decoded(header) and len(claims) >= 20
    if kind == "login":
        return re.fullmatch(rb"[\x21-\x7e]+:[\x21-\x7e]+", _decoded(secret)) is not None
    if _PLACEHOLDER.search(secret) or kind in _TOKENS and _WORDS.fullmatch(match[0]):
        return False
    if kind == "Hugging Face token":  # hf_DistilBertForSequenceClassification is none
        return secret.islower() or 6 * sum(map(str.isupper, secret)) >= len(secret) - 3
    if kind == "AWS secret key":
        return secret.lower() != secret != secret.upper()
    return kind not in _RANDOM or _is_random(secret)


def _is_private_key(match: re.Match[str]) -> bool:
    """Whether a key follows: programs and their documentation name the first line alone."""
    if match[0].startswith("LS0t"):
        return b"PRIVATE KEY" in _decoded(match[0])
    if match[0].startswith('"d"'):  # of a JSON Web Key
        return '"kty"' in match.string
    return not match[0].startswith("BEGIN") or _BODY.match(match.string, match.end()) is not None


def _is_random(text: str) -> bool:
    """Whether a text is no sequence of words: its case, or letters and digits, change as they do not in these."""
    plain = re.sub(r"[^A-Za-z0-9]", "", text)
    longest = max(re.split(r"[^A-Za-z0-9]+", text), key=len)
    mixed = any(map(str.isdigit, longest)) and any(map(str.isalpha, longest))
    digits, changes = sum(map(str.isdigit, text)), sum(a.islower() != b.islower() for a, b in pairwise(plain))
    return len(longest) >= 16 and mixed or 4 <= digits < len(plain) or 5 * changes >= 2 * len(plain)


def _decoded(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(
            text[: len(text) // 4 * 4] if len(text) % 4 == 1 else text + "=" * (-len(text) % 4)
        )
    except ValueError:
        return b""
