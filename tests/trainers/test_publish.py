"""What the trainers publish, with the real client against a Hub on this machine."""

import json
import logging
import random

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig
from safetensors.torch import load
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from hf_factuality import FactGRPOTrainer, MaskDPOTrainer, TokenRewardPPOTrainer, VerifierPipeline
from hf_factuality.cli import main
from hf_factuality.errors import HubError
from hf_factuality.hub.results import folder_fingerprint, write_results
from hf_factuality.io.manifest import find_damage, read_manifest
from hf_factuality.trainers._publish import _KEPT, Publishes, _results_of
from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
from hf_factuality.trainers.mask_dpo_config import MaskDPOConfig
from hf_factuality.trainers.token_reward_ppo_config import TokenRewardPPOConfig
from tests.conftest import fast_few
from tests.evaluation.test_results import MACHINE, entry
from tests.hub.loopback import TOKEN
from tests.hub.secret_inputs import KINDS
from tests.tiny import letters_reward, rows
from tests.trainers.mask_dpo_recording import pairs
from tests.trainers.recording import QUIET, vowels


REPO = "someone/aligned"
SHARED = dict(per_device_train_batch_size=2, max_steps=2, hub_model_id=REPO, hub_token=TOKEN, **QUIET)
SAMPLED = dict(max_completion_length=8, num_generations=2)


def make(kind, model, folder, **settings):
    if kind == "mask_dpo":
        args = MaskDPOConfig(str(folder), **{**SHARED, **settings})
        return MaskDPOTrainer(model, args=args, train_dataset=pairs())
    if kind == "ppo":
        args = TokenRewardPPOConfig(str(folder), **{**SHARED, **SAMPLED, **settings})
        return TokenRewardPPOTrainer(model, vowels, None, args, rows())
    args = FactGRPOConfig(str(folder), **{**SHARED, **SAMPLED, **settings})
    return FactGRPOTrainer(model, letters_reward, args, rows())


def files(hub, ref="main"):
    return hub.repos["model", REPO].files(ref)


def commits(hub):
    return hub.repos["model", REPO].log


STATE = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}
MODEL = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
MODEL.add("README.md")
VERIFIER = {"verifier/config.json", "verifier/verifier_config.json"}
CRITIC = {"critic/config.json", "critic/model.safetensors"}
RESUMABLE = {"optimizer.pt", "scheduler.pt", "trainer_state.json", "critic/critic_optimizer.pt", "model.safetensors"}


@pytest.mark.parametrize("kind", fast_few(["fact_grpo", "ppo", "mask_dpo"], 1))
def test_a_push_is_one_commit_of_the_model_and_its_card(tiny_model, tmp_path, hub, kind):
    trainer = make(kind, tiny_model, tmp_path / "run")
    trainer.train()
    trainer.save_model()
    (tmp_path / "run" / "results.json").write_text("{}", encoding="utf-8")  # not of our schema
    done = trainer.push_to_hub(dataset_name="someone/questions")
    found = files(hub)
    assert found.keys() >= MODEL and not {name.split("/")[-1] for name in found} & (STATE | {"critic_optimizer.pt"})
    own = {name for name in found if name.startswith(("critic/", "verifier/"))}
    assert own == {"ppo": CRITIC, "fact_grpo": VERIFIER, "mask_dpo": set()}[kind]
    if kind == "fact_grpo":  # the verifier goes with the model that it paid
        assert isinstance(trainer._guard.verifier, VerifierPipeline)
        assert json.loads(found["verifier/verifier_config.json"])["judge"]["class"] == "LexicalJudge"
    assert [commit.title for commit in commits(hub)] == ["initial commit", "End of training"]
    assert hub.repos["model", REPO].private and done.repo_id == REPO
    for name, content in found.items():
        assert TOKEN.encode() not in content and str(tmp_path).encode() not in content, name
    loaded = AutoModelForCausalLM.from_pretrained(REPO)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert AutoTokenizer.from_pretrained(REPO).chat_template == trainer.processing_class.chat_template


