"""The methods that a card may name, in one table: title, paper, tags, aim and limits.

`trainers/_methods.py` says which rewards and which credit make which method. What is in no row is called custom, and has
neither a paper nor a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from hf_factuality.io.markdown import code


FACTUAL = "it states fewer things that are false"
_DECLINES = "it declines where its answer would be wrong"
_SURE = "the confidence that it states is the share of its answers that are right"

VERIFIED = "Training follows what the verifier labels, and the verifier errs."
_GOLD = (
    "Answers were compared with gold answers, closed book: nothing else that they state was checked against a source."
)
_GOLD_TOO = "Final answers were compared with gold answers alone."
_JUDGED = "Where a model graded the answers, the rewards hold its errors too."
_RECONSTRUCTED = "The formulas of the reward are a reconstruction of hf_factuality: the paper's are not public here."
_DATA = "Training follows the data, and whoever labelled or chose them errs."
_CUSTOM = "What the custom rewards pay, and whether they are about facts at all, this card cannot tell."
_ALWAYS = (
    "Whether it worked is for the results to say; where none are recorded, nobody knows. The model can still be wrong, above "
    "all on subjects that its training questions did not touch, and it may say less than before. Factuality says nothing "
    "about safety, bias or usefulness."
)


@dataclass(frozen=True)
class Paper:
    """A paper on arXiv."""

    id: str
    title: str

    @property
    def link(self) -> str:
        return f"[{self.title}](https://huggingface.co/papers/{self.id})"

    @property
    def citation(self) -> str:
        """BibTeX, of what the id and the title say."""
        lines = [f"title = {{{self.title}}}", f"year = {{20{self.id[:2]}}}", f"eprint = {{{self.id}}}",
                 "archivePrefix = {arXiv}", f"url = {{https://arxiv.org/abs/{self.id}}}"]  # fmt: skip
        return f"@misc{{arxiv_{self.id.replace('.', '_')},\n    " + ",\n    ".join(lines) + "\n}"

    @property
    def of_trl(self) -> dict[str, str]:
        """As TRL's trainers hold theirs in `_paper`."""
        return {"title": self.title, "id": self.id, "citation": self.citation}


@dataclass(frozen=True)
class Method:
    """A row of [`METHODS`].

    Args:
        reward (`str`):
            What is paid, as a card says it of a run that is not the whole method.
        name (`str`, *optional*):
            Of the method; `None` where such a reward is a part of one, or nobody's.
        paper ([`Paper`], *optional*):
            Where the method, or the reward, comes from.
        tag (`str`, *optional*):
            On the Hub.
        base (`str`, *optional*, defaults to `"GRPO"`):
            What optimises it in the paper. With anything else a run has its reward, and is not the method.
        aim (`str`, *optional*):
            What the model is to become.
        limits (`tuple[str, ...]`, *optional*):
            Sentences for the part "Limits".
        objective, labelled (`str`, *optional*):
            What a card says in the rows "objective" and "verifier" if a trainer of TRL's own trained it.
    """

    reward: str = ""
    name: str | None = None
    paper: Paper | None = None
    tag: str | None = None
    base: str = "GRPO"
    aim: str | None = FACTUAL
    limits: tuple[str, ...] = (VERIFIED,)
    objective: str = ""
    labelled: str = "the one that compared the model's answers with the gold answers"


