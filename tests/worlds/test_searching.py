"""A closed world that is searched: its passages, what is right in it, and the policy's texts."""

import random

import pytest
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from hf_factuality.spans import Label
from hf_factuality.verifiers import VerifierInput
from hf_factuality.worlds.searching import (
    CURRENT,
    OUTDATED,
    RUMOUR,
    SearchWorld,
    SearchWorldConfig,
    SearchWorldVerifier,
    question,
    read_statements,
    unknown,
)


@pytest.fixture(scope="module")
def world():
    return SearchWorld(SearchWorldConfig(num_people=40))


def test_the_truth_is_what_the_current_passage_says(world):
    kinds = set()
    for name in world.people:
        for of, truth in world.truth[name].items():
            told = {text.split(":")[0]: read_statements(text)[0].value for text in world.passages[name]
                    if read_statements(text)[0].relation == of}  # fmt: skip
            kinds |= {(CURRENT in told, bool(told))}
            assert truth == told.get(CURRENT) and len({*told.values()}) == len(told)
    assert kinds == {(True, True), (False, True), (False, False)}
    assert not {*world.split("train")} & {*world.split("test")} and len(world.split("test")) == 20


def test_right_is_the_current_value_or_declining_where_there_is_none(world):
    name = next(
        name for name in world.people if None in world.truth[name].values() and any(world.truth[name].values())
    )
    known, gone = sorted(world.truth[name], key=lambda of: world.truth[name][of] is None)
    value, words = world.truth[name][known], {"home": "lives in", "work": "works for"}
    text = f"Today {name} {words[known]} {value} [1]. {unknown(gone, name)}."
    assert world.right(text, name) == {known: True, gone: True}
    both = f"Today {name} {words[known]} {value}. Today {name} {words[known]} Elsewhere."
    assert world.right(both, name) == {known: False, gone: False}, "listing several is not right"
    assert world.right(text.replace(name, "Nobody"), name) == {known: False, gone: False}


def test_labels_are_by_the_current_passages_that_are_given():
    evidence = (
        f"{CURRENT}: Mara lives in Vellin.",
        f"{OUTDATED}: Mara works for Ostry.",
        f"{RUMOUR}: Mara lives in Ulm.",
    )
    text = "Today Mara lives in Vellin [1]. Today Mara lives in Ulm [3]. Today Mara works for Ostry. Nobody knows where Mara works. Hm."
    (found,) = SearchWorldVerifier().verify([VerifierInput(text, evidence=evidence)])
    expected = [Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT, Label.UNVERIFIABLE]
    assert [span.label for span in found.spans] == expected
    (units,) = SearchWorldVerifier().extract([VerifierInput(text)])
    assert [unit.label for unit in units] == [None, None, None, Label.NO_FACT, None]


def test_a_search_finds_the_passages_about_a_person(world, tmp_path):
    environment = world.environment(tmp_path)()
    environment.reset()
    name = max(world.people, key=lambda name: len(world.passages[name]))
    shown = environment.search(name).splitlines()
    assert len(shown) == 4 and all(line.split(" ", 1)[1] in world.passages[name] for line in shown)
    assert f"{name} lives in" in environment.search(f"{name} lives").splitlines()[0]


def test_the_policy_speaks_the_language_of_its_template(world):
    tokenizer, rng = world.tokenizer(), random.Random(0)
    assert supports_tool_calling(tokenizer) and is_chat_template_prefix_preserving(tokenizer)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question("Mara")}], add_generation_prompt=True, tokenize=False
    )
    kinds = set()
    for _ in range(60):
        parts = list(world._demonstration(rng))
        assert parts[0][1].startswith(prompt.partition("Mara")[0])
        ids, labels = world._encoded(tokenizer, rng)
        assert tokenizer.unk_token_id not in ids and len(ids) == len(labels)
        call = next((text for own, text in parts if own and text.startswith("<call>")), None)
        kinds.add(call is None)
        if call:
            encoded = tokenizer(call, add_special_tokens=False)["input_ids"]
            (made,) = parse_response(tokenizer, encoded, prefix=tokenizer(prompt)["input_ids"])["tool_calls"]
            assert (
                made["function"]["name"] == "search"
                and made["function"]["arguments"]["query"].split()[0] in world.people
            )
    assert kinds == {True, False}