@pytest.mark.parametrize(
    "name", fast_few(["README.md", "LICENSE", "results.json", "verifier/prompts/a.txt", "link", "folder"], 0, 3)
)
def test_no_secret_and_no_file_from_elsewhere_is_pushed(tiny_model, tmp_path, hub, caplog, name):
    """Neither at the end nor with a checkpoint."""
    key = KINDS["OpenSSH"](random.Random(0))
    diary = tmp_path / "diary" / "prompts"
    diary.mkdir(parents=True)
    (diary / "a.txt").write_text("mine", encoding="utf-8")
    trainer = make("mask_dpo", tiny_model, tmp_path / "run", push_to_hub=True)
    checkpoint = tmp_path / "run" / "checkpoint-1"
    trainer.save_model(str(checkpoint), _internal_call=True)
    for folder in (tmp_path / "run", checkpoint):
        if name == "link":
            (folder / "LICENSE").symlink_to(diary / "a.txt")
        elif name == "folder":
            (folder / "verifier").symlink_to(diary.parent)
        elif name != "README.md" or folder != checkpoint:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"schema": "hf_factuality.results/1", "results": [], "key": key})
            (folder / name).write_text(text if name == "results.json" else key, encoding="utf-8")
    trainer._push_from_checkpoint(str(checkpoint))
    trainer._finish_current_push()
    if name == "folder":
        trainer.push_to_hub()  # which is left out
    elif name != "README.md":  # which is written anew
        with pytest.raises(HubError, match="looks like a secret|is a link to"):
            trainer.push_to_hub()
    for commit in commits(hub):
        for path, blob in commit.files.items():
            assert key.encode() not in blob.data and blob.data != b"mine", path
    assert (len(commits(hub)) == 1) is (name not in ("folder",))


STRATEGIES = {"every_save": [], "checkpoint": ["last-checkpoint"], "all_checkpoints": ["checkpoint-1", "checkpoint-2"]}


