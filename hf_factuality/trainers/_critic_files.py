"""Files of a run with a critic: it is saved, resumed and chosen with the policy."""

from __future__ import annotations

from pathlib import Path


class CriticFiles:
    """Keeps the critic in the folder `critic` of every checkpoint and of the output."""

    def save_model(self, output_dir=None, _internal_call=False):
        folder = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            self.critic.save(folder)
        super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            self.critic.save_optimizer(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.critic.load(checkpoint)

    def _load_best_model(self):
        super()._load_best_model()
        # The values of the best policy are those that were learned beside it.
        self.critic.load(self.state.best_model_checkpoint)
