"""Whether a sentence, or an answer of several, declines: evidence for declining against evidence for an answer.

A sentence is cut into parts. A part declines if it holds a cue of a language in [`~hf_factuality.reading.cues`]; it is beside
that if it excuses, advises, asks or offers; anything else commits to an answer, and so does a guess. What stands in quotation
marks is somebody else's. Of a short answer, what the rules say is one feature of the model in
[`~hf_factuality.reading.learned`], which decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any

from hf_factuality.reading import cues, learned
from hf_factuality.reading.sentences import segmentation_language
from hf_factuality.reading.talk import is_talk
from hf_factuality.reading.words import ascii_words


class Part(IntEnum):
    """What a part of a sentence does."""

    BESIDE = 0
    UNKNOWN = 1
    DECLINES = 2
    COMMITS = 3


def _pattern(name: str) -> Any:
    return cached_property(lambda language: language._compiled(language.words[name]))


@dataclass(eq=False)
class _Language:
    """The words of a language, compiled when they are first needed."""

    words: dict[str, Any]

    opens, about, lacks, guess, asks = map(_pattern, ("opens", "about", "lacks", "guess", "asks"))

    def _compiled(self, pattern: str) -> re.Pattern[str]:
        parts = {"adv": r"(?:\w{1,20},? ){0,3}", **self.words["parts"]}
        for _ in range(2):
            pattern = re.sub(r"\{([a-z]+)\}", lambda name: parts[name[1]], pattern)
        return re.compile(pattern.translate(_ALIKE))

    @property
    def _starts(self) -> str:
        # A cue begins a word, which spares most characters; without spaces any character may.
        return "(?:" if self in (_CHINESE, _JAPANESE, _HINDI) else r"(?<!\w)(?:"

    @cached_property
    def declines(self) -> re.Pattern[str]:
        return self._compiled(self._starts + "|".join(self.words["declines"]) + ")")

    @cached_property
    def unknown(self) -> re.Pattern[str]:
        return self._compiled(self._starts + "|".join(self.words["unknown"]) + ")")

    @cached_property
    def works(self) -> re.Pattern[str]:
        return self._compiled(r"(?<![^\W\d_]){works}")

    @cached_property
    def so(self) -> re.Pattern[str]:
        return self._compiled(rf",? ?(?:{self.words.get('so', 'so')}),?:?")

    @cached_property
    def contrast(self) -> re.Pattern[str]:
        words = self.words["contrast"]
        if self is _CHINESE:
            return re.compile(rf"(?:^|(?<=[，,、 ]))(?:{words})[，,]?|(?:但是|但|不过|然而|可是)[，,]?")
        if self is _JAPANESE:
            return re.compile(rf"(?:^|(?<=[、,]))(?:{words})[、,]?|(?:が|けれども|けれど|けど|ものの)[、,]")
        if self is _HINDI:
            return re.compile(rf"(?:^|, ?)(?:{words})(?![\u0900-\u097f]),?|लेकिन|मगर|परंतु".translate(_ALIKE))
        return re.compile(
            rf"(?:^|, ?)(?:{words}|{self.words['so']})\b[,:]?|\b(?:but|however|although|mais|aber|pero|mas|но)\b,?"
        )


_ENGLISH, _FRENCH, _GERMAN = _Language(cues.ENGLISH), _Language(cues.FRENCH), _Language(cues.GERMAN)
_SPANISH, _ITALIAN, _PORTUGUESE = _Language(cues.SPANISH), _Language(cues.ITALIAN), _Language(cues.PORTUGUESE)
_RUSSIAN, _HINDI = _Language(cues.RUSSIAN), _Language(cues.HINDI)
_CHINESE, _JAPANESE = _Language(cues.CHINESE), _Language(cues.JAPANESE)
_LATIN = (_ENGLISH, _FRENCH, _GERMAN, _SPANISH, _ITALIAN, _PORTUGUESE)
_ALL = (*_LATIN, _RUSSIAN, _HINDI, _CHINESE, _JAPANESE)

_BY_CODE = dict(zip(("en", "fr", "de", "es", "it", "pt", "ru", "hi", "zh", "ja"), _ALL, strict=True))

_TRIGGERS: dict[str, tuple[_Language, ...]] = {}
for _one in (*_LATIN, _RUSSIAN):
    for _word in _one.words["triggers"].split():
        _TRIGGERS[_word] = (*_TRIGGERS.get(_word, ()), _one)
_TRIGGER_WORDS = _TRIGGERS.keys()
_WHOLE = frozenset(phrase for one in _ALL for phrase in one.words["whole"].split("|"))

# No sentence that declines is longer.
_LONGEST = 1500
_WORDS = re.compile(r"[^\W\d_]+(?:'t\b)?")
_DEVANAGARI = re.compile(r"[\u0900-\u097f]")
_KANA, _HAN = re.compile(r"[\u3041-\u30fa]"), re.compile(r"[\u3400-\u9fff]")
# Spellings that differ in nothing that matters here: dots and moons of Devanagari, ё.
_ALIKE = {ord("ё"): "е", 0x93C: None, 0x901: "\u0902", **{0x958 + n: "कखगजडढफय"[n] for n in range(8)}}
_SIMPLIFIED = str.maketrans(
    "無沒確訊資關這個說對過為問題覺請應該會點誰麼幫實時據檔內給從還難斷認識記講復協監聽見夠發實際現據頁體員員護隱關於權聯網絡預測證釋細節處師醫們準",
    "无没确讯资关这个说对过为问题觉请应该会点谁么帮实时据档内给从还难断认识记讲复协监听见够发实际现据页体员员护隐关于权联网络预测证释细节处师医们准",
)
_QUOTED = re.compile(
    r"“[^”]{1,300}”|\"[^\"]{1,300}\"|«[^»]{1,300}»|»[^«]{1,300}«|„[^“”]{1,300}[“”]|「[^」]{1,300}」|『[^』]{1,300}』|《[^》]{1,300}》|"
    r"‘[^’]{1,300}’(?!\w)|(?<!\w)'[^']{3,300}'(?!\w)"
)
_CUTS = re.compile(r"((?<!\d)[.](?!\w)|[!?;:()。！？；：（）\n…—–।¿¡]+|\s-\s)")
_COMMAS = re.compile(r"[,，、](?!\d)")
_MARKUP = re.compile(r"[*_`#>]+|\\boxed|\\text|[{}$]")
_DIGIT = re.compile(r"\d")
_NAME = re.compile(r"(?<=[\w,] )(?!I\b|I'|AI\b|KI\b|IA\b)[A-ZÀ-ÝА-ЯЁ][\w'-]+")
_COPULA = re.compile(
    r".{0,30}?\b(?:is|was|are|were|est|ist|heißt|es|fue|era|è|é|fu|foi)\b.{0,60}?|.{0,30}?[—–-].{0,40}?|.{0,12}?(?:是|は|के|की|का|है).{0,20}?"
)
_SPEECH = re.compile(
    r"(?:□[^.]{0,30}|^|, ?)\b(?:said|says|replied|answered|whispered|shouted|muttered|sang|sings|répondit|dit-(?:il|elle)|répliqua|murmura|cria|s'écria|chantait|"
    r"erwiderte|sagte|antwortete|rief|flüsterte|murmelte|gritó|dijo|respondió|contestó|murmuró|susurró|disse|rispose|ripeteva|gridò|esclamò|"
    r"sussurrò|respondeu|gritou|murmurou|сказал|сказала|ответил|ответила|рявкнул|крикнул|прошептал|буркнул)\b|□[ 、]?(?:と|って)[^、。]{0,10}(?:言っ|答え|つぶや|叫ん|述べ)|"
    r"□[，,。]?[^，。]{0,8}(?:说|道|喊|问|答)|□,? ?[^।]{0,20}(?:कहा|जवाब दिया|पूछा|चिल्लाया)"
)
# "The review praises the cast, but does not say when it opens"
_SILENT = re.compile(
    r"(?:it |they )?(?:doesn't|does not|don't|do not|never|didn't|did not|gives? no|says? nothing|no (?:lo |se )?(?:dice|menciona|indica|da)|non (?:lo )?(?:dice|menziona|indica|dà)|"
    r"não (?:o )?(?:diz|menciona|indica|dá)|ne (?:dit|précise|mentionne|donne)|n'indique|не (?:сообщ|говор|назыв|указыв|уточня)|nennt|sagt|gibt|没|未)|"
    r".*(?:書いてい|書かれてい|触れてい|述べてい)(?:ません|ない)|.*नहीं (?:बता|कह|लिख)"
)
# "the author was Simenon"
_STATES = re.compile(
    r"(?:(?:the|his|her|its|der|die|das|sein|ihr|le|la|el|il|lo|o|a|os|as|su|seu|sua|son|sa) |l')\w+ (?:is|was|war|ist|hieß|est|était|fut|es|era|fue|è|fu|é|foi|"
    r"chamava-se|se llamaba|si chiamava) (?!not|nicht|kein|unknown|unclear|unbekannt|inconn|descono|ignot|sconosc|desconhe|non\b|no\b|n')|"
    r"\w+ [—–-] [\w ]+$|是(?!不|否|什|谁|何|哪|未|没|的)[\u4e00-\u9fff]{2,8}吧?$|[^，]{1,6}(?:是|叫|为)(?!不|否|什|谁|何|哪|未|没)[^，]{1,12}$|[\u0900-\u097f]+ [\u0900-\u097f]+ (?:हैं|थे|था|थी|है)$"
)
_NOT_ONLY = re.compile(
    r"\b(?:not (?:only|just|merely|simply|solely)|n't (?:only|just|merely)|pas (?:seulement|que|uniquement)|nicht (?:nur|bloß|allein)|no (?:solo|sólo|solamente)|"
    r"non (?:solo|soltanto)|não (?:só|apenas|somente)|не (?:только|просто))\b|n't (?:only|just|merely)\b|(?:だけ|のみ)(?:で|では)なく|ばかりで(?:は)?なく|不(?:只|仅|光|单)(?:仅)?|"
    r"(?:केवल|सिर्फ|मात्र) [^।,]{0,30}नहीं,",
    re.IGNORECASE,
)
# Others, of whom a clause tells that they do not know.
_OTHERS = re.compile(
    r" *(?:[^।,]{0,60} (?:वह|वे) |他|她|它|人们|某人|老人|那人|男子|女子|वह |वे |उसने|उसे|उन्हें|उन्होंने|उसको|彼は|彼女は|彼ら|he |she |they )(?!.*(?:我|咱|मैं|मुझे|हम|私))"
)
# "I do not know, or Paris"
_OR = re.compile(
    r"(?:or|oder|ou|o|или) (?!any|else|not|what|who|when|where|how|if|auch|so|wer|was|outr|altr|otr|qu)[\w-]{2,20}(?: [\w-]{2,20})?"
)
_REPORTED = re.compile(
    r"\b(?:(?:he|she|they) (?:said|says)|(?:il|elle) a dit|(?:er|sie) sagte|(?:ella|él)? ?dijo que|disse che|(?:ele|ela) disse|(?:он|она) сказала?|उसने कहा)\b"
)
_SAID = re.compile(
    r"\b(?:said|says|asked|replied|dijo|dice|disse|dit|sagte|sagt|сказал\w?|говорил\w?)$|(?:说|道|曰|言った|कहा)$"
)
# Words of contrast that stand within their clause.
_FLOATING = re.compile(
    r"\b(?:however|though|jedoch|allerdings|dagegen|hingegen|aber|toutefois|cependant|però|invece|porém|no entanto|sin embargo|однако|же)\b"
)


def _languages(text: str) -> tuple[_Language, ...]:
    """Languages of which a cue may occur in a text, in lower case: the cheap first look."""
    if text.isascii():
        words = ascii_words(text, "'")
        if _TRIGGER_WORDS.isdisjoint(words):
            return ()
        return tuple(dict.fromkeys(one for word in words for one in _TRIGGERS.get(word, ())))
    hit = [word for word in _WORDS.findall(text) if word in _TRIGGERS]
    more: list[_Language] = []
    if _DEVANAGARI.search(text):
        more.append(_HINDI)
    if _KANA.search(text):
        more.append(_JAPANESE)
    elif _HAN.search(text):
        more.append(_CHINESE)
    return tuple(dict.fromkeys([*(one for word in hit for one in _TRIGGERS[word]), *more]))


def _may_decline(text: str) -> bool:
    """The cheap first look at a sentence as it stands."""
    if not text.isascii():
        return bool(_languages(text.replace("\u2019", "'").lower()))
    return not _TRIGGER_WORDS.isdisjoint(ascii_words(text, "'"))


def _likely(text: str) -> tuple[_Language, ...]:
    """The language of a text without a cue, and English."""
    own = _BY_CODE[segmentation_language(text)]
    return (own,) if own is _ENGLISH else (own, _ENGLISH)


def _plain(text: str) -> str:
    text = text.replace("\u2019", "'").strip()
    text = _MARKUP.sub("", text) if _MARKUP.search(text) else text
    if len(text) > 2 and text[0] in "\"'“「«„" and text[-1] in "\"'”」»“":
        inner = text[1:-1]
        if not re.search('["“「«„]', inner):
            text = inner
    text = " ".join(_QUOTED.sub("□", text).split())
    text = _NOT_ONLY.sub("□", text)
    return text if text.isascii() else text.translate(_ALIKE)


def _whole(text: str) -> bool:
    """Whether a part is one of those that decline as a whole."""
    if len(text) > 60:
        return False
    text = text.strip(" ,.!?…。！？、，~～*_'\"।")
    if text in _WHOLE:
        return True
    rest = _FRAME.sub("", text).strip(" ,、，")
    return rest in _WHOLE and bool(rest)


_FRAME = re.compile(
    r"^(?:(?:sorry|hmm+|well|oh|ah|honestly|frankly|tbh|nope|nah|uh|um|er|man|désolé|euh|bah|ben|alors là|tja|puh|ehrlich gesagt|sorry|"
    r"pues|uf+|uy|lo siento|eh|mah|beh|scusa|olha|poxa|bom|desculpa|ну|ой|эх|извини\w*|прости\w*|अरे|भाई|सॉरी|うーん|すみません|抱歉|对不起|呃|嗯)[,.]? )+"
    r"|,? (?:sorry|mate|pal|man|dude|bro|buddy|honestly|tbh|frankly|i'm afraid|to be honest|désolée?|franchement|ehrlich gesagt|leider|sorry|"
    r"tío|tía|hombre|che|la verdad|la vdd|lo siento|scusa|sinceramente|cara|mano|né|desculpa|sorry|честно|извини\w*|прости\w*|сорян|брат|"
    r"यार|भाई|दोस्त|सॉरी)(?: there)?$"
)


def _cues(part: str, language: _Language, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where cues stand in a part, but for those in a title of a work ("Nobody Knows is a film") or in speech."""
    found = [match.span() for match in pattern.finditer(part)]
    found = [
        span for span in found if not _OTHERS.match(part, max(map(part.rfind, ",，、", [0] * 3, [span[0]] * 3)) + 1)
    ]
    if not found or _SPEECH.search(part) or _REPORTED.search(part):
        return []
    start, end = found[0]
    if start < 4 and (work := language.works.search(part, end)) and _COPULA.fullmatch(part, end, work.start()):
        return []
    return found


