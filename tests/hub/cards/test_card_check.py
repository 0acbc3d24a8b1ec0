"""What keeps a card from being published, one broken card per rule; and the Hub's own validator, over HTTP."""

import json
from pathlib import Path

import pytest

from hf_factuality.errors import HubError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.cards.check import card_problems
from tests.hub.cards.card_oracle import assert_valid_header, header_and_text


TEXTS = json.loads((Path(__file__).resolve().parents[2] / "cases" / "texts.json").read_text(encoding="utf-8"))
GOOD = """---
license: apache-2.0
language:
- en
- zh
library_name: transformers
pipeline_tag: text-generation
base_model: Qwen/Qwen2.5-7B-Instruct
base_model_relation: finetune
datasets:
- openai/gsm8k
tags:
- fspo
- trl
model-index:
- name: mine
  results:
  - task:
      type: text-generation
    dataset:
      name: gsm8k
      type: openai/gsm8k
    metrics:
    - type: accuracy
      value: 0.5
---

# mine

See [the paper](https://huggingface.co/papers/2505.24630) and [the code](../examples/train.py), version 1.16.0, a / b and 3/4.
"""


def test_a_good_card():
    assert card_problems(GOOD) == []
    assert_valid_header(header_and_text(GOOD)[0])
    assert card_problems("---\ntags: []\n---\n\ntext\n") == []


@pytest.mark.parametrize(("old", "new", "message"), TEXTS["broken_cards"])
def test_a_broken_card(tmp_path, old, new, message):
    assert old in GOOD
    broken = GOOD.replace(old, new, 1)
    assert any(message in problem for problem in card_problems(broken)), card_problems(broken)
    (tmp_path / "README.md").write_text(broken, encoding="utf-8")
    with pytest.raises(HubError) as refusal:
        validate_card(tmp_path, ask_hub=False)
    assert message in str(refusal.value)
    assert not any(secret in str(refusal.value) for secret in ("abcdefghijkl", "hunter2"))


@pytest.mark.parametrize("index", ["3", "[]", "{name: mine}"])
def test_what_the_index_of_a_model_has_to_be(index):
    card = f"---\nlicense: mit\nmodel-index: {index}\n---\n"
    assert card_problems(card) == ["model-index must be a list with a model in it"]


@pytest.mark.parametrize("source", ["{}", "{url: 5}", "{url: ''}", "[]"])
def test_a_source_has_an_address(source):
    assert card_problems(GOOD) == []
    card = GOOD.replace("    metrics:\n", f"    source: {source}\n    metrics:\n", 1)
    assert card_problems(card) == ["model-index[0].results[0] needs source.url"]


def test_a_missing_card(tmp_path):
    with pytest.raises(HubError, match="no model card to read"):
        validate_card(tmp_path)


def test_the_hub_is_asked_where_it_answers(hub, tmp_path):
    card = tmp_path / "README.md"
    card.write_text(GOOD, encoding="utf-8")
    assert validate_card(card) is True
    assert hub.cards == [{"repoType": "model", "content": GOOD}]
    hub.fail("POST", "/api/validate-yaml", 400, body='"license" must be one of [...]')
    with pytest.raises(HubError, match="the Hub refuses the model card README.md: .*license.* must be one of"):
        validate_card(card)
    assert validate_card(card, ask_hub=False) is False and len(hub.calls) == 2
    hub.fail("POST", "/api/validate-yaml", 503, times=2)
    assert validate_card(card) is False
    with pytest.raises(HubError, match="could not be asked about README.md"):
        validate_card(card, ask_hub=True)
