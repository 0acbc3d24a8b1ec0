import importlib
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_factuality.reading.completion import passage_sentences
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import JudgeInput, Judgement, LexicalJudge, LexicalVerifier, VerifierInput
from hf_factuality.verifiers.judges.lexical import judge as lexical_judge
from hf_factuality.verifiers.judges.lexical import lexicon
from hf_factuality.verifiers.judges.lexical import text as lexical_text
from hf_factuality.verifiers.judges.lexical.judge import (
    FEATURES,
    LENGTH,
    LENGTH_SCALE,
    LONG,
    LONG_INTERCEPT,
    SHORT,
    SHORT_INTERCEPT,
    _index,
    english_features,
    lexical_features,
    read_words,
)
from hf_factuality.verifiers.judges.lexical.text import (
    content_terms,
    numbered_names_in_words,
    numbers_in_digits,
    tokens,
)
from tests.tables import cases


BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"

EINSTEIN = (
    "Albert Einstein was born in Ulm, Germany, on 14 March 1879. He received the Nobel Prize in Physics in 1921 for "
    "his discovery of the law of the photoelectric effect. He never learned to drive a car.",
    "Marie Curie won the Nobel Prize in Physics in 1903.",
    "Albavision controls 82 radio stations and 26 TV stations.",
)
AINSITAN = ("爱因斯坦于1879年3月14日出生于德国乌尔姆。他在1921年获得诺贝尔物理学奖。", "该公司有三百万用户。")


def judge(claim, evidence=EINSTEIN):
    return LexicalJudge().judge([JudgeInput(claim, evidence)])[0]


@cases("lexical", "english", "claim", "label")
def test_english(claim, label):
    assert judge(claim).label is Label(label)


@cases("lexical", "chinese", "claim", "label")
def test_chinese(claim, label):
    assert judge(claim, AINSITAN).label is Label(label)


@cases("lexical", "limits", "claim", "evidence", "label")
def test_limits_are_as_documented(claim, evidence, label):
    assert judge(claim, (evidence,)).label is Label(label)


@cases("lexical", "meaning", "claim", "evidence", "label")
def test_meaning(claim, evidence, label):
    found = judge(claim, (evidence,))
    if label == "not supported":
        assert found.label in (Label.UNVERIFIABLE, Label.CONTRADICTED)
    else:
        assert found.label is Label(label)
    assert judge(evidence, (evidence,)).label is Label.SUPPORTED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2.5 million of 3,000,000 people", "<2500000> of <3000000> people"),
        ("twenty-five, ninety and two", "<25>, <90> and <2>"),
        ("two million", "<2000000>"),
        ("seventy two rooms", "<70> <2> rooms"),
        ("agent 007 in version 2.10", "agent <007> in version <2.10>"),  # as they are: these are no amounts
        ("ten-four, one-two, route-66, b2, 1,23, 5-a-side", "ten-four, one-two, route-66, b2, <1>,23, 5-a-side"),
    ],
)
def test_numbers_in_digits(text, found):
    assert numbers_in_digits(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Henry VIII's wives", "Henry the Eighth's wives"),
        ("Louis the 14th and John XXIII", "Louis the Fourteenth and John XXIII"),  # in words up to twenty
        ("World War II, the 2nd World War and WW2", "Second World War, the Second World War and Second World War"),
        ("the First World War or WWI", "the First World War or First World War"),
        ("Type II diabetes, phase three, Chapter IV", "Type 2 diabetes, phase 3, Chapter 4"),
        ("Charles I was king, as were George V and Pius X.", "Charles the First was king, as were George the Fifth and Pius the Tenth."),
        ("Ask Mary and I will see. The part I liked. With Charles I have none.", None),
        ("Malcolm X, Vitamin C, Inc. and IVF in Washington DC", None),
        ("In Paris I was happy. Yesterday I left. Act now, V.", None),
        ("Windows XXXIX, Rocky IIII and MCMXC", None),
        ("Hungary VI", "Hungary the Sixth"),
        ("the World War", None),
        ("A World War II veteran", "A Second World War veteran"),
    ],
)  # fmt: skip
def test_numbered_names_in_words(text, found):
    assert numbered_names_in_words(text) == (found or text)
    assert numbered_names_in_words(found or text) == (found or text)


