"""Pushing from a trainer: model, card, verifier and results in one commit, and nothing else of the run."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from hf_factuality.errors import DataError, HubError
from hf_factuality.hub.push import plan_push, push_plans
from hf_factuality.hub.results import folder_fingerprint, load_results
from hf_factuality.io.upload import Published, prepare_repo
from hf_factuality.verifiers.pipeline import VerifierPipeline, export_pipeline


logger = logging.getLogger(__name__)

_RESUMABLE = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: None}
_STAGING = "_push-"
# Groups of processes whose last owner must not be a trainer. Where `destroy_process_group` comes first, DDP frees the
# group with Python's lock in hand and waits for threads of gloo, of which one may wait for that lock: no end.
_KEPT: set[Any] = set()


_SETTLE = 0.2
"""Seconds at exit for threads of gloo to let go of the tensors of the last collective. One that needs Python's lock for that
while the interpreter ends is ended within C++, which aborts a process whose work is done."""


class Publishes:
    """A push is one commit, holds what is part of the model and nothing that tells of the machine or the account, and goes
    to a private repository unless `hub_private_repo=False`.

    `training_args.bin`, a pickle of every argument with the token among them, is never pushed. The strategies `checkpoint`
    and `all_checkpoints` add what a run is resumed from, and refuse a public repository before training starts.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if dist.is_available() and dist.is_initialized():
            if not _KEPT:
                atexit.register(time.sleep, _SETTLE)
            _KEPT.add(dist.group.WORLD)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        if not self.is_world_process_zero():
            return
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        private = private if private is not None else self.args.hub_private_repo
        resumable = self.args.hub_strategy in _RESUMABLE
        if resumable and private is False:
            raise ValueError(
                f"hub_strategy={self.args.hub_strategy.value!r} needs a private repository; take 'every_save' if it is public"
            )
        # Made private if it is new; one that exists stays as it is, if its files may be read by everybody or not.
        token = token if token is not None else self.args.hub_token
        for left in Path(self.args.output_dir).glob(f"{_STAGING}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        self.hub_model_id = prepare_repo(name, private=True if resumable else private, new_private=True, token=token)
        self.push_in_progress = None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Published | Future | None:
        """Save the model, write its card, and publish both with the verifier and files of results, in one commit.

        `token`, `revision` and `private` stand instead of the arguments' (`hub_token`, `hub_revision`, `hub_private_repo`);
        a new repository is private by default, and one that is otherwise than `private` asks is refused. `kwargs` go to
        `create_model_card`. Returns [`~hf_factuality.io.upload.Published`], unless `blocking` a `Future` of it, and `None` on
        other processes than the main one.

        Raises:
            [`~hf_factuality.errors.HubError`]: the Hub refuses or cannot be reached; nothing of the push is visible then.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token if token is not None else self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token, private=private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        kwargs.setdefault("model_name", self.hub_model_id.split("/")[-1])
        self.create_model_card(**kwargs)
        self._save_verifier(Path(self.args.output_dir))
        self._finish_current_push()
        where = {"revision": revision or self.args.hub_revision, "commit_message": commit_message, "token": token}
        where["private"] = private if private is not None else self.args.hub_private_repo

        def publish() -> Published:
            return push_plans([plan_push(self.args.output_dir)], self.hub_model_id, **where)

        return publish() if blocking else self._pusher.submit(publish)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        strategy = self.args.hub_strategy
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        if not self.args.hub_always_push and self.push_in_progress is not None and not self.push_in_progress.is_done():
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        # Training goes on, and may delete the checkpoint: what is pushed has names of its own.
        staged = Path(self.args.output_dir) / f"{_STAGING}{Path(checkpoint_folder).name}"
        shutil.rmtree(staged, ignore_errors=True)
        # Links stay links: what they lead to is not copied, and whether it may be published is seen there.
        shutil.copytree(checkpoint_folder, staged / "model", symlinks=True, copy_function=_link)
        card = Path(self.args.output_dir) / "README.md"
        if card.is_file() and _is_inside(card, Path(self.args.output_dir)):
            # PEFT leaves a card in the checkpoint, and writing through the link would change that one.
            (staged / "model" / "README.md").unlink(missing_ok=True)
            shutil.copy(card, staged / "model")
        for results in _results_of(Path(self.args.output_dir), Path(checkpoint_folder)):
            shutil.copy(results, staged / "model")
        self._save_verifier(staged / "model")
        state = None
        if strategy in _RESUMABLE:
            shutil.copytree(checkpoint_folder, staged / "state", symlinks=True, copy_function=_link)
            state = _RESUMABLE[strategy] or Path(checkpoint_folder).name
        step = f"Training in progress, step {self.state.global_step}"
        where = {"revision": self.args.hub_revision, "commit_message": step, "token": self.args.hub_token}
        where["private"] = True if strategy in _RESUMABLE else self.args.hub_private_repo
        job = self._pusher.submit(_push_staged, staged, state, self.hub_model_id, where)
        before = [] if self.push_in_progress is None else self.push_in_progress.jobs
        self.push_in_progress = PushInProgress([*before, job])

    @cached_property
    def _pusher(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="push")  # two commits at once would be in each other's way

    def _save_verifier(self, folder: Path) -> None:
        """The settings of the verifier that paid for this model, where there is one and it can be described."""
        guard = getattr(self, "_guard", None)
        rewards = [getattr(reward, "__wrapped__", reward) for reward in getattr(self, "reward_funcs", [])]
        asked = [guard] if guard is not None else rewards
        found = [verifier for one in asked if isinstance(verifier := getattr(one, "verifier", None), VerifierPipeline)]
        if len(found) > 1:
            logger.warning("%d verifiers paid for this model; none of them is published with it", len(found))
        elif found:
            try:
                export_pipeline(found[0], folder / "verifier")
            except HubError as error:
                logger.warning("the verifier is not published with the model: %s", error)


def _push_staged(staged: Path, state: str | None, repo_id: str, where: dict[str, Any]) -> Published | None:
    """A failed push in the middle of a run is said and forgotten: the next one, or the last, brings everything."""
    try:
        plans = [plan_push(staged / "model")]
        if state is not None:
            plans.append(plan_push(staged / "state", path_in_repo=state, resumable=True))
        return push_plans(plans, repo_id, **where)
    except Exception as error:
        logger.warning("%s was not pushed: %s", where["commit_message"], error)
        return None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _results_of(folder: Path, checkpoint: Path) -> list[Path]:
    """Files of results of the weights in a checkpoint; those of other weights say nothing about it."""
    own, found = folder_fingerprint(checkpoint), []
    for path in sorted(folder.glob("results*.json")):
        if not _is_inside(path, folder):
            continue
        try:
            measured = load_results(path)["model"].get("fingerprint")
        except DataError:  # not of our schema
            continue
        if own is not None and measured == own:
            found.append(path)
    return found


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