@dataclass
class _Piece:
    """A part of a sentence, as it is written and in lower case."""

    written: str
    asks: bool
    label: bool
    contrast: bool = False
    reason: bool = False

    @cached_property
    def lower(self) -> str:
        return self.written.lower()


def _cut(text: str) -> list[_Piece]:
    """Parts of a sentence between its marks."""
    cut = _CUTS.split(text)
    found = []
    for number in range(0, len(cut), 2):
        mark = cut[number + 1] if number + 1 < len(cut) else ""
        if piece := cut[number].strip(" ,，、'\""):
            found.append(_Piece(piece, "?" in mark or "？" in mark, mark.strip() in (":", "：") and len(piece) < 40))
    return found


def _contrasted(piece: _Piece, languages: Sequence[_Language]) -> list[_Piece]:
    """A part as what stands before and behind words such as "but"."""
    lower = piece.lower
    if len(lower) != len(piece.written):
        # Lower case may change lengths ("İ").
        return [piece]
    found, at, contrast = [], 0, False
    for start, end in sorted({match.span() for one in languages for match in one.contrast.finditer(lower)}):
        if start < at:
            continue
        if before := piece.written[at:start].strip(" ,，、"):
            found.append(
                _Piece(before, False, False, contrast, any(one.so.fullmatch(lower, start, end) for one in languages))
            )
        at, contrast = end, True
    if rest := piece.written[at:].strip(" ,，、"):
        found.append(_Piece(rest, piece.asks, piece.label, contrast))
    return found