@pytest.mark.parametrize(
    ("verb", "said", "found", "supported"),
    [
        ("has", "just under 250 rooms", "247 rooms", True),
        ("has", "just under 250 rooms", "140 rooms", False),
        ("has", "just under 250 rooms", "253 rooms", False),
        ("has", "just over 250 rooms", "253 rooms", True),
        ("has", "just over 250 rooms", "400 rooms", False),
        ("has", "slightly more than 250 rooms", "247 rooms", False),
        ("has", "almost 250 rooms", "140 rooms", False),
        ("has", "nearly 250 rooms", "240 rooms", True),
        ("has", "under 250 rooms", "140 rooms", True),
        ("has", "more than 200 rooms", "just under 250 rooms", True),
        ("has", "more than 300 rooms", "just under 250 rooms", False),
        ("has", "fewer than 300 rooms", "just over 250 rooms", True),
        ("has", "more than 200 rooms", "fewer than 250 rooms", False),
        ("has", "just under 250 rooms", "240 to 260 rooms", False),
        ("has", "about 250 or more rooms", "400 rooms", True),
        ("has", "250 rooms", "just under 250 rooms", False),
        ("was founded", "in the early 1970s", "in 1972", True),
        ("was founded", "in the early 1970s", "in 1978", False),
        ("was founded", "in the late 1970s", "in 1972", False),
        ("was founded", "in the mid-1970s", "in 1975", True),
        ("was founded", "in the 1970s", "in the late 1970s", True),
        ("was founded", "in the late 1970s", "in the 1970s", False),
        ("was founded", "in the early 1970s", "in the late 1960s and early 1970s", True),
        ("was founded", "in 1972", "in the late 1970s", False),
        ("was founded", "in the late 15th century", "in 1421", False),
        ("was founded", "in the early 20th century", "in 1978", False),
    ],
)
def test_parts_and_near_bounds(verb, said, found, supported):
    """Just under is not far under; the early 1970s are their first half."""
    verdict = judge(f"The hotel {verb} {said}.", (f"The hotel {verb} {found}.",)).label
    assert (verdict is Label.SUPPORTED) == supported


@pytest.mark.parametrize(
    ("claim", "copied"),
    [
        ("He has played in other bands such as Brides and Sixx:A.M.", True),
        ('He appeared in "M*A*S*H."', True),
        ("The lake had 12 degrees.", False),
        ("The lake had -12 degrees", True),
        ("The price was 1.5 dollars.", True),
        ("The price was 15 dollars.", False),
        ("The survey found 40 people.", False),
    ],
)
def test_a_copy_is_found_although_it_was_cut(claim, copied):
    evidence = (
        'He has played in other bands such as Brides and Sixx:A.M. He appeared in "M*A*S*H." The lake had -12 degrees. '
        "The price was 1.5 dollars. The survey found 40% people.",
    )
    found = read_words(JudgeInput(claim, evidence))
    assert found.copied is copied


def test_a_language_that_it_does_not_read_is_not_judged():
    evidence = ("Der Turm wurde im Jahr 1889 von der Stadt gebaut und ist nicht hoch.",)
    found = judge("Der Turm wurde im Jahr 1889 von der Stadt nicht gebaut.", evidence)
    assert found.label is None and "'de'" in found.reason
    assert judge(evidence[0], evidence).label is Label.SUPPORTED  # a copy needs no reading
    named = "The film La vie est belle et les jours was shot in Paris by the two brothers."
    assert judge(named, (named,)).label is Label.SUPPORTED


@cases("lexical", "decisive", "claim", "evidence", "label", "sentence")
def test_the_deciding_sentence(claim, evidence, label, sentence):
    found = judge(claim, tuple(evidence) or EINSTEIN)
    assert (found.label, found.evidence) == (Label(label), sentence)


