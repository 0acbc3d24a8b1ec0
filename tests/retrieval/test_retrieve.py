"""Passages, BM25 and the retrievers, against slow implementations and fakes that count what they are asked."""

import asyncio
import importlib.util
import logging
import math
import os
import pickle
import random
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hf_factuality.errors import RetrievalError
from hf_factuality.generation.cache import AnswerCache
from hf_factuality.retrieval.corpus import CorpusRetriever
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.retrieval.pages import Page
from hf_factuality.retrieval.passages import (
    FACTSCORE_PASSAGES,
    METHODS,
    RLFH_PASSAGES,
    Passage,
    PassageConfig,
    best_places,
    bm25_index,
    bm25_scores,
    split_passages,
    terms,
)
from hf_factuality.retrieval.retrievers import CombinedRetriever, DenseRetriever, TopicRetriever
from hf_factuality.retrieval.web import WebRetriever
from hf_factuality.verifiers import LexicalJudge, RowEvidence, SentenceExtractor, VerifierInput, VerifierPipeline
from tests.conftest import searched
from tests.hub.loopback import hub  # noqa: F401 - a fixture
from tests.verifiers.hostile import hostile_strings


WORDS = "river minster city danube born physicist theory light swim fish market tower king war bridge song".split()


def sentence(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(WORDS, k=length)).capitalize() + "."


def page_text(rng: random.Random, sentences: int) -> str:
    return " ".join(sentence(rng, rng.randint(2, 12)) for _ in range(sentences))


def row(topic, completion: str = "") -> VerifierInput:
    return VerifierInput(completion, row={"topic": topic})


ULM = "Ulm is a city on the Danube. Albert Einstein was born there. Its minster has the tallest steeple of all."
ROWS = [
    ("Ulm", ULM),
    ("Albert Einstein", "He was a physicist. He was born in 1879. He found the theory of relativity."),
    ("Dots", "... !!! ... ---"),
    ("东京", "东京是日本的首都。东京塔高333米。"),
]


@pytest.fixture
def base(tmp_path) -> KnowledgeBase:
    return KnowledgeBase.build(tmp_path / "kb.sqlite", ROWS)


# Passages


def letters_outside(text: str, passages: list[Passage]) -> str:
    covered = {place for passage in passages for place in range(passage.start, passage.end)}
    return "".join(char for place, char in enumerate(text) if char.isalnum() and place not in covered)


@pytest.mark.parametrize("size", [1, 7, 20, 1000])
def test_windows_hold_whole_sentences_up_to_the_limit(size):
    rng = random.Random(size)
    for _ in range(20):
        text = "\n".join(page_text(rng, rng.randint(0, 9)) for _ in range(3))
        passages = split_passages(Page(1, "T", text), PassageConfig("windows", size))
        assert all(passage.text == text[passage.start : passage.end] for passage in passages)
        assert all(1 <= len(passage.text.split()) <= size for passage in passages)
        assert all(a.end <= b.start for a, b in zip(passages, passages[1:], strict=False))
        assert letters_outside(text, passages) == ""
        # Greedy, by another road: sentences are what ends in a full stop here.
        expected, words = [], []
        for found in re.findall(r"[^.\n]+\.", text):
            new = found.split()
            if words and len(words) + len(new) > size:
                expected.append(words)
                words = []
            words = words + new
            while len(words) > size:
                expected.append(words[:size])
                words = words[size:]
        if size >= 20:  # smaller ones cut sentences, whose last part may take up the next sentence
            assert [passage.text.split() for passage in passages] == [*expected, words] if words else expected


def test_windows_overlap_by_sentences():
    one, two, three, four, five = (f"{word} river." for word in ("One", "Two", "Three", "Four", "Five"))
    page = Page(1, "T", f"{one} {two} {three} {four} {five}")
    passages = split_passages(page, PassageConfig("windows", 6, overlap=1))
    assert [passage.text for passage in passages] == [f"{one} {two} {three}", f"{three} {four} {five}"]
    passages = split_passages(page, PassageConfig("windows", 2, overlap=5))
    assert [passage.text for passage in passages] == [one, two, three, four, five]


