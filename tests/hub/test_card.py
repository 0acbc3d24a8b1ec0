"""What a card says of a run: settings, verifier, machine, versions, base model and data. No places, no keys."""

import json
import subprocess
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, concatenate_datasets
from trl import DPOConfig, GRPOConfig

from hf_factuality import FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig
from hf_factuality.errors import HubError
from hf_factuality.hub import _card_settings
from hf_factuality.hub._card_settings import (
    HYPERPARAMETERS,
    WITHHELD,
    dataset_origin,
    describe_hardware,
    describe_rewards,
    describe_software,
    package_commit,
)
from hf_factuality.hub.card import changed_settings, describe_verifier, render_card
from hf_factuality.verifiers import LexicalVerifier, LLMJudge, NLIVerifier, SentenceExtractor, VerifierPipeline
from hf_factuality.verifiers.client import ChatClient
from tests.hub.card_oracle import assert_valid_header, header_and_text
from tests.trainers.test_mask_dpo_trainer import MaskDPOTrainer, make


CPU = {"use_cpu": True, "bf16": False}


def test_changed_settings_show_methods_and_no_places(tmp_path):
    (tmp_path / "my-critic").mkdir()
    args = TokenRewardPPOConfig(
        str(tmp_path), lam=0.9, critic_model=str(tmp_path / "my-critic"), learning_rate=3e-7,
        hub_model_id="somebody/model", hub_token="secret", run_name="mine", vllm_server_host="10.0.0.1",
        generation_kwargs={"api_key": "secret2", "top_a": 0.3}, value_clip=None,
        model_init_kwargs={"dtype": "float32", "token": "secret3", "cache_dir": str(tmp_path)}, **CPU,
    )  # fmt: skip
    found = dict(changed_settings(args))
    assert found["lam"] == 0.9 and found["learning_rate"] == 3e-7 and found["critic_model"] == "my-critic"
    assert found["generation_kwargs"] == {"top_a": 0.3} and found["model_init_kwargs"] == {"dtype": "float32"}
    assert found["value_clip"] is None, "switched off, which differs from the default"
    assert "gamma" not in found
    text = str(found)
    assert not any(word in text for word in (str(tmp_path), "secret", "10.0.0.1", "mine", "somebody"))


def test_settings_of_mask_dpo():
    args = MaskDPOConfig(
        "out",
        max_length=512,
        truncation_mode="keep_end",
        ld_alpha=0.5,
        tokens_outside="keep",
        chosen_labels=["supported"],
        loss_type=["ipo"],
        **CPU,
    )
    found = dict(changed_settings(args))
    assert (found["max_length"], found["truncation_mode"], found["ld_alpha"]) == (512, "keep_end", 0.5)
    assert found["tokens_outside"] == "keep" and "rejected_labels" not in found
    assert found["chosen_labels"] == ["supported"] and found["loss_type"] == ["ipo"]


@pytest.mark.parametrize("config", [FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig])
def test_every_setting_of_the_parents_is_shown_or_withheld(config):
    """A field that TRL adds fails here, until somebody says whether it is a hyper-parameter."""
    parent = DPOConfig if issubclass(config, DPOConfig) else GRPOConfig
    names = {field.name for field in fields(parent)}
    assert not HYPERPARAMETERS & WITHHELD
    assert not names - HYPERPARAMETERS - WITHHELD
    for word in ("token", "dir", "host", "url", "path", "repo", "name", "key"):
        hits = {name for name in HYPERPARAMETERS if word in name.split("_")}
        assert not hits - {"average_tokens_across_devices"}, hits
    own = {field.name for field in fields(config)} - names
    args = config("out", **CPU)
    for name in own:
        setattr(args, name, 12345)
    assert own <= set(dict(changed_settings(args)))


class Named:
    def verify(self, inputs):
        return []