@cases("lexical", "word_forms", "one", "other")
def test_word_forms_meet(one, other):
    assert tokens(one) == tokens(other)


def test_two_lists_of_names_do_not_contradict():
    evidence = ("The film stars Tom Hanks and Meg Ryan.",)
    assert judge("The film stars Tom Hanks and Julia Roberts.", evidence).label is not Label.CONTRADICTED


@pytest.mark.parametrize("evidence", [(), ("",), (" \n", "...")])
def test_no_evidence(evidence):
    assert judge("He was born in Ulm.", evidence) == Judgement(Label.UNVERIFIABLE)
    assert judge("Let me think.", evidence) == Judgement(Label.NO_FACT)


def test_threshold():
    inputs = [JudgeInput("Albert Einstein was born in Ulm.", EINSTEIN)]
    assert LexicalJudge(threshold=1.0).judge(inputs)[0].label is Label.UNVERIFIABLE
    assert LexicalJudge(threshold=0.0).judge([JudgeInput("Bananas.", EINSTEIN)])[0].label is Label.SUPPORTED
    with pytest.raises(ValueError, match=r"probability in \[0, 1\], got 1.5"):
        LexicalJudge(threshold=1.5)


def test_features_by_hand():
    """Claim terms: born (WORD, weight 1), ulm (NAME, 1.5), 1880 (NUMBER, 2.5); "She" and "in" have no weight.

    Evidence has 2 sentences; rarity = ln(3 / (df + 0.5)) + 1: born df 2 -> 1.182, ulm df 1 -> 1.693, 1880 df 0 ->
    2.792. Weights 1.182, 2.540, 6.979, in all 10.701. "Ann was born in Ulm" holds born and ulm: 3.722 / 10.701 =
    0.348; no other sentence adds to it. One number is missing: 1/2. Of the pairs (born, ulm), (ulm, 1880) the
    evidence has one.
    """
    values, sentence = lexical_features("She was born in Ulm in 1880.", ("Ann was born in Ulm.", "Tim was born."))
    assert dict(zip(FEATURES, values, strict=True)) == pytest.approx(
        {"sentence": 0.348, "three": 0.348, "names": 1.0, "numbers": 0.5, "order": 0.5, "conflict": 0.0}, abs=1e-3
    )
    assert sentence == "Ann was born in Ulm."


def test_the_score_is_that_of_the_two_weights_by_length():
    claim, evidence = (
        "She was born in the old town of Ulm in the year 1880.",
        ("Ann was born in Ulm.", "Tim was born."),
    )
    values = english_features(claim, evidence)
    share = 1 / (1 + np.exp(-(13 - LENGTH) / LENGTH_SCALE))
    short = SHORT_INTERCEPT + sum(weight * values[name] for name, weight in SHORT.items())
    long = LONG_INTERCEPT + sum(weight * values[name] for name, weight in LONG.items())
    expected = 1 / (1 + np.exp(-(short * (1 - share) + long * share)))
    assert judge(claim, evidence).score == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("claim", "evidence", "worked"),
    [
        ("The mill ran for 34 years.", "The mill opened in 1956. It closed in 1990.", 1.0),
        ("The mill ran for 43 years.", "The mill opened in 1956. It closed in 1990.", 0.0),
        ("In all there are 61 wheels.", "The mill has 40 wheels and the barn has 21 wheels.", 1.0),
        ("The mill has 19 wheels more than the barn.", "The mill has 40 wheels and the barn has 21 wheels.", 1.0),
        ("The mill has 18 wheels more than the barn.", "The mill has 40 wheels and the barn has 21 wheels.", 0.0),
        ("70% of the wheels are not of iron.", "30% of the wheels are of iron.", 1.0),
        ("Twelve wheels are of iron.", "The mill has 40 wheels, and 30% of them are of iron.", 1.0),
        ("The mill closed in 1990.", "The mill opened in 1956 and ran for 34 years.", 1.0),
        ("The mill closed in 1991.", "The mill opened in 1956 and ran for 34 years.", 0.0),
        ("The mill has 40 wheels.", "The mill has 40 wheels.", 0.0),
        ("The mill has at least 61 wheels.", "The mill has 40 wheels and the barn has 21 wheels.", 0.0),
    ],
)
def test_a_number_that_follows_from_two_others(claim, evidence, worked):
    found = english_features(claim, tuple(f"{one.rstrip('.')}." for one in evidence.split(". ")))
    assert found["number_worked"] == worked
    if worked:
        assert not any(found[name] for name in ("number", "number_new", "number_negated"))


