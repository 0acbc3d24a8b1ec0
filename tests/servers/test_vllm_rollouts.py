"""Completions that vLLM samples for TRL in this environment: what is paid and weighed stands at its own tokens.

On a CPU TRL's synchronisation of weights does not work (it needs NCCL, or a GPU's memory): the learning rate is 0 there.
"""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, TokenRewardPPOConfig, TokenRewardPPOTrainer
from tests.servers.running import ServerProcess, free_port
from tests.tiny import rows, save_tiny_model
from tests.trainers.recording import QUIET, RecordsLosses, WholeCompletion


pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not in this environment"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny tokenizer with heads of a size that vLLM has kernels for."""
    folder = tmp_path_factory.mktemp("policy")
    save_tiny_model(folder)
    config = LlamaConfig.from_pretrained(folder)
    config.update({"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32})
    torch.manual_seed(0)
    policy = LlamaForCausalLM(config)
    with torch.no_grad():
        policy.lm_head.weight.mul_(4)  # so that tokens differ in their probabilities
    policy.save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One process, as a launcher would say it; without a GPU, a gigabyte for keys and values, whatever others take."""
    said = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(),
            "VLLM_CPU_KVCACHE_SPACE": 1}  # fmt: skip
    for name, value in said.items():
        monkeypatch.setenv(name, str(value))


HALF = 0.05
"""What rounding to bfloat16 may change in a log-probability."""


def label_of(text):
    return Label.SUPPORTED if len(text) % 2 else Label.CONTRADICTED


def length(completions, **columns):
    return [float(len(completion[0]["content"]) % 3) for completion in completions]


def numbers(completion_ids, **columns):
    """A number per token, of the token alone."""
    return [[(token % 5) / 4 - 0.4 for token in ids] for ids in completion_ids]


class FactGRPO(RecordsLosses, FactGRPOTrainer):
    pass


class PPO(RecordsLosses, TokenRewardPPOTrainer):
    pass


SETTINGS = {
    **QUIET, "per_device_train_batch_size": 4, "max_steps": 2, "max_completion_length": 16, "use_vllm": True,
    "vllm_mode": "colocate", "vllm_max_model_length": 128, "vllm_gpu_memory_utilization": 0.1, "learning_rate": 0.0,
}  # fmt: skip


def train(kind, model, folder, **settings):
    settings = {**SETTINGS, **settings}
    if kind is FactGRPO:
        args = FactGRPOConfig(str(folder), num_generations=4, verify_scope="completion", **settings)
        verifier = WholeCompletion(lambda number, item: label_of(item.completion))
        trainer = FactGRPO(model, length, args, rows(), verifier=verifier)
    else:
        trainer = PPO(model, numbers, None, TokenRewardPPOConfig(str(folder), **settings), rows())
    if not torch.cuda.is_available():
        trainer.vllm_generation.sync_weights = lambda: None
    trainer.skip_padding = False
    trainer.train()
    return trainer


def own_logps(trainer, batch, model):
    """Log-probabilities of the completions' tokens, row by row without padding, by a model of transformers."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = torch.zeros(batch["completion_ids"].shape)
    for row, (prompt, kept, ids, mask) in enumerate(
        zip(*(batch[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")), strict=True)
    ):
        prompt, ids = prompt[kept.bool()], ids[mask.bool()]
        with torch.no_grad():
            logits = policy(torch.cat([prompt, ids])[None]).logits[0, len(prompt) - 1 : -1]
        found[row, : len(ids)] = logits.log_softmax(-1).gather(1, ids[:, None])[:, 0]
    return found


@pytest.mark.parametrize("mode", ["sequence_mask", "token_truncate"])
@pytest.mark.parametrize("kind", [FactGRPO, PPO])
def test_what_vllm_samples_is_weighed_at_its_own_tokens(model, tmp_path, kind, mode):
    trainer = train(kind, model, tmp_path, vllm_importance_sampling_mode=mode)
    right = wrong = 0
    for batch in trainer.batches:
        mask = batch["completion_mask"].bool()
        expected = own_logps(trainer, batch, model)
        told = batch["sampling_per_token_logps"]
        # vLLM computes in bfloat16; a place further on would show.
        apart, shifted = (told - expected)[mask].abs().max(), (told - expected.roll(1, dims=1))[mask].abs().max()
        assert apart < HALF < shifted / 4, (apart, shifted)
        assert batch["importance_sampling_ratio"].size(1) == (mask.size(1) if mode.startswith("token") else 1)
        ratio = batch["importance_sampling_ratio"].expand(mask.shape)
        assert (ratio - 1).abs()[mask].max() < 2 * HALF
        if kind is FactGRPO:
            for row, ids in enumerate(batch["completion_ids"]):
                text = trainer.processing_class.decode(ids[mask[row]], skip_special_tokens=True)
                sign = 1 if label_of(text) is Label.SUPPORTED else -1
                body = batch["advantages"][row][mask[row] & (ids > 4)]
                wrong += int((body * sign < 0).sum())
                right += int((body * sign > 0).sum())
    if kind is FactGRPO:
        assert wrong == 0 and right > 20
    else:
        # With a critic of zeros, gamma and lambda 1, the returns are the rewards to come.
        first = trainer.batches[0]
        rewards = ((first["completion_ids"] % 5) / 4 - 0.4) * first["completion_mask"]
        to_go = rewards.flip(1).cumsum(1).flip(1)
        assert torch.allclose(first["returns"] * first["completion_mask"], to_go * first["completion_mask"], atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="TRL synchronises weights with a GPU only")
@pytest.mark.parametrize("kind", [FactGRPO, PPO])
def test_vllm_samples_from_the_weights_of_the_last_step(model, tmp_path, kind):
    trainer = train(kind, model, tmp_path, max_steps=4, learning_rate=1e-2)
    found = trainer.batches[-1]["importance_sampling_ratio"]
    assert (found - 1).abs().max() < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="trl vllm-serve has a GPU of its own")
@pytest.mark.parametrize("kind", [FactGRPO, PPO])
def test_a_server_samples_from_the_weights_of_the_last_step(model, tmp_path, kind):
    command = ["trl", "vllm-serve", "--model", model, "--port", "{port}", "--max_model_len", "128"]
    with ServerProcess(command, tmp_path / "log.txt", 300.0, {"CUDA_VISIBLE_DEVICES": "1"}) as server:
        url = server.url.removesuffix("/v1")
        trainer = train(kind, model, tmp_path, vllm_mode="server", vllm_server_base_url=url, learning_rate=1e-2)
    assert (trainer.batches[-1]["importance_sampling_ratio"] - 1).abs().max() < 0.1
