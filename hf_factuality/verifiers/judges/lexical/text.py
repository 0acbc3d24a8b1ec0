"""Text as the lexical judge compares it: terms with their kind, hedges, negations, and talk that states nothing.

Numbers, dates and word forms are brought into one spelling ("1,000" and "1000"; "5 March", "March 5" and "3月5日").
Chinese becomes character bigrams, so that no segmenter is needed.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from string import punctuation
from typing import NamedTuple
from unicodedata import combining, normalize

from hf_factuality.reading.declining import is_refusal
from hf_factuality.reading.talk import is_talk
from hf_factuality.reading.words import FUNCTION_WORDS


# Kinds of token.
FUNCTION, COMMON, WORD, NAME, NUMBER, MONTH = range(6)

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TOKEN = re.compile(rf"[^\W\d_{_HAN}]+(?:['’][^\W\d_{_HAN}]+)*|\d+(?:[.,]\d+)*|[%,;:()，；：、（）]|[{_HAN}]+")
_ASCII_TOKEN = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|\d+(?:[.,]\d+)*|[%,;:()]")  # the same, and twice as fast
_HAS_HAN = re.compile(f"[{_HAN}]")
# One term for all marks that separate names.
COMMA = ","
_PUNCTUATION = frozenset(",;:()，；：、（）")
# The prior: content words that are frequent in any encyclopedic text tell little.
_COMMON_WORDS = frozenset(
    """first know known new best time most world include including included year years base based make made
    many three become became part life early day days begin began four group lead company live lived third
    five member family history call called popular feature featured major long high around single work worked
    great full late use used place take took get end say said next appear appeared hold held good act big
    public large name named former later people well came come go went way since show showed several back
    often final second last old""".split()
)
_SMALL_NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
)
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_SMALL_NUMBERS.split()) if value > 1} | {
    "seventeen": "17", "eighteen": "18", "nineteen": "19", "twenty": "20", "thirty": "30", "forty": "40",
    "fifty": "50", "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90",
}  # fmt: skip
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MONTH_NAMES = "january february march april may june july august september october november december".split()
MONTHS = frozenset(MONTH_NAMES)
MONTH_OF = (
    {month: month for month in MONTH_NAMES} | {month[:3]: month for month in MONTH_NAMES} | {"sept": "september"}
)
_SUFFIXES = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ied", "y"), ("ed", ""), ("ly", ""), ("es", "e"), ("s", ""))
# By their last letters: most words end in none of these.
_SUFFIXES_BY_END = {end: tuple(pair for pair in _SUFFIXES if pair[0][-1] == end) for end in "sgdy"}

_ISO_DATE = re.compile(r"\b(\d{4})-(0?[1-9]|1[0-2])-(\d{1,2})\b")
_DECADE_ENDING = re.compile(r"(?<=\b\d\d\d0)['’]s\b")
_SHORT_NAMES = {
    "US": "United States", "USA": "United States", "United States of America": "United States", "UK": "United Kingdom",
    "UN": "United Nations", "EU": "European Union",
}  # fmt: skip
SHORT_NAME = r"\b(?:U(?:SA?|K|N)\b|U\.(?:S\.(?:A\.)?|[KN]\.)|E(?:U\b|\.U\.))"
_SHORT_NAME = re.compile(rf"{SHORT_NAME}|\bUnited States of America\b")
_HAN_DIGITS = {c: i for i, c in enumerate("〇一二三四五六七八九")} | {"零": 0, "两": 2}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}
# Bounded, and anchored behind a non-digit: thousands of digits in a row would otherwise take quadratic time.
_HAN_NUMBER = re.compile(
    r"(?<![〇零一二三四五六七八九十百千两])(?!一[个人名次位座部])[〇零一二三四五六七八九十百千两]{1,12}(?=[年月日号岁个人名次位届座部万亿米元]|公里|世纪)"
)
_HAN_SCALE = re.compile(r"(?<!\d)(\d{1,15}(?:\.\d{1,15})?)([万亿])")
_HAN_MONTH = re.compile(r"(?<!\d)(1[0-2]|[1-9])月")
_HAN_DATE = re.compile(r"(?<!\d)(\d{1,4})[年日号]")
_HAN_FUNCTION = re.compile("[的了是在和与及也都就于]")
# A text whose spaces were lost ("... ticking.Isaiah Edwin ..."), as in concatenated knowledge.
RUN_ON = re.compile(r"[.!?](?<=[a-z]{3}.)(?=[A-Z][a-z]+ )")

HEDGE = re.compile(
    r"\b(?:perhaps|maybe|possibly|probably|presumably|likely|seems?|might|i (?:think|believe|guess|suppose|assume)|"
    r"not (?:sure|certain)|if i (?:recall|remember)|as far as i (?:know|recall|remember))\b|(?<=[a-z] )may(?= [a-z])|"
    "可能|也许|或许|大概|我想|我认为|我觉得|似乎|好像|恐怕|不确定",
    re.IGNORECASE,
)
NEGATION = re.compile(
    r"\b(?:not(?! only)|never|no|none|nor|neither|without|cannot)\b|n['’]t\b|"
    "没有?|从未|并非|不(?=是|会|能|曾|属|在|为|可)|未(?=能|曾|有|被|获)|无法",
    re.IGNORECASE,
)


class Token(NamedTuple):
    """A normalised term and its kind, one of the numbers `FUNCTION` to `MONTH`."""

    term: str
    kind: int


def _stem(word: str) -> str:
    if len(word) > 4:
        for suffix, new in _SUFFIXES_BY_END.get(word[-1], ()):
            if word.endswith(suffix) and len(word) - len(suffix) >= 3 and not word.endswith(("ss", "us", "is")):
                word = word[: len(word) - len(suffix)] + new
                break
        if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
            word = word[:-1]
        if len(word) > 3 and word[-1] == "e":
            word = word[:-1]
        if len(word) > 3 and word[-1] == "y":
            word = word[:-1] + "i"
    elif len(word) == 4 and word[-1] == "s" and word[-2] not in "su":
        word = word[:-1]
    return word


@lru_cache(maxsize=1 << 16)
def _token(raw: str) -> Token:
    if raw[0].isdecimal():
        return _number(raw)
    if not raw.isascii() and _HAS_HAN.match(raw):
        return Token(raw, WORD)
    if raw in _PUNCTUATION:
        return Token(COMMA, FUNCTION)
    text = raw.replace("’", "'").removesuffix("'s")
    lower = text.lower()
    if raw == "May":  # "may" is a verb
        return Token("may", MONTH)
    if lower in FUNCTION_WORDS or lower.endswith("n't"):
        return Token(lower, FUNCTION)
    if lower in _NUMBER_WORDS:
        return Token(_NUMBER_WORDS[lower], NUMBER)
    if lower in SCALES:
        return Token(lower, WORD)
    capital = text[:1].isupper()
    if capital and lower in MONTH_OF:
        return Token(MONTH_OF[lower], MONTH)
    if "'" in lower and lower.split("'")[0] in FUNCTION_WORDS:
        return Token(lower, FUNCTION)
    plain = without_accents(lower)
    if len(plain) == 1:
        return Token(plain, COMMON if capital else FUNCTION)
    if capital and plain not in _COMMON_WORDS:
        return Token(_stem(plain), NAME)
    return Token(_stem(plain), COMMON if plain in _COMMON_WORDS else WORD)


def _number(raw: str) -> Token:
    text = raw.replace(",", "")
    if len(text) > 100:  # int() refuses thousands of digits
        return Token(text, NUMBER)
    whole, dot, fraction = text.partition(".")
    if dot and "." not in fraction:
        fraction = fraction.rstrip("0")
        return Token(f"{int(whole)}.{fraction}" if fraction else str(int(whole)), NUMBER)
    return Token(str(int(text)) if text.isdecimal() else text, NUMBER)


def _han_value(digits: str) -> str:
    if not any(c in _HAN_UNITS for c in digits):
        return "".join(str(_HAN_DIGITS[c]) for c in digits)
    total, digit = 0, 0
    for c in digits:
        if c in _HAN_UNITS:
            total, digit = total + (digit or 1) * _HAN_UNITS[c], 0
        else:
            digit = _HAN_DIGITS[c]
    return str(total + digit)


def _scaled(number: str, factor: int) -> str:
    try:
        value = float(number)
    except ValueError:  # "1.2.3 million"
        return number
    # Rounded: 3.3 * 10**6 is not exact in binary.
    return _number(f"{round(value * factor, 3):.3f}").term


def in_one_spelling(text: str) -> str:
    """The text with "5 January 2020" for "2020-01-05", "1970s" for "1970's" and "United States" for "US"."""
    if "-" in text:
        text = _ISO_DATE.sub(lambda m: f"{m[3]} {MONTH_NAMES[int(m[2]) - 1].title()} {m[1]}", text)
    if "0's" in text or "0’s" in text:
        text = _DECADE_ENDING.sub("s", text)
    return _SHORT_NAME.sub(lambda m: _SHORT_NAMES[m[0].replace(".", "")], text) if "U" in text else text


_ROMAN = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX])\b"
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10}
ORDINALS = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
    "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
).split()
# Of a ruler with one of these names a single letter is a number, too: "Charles I was executed".
_RULERS = frozenset(
    """Alexander Alfonso Benedict Catherine Charles Christian Christina Clement Constantine Darius David Edward Elizabeth Ferdinand Francis
    Franz Frederick George Gregory Gustav Haakon Harald Henry Isabella Ivan James Joao Johan John Joseph Juan Julius Justinian Leo Leopold
    Louis Ludwig Mary Maximilian Napoleon Nicholas Otto Paul Pedro Peter Philip Pius Ptolemy Ramesses Richard Robert Rudolf Sancho
    Sigismund Theodosius Umberto Urban Victor Wilhelm William Xerxes""".split()
)
# Number words from one to twelve.
_PARTS = "|".join(_SMALL_NUMBERS.split()[1:13])
_WAR = re.compile(
    r"\b(?:(?P<before>First|Second|1st|2nd|first|second) World War\b|World War (?P<after>II?|One|Two|1|2)\b|WW(?P<short>II?|1|2)\b)"
)
_NUMBERED_PART = re.compile(
    rf"\b((?:[Pp]art|[Cc]hapter|[Vv]olume|[Pp]hase|[Tt]ype|[Aa]ct|[Tt]itle|[Aa]rticle|[Ss]ection|[Ss]tage|[Cc]lass|[Gg]rade|[Ll]evel|[Mm]ark|"
    rf"[Cc]ategory|[Tt]ier|[Aa]ppendix|[Aa]nnex) )(?:({_ROMAN})|({_PARTS})\b)"
)
# Nouns before which "I" is as often somebody who speaks: "the part I liked".
_LIKED = frozenset("part chapter volume act title article section level".split())
_NUMBERED_NAME = re.compile(
    rf"\b([A-Z][a-zà-ÿ]+) (?:({_ROMAN})|the (\d{{1,2}})(?:st|nd|rd|th)\b)(?! (?:am|have|will|would|can|could|should|think|know|believe|do)\b)"
)


def _roman(number: str) -> int:
    values = [_ROMAN_VALUES[letter] for letter in number]
    return sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))


def numbered_names_in_words(text: str) -> str:
    """The text with "Henry the Eighth" for "Henry VIII", "Second World War" for "World War II" and "part 2" for "part II"."""
    if "WW" in text or "World War" in text:
        text = _WAR.sub(_war_in_words, text)
    if not _MAY_BE_NUMBERED.search(text):
        return text
    return _NUMBERED_NAME.sub(_name_in_words, _NUMBERED_PART.sub(_part_in_digits, text))


_MAY_BE_NUMBERED = re.compile(rf"[a-zà-ÿ] (?:[IVX]|the \d|(?:{_PARTS})\b)")


def _war_in_words(found: re.Match[str]) -> str:
    which = (found["before"] or found["after"] or found["short"]).lower()
    return f"{'First' if which in ('i', 'one', '1', '1st', 'first') else 'Second'} World War"


def _part_in_digits(found: re.Match[str]) -> str:
    noun, roman, word = found.groups()
    if roman == "I" and noun.strip() in _LIKED:
        return found[0]
    return f"{noun}{_roman(roman) if roman else _SMALL_NUMBERS.split().index(word)}"


def _name_in_words(found: re.Match[str]) -> str:
    name, roman, digits = found.groups()
    number = _roman(roman) if roman else int(digits)
    if roman and len(roman) == 1 and name not in _RULERS or not 0 < number < len(ORDINALS):
        return found[0]
    return f"{name} the {ORDINALS[number].title()}"


_WRITTEN_NUMBER = re.compile(
    r"(?<![\w.,-])(?:(?P<digits>\d{1,15}(?:,\d{3})*(?:\.\d{1,9})?)|"
    rf"(?P<word>{'|'.join(sorted(_NUMBER_WORDS, key=len, reverse=True))})(?:-(?P<ones>{'|'.join(_SMALL_NUMBERS.split()[1:10])}))?)"
    rf"(?: (?P<scale>{'|'.join(SCALES)}))?(?![\w-])"
)


def numbers_in_digits(text: str) -> str:
    """A text in lower case with "<2500000>" for "2.5 million" and for "2,500,000", and "<25>" for "twenty-five".

    The brackets keep "seventy two" from "702", once the spaces are gone.
    """

    def digits(found: re.Match[str]) -> str:
        number = found["digits"].replace(",", "") if found["digits"] else _NUMBER_WORDS[found["word"]]
        if found["ones"]:
            if int(number) < 20:  # "ten-four"
                return found[0]
            number = str(int(number) + _SMALL_NUMBERS.split().index(found["ones"]))
        return f"<{_scaled(number, SCALES[found['scale']]) if found['scale'] else number}>"

    return _WRITTEN_NUMBER.sub(digits, text)


def without_accents(text: str) -> str:
    """The text with "Muller" for "Müller"."""
    if text.isascii():
        return text
    plain = "".join(normalize("NFKD", c) if c.isalpha() else c for c in text)  # "½" stays
    return normalize("NFC", "".join(c for c in plain if not combining(c)))


def tokens(text: str) -> list[Token]:
    """Terms of a text in order; words stemmed, numbers and dates in one spelling, Chinese as character bigrams."""
    text = in_one_spelling(text)
    han = not text.isascii() and _HAS_HAN.search(text) is not None
    if han:
        text = _HAN_NUMBER.sub(lambda m: _han_value(m[0]), text)
        text = _HAN_SCALE.sub(lambda m: _scaled(m[1], 10**4 if m[2] == "万" else 10**8), text)
        text = _HAN_MONTH.sub(lambda m: f" {MONTH_NAMES[int(m[1]) - 1].title()} ", text)
        text = _HAN_FUNCTION.sub(" ", _HAN_DATE.sub(r"\1 ", text))
    found = [*map(_token, (_ASCII_TOKEN if text.isascii() else _TOKEN).findall(text))]
    if han:
        found = [
            part
            for token in found
            for part in (
                [Token(token.term[i : i + 2], WORD) for i in range(max(len(token.term) - 1, 1))]
                if _HAS_HAN.match(token.term)
                else (token,)
            )
        ]
    if any(scale in text for scale in SCALES):
        found = _with_scales(found)
    return found


class _PieceTerms(dict[str, tuple[str, ...]]):
    """Content terms of each piece of a text between white space: a dictionary, as looking up calls no Python code then."""

    SIZE, LONGEST = 1 << 16, 64

    def __missing__(self, piece: str) -> tuple[str, ...]:
        word = piece.strip(punctuation)
        if not (word.isalpha() and piece.isascii()) or word in _SHORT_NAMES:
            found = tuple(term for term, kind in tokens(piece) if kind)
        elif word != piece:  # "(Leeds," has the terms of "Leeds": marks have none
            found = self[word]
        else:
            term, kind = _token(word)
            found = (term,) if kind else ()
        if len(piece) <= self.LONGEST:
            if len(self) >= self.SIZE:
                self.clear()
            self[piece] = found
        return found


_piece_terms = _PieceTerms()
_SCALE_TERMS = frozenset(SCALES)


def content_terms(text: str) -> tuple[str, ...]:
    """Terms of a text that are no function words, in order: those of [`tokens`], without one object per token."""
    # No term goes beyond white space, but for a number with its scale; Chinese has hardly any white space.
    if text.isascii() or _HAS_HAN.search(text) is None:
        terms = tuple(chain.from_iterable(map(_piece_terms.__getitem__, text.split())))
        if _SCALE_TERMS.isdisjoint(terms):
            return terms
    return tuple(term for term, kind in tokens(text) if kind)


def _with_scales(found: list[Token]) -> list[Token]:
    """Joins "3.5" and "million" into one number."""
    joined: list[Token] = []
    for token in found:
        if token.term in SCALES and joined and joined[-1].kind == NUMBER:
            joined[-1] = Token(_scaled(joined[-1].term, SCALES[token.term]), NUMBER)
        else:
            joined.append(token)
    return joined


_SPEECH_WORDS = frozenset(
    """sure okay ok yes answer question think thought step summary conclusion overall note hello hi thank
    thanks welcome course hope help certainly let wait hmm finally therefore thus hence actually well now
    example following done see below above""".split()
)
_SPEECH_TERMS = frozenset(_stem(word) for word in _SPEECH_WORDS)


def states_nothing(claim: str, found: list[Token]) -> bool:
    """Whether a sentence with the tokens `found` holds nothing to check: a question, or talk about the answer."""
    if is_talk(claim) or is_refusal(claim):
        return True
    return all(not kind or term in _SPEECH_TERMS for term, kind in found)