def test_sections_end_after_the_sentence_that_passes_the_limit():
    """RLFH's build_sections: sentences are taken until there are more than 64 tokens, marks counted."""
    rng = random.Random(0)
    text = page_text(rng, 60)
    expected, section, tokens = [], [], 0
    for found in re.findall(r"[^.]+\.", text):
        section.append(found.strip())
        tokens += len(found.split()) + 1  # the full stop
        if tokens > 64:
            expected.append(" ".join(section))
            section, tokens = [], 0
    passages = split_passages(Page(1, "T", text), RLFH_PASSAGES)
    assert [passage.text for passage in passages] == [*expected, " ".join(section)] if section else expected


def test_chinese_words_are_pairs():
    text = "东京是日本的首都。" * 10
    passages = split_passages(Page(1, "东京", text), PassageConfig("windows", 8))
    assert [len(passage.text) for passage in passages] == [18] * 5


def test_chunks_that_the_page_stores_are_taken():
    page = Page(1, "T", "One two\nthree four", chunks=((0, 4), (4, 18)))
    assert [passage.text for passage in split_passages(page, FACTSCORE_PASSAGES)] == ["One ", "two\nthree four"]
    with pytest.raises(RetrievalError, match="roberta-large"):
        split_passages(Page(1, "T", "text"), PassageConfig("chunks", 256))


def test_chunks_of_tokens(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    text = "  The first line, with words.\n\nA second line 日本 of it.  \n"
    stream = [token for line in text.split("\n") if line.strip() for token in tokenizer(line.rstrip())["input_ids"]]
    passages = split_passages(Page(1, "T", text), PassageConfig("chunks", 7, tokenizer=tiny_model))
    assert all(passage.text == text[passage.start : passage.end] for passage in passages)
    assert all(a.end <= b.start for a, b in zip(passages, passages[1:], strict=False))
    assert letters_outside(text, passages) == ""
    for number, passage in enumerate(passages):
        decoded = tokenizer.decode(stream[7 * number : 7 * number + 7]).replace("\ufffd", "").strip()
        assert re.sub(r"\s+", "", decoded) in re.sub(r"\s+", "", passage.text)


@pytest.mark.parametrize("text", ["", " \n ", "... !!! ---", "\u200f", "\0"])
@pytest.mark.parametrize("config", [PassageConfig(), RLFH_PASSAGES])
def test_pages_without_words_have_no_passages(text, config):
    assert split_passages(Page(1, "T", text), config) == []


def test_passage_settings_are_checked():
    for arguments in [{"style": "pages"}, {"size": 0}, {"overlap": -1}]:
        with pytest.raises(ValueError):
            PassageConfig(**arguments)


# BM25


def test_terms():
    found = terms("The cities of O’Neill's Ulm: 1,000 gallery-goers!")
    assert found == ["city", "o'neill", "ulm", "1000", "gallery", "goer"]
    assert terms("日本的首都 ＡＢＣ") == ["日本", "本的", "的首", "首都", "abc"]
    assert terms("Müllers Glass is buses") == ["müller", "glass", "buse"]
    assert terms("") == terms("of the !") == []


def slow_bm25(query: list[str], documents: list[list[str]], method: str, k1: float, b: float) -> list[float]:
    """Kamphuis et al. (ECIR 2020), as `bm25s` documents its variants."""
    count = len(documents)
    mean = sum(map(len, documents)) / count
    scores = []
    for document in documents:
        score = 0.0
        for term in query:
            df = sum(term in other for other in documents)
            tf = document.count(term)
            if not df:
                continue
            odds = (count - df + 0.5) / (df + 0.5)
            idf = {"lucene": math.log(1 + odds), "robertson": math.log(max(1, odds)), "atire": math.log(count / df)}
            part = tf / (tf + k1 * (1 - b + b * len(document) / mean)) * (k1 + 1 if method == "atire" else 1)
            score += idf[method] * part
        scores.append(score)
    return scores


@pytest.mark.parametrize("method", METHODS)
def test_bm25_equals_a_slow_implementation(method):
    rng = random.Random(1)
    for _ in range(30):
        documents = [rng.choices(WORDS, k=rng.randint(0, 12)) for _ in range(rng.randint(1, 9))]
        k1, b = rng.uniform(0.5, 2), rng.random()
        query = [*rng.choices(WORDS, k=rng.randint(0, 6)), "unheard"]
        index = bm25_index(documents, k1, b, method)
        if not any(documents):
            assert index is None
            continue
        scores = bm25_scores(index, query, len(documents))
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, slow_bm25(query, documents, method, k1, b), rtol=1e-5, atol=1e-6)


