"""An answer as words and numbers that are compared as people compare them; SQuAD's normalisation makes 1.2 and 12 equal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple


class Number(NamedTuple):
    """A number: how it is written (digits and a full stop alone), its value, and its currency or unit.

    `marks` are the readings of what stands beside it ("pounds" are money or weight); none where nothing does. `literal` is
    set after a name: Python 3.10 is not Python 3.1.
    """

    written: str
    value: Decimal
    marks: frozenset[str]
    literal: bool


Word = str | Number

# What is not written for the eye, and signs of one meaning.
_HIDDEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufe0e\ufe0f\ufeff"))
_LETTERS = r"[^\W\d_]"
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—―−﹣－", "-"),
        **dict.fromkeys("‘’‚‛′`´ʼ", "'"),
        **dict.fromkeys("“”„‟«»″「」『』《》〈〉‹›", '"'),
        **dict.fromkeys("·•・‧", " "),
        "⁄": "/", "٪": "%", "٫": ".", "٬": ",", "。": ".", "、": ",", "×": "*", "÷": "/",
    }
)  # fmt: skip
_RAISED = re.compile("[⁰¹²³⁴-⁹⁻]+")
_LOWERED = re.compile(r"(?<=[A-Za-z\])])[₀-₉]+")
_FRACTION = re.compile("([0-9]?)([¼-¾⅐-⅞])")
_POINT = re.compile(r"([(\[])(-?\d+(?:\.\d+)?(?:,-?\d+(?:\.\d+)?)+)([)\]])")
# Closed or half-open: neither is the other, nor the point or the open interval of the same numbers.
_INTERVAL = re.compile(r"\[[^()\[\],]*\d[^()\[\],]*,[^()\[\],]*\]|\[[^()\[\]]*,[^()\[\]]*\)|\([^()\[\]]*,[^()\[\]]*\]")
_GROUP_SPACE = re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))")
# Scripts without spaces between words: each character is a word.
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff])"
)
_INITIALS = re.compile(rf"(?<![\w.])(?:{_LETTERS}\. ?)+{_LETTERS}\.?(?!\w)|(?<![\w.])Ph\. ?D\.?(?!\w)", re.IGNORECASE)
_PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">", '"': '"', "'": "'", "*": "*", "_": "_", "$": "$"}
_NUMBER = r"(?:\d+(?:[.,]\d+)*|\.\d+)"
_QUANTITY = re.compile(
    rf"(?P<before>[^\W\d_]{{1,3}}\$|[$€£¥₹₽₩₺])?(?P<sign>[-+]?)(?P<before2>[$€£¥₹₽₩₺])?(?P<number>{_NUMBER})(?P<after>(?:[°%‰‱¢$€£¥₹₽₩₺]|{_LETTERS}).*)?"
)

_MARKS = {
    "usd": "$ dollar dollars us$ usd 美元 美金 dólares dólar",
    "aud": "$ dollar dollars a$ au$ aud",
    "cad": "$ dollar dollars c$ ca$ cad",
    "eur": "€ euro euros eur 欧元 евро",
    "gbp": "£ pound pounds gbp 英镑",
    "jpy": "¥ yen jpy 日元 円",
    "cny": "¥ yuan cny rmb 元 人民币 人民币元",
    "inr": "₹ rupee rupees inr",
    "rub": "₽ ruble rubles rouble roubles rub рублей рубля рубль",
    "krw": "₩ won krw",
    "try": "₺ lira try",
    "cent": "¢ cent cents",
    "percent": "% percent per_cent pct prozent por_ciento pour_cent per_cento процентов процента процент",
    "permille": "‰ per_mille",
    "km": "km kilometre kilometres kilometer kilometers kilomètre kilomètres kilómetro kilómetros 公里 千米 км километров",
    "m": "m metre metres meter meters mètre mètres metro metros 米 м метров",
    "cm": "cm centimetre centimetres centimeter centimeters 厘米",
    "mm": "mm millimetre millimetres millimeter millimeters 毫米",
    "mi": "mi mile miles",
    "ft": "ft foot feet",
    "inch": "inch inches",
    "yd": "yd yard yards",
    "km2": "km^2 square_kilometres square_kilometers square_kilometre square_kilometer 平方公里",
    "m2": "m^2 square_metres square_meters square_metre square_meter 平方米",
    "ha": "ha hectare hectares",
    "kg": "kg kilo kilos kilogram kilograms kilogramm kilogramme kilogrammes kilogramos 公斤 千克 кг",
    "g": "g gram grams gramm grammes gramos 克",
    "mg": "mg milligram milligrams 毫克",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "t": "ton tons tonne tonnes 吨",
    "l": "l L litre litres liter liters 升",
    "ml": "ml mL millilitre millilitres milliliter milliliters 毫升",
    "s": "s sec second seconds 秒",
    "ms": "ms millisecond milliseconds",
    "min": "min minute minutes 分钟",
    "h": "h hr hrs hour hours 小时",
    "day": "day days tag tage jour jours día días 天 日",
    "week": "week weeks 周",
    "month": "month months 月",
    "year": "year years yr yrs jahr jahre ans années año años 年 岁 лет",
    "c": "°C ℃ degrees_celsius degree_celsius degrees_c grad_celsius 摄氏度",
    "f": "°F ℉ degrees_fahrenheit degree_fahrenheit degrees_f",
    "degree": "° degree degrees 度",
    "hz": "Hz hertz", "khz": "kHz", "mhz": "MHz", "ghz": "GHz",
    "w": "W watt watts", "kw": "kW", "megawatt": "MW", "v": "V volt volts",
    "kmh": "km/h kph", "mph": "mph", "mps": "m/s",
    "kb": "kB KB", "mb": "MB", "gb": "GB", "tb": "TB",
    "person": "人", "piece": "个",
}  # fmt: skip
_UNITS: dict[str, frozenset[str]] = {}
for _mark, _names in _MARKS.items():
    for _name in _names.split():
        _UNITS[_name] = _UNITS.get(_name, frozenset()) | {_mark}
_CURRENCIES = frozenset("usd aud cad eur gbp jpy cny inr rub krw try".split())
_FACTORIAL = re.compile(r"(?<!\S)[a-z]?\d{1,2}!\Z")
_DIGITS = 400  # of a number; what is longer is a word
_DEEPEST = 12  # quotes and brackets around an answer
_LONGEST = 5  # words, or characters of unspaced scripts, of a unit
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "万": 10**4, "亿": 10**8,
           "millions": 10**6, "millionen": 10**6, "millones": 10**6, "миллионов": 10**6}  # fmt: skip
_TRUE = {("true",): ("yes",), ("false",): ("no",)}
_MONTHS = {
    name: number
    for number, names in enumerate(
        "january jan|february feb|march mar|april apr|may|june jun|july jul|august aug|september sep sept|october oct|"
        "november nov|december dec".split("|"), start=1
    )
    for name in names.split()
}  # fmt: skip
_MONTH = "|".join(_MONTHS)
_ORDINAL = r"(\d{1,2})(?:st|nd|rd|th)?"
_DATES = (
    (re.compile(rf"(?<![\w.]){_ORDINAL}(?: of)? ({_MONTH})\.?,? (\d{{4}})(?!\w)", re.IGNORECASE), (3, 2, 1)),
    (re.compile(rf"(?<![\w.])({_MONTH})\.? {_ORDINAL},? (\d{{4}})(?!\w)", re.IGNORECASE), (3, 1, 2)),
    (re.compile(r"(?<!\d)(\d{4}) ?年 ?(\d{1,2}) ?月 ?(\d{1,2}) ?[日号]()"), (1, 2, 3)),
)
# Articles of other languages begin names ("Los Angeles", "La Paz"), and are left out in lower case alone.
_ARTICLE = re.compile(
    rf"(?:(?i:an|the)(?= \S)|[Aa](?= {_LETTERS}{{2}}))(?! ?(?i:an?|the)\Z) "
    rf"|(?:der|die|das|ein|eine|le|la|les|un|une|el|los|las|una|il|gli)(?= {_LETTERS}{{2}}) |l'(?={_LETTERS}{{2}})"
)


@lru_cache(maxsize=1024)
def answer_words(text: str, whole: bool = True) -> tuple[Word, ...]:
    """The words and numbers of an answer; empty if it is nothing but signs.

    With `whole` the text is one answer, whose article in front, dates, and true and false are read as such; without it, a
    text that may hold one.
    """
    text = _unwrapped(_folded(text))
    if whole:
        text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
        for pattern, order in _DATES:
            text = pattern.sub(lambda m, order=order: _iso(*(m[group] for group in order)), text)
    else:
        text = re.sub(r"(?<=\w)'[sS](?!\w)", " 's", text)
    words = _words(text)
    return _TRUE.get(words, words) if whole else words


def same_words(one: Sequence[Word], two: Sequence[Word]) -> bool:
    """Whether words are the same in order. Numbers are by their value, and by currencies and units where both state one."""
    return len(one) == len(two) and all(map(_same, one, two))


def _same(one: Word, two: Word) -> bool:
    if isinstance(one, str) or isinstance(two, str):
        return one == two
    if one.marks and two.marks and not one.marks & two.marks:
        return False
    return one.written == two.written if one.literal or two.literal else one.value == two.value


def _in_brackets(match: re.Match[str]) -> str:
    """Numbers in brackets are a list: the point (1,5) is not the number 1,5, while (1,000) is one."""
    inner = match[2]
    listed = not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", inner)
    return f"{match[1]}{inner.replace(',', ', ') if listed else inner}{match[3]}"


def _folded(text: str) -> str:
    """Unicode's forms made one, without changing what is said: raised digits stay raised, and a fraction apart from its number."""
    text = _GROUP_SPACE.sub("", text)
    text = _FRACTION.sub(lambda m: f"{m[1]} {unicodedata.normalize('NFKC', m[2])}".strip(), text)
    text = _RAISED.sub(lambda m: "^" + unicodedata.normalize("NFKC", m[0]), text)
    text = _LOWERED.sub(lambda m: unicodedata.normalize("NFKC", m[0]), text)
    text = text.replace("℃", "°C").replace("℉", "°F")
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_HIDDEN).translate(_SIGNS)
    text = "".join(str(unicodedata.decimal(c)) if not c.isascii() and c.isdecimal() else c for c in text)
    text = re.sub(r"(?<=\d)'(?=\d{3}(?!\d))", "", text)
    text = _POINT.sub(_in_brackets, text)
    return " ".join(text.split())