def _judge(piece: _Piece, searched: Sequence[_Language], known: Sequence[_Language]) -> Part:
    """What a part does; cues are looked for in the languages that are searched, the rest in those known to be in the text."""
    text = piece.lower
    if "一" <= max(text) and _CHINESE in searched:
        text = text.translate(_SIMPLIFIED)
    spans: list[tuple[int, int]] = []
    kind = Part.BESIDE
    for language in searched:
        if own := _cues(text, language, language.declines):
            spans += own
            kind = Part.DECLINES
    for language in searched if kind == Part.BESIDE else ():
        if own := _cues(text, language, language.unknown):
            spans += own
            kind = Part.UNKNOWN
    if kind == Part.BESIDE and _whole(text):
        return Part.DECLINES
    if kind != Part.BESIDE:
        return Part.COMMITS if _clause_commits(text, spans, known) else kind
    if piece.asks:
        return Part.BESIDE
    if not any(map(str.isalnum, text)):
        return Part.BESIDE
    if any(one.guess.search(text) for one in known):
        return Part.COMMITS
    if any(one.opens.match(text) for one in known):
        return Part.COMMITS if piece.contrast and _DIGIT.search(text) else Part.BESIDE
    if any(one.about.search(text) or not piece.contrast and one.lacks.search(text) for one in known):
        return Part.COMMITS if _DIGIT.search(text) or _named(piece, known) else Part.BESIDE
    return Part.COMMITS


