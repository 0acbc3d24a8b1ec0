"""BM25 over all passages of a knowledge base, saved to and loaded from a folder or the Hub."""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from hf_factuality.errors import RetrievalError
from hf_factuality.io.files import whole_folder
from hf_factuality.io.upload import Published, publish
from hf_factuality.retrieval.knowledge import KnowledgeBase
from hf_factuality.retrieval.passages import (
    TERMS_VERSION,
    Passage,
    PassageConfig,
    best_places,
    bm25_index,
    bm25_scores,
    split_passages,
    terms,
)
from hf_factuality.retrieval.retrievers import Claims, PageRetriever, TopicRetriever, query_texts
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline


INDEX_FILE = "retriever.json"


@dataclass(frozen=True)
class PassageIndex:
    """An index in memory, or memory-mapped, of the base with this fingerprint."""

    bm25: Any  # a `bm25s.BM25` over the passages; None if none of them has a term
    ranges: np.ndarray  # int64 of shape (number of passages, 3): document, first character, one past the last
    passages: PassageConfig
    fingerprint: str


class CorpusRetriever(PageRetriever):
    """BM25 over all passages of a knowledge base, each with its page's title; implements `Retriever`.

    The index holds numbers only; texts are read from the base, whose fingerprint must be that of the base it was made
    from. It is a `bm25s` index, memory-mapped after loading, with two files beside it. Only passages that share a term
    with the query are found.

    Args:
        base ([`~hf_factuality.retrieval.knowledge.KnowledgeBase`], `str` or `Path`):
            The base that was indexed.
        index (`str`, `Path` or [`PassageIndex`]):
            Folder or model repository of the Hub, as `save_pretrained` and `push_to_hub` write them.
        revision (`str`, *optional*), token (`str`, *optional*):
            For the Hub.
        top_k (`int`, *optional*, defaults to `5`):
            Passages per claim at most.
        query_columns (`Sequence[str]`, *optional*, defaults to `()`):
            Columns of the row whose text goes in front of the claim in the query; blank ones are left out.
        passage_format (`str`, *optional*, defaults to `"title"`):
            See [`~hf_factuality.retrieval.retrievers.TopicRetriever`].

    Raises:
        `RetrievalError`: the index is missing or damaged, or was made from another base or by another version.

    Example:

        >>> retriever = CorpusRetriever.build(KnowledgeBase("kb.sqlite"))
        >>> retriever.save_pretrained("kb.bm25")
        >>> retriever = CorpusRetriever("kb.sqlite", "kb.bm25", top_k=3)
    """

    def __init__(
        self,
        base: KnowledgeBase | str | Path,
        index: str | Path | PassageIndex,
        revision: str | None = None,
        token: str | None = None,
        top_k: int = 5,
        query_columns: Sequence[str] = (),
        passage_format: str = "title",
    ):
        super().__init__(base, top_k, passage_format)
        self._source: dict[str, Any] | None = None
        if not isinstance(index, PassageIndex):
            folder, self._source = _find(str(index), revision, token)
            index = _load(folder, self.base)
        self.index, self.query_columns = index, tuple(query_columns)
        self._page = lru_cache(maxsize=256)(self.base.page_by_id)

    def config(self) -> dict[str, Any]:
        """Arguments that make this retriever again, as plain values and a base. `ValueError`: the index was neither saved nor
        loaded."""
        if self._source is None:
            raise ValueError("CorpusRetriever has an index in memory only; save_pretrained or push_to_hub it first")
        names = ("base", "top_k", "query_columns", "passage_format")
        return {**self._source, **{name: getattr(self, name) for name in names}}

    def __len__(self) -> int:
        return len(self.index.ranges)

    def search(self, inputs: Sequence[VerifierInput], claims: Claims) -> list[list[tuple[Passage, ...]]]:
        """Like `retrieve`, with titles, offsets and scores."""
        queries = query_texts(inputs, claims, self.query_columns)
        known = {query: tuple(self._hits(query)) for query in dict.fromkeys(chain.from_iterable(queries))}
        results = [[known[query] for query in row] for row in queries]
        self.count(results, {})
        return results

    def _hits(self, query: str) -> Iterator[Passage]:
        scores = bm25_scores(self.index.bm25, terms(query), len(self))
        for place in best_places(scores, self.top_k):
            number, start, end = map(int, self.index.ranges[place])
            page = self._page(number)
            yield Passage(page.title, start, end, page.text[start:end], float(scores[place]))

    @classmethod
    def build(
        cls,
        base: KnowledgeBase | str | Path,
        passages: PassageConfig | None = None,
        *,
        k1: float = 1.5,
        b: float = 0.75,
        method: str = "lucene",
        show_progress: bool | None = False,
        **settings: Any,
    ) -> CorpusRetriever:
        """Index every passage of a base, in memory.

        Args:
            base ([`~hf_factuality.retrieval.knowledge.KnowledgeBase`], `str` or `Path`):
                What to index.
            passages ([`~hf_factuality.retrieval.passages.PassageConfig`], *optional*):
                How pages are cut.
            k1, b, method (`float`, `float`, `str`, *optional*, default to `1.5`, `0.75`, `"lucene"`):
                See [`~hf_factuality.retrieval.passages.bm25_index`].
            show_progress (`bool`, *optional*, defaults to `False`):
                `None` shows a bar where standard error is a terminal.
            **settings:
                `top_k`, `query_columns`, `passage_format`.
        """
        base = base if isinstance(base, KnowledgeBase) else KnowledgeBase(base)
        config, ranges = passages or PassageConfig(), array("q")

        def documents() -> Iterator[list[str]]:
            disable = None if show_progress is None else not show_progress
            for page in tqdm(base, total=len(base), desc="passages", unit=" pages", disable=disable):
                title = terms(page.title)
                for passage in split_passages(page, config):
                    ranges.extend((page.id, passage.start, passage.end))
                    yield title + terms(passage.text)

        bm25 = bm25_index(documents(), k1, b, method)
        places = np.array(ranges, dtype=np.int64).reshape(-1, 3)
        return cls(base, PassageIndex(bm25, places, config, base.fingerprint), **settings)

    def save_pretrained(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index to a folder, which appears when it is complete. `RetrievalError`: the folder is there and not empty,
        or the base has no term to index."""
        folder = Path(folder).expanduser().absolute()
        if folder.exists() and not overwrite and (not folder.is_dir() or any(folder.iterdir())):
            raise RetrievalError(f"{folder} is there already; choose another or pass `overwrite=True`")
        with whole_folder(folder, overwrite) as temporary:
            self._write(temporary)
        self._source = {"index": str(folder)}

    def _write(self, folder: Path) -> None:
        if self.index.bm25 is None:
            raise RetrievalError(f"{self.base.path} has no words to index")
        self.index.bm25.save(folder, show_progress=False)
        np.save(folder / "passages.npy", self.index.ranges)
        passages, fingerprint = asdict(self.index.passages), self.index.fingerprint
        config = {"terms": TERMS_VERSION, "fingerprint": fingerprint, "passages": passages}
        (folder / INDEX_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def push_to_hub(self, repo_id: str, private: bool | None = None, token: str | None = None) -> Published:
        """Upload the index to a model repository, which is made if need be, private by default; `bm25s` alone can read it too.

        Returns the commit: its `oid` and `address`. `HubError`: the Hub refuses or cannot be reached, or `private` is not what
        the repository is.
        """
        with tempfile.TemporaryDirectory() as folder:
            self._write(Path(folder))
            files = {path.name: path for path in Path(folder).iterdir()}
            published = publish(
                files, repo_id, private=private, new_private=True, commit_message="Upload index", token=token
            )
        self._source = {"index": published.repo_id, "revision": published.oid}
        return published


class PassageCounts:
    """Counts, exactly, the passages that hold all content words of two texts, in any form and order, titles included.

    CorVer counts within 1,000 tokens of Wikipedia, in an infini-gram index; `PassageConfig(size=750)` is about as wide.

    Args:
        corpus ([`CorpusRetriever`]):
            Its index is read, its texts are not.
    """

    def __init__(self, corpus: CorpusRetriever):
        self._index = corpus.index.bm25
        self.count = lru_cache(maxsize=1 << 16)(self._count)

    def _count(self, first: str, second: str) -> int | None:
        """`None` if one of the two has no content word."""
        texts = set(terms(first)), set(terms(second))
        if not all(texts) or self._index is None:
            return None
        known, scores = self._index.vocab_dict, self._index.scores
        wanted = [known.get(word) for word in texts[0] | texts[1]]
        if None in wanted:
            return 0
        ranges = sorted((scores["indptr"][n : n + 2] for n in wanted), key=lambda both: both[1] - both[0])
        found, *others = [scores["indices"][start:end] for start, end in ranges]
        for passages in others:
            found = np.intersect1d(found, passages, assume_unique=True)
        return len(found)


def with_knowledge(verifier: Verifier, name: str, path: Path, by_topic: bool, top_k: int) -> VerifierPipeline:
    """The verifier of `verifier` with the evidence of `knowledge`: the pages that a row's topic names, or all passages.
    `RetrievalError`: it looks up its evidence itself, or there is no such file, or no index beside it."""
    if not isinstance(verifier, VerifierPipeline) or type(verifier).verify is not VerifierPipeline.verify:
        raise RetrievalError(f"`verifier` {name} finds its evidence itself; leave `knowledge` out")
    base, folder = KnowledgeBase(path), path.with_name(f"{path.name}.bm25")
    if by_topic:
        return VerifierPipeline(verifier.extractor, verifier.judge, TopicRetriever(base, top_k=top_k))
    if not folder.is_dir():
        fix = f"`hf-factuality index {path.name}` with `bm25` makes it"
        raise RetrievalError(f"`knowledge` {path.name} has no index, which rows without a topic need; {fix}")
    return VerifierPipeline(verifier.extractor, verifier.judge, CorpusRetriever(base, folder, top_k=top_k))


def _find(name: str, revision: str | None, token: str | None) -> tuple[Path, dict[str, Any]]:
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        return folder, {"index": str(folder)}
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision, token=token))
    except Exception as error:  # of many kinds: no such repository, no network, no valid name
        raise RetrievalError(f"there is no folder {name}, and the Hub has it not either: {error}") from error
    return folder, {"index": name, "revision": folder.name if len(folder.name) == 40 else revision}


def _load(folder: Path, base: KnowledgeBase) -> PassageIndex:
    import bm25s

    again = f"build it again with CorpusRetriever.build or `hf-factuality index {base.path}` with `bm25`"
    try:
        config = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        bm25 = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        ranges = np.load(folder / "passages.npy", mmap_mode="r", allow_pickle=False)
        index = PassageIndex(bm25, ranges, PassageConfig(**config["passages"]), config["fingerprint"])
        version, scores = config["terms"], bm25.scores
        sizes = (ranges.shape, len(scores["indptr"]) - 1, int(scores["indptr"][-1]))
        if sizes != ((scores["num_docs"], 3), len(bm25.vocab_dict), len(scores["data"])):
            raise ValueError("its files do not belong together")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RetrievalError(f"{folder} holds no complete index ({error}); {again}") from None
    if version != TERMS_VERSION:
        raise RetrievalError(f"{folder} counts words as version {version} did, not {TERMS_VERSION}; {again}")
    if index.fingerprint != base.fingerprint:
        raise RetrievalError(f"{folder} was made from another knowledge base than {base.path}; pass that, or {again}")
    return index
