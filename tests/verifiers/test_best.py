import re
import socket
from functools import partial

import pytest
from huggingface_hub import HfApi, close_session

from hf_factuality.verifiers import (
    PUBLISHED_WEIGHTS,
    PublishedWeights,
    SmallVerifier,
    best_verifier,
    load_verifier,
    registry,
)
from hf_factuality.verifiers.best import WeightsAtHand
from hf_factuality.verifiers.registry import VERIFIER_NAMES, model_in_process
from tests.hub.loopback import hub  # noqa: F401 - a fixture
from tests.verifiers.judges.test_published import folders  # noqa: F401


GB = 10**9
CODE, LARGE, SMALL = (
    PublishedWeights("minicheck:a/code", "a/code", 7 * GB, 77.4, "CC BY-NC 4.0", bytes_on_cpu=2, remote_code=True),
    PublishedWeights("factcg", "a/large", GB // 2, 75.6, "MIT"),
    PublishedWeights("hhem", "a/small", GB // 10, 71.8, "MIT"),
)


# Needed by hand: parameters x 2 bytes on a GPU, 4 (of the first 2) on a CPU, x 1.1, and 3 GB, or 1 GB.
@pytest.mark.parametrize(
    ("memory", "on_gpu", "trust", "cached", "expected", "said"),
    [
        (16.5, False, True, "code large small", CODE, "needs 16.4 of 16.5 GB free RAM"),
        (16.3, False, True, "code large small", LARGE, "minicheck:a/code needs 16.4 GB"),
        (80.0, True, False, "code large small", LARGE, "trust_remote_code=True allows"),
        (3.1, False, False, "large small", SMALL, "factcg needs 3.2 GB"),
        (4.2, True, False, "large small", LARGE, "needs 4.1 of 4.2 GB free GPU"),
        (80.0, False, False, "small", SMALL, "factcg is neither cached nor can the Hub be reached"),
        (80.0, False, False, "", None, "took 'small'.*hhem is neither cached"),
        (1.0, False, False, "large small", None, "took 'small'.*1.0 GB of free RAM"),
    ],
)
def test_the_strongest_that_fits_and_can_be_had(memory, on_gpu, trust, cached, expected, said):
    have = dict.fromkeys([f"a/{name}" for name in cached.split()], "cached")
    found, why = best_verifier(
        memory=int(memory * GB),
        on_gpu=on_gpu,
        trust_remote_code=trust,
        have=lambda model: have.get(model, ""),
        published=(CODE, LARGE, SMALL),
    )
    assert found is expected and "\n" not in why
    assert re.search(said, why)


def test_the_table_is_in_order():
    figures = [it.balanced_accuracy for it in PUBLISHED_WEIGHTS]
    assert figures == sorted(figures, reverse=True)
    assert {it.name.partition(":")[0] for it in PUBLISHED_WEIGHTS} <= set(VERIFIER_NAMES)


def test_without_weights_it_is_the_small_one(monkeypatch, caplog):
    monkeypatch.setattr(registry, "best_verifier", partial(best_verifier, have=lambda model: ""))
    assert isinstance(load_verifier("best"), SmallVerifier) and model_in_process("best") is None
    (record,) = caplog.records
    assert record.message.startswith("verifier 'best': took 'small', whose weights are in the package")
    with pytest.raises(ValueError, match="'best' takes no model"):
        load_verifier("best:a/b")


def test_what_is_chosen_is_loaded_and_what_lacks_files_is_passed_over(monkeypatch, caplog, folders, tmp_path):  # noqa: F811
    def weights(name):
        return PublishedWeights(f"factcg:{name}", str(name), 1000, 70.0, "MIT")

    given = (weights(tmp_path / "gone"), weights(folders["deberta"]))
    monkeypatch.setattr(registry, "PUBLISHED_WEIGHTS", given)
    monkeypatch.setattr(registry, "best_verifier", partial(best_verifier, have=lambda model: "cached"))
    verifier = load_verifier("best", threshold=0.7)
    assert (verifier.judge.threshold, verifier.judge.config()["model"]) == (0.7, folders["deberta"])
    assert [record.message.partition("(")[0] for record in caplog.records][::2] == [
        f"verifier 'best': took {it.name!r} " for it in given
    ]


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # takes connections, and says nothing
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}" + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        for offline, asked in ((True, 0), (False, 1)):
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
            close_session()
            have = WeightsAtHand(timeout=0.1)
            assert [have("a/large"), have("a/small")] == ["", ""]
            deaf.settimeout(0.1)
            assert sum(1 for _ in connections(deaf)) == asked
    close_session()


def test_a_hub_that_answers_is_asked_about_each_model(hub):  # noqa: F811
    api = HfApi()
    api.create_repo("someone/large")
    api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="someone/large")
    have = WeightsAtHand()
    assert [have("someone/gone"), have("someone/large")] == ["", "on the Hub"]


def connections(server):
    while True:
        try:
            connection, _ = server.accept()
        except TimeoutError:
            return
        yield connection
        connection.close()