def test_bm25_is_quiet_and_refuses_variants_without_zero(caplog):
    caplog.set_level(logging.DEBUG)
    bm25_index([["a"], ["b"]])
    assert caplog.text == ""
    with pytest.raises(ValueError, match="variant must be one of"):
        bm25_index([["a"]], method="bm25+")


def test_best_places():
    rng = random.Random(2)
    for _ in range(200):
        scores = np.array([rng.choice([0, 0, 1, 2, 3, -1]) for _ in range(rng.randint(0, 12))], dtype=np.float32)
        k = rng.randint(1, 6)
        ranked = sorted((place for place, score in enumerate(scores) if score > 0), key=lambda p: (-scores[p], p))
        assert best_places(scores, k) == ranked[:k]


# The topic's page


def test_the_best_passage_of_the_topics_page_comes_first(base):
    retriever = TopicRetriever(base, top_k=2, passages=PassageConfig(size=10), passage_format="title")
    claims = [["The minster has a tall steeple.", "Einstein was born here."], ["He found relativity."]]
    found = retriever.retrieve([row("Ulm"), row("albert_einstein")], claims)
    assert found[0] == [
        ("Ulm: Its minster has the tallest steeple of all.", "Ulm: Ulm is a city on the Danube."),
        ("Ulm: Albert Einstein was born there.", "Ulm: Ulm is a city on the Danube."),
    ]
    assert found[1][0][0] == "Albert Einstein: He found the theory of relativity."
    (hits,) = retriever.search([row("Ulm")], [["minster"]])
    first = hits[0][0]
    assert first.text == ULM[first.start : first.end] and first.score > 0 == hits[0][1].score
    text = TopicRetriever(base, passage_format="factscore").retrieve([row("东京")], [["东京塔"]])[0][0][0]
    assert text == "Title: 东京\nText: 东京是日本的首都。东京塔高333米。"


def test_topics_that_are_missing_are_unknown(base, caplog):
    retriever = TopicRetriever(base)
    inputs = [row("Ulm"), row("Atlantis"), row(None), row("  "), row("Dots")]
    claims = [["It is a city."], ["It sank.", "It is lost."], ["A claim."], [], ["A dot."]]
    found = retriever.retrieve(inputs, claims)
    assert [[passages and len(passages) for passages in texts] for texts in found] == [
        [1],
        [None, None],
        [None],
        [],
        [None],
    ]
    assert retriever.retrieve(inputs, claims)[1] == [None, None]
    assert retriever.counts == {"claims": 10, "without_evidence": 8, "missing_pages": 4, "missing_topics": 4}
    assert "missing pages: 2 so far, the last 'Dots'; the claims concerned get no evidence" in caplog.text
    assert len(caplog.records) == 4  # at 2 and 4, of each kind
    assert retriever.retrieve([], []) == []


def test_claims_without_evidence_stay_unjudged(base):
    pipeline = VerifierPipeline(SentenceExtractor(), LexicalJudge(), TopicRetriever(base))
    known, unknown = pipeline.verify([row("Ulm", "Ulm is a city on the Danube."), row("Atlantis", "Atlantis sank.")])
    assert known.spans[0].label is not None
    assert unknown.spans[0].label is None and not unknown.judged


def test_several_pages_are_searched_together(base):
    retriever = TopicRetriever(base, top_k=1, passage_format="rlfh")
    inputs = [row(["Ulm", "Nowhere", "Albert Einstein", "ulm"])] * 2
    found = retriever.retrieve(inputs, [["He found relativity."], ["A city on a river, the Danube."]])
    assert [row[0][0].split(">")[0] for row in found] == ["<Albert Einstein", "<Ulm"]
    assert retriever.counts["missing_pages"] == 0


def test_what_does_not_match_is_padded_with_the_start_of_the_page(base):
    config = PassageConfig(size=10)
    (padded,) = TopicRetriever(base, passages=config, top_k=2).search([row("Ulm")], [["zzz"]])
    assert [(passage.text[:10], passage.score) for passage in padded[0]] == [("Ulm is a c", 0.0), ("Albert Ein", 0.0)]
    assert TopicRetriever(base, passages=config, pad=False).retrieve([row("Ulm")], [["zzz"]]) == [[()]]


