"""What a card says of a run: settings, verifier, machine, versions, base model and data. No places, no keys."""

import ast
import html
import json
import re
import subprocess
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, concatenate_datasets
from huggingface_hub import ModelCardData
from markdown_it import MarkdownIt
from peft import LoraConfig
from trl import DPOConfig, GRPOConfig, SFTConfig

from hf_factuality import FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig
from hf_factuality.errors import HubError
from hf_factuality.generation.client import ChatClient
from hf_factuality.hub.cards import settings as card_settings
from hf_factuality.hub.cards.card import _Base, _data_row, render_card
from hf_factuality.hub.cards.check import card_problems
from hf_factuality.hub.cards.scores import CardResults, ModelIdentity
from hf_factuality.hub.cards.settings import (
    HYPERPARAMETERS,
    changed_settings,
    dataset_origin,
    describe_adapter,
    describe_hardware,
    describe_rewards,
    describe_software,
    describe_verifier,
    own_words,
    package_commit,
    plain_name,
)
from hf_factuality.io.markdown import escaped
from hf_factuality.trainers import AdaptiveAveragingConfig
from hf_factuality.verifiers import LexicalVerifier, LLMJudge, NLIVerifier, SentenceExtractor, VerifierPipeline
from tests.hub.cards.card_oracle import assert_valid_header, header_and_text
from tests.trainers.test_mask_dpo_trainer import MaskDPOTrainer, make


