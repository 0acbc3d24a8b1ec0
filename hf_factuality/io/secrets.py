"""Secrets: taken out of messages, and found in texts before they are published.

Which tokens there are is known by Kingfisher (its rules are those of Betterleaks and Veles); nothing is asked over the network.
Ours are for what no vendor's form tells: what is assigned to a password, logins, signed addresses, private keys.
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.io.tables import OVERLAP
from hf_factuality.io.unpack import pieces


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
_SCAN, _SECONDS = 1 << 18, 30.0
"""Bytes of a scan, and for how long it may go on; it takes some milliseconds, if its text was not made to take longer."""

_NAMED = (
    r"(?:(?i:(?:api|auth|access|account|admin|app|client|bot|deploy|encryption|fernet|hub|licen[cs]e|login|master|personal|private|refresh"
    r"|root|secret|security|service|session|shared|signing|user|webhook)[_.-]?(?:key|token|secret|pat)|secret|passw(?:or)?d|passphrase)"
    r"|[A-Z0-9]_(?:KEY|TOKEN|PAT|PASS))"
)
"""How names of settings end that hold a key; those in capitals are of the environment."""
_ASSIGNED = r"""["'\]]{0,3}\s{0,3}(?:=>?|:=?|,)\s{0,3}["']?"""
_END = r"""(?:["'\s,;)}\\&<]|$)"""
_OURS = {
    "private key": r"BEGIN (?:[A-Za-z0-9]+ ){0,3}PRIVATE KEY|PuTTY-User-Key-File-[0-9]: [a-z]|LS0tLS1CRUdJTi[A-Za-z0-9+/]{40}"
    r"|AGE-SECRET-KEY-1[0-9A-Z]{50}|\"d\"\s*:\s*\"[A-Za-z0-9_-]{42}",
    "Hugging Face token": r"(?:hf_(?:oauth_)?|api_org_)[A-Za-z0-9]{20,}",
    "key of OpenAI, Anthropic or the like": r"sk-[A-Za-z0-9_-]{32,}",
    "Google key": r"GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{30,}",
    "API key": r"(?:r8|gsk)_[A-Za-z0-9_]{30,}|(?:xai|pplx|nvapi|tvly)-[A-Za-z0-9_-]{30,}|dckr_pat_[A-Za-z0-9_-]{20,}|dapi[0-9a-f]{32}"
    r"|hvs\.[A-Za-z0-9_-]{24,}",
    "AWS access key": r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    "AWS secret key": r"(?:(?i:aws).{0,20}?(?i:key|secret|pw|pass|token)|(?i:secret_?access_?key)).{0,20}?[\s'\":=,(]"
    r"(?P<TOKEN>[0-9a-zA-Z/+]{40})(?:[^0-9A-Za-z_/+=]|$)",
    "Azure key": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "Telegram token": r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}",
    "Discord token": r"[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}",
    "Mailchimp key": r"[0-9a-f]{32}-us[0-9]{1,2}",
    "webhook": r"discord(?:app)?\.com/api/(?:v[0-9]{1,2}/)?webhooks/[0-9]{15,}/[A-Za-z0-9_-]{40,}",
    "signed address": r"[?&](?:sig|(?:X-(?:Goog|Amz)-)?Signature)=(?P<TOKEN>[A-Za-z0-9%+/=_-]{32,})",
    "token of a bearer": r"(?i:bearer)[\s:]{1,3}(?P<TOKEN>[A-Za-z0-9_.~+/=-]{20,})",
    "JSON Web Token": r"eyJ[A-Za-z0-9_-]{10,}\.(?P<TOKEN>eyJ[A-Za-z0-9_-]{17,})",
    "login": r"(?:(?i:authorization).{1,5}(?i:basic)\s+|\"auth\"\s*:\s*\"|_auth\s*=\s*\"?)(?P<TOKEN>[A-Za-z0-9+/]{11,}={0,2})",
    "password in an address": r"""://(?P<USER>[^\s/@:"'<>\\]{0,100}):(?P<TOKEN>[^\s/@"'<>\\,;|(){}\[\]`]{3,100})@[\w\[]""",
    "key or password": rf"{_NAMED}{_ASSIGNED}(?P<TOKEN>[A-Za-z0-9_+/=~.$!@#%^*-]{{20,200}}){_END}",
    "long key": rf"{_NAMED}{_ASSIGNED}(?P<TOKEN>[A-Za-z0-9_+/=~.-]{{200}})",
    "quoted key": rf"{_NAMED}[\"'\]]{{0,3}}\s{{0,3}}(?:=>?|:=?|,)\s{{0,3}}(?P<TOKEN>\"[^\s\"]{{20,200}}\"|'[^\s']{{20,200}}')",
    "key in a header": r"(?i:authorization|\bx-(?:[a-z]{1,20}-){0,2}(?:key|token|secret))[\"']{0,2}\s{0,3}[:=,]\s{0,3}[\"']{0,2}"
    r"(?:(?i:bearer|token|key|api-?key|api-token|oauth)[\s:=]\s{0,3})?(?P<TOKEN>[A-Za-z0-9_.~+/=-]{16,200})",
    "token": r"(?i:\b[a-z0-9_.-]{0,30}(?:token|login\(key))" rf"{_ASSIGNED}(?P<TOKEN>[A-Za-z0-9_-]{{32,200}}){_END}",
    "password": r"(?i:passw(?:or)?d|passwd|passphrase|pwd)[\"'\]]{0,3}\s{0,3}(?:=|:)\s{0,3}(?P<TOKEN>\"[^\s\"]{8,100}\"|'[^\s']{8,100}'"
    r"|[^\s\"'`<>(){}\[\],;$%]{8,100})",
    "key on a command line": r"(?:\blogin|--?(?:token|api[_-]?key|password|secret|pat))[ =]\s{0,3}[\"']?(?P<TOKEN>[A-Za-z0-9_+/=~-]{20,200})",
    "password on a command line": r"\b(?:sshpass|mysql[a-z]{0,10}|mariadb[a-z-]{0,10}|redis-cli|ldap[a-z]{3,10}"
    r"|(?:docker|podman|nerdctl|helm registry|oras|skopeo|az|oc) login)\b(?:[ ][^\s|;&]{1,100}){0,8}?[ ]-(?:p|a|w|-pass(?:word)?)[ =]?"
    r"(?P<TOKEN>\"[^\s\"]{8,100}\"|'[^\s']{8,100}'|[^\s\"'`<>(){};|&$-][^\s\"'`<>(){};|&$]{7,100})",
    "password of a .pgpass": r"(?m)(?:^|[\s\"'])[\w.*-]{1,100}:(?:[0-9]{4,5}|\*):[\w.*-]{1,60}:[\w.*@-]{1,60}:(?P<TOKEN>[^\s:\"'<>(){}]{8,100})(?:$|[\s\"'])",
    "key of Kaggle": r"\"username\"\s*:\s*\"[^\"]{1,80}\"\s*,\s*\"key\"\s*:\s*\"(?P<TOKEN>[0-9a-f]{32})\"",
    "password of a .netrc": r"machine\s+\S{1,100}\s+login\s+\S{1,100}\s+password\s+(?P<TOKEN>[^\s{}\"']{3,100})",
}
_RANDOM = {
    "API key", "token of a bearer", "key or password", "long key", "quoted key", "key in a header", "token", "key on a command line",
    "Telegram token"
}  # fmt: skip
_BOUNDED = {
    "AWS access key",
    "Telegram token",
    "Discord token",
    "Mailchimp key",
    "key of OpenAI, Anthropic or the like",
}
"""Kinds that are known by their length alone: a letter or digit before or behind makes them something else."""
_WIDER = {"private-key", "generic-credential-uri", "jwt", "curl-auth-header"}
"""Rules of Kingfisher that also find examples of documentation; ours are as wide, and look closer."""
_AROUND = re.compile(
    r"(?P<flags>\(\?[is]+\))?(?P<start>\\b)?(?P<core>(?!.*\{0,20\}).*?)(?P<end>\\b|\(\?:[^()]*\|(?:\$|\\z)(?:\|\\b)?\))?",
    re.DOTALL,
)
"""What rules of Kingfisher want around a token: not `sed` with a letter in front, nor a comma behind."""
_APART = re.compile(
    r"[(?:P<\w>i)]*(?:[A-Za-z0-9]*[0-9][A-Za-z0-9]*|[A-Za-z]{4,}|[A-Za-z]+_[a-z]+|[A-Za-z]+-[a-z]+)(?:_|\\?[-:~])"
)
_SHORT = re.compile(r"[(?:P<\w>i)]*[A-Za-z]{2,3}(?:_|-)")
"""How rules begin whose tokens are known wherever they stand, and those that are known if no letter stands before them."""
_NAMES = re.compile(
    r"(?:[A-Z]?[a-z]+[0-9]{0,4}|[A-Z]+[0-9]{0,4}|[0-9]{1,4})(?:[_-](?:[A-Z]?[a-z]+[0-9]{0,4}|[A-Z]+[0-9]{0,4}|[0-9]{1,4})){2,}"
)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_HASH = re.compile(rb"(?:sha[0-9]{1,3}|md5|blake2b)[=:-][A-Za-z0-9+/_=-]{0,120}$")
_COUNTED = re.compile(r"1234567|abcdefg", re.IGNORECASE)
_HASHED = re.compile(r"(?:md5|sha|pbkdf2|bcrypt|argon2|scrypt)\w*\$")
_PLACEHOLDER = re.compile(r"x{4}|0{8}|\*{3}|your|placeholder|redacted|(?-i:EXAMPLE)", re.IGNORECASE)
_NO_PASSWORD = re.compile(r"[$%*.:]|(?:(?:my|the|db|user)[-_]?)?(?:password|passwd|pass|pwd|token)$", re.IGNORECASE)
_PUBLIC = re.compile(rb"(?:PUBLIC|PUBLISHABLE|SITE|CACHE|PRIMARY)_KEY[^A-Za-z0-9]{1,8}$")
_WORDS = re.compile(r"\w{2,6}(?:[-_.]+(?:[A-Z]?[a-z]{0,15}|[0-9]{1,4}))+")
_BODY = re.compile(
    r"""(?: BLOCK)?-{0,5} ?-{0,5}(?>\\[nrt]|<br ?/?>|[\s"'+,;>|\\]|[A-Z][A-Za-z-]+: [^\n\\]*+)*+[A-Za-z0-9+/]{16,}+(?!\.\.)"""
)
_COLOURS = re.compile(rb"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]")
_CODES = re.compile(rb"\\{1,4}(?:u00|x)([2-7][0-9A-Fa-f]|1[bB])|\\{1,4}033")
_CODE_MARKS = b"\\x", b"\\033", *(b"\\u00%d" % digit for digit in range(1, 8))
_LINES = re.compile(rb'\\n"\s{0,3},(\s{1,40})"')
"""Between two lines of a cell of a notebook."""
_PERCENT = re.compile(rb"%([2-7][0-9A-Fa-f])")
_PICKLED = re.compile(rb"^[a-z(]{0,3}V(?=[^\n]{6,}\np\d+$)", re.MULTILINE)
"""What stands before the strings of a pickle of protocol 0."""