def slow_rlfh(claim: str, texts: list[str], k: int) -> list[str]:
    """RLFH's get_bm25_passages, with this package's terms and idf: keep_topk per sentence, the sum, the best k above 0."""
    documents = [terms(text) for text in texts]
    total = [0.0] * len(texts)
    for query in re.findall(r"[^.]+\.", claim):
        scores = slow_bm25(terms(query), documents, "lucene", 1.5, 0.75)
        if len(scores) > k:
            bound = sorted(scores, reverse=True)[k - 1]
            scores = [0 if score < bound - 1e-9 else score for score in scores]
        total = [a + b for a, b in zip(total, scores, strict=True)]
    ranked = sorted(range(len(texts)), key=lambda place: (-round(total[place], 5), place))
    return [texts[place] for place in ranked[:k] if total[place] > 0]


def test_rlfh_adds_up_the_best_of_each_sentence(tmp_path):
    rng = random.Random(3)
    text = page_text(rng, 60)
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [("T", text)])
    texts = [passage.text for passage in split_passages(base["T"], RLFH_PASSAGES)]
    assert len(texts) > 4
    for k in (2, 3):
        settings = {"query": "sentences", "pad": False, "passages": RLFH_PASSAGES, "passage_format": "text"}
        retriever = TopicRetriever(base, top_k=k, **settings)
        for _ in range(20):
            claim = page_text(rng, rng.randint(1, 3))
            assert list(retriever.retrieve([row("T")], [[claim]])[0][0]) == slow_rlfh(claim, texts, k)
    assert retriever.retrieve([row("T")], [["", "..."]]) == [[(), ()]]


def test_topic_settings_are_checked(base, tmp_path):
    for arguments in [{"top_k": 0}, {"query": "question"}, {"passage_format": "html"}, {"method": "bm25l"}]:
        with pytest.raises(ValueError):
            TopicRetriever(base, **arguments)
    with pytest.raises(ValueError, match="query must be one of"):  # before a base is opened
        TopicRetriever(tmp_path / "none.sqlite", query="question")
    with pytest.raises(RetrievalError, match="there is no knowledge base"):
        TopicRetriever(tmp_path / "none.sqlite")
    retriever = TopicRetriever(base.path, topic_column="entity")
    with pytest.raises(RetrievalError, match=r"no row has the column 'entity' \(columns: \['topic'\]\); name it"):
        retriever.retrieve([row("Ulm")], [["A claim."]])
    with pytest.raises(RetrievalError, match="must be a title or a list of them, got 7"):
        TopicRetriever(base).retrieve([row(7)], [["A claim."]])


@searched(8, 1000)
def test_hostile_strings_are_text(tmp_path, count):
    texts = hostile_strings()
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [(f"{n} {text[:300]}", text) for n, text in enumerate(texts)])
    assert base.counts["documents"] + base.counts["empty"] == len(texts)
    for page in base:
        for config in (PassageConfig(), RLFH_PASSAGES):
            for passage in split_passages(page, config):
                assert passage.text == page.text[passage.start : passage.end] != ""
    corpus = CorpusRetriever.build(base)
    for query in ("topic", "sentences"):
        retriever = TopicRetriever(base, query=query, max_pages=4)
        for number, text in list(enumerate(texts))[:: max(len(texts) // count, 1)]:
            if query == "topic" and len(text) > 10_000:
                continue
            inputs, claims = [row(f"{number} {text[:300]}"), row(text)], [[text], ["A claim."]]
            for found in (retriever.retrieve(inputs, claims), corpus.retrieve(inputs, claims)):
                assert [len(answers) for answers in found] == [1, 1]
                assert all(
                    isinstance(passage, str) for answers in found for answer in answers for passage in answer or ()
                )


@pytest.mark.slow
def test_threads_find_the_same(tmp_path):
    rng = random.Random(4)
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [(f"T{n}", page_text(rng, 30)) for n in range(20)])
    retriever = TopicRetriever(base, passages=PassageConfig(size=12), max_pages=3)
    inputs = [row(f"t{rng.randrange(22)}") for _ in range(24)]
    claims = [[page_text(rng, 1) for _ in range(3)] for _ in inputs]
    expected = TopicRetriever(base, passages=PassageConfig(size=12)).retrieve(inputs, claims)
    with ThreadPoolExecutor(6) as pool:
        assert all(found == expected for found in pool.map(lambda _: retriever.retrieve(inputs, claims), range(8)))
    assert retriever.counts["claims"] == 8 * 72
    assert retriever._pages.cache_info().currsize == 3


# Dense


class Encoder:
    """Counts of a few words; records what it is asked."""

    def __init__(self):
        self.calls = []

    def encode(self, texts, batch_size, show_progress_bar):
        assert not show_progress_bar
        self.calls.append(list(texts))
        words = ["city", "born", "steeple", "physicist", "1879", "relativity"]
        return np.array([[text.lower().count(word) for word in words] for text in texts], dtype=np.float64)


def test_dense_ranks_by_the_inner_product(base):
    encoder = Encoder()
    retriever = DenseRetriever(base, encoder, top_k=2, passages=PassageConfig(size=10), passage_format="text")
    inputs = [row("Ulm"), row("Albert Einstein"), row("Atlantis")]
    claims = [["Born in a city.", "The steeple."], ["A theory."], ["It sank."]]
    found = retriever.retrieve(inputs, claims)
    assert found[0] == [
        ("Ulm is a city on the Danube.", "Albert Einstein was born there."),
        ("Its minster has the tallest steeple of all.", "Ulm is a city on the Danube."),
    ]
    assert len(found[1][0]) == 2 and found[2] == [None]
    assert encoder.calls[0][0] == "Ulm Ulm is a city on the Danube."  # title and text
    assert encoder.calls[-1] == ["Ulm Born in a city.", "Ulm The steeple.", "Albert Einstein A theory."]
    retriever.retrieve(inputs, claims)
    assert len(encoder.calls) == 4  # pages once each; the queries of each call together


@pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is not None, reason="it is installed")
def test_dense_names_what_to_install(base):
    with pytest.raises(ImportError, match=r"pip install hf_factuality\[dense\]"):
        DenseRetriever(base)