def _unwrapped(text: str) -> str:
    """Without the quotes, brackets and marks of emphasis around an answer, and the stop at its end."""
    for _ in range(_DEEPEST):
        before, text = text, text.strip().lstrip(",;:?|¿¡").strip().rstrip(".,;:?| ")
        if not _FACTORIAL.search(text):
            text = text.rstrip("!").rstrip()
        if _INTERVAL.fullmatch(text):
            break
        if len(text) > 1 and _PAIRS.get(text[0]) == text[-1] and text[1:-1].strip() and _closes(text):
            text = text[1:-1]
        # "A)" and "(A", and quotes that are not closed.
        if len(text) > 1 and text[-1] in ")]" and not set(text[:-1]) & set("(["):
            text = text[:-1]
        if len(text) > 1 and text[0] in "([" and not set(text[1:]) & set(")]"):
            text = text[1:]
        text = text.strip('"') or text
        if text == before:
            break
    return text


def _closes(text: str) -> bool:
    """Whether the first character is closed by the last one, and not before: not so of "(1) and (2)"."""
    first, last = text[0], text[-1]
    if first == last:
        return first not in text[1:-1] or text[:2] == first * 2 == text[-2:]
    depth = 0
    for place, character in enumerate(text):
        depth += (character == first) - (character == last)
        if not depth:
            return place == len(text) - 1
    return False