def _named(piece: _Piece, known: Sequence[_Language]) -> bool:
    return _GERMAN not in known and bool(_NAME.search(piece.written))


def _clause_commits(text: str, spans: Iterable[tuple[int, int]], known: Sequence[_Language]) -> bool:
    """Whether a clause without a cue, beside one that has it, guesses or holds a number."""
    if _COMMAS.search(text) is None:
        return False
    at = 0
    spans = list(spans)
    for stop in [*(match.start() for match in _COMMAS.finditer(text)), len(text)]:
        clause = text[at:stop].strip(" ,，、")
        if clause and not any(start < stop and end > at for start, end in spans):
            if any(one.guess.search(clause) for one in known):
                return True
            if _DIGIT.search(clause) and not any(one.about.search(clause) for one in known):
                return True
            if _OR.fullmatch(clause):
                return True
            if (_STATES.match(clause) or _FLOATING.search(clause)) and not any(
                one.opens.match(clause) or one is _CHINESE and one.about.search(clause) for one in known
            ):
                return True
        at = stop + 1
    return False


@lru_cache(maxsize=4096)
def _parts(text: str, hint: tuple[_Language, ...] = ()) -> tuple[tuple[Part, ...], tuple[_Language, ...]]:
    """What the parts of a sentence do, and the languages whose cues are in it."""
    plain = _plain(text)
    lower = plain.lower()
    if _whole(lower):
        return (Part.DECLINES,), tuple(one for one in _ALL if lower.strip(" .!?…。！？") in one.words["whole"])[:1]
    searched = tuple(dict.fromkeys([*_languages(lower), *hint]))
    if not searched and not hint and len(lower) > 60:
        return (), ()
    whole = _cut(plain)
    texts = [piece.lower.translate(_SIMPLIFIED) if _CHINESE in searched else piece.lower for piece in whole]
    hits = searched
    if len(searched) > 1 or hint:
        hits = tuple(
            one for one in searched if any(one.declines.search(text) or one.unknown.search(text) for text in texts)
        )
    known = tuple(dict.fromkeys([*hits, *hint]))
    pieces = [part for piece in whole for part in _contrasted(piece, known or searched)]
    judged = [_judge(piece, hits, known) for piece in pieces]
    for number, (piece, part) in enumerate(zip(pieces, judged, strict=True)):
        # "Birthplace: unknown" is one statement; "It was long ago, so I cannot know" gives a reason.
        if part == Part.COMMITS and any(it in (1, 2) for it in judged[number + 1 : number + 2]):
            reason = (
                (piece.reason or _SILENT.match(pieces[number + 1].lower))
                and not _DIGIT.search(piece.written)
                and not _named(piece, known)
            )
            if (
                piece.label
                and not _SAID.search(piece.lower)
                or reason
                and not any(one.guess.search(piece.lower) for one in known)
            ):
                judged[number] = Part.BESIDE
    return tuple(judged), known


