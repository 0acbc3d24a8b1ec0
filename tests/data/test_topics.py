"""Selections by topic: against slow loops; embeddings against one forward pass per question."""

import math
import random

import numpy as np
import pytest
import torch

from hf_factuality.data.questions import PreferenceQuestion, read_questions
from hf_factuality.data.topics import embed_topics, select_by_distance, select_questions, topic_distances
from hf_factuality.errors import DataError


def questions(topics=12, each=5):
    rows = [
        {"id": f"{t}.{q}", "question": f"About {t}: {q}?", "topic": f"t{t}"}
        for t in range(topics)
        for q in range(each)
    ]
    random.Random(0).shuffle(rows)
    return read_questions(rows)


def ids(selected):
    return [question.id for question in selected]


def test_selections_are_nested():
    everything = questions()
    seen = {}
    for topics in (1, 4, 12, None):
        for each in (1, 3, 5, None):
            found = select_questions(everything, topics, each, seed=3)
            counts = {}
            for question in found:
                counts[question.topic] = counts.get(question.topic, 0) + 1
            assert len(counts) == (topics or 12) and set(counts.values()) == {each or 5}
            assert ids(found) == [key for key in ids(everything) if key in set(ids(found))]  # in their order
            seen[topics or 12, each or 5] = set(ids(found))
    for (topics, each), found in seen.items():
        for (more, more_each), others in seen.items():
            if topics <= more and each <= more_each:
                assert found <= others
    assert {key.split(".")[0] for key in seen[4, 1]} == {key.split(".")[0] for key in seen[4, 5]}


def test_selections_depend_on_the_seed_and_not_on_the_order():
    everything = questions()
    first = set(ids(select_questions(everything, 4, 2, seed=1)))
    assert first == set(ids(select_questions(everything[::-1], 4, 2, seed=1)))
    assert any(first != set(ids(select_questions(everything, 4, 2, seed=seed))) for seed in (2, 3))
    # Every topic is drawn about equally often: 400 draws of 3 of 12, expected 100 each, standard deviation below 9.
    drawn = [question.topic for seed in range(400) for question in select_questions(everything, 3, 1, seed)]
    assert all(60 < drawn.count(f"t{t}") < 140 for t in range(12))


def slow_distances(ours, targets):
    found = {}
    for name, vector in ours.items():
        if name not in targets:
            cosines = [
                sum(a * b for a, b in zip(vector, other, strict=True))
                / math.sqrt(sum(a * a for a in vector) * sum(b * b for b in other))
                for other in targets.values()
            ]
            found[name] = 1 - max(cosines)
    return found


def test_distances_and_choice_equal_a_slow_loop():
    rng = np.random.default_rng(0)
    ours = {f"t{t}": rng.normal(size=7) for t in range(12)}
    targets = {name: rng.normal(size=7) for name in ("a", "b", "t3")}
    distances = topic_distances(ours, targets)
    expected = slow_distances({name: list(map(float, v)) for name, v in ours.items()}, targets)
    assert distances == pytest.approx(expected, abs=1e-12) and set(distances) == set(ours) - {"t3"}
    for which, ordered in (("nearest", sorted), ("farthest", lambda x: sorted(x, reverse=True))):
        names = [name for _, name in ordered((value, name) for name, value in expected.items())]
        for count in (1, 5, 11):
            found = select_by_distance(questions(), distances, which, count, questions_per_topic=2)
            assert {question.topic for question in found} == set(names[:count]) and len(found) == 2 * count


def test_distances_by_hand():
    ours = {"same": [2.0, 0.0], "right angle": [0.0, 3.0], "opposite": [-1.0, 0.0]}
    assert topic_distances(ours, {"x": [1.0, 0.0]}) == pytest.approx({"same": 0, "right angle": 1, "opposite": 2})
    assert topic_distances(ours, {"x": [1.0, 0.0], "y": [0.0, 1.0]}) == pytest.approx(
        {"same": 0, "right angle": 0, "opposite": 1}
    )
    assert topic_distances({"x": [1.0, 0.0]}, {"x": [1.0, 0.0]}) == {}


def test_bad_selections():
    without = [PreferenceQuestion("1", (), "Who?")]
    for call, error, message in [
        (lambda: select_questions(without, 1), DataError, "'1' has no topic"),
        (lambda: select_questions(questions(), 13), DataError, "13 topics are wanted and there are 12"),
        (lambda: select_questions(questions(), 0), ValueError, "at least 1"),
        (lambda: select_questions(questions(), 1, 0), ValueError, "questions_per_topic must be at least 1"),
        (lambda: select_by_distance(questions(), {}, "nearest", 1), DataError, "1 topics are wanted and there are 0"),
        (lambda: select_by_distance(questions(), {}, "middle", 1), ValueError, "'middle'"),
        (lambda: topic_distances({"a": [1.0]}, {}), DataError, "no target"),
        (lambda: topic_distances({"a": [0.0]}, {"b": [1.0]}), DataError, "'a' is all zeros"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_embeddings_are_means_over_the_questions_own_tokens(tiny_model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model).train()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    texts = {
        "a": ["Where was she born?", "Paris?"],
        "b": ["Who won two prizes in 1903 and 1911, and where?"],
        "c": ["?"],
    }
    rows = [{"question": text, "topic": topic} for topic, many in texts.items() for text in many]
    found = embed_topics(read_questions(rows), model, tokenizer, batch_size=3)
    assert model.training and list(found) == list(texts)
    model.eval()
    for topic, many in texts.items():
        states = []
        for text in many:
            encoded = tokenizer(text, add_special_tokens=False, return_tensors="pt")
            with torch.no_grad():
                states.append(model(**encoded, output_hidden_states=True).hidden_states[-1][0].double())
        expected = torch.cat(states).mean(dim=0).numpy()
        assert np.abs(found[topic] - expected).max() < 1e-5 * np.abs(expected).max()


def test_special_tokens_are_context_but_not_part_of_the_mean(tiny_model):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", end)]
    )
    (found,) = embed_topics(read_questions([{"question": "Who?", "topic": "a"}]), model, tokenizer).values()
    encoded = tokenizer("Who?", return_tensors="pt")
    assert encoded["input_ids"][0, 0] == end
    with torch.no_grad():
        states = model(**encoded, output_hidden_states=True).hidden_states[-1][0, 1:].double()
    assert np.abs(found - states.mean(dim=0).numpy()).max() < 1e-5
