"""Stock DPO to the last bit, on two processes."""

import pytest

from tests.processes import assert_ended_well, run_ranks
from tests.trainers.mask_dpo_recording import VARIANTS


@pytest.mark.slow
def test_two_processes_equal_stock_dpo(tiny_model, tmp_path):
    ranks = run_ranks("tests.methods.fdpo.processes", tiny_model, tmp_path, *VARIANTS)
    assert_ended_well(ranks)
    for number, rank in enumerate(ranks):
        for variant in VARIANTS:
            assert f"rank {number} {variant}: identical" in rank.stdout