# The whole base


@pytest.fixture
def corpus(tmp_path) -> KnowledgeBase:
    rng = random.Random(6)
    return KnowledgeBase.build(tmp_path / "corpus.sqlite", [(f"Page {n}", page_text(rng, 8)) for n in range(40)])


@pytest.mark.slow
def test_corpus_scores_equal_a_slow_implementation(corpus):
    config = PassageConfig(size=15)
    retriever = CorpusRetriever.build(corpus, config, top_k=4)
    passages = [passage for page in corpus for passage in split_passages(page, config)]
    documents = [terms(f"{passage.title} {passage.text}") for passage in passages]
    assert len(retriever) == len(passages)
    rng = random.Random(7)
    for _ in range(10):
        claim = page_text(rng, 1)
        scores = slow_bm25(terms(claim), documents, "lucene", 1.5, 0.75)
        (((*found,),),) = retriever.search([VerifierInput("")], [[claim]])
        ranked = sorted(range(len(scores)), key=lambda place: (-round(scores[place], 5), place))[:4]
        assert [replace(hit, score=None) for hit in found] == [passages[place] for place in ranked]
        np.testing.assert_allclose([hit.score for hit in found], [scores[place] for place in ranked], rtol=1e-4)


def test_corpus_finds_nothing_where_no_word_is_shared(corpus):
    retriever = CorpusRetriever.build(corpus, top_k=3, query_columns=["topic"], passage_format="text")
    assert retriever.retrieve([row(None), row("")], [["zzz", "of the", ""], []]) == [[(), (), ()], []]
    assert retriever.counts == {"claims": 3, "without_evidence": 3}
    with_topic = retriever.search([row("Page 7")], [["zzz"]])[0][0]
    assert with_topic and all(hit.score > 0 for hit in with_topic) and with_topic[0].title == "Page 7"


