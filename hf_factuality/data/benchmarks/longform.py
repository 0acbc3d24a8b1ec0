"""Long answers without gold answers: FActScore's biographies and LongFact.

LongFact comes as one file per topic (`longfact-objects_astronomy.jsonl`), each row a `prompt` and a `canary`; these are the
names of the published folder, of which the tests use none.
"""

from __future__ import annotations

import re

from hf_factuality.data.benchmarks import prompts
from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.rows import Reader, Row


# The sentence that the published evaluation appends to every prompt, after a space.
_POSTAMBLE = (
    "Provide as many specific details and examples as possible (such as names of people, numbers, events, locations, "
    "dates, times, etc.)"
)
_FILE = re.compile(r"longfact-(?P<subset>objects|concepts)_(?P<topic>.+)")


def build_biography(row: Row, style: str) -> BenchmarkItem:
    """ "Tell me a bio of X."; style `"published"` puts `Question: ` in front, as the released inputs do."""
    topic = row.text("topic").strip()
    question = f"Tell me a bio of {topic}."
    if style == "fspo":
        messages = prompts.fspo(question)
    else:
        messages = prompts.chat(f"Question: {question}" if style == "published" else question)
    # FActScore's own files say how rare an entity is, and its region.
    category = row.get("cat")
    category = [part for part in category if isinstance(part, str)] if isinstance(category, (list, tuple)) else []
    return BenchmarkItem(
        row.id,
        messages,
        question,
        topic=topic,
        domain=category[0] if category else None,
        reference={"category": category} if category else {},
    )


def subset_of(file: str | None) -> tuple[str | None, str | None]:
    """Subset (`"objects"` or `"concepts"`) and topic that the name of a LongFact file says, without its ending."""
    match = _FILE.fullmatch(file or "")
    return (match["subset"], match["topic"].replace("-", " ")) if match else (None, None)


def build_longfact(row: Row, style: str) -> BenchmarkItem:
    """A prompt with the published postamble; the domain is the topic of the file or of a column."""
    question = row.text("prompt").strip()
    subset, topic = subset_of(row.group)
    prompt = question if _POSTAMBLE in question else f"{question} {_POSTAMBLE}"
    return BenchmarkItem(
        row.id,
        prompts.fspo(prompt) if style == "fspo" else prompts.chat(prompt),
        question,
        domain=row.optional_text("topic") or topic,
        reference={"subset": subset} if subset else {},
    )


READERS = (
    Reader(
        Benchmark(
            name="biographies",
            metrics=("factscore",),
            styles=("chat", "published", "fspo"),
            max_new_tokens=1024,
            # Sampled at temperature 0, as the paper does not state how the models under test were sampled.
            description="biographies of people with a Wikipedia page, checked against that page",
            source="arXiv 2305.14251",
        ),
        build_biography,
        {"topic": ("topic", "entity", "name")},
        optional={"cat": ("cat",)},
        line_column="topic",
        where="a list of entities, one per line (prompt_entities.txt of github.com/shmsw25/FActScore), or its ChatGPT.jsonl",
    ),
    Reader(
        Benchmark(
            name="longfact",
            metrics=("safe", "veriscore"),
            max_new_tokens=1024,
            description="long answers about objects and concepts of 38 topics; split 'objects' or 'concepts' takes one of the two",
            source="arXiv 2403.18802",
        ),
        build_longfact,
        {"prompt": ("prompt",)},
        optional={"topic": ("topic", "domain", "category")},
        files="longfact-*.jsonl",
        where="the folder longfact of github.com/google-deepmind/long-form-factuality",
    ),
)