@lru_cache(maxsize=4096)
def is_refusal(sentence: str) -> bool:
    """Whether a sentence declines, and says nothing that is not beside it.

    "I'm not sure, maybe Paris" and "I don't know why he left, but he was born in 1901" say more.
    """
    if len(sentence) > _LONGEST:
        return False
    if not _may_decline(sentence):
        return _whole(sentence.lower())
    judged, known = _parts(sentence)
    if Part.DECLINES not in judged or Part.COMMITS in judged:
        return False
    return not any(one in (_CHINESE, _JAPANESE) and _says_more(sentence, one) for one in known)


def _says_more(sentence: str, language: _Language) -> bool:
    """Whether a clause between commas, which here part what full stops part elsewhere, is about something else."""
    text = _plain(sentence).lower()
    text = text.translate(_SIMPLIFIED) if language is _CHINESE else text
    for clause in re.split("[，、,：；]", text):
        clause = clause.strip(" 。！？!?.")
        if (
            len(clause) > 7
            and not any(
                pattern.search(clause)
                for pattern in (language.declines, language.unknown, language.about, language.asks, language.lacks)
            )
            and not language.opens.match(clause)
        ):
            return True
    return False


_FEW = 3
"""Sentences of the longest answer that is left to the model: it learnt from texts of one to three."""