def test_best_three_sentences_are_chosen_greedily():
    """Each claim word has weight 1 and the same rarity; sentence one holds 3 of 6, and the next two add 2 and 1."""
    evidence = ("red green blue", "blue cyan pink", "red gold", "green cyan", "other things")
    values, _ = lexical_features("red green blue cyan pink gold", evidence)
    rarity = {
        word: np.log(6 / (df + 0.5)) + 1 for word, df in dict(red=2, green=2, blue=2, cyan=2, pink=1, gold=1).items()
    }
    best = rarity["blue"] + rarity["cyan"] + rarity["pink"]  # pink is rarer: this one is ahead of "red green blue"
    assert values[0] == pytest.approx(best / sum(rarity.values()))
    assert values[1] == pytest.approx(1.0)  # "red gold" next, then either sentence with "green"


@cases("lexical", "tokens", "text", "expected")
def test_tokens(text, expected):
    assert tokens(text) == [(term, getattr(lexical_text, kind)) for term, kind in expected]


def test_verifier_end_to_end():
    completion = "Let me think. 1. Albert Einstein was born in Ulm.\n- He was born in 1889."
    found = LexicalVerifier().verify(
        [VerifierInput(completion, evidence=EINSTEIN), VerifierInput("", evidence=EINSTEIN)]
    )
    assert [(span.start, span.end, span.label, span.claim) for span in found[0].spans] == [
        (0, 13, Label.NO_FACT, None),
        (17, 49, Label.SUPPORTED, None),
        (52, 72, Label.CONTRADICTED, None),
    ]
    assert found[0].spans[0] == LabeledSpan(0, 13, Label.NO_FACT)
    assert found[0].validate(completion).judged
    assert found[1] == Verification()


def test_shared_evidence_is_indexed_once_and_the_cache_is_capped():
    _index.cache_clear()
    LexicalJudge().judge([JudgeInput(f"He was born in {year}.", tuple(EINSTEIN)) for year in range(1900, 1908)])
    assert _index.cache_info()[:2] == (7, 1)  # hits, misses
    LexicalJudge().judge([JudgeInput("He was born in Ulm.", (f"Passage {i}.",)) for i in range(300)])
    assert _index.cache_info().currsize == 128


@pytest.mark.parametrize(
    "text",
    [
        "(Leeds, 'Tis the dogs' O'Neil’s \"U.S.\" A b 12% of 1,000.50; 5:4 _under_ x1y2.",
        "5 thousand million, 3.5million, 3.5Million or millions of 2 millions",
        "On 2020-01-05, (2019-12-31) or May 5 it may be.",
        "Café cafe\u0301 naïve\xa0Ångström",
        "北京人口约2154万, a mixed 中文 text of 3 million",
    ],
)
def test_content_terms_are_those_of_the_tokens(text):
    lexical_text._piece_terms.clear()
    expected = tuple(token.term for token in tokens(text) if token.kind)
    assert content_terms(text) == expected != ()
    assert content_terms(text) == expected  # remembered


def test_deterministic_and_picklable():
    inputs = [JudgeInput("Albert Einstein was born in 1889.", EINSTEIN), JudgeInput("He was born in Ulm.", EINSTEIN)]
    first = LexicalJudge().judge(inputs)
    _index.cache_clear()
    assert pickle.loads(pickle.dumps(LexicalJudge())).judge(inputs) == first
    assert LexicalJudge().judge(inputs[::-1]) == first[::-1]


