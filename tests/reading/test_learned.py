"""The model of declining: its features against slow loops, and what it leaves to the rules."""

import random
import time

import numpy as np
import pytest

from hf_factuality.reading import learned, read
from hf_factuality.reading.declining import is_refusal


def names(text):
    """Names of the classes of each word."""
    of = {number: name for name, number in learned._classes().number.items()}
    return [{of[one] for one in those} for those in learned.word_classes(text)[1]]


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ("I don't know.", [0, 1, 2], ["speaker", "not", "know"]),
        ("Ich weiß es nicht.", [0, 1, 3], ["speaker", "know", "not"]),
        ("Je ne sais pas.", [0, 1, 2, 3], ["speaker", "not", "know", "not"]),
        ("No lo recuerdo.", [0, 2, 2], ["not", "speaker", "remember"]),
        ("Non riesco ad aprire il file.", [0, 3, 5], ["not", "read", "file"]),
        ("Não encontrei nada.", [0, 1, 2], ["not", "find", "not"]),
        ("Спросите у врача.", [0, 2], ["ask", "expert"]),
        ("मुझे नहीं पता।", [0, 1, 2], ["speaker", "not", "know"]),
        ("我不知道。", [0, 1, 2], ["speaker", "not", "know"]),
        ("わかりません。", [0, 1], ["know", "not"]),
        ("It was Lima in 1821?", [2, 4, 5], ["name", "number", "?"]),
    ],
)
def test_classes_of_words_in_ten_languages(text, at, wanted):
    found = names(text)
    assert all(name in found[place] for place, name in zip(at, wanted, strict=True)), found


def test_rows_of_characters_are_equal_where_the_characters_are():
    """All pairs of n-grams of two texts, against the strings themselves."""
    texts = ["abcabd aß", "xabca я知"]
    grams, rows = [], []
    for text in texts:
        padded = f" {text} "
        grams += [padded[at : at + n] for n in range(1, 6) for at in range(len(padded) - n + 1)]
        rows += learned.character_features(text).tolist()
    assert len(grams) == len(rows) and all(0 <= row < 1 << learned.NGRAM_BITS for row in rows)
    by_gram = dict(zip(grams, rows, strict=True))
    assert [by_gram[gram] for gram in grams] == rows
    assert len(set(by_gram.values())) >= len(by_gram) - 1  # of 70 in 131,072 rows


def test_a_word_or_a_long_text_is_left_to_the_rules():
    rules = (0.0,) * 6
    assert learned.log_odds("Help", rules) is None
    assert learned.log_odds("Pelé, 1970.", rules) is None
    assert learned.log_odds("I do not know. " * 40, rules) is None
    assert learned.log_odds("不知道。" * 40, rules) is None
    assert learned.log_odds("I do not know.", rules) > 0 > learned.log_odds("I know it: Lima.", rules)


def test_the_rules_speak_for_declining():
    text = "Nobody told the crew."
    assert learned.log_odds(text, (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)) > learned.log_odds(text, (0.0,) * 6)


def test_log_odds_are_the_sums_of_the_table():
    """The weights read one by one, with the scales applied by hand."""
    from safetensors.numpy import load_file

    held = load_file(learned.WEIGHTS)
    assert {name: table.dtype for name, table in held.items()} == {
        "ngrams": "int8",
        "classes": "int8",
        "dense": "float32",
    }
    text, rules = "That is beyond me, sorry.", (1.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    found = learned.features(text, rules)
    dense = held["dense"].astype(float)
    total = dense[0] + dense[4] + dense[6]
    for scale, table, rows in zip(dense[1:4], ("ngrams", "ngrams", "classes"), found[:3], strict=True):
        total += scale * sum(float(held[table][row]) for row in rows) / np.sqrt(len(rows))
    assert learned.log_odds(text, rules) == pytest.approx(total)


def test_the_files_are_small():
    size = sum((learned.FOLDER / name).stat().st_size for name in ("declining.safetensors", "declining_words.txt"))
    assert size <= 300_000


@pytest.mark.parametrize(
    ("text", "declines"),
    [
        ("That's beyond me.", True),
        ("You would have to ask the museum.", True),
        ("No reliable source gives that figure.", True),
        ("Mes archives ne couvrent pas cette période.", True),
        ("Nobody Knows is a 2004 film by Hirokazu Kore-eda.", False),
        ("I don't know why people say that Einstein failed maths, but he did not.", False),
        ("Tungsten has the highest melting point of all metals.", False),
        ("Working memory holds about four chunks.", False),
        ("Chief Information Officer", False),
    ],
)
def test_what_the_model_adds_to_the_rules(text, declines):
    assert read(text).declines == declines


@pytest.mark.parametrize("text", ["It's not available in Canada.", "On ne peut pas diviser par zéro."])
def test_what_does_not_decline_is_a_claim(text):
    """The rules take it for a refusal, the model does not."""
    reading = read(text)
    assert is_refusal(text) and not reading.declines and [it.kind for it in reading.sentences] == ["statement"]


def test_an_answer_is_judged_in_little_time():
    random.seed(0)
    texts = [f"I do not know {random.choice(['who', 'why', 'when'])} it was {number}." for number in range(300)]
    rules = (0.0,) * 6
    learned.log_odds(texts[0], rules)
    start = time.process_time()
    for text in texts:
        learned.log_odds(text, rules)
    assert (time.process_time() - start) / len(texts) < 2e-3  # measured .0002