WITHHELD = frozenset(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs activation_offloading
    batch_eval_metrics bf16_full_eval chat_template_path dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor dataset_kwargs dataset_num_proc dataset_text_field ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed
    disable_tqdm do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint eos_token
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_packing eval_steps eval_strategy
    eval_use_gather_object fp16_full_eval fsdp fsdp_config gradient_checkpointing_kwargs hub_always_push
    hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_num_input_tokens_seen label_names length_column_name liger_kernel_config local_rank log_completions
    log_completions_hub_repo log_level log_level_replica log_multimodal log_on_each_node log_unique_prompts
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy num_completions_to_print
    num_generations_eval output_dir pad_to_multiple_of pad_token parallelism_config per_device_eval_batch_size
    precompute_ref_batch_size prediction_loss_only project push_to_hub remove_unused_columns report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model
    save_steps save_strategy save_total_limit skip_memory_metrics torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id
    transformers_continuous_batching_config trust_remote_code use_cache use_cpu vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length vllm_model_impl vllm_server_base_url
    vllm_server_host vllm_server_port vllm_server_timeout vllm_tensor_parallel_size
    """.split()
)
"""Parents' settings that say nothing of the model, hold names, places, addresses or keys, or repeat another:
`activation_checkpointing` is what `gradient_checkpointing` says."""


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
    changed = {"max_length": 512, "truncation_mode": "keep_end", "ld_alpha": 0.5, "tokens_outside": "keep"}
    changed |= {"chosen_labels": ["supported"], "loss_type": ["ipo"]}
    found = dict(changed_settings(MaskDPOConfig("out", **changed, **CPU)))
    assert changed.items() <= found.items() and "rejected_labels" not in found


LONG = r"(?:model\.layers\.(?:" + "|".join(map(str, range(90))) + r")\.self_attn)|(?:.*q_proj)"


@pytest.mark.parametrize("regex", [LONG, r".*\.(q_proj|v_proj)", ".*<answer>.*</answer>", "~x.*/y", "/think|/no"])
def test_a_regex_is_shown_as_it_is(regex):
    """Neither taken for a path, nor looked up on the disk, where 255 characters are too long for a name."""
    model = SimpleNamespace(peft_config={"default": LoraConfig(target_modules=regex)})
    assert dict(describe_adapter(model))["adapter.target_modules"] == regex
    args = FactGRPOConfig("out", vllm_structured_outputs_regex=regex, optim_target_modules=regex, **CPU)
    found = dict(changed_settings(args))
    assert found["vllm_structured_outputs_regex"] == found["optim_target_modules"] == regex


def test_a_regex_with_a_path_is_not_shown():
    args = FactGRPOConfig("out", vllm_structured_outputs_regex="(/home/me/secret|b)", **CPU)
    assert dict(changed_settings(args))["vllm_structured_outputs_regex"] == "(not shown)"


def test_names_that_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("x" * 300, "a/" + "x" * 300, "a/b\0", "~nobody-here/x", "~me", "...", ".", "/", "", "</s>", "a/b"):
        assert plain_name(text) == text
    for text in ("/home/me/last", "./last", "../last", "~/last", "C:\\work\\last", "/x/" + "y" * 300 + "/last"):
        assert plain_name(text) == "last"
    args = FactGRPOConfig("out", generation_kwargs={"stop": [".", "~me", "x" * 300, "~nobody-here/x"]}, **CPU)
    assert dict(changed_settings(args))["generation_kwargs"]["stop"] == [".", "~me", "x" * 300, "~nobody-here/x"]


@pytest.mark.parametrize("config", [FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig, AdaptiveAveragingConfig])
def test_every_setting_of_the_parents_is_shown_or_withheld(config):
    """A field that TRL adds fails here, until somebody says whether it is a hyper-parameter."""
    parent = next(it for it in (DPOConfig, SFTConfig, GRPOConfig) if issubclass(config, it))
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


def written(trainer, **named):
    """Header and text of the card that a trainer writes."""
    trainer.create_model_card(**named)
    card = (Path(trainer.args.output_dir) / "README.md").read_text(encoding="utf-8")
    header, text = header_and_text(card)
    assert_valid_header(header)
    return header, text, card


class Named:
    def verify(self, inputs):
        return []


def test_settings_that_are_called_after_tokens_are_shown_and_keys_are_not():
    shown = {"hf_tokenizer": "fast", "auth_tokenizer": 1, "access_token_budget": 2, "hf_token_file": "/root/name"}
    hidden = dict.fromkeys(("api_key", "hf_token", "token", "client_secret", "password"), "x") | {
        "headers": {"Key": "x"}
    }
    named = Named()
    named.config = lambda: {**shown, **hidden}
    assert describe_verifier(named) == (
        'Named: `Named(hf_tokenizer="fast", auth_tokenizer=1, access_token_budget=2, hf_token_file="name", headers={})`'
    )


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
    for repo_id in ("a/_b", "_a/b"):
        verifier.origin = {"repo_id": repo_id, "revision": None}
        assert describe_verifier(verifier).startswith(f"[{repo_id}](https://huggingface.co/{repo_id}) (revision")
    client = ChatClient("http://10.1.2.3:8000/v1", "Qwen/Qwen2.5-7B-Instruct", api_key="sk-0123456789abcdefghij")
    text = describe_verifier(VerifierPipeline(SentenceExtractor(), LLMJudge(client)))
    assert "Qwen/Qwen2.5-7B-Instruct" in text and "LLMJudge" in text
    assert not any(word in text for word in ("10.1.2.3", "8000", "sk-0123", "http"))
    reward = SimpleNamespace(verifier=LexicalVerifier())
    assert describe_rewards([reward, len], ["rlfh", "len"]) == f"rlfh by {describe_verifier(LexicalVerifier())}"
    part, whole = SimpleNamespace(owner=reward), describe_verifier(LexicalVerifier())
    assert describe_rewards([reward, len, part], ["a", "len", "b"]) == f"a, b by {whole}", "of one object: once"
    assert describe_rewards([len], ["len"]) == ""


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
    module = root / "hf_factuality" / "hub" / "cards" / "settings.py"
    module.parent.mkdir(parents=True)
    for path in (root / "hf_factuality" / "__init__.py", module):
        path.write_text("")
    monkeypatch.setattr(card_settings, "__file__", str(module))
    monkeypatch.setattr(card_settings, "distribution", lambda name: SimpleNamespace(read_text=lambda file: None))
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
    monkeypatch.setattr(card_settings, "distribution", lambda name: SimpleNamespace(read_text=lambda file: said))
    assert package_commit() == "c" * 40


def test_a_base_model_and_data_of_the_hub(tiny_model, tmp_path):
    """Ids of the Hub are in the header, with their revision in the text; the adapter's settings are settings."""
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out", peft=True, hub_model_id="me/mine")
    for config in (trainer.model.config, trainer.accelerator.unwrap_model(trainer.model).config):
        config._name_or_path, config._commit_hash = "Qwen/Qwen2.5-0.5B-Instruct", "d" * 40
    header, text, _ = written(
        trainer, dataset_name="somebody/pairs", tags=["mine", "trackio:https://example.org/space"]
    )
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
        stored[place].info.builder_name = "parquet"  # as every loader says, and mapping keeps
    good, local, bad = stored.values()
    trainer.train_dataset = good
    header, text, _ = written(trainer)
    assert header["datasets"] == ["somebody/good_pairs"]
    assert (
        f"| data | [somebody/good_pairs](https://huggingface.co/datasets/somebody/good_pairs) at `{'e' * 40}`, "
        in text
    )
    text = written(trainer, dataset_name="another/name")[1]
    assert "| data | [another/name](https://huggingface.co/datasets/another/name), " in text
    assert dataset_origin(concatenate_datasets([good, good])) == ("somebody/good_pairs", "e" * 40)
    in_memory = Dataset.from_list(trainer.train_dataset.to_list())
    assert dataset_origin(good.filter(lambda row: True).map(lambda row: {"more": 1})) is not None
    joined = [concatenate_datasets([good, other]) for other in (local, bad, in_memory)]
    for unknown in (local, *joined):
        assert dataset_origin(unknown) is None
    assert dataset_origin(Dataset.from_dict({"a": [1]})) is None and dataset_origin(None) is None


def test_data_that_says_what_it_is(tiny_model, tmp_path):
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    trainer.train_dataset.info.description = "\n pairs of sampled responses, labelled by Somebody \nmore"
    card = written(trainer)[2]
    assert "| data | pairs of sampled responses, labelled by Somebody, " in card
    assert "more" not in card.split("Limits")[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("pairs of /home/me/secret/run7", None),
        ("labelled by LLMJudge(model='/data1/models/q')", None),
        ("key hf_" + "b" * 34, None),
        ("judged at http://10.1.2.3:8000/v1 by x", None),
        ("of https://me:word@example.org/x", None),
        ("x" * 190 + " hf_" + "b" * 34, None),
        ("from C:\\Users\\me\\x", None),
        ("labelled by A\n\nwritten by people", None),
        (" \n \n", None),
        (7, None),
        (
            "a `b` <!-- <img src=x> ![x](y) \\[z] {{ card_data }}",
            "a \\`b\\` \\<!-- \\<img src=x> !\\[x\\](y) \\\\\\[z\\] {{ card_data }}",
        ),
        ("x" * 200_000, "x" * 197 + "..."),
        ("a\ud800b", "a?b"),
    ],
)
def test_what_data_says_is_somebody_elses_text(text, shown):
    """Shown without its markup and cut, or not at all: a card that holds a path could not be pushed."""
    dataset = Dataset.from_dict({"a": [1]})
    dataset.info.description = text
    assert own_words(dataset) == shown


