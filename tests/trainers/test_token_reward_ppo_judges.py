"""The policy judges itself during PPO: the judge follows the policy, and sampling is as without it."""

import json
import shutil

import pytest
import torch
from datasets import Dataset

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.rewards import RLFHReward
from hf_factuality.verifiers import SelfVerifier, SentenceExtractor


@pytest.mark.slow
def test_the_policy_judges_its_own_sentences(tiny_model, tmp_path):
    folder = tmp_path / "policy"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    # The prompts of the judge are longer than the tiny model's context; its rotary positions have no weights.
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    seen = []

    class Watched(RLFHReward):
        def __call__(self, **columns):
            model = self.verifier.judge.client.model
            seen.append(
                (columns["completion_ids"], model.get_output_embeddings().weight.detach().clone(), model.training)
            )
            return super().__call__(**columns)

    def silent(completion_ids, **columns):
        return [[0.0] * len(ids) for ids in completion_ids]

    rows = [
        {"prompt": f"Tell me about {i}. ", "question": f"Who is {i}?", "evidence": f"{i} is a number."}
        for i in range(8)
    ]

    def train(reward):
        args = TokenRewardPPOConfig(
            str(tmp_path / "out"), per_device_train_batch_size=2, max_steps=2, max_completion_length=8, learning_rate=1e-2,
            use_cpu=True, bf16=False, report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, seed=3,
            critic_model="value_head",
        )  # fmt: skip
        trainer = TokenRewardPPOTrainer(str(folder), reward, None, args, Dataset.from_list(rows))
        trainer.train()
        return trainer

    judged = train(Watched(SelfVerifier(extractor=SentenceExtractor(language="en"), retries=0), language="en"))
    logs = [log for log in judged.state.log_history if "rewards/rlfh/mean" in log]
    assert len(logs) == 2 and all(log["rlfh/statements"] > 0 for log in logs)
    # The second batch is judged by the policy after its first step, and is found in training mode again.
    assert not torch.equal(seen[0][1], seen[1][1]) and all(training for _, _, training in seen)
    # What the judge draws does not change what the policy draws.
    first = []

    def watched(completion_ids, **columns):
        first.append(completion_ids)
        return silent(completion_ids, **columns)

    train(watched)
    assert first[0] == seen[0][0]