_FSPO = Paper("2505.24630", "Reasoning Models Hallucinate More: Factuality-Aware Reinforcement Learning for Large Reasoning Models")  # fmt: skip
_RLFH = Paper("2406.12221", "On-Policy Self-Alignment with Fine-grained Knowledge Feedback for Hallucination Mitigation")  # fmt: skip
_KLCF = Paper("2509.23765", "Knowledge-Level Consistency Reinforcement Learning: Dual-Fact Alignment for Long-Form Factuality")  # fmt: skip
_TRUTHRL = Paper("2509.25760", "TruthRL: Incentivizing Truthful LLMs via Reinforcement Learning")
_KNOWRL = Paper("2506.19807", "KnowRL: Exploring Knowledgeable Reinforcement Learning for Factuality")
_RAR = Paper("2510.17733", "Train for Truth, Keep the Skills: Binary Retrieval-Augmented Reward Mitigates Hallucinations")  # fmt: skip
_REASON = Paper("2508.05618", "Learning to Reason for Factuality")
_CORVER = Paper("2605.29648", "Verifiable Rewards Beyond Math and Code: Lightweight Corpus-Grounded Process Supervision for Factual Question Answering")  # fmt: skip
_WHY = Paper("2509.04664", "Why Language Models Hallucinate")
_RLCR = Paper("2507.16806", "Beyond Binary Rewards: Training LMs to Reason About Their Uncertainty")
_DCPO = Paper("2603.09117", "Decoupling Reasoning and Confidence: Resurrecting Calibration in Reinforcement Learning from Verifiable Rewards")  # fmt: skip
_LOVEC = Paper("2505.23912", "LoVeC: Reinforcement Learning for Better Verbalized Confidence in Long-Form Generations")  # fmt: skip
_CORRECTION = Paper("2502.19613", "Self-rewarding correction for mathematical reasoning")
_CARR = Paper("2601.06021", "Chaining the Evidence: Robust Reinforcement Learning for Deep Search Agents with Citation-Aware Rubric Rewards")  # fmt: skip
_FAITHRL = Paper("2602.05897", "Stop Rewarding Hallucinated Steps: Faithfulness-Aware Step-Level Reinforcement Learning for Small Reasoning Models")  # fmt: skip
_RTUNING = Paper("2311.09677", "R-Tuning: Instructing Large Language Models to Say 'I Don't Know'")
_CORRECTS = {"name": "Self-rewarding correction", "paper": _CORRECTION, "tag": "self-rewarding-correction",
             "aim": "it finds and mends errors of its own answers"}  # fmt: skip