HEADED = "She was a poet from Leeds who died in 1880."


@pytest.mark.parametrize(
    ("evidence", "same_as"),
    [
        # Above the sentence, in its passage or as a line of the same page: as if the sentence named her.
        (("# Ada Hale\n\n" + HEADED,), "supported"),
        (("# Ada Hale", HEADED), "supported"),
        # Below it, in a passage of its own, or above what has nothing to do with the claim: as if it were not there.
        ((HEADED + "\n\n# Ada Hale",), (HEADED,)),
        ((HEADED, "# Ada Hale"), (HEADED,)),
        (("# Ada Hale\n\nBob had tea.", HEADED), ("Bob had tea.", HEADED)),
        (("# Ada Hale was a poet from Leeds who died in 1880.\n\nBob had tea.",), ("Bob had tea.",)),
        (("# Ada Hale was a poet from Leeds who died in 1880.",), ()),
    ],
)
def test_a_heading_is_context_of_the_sentences_below_it_and_supports_nothing_by_itself(evidence, same_as):
    claim = "Ada Hale was a poet from Leeds who died in 1880."
    found = judge(claim, evidence)
    if same_as == "supported":
        assert (found.label, found.evidence) == (Label.SUPPORTED, HEADED)
    else:
        assert found == judge(claim, same_as)
        assert found.label is Label.UNVERIFIABLE


PIECES = st.sampled_from(
    [
        "Bob ", "was born ", "in ", "1.2.3", " million", "²", "٢", "三百",
        "一万", "5月", "亿", "不是", "not ", "n't", "’s", "İ",
        "2020-12-31", "%", ", ", ". ", "。", "?", "\n", "- ", "1) ", "𠮷", "の",
        "\u3000", "\ud800", "9" * 5000 + ".5", "May ",
    ]
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=10).map("".join), st.lists(st.lists(PIECES, max_size=10).map("".join), max_size=3))
def test_any_text_gets_a_label(claim, evidence):
    result = judge(claim, tuple(evidence))
    assert isinstance(result.label, Label) or result.reason.startswith("not judged")
    assert result.score is None or 0.0 <= result.score <= 1.0
    states = any(is_sentence for passage in evidence for _, is_sentence in passage_sentences(passage))
    assert (result.score is None) == (result.label in (Label.NO_FACT, None) or not states)


@pytest.mark.slow
def test_long_runs_do_not_take_quadratic_time():
    start = time.process_time()
    for text in (
        "1" * 50_000,
        "1" * 50_000 + "万",
        "a" * 50_000,
        "北" * 50_000,
        "'" * 50_000,
        "1." * 25_000,
        "一" * 50_000,
    ):
        judge(text, (text,))
    assert time.process_time() - start < 5


# -- benchmark --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("lexical_verifier")


def pairwise_auroc(scores, labels):
    wins, pairs = 0.0, 0
    for score, label in zip(scores, labels, strict=True):
        for other, other_label in zip(scores, labels, strict=True):
            if label and not other_label:
                pairs += 1
                wins += 1.0 if score > other else 0.5 if score == other else 0.0
    return wins / pairs


def test_auroc_equals_the_pairwise_count(benchmark):
    assert benchmark.auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75
    generator = random.Random(0)
    for size in (2, 3, 10, 80):
        for levels in (2, 5, 1000):  # few levels: many ties
            scores = [generator.randrange(levels) / levels for _ in range(size)]
            labels = [True, False, *(generator.random() < 0.3 for _ in range(size - 2))]
            assert benchmark.auroc(scores, labels) == pytest.approx(pairwise_auroc(scores, labels), abs=1e-12)
    with pytest.raises(ValueError, match="need both classes, got 2 positives of 2"):
        benchmark.auroc([0.1, 0.2], [True, True])


