"""A training with KLCF's four roles on servers, small enough to be run twice."""

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import ServedRoles, truthfulness_reward


STEPS = 6
TEMPLATE = "Q: {{question|plain}} A: {{claim|plain}}"


def save_classifier(tokenizer, folder, classes):
    """A Qwen2 of random weights that tells texts apart; of two classes, a truthfulness model, and of none a language model."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(classes or 17)  # the language model finds some claims supported by some answers
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.3,
        num_labels=classes,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        truthfulness={"template": TEMPLATE},
    )
    (Qwen2ForSequenceClassification if classes else Qwen2ForCausalLM)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


class Trained:
    """What a run was: rewards and unknowns of every step, the completions and the weights that it ended with.

    `flags` are those of [`ServedRoles`]; `retry` goes to the clients, so that tests take seconds.
    """

    def __init__(self, model, data, folder, flags, retry, on_step=lambda step: None):
        folder.mkdir(exist_ok=True)
        roles = ServedRoles(**flags)
        for client in roles._clients.values():
            client.__init__(**{**client.__getstate__(), "cache": str(folder / "answers.sqlite"), "retry": retry})
        roles.check()
        self.clients = roles._clients
        checklist, self.completions = roles.checklist(), []

        def seen(prompts, completions, completion_texts, trainer_state, **columns):
            self.completions += completion_texts
            on_step(trainer_state.global_step)
            return [0.0] * len(prompts)

        args = FactGRPOConfig(
            str(folder / "out"),
            verify_scope="answer",
            credit="none",
            factuality_reward_weight=0.0,
            reward_weights=[0.0, 1.0, 1.0, 1.0, 0.1],
            multi_objective_aggregation="normalize_then_sum",
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=24,
            max_steps=STEPS,
            temperature=1.2,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            seed=3,
        )
        rewards = [seen, checklist.recall, checklist.precision, truthfulness_reward, roles.general()]
        verifier = roles.verifier()
        verifier.verifier.extractor.retries = 0  # further attempts are drawn, and no two runs of vLLM draw alike
        self.trainer = FactGRPOTrainer(model, rewards, args, data, verifier=verifier)
        self.trainer.train()
        kept = ("rewards/", "factuality/", "reward", "loss", "grad_norm")
        self.log = [
            {name: value for name, value in entry.items() if name.startswith(kept) and "seconds" not in name}
            for entry in self.trainer.state.log_history
            if "loss" in entry
        ]
        self.weights = [parameter.detach().clone() for parameter in self.trainer.model.parameters()]

    def check_same(self, other, tolerance=0.0):
        """All steps are there, nothing was unknown, and nothing that was computed differs."""
        assert len(self.log) == STEPS and self.trainer.state.global_step == STEPS
        assert self.completions == other.completions
        for entry, others in zip(self.log, other.log, strict=True):
            assert entry == pytest.approx(others, rel=tolerance, abs=tolerance)
            assert entry["factuality/failed"] == entry["factuality/unjudged_sentences"] == 0
        for mine, others in zip(self.weights, other.weights, strict=True):
            torch.testing.assert_close(mine, others, rtol=tolerance, atol=tolerance)

    def check_worth_it(self):
        """A control: every term differs within the groups, so that a lost one would show in the weights."""
        for name in ("checklist_recall", "checklist_precision", "truthfulness", "general"):
            assert sum(entry[f"rewards/{name}/std"] > 0 for entry in self.log) > STEPS // 2, name
