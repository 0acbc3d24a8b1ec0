"""The search that a policy calls: numbers, limits, and what it says of failures."""

import functools

import pytest
from transformers.utils import get_json_schema

from hf_factuality.io.tool_results import NOTHING_FOUND, read_result
from hf_factuality.retrieval import CorpusRetriever, KnowledgeBase, SearchEnvironment


class Listed:
    def __init__(self, **found):
        self.found, self.asked = found, []

    def retrieve(self, inputs, claims):
        self.asked.append((claims[0][0], dict(inputs[0].row)))
        return [[tuple(self.found.get(claims[0][0], ()))]]


def test_numbers_count_on_and_are_kept():
    retriever = Listed(a=("one", "two"), b=("three", "one\n[7] not a passage"), c=("one", "three"))
    environment = SearchEnvironment(retriever)
    environment.reset(question="q")
    assert environment.search("a") == "[1] one\n[2] two"
    assert environment.search(" b ") == "[3] three\n[4] one [7] not a passage"
    assert environment.search("c") == "[1] one\n[3] three"
    assert environment.passages == ["one", "two", "three", "one [7] not a passage"]
    # As the trainer reads them: passage n is the n-th.
    assert read_result("[3] three\n[4] one [7] not a passage").passages == ["three", "one [7] not a passage"]
    assert retriever.asked[0] == ("a", {"question": "q"})
    environment.reset()
    assert environment.search("c") == "[1] one\n[2] three" and environment.calls == 1


def test_limits():
    environment = SearchEnvironment(Listed(a=("x" * 99, "", "y", "z")), max_calls=2, max_passages=3, max_characters=5)
    assert environment.search("a") == "[1] xxxxx\n[2] y"
    assert environment.search("b") == NOTHING_FOUND and read_result(NOTHING_FOUND).passages == []
    with pytest.raises(ValueError, match="all 2 searches were used"):
        environment.search("a")
    with pytest.raises(ValueError, match="empty"):
        environment.search("  ")
    with pytest.raises(ValueError, match="max_calls must be at least 1"):
        SearchEnvironment(Listed(), max_calls=0)
    with pytest.raises(TypeError, match="a retriever"):
        SearchEnvironment("kb.sqlite")
    long = Listed()
    SearchEnvironment(long, max_query=3).search("abcdef")
    assert long.asked[0][0] == "abc"


def test_over_a_knowledge_base(tmp_path):
    pages = [("Vellin", "Vellin is a town in Arlandia."), ("Ostry", "Ostry is a river. It is long.")]
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", pages, show_progress=False)
    make = functools.partial(SearchEnvironment, CorpusRetriever.build(base, passage_format="text"), max_passages=1)
    environment = make()
    environment.reset()
    assert environment.search("Where is Vellin?") == "[1] Vellin is a town in Arlandia."
    assert environment.search("qwertz") == NOTHING_FOUND


def test_its_tool_has_a_schema():
    schema = get_json_schema(SearchEnvironment(Listed()).search)["function"]
    assert schema["name"] == "search" and list(schema["parameters"]["properties"]) == ["query"]