def test_a_verifier_is_its_repository_or_its_parts(tmp_path):
    assert describe_verifier(Named()) == "Named"
    assert describe_verifier(LexicalVerifier()) == (
        "LexicalVerifier: `SentenceExtractor()`, `RowEvidence()`, `LexicalJudge()`"
    )
    assert "`LexicalJudge(threshold=0.71)`" in describe_verifier(LexicalVerifier(threshold=0.71))
    verifier = LexicalVerifier()
    verifier.origin = {"repo_id": "me/my-verifier", "revision": "a" * 40}
    assert describe_verifier(verifier).startswith(
        f"[me/my-verifier](https://huggingface.co/me/my-verifier) at `{'a' * 40}`: `SentenceExtractor()`"
    )
    client = ChatClient("http://10.1.2.3:8000/v1", "Qwen/Qwen2.5-7B-Instruct", api_key="sk-0123456789abcdefghij")
    text = describe_verifier(VerifierPipeline(SentenceExtractor(), LLMJudge(client)))
    assert "Qwen/Qwen2.5-7B-Instruct" in text and "LLMJudge" in text
    assert not any(word in text for word in ("10.1.2.3", "8000", "sk-0123", "http"))
    reward = SimpleNamespace(verifier=LexicalVerifier())
    assert describe_rewards([reward, len], ["rlfh", "len"]) == f"rlfh by {describe_verifier(LexicalVerifier())}; len"


def test_a_judge_with_a_model_of_the_hub_or_of_a_folder(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    labels = {0: "entailment", 1: "neutral", 2: "contradiction"}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
                   id2label=labels, label2id={name: number for number, name in labels.items()})
    )  # fmt: skip
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\nc\nd\n")
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    model.config._name_or_path = "somebody/nli"
    model.config._commit_hash = "b" * 40
    text = describe_verifier(NLIVerifier(model, tokenizer))
    assert "NLIJudge(" in text and "somebody/nli" in text and "b" * 40 in text
    model.config._name_or_path = str(tmp_path)
    assert str(tmp_path) not in describe_verifier(NLIVerifier(model, tokenizer))


def test_hardware(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {device.type} card")
    kind = SimpleNamespace(value="FSDP")
    gpus = SimpleNamespace(device=torch.device("cuda"), num_processes=8, distributed_type=kind)
    assert describe_hardware(gpus) == "8 processes on NVIDIA cuda card (FSDP)"
    cpu = SimpleNamespace(device=torch.device("cpu"), num_processes=1, distributed_type="NO")
    assert describe_hardware(cpu) == "1 process on CPU"


def git(folder, *arguments):
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True).stdout


