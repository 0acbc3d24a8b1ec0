"""A training with KLCF's four roles on servers, small enough to be run twice."""

import torch

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import ServedRoles, truthfulness_reward
from tests.tiny import rows


STEPS = 6
CHECKLIST = ["Ada lives in Leeds.", "Ada works in York."]


class Trained:
    """What a run was: rewards and unknowns of every step, the completions and the weights that it ended with.

    `flags` are those of [`ServedRoles`]; `retry` goes to the clients, so that tests take seconds.
    """

    def __init__(self, model, folder, flags, retry, on_step=lambda step: None):
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
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            seed=3,
        )
        data = rows().add_column("checklist", [CHECKLIST] * len(rows()))
        rewards = [seen, checklist.recall, checklist.precision, truthfulness_reward, roles.general()]
        self.trainer = FactGRPOTrainer(model, rewards, args, data, verifier=roles.verifier())
        self.trainer.train()
        kept = ("rewards/", "factuality/", "reward", "loss", "grad_norm")
        self.log = [
            {name: value for name, value in entry.items() if name.startswith(kept) and "seconds" not in name}
            for entry in self.trainer.state.log_history
            if "loss" in entry
        ]
        self.weights = [parameter.detach().clone() for parameter in self.trainer.model.parameters()]

    def check_same(self, other):
        """All steps are there, nothing was unknown, and nothing that was computed differs."""
        assert len(self.log) == STEPS and self.trainer.state.global_step == STEPS
        assert self.completions == other.completions
        for entry, others in zip(self.log, other.log, strict=True):
            assert entry == others
            assert entry["factuality/failed"] == entry["factuality/unjudged_sentences"] == 0
        assert all(map(torch.equal, self.weights, other.weights))

    def check_worth_it(self):
        """A control: every term differs within the groups, so that a lost one would show in the weights."""
        for name in ("checklist_recall", "checklist_precision", "truthfulness_reward", "general"):
            assert sum(entry[f"rewards/{name}/std"] > 0 for entry in self.log) > STEPS // 2, name
