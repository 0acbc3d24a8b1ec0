"""What keeps a card from being published, one broken card per rule; and the Hub's own validator, over HTTP."""

import pytest

from hf_factuality.errors import HubError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.cards.check import card_problems
from tests.hub.cards.card_oracle import assert_valid_header, header_and_text


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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\nlicense", "\n---\nlicense", "does not begin with a header"),
        ("- fspo", "- fspo: [", "no YAML"),
        ("library_name: transformers", "license: mit", "'license' stands twice"),
        ("apache-2.0", "apache2", "license 'apache2'"),
        ("license: apache-2.0", "license: other", "needs a license_name"),
        ("- zh", "- Chinese", "'Chinese', which is no ISO 639 code"),
        ("Qwen/Qwen2.5-7B-Instruct", "/models/qwen", "no id of a repository"),
        ("Qwen/Qwen2.5-7B-Instruct", "models/qwen/chat", "no id of a repository"),
        ("Qwen/Qwen2.5-7B-Instruct", "My Model", "no id of a repository"),
        ("Qwen/Qwen2.5-7B-Instruct", "./qwen", "no id of a repository"),
        ("- openai/gsm8k\n", "- null\n", "datasets holds None"),
        ("relation: finetune", "relation: tuned", "base_model_relation 'tuned'"),
        ("tags:\n- fspo\n- trl", "tags: fspo", "tags must be a list"),
        ("- trl", "- 7", "tags holds 7"),
        ("pipeline_tag: text-generation", "pipeline_tag: [a]", "pipeline_tag must be text"),
        ("- name: mine", "- title: mine", "model-index[0] needs a name"),
        ("    dataset:\n      name: gsm8k\n      type: openai/gsm8k\n", "", "needs dataset.type"),
        ("      type: openai/gsm8k\n", "", "needs dataset.type"),
        ("      name: gsm8k\n", "", "needs dataset.name"),
        ("- task:\n      type: text-generation", "- task:\n      type: 3", "needs task.type"),
        ("- task:\n      type: text-generation", "- task: {}", "needs task.type"),
        ("    - type: accuracy\n", "    - name: accuracy\n", "needs a type"),
        ("value: 0.5", "value: half", "needs a number as its value, got 'half'"),
        ("value: 0.5", "value: true", "needs a number"),
        ("    metrics:\n    - type: accuracy\n      value: 0.5\n", "", "needs a list of metrics"),
        ("# mine", "Trained in /home/ada/outputs/run.", "an absolute path ('/home/ada"),
        ("# mine", "Trained in `/scratch/x/y/z`.", "an absolute path"),
        ("# mine", "Judged by nli:/home/ada/judge.", "an absolute path ('/home/ada"),
        ("# mine", "See </home/ada/run>.", "an absolute path"),
        ("# mine", "Trained in C:\\runs\\mine.", "an absolute path"),
        ("# mine", "Key hf_abcdefghijklmnopqrstuvwx.", "what looks like a secret (Hugging Face token)"),
        ("# mine", "At https://ada:hunter2@example.org/x.", "the login of an address"),
        ("# mine", "Judge at http://10.0.0.7:8000/v1.", "the address of a server"),
        ("# mine", "Judge at http://judge:8000/v1.", "the address of a server"),
        ("# mine", "Judge at localhost:8000.", "the address of a server"),
    ],
)
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