@dataclass(frozen=True)
class Secret:
    """What looks like a token, a key or a password: its line, from 1 (`None` where there are no lines), its kind, and where.

    `place` is the member, table or column of the file; `problem` says why a place could not be searched.
    """

    line: int | None
    kind: str
    place: str = ""
    text: str = field(default="", repr=False)
    problem: str = ""


def redact(text: str) -> str:
    """`text` without what looks like an access token or the login of an address: errors of servers repeat these."""
    return _IN_MESSAGES.sub("***", text)


def holds_token(setting: str) -> bool:
    """Whether there is what looks like an access token in a setting: longer than what [`redact`] takes out, as names may begin so too."""
    return _IN_SETTINGS.search(setting) is not None


def find_secrets(data: str | bytes) -> list[Secret]:
    """What looks like a token, a key or a password in a text, in its order.

    Bytes are in UTF-8 or whatever else holds ASCII as it is. `TimeoutError`: the text takes too long.
    """
    text = _plain(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    known, ours, glued = _scanners()
    found: dict[int, tuple[str, str]] = {}
    for start, _, hit in _hits(known, text):
        kind = _kind(hit.rule_id)
        # What is encoded as base64 is known in its plain form alone.
        if hit.visible and _is_known(kind, hit.secret, hit.is_base64_encoded):
            found.setdefault(start, (kind, hit.secret))
    for start, end, hit in _hits(ours, text):
        number = int(hit.rule_id.rpartition(".")[2])
        if hit.rule_id.startswith("ours"):
            kind = list(_OURS)[number]
            if _is_secret(kind, hit.secret, text, start, end, hit.captures):
                found.setdefault(start, (kind, hit.secret))
        elif start not in found:
            kind, neighbours, known_alone = glued[number]
            joined = text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()
            if _stands_alone(text, start, end, neighbours) and (not joined or _is_random(hit.secret)):
                alone = [hit] if known_alone else known.scan(f"\n{hit.secret}\n", timeout=_SECONDS)
                if any(one.visible and _is_known(kind, one.secret, False) for one in alone):
                    found[start] = kind, hit.secret
    # The hashes of a list of files hold whatever letters there are.
    found = {start: one for start, one in found.items() if not _HASH.search(text, max(0, start - 150), start)}
    secrets, line, last = [], 1, 1
    for start in sorted(found):
        line, last = line + text.count(b"\n", last, start), start
        secrets.append(Secret(line, found[start][0], text=found[start][1]))
    return secrets


def _hits(scanner: Any, text: bytes) -> Iterator[tuple[int, int, Any]]:
    """Where each hit begins and ends. The time of a scan grows with the square of its hits, so that scans are short."""
    for first in range(0, len(text), _SCAN):
        # A line of its own, so that no mark at its start is taken for one of an encoding.
        for hit in scanner.scan(b"\n" + text[first : first + _SCAN + OVERLAP], timeout=_SECONDS):
            start, end = (first + hit.location[name] - 1 for name in ("start_offset", "end_offset"))
            if start > first or first == 0:  # else it is the rest of what began before
                yield start, end, hit


def search_file(file: str | Path | bytes) -> list[Secret]:
    """Secrets in a file or its contents, also in another encoding, packed, in a table, or in names of members and columns.

    A place that could not be searched is among them, with its `problem`.
    """
    if isinstance(file, bytes):
        return _search(file)
    state = Path(file).stat()
    return _search_file(Path(file).absolute(), state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=10_000)
def _search_file(path: Path, size: int, _changed: int) -> list[Secret]:
    return _search(path)


def _search(file: Path | bytes) -> list[Secret]:
    found: dict[tuple[str, str], Secret] = {}
    for piece in pieces(file, MAYBE_SECRET_SETTING):
        problem, secrets = piece.problem, []
        if not problem:
            try:
                secrets = find_secrets(piece.text)
            except TimeoutError:
                problem = f"a text that takes more than {_SECONDS:.0f} s"
        if problem:
            found.setdefault((piece.place, problem), Secret(None, "not searched", piece.place, problem=problem))
        for one in secrets:
            line = None if piece.line is None else piece.line + one.line - 1
            # What a member holds is also found where the archive is read as it is.
            found.setdefault((one.kind, one.text), replace(one, line=line, place=piece.place))
    return list(found.values())


def _plain(text: bytes) -> bytes:
    """Without colours and the escapes of JSON and of programs, on the same lines, in a line of its own."""
    if b"\\" in text:
        if any(mark in text for mark in _CODE_MARKS):
            text = _CODES.sub(_character, text)
        text = _LINES.sub(rb"\1", text)
        text = text.replace(rb"\n", b" ").replace(rb"\r", b" ").replace(rb"\t", b" ")
        text = text.translate(None, b"\\")  # of quotes, also of JSON in JSON
    if b"&quot;" in text:
        text = text.replace(b"&quot;", b'"')
    if b"\x1b[" in text or b"^[[" in text:
        text = _COLOURS.sub(b" ", text)
    if re.search(rb"%[2-7][0-9A-Fa-f]", text):
        text = _PERCENT.sub(lambda match: bytes([int(match[1], 16)]), text)
    if b"\np1\n" in text:
        text = _PICKLED.sub(b" ", text)
    return b"\n%s\n" % text


def _character(match: re.Match[bytes]) -> bytes:
    return b"\x1b" if match[1] is None else bytes([int(match[1], 16)])


@cache
def _scanners() -> tuple[Any, Any, list[tuple[str, re.Pattern[bytes], bool]]]:
    """Rules of Kingfisher; ours, and its own without what has to stand around a token; the kinds of these."""
    try:
        from kingfisher_sdk import Rules, Scanner
    except ImportError as error:
        what = f"kingfisher-secret-scanner cannot be imported ({error})"
        raise HubError(
            f"{what}, and nothing is published without a search for secrets; install it with pip (where there is no wheel, "
            "Rust and a C++ compiler are needed), or push from another machine"
        ) from error
    rules = Rules(confidence="low")
    glued, patterns = [], []
    for about in rules.metadata():
        rule = rules.detail(about["id"])
        pair, match = bool(rule["depends_on_rule"]), _AROUND.fullmatch(rule["detection_regex"])
        if not about["visible"] or match is None or not (match["start"] or match["end"] or pair):
            continue
        parts = match.groupdict("")
        # `sk-ant-` begins a token wherever it stands, `ion_` may also be the end of a name, `EXO` the middle of a hash.
        core = parts["core"]
        neighbours = rb"(?!)" if _APART.match(core) else rb"[A-Za-z]" if _SHORT.match(core) else rb"[A-Za-z0-9+/]"
        known_alone = neighbours != rb"[A-Za-z0-9+/]" and pair  # Kingfisher waits for the other half
        glued.append((_kind(about["id"]), re.compile(neighbours), known_alone))
        patterns.append(parts["flags"] + core)
    if len(glued) < 100:
        raise HubError("the rules of kingfisher-secret-scanner are not as expected; install version 1.5 of it")
    own = [
        *((f"ours.{n}", rule) for n, rule in enumerate(_OURS.values())),
        *((f"glued.{n}", rule) for n, rule in enumerate(patterns)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yml"
        path.write_text(
            json.dumps(
                {
                    "rules": [
                        {"id": id, "name": id, "pattern": rule, "min_entropy": 0.0, "confidence": "high"}
                        for id, rule in own
                    ]
                }
            )
        )
        ours = Rules([path], builtins=False, confidence="low")
    return Scanner(rules), Scanner(ours, base64=False), glued


def _kind(rule_id: str) -> str:
    return re.sub(r"\.\d+$", "", re.split(r"[./]", rule_id.replace("veles.secrets", "veles"), maxsplit=1)[1])


def _stands_alone(text: bytes, start: int, end: int, neighbours: re.Pattern[bytes]) -> bool:
    """Whether no neighbour makes a token a part of something else; a letter may be the length of the string behind it."""
    if text[start - 1] == end - start:
        return True
    return not neighbours.match(text, start - 1) and (
        neighbours.pattern == rb"[A-Za-z]" or not neighbours.match(text, end)
    )


def _is_known(kind: str, secret: str, encoded: bool) -> bool:
    """Whether what a rule of Kingfisher found is more than a placeholder or a name."""
    if kind in _WIDER:
        return encoded and kind == "private-key" and re.search(r"[A-Za-z0-9+/]{40}", secret) is not None
    if kind == "huggingface-access-token" and not _is_token_of_hf(secret):
        return False
    user, _, password = secret.partition(":")
    if kind == "curl-auth-user" and (user == password or _NO_PASSWORD.match(password)):
        return False
    return _PLACEHOLDER.search(secret) is None


def _is_token_of_hf(secret: str) -> bool:
    """`hf_DistilBertForSequenceClassification` is none."""
    return secret.islower() or 6 * sum(map(str.isupper, secret)) >= len(secret) - 3


def _is_secret(kind: str, secret: str, text: bytes, start: int, end: int, captures: dict[str, str]) -> bool:
    """Whether what a rule of ours found is more than a placeholder, a name of several words or an example of documentation."""
    if kind == "private key":
        return _is_private_key(secret, text, start, end)
    if kind == "password in an address":
        return (
            secret != captures.get("USER")
            and _NO_PASSWORD.match(secret) is None
            and _PLACEHOLDER.search(secret) is None
        )
    if kind == "JSON Web Token":
        header = re.search(rb"eyJ[A-Za-z0-9_-]{10,}\.$", text[max(0, start - 4096) : start])
        return header is not None and b'"alg"' in _base64(header[0][:-1].decode())
    if kind == "login":
        return re.fullmatch(rb"[\x21-\x7e]+:[\x21-\x7e]+", _base64(secret)) is not None
    before, behind = text[start - 1 : start].isalnum(), text[end : end + 1].isalnum()
    if kind in _BOUNDED and (before or behind) or _PLACEHOLDER.search(secret):
        return False
    if kind == "token" and _UUID.fullmatch(secret):  # names a request
        return False
    if kind == "Hugging Face token":
        return _is_token_of_hf(secret) and (not before or _is_random(secret))
    if kind in ("password", "password of a .pgpass"):
        return _is_password(secret)
    if kind == "password on a command line":
        return _is_password(secret) or len(secret) >= 12 and _is_random(secret)
    if kind in ("key or password", "quoted key"):
        secret = secret.strip("\"'")
        if (
            secret[0] in "$%&"
            or _COUNTED.search(secret)
            or _HASHED.match(secret)
            or _PUBLIC.search(text, max(0, start - 40), start)
        ):
            return False
    if kind == "AWS secret key":
        return secret.lower() != secret != secret.upper()
    if kind == "key of OpenAI, Anthropic or the like" and _WORDS.fullmatch(secret):
        return False
    return kind not in _RANDOM or _is_random(secret)


def _is_private_key(found: str, text: bytes, start: int, end: int) -> bool:
    """Whether a key follows: programs and their documentation name the first line alone."""
    if found.startswith("LS0t"):
        return b"PRIVATE KEY" in _base64(found)
    if found.startswith('"d"'):  # of a JSON Web Key
        return b'"kty"' in text[max(0, start - 8192) : end + 8192]
    return not found.startswith("BEGIN") or _BODY.match(text[end : end + 4096].decode("latin-1")) is not None


def _is_password(value: str) -> bool:
    """Whether it is of three kinds of characters, as no word of a text or a program is."""
    quoted, value = value[:1] in "\"'", value.strip("\"'")
    kinds = [any(map(kind, value)) for kind in (str.islower, str.isupper, str.isdigit, "!@#^&*+?~".__contains__)]
    plain = (
        _NO_PASSWORD.match(value) is not None
        or value[:1] in ("/", ")", ",")
        or ":" in value
        or "." in value
        and not quoted
    )
    return sum(kinds) >= 3 and not plain and _PLACEHOLDER.search(value) is None


def _is_random(text: str) -> bool:
    """Whether a text is no sequence of words: its case, or letters and digits, change as they do not in these."""
    plain = re.sub(r"[^A-Za-z0-9]", "", text)
    longest = max(re.split(r"[^A-Za-z0-9]+", text), key=len)
    mixed = sum(map(str.isdigit, longest)) >= 2 and any(map(str.isalpha, longest))
    if _NAMES.fullmatch(text) and not _UUID.fullmatch(text):
        return False
    digits, changes = sum(map(str.isdigit, text)), sum(a.islower() != b.islower() for a, b in pairwise(plain))
    return len(longest) >= 16 and mixed or 4 <= digits < len(plain) or 5 * changes >= 2 * len(plain)


def _base64(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(
            text[: len(text) // 4 * 4] if len(text) % 4 == 1 else text + "=" * (-len(text) % 4)
        )
    except ValueError:
        return b""