def _iso(year: str, month: str, day: str) -> str:
    number = _MONTHS.get(month.lower()) or int(month)
    return f"{year}-{number:02}-{int(day):02}"


def _words(text: str) -> tuple[Word, ...]:
    interval = _INTERVAL.fullmatch(text)
    text = _INITIALS.sub(lambda m: m[0].replace(".", "").replace(" ", "") + " ", text)
    text = re.sub(r"(?<=\d) ?([-+*/^:]) ?(?=\d)", lambda m: m[0].strip() if " " not in m[0].strip() else m[0], text)
    text = re.sub(r"(?<![\w)-])- (?=[\d.])", "-", text) if re.match(r"- [\d.]", text) else text
    text = re.sub(r"(?<![\d,.])(\d{1,3}(?: \d{3}){1,6})(?![\d,]|\.\d)", lambda m: m[1].replace(" ", ""), text)
    text = text.replace(" / ", "/")
    text = re.sub(r"([<>=≤≥≈~±]+)", r" \1 ", text)
    text = re.sub(rf"(?<={_LETTERS})[-_](?=\w)|(?<=\d)[-_](?={_LETTERS})|(?<!\d)_(?=\w)|(?<=\w)_(?!\d)", " ", text)
    text = _UNSPACED.sub(r" \1 ", text)
    text = re.sub(r"(?<!\d),|,(?!\d)|;|(?<!\d):|:(?!\d)|[()\[\]{}\"|\\]|\.\.+|…", " ", text)
    parts = [part for raw in text.split() if (part := _part(raw))]
    found: list[Word] = []
    place = 0
    while place < len(parts):
        word, place = _next(parts, place, found)
        found.append(word)
    if interval:
        found = [interval[0][0], *found, interval[0][-1]]
    return tuple(found)


