"""The languages of a world: sentence templates, questions and made-up names, in English and Chinese.

Templates hold `{name}` (how texts refer to a person), `{person}` (the full name), `{value}`, `{target}` and `{level}`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Relation:
    """A property that every person has, and how texts speak of it.

    Args:
        name (`str`):
            Key of the fact.
        question (`str`):
            Question for the value itself.
        careful (`tuple[str, ...]`):
            Plain statements of the fact. The first one is used as evidence.
        hedged (`tuple[str, ...]`):
            Statements with reservation.
        unknown (`str`):
            Phrase that takes the place of a value and says nothing.
        vague (`tuple[str, ...]`):
            Whole sentences that state nothing.
        levels (`tuple[str, ...]`, *optional*):
            What the value lies in, what that lies in, ...; empty for properties without further hops.
        chain_question (`str`, *optional*):
            Question for one of the levels.
        values (`int` or `tuple[str, ...]`, *optional*):
            How many values there are, or the values; `None` takes the world's `num_values`.
        rumour (`bool`, *optional*, defaults to `False`):
            Whether every text states another value, so that the true one cannot be learnt.
    """

    name: str
    question: str
    careful: tuple[str, ...]
    hedged: tuple[str, ...]
    unknown: str
    vague: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    chain_question: str = ""
    values: int | tuple[str, ...] | None = None
    rumour: bool = False


@dataclass(frozen=True)
class Language:
    """Everything in a world that is written in one language. With `spaced_names` a person has a first name, a space and
    a last name, which texts use; `endings` are of names by kind, `industries` the first level of employers, `joins` what
    stands between the clauses of a sentence, and before the last one, and `declines` an answer that is none.
    """

    relations: tuple[Relation, ...]
    hop: tuple[str, str]
    fillers: tuple[str, ...]
    request: str
    industries: tuple[str, ...]
    separator: str
    stop: str
    endings: Mapping[str, tuple[str, ...]] = field(hash=False)
    onsets: tuple[str, ...] = ()
    vowels: tuple[str, ...] = ()
    codas: tuple[str, ...] = ()
    spaced_names: bool = True
    joins: tuple[str, str] = (", ", " and ")
    declines: str = "I do not know"

    def names(self, rng: random.Random, kind: str, count: int, used: set[str]) -> tuple[str, ...]:
        """`count` names of a kind that nothing else in the world has; adds them to `used`."""
        stems = len(self.onsets) * len(self.vowels) * len(self.codas)
        # One syllable while no more than a quarter of the supply is taken, so that drawing an unused one stays quick.
        syllables = 1 if count <= stems * len(self.endings[kind]) // 4 else 2
        found: list[str] = []
        while len(found) < count:
            stem = rng.choice(self.onsets) + rng.choice(self.vowels) + rng.choice(self.codas)
            for _ in range(syllables - 1):
                stem += rng.choice(self.vowels) + rng.choice(self.codas)
            name = stem + rng.choice(self.endings[kind])
            if name not in used:
                used.add(name)
                found.append(name)
        return tuple(found)


def clause(template: str) -> str | None:
    """A template without the subject that it begins with, as a further clause leaves it out; `None` if it cannot."""
    rest = template.removeprefix("{name}")
    return None if rest == template or rest.startswith("的") else rest.lstrip()


_PLACES = ("country", "league", "realm", "region", "zone", "belt", "sphere")
_TRADES = ("industry", "sector", "branch", "division", "domain", "group", "circle")


def _english(
    name: str, question: str, plain: str, other: str, hearsay: str, perfect: str, unknown: str, **more
) -> Relation:
    """A relation by its verbs: two that state it, one of hearsay, and one behind "may have"."""
    return Relation(
        name,
        question,
        (f"{{name}} {plain} {{value}}.", f"{{name}} {other} {{value}}."),
        (f"They say {{name}} {hearsay} {{value}}.", f"{{name}} may have {perfect} {{value}}."),
        f"an unrecorded {unknown}",
        **more,
    )


ENGLISH = Language(
    relations=(
        _english("birth_city", "Where was {person} born?", "was born in", "is a native of", "comes from",
                 "been born in", "place", vague=("The birthplace of {name} is not recorded.",),
                 levels=_PLACES, chain_question="Which {level} was {person} born in?"),
        _english("employer", "Who did {person} work for?", "worked for", "was employed by", "joined",
                 "worked for", "employer", vague=("The employer of {name} is not recorded.",),
                 levels=_TRADES, chain_question="Which {level} did {person} work in?"),
        _english("university", "Where did {person} study?", "studied at", "graduated from", "attended",
                 "studied at", "school", vague=("The school of {name} is not recorded.",),
                 levels=_PLACES, chain_question="Which {level} did {person} study in?"),
        _english("field", "What was the field of {person}?", "specialised in", "became an expert in", "turned to",
                 "specialised in", "field",
                 values=("algebra", "anatomy", "botany", "chemistry", "economics", "geology", "grammar", "history",
                         "law", "logic", "music", "optics")),
        _english("hobby", "What did {person} enjoy?", "enjoyed", "was fond of", "liked", "enjoyed", "pastime",
                 values=("archery", "baking", "chess", "dancing", "hiking", "knitting", "painting", "riding",
                         "rowing", "singing")),
        _english("award", "What was {person} awarded?", "was awarded", "received", "earned", "received", "prize",
                 values=25),
        _english("birth_year", "When was {person} born?", "was born in the year", "came into the world in",
                 "dates from", "come into the world in", "year",
                 values=tuple(str(year) for year in range(1850, 1930))),
        _english("spouse", "Who did {person} marry?", "married", "was the spouse of", "wed", "married", "person",
                 values=200),
        _english("dish", "What did {person} like to eat?", "liked to eat", "often ordered", "craved",
                 "often ordered", "dish", values=20, rumour=True),
        _english("nickname", "What was the nickname of {person}?", "was called", "went by", "answered to",
                 "been called", "nickname", values=40, rumour=True),
    ),
    hop=("{value} is in {target}.", "They say {value} lies in {target}."),
    fillers=("Few details about {name} survive.", "Let us think about {name}.", "{name} is widely remembered."),
    request="Tell me about {person}.",
    industries=("banking", "brewing", "farming", "fishing", "mining", "printing", "shipping", "weaving"),
    separator=" ",
    stop=".",
    endings={
        "first": ("a", "en", "ia", "is", "o"),
        "last": ("brook", "croft", "field", "gard", "ley", "mark", "son", "ward", "wick", "wood"),
        "birth_city": ("burg", "ford", "haven", "holm", "mouth", "stead", "ton"),
        "employer": ("corp", "dyne", "tek", "works"),
        "university": ("bridge", "crest", "hall"),
        "country": ("andia", "istan", "onia"),
        "level": ("ara", "ory", "une"),
        "award": ("medal", "prize"),
        "spouse": ("a", "ina", "us"),
        "dish": ("broth", "pie", "stew"),
        "nickname": ("bear", "fox", "owl"),
    },
    onsets=("B", "Br", "C", "D", "Dr", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "St", "T", "Tr", "V", "W"),
    vowels=("a", "e", "i", "o", "u"),
    codas=("ld", "lm", "ls", "lv", "nd", "rl", "th", "v"),
)  # fmt: skip

_ZH_PLACES = ("国家", "联盟", "王域", "大区", "地带", "环带", "界域")
_ZH_TRADES = ("行业", "部门", "分支", "门类", "领域", "集团", "圈子")

CHINESE = Language(
    relations=(
        Relation("birth_city", "{person}出生在哪里？", ("{name}出生于{value}。", "{name}是{value}人。"),
                 ("据说{name}来自{value}。", "{name}可能出生于{value}。"), "不详之地", ("{name}的出生地没有记载。",),
                 _ZH_PLACES, "{person}出生在哪个{level}？"),
        Relation("employer", "{person}为谁工作？", ("{name}任职于{value}。", "{name}受雇于{value}。"),
                 ("据说{name}加入了{value}。", "{name}可能任职于{value}。"), "不详的雇主", ("{name}的雇主没有记载。",),
                 _ZH_TRADES, "{person}在哪个{level}工作？"),
        Relation("university", "{person}在哪里上学？", ("{name}就读于{value}。", "{name}毕业于{value}。"),
                 ("据说{name}上过{value}。", "{name}可能就读于{value}。"), "不详的学校", ("{name}的学校没有记载。",),
                 _ZH_PLACES, "{person}在哪个{level}上学？"),
        Relation("field", "{person}的专业是什么？", ("{name}专攻{value}。", "{name}精通{value}。"),
                 ("据说{name}转向了{value}。", "{name}可能专攻{value}。"), "不详的专业",
                 values=("代数", "解剖", "植物", "化学", "经济", "地质", "语法", "历史", "法律", "逻辑", "音乐", "光学")),
        Relation("hobby", "{person}爱好什么？", ("{name}爱好{value}。", "{name}热爱{value}。"),
                 ("据说{name}喜欢{value}。", "{name}可能爱好{value}。"), "不详的消遣",
                 values=("射箭", "烘焙", "下棋", "跳舞", "远足", "编织", "绘画", "骑马", "划船", "唱歌")),
        Relation("award", "{person}得过什么奖？", ("{name}获得了{value}。", "{name}荣获{value}。"),
                 ("据说{name}赢得了{value}。", "{name}可能获得了{value}。"), "不详的奖项", values=25),
        Relation("birth_year", "{person}生于哪一年？", ("{name}生于{value}年。", "{name}在{value}年出世。"),
                 ("据说{name}生在{value}年。", "{name}可能生于{value}年。"), "不详之",
                 values=tuple(str(year) for year in range(1850, 1930))),
        Relation("spouse", "{person}与谁结婚？", ("{name}的伴侣是{value}。", "{name}与{value}结婚。"),
                 ("据说{name}娶嫁{value}。", "{name}可能与{value}结婚。"), "不详之人", values=200),
        Relation("dish", "{person}爱吃什么？", ("{name}爱吃{value}。", "{name}常点{value}。"),
                 ("据说{name}馋{value}。", "{name}可能爱吃{value}。"), "不详的菜", values=20, rumour=True),
        Relation("nickname", "{person}的绰号是什么？", ("{name}绰号{value}。", "{name}被称为{value}。"),
                 ("据说{name}人称{value}。", "{name}可能绰号{value}。"), "不详之名", values=40, rumour=True),
    ),
    hop=("{value}属于{target}。", "据说{value}归于{target}。"),
    fillers=("关于{name}的细节很少。", "让我们想想{name}。", "{name}广为人知。"),
    request="请介绍{person}。",
    industries=("银行业", "酿酒业", "农业", "渔业", "矿业", "印刷业", "航运业", "纺织业"),
    separator="",
    stop="。",
    endings={
        "last": ("安", "宁", "华", "明", "平", "文", "武", "德", "仁", "义"),
        "birth_city": ("城", "镇", "港"),
        "employer": ("公司", "商行", "工厂"),
        "university": ("学院", "书院", "大学"),
        "country": ("国", "邦", "州"),
        "level": ("盟", "域", "界"),
        "award": ("奖", "勋章"),
        "spouse": ("娘", "郎"),
        "dish": ("汤", "饼", "面"),
        "nickname": ("熊", "狐", "鹰"),
    },
    onsets=tuple("王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗"),
    vowels=tuple("东西南北中"),
    codas=tuple("山河江海湖川溪泉"),
    spaced_names=False,
    joins=("，", "，并"),
    declines="我不知道",
)  # fmt: skip

LANGUAGES: Mapping[str, Language] = {"en": ENGLISH, "zh": CHINESE}