# "I have booked your flight.", "We sent the email to Bob.": what an agent says that it did.
_DEED = re.compile(
    r"(?:I|We)(?:['’]ve| have)? (?:(?:already|just|now|also|successfully) )?"
    r"(?:added|archived|assigned|attached|booked|bought|built|called|cancell?ed|changed|closed|completed|converted|copied|created|"
    r"deleted|deployed|disabled|downloaded|edited|emailed|enabled|fixed|forwarded|installed|invited|merged|moved|opened|ordered|"
    r"paid|posted|printed|published|purchased|refunded|registered|removed|renamed|replaced|replied|reserved|restarted|run|ran|"
    r"saved|scheduled|sent|signed|submitted|tested|transferred|translated|updated|uploaded|written|wrote)\b"
    r"(?! (?:no|nothing|none|out)\b)(?!.*(?:\b(?:not|no|never|nothing|none|without|unable|but|however|sorry|cannot)\b|n['’]t\b))",
)


def declines_as_a_whole(sentences: Sequence[str]) -> bool:
    """Whether an answer declines: what the model says, and the rules where it says nothing."""
    declines = _declines_by_rules(sentences)
    # The model has not seen what agents say that they did, and takes some of it for a refusal.
    if not _short(sentences) or not declines and any(map(_DEED.match, map(_plain, sentences))):
        return declines
    odds = learned.log_odds(_for_model(sentences), _told(sentences, declines))
    return declines if odds is None else odds > 0


def model_features(sentences: Sequence[str]) -> tuple[bool, learned.Features | None]:
    """What the rules say of an answer, and the features that the model sees, if it sees any: for its training."""
    declines = _declines_by_rules(sentences)
    if not _short(sentences):
        return declines, None
    return declines, learned.features(_for_model(sentences), _told(sentences, declines))