def test_joined_data_is_not_described_by_its_first_part():
    parts = [Dataset.from_dict({"a": [1]}) for _ in range(2)]
    for part, text in zip(parts, ("labelled by A", "written by people"), strict=True):
        part.info.description = text
    assert own_words(concatenate_datasets(parts)) is None and own_words(parts[0]) == "labelled by A"


ODD_IN_CODE = ["a\n---\nb", 'a"b', "a\\", 'a\n")\nimport os\n("']
ODD = [
    *(*ODD_IN_CODE, "a `b` ``c``", "a | b |", "<img src=x onerror=alert(1)>", "a --> b", "[a](b:c)", "![a][b]"),
    *("*a* _b_ ~~c~~", "# a #", "1. a", "- a", "> a", "~~~", "a: b\n- c: !!python", "{{ card_data }}", "&lt;b>"),
    *("a\u202ebc\u2066d\u200b", "a\x1b[31mb", "%}{%", "snake_case name"),
]


def rendered(text):
    """The page as HTML by an independent reader of Markdown, and its first heading as text."""
    page = MarkdownIt("js-default", {"html": True, "linkify": False}).render(text)
    return page, html.unescape(re.search(r"<h1>(.*?)</h1>", page)[1])


@pytest.mark.parametrize("name", ODD)
def test_no_name_means_anything_to_markdown(name):
    """In the heading, the tables, the notes and the header: what is seen is the name, without what is not seen."""
    name = f"x{name}" if name[0] in "/~." else name
    seen = "".join(c for c in " ".join(name.split()) if c not in "\u202e\u2066\u200b\x1b")
    results = CardResults([dict.fromkeys(("benchmark", "metric", "before", "after", "n"), "1")], [], [], [Path(name)])

    def card_with(name, note, data):
        base = _Base(name, False, ModelIdentity())
        return render_card(
            ModelCardData(license="mit"), results=replace(results, notes=[note], files=[Path(data)]), model_name=name,
            model_id=name, chat=False, adapter=False, base=base.link(), method="m", paper_title="t", paper_id="1",
            training=[("base", base.row()), ("data", _data_row(data, [1], None))],
            hyperparameters=[("a", name), (name, 1)],
        )  # fmt: skip

    card = card_with(name, escaped(name), name)
    page, heading = rendered(card.text)
    assert heading == seen
    plain = rendered(card_with("x", "x", "./x").text)[0]
    assert re.findall(r"</?\w+", page) == re.findall(r"</?\w+", plain), "the same elements as with a plain name"
    assert not set("\u202e\u2066\u200b\x1b") & set(card.text)


@pytest.mark.parametrize("name", ODD_IN_CODE)
def test_odd_names_of_models(tiny_model, tmp_path, name):
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    header, text, card = written(trainer, model_name=name, dataset_name="x" * 300)
    assert card_problems(card) == [] and "datasets" not in header
    assert rendered(text)[1] == " ".join(name.split())
    code = ast.parse(text.split("```python\n")[1].split("```")[0])
    (model,) = (node for node in ast.walk(code) if isinstance(node, ast.keyword) and node.arg == "model")
    assert model.value.value == " ".join(name.split())


def test_a_base_model_and_data_of_a_folder(tiny_model, tmp_path):
    """Shown by their last names, and in no header."""
    (tmp_path / "data").mkdir()
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path / "out")
    header, text, card = written(trainer, dataset_name=str(tmp_path / "data"))
    assert not {"base_model", "base_model_relation", "datasets"} & set(header)
    assert f"`{Path(tiny_model).name}`, a model that is not on the Hub" in text
    assert str(tmp_path) not in card and str(Path(tiny_model).parent) not in card


def test_render_card_takes_no_dict_for_results():
    from huggingface_hub import ModelCardData

    with pytest.raises(HubError, match="come from files, got dict"):
        render_card(ModelCardData(), results={"accuracy": 0.9}, model_name="m", training=[], hyperparameters=[])
