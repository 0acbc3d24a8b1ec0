"""What is known of the benchmarks, their sources, and samples of their items."""

import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest


datasets = pytest.importorskip("datasets")

import huggingface_hub  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402

import hf_factuality.metrics as metrics  # noqa: E402
from hf_factuality.data.benchmarks import Benchmark, BenchmarkItem, benchmark_names, get_benchmark, load_items  # noqa: E402
from hf_factuality.errors import DataError  # noqa: E402
from hf_factuality.rewards import SCORERS  # noqa: E402
from tests.data.cases import cases  # noqa: E402


NAMES = tuple(
    "aa-omniscience abstentionbench aime-2024 aime-2025 biographies factory facts-grounding gsm8k halluqa halluqa-mc "
    "halueval-dialogue-judge halueval-qa halueval-qa-judge halueval-qa-pairwise halueval-summarization-judge llm-aggrefact longfact "
    "longwiki math-500 ragtruth simpleqa simpleqa-verified summac truthfulqa truthfulqa-generation wice".split()
)
JUDGES = {"llm-aggrefact", "ragtruth", "summac", "wice", *(name for name in NAMES if name.endswith("-judge"))}
GSM8K = [{"question": f"What is {n} + 0?", "answer": f"It stays.\n#### {n}"} for n in range(40)]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """`load_dataset` writes here, and not into the cache of whoever runs the tests."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def gsm8k(tmp_path) -> Path:
    return write(tmp_path / "gsm8k.jsonl", GSM8K)


def test_names():
    assert benchmark_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_known_can_be_run(name):
    spec = get_benchmark(name)
    assert isinstance(spec, Benchmark) and spec.name == name
    assert spec.kind == ("log_likelihood" if name == "truthfulqa" else "judge" if name in JUDGES else "generate")
    folder = Path(metrics.__file__).parent
    for metric in spec.metrics:
        assert metric == "accuracy" or (folder / metric / f"{metric}.py").is_file()
    assert ("accuracy" in spec.metrics) <= (spec.data_source in SCORERS)
    assert spec.metrics and len(set(spec.styles)) == len(spec.styles)
    assert spec.styles == ("given",) if name in JUDGES else "chat" in spec.styles
    assert spec.kind != "generate" or "fspo" in spec.styles
    assert spec.max_new_tokens >= 1 and 0 < spec.top_p <= 1 and spec.temperature >= 0
    assert spec.n_samples == (32 if name.startswith("aime") else 1)
    assert spec.n_samples == 1 or spec.temperature > 0
    assert "\n" not in spec.description + spec.source


def test_unknown_names_are_refused_with_similar_ones():
    with pytest.raises(DataError, match="'GSM-8K'.*'gsm8k'"):
        get_benchmark("GSM-8K")
    with pytest.raises(DataError, match="'aime-2024'.*'truthfulqa-generation'"):
        load_items("zzz")


def test_nothing_heavy_is_imported_before_rows_are_read():
    code = (
        "import sys; from hf_factuality.data.benchmarks import benchmark_names, get_benchmark; "
        "[get_benchmark(name) for name in benchmark_names()]; "
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'numpy', 'huggingface_hub'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_kinds_of_files(tmp_path, suffix):
    # A line separator of Unicode, a quote and a comma inside a cell must not end it.
    questions = ['What is\u2028"1,000" + 0?', "And 1?"]
    rows = [{"question": text, "answer": f"#### {gold}"} for text, gold in zip(questions, ("1,000", "1"), strict=True)]
    path = write(tmp_path / f"test{suffix}", rows)
    items, provenance = load_items("gsm8k", path=path)
    found = [(item.id, item.question, item.answer) for item in items if isinstance(item, BenchmarkItem)]
    assert found == [("0", questions[0], "1000"), ("1", questions[1], "1")]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert provenance == {
        "dataset": path.name, "split": None, "revision": digest, "rows": 2, "used": 2, "style": "chat", "seed": 0, "dropped": {}
    }  # fmt: skip


def test_json_lines_in_a_json_file_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "qa_data.json"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(json.dumps(row) + "\n" for row in GSM8K[:3]).encode())
    assert [item.answer for item in load_items("gsm8k", path=str(path))[0]] == ["0", "1", "2"]


def test_a_folder_is_loaded_by_datasets_without_a_network(tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    folder.mkdir()
    write(folder / "train.jsonl", GSM8K[:5])
    write(folder / "test.jsonl", GSM8K[5:8])
    items, provenance = load_items("gsm8k", path=folder)
    assert [item.answer for item in items] == ["5", "6", "7"]
    assert (provenance["dataset"], provenance["split"], provenance["rows"]) == ("copy", "test", 3)
    digests = "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("test.jsonl", "train.jsonl")
    )
    assert provenance["revision"] == hashlib.sha256(digests.encode()).hexdigest()
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("1")
    monkeypatch.chdir(folder)
    assert load_items("gsm8k", path=".")[1] == provenance
    assert load_items("gsm8k", path=folder, split="train")[1]["rows"] == 5
    with pytest.raises(DataError, match=r"'train', 'test'.*'validation'"):
        load_items("gsm8k", path=folder, split="validation")


def test_configurations_of_a_folder(tmp_path):
    folder = tmp_path / "copy"
    for config, rows in (("main", GSM8K[:2]), ("socratic", GSM8K[2:7])):
        (folder / config).mkdir(parents=True)
        write(folder / config / "test.jsonl", rows)
    card = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: test\n    path: {name}/test.jsonl\n"
        for name in ("main", "socratic")
    )
    (folder / "README.md").write_text(card + "---\n")
    assert len(load_items("gsm8k", path=folder)[0]) == 2
    with pytest.raises(DataError, match=r"'main', 'socratic'.*'default'"):
        load_items("math-500", path=folder)


@pytest.mark.parametrize("known", ["hub", "cache", "nobody"])
def test_the_hub_is_read_at_one_commit(monkeypatch, known):
    asked = {}

    def dataset_info(self, repo, revision=None):
        if known != "hub":
            raise ConnectionError("no network")
        return SimpleNamespace(sha=COMMIT)

    def load_dataset(*arguments, **options):
        asked.update(arguments=arguments, options=options)
        test = datasets.Dataset.from_list(GSM8K[:4])
        if known == "cache":
            test.info.download_checksums = {f"hf://datasets/openai/gsm8k@{COMMIT}/main/test.parquet": {"num_bytes": 1}}
        return {"train": datasets.Dataset.from_list(GSM8K), "test": test}

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    items, provenance = load_items("gsm8k", revision="main")
    assert asked["arguments"] == ("openai/gsm8k", "main")
    assert asked["options"] == {"revision": COMMIT if known == "hub" else "main"}  # and no remote code
    assert [item.answer for item in items] == ["0", "1", "2", "3"]
    assert (provenance["dataset"], provenance["split"]) == ("openai/gsm8k", "test")
    assert provenance["revision"] == (None if known == "nobody" else COMMIT)


def test_a_dataset_that_cannot_be_loaded(monkeypatch):
    def dataset_info(self, repo, revision=None):
        error = huggingface_hub.errors.RepositoryNotFoundError
        raise error("404", response=SimpleNamespace(headers={}, request=None, status_code=404))

    with pytest.raises(DataError, match="'nobody/nothing'.*network"):
        load_items("gsm8k", path="nobody/nothing")  # the tests have no network
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    with pytest.raises(DataError, match="'nobody/nothing'.*Hub"):
        load_items("gsm8k", path="nobody/nothing")


@pytest.mark.parametrize("name", ["halluqa", "halluqa-mc", "biographies", "longfact", "longwiki"])
def test_benchmarks_without_a_default_dataset_say_where_it_is(name):
    with pytest.raises(DataError, match=rf"{name} has no default dataset on the Hub; pass path= .*github\.com/"):
        load_items(name)


@cases("refusals", "benchmark arguments")
def test_bad_arguments(gsm8k, case):
    with pytest.raises(DataError, match=case["message"]):
        load_items("gsm8k", path=gsm8k, **case["arguments"])


@cases("refusals", "benchmark files")
def test_bad_files(tmp_path, case):
    path = tmp_path / case["file"]
    path.write_bytes(case["content"].encode("latin-1"))
    with pytest.raises(DataError, match=case["message"]):
        load_items("gsm8k", path=path)


@pytest.mark.parametrize("path", ["missing.jsonl", "./folder", "a/b/c", "/nowhere/x.parquet"])
def test_a_path_that_does_not_exist(path):
    with pytest.raises(DataError, match="no such file or folder"):
        load_items("gsm8k", path=path)


def test_rows_that_cannot_be_used_are_counted_and_named(tmp_path, caplog):
    rows = [*GSM8K[:2], {"question": " ", "answer": "#### 1"}, {"question": "Why?", "answer": "because"}]
    rows += [{"question": "How?"}, {"question": "How?", "answer": None}, {"question": ["How?"], "answer": "1"}]
    items, provenance = load_items("gsm8k", path=write(tmp_path / "a.jsonl", rows))
    assert [item.id for item in items] == ["0", "1"]
    reasons = {"no question": 1, "answer is no number": 1, "no answer": 2, "question is no text": 1}
    assert provenance["dropped"] == reasons
    assert (provenance["rows"], provenance["used"]) == (7, 2)
    assert "a.jsonl: dropped 2 of 7 rows, no answer: ['4', '5']" in caplog.text
    with pytest.raises(DataError, match="'no question': 1, 'answer is no number': 1"):
        load_items("gsm8k", path=write(tmp_path / "b.jsonl", rows[2:4]))


def test_own_ids_are_kept_if_all_rows_have_one(tmp_path):
    rows = [{"ID": f"2024-I-{n}", "Problem": f"{n}?", "Answer": n} for n in range(3)]
    own = [row["ID"] for row in rows]
    for ids in (own, ["0", "1", "2"]):
        items, _ = load_items("aime-2024", path=write(tmp_path / "a.jsonl", rows))
        assert [item.id for item in items] == ids
        rows[2]["ID"] = "2024-I-0"


def test_a_limit_takes_a_seeded_sample(gsm8k):
    ids = {}
    for seed in (0, 1, None):
        for limit in (5, 12, 40, 100):
            items, provenance = load_items("gsm8k", path=gsm8k, seed=seed, limit=limit)
            ids[seed, limit] = [int(item.id) for item in items]
            assert ids[seed, limit] == sorted(ids[seed, limit])
            assert [item.answer for item in items] == [str(number) for number in ids[seed, limit]]
            assert (provenance["rows"], provenance["used"], provenance["seed"]) == (40, min(limit, 40), seed)
    assert ids[None, 5] == [0, 1, 2, 3, 4]
    assert set(ids[0, 5]) < set(ids[0, 12]) < set(ids[0, 40])
    assert ids[0, 12] != ids[1, 12] and ids[0, 12] != list(range(12))
    assert ids[0, 100] == list(range(40))
    # By hand: the items whose SHA-256 of "seed:id" is smallest.
    ranked = sorted(range(40), key=lambda number: hashlib.sha256(f"1:{number}".encode()).hexdigest())
    assert ids[1, 5] == sorted(ranked[:5])


def test_gold_answers_satisfy_their_own_rule(tmp_path):
    pytest.importorskip("math_verify")
    rows = [{"question": "1?", "answer": "He has 1,234 left.\n#### $1,234"}]
    (item,), _ = load_items("gsm8k", path=write(tmp_path / "a.jsonl", rows))
    assert SCORERS[get_benchmark("gsm8k").data_source]("1234", [item.answer]) == 1
    assert SCORERS[get_benchmark("gsm8k").data_source]("1235", [item.answer]) == 0