def test_an_index_is_saved_and_loaded(corpus, tmp_path):
    retriever = CorpusRetriever.build(corpus, PassageConfig("sections", 20), top_k=3)
    folder = tmp_path / "a" / "index"
    retriever.save_pretrained(folder)
    loaded = CorpusRetriever(corpus.path, folder, top_k=3)
    rng = random.Random(8)
    claims = [[page_text(rng, 2) for _ in range(20)]]
    assert loaded.search([VerifierInput("")], claims) == retriever.search([VerifierInput("")], claims)
    assert loaded.index.passages == PassageConfig("sections", 20)
    assert isinstance(loaded.index.bm25.scores["data"], np.memmap)
    with pytest.raises(RetrievalError, match="is there already"):
        retriever.save_pretrained(folder)
    retriever.save_pretrained(folder, overwrite=True)
    assert [path.name for path in folder.parent.iterdir()] == ["index"]
    # The same files on every run.
    CorpusRetriever.build(corpus, PassageConfig("sections", 20)).save_pretrained(tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    with ThreadPoolExecutor(4) as pool:
        expected = retriever.retrieve([VerifierInput("")], claims)
        assert all(f == expected for f in pool.map(lambda _: loaded.retrieve([VerifierInput("")], claims), range(8)))


def test_an_index_of_another_base_is_refused(corpus, base, tmp_path):
    CorpusRetriever.build(corpus).save_pretrained(tmp_path / "index")
    with pytest.raises(RetrievalError, match="was made from another knowledge base"):
        CorpusRetriever(base, tmp_path / "index")
    with pytest.raises(RetrievalError, match="there is no folder no/where"):
        CorpusRetriever(base, "no/where")


DAMAGES = {
    "missing": lambda folder, other: (folder / "passages.npy").unlink(),
    "json": lambda folder, other: (folder / "retriever.json").write_text("{"),
    "truncated": lambda folder, other: os.truncate(folder / "data.csc.index.npy", 200),
    "mixed": lambda folder, other: shutil.copy(other / "passages.npy", folder),
    "terms": lambda folder, other: (folder / "retriever.json").write_text(
        (folder / "retriever.json").read_text().replace('"terms": 1', '"terms": 99')
    ),
    "empty": lambda folder, other: [path.unlink() for path in folder.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_refused_in_one_line(corpus, base, tmp_path, damage):
    folder, other = tmp_path / "index", tmp_path / "other"
    CorpusRetriever.build(corpus).save_pretrained(folder)
    CorpusRetriever.build(base).save_pretrained(other)
    DAMAGES[damage](folder, other)
    with pytest.raises(RetrievalError, match="build it again") as caught:
        CorpusRetriever(corpus, folder)
    assert "\n" not in str(caught.value)


def test_a_base_without_words_has_an_empty_index(tmp_path):
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [("!", "...")])
    retriever = CorpusRetriever.build(base)
    assert retriever.retrieve([VerifierInput("")], [["A claim."]]) == [[()]]
    with pytest.raises(RetrievalError, match="no words to index"):
        retriever.save_pretrained(tmp_path / "index")


def test_an_index_goes_to_and_comes_from_the_hub(corpus, tmp_path, hub):  # noqa: F811
    retriever = CorpusRetriever.build(corpus, passage_format="text")
    oid = retriever.push_to_hub("index").oid
    repo = hub.repos["model", "someone/index"]
    assert repo.private and len(repo.log) == 2 and repo.refs["main"] == oid
    assert retriever.config()["index"] == "someone/index" and retriever.config()["revision"] == oid
    repo.commit("main", "emptied", {})
    loaded = CorpusRetriever(corpus, "someone/index", revision=oid, passage_format="text")
    inputs, claims = [VerifierInput("")], [["The river and the king."]]
    assert loaded.retrieve(inputs, claims) == retriever.retrieve(inputs, claims)
    import bm25s

    for name, data in repo.files(oid).items():
        (tmp_path / name).write_bytes(data)
    alone = bm25s.BM25.load(tmp_path)
    assert alone.get_scores(["river"]).max() > 0


# The web


class Engine:
    """A search function that fails, hangs and counts."""

    def __init__(self, failures: int = 0, delay: float = 0.0):
        self.failures, self.delay = failures, delay
        self.queries, self.now, self.most = [], 0, 0
        self.lock = threading.Lock()

    def __call__(self, query):
        with self.lock:
            self.queries.append(query)
            self.now += 1
            self.most = max(self.most, self.now)
            fail = self.queries.count(query) <= self.failures
        time.sleep(self.delay)
        with self.lock:
            self.now -= 1
        if fail:
            raise ConnectionError("key sk-0123456789abcdef refused")
        return [f"{query} 1", " ", f"{query} 2", f"{query} 1", f"{query} 3"]

    async def later(self, query):
        await asyncio.sleep(0)
        return self(query)


@pytest.mark.parametrize("kind", ["plain", "async", "awaitable"])
def test_web_passages_come_in_order(kind):
    engine = Engine()
    search = {"plain": engine, "async": engine.later, "awaitable": lambda query: engine.later(query)}[kind]
    retriever = WebRetriever(search, top_k=2, query_columns=["topic", "none"])
    inputs, claims = [row("Ulm"), row(None), row("Ulm")], [["a", "b"], ["a", " "], ["a"]]
    found = retriever.retrieve(inputs, claims)
    assert found == [[("Ulm a 1", "Ulm a 2"), ("Ulm b 1", "Ulm b 2")], [("a 1", "a 2"), ()], [("Ulm a 1", "Ulm a 2")]]
    assert sorted(engine.queries) == ["Ulm a", "Ulm b", "a"]
    assert retriever.counts == {"claims": 5, "without_evidence": 1, "failed_queries": 0, "unsent_queries": 0}


def test_web_retries_and_gives_up(caplog):
    engine = Engine(failures=2)
    assert WebRetriever(engine, backoff=0.001).retrieve([row("")], [["a"]]) == [[("a 1", "a 2", "a 3")]]
    assert len(engine.queries) == 3
    engine = Engine(failures=2)
    retriever = WebRetriever(engine, retries=1, backoff=0.001)
    assert retriever.retrieve([row("")], [["a"]]) == [[None]]
    assert retriever.counts == {"claims": 1, "without_evidence": 1, "failed_queries": 1, "unsent_queries": 0}
    assert "ConnectionError" in caplog.text and "0123456789" not in caplog.text


def test_web_stops_asking_an_engine_that_is_down():
    engine = Engine(failures=99)
    retriever = WebRetriever(engine, retries=0, concurrency=1, max_failures=3)
    assert retriever.retrieve([row("")], [[f"q{n}" for n in range(50)]]) == [[None] * 50]
    assert len(engine.queries) == 3
    assert retriever.counts["failed_queries"] == 3 and retriever.counts["unsent_queries"] == 47


def test_web_concurrency_is_bounded_over_threads():
    engine = Engine(delay=0.01)
    retriever = WebRetriever(engine, concurrency=4)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: retriever.retrieve([row("")], [[f"{n} {m}" for m in range(20)]]), range(3)))
    assert len(engine.queries) == 60 and 2 <= engine.most <= 4