_SELF = "The model judges its own answers, without a source: what it is wrong about and sure of it does not revise."
_GOLD_TAUGHT = "Gold answers were taught as they stand in the data: nothing was checked against a source."
_UNSURE = "It declines where models like it were unsure before the last training; later knowledge changes nothing."
_WORDS = "It says that it does not know, or is unsure, by what the base model knew when it was asked; later knowledge changes nothing."  # fmt: skip

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "fspo": Method("the sentences' mean factuality, and its sign for their tokens", "FSPO", _FSPO, "fspo"),
        "factuality": Method("the sentences' mean factuality"),
        "rlfh": Method("the reward of RLFH", "RLFH", _RLFH, "rlfh", "PPO"),
        "klcf": Method("the reward of KLCF", "KLCF", _KLCF, "klcf", limits=(VERIFIED, _RECONSTRUCTED)),
        "klcf_part": Method("a part of KLCF's reward", paper=_KLCF, limits=(VERIFIED, _RECONSTRUCTED)),
        "truthrl": Method("the reward of TruthRL", "TruthRL", _TRUTHRL, "truthrl", aim=_DECLINES, limits=(_GOLD,)),
        "knowrl": Method("the reward of KnowRL", "KnowRL", _KNOWRL, "knowrl", limits=(VERIFIED, _GOLD)),
        "knowrl_outcome": Method("KnowRL's reward of the outcome, without its factual part", paper=_KNOWRL, aim=_DECLINES, limits=(_GOLD,)),
        "confidence_target": Method("a confidence target", paper=_WHY, aim=_DECLINES, limits=(_GOLD,)),
        "abstention": Method("a reward of declining", aim=_DECLINES, limits=(_GOLD,)),
        "binary": Method("a binary reward of right answers", aim="more of its answers are right", limits=(_GOLD,)),
        "graded": Method(limits=(_JUDGED,), aim=None),
        "binary_rar": Method("the reward of Binary RAR", "Binary RAR", _RAR, "binary-rar"),
        "precision": Method("the precision of the claims"),
        "precision_detail": Method("precision and detail of the claims", paper=_REASON),
        "precision_detail_relevance": Method("the reward of Learning to Reason for Factuality", "Learning to Reason for Factuality", _REASON, "factual-reasoning"),
        "f1_at_k": Method("F1@K of the claims"),
        "corver": Method("CorVer's counts of pairs", paper=_CORVER, limits=(VERIFIED, "Counts see neither relation nor negation, and punish rare truths.")),
        "rlcr": Method("the reward of RLCR", "RLCR", _RLCR, "rlcr", aim=_SURE, limits=(_GOLD,)),
        "dcpo": Method("the rewards of DCPO", "DCPO", _DCPO, "dcpo", aim=_SURE, limits=(_GOLD,)),
        "dcpo_part": Method("DCPO's reward of the confidence", paper=_DCPO, aim=_SURE, limits=(_GOLD,)),
        "lovec": Method("the reward of LoVeC", "LoVeC", _LOVEC, "lovec", aim=_SURE),
        "correction": Method("the last answer's score", **_CORRECTS, limits=(_GOLD, _SELF)),
        "answers": Method("the answers' score", aim="more of its answers are right", limits=(_GOLD,)),
        "citations": Method("whether what its statements cite supports them", aim="it cites passages that support what it states"),
        "rubrics": Method("the single facts that its answers name and support by citations", paper=_CARR, aim="it cites passages that support what it states"),
        "declining": Method("a reward of declining where a search finds nothing", aim=_DECLINES),
        "faithful_prefixes": Method("completions that go on from faithful prefixes", paper=_FAITHRL),
        "search_cost": Method("a price for calls of tools", aim=None, limits=()),
        "format": Method("a reward of the format", aim=None, limits=()),
        "process": Method("the steps' scores", aim="its steps are right", limits=("Training follows the model that scored the steps, and it errs.",)),
        "reward_model": Method("a reward model", aim=None, limits=("Training follows the reward model, and it errs.",)),
        "correction_sft": Method(
            **_CORRECTS, base="SFT", limits=(_DATA, _SELF), objective="SFT on answers, verdicts on them, and revisions of what was found wrong",
        ),
        "correction_dpo": Method(**_CORRECTS, base="DPO", limits=(_DATA, _SELF), objective="DPO on pairs of verdicts and pairs of revisions"),
        "rtuning": Method(
            name="R-Tuning", paper=_RTUNING,
            tag="r-tuning", base="SFT", aim=_DECLINES, limits=(_GOLD, _WORDS),
            objective="SFT on gold answers, and on refusals or doubts where the model did not know them",
        ),
        "rtuning_surest": Method(
            name="R-Tuning by sureness", paper=_RTUNING,
            tag="r-tuning", base="SFT", aim=_DECLINES, limits=(_GOLD_TAUGHT, _UNSURE),
            objective="SFT on gold answers to the questions of which models that learnt from the others were surest, and on refusals",
            labelled="none; the probability that a model gave its own answer decides what is declined",
        ),
        "raft": Method(
            name="RAFT", paper=Paper("2304.06767", "RAFT: Reward rAnked FineTuning for Generative Foundation Model Alignment"),
            tag="raft", base="SFT", aim="its usual answer is as good as the best of several",
            limits=("Training follows the scores that chose the answers, and these err.",),
            objective="SFT on the best of several answers to each question", labelled="the one that scored the answers",
        ),
        "mask_dpo": Method(
            name="Mask-DPO", paper=Paper("2503.02846", "Mask-DPO: Generalizable Fine-grained Factuality Alignment of LLMs"),
            tag="mask-dpo", base="DPO", limits=(VERIFIED,),
        ),
        "dpo": Method(
            name="DPO", paper=Paper("2305.18290", "Direct Preference Optimization: Your Language Model is Secretly a Reward Model"),
            tag="dpo", base="DPO", aim=None, limits=(_DATA,),
        ),
        "ama": Method(
            name="Adaptive model averaging (AMA)", paper=Paper("2309.06256", "Mitigating the Alignment Tax of RLHF"),
            tag="adaptive-averaging", base="averaging", aim="it keeps what alignment has won and gets other abilities back",
            limits=("The ratios follow the answers that were chosen, and whoever chose them errs.",),
        ),
        "truthfulness_model": Method(paper=_KLCF),
        "probe": Method(paper=Paper("2509.03531", "Real-Time Detection of Hallucinated Entities in Long-Form Generation")),
        "process_reward": Method(paper=Paper("2412.11006", "Entropy-Regularized Process Reward Model")),
        "rag_reward": Method(paper=Paper("2501.13264", "RAG-Reward: Optimizing RAG with Reward Modeling and RLHF")),
    }
)  # fmt: skip
"""What cards know, by keys that only this package uses."""


