"""Token reward PPO on two processes is token reward PPO on one: DDP and ZeRO-3, each with both critics."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from hf_factuality.trainers.critic import make_critic
from tests.processes import assert_ended_well, run_ranks
from tests.trainers.token_reward_ppo_processes import run


pytestmark = [pytest.mark.slow, pytest.mark.distributed]


def launch(model, folder, critic, checkpointing, *deepspeed):
    module, checkpointing = "tests.trainers.token_reward_ppo_processes", "on" if checkpointing else "off"
    return run_ranks(module, model, folder, critic, checkpointing, *deepspeed, DS_ACCELERATOR="cpu")


def two_processes(model, folder, critic, checkpointing, *deepspeed):
    folder.mkdir()
    assert_ended_well(launch(model, folder, critic, checkpointing, *deepspeed))
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]


def assert_close(found, expected, start):
    """Within 1e-4 of the way that the weights went."""
    assert found.keys() == expected.keys()
    for name in expected:
        way = (expected[name] - start[name]).norm()
        assert way > 0, name
        assert (found[name] - expected[name]).norm() <= 1e-4 * way, name


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("critic", ["policy", "value_head"])
def test_two_processes_train_what_one_trains(tiny_model, tmp_path, critic, checkpointing):
    (policy, values, log), (other_policy, other_values, _) = two_processes(
        tiny_model, tmp_path / "two", critic, checkpointing
    )
    for one, other in ((policy, other_policy), (values, other_values)):
        assert [name for name in one if not torch.equal(one[name], other[name])] == []
    expected_policy, expected_values, expected_log = run(tiny_model, tmp_path / "one", critic, checkpointing, 1)
    start = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    assert_close(policy, expected_policy, start)
    begin = {name: start.get(name.removeprefix("model."), torch.zeros(())) for name in expected_values}
    assert_close(values, expected_values, begin)
    assert len(log) == 3
    for ours, theirs in zip(log, expected_log, strict=True):
        for name in ("value/loss", "value/clip_ratio", "entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name
    for name in ("kl", "reward", "value/mean", "value/return_mean", "value/explained_variance",
                 "rewards/unknown_completions"):  # fmt: skip
        assert log[0][name] == pytest.approx(expected_log[0][name], rel=1e-4, abs=1e-5), name
    assert log[0]["rewards/unknown_completions"] == 1


ZERO3 = {
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}


@pytest.fixture
def zero3(tmp_path):
    pytest.importorskip("deepspeed")
    path = tmp_path / "zero3.json"
    path.write_text(json.dumps(ZERO3))
    return path


def test_zero3_with_a_value_head(tiny_model, tmp_path, zero3):
    """Policy in shards, value head whole; after three steps both are those of one process without DeepSpeed."""
    (_, values, log), (_, other, _) = two_processes(tiny_model, tmp_path / "two", "value_head", False, zero3)
    assert all(torch.equal(values[name], other[name]) for name in values)
    expected_policy, expected_values, expected_log = run(tiny_model, tmp_path / "one", "value_head", False, 1)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in expected_values.items()}
    assert_close(values, expected_values, zeros)
    policy, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "two", output_loading_info=True, dtype=torch.float32
    )
    assert not any(report.values()), report
    start = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    assert_close(dict(policy.named_parameters()), expected_policy, start)
    assert log[0]["value/loss"] == pytest.approx(expected_log[0]["value/loss"], rel=1e-4)


def test_zero3_with_a_critic_in_shards(tiny_model, tmp_path, zero3):
    """Policy and critic are those of one process without DeepSpeed, where they are and as they were saved."""
    (_, values, log), (_, other, _) = two_processes(tiny_model, tmp_path / "two", "policy", False, zero3)
    expected_policy, expected_values, expected_log = run(tiny_model, tmp_path / "one", "policy", False, 1)
    start = dict(AutoModelForCausalLM.from_pretrained(tiny_model).named_parameters())
    halves = {name: torch.cat([values[name], other[name]]) for name in values}
    assert any(values[name].shape != expected_values[name].shape for name in values)
    begin = {name: start.get(name.removeprefix("model."), torch.zeros(())) for name in expected_values}
    assert_close(halves, expected_values, begin)
    critic, report = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "two" / "critic", num_labels=1, output_loading_info=True, dtype=torch.float32
    )
    assert not any(report.values()), report
    assert_close({f"model.{name}": tensor for name, tensor in critic.named_parameters()}, expected_values, begin)
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "two", dtype=torch.float32)
    assert_close(dict(policy.named_parameters()), expected_policy, start)
    for ours, theirs in zip(log, expected_log, strict=True):
        for name in ("value/loss", "value/grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
    # Another run, of the third step alone, from the checkpoint of the second.
    assert_ended_well(launch(tiny_model, tmp_path / "two", "policy", False, zero3))
    for rank, whole in enumerate((values, other)):
        resumed = torch.load(tmp_path / "two" / f"rank{rank}-resumed.pt", weights_only=True)[1]
        assert [name for name in whole if not torch.equal(resumed[name], whole[name])] == []


def test_a_critic_drops_nothing_out(tiny_model):
    """Neither by layers of dropout nor by the number that attention has."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.5)
    critic = make_critic("policy", policy)
    torch.nn.init.ones_(critic.model.score.weight)
    ids = torch.arange(16).view(2, 8) + 5
    assert critic.training and policy.config.attention_dropout == 0.5
    assert torch.equal(*(critic(ids, torch.ones_like(ids), 4) for _ in range(2)))


def test_a_critic_in_shards_learns_in_float32(tiny_model):
    """In bfloat16 a step of 1e-5 changes next to no weight."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        critic = make_critic("policy", policy)
        critic.shard(torch.device("cpu"), half=True)
        critic.prepare(1e-5, (0.9, 0.999), 1e-8, 0.0)
        torch.nn.init.ones_(critic.model.score.weight)
        before = {name: p.full_tensor().clone() for name, p in critic.named_parameters()}
        ids = torch.arange(16).view(2, 8) + 5
        for _ in range(3):
            (critic(ids, torch.ones_like(ids), 4) - torch.linspace(-1, 1, 4)).square().mean().backward()
            critic.step(SimpleNamespace(num_processes=1), 1.0, 1.0)
        changed = [(p.full_tensor() != before[name]).float().mean().item() for name, p in critic.named_parameters()
                   if "embed" not in name]  # fmt: skip
        assert min(changed) > 0.9 and {p.dtype for p in critic.parameters()} == {torch.float32}
    finally:
        torch.distributed.destroy_process_group()