def _short(sentences: Sequence[str]) -> bool:
    return 0 < len(sentences) <= _FEW and sum(map(len, sentences)) <= learned.LONGEST


def _for_model(sentences: Sequence[str]) -> str:
    text = " ".join(map(_plain, sentences))
    return text if text.isascii() else text.translate(_SIMPLIFIED)


def _told(sentences: Sequence[str], declines: bool) -> tuple[float, ...]:
    """What the rules say of an answer, in numbers."""
    parts = {part for sentence in sentences for part in _parts(sentence)[0]}
    doubts = not parts.isdisjoint((Part.DECLINES, Part.UNKNOWN))
    return (
        float(declines),
        float(any(map(is_refusal, sentences))),
        float(Part.DECLINES in parts),
        float(Part.UNKNOWN in parts),
        float(doubts and Part.COMMITS in parts),
        float(len(sentences) > 1),
    )


def _declines_by_rules(sentences: Sequence[str]) -> bool:
    """Whether a sentence of an answer declines, or it only asks back, greets or offers, and none commits."""
    if not sentences or sum(map(len, sentences)) > 4 * _LONGEST:
        return False
    known: dict[_Language, None] = {}
    first: list[tuple[Part, ...]] = []
    for sentence in sentences:
        judged, own = _parts(sentence)
        first.append(judged)
        if Part.DECLINES in judged or Part.UNKNOWN in judged:
            known.update(dict.fromkeys(own))
    if not known and len(sentences) > 4:
        return False
    hint = tuple(known) or _read_in(" ".join(sentences)) or _likely(" ".join(sentences))
    found = False
    # One that commits settles it, so the likeliest come first: those without a cue, and of these with a number.
    likely = [(Part.DECLINES in judged, not _DIGIT.search(it)) for it, judged in zip(sentences, first, strict=True)]
    for number in sorted(range(len(sentences)), key=likely.__getitem__):
        sentence = sentences[number]
        judged, _ = _parts(sentence, hint)
        if Part.COMMITS in judged:
            if not is_talk(sentence) or _guesses(sentence):
                return False
            continue
        if Part.DECLINES in judged or Part.UNKNOWN in judged:
            found = True
        elif _asks_or_offers(sentence):
            found = True
    return found


def _read_in(text: str) -> tuple[_Language, ...]:
    """Languages with a cue in a short text, whatever the first look said: that of a short text is hard to guess."""
    if len(text) > 300:
        return ()
    pieces = [piece.lower for piece in _cut(_plain(text))]
    found = [one for one in _LATIN if any(one.declines.search(piece) or one.unknown.search(piece) for piece in pieces)]
    likely = _likely(text)[0]
    return (likely,) if likely in found else tuple(found)


def _guesses(sentence: str) -> bool:
    lower = _plain(sentence).lower()
    return any(one.guess.search(lower) for one in _ALL)


def _asks_or_offers(sentence: str) -> bool:
    plain = _plain(sentence)
    lower = plain.lower()
    if not is_talk(plain) and not plain.endswith(("?", "？", "か。", "か")):
        return False
    if lower.rstrip().endswith(("?", "？")):
        if len(_LETTERS.findall(lower)) < 2 and not _HAN.search(lower):  # "Madrid?" is a guess
            return False
        return any(one.asks.search(lower) for one in _ALL) and not _guesses(sentence)
    # "Yes." and "Sure." answer.
    return not _ANSWERS.fullmatch(lower) and any(map(str.isalnum, lower))


_LETTERS = re.compile(r"[^\W\d_]+")
_ANSWERS = re.compile(
    r"(?:yes|sure|certainly|of course|absolutely|ok(?:ay)?|great|claro(?: que sí)?|por supuesto|gerne?|natürlich|bien sûr|certo|certamente|"
    r"com certeza|конечно|好的|当然(?:可以)?|もちろん(?:です)?)(?: thing)?[!.,！。 ]*"
)