def test_web_leaves_a_search_that_hangs():
    release = threading.Event()

    def hang(query):
        if query == "slow":
            release.wait(60)
        return [query]

    async def hang_too(query):
        await asyncio.sleep(60 if query == "slow" else 0)
        return [query]

    def retrieved(search):
        return WebRetriever(search, timeout=1.0, retries=0).retrieve([row("")], [["slow", "quick"]])

    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(retrieved, (hang, hang_too))) == [[[None, ("quick",)]]] * 2
    assert time.monotonic() - started < 50
    release.set()


def raising(error):
    def search(query):
        raise error

    return search


SEARCHES = [lambda query: "text", lambda query: None, lambda query: [1], raising(StopIteration), raising(SystemExit)]


@pytest.mark.parametrize("search", SEARCHES)
def test_web_answers_that_are_none_are_failures(search):
    retriever = WebRetriever(search, retries=0)
    assert retriever.retrieve([row("")], [["a"]]) == [[None]]
    assert retriever.counts["failed_queries"] == 1


def test_web_answers_are_kept(tmp_path):
    engine = Engine()
    cache = AnswerCache(tmp_path / "answers.sqlite")
    first = WebRetriever(engine, name="engine-1", cache=cache).retrieve([row("")], [["a", "\ud800"]])
    assert WebRetriever(engine, name="engine-1", top_k=1, cache=cache).retrieve([row("")], [["a"]]) == [[("a 1",)]]
    assert len(first[0][0]) == 3 and sorted(engine.queries) == ["a", "\ud800"]
    WebRetriever(engine, name="engine-2", cache=cache).retrieve([row("")], [["a"]])
    assert len(engine.queries) == 3
    failing = Engine(failures=99)
    retriever = WebRetriever(failing, retries=0, cache=cache)
    retriever.retrieve([row("")], [["a"]])
    retriever.retrieve([row("")], [["a"]])
    assert len(failing.queries) == 2  # failures are asked again


def test_a_cache_that_fails_costs_no_answer(caplog):
    class Broken:
        def get(self, key):
            return {"passages": "no list"}

        def put(self, key, value):
            raise OSError("disk full")

    assert WebRetriever(Engine(), cache=Broken()).retrieve([row("")], [["a"]]) == [[("a 1", "a 2", "a 3")]]
    assert "disk full" in caplog.text


