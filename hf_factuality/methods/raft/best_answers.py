"""RAFT's data: the best of several answers to each question, by the scores of a verifier."""

from collections import Counter

from accelerate import PartialState
from datasets import Dataset

from hf_factuality import load_verifier
from hf_factuality.data import TransformersSampler
from hf_factuality.data.builder import describe_labels, judged_responses, verified_responses
from hf_factuality.errors import DataError
from hf_factuality.methods.process_reward.formula import aggregate_steps


def best_answers(model, questions, sampling, selector, how, folder, seed):
    """Write the best answer to each question into `folder/best.parquet`; started again, it goes on where it was killed.

    None where all answers are worth 0, such as wrong ones by gold answers, or nothing is known of any.
    """
    sampler = TransformersSampler(model, config=sampling, batch_size=256, model_kwargs={"dtype": "auto"})
    sampler.model.to(PartialState().device)
    run, rows = {"seed": seed, "questions_per_batch": 16}, []
    with judged_responses(questions, sampler, load_verifier(selector), folder, **run) as journals:
        for question in questions:
            worth = {0.0: ""}  # of equally good answers the first
            for text, verdict in verified_responses(question, *journals, Counter()):
                scores = [span.score for span in verdict.spans] if verdict and not verdict.error else []
                worth.setdefault(aggregate_steps(scores, how) or 0.0, text)
            if best := worth[max(worth)]:
                said = [{"role": "assistant", "content": best}]
                rows.append({"prompt": list(map(dict, question.messages)), "completion": said})
    if not rows:
        raise DataError(f"no answer in {folder} is worth more than 0 to {selector!r}")
    Dataset.from_list(rows).to_parquet(str(folder / "best.parquet"))


def kept_answers(folder):
    """What [`best_answers`] has kept, with a word on it for the card."""
    best = Dataset.from_parquet(str(folder / "best.parquet"))
    best.info.description = f"the best of a model's own answers to each question{describe_labels(folder)}"
    return best