@dataclass(frozen=True)
class CardMethod:
    """What a card says of how a model was trained; [`describe_method`] makes it."""

    title: str
    papers: tuple[Paper, ...] = ()
    whole: bool = False  # whether the papers' methods are what was done, and not only a part
    tags: tuple[str, ...] = ()
    aims: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What follows "The base, " on the card."""
        links = _listed([paper.link for paper in self.papers])
        of = f"the method{'s' * (len(self.papers) > 1)} of {links}" if self.whole else f"after {links}"
        aim = f", with the aim that {_listed(self.aims)}" if self.aims else ""
        return f"trained with {self.title}" + (f", {of}" if links else "") + aim

    @property
    def limit(self) -> str:
        """The part "Limits"."""
        return " ".join([*self.limits, _ALWAYS])

    @property
    def of_trl(self) -> dict[str, str]:
        """As TRL's trainers hold theirs in `_paper`, which has room for one."""
        return self.papers[0].of_trl if len(self.papers) == 1 else {}


def describe_method(
    keys: Iterable[str],
    base: str,
    *,
    custom: Sequence[str] = (),
    credit: str | None = None,
    details: Mapping[str, str] | None = None,
) -> CardMethod:
    """The method of a run.

    Args:
        keys (`Iterable[str]`):
            Rows of [`METHODS`] that were paid, in the order in which they are named.
        base (`str`):
            What optimised: `"GRPO"`, `"PPO"`, `"SFT"`, ...
        custom (`Sequence[str]`, *optional*):
            Names of rewards that are in no row.
        credit (`str`, *optional*):
            In Markdown, of a credit that is no part of a method.
        details (`Mapping[str, str]`, *optional*):
            What the card says of single rewards, by their names.
    """
    keys = list(dict.fromkeys(keys))
    known = [METHODS[key] for key in keys]
    own = [one for one in known if one.name and one.base == base]
    # An answer's score and its format belong to every method that is paid for answers.
    plain = {"answers", "format", "graded"} | ({"reward_model"} if "klcf" in keys else set())
    parts = [
        one for key, one in zip(keys, known, strict=True) if one not in own and (key not in plain or key == "answers")
    ]
    if own or len(parts) > 1 or custom:
        parts = [one for one in parts if one is not METHODS["answers"]]
    rest = [one.reward for one in parts if one.reward]
    if custom:
        rest.append(f"custom rewards ({', '.join(map(code, custom))})")
    names = [one.name for one in own]
    if own:
        more = _listed([*names[1:], *rest, *([f"{credit} credit"] if credit else [])])
        title = f"{names[0]} combined with {more}" if more else names[0]
    else:
        named = f"Fact{base}" if credit else base
        more = _listed([*rest, *([f"{credit} credit"] if credit else [])])
        title = f"{named} with {more}" if more else named
    used = [*own, *parts]
    papers = tuple(dict.fromkeys(one.paper for one in used if one.paper))
    aims = dict.fromkeys(one.aim for one in used if one.aim)
    limits = dict.fromkeys(limit for one in known for limit in one.limits)
    if VERIFIED in limits:
        limits = dict.fromkeys(_GOLD_TOO if limit == _GOLD else limit for limit in limits)
    return CardMethod(
        title,
        papers,
        whole=bool(papers) and all(one in own for one in used if one.paper),
        tags=tuple(dict.fromkeys(one.tag for one in own if one.tag)),
        aims=() if custom and not used else tuple(aims),
        limits=(*limits, *([_CUSTOM] if custom else [])),
        details=details or {},
    )


def _listed(texts: Sequence[str]) -> str:
    """Texts as words list them."""
    texts = list(texts)
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