def test_the_commit_is_that_of_this_package(monkeypatch, tmp_path):
    """Of a checkout, with a word where files differ; not that of somebody else's repository with our package in it."""
    root = tmp_path / "checkout"
    module = root / "hf_factuality" / "hub" / "_card_settings.py"
    module.parent.mkdir(parents=True)
    for path in (root / "hf_factuality" / "__init__.py", module):
        path.write_text("")
    monkeypatch.setattr(_card_settings, "__file__", str(module))
    monkeypatch.setattr(_card_settings, "distribution", lambda name: SimpleNamespace(read_text=lambda file: None))
    assert package_commit() is None
    git(root, "init", "-q")
    (root / "readme").write_text("")
    git(root, "add", "readme")
    git(root, "commit", "-qm", "x")
    assert package_commit() is None, "the package is not part of this repository"
    git(root, "add", ".")
    git(root, "commit", "-qm", "y")
    commit = git(root, "rev-parse", "HEAD").strip()
    assert package_commit() == commit
    assert f"(commit {commit})" in describe_software()
    module.write_text("changed")
    assert package_commit() == f"{commit} with changes"
    said = json.dumps({"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "c" * 40}})
    monkeypatch.setattr(_card_settings, "distribution", lambda name: SimpleNamespace(read_text=lambda file: said))
    assert package_commit() == "c" * 40


def test_a_base_model_and_data_of_the_hub(tiny_model, tmp_path):
    """Ids of the Hub are in the header, with their revision in the text; the adapter's settings are settings."""
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out", peft=True, hub_model_id="me/mine")
    for config in (trainer.model.config, trainer.accelerator.unwrap_model(trainer.model).config):
        config._name_or_path, config._commit_hash = "Qwen/Qwen2.5-0.5B-Instruct", "d" * 40
    trainer.create_model_card(dataset_name="somebody/pairs", tags=["mine", "trackio:https://example.org/space"])
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    header, text = header_and_text(card)
    assert_valid_header(header)
    assert header["base_model"] == "Qwen/Qwen2.5-0.5B-Instruct" and header["datasets"] == ["somebody/pairs"]
    assert header["base_model_relation"] == "adapter" and header["library_name"] == "peft"
    assert "mine" in header["tags"] and not any(":" in tag for tag in header["tags"])
    assert f"huggingface.co/Qwen/Qwen2.5-0.5B-Instruct) at `{'d' * 40}`" in text
    assert "[somebody/pairs](https://huggingface.co/datasets/somebody/pairs), 4 rows" in text or "rows |" in text
    assert 'model="me/mine"' in text and "| `adapter.r` |" in text and "pip install peft" in text


def test_data_of_the_hub_is_found_without_being_named(tiny_model, tmp_path):
    """By the folder of the loader's files, which a real load checks in `test_push_loads`; several sources name none."""
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    folder = tmp_path / "cache" / "somebody___good_pairs" / "default" / "0.0.0" / ("e" * 40)
    other = tmp_path / "cache" / "json" / "default-1234" / "0.0.0" / ("f" * 64)
    stored = {}
    for place in (folder, other, Path(str(folder).replace("good", "bad"))):
        trainer.train_dataset.save_to_disk(place)
        stored[place] = Dataset.from_file(str(place / "data-00000-of-00001.arrow"))
    good, local, bad = stored.values()
    trainer.train_dataset = good
    trainer.create_model_card()
    header, text = header_and_text((tmp_path / "out" / "README.md").read_text(encoding="utf-8"))
    assert_valid_header(header)
    assert header["datasets"] == ["somebody/good_pairs"]
    assert (
        f"| data | [somebody/good_pairs](https://huggingface.co/datasets/somebody/good_pairs) at `{'e' * 40}`, "
        in text
    )
    trainer.create_model_card(dataset_name="another/name")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| data | [another/name](https://huggingface.co/datasets/another/name), " in text
    assert dataset_origin(concatenate_datasets([good, good])) == ("somebody/good_pairs", "e" * 40)
    for unknown in (local, concatenate_datasets([good, local]), concatenate_datasets([good, bad])):
        assert dataset_origin(unknown) is None
    assert dataset_origin(Dataset.from_dict({"a": [1]})) is None and dataset_origin(None) is None


def test_data_that_says_what_it_is(tiny_model, tmp_path):
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    trainer.train_dataset.info.description = "\n pairs of sampled responses, labelled by Somebody \nmore"
    trainer.create_model_card()
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert (
        "| data | pairs of sampled responses, labelled by Somebody, " in card and "more" not in card.split("Limits")[0]
    )


def test_a_base_model_and_data_of_a_folder(tiny_model, tmp_path):
    """Shown by their last names, and in no header."""
    (tmp_path / "data").mkdir()
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    trainer.create_model_card(dataset_name=str(tmp_path / "data"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    header, text = header_and_text(card)
    assert_valid_header(header)
    assert not {"base_model", "base_model_relation", "datasets"} & set(header)
    assert f"`{Path(tiny_model).name}`, a model that is not on the Hub" in text
    assert str(tmp_path) not in card and str(Path(tiny_model).parent) not in card


def test_render_card_takes_no_dict_for_results():
    from huggingface_hub import ModelCardData

    with pytest.raises(HubError, match="come from files, got dict"):
        render_card(ModelCardData(), results={"accuracy": 0.9}, model_name="m", training=[], hyperparameters=[])