def test_web_settings_are_checked():
    for arguments in [{"top_k": 0}, {"concurrency": 0}, {"timeout": 0}, {"retries": -1}, {"timeout": math.inf}]:
        with pytest.raises(ValueError, match="must be positive"):
            WebRetriever(Engine(), **arguments)


# Several


class Fixed:
    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def retrieve(self, inputs, claims):
        self.asked.append([list(texts) for texts in claims])
        return [[tuple(self.answers.get(claim, ())) for claim in texts] for texts in claims]


def test_the_next_retriever_is_asked_only_for_what_is_missing():
    first, second = Fixed(a=["1"]), Fixed(a=["x"], b=["2"], c=["3"])
    combined = CombinedRetriever([first, second, Fixed()])
    found = combined.retrieve([row(1), row(2), row(3)], [["a", "b"], ["a"], ["c", "d"]])
    assert found == [[("1",), ("2",)], [("1",)], [("3",), ()]]
    assert second.asked == [[["b"], ["c", "d"]]]
    with_rows = CombinedRetriever([RowEvidence(), second])
    assert with_rows.retrieve([VerifierInput("", evidence=("e",))], [["a"]]) == [[("e",)]]
    assert combined.retrieve([], []) == []


def test_passages_of_all_retrievers():
    parts = [Fixed(a=["p", "q", "p", "r"]), Fixed(a=["r", "s"])]
    assert CombinedRetriever(parts, "all").retrieve([row(1)], [["a"]]) == [[("p", "q", "r", "s")]]
    assert CombinedRetriever(parts, "all", top_k=2).retrieve([row(1)], [["a"]]) == [[("p", "q")]]
    # r: 1/63 + 1/61; p: 1/61; q and s: 1/62, of which q was found first
    assert CombinedRetriever(parts, "fusion").retrieve([row(1)], [["a"]]) == [[("r", "p", "q", "s")]]


def test_retrievers_say_how_to_make_them_again(base, tmp_path):
    def again(part):
        if not hasattr(part, "config"):
            return [again(item) for item in part] if isinstance(part, list) else part
        return type(part)(**{name: again(value) for name, value in part.config().items()})

    topic = TopicRetriever(base, top_k=2, query="sentences", passages=RLFH_PASSAGES, k1=0.9, passage_format="rlfh")
    corpus = CorpusRetriever.build(base, top_k=1, query_columns=["topic"])
    with pytest.raises(ValueError, match="in memory only"):
        corpus.config()
    corpus.save_pretrained(tmp_path / "index")
    combined = CombinedRetriever([topic, corpus], "all", top_k=3)
    made = again(combined)
    assert made.retrievers[0].passages == RLFH_PASSAGES and made.retrievers[0]._bm25["k1"] == 0.9
    inputs, claims = [row("Ulm"), row("none")], [["Born there. A steeple."], ["The physicist."]]
    assert made.retrieve(inputs, claims) == combined.retrieve(inputs, claims)
    assert pickle.loads(pickle.dumps(combined)).retrieve(inputs, claims) == made.retrieve(inputs, claims)
    with pytest.raises(ValueError, match="loaded model"):
        DenseRetriever(base, Encoder()).config()
    with pytest.raises(ValueError, match="cannot be saved"):
        WebRetriever(Engine()).config()


def test_combinations_are_checked():
    with pytest.raises(ValueError, match="at least one retriever"):
        CombinedRetriever([])
    with pytest.raises(ValueError, match="mode must be"):
        CombinedRetriever([Fixed()], "best")

    class Short:
        def retrieve(self, inputs, claims):
            return [[] for _ in claims]

    with pytest.raises(RetrievalError, match="Short must return one result per input and claim"):
        CombinedRetriever([Short()]).retrieve([row(1)], [["a"]])


def test_the_guide_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).resolve().parent.parent.parent / "docs" / "knowledge.md"
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)  # noqa: S102 - our own page
    assert "Ulm: Ulm is a city on the Danube." in capsys.readouterr().out
    asked = [["He was born in Ulm.", "zzz"]]
    assert names["first_local"].retrieve([names["row"]], asked)[0][0][0].startswith("Ulm: ")
    assert names["rlfh"].retrieve([names["row"]], asked)[0][1] == ()