@pytest.mark.parametrize("strategy, places", fast_few(STRATEGIES.items(), 1))
def test_every_save_pushes_what_was_saved_and_the_state_on_request(tiny_model, tmp_path, hub, strategy, places):
    (tmp_path / "run" / "_push-checkpoint-1" / "model").mkdir(parents=True)  # what a killed run was pushing
    trainer = make(
        "ppo", tiny_model, tmp_path / "run", push_to_hub=True, hub_strategy=strategy, hub_always_push=True,
        save_strategy="steps", save_steps=1,
    )  # fmt: skip
    assert not list((tmp_path / "run").glob("_push-*"))
    trainer.train()
    trainer._finish_current_push()
    titles = [commit.title for commit in commits(hub)]
    assert titles[:3] == ["initial commit", "Training in progress, step 1", "Training in progress, step 2"]
    first, second = (load(commit.files["model.safetensors"].data) for commit in commits(hub)[1:3])
    assert any(not torch.equal(first[name], second[name]) for name in first)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(second.get(name, tensor), tensor), name
    for commit in commits(hub)[1:3]:
        assert commit.files.keys() >= MODEL | CRITIC
        assert not {name for name in commit.files if "/" not in name} & STATE
    found = files(hub)
    assert not list((tmp_path / "run").glob("_push-*")) and not [name for name in found if "training_args" in name]
    assert hub.repos["model", REPO].private
    for place in places:
        own = {name.removeprefix(f"{place}/") for name in found if name.startswith(f"{place}/")}
        assert own >= RESUMABLE | {"checkpoint_manifest.json"}
    if not places:
        assert not [name for name in found if name.endswith("optimizer.pt")]
        return
    # What is on the Hub goes on like what is here.
    pushed = tmp_path / "from-the-hub" / places[-1]
    for name, content in found.items():
        if name.startswith(f"{places[-1]}/"):
            (pushed.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (pushed.parent / name).write_bytes(content)
    assert find_damage(pushed, read_manifest(pushed)) is None
    assert str(tmp_path) not in (pushed / "trainer_state.json").read_text()
    ends = []
    for checkpoint in (pushed, tmp_path / "run" / "checkpoint-2"):
        again = make("ppo", tiny_model, tmp_path / "again", max_steps=3, hub_model_id=None)
        again.train(resume_from_checkpoint=str(checkpoint))
        ends.append(list(again.model.parameters()))
    assert all(map(torch.equal, *ends))


def test_a_public_repository_on_request_and_a_push_in_the_background(tiny_model, tmp_path, hub):
    trainer = make("mask_dpo", tiny_model, tmp_path / "run", hub_private_repo=False)
    job = trainer.push_to_hub(blocking=False, commit_message="Later")
    assert job.result(timeout=600).oid == hub.repos["model", REPO].refs["main"]
    assert commits(hub)[-1].title == "Later" and not hub.repos["model", REPO].private


@pytest.mark.slow
def test_a_push_leaves_the_checkpoint_as_it_was(tiny_model, tmp_path, hub):
    """PEFT writes a card of its own into every checkpoint; ours is pushed, and the checkpoint's stays."""
    args = dict(push_to_hub=True, hub_strategy="every_save", save_strategy="steps", save_steps=2)
    config = MaskDPOConfig(str(tmp_path / "run"), **{**SHARED, **args})
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    trainer = MaskDPOTrainer(tiny_model, args=config, train_dataset=pairs(), peft_config=lora)
    trainer.train()
    trainer._finish_current_push()
    pushed = files(hub)["README.md"]
    assert b"Mask-DPO" in pushed and "adapter_model.safetensors" in files(hub)
    own = (tmp_path / "run" / "checkpoint-2" / "README.md").read_bytes()
    assert own != pushed and b"[More Information Needed]" in own


@pytest.mark.parametrize("linkable", [True, False])
def test_no_link_of_a_checkpoint_leads_out_of_it(tiny_model, tmp_path, hub, caplog, monkeypatch, linkable):
    run, private = tmp_path / "run", tmp_path / "private"
    trainer = make("mask_dpo", tiny_model, run, push_to_hub=True, hub_strategy="every_save")
    if not linkable:  # as on another disk, where files are copied

        def fails(*_, **__):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr("os.link", fails)
    private.mkdir()
    (private / "key.txt").write_text("nobody's business")
    folder = run / "checkpoint-1"
    trainer.save_model(folder)
    (folder / "prompts").symlink_to(private)
    (run / "README.md").unlink()
    (run / "README.md").symlink_to(private / "key.txt")
    measured = {"name": "x", "revision": None, "adapter": None, "dtype": None, "server": None}
    measured["fingerprint"] = folder_fingerprint(folder)
    write_results(private / "results.json", measured, [entry()], MACHINE)
    (run / "results.json").symlink_to(private / "results.json")
    trainer._push_from_checkpoint(str(folder))
    trainer._finish_current_push()
    assert "model.safetensors" in files(hub) and "results.json" not in files(hub)
    assert not any(b"nobody's business" in data for data in files(hub).values())
    (folder / "merges.txt").symlink_to(private / "key.txt")
    before = len(commits(hub))
    with caplog.at_level(logging.WARNING):
        trainer._push_from_checkpoint(str(folder))
        trainer._finish_current_push()
    assert len(commits(hub)) == before and "merges.txt" in caplog.text and "is a link to" in caplog.text


@pytest.mark.slow
def test_results_go_with_the_weights_that_they_are_of(tiny_model, tmp_path, hub):
    run = tmp_path / "run"
    trainer = make(
        "mask_dpo", tiny_model, run, push_to_hub=True, hub_strategy="every_save", save_strategy="steps", save_steps=1
    )

    class Evaluates(TrainerCallback):
        """After the first save, as somebody beside the run would."""

        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 1:
                measured = {"name": "x", "revision": None, "adapter": None, "dtype": None, "server": None}
                measured["fingerprint"] = folder_fingerprint(run / "checkpoint-1")
                write_results(run / "results-first.json", measured, [entry()], MACHINE)

    trainer.add_callback(Evaluates())
    trainer.train()
    trainer._finish_current_push()
    of_the_first, of_the_second = (_results_of(run, run / f"checkpoint-{step}") for step in (1, 2))
    assert [path.name for path in of_the_first] == ["results-first.json"] and of_the_second == []
    assert "results-first.json" not in files(hub)


def test_a_card_of_ours_is_checked_and_brought_up_to_date(tiny_model, tmp_path, hub, capsys):
    run = tmp_path / "run"
    trainer = make("mask_dpo", tiny_model, run)
    trainer.save_model()
    trainer.create_model_card()
    assert "None recorded" in (run / "README.md").read_text(encoding="utf-8")
    measured = {"name": "run", "revision": None, "adapter": None, "dtype": None, "server": None}
    measured["fingerprint"] = folder_fingerprint(run)
    write_results(run / "results-after.json", measured, [entry()], MACHINE)
    assert main(["push", str(run), REPO, "--dry-run"]) == 0
    assert "None recorded" in (run / "README.md").read_text(encoding="utf-8")
    assert main(["push", str(run), REPO]) == 0
    card = files(hub)["README.md"].decode()
    assert "None recorded" not in card and f'model="{REPO}"' in card and "results-after.json" in files(hub)
    assert ModelCard(card).data.eval_results
    text = card.replace("## Limits", "Judged at http://judge:8000/v1.\n\n## Limits")
    (run / "README.md").write_text(text, encoding="utf-8")
    assert main(["push", str(run), REPO]) == 2
    assert "cannot be published: it tells the address of a server" in capsys.readouterr().err
    assert len(commits(hub)) == 2


def test_the_state_of_a_run_is_not_pushed_where_everybody_reads(tiny_model, tmp_path, hub):
    hub.add(REPO, private=False)
    with pytest.raises(HubError, match="exists and is public"):
        make("ppo", tiny_model, tmp_path, push_to_hub=True, hub_strategy="checkpoint")
    with pytest.raises(ValueError, match="needs a private repository; take 'every_save'"):
        make("ppo", tiny_model, tmp_path, push_to_hub=True, hub_strategy="all_checkpoints", hub_private_repo=False)
    assert len(commits(hub)) == 1


@pytest.mark.slow
def test_a_repository_that_was_opened_is_not_pushed_to(tiny_model, tmp_path, hub, caplog):
    """Who wants it private is refused, at the start or later; by default one that exists stays as it is."""
    trainer = make(
        "mask_dpo", tiny_model, tmp_path / "run", push_to_hub=True, hub_private_repo=True, hub_strategy="every_save",
        hub_always_push=True, save_strategy="steps", save_steps=1,
    )  # fmt: skip
    hub.repos["model", REPO].private = False
    with caplog.at_level(logging.WARNING):
        trainer.train()
        trainer._finish_current_push()
    assert caplog.text.count("someone/aligned exists and is public") == 2, "one for each save"
    with pytest.raises(HubError, match="exists and is public"):
        trainer.push_to_hub()
    assert len(commits(hub)) == 1
    trainer.args.hub_private_repo = None
    with pytest.raises(HubError, match="exists and is public"):
        trainer.push_to_hub(private=True)
    assert trainer.push_to_hub() and len(commits(hub)) == 2


@pytest.mark.slow
def test_a_push_that_fails_does_not_stop_the_run(tiny_model, tmp_path, hub, caplog):
    trainer = make(
        "fact_grpo", tiny_model, tmp_path / "run", push_to_hub=True, hub_strategy="every_save", hub_always_push=True,
        save_strategy="steps", save_steps=1,
    )  # fmt: skip
    hub.fail("POST", "/commit/main", status=403)
    with caplog.at_level(logging.WARNING):
        trainer.train()
        trainer._finish_current_push()
    assert trainer.state.global_step == 2
    (said,) = [r.getMessage() for r in caplog.records if "was not pushed" in r.getMessage()]
    assert said.startswith("Training in progress, step 1 was not pushed: ") and TOKEN not in said
    assert "Training in progress, step 2" in [commit.title for commit in commits(hub)]


def test_a_trainer_is_not_the_last_owner_of_the_group_of_processes(tmp_path):
    """DDP in a trainer that outlives `destroy_process_group` would free the group, and can wait for ever then."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'place'}", rank=0, world_size=1)
    group = dist.group.WORLD
    try:
        Publishes()
    finally:
        dist.destroy_process_group()
    assert group in _KEPT
    _KEPT.remove(group)
