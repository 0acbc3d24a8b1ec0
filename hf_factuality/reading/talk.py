"""Sentences that state nothing about the world: questions, offers, greetings, announcements, and what introduces a statement."""

from __future__ import annotations

import re


# Each alternative begins a sentence. An announcement must end in a colon, or be nothing but talk.
_FILLERS = r"(?:(?:ok(?:ay)?|sure|certainly|of course|absolutely|great|good|well|alright|so|first|now|then|next|hmm+|wait|yes|no problem|thanks?)[,.!]?\s+)*"
_TALK = re.compile(
    rf"[¡¿]?{_FILLERS}(?:"
    # Nothing but a word in front.
    r"(?:sure|certainly|of course|absolutely|great|ok(?:ay)?|yes|no problem|claro(?: que sí)?|gerne?|natürlich|bien sûr|certo|certamente|"
    r"com certeza|конечно|好的|当然)(?: thing)?[!.,！。]*$|"
    # Offers, and what is said to the reader about the answer.
    r"let me know\b|feel free\b|i hope (?:this|that|it|you)\b|hope (?:this|that) helps|would you like\b|do you want\b|"
    r"if you (?:have|need|want|would like|['’]d like|could|can|provide|share|tell|let)\b|please (?:let|feel|note that i|provide|share|"
    r"specify|clarify|check|consult|ask|tell|give|try|refer|contact|see)\b|i(?:['’]d| would) be (?:happy|glad)\b|i(?:['’]m| am) (?:happy|"
    r"glad|here) to\b|i can (?:also )?(?:help|provide|give|explain|go|show|list|expand|elaborate|summari[sz]e)\b|happy to\b|"
    r"thank(?:s| you)\b|you(?:['’]re| are) welcome\b|hello\b|hi\b|good (?:morning|question|luck)\b|great question\b|"
    r"(?:that|this)(?:['’]s| is) (?:a|an) (?:great|good|interesting|excellent) question\b|"
    # What is about to be done.
    r"let me\b|let['’]?s\b|let us\b|(?:we|i)(?:['’]ll| will| shall)\b|(?:we|i) (?:need|have) to\b|(?:we|i) (?:should|must)\b|"
    # Announcements.
    r"(?:here|below|these|this|the following)\b[^.!?]{0,120}:$|in (?:summary|conclusion|short)[:,]?$|(?:to )?summar(?:y|i[sz]e)[:,]?$|"
    # Other languages: offers, hopes, greetings, announcements.
    r"n['’]hésitez pas\b|voulez-vous\b|souhaitez-vous\b|j['’]espère\b|bonjour\b|bien sûr\s*[!.]?$|voici\b[^.!?]{0,120}:$|"
    r"ich hoffe\b|(?:sag|sagen|melde|melden|gib|geben|frag|fragen)\b[^.!?]{0,40}\b(?:bescheid|gern|gerne|jederzeit|wenn|falls)\b|gern(?:e)? (?:helfe|kann)\b|lassen sie (?:es )?mich\b|möchten sie\b|hallo\b|gerne\s*[!.]?$|hier (?:ist|sind)\b[^.!?]{0,120}:$|"
    r"espero que\b|no dudes\b|no dude\b|¿|hola\b|claro\s*[!.]?$|por supuesto\s*[!.]?$|aquí (?:está|están|tienes)\b[^.!?]{0,120}:$|"
    r"spero che\b|ciao\b|certo\s*[!.]?$|ecco\b[^.!?]{0,120}:$|fammi sapere\b|fique à vontade\b|olá\b|aqui (?:está|estão)\b[^.!?]{0,120}:$|"
    r"надеюсь\b|если у вас\b|здравствуйте\b|конечно\s*[!.]?$|вот\b[^.!?]{0,120}:$|дайте знать\b|"
    r"希望|让我|(?:首先)?我们?(?:需要|来(?!自)|应该|要)|您好|你好|当然(?:可以)?[！!。]?$|以下(?:是|为)[^。！？]{0,80}[：:]$|如果(?:您|你)(?:有|需要|想|还)|请(?:告诉|提供|随时)|"
    r"buon appetito|bon appétit|guten appetit|(?:他に|何か)?(?:ご)?質問が|お気軽に|お役に立て|ご不明な点|もしよろしければ|こんにちは|もちろん(?:です)?[。！]?$|以下[^。！？]{0,80}[：:]$|"
    r"नमस्ते|आशा है|कृपया (?:मुझे|बताएं)|यदि आप(?:को|का)?\b|यहाँ[^।!?]{0,120}:$"
    r")",
    re.IGNORECASE,
)
# Words in front of what is stated, which are no part of it.
_PREAMBLE = re.compile(
    r"(?:(?:based (?:up)?on|according to|from|given|per|as per|as (?:stated|mentioned|described|noted|seen|shown) in|going by|looking at|"
    r"in(?: light of)?)\s+(?:the\s+|your\s+|this\s+)?"
    r"(?:(?:provided|given|retrieved|supplied|above|available|search|following|cited|attached)\s+)*"
    r"(?:context|passages?|documents?|texts?|sources?|evidence|information|search results?|results|excerpts?|articles?|references?)"
    r"(?:\s+(?:provided|given|above|you (?:provided|gave|shared)))?"
    r"|d['’]après (?:le|les|ce|ces) (?:contexte|documents?|passages?|textes?|sources?|informations)(?: fournie?s?)?"
    r"|selon (?:le|les|ce|ces) (?:contexte|documents?|passages?|textes?|sources?|informations)(?: fournie?s?)?"
    r"|(?:laut|nach) (?:dem|den|der) (?:bereitgestellten |vorliegenden |gegebenen )?(?:kontext|dokumenten?|texte?n?|quellen?|informationen)"
    r"|basierend auf (?:dem|den|der) (?:bereitgestellten |vorliegenden |gegebenen )?(?:kontext|dokumenten?|texte?n?|quellen?|informationen)"
    r"|según (?:el|los|la|las) (?:contexto|documentos?|pasajes?|textos?|fuentes?|información)(?: proporcionad[oa]s?)?"
    r"|secondo (?:il|i|la|le) (?:contesto|document[oi]|test[oi]|font[ei]|informazioni)(?: fornit[oiae])?"
    r"|de acordo com (?:o|os|a|as) (?:contexto|documentos?|textos?|fontes?|informações)(?: fornecid[oa]s?)?"
    r"|согласно (?:предоставленн\w+ )?(?:контексту|документам?у?|тексту|источник\w+|информации)"
    r")\s*[,:]\s*"
    r"|(?:根据|基于|按照)(?:所|上述|以上|给定|提供)*的?(?:上下文|文档|文献|资料|信息|段落|内容|材料)[，,：:]\s*"
    r"|(?:提供された)?(?:文脈|文書|資料|情報|コンテキスト)に(?:よると|基づくと)[、,]\s*"
    r"|(?:दिए गए|प्रदान किए गए) (?:संदर्भ|दस्तावेज़|जानकारी) के (?:अनुसार|आधार पर),?\s*"
    r"|(?:sure|certainly|of course|absolutely)[!,]\s+(?:here(?:['’]s| is| are) (?:the|your|an?) answer[:.]\s*)?",
    re.IGNORECASE,
)
_ANNOUNCES = re.compile(
    r"(?:here|below|these|this|the following|hier|voici|ecco|aquí|esto|aqui|вот|以下|如下)\b[^.!?。！？]{0,160}[:：]|.{0,60}(?:以下|如下)[^。！？]{0,30}[:：]",
    re.IGNORECASE,
)
_URL = re.compile(r"<?(?:https?://|www\.)\S+>?[.,;]?", re.IGNORECASE)
_ENDS_QUESTION = ("?", "？", "؟")
_LEAD_IN = re.compile(
    r"(?:(?:the|some|a few|several|its|their|his|her|main|key|important|notable|other|following|these|there (?:are|is)|such as|"
    r"for example|including|includes?|sources?|references?|note|answer|steps?|results?|facts?|points?|details?|reasons?|examples?|"
    r"question|summary|overview|conclusion|final|short|explanation|reasoning|context)\b[\s\w'’,/-]{0,80}|\w[\w'’-]*(?:\s+\w[\w'’-]*){0,3})[:：]",
    re.IGNORECASE,
)


def without_preamble(text: str) -> str:
    """What a sentence says: without an introduction such as "Based on the provided context,"."""
    found = _PREAMBLE.match(text)
    return text[found.end() :] if found and found.end() < len(text) else text


def is_talk(text: str) -> bool:
    """Whether a sentence states nothing about the world: a question, an offer, a greeting, an announcement, an address."""
    text = text.strip(" \t\n\"'“”‘’*()（）")
    if not text or text.endswith(_ENDS_QUESTION):
        return True
    if ("://" in text or "www." in text) and _URL.sub("", text).strip(" .,;:|-–—<>") == "":
        return True
    if _TALK.match(text):
        return True
    return text.endswith((":", "：")) and bool(
        _LEAD_IN.fullmatch(text) or _ANNOUNCES.fullmatch(without_preamble(text))
    )
