"""Training of the long-form experiment: one trainer, one oracle and one budget; only the reward differs."""

from functools import lru_cache

from _rlfh import _settings, total_rewards

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label
from hf_factuality.functional.scoring import count_claims
from hf_factuality.methods.klcf.formula import checklist_scores
from hf_factuality.methods.long_form.formula import knowrl, precision_detail_relevance
from hf_factuality.methods.long_form.reward import labels_of, long_form_reward
from hf_factuality.worlds import WorldVerifier


MAX_TOKENS = 80  # holds a biography with every fact
CHECKED = {"consistent": Label.SUPPORTED, "contradictory": Label.CONTRADICTED, "missing": Label.UNVERIFIABLE}
UNREAD = ("unknown", "unparsable")


def knowrl_biography(completions, verifications, **columns):
    """KnowRL's reward without its format term; a biography is wrong if it contradicts anything, and refuses without a claim."""
    rewards = []
    for labels in map(labels_of, verifications):
        wrong = any(label in (Label.CONTRADICTED, Label.HEDGED_CONTRADICTED) for label in labels)
        outcome = "wrong" if wrong else "correct" if count_claims(labels).stated else "refused"
        rewards.append(knowrl(outcome, labels))
    return rewards


class Oracle:
    """What the rewards need to know beside the labels, of biographies in a world."""

    def __init__(self, world):
        self.world, self.verifier = world, WorldVerifier(world)
        self.read = lru_cache(4096)(lambda text, person: self.verifier.read(text, row={"person": person}))

    def relevance(self, text, person):
        """Share of the sentences that are about the person and were not said before; 0 without any."""
        read = self.read(text, person)
        said, count = set(), 0
        for sentence in read:
            words = text[sentence.start : sentence.end].rstrip(".")
            beside = sentence.off_subject or sentence.off_point or sentence.repeated or sentence.kind in UNREAD
            count += not beside and words not in said
            said.add(words)
        return count / len(read) if read else 0.0

    def checklist(self, text, person):
        """KLCF's recall and precision; an answer that mentions no item has won none."""
        recall, precision = checklist_scores([CHECKED[found] for found in self.verifier.check(text, person).values()])
        return recall, precision or 0.0

    def format(self, text, person):
        """Share of the sentences that are of this world; 0 without any."""
        read = self.read(text, person)
        return sum(sentence.kind not in UNREAD for sentence in read) / len(read) if read else 0.0

    def rewards(self):
        """Arm -> its reward functions."""

        def each(function):
            def reward(completions, completion_texts, person, **columns):
                return [function(*pair) for pair in zip(completion_texts, person, strict=True)]

            return reward

        def recall(text, person):
            return self.checklist(text, person)[0]

        def precision(text, person):
            return self.checklist(text, person)[1]

        def relevant(completions, verifications, completion_texts, person, **columns):
            shares = map(self.relevance, completion_texts, person)
            pairs = zip(map(labels_of, verifications), shares, strict=True)
            return [precision_detail_relevance(labels, share) for labels, share in pairs]

        def rlfh(completions, completion_texts, **columns):
            rows = {name: columns[name] for name in ("question", "evidence", "person") if name in columns}
            return total_rewards(self.world, completion_texts, **rows)

        facts = len(self.world.checklist(self.world.people[0]))
        return {
            "precision": [long_form_reward("precision")],
            # P(true) of a claim is 1 if the oracle supports it, else 0, so that its mean is the precision.
            "KLCF": [each(recall), each(precision), long_form_reward("precision"), each(self.format)],
            "Binary RAR": [long_form_reward("binary_rar")],
            "KnowRL": [knowrl_biography],
            "precision, detail, relevance": [relevant],
            "F1@K": [long_form_reward("f1_at_k", k=facts)],
            "RLFH, summed": [rlfh],
        }


def grpo(name, learning_rate, aggregation="normalize_then_sum", **more):
    """An arm: GRPO with this reward, 8 answers per person; of several rewards each is normalised over its group first."""

    def train(run):
        rewards = Oracle(run.world).rewards()[name]
        for number, reward in enumerate(rewards):
            reward.__name__ = f"{name} {number}"
        own = {"max_completion_length": MAX_TOKENS, "num_generations": 8, "warmup_steps": 2}
        args = FactGRPOConfig(
            **_settings(run, {**own, "learning_rate": run.condition or learning_rate, **more}),
            verify_scope="completion", credit="none", factuality_reward_weight=0.0,
            multi_objective_aggregation=aggregation if len(rewards) > 1 else "sum_then_normalize",
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            str(run.model_dir), rewards, args, run.world.biographies("train"), verifier=WorldVerifier(run.world)
        )
        trainer.train()
        return trainer.model

    return train


def arms(learning_rate):
    """All arms at this learning rate, or at that of the condition."""
    names = ("precision", "KLCF", "Binary RAR", "KnowRL", "precision, detail, relevance", "F1@K", "RLFH, summed")
    found = {name: grpo(name, learning_rate) for name in names}
    return found | {"KLCF, plain sum": grpo("KLCF", learning_rate, "sum_then_normalize")}


def measured(run, rows, found):
    """Recall, relevance, and what each arm's reward would have paid (of KLCF the plain sum), mean over the answers."""
    oracle, people = Oracle(run.world), list(rows["person"])
    columns = {name: rows[name] for name in ("question", "evidence")}
    figures = {
        "recall": sum(oracle.checklist(*pair)[0] for pair in zip(found.completions, people, strict=True)),
        "relevance": sum(map(oracle.relevance, found.completions, people)),
    }
    for name, rewards in oracle.rewards().items():
        paid = [
            reward(found.completions, verifications=found.verifications, completion_texts=found.completions,
                   person=people, **columns)
            for reward in rewards
        ]  # fmt: skip
        figures[f"paid: {name}"] = sum(map(sum, paid))
    return {name: total / len(people) for name, total in figures.items()}