def _part(raw: str) -> str:
    """One word of the text without the stops and quotes at its ends; empty if nothing of it counts."""
    word = re.sub(r"^['*?!¿¡]+(?=[\w$€£¥.+-])", "", raw)
    for _ in range(3):  # "right.**"
        word = word.rstrip(".,:?'")
        word = word if _FACTORIAL.search(word) else word.rstrip("!")
        word = word.rstrip("*") or word
    if word in ("-", "--", "*", "'", "?", "!", "#"):
        return ""
    return word


def _next(parts: Sequence[str], place: int, found: Sequence[Word]) -> tuple[Word, int]:
    """The word or number at `place`, and the place after it with its currency and units."""
    raw = parts[place]
    currency = _UNITS.get(raw.lower(), frozenset())
    if currency and currency <= _CURRENCIES and place + 1 < len(parts) and _number(parts[place + 1][:_DIGITS], ()):
        number, after = _next(parts, place + 1, ())
        if isinstance(number, Number) and not number.marks:
            return number._replace(marks=currency), after
    number = _number(raw, found) if len(raw) <= _DIGITS else None
    if number is None:
        word = raw.casefold().replace("'", "") if re.search(r"\w'\w", raw) else raw.casefold()
        return ("and" if word == "&" else unicodedata.normalize("NFC", word)), place + 1
    place += 1
    if place < len(parts) and not number.marks - _CURRENCIES and (scale := _SCALES.get(parts[place].lower())):
        value = number.value * scale
        number, place = number._replace(value=value, written=format(value, "f")), place + 1
    if not number.marks:
        for length in range(min(_LONGEST, len(parts) - place), 0, -1):
            taken = parts[place : place + length]
            joined = ("" if all(map(_UNSPACED.match, taken)) else "_").join(taken)
            marks = _UNITS.get(joined) or (_UNITS.get(joined.lower()) if len(joined) > 2 else None)
            if marks:
                return number._replace(marks=marks), place + length
    return number, place


def _number(raw: str, before: Sequence[Word]) -> Number | None:
    """A number with the currency or unit that is written on it, or `None`."""
    match = _QUANTITY.fullmatch(raw)
    if match is None:
        return None
    written = _plain(match["number"])
    if written is None:
        return None
    marks: frozenset[str] = frozenset()
    if mark := match["before"] or match["before2"]:
        marks = _UNITS.get(mark.lower(), frozenset())
        if not marks:
            return None
    if after := match["after"]:
        beside = _UNITS.get(after) or (_UNITS.get(after.lower()) if len(after) > 2 else None)
        if not beside or marks or after == "s" and written.endswith("0"):
            return None  # the 1990s
        marks = beside
    written = f"-{written}" if match["sign"] == "-" else written
    last = before[-1] if before else None
    named = isinstance(last, str) and last.isalpha() and not _UNSPACED.match(last)
    value = Decimal(written)
    if re.match(r"-?0\d", written):
        return None  # 007 is a name
    return Number(written, value, marks, literal=named and "." in written)


def _plain(number: str) -> str | None:
    """Digits with at most one full stop; `None` of what is no single number, such as 1.2.3 or 12.05.2020."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?|\d{1,2}(,\d{2})+,\d{3}(\.\d+)?", number) and number[0] != "0":
        return number.replace(",", "")
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2,}(,\d+)?|\d{1,3}\.\d{3},\d+", number):
        return number.replace(".", "").replace(",", ".")
    if re.fullmatch(r"\d+,\d+", number):
        return number.replace(",", ".")
    return number if number.count(".") <= 1 and "," not in number else None