def test_logistic_fit_recovers_known_weights(benchmark):
    """Cells with the exact proportions of a known model: the maximum of the likelihood is that model."""
    cells = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    positive = 1 / (1 + np.exp(-(cells @ [2.0, -1.0] + 0.5)))
    features, targets = np.vstack([cells, cells]), np.array([1.0] * 4 + [0.0] * 4)
    weights = np.concatenate([positive, 1 - positive])
    assert benchmark.fit_logistic(features, targets, weights, ridge=0.0) == pytest.approx([2.0, -1.0, 0.5], abs=1e-6)


def test_bootstrap_interval_holds_the_estimate(benchmark):
    scores = [i / 40 for i in range(40)]
    labels = [i % 3 == 0 or i > 30 for i in range(40)]
    low, high = benchmark.bootstrap_interval(scores, labels, draws=200)
    assert 0.0 <= low < benchmark.auroc(scores, labels) < high <= 1.0


def test_swap_changes_one_number_or_name(benchmark):
    generator = random.Random(0)
    for _ in range(50):
        swapped = benchmark.swap_entity("He moved to Berlin in 1933.", ["Paris", "New York"], generator)
        assert swapped != "He moved to Berlin in 1933."
        assert swapped == "He moved to Paris in 1933." or (
            swapped.startswith("He moved to Berlin in 19") and len(swapped) == 27
        )
    assert benchmark.swap_entity("nothing to change here.", ["Paris"], generator) is None


@pytest.mark.slow
def test_wice_dev(benchmark, data_dir):
    rows = benchmark.read_jsonl(data_dir / "wice" / "claim-dev.jsonl")
    verdicts = LexicalJudge().judge([JudgeInput(row["claim"], tuple(row["evidence"])) for row in rows])
    labels = [row["label"] == "supported" for row in rows]
    assert len(rows) == 349
    assert pairwise_auroc([verdict.score or 0.0 for verdict in verdicts], labels) > 0.81


def test_what_is_known_of_words_does_not_grow_without_end(monkeypatch):
    """A server reads new names and numbers for months."""
    monkeypatch.setattr(lexicon, "MOST_KNOWN", 8)
    words = lexicon.Lexicon()
    first = words.keys("rise")
    for number in range(50):
        words.keys(f"name{number}")
        assert words.entry(f"name{number}") is None
    assert len(words._known) <= 8 and not any(name.startswith("name") for name in words._entries)
    assert words.keys("rise") == first and words.relation("rise", "fall") == lexicon.OPPOSITE


def test_few_and_many_sentences_are_looked_up_alike(monkeypatch):
    claims = [
        "Einstein was born in Ulm in 1879.",
        "Einstein was born in Bern.",
        "He won the Nobel Prize in 1921, not in 1922.",
    ]
    inputs = [JudgeInput(claim, tuple(EINSTEIN)) for claim in claims]
    found = []
    for few in (0, 300):
        monkeypatch.setattr(lexical_judge, "FEW_SENTENCES", few)
        _index.cache_clear()
        found.append(LexicalJudge().judge(inputs))
        assert _index(tuple(EINSTEIN))._holds_all == (few == 0)
    _index.cache_clear()
    assert found[0] == found[1]


def test_shared_evidence_does_not_remember_words_that_it_does_not_have():
    LexicalJudge().judge([JudgeInput(f"Xeno{number} was born in Ulm.", tuple(EINSTEIN)) for number in range(500)])
    index = _index(tuple(EINSTEIN))
    assert index._holders.keys() <= {term for terms in index.terms for term in terms}


def test_other_rules_are_another_judge(monkeypatch, tmp_path):
    """Else verdicts that are cached from before a rule changed would be taken for those of now."""
    folder = Path(lexical_judge.__file__).parent
    for path in (*folder.glob("*.py"), *folder.glob("*.gz")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(lexical_judge, "__file__", str(tmp_path / "judge.py"))
    assert lexical_judge._revision.__wrapped__() == LexicalJudge().revision
    with (tmp_path / "quantities.py").open("a", encoding="utf-8") as file:
        file.write("_COMBINED = 5\n")
    assert lexical_judge._revision.__wrapped__() != LexicalJudge().revision
